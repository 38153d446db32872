"""Uploads a model directory to the Hugging Face hub in one commit, with a model card if it has none.

A card that is there gets what --license and --language say, in what is uploaded, if it states none itself. Hidden files are
left out, and a link that leads out of DIR is refused. Weights and files of a tokenizer that are of an earlier upload alone, and
that transformers would read in place of the new ones, are removed by the same commit.

  wechsel-jax push german-gpt2/ --repo=user/german-gpt2 --dry_run
  wechsel-jax push german-gpt2/ --repo=user/german-gpt2 --private

The token is that of `hf auth login` or of the environment variable HF_TOKEN; it is never shown. After a failure run the same
command again: files that have arrived are not sent again.
"""

from absl import flags

from wechsel_jax.commands import picked

ARGUMENTS = "DIR"
REQUIRED = ("repo",)


def define(values: flags.FlagValues) -> None:
    """Defines the flags of `hub.push`."""
    flags.DEFINE_string("repo", None, "Repository, user/name; made where it does not exist.", flag_values=values)
    flags.DEFINE_boolean("private", False, "Make a new repository private; refuse a public one.", flag_values=values)
    flags.DEFINE_string("revision", None, "Branch, made where it does not exist; main by default.", flag_values=values)
    flags.DEFINE_boolean("dry_run", False, "Only list the files and their sizes.", flag_values=values)
    flags.DEFINE_string(
        "license", None, "Licence, e.g. apache-2.0, for a card that states none; at every push.", flag_values=values
    )
    flags.DEFINE_list("language", [], "Languages, e.g. de, for a card that states none.", flag_values=values)


def run(values: flags.FlagValues, arguments: list[str]) -> None:
    """Uploads and prints the address."""
    from wechsel_jax.hub import push

    address = push(arguments[0], values.repo, **picked(values, "private", "revision", "dry_run", "license", "language"))
    if not values.dry_run:
        print(address)
