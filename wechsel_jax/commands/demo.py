"""Runs the demonstration: a small English GPT-2 becomes German by four methods, each trained on the same text. Works offline.

  wechsel-jax demo --workdir=runs/demo

Takes 10 to 20 minutes on 2 CPU cores, and writes a table, DIR/report.html and the models, DIR/METHOD/export/. The same command
again goes on where it stopped.
"""

from absl import flags

from wechsel_jax.errors import from_extra

REQUIRED = ("workdir",)


def define(values: flags.FlagValues) -> None:
    """Defines the flags of `comparison.compare` that the demonstration leaves open."""
    flags.DEFINE_string("workdir", None, "The directory to work in: new, empty or this command's own.", flag_values=values)
    # Six evaluations; with fewer steps a phase of some method would have none.
    steps = "Training steps of each method; fewer are quicker and show less."
    flags.DEFINE_integer("steps", 150, steps, lower_bound=6, upper_bound=1_000_000, flag_values=values)
    flags.DEFINE_integer(
        "seed", 0, "Of everything that is drawn at random.", lower_bound=0, upper_bound=(1 << 31) - 1, flag_values=values
    )


def run(values: flags.FlagValues, arguments: list[str]) -> None:
    """Compares; what it finds is printed and written by the comparison itself."""
    del arguments
    with from_extra("train", "to train models"):
        from wechsel_jax.comparison import compare
        from wechsel_jax.demo.settings import get_config

    config = get_config()
    config.seed = values.seed
    if values["steps"].present:
        config.training.steps = values.steps
        config.training.eval_every = values.steps // 6
    compare(config, values.workdir)
