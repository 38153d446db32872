"""lm-eval's own program with this package's models in it; any task, any flag of lm-eval.

    python -m wechsel_jax.evaluation.harness --model wechsel_jax --model_args pretrained=DIR --tasks arc_easy

lm-eval has no plug-ins, so its program has to be started from here for it to know the model.
"""

from wechsel_jax.errors import from_extra
from wechsel_jax.program import program


def main(*, last: bool = False) -> None:
    """Runs lm-eval with the arguments of the process.

    Args:
      last: whether the process ends with it, see `program`.

    Raises:
      SystemExit: with status 2 after a user's mistake, see `program`.
    """
    with program("lm_eval", last=last):
        with from_extra("eval", "to run its tasks with these models"):
            from lm_eval.__main__ import cli_evaluate
        from wechsel_jax.evaluation import harness_model  # noqa: F401  registers the model

        cli_evaluate()


if __name__ == "__main__":
    main(last=True)
