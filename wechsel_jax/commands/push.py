"""Uploads a model directory to the Hugging Face hub, with a model card if it has none.

  wechsel-jax push german-gpt2/ --repo=user/german-gpt2

The token is that of `hf auth login` or of the environment variable HF_TOKEN.
"""

from absl import flags

ARGUMENTS = "DIR"
REQUIRED = ("repo",)


def define(values: flags.FlagValues) -> None:
    """Defines the flags of `hub.push`."""
    flags.DEFINE_string("repo", None, "Repository, user/name; made where it does not exist.", flag_values=values)
    flags.DEFINE_boolean("private", False, "Make a new repository private.", flag_values=values)


def run(values: flags.FlagValues, arguments: list[str]) -> None:
    """Uploads and prints the address."""
    from wechsel_jax.hub import push

    print(push(arguments[0], values.repo, private=values.private))
