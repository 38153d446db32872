"""Writes any checkpoint of a training run as a model directory that transformers loads, with its model card.

  wechsel-jax export runs/german --step=best --output=german-gpt2 --license=mit --language=de

The run may be going on, and its text need not be there.
"""

from absl import flags

from wechsel_jax.commands import choice, picked

ARGUMENTS = "RUN"
REQUIRED = ("output",)


def define(values: flags.FlagValues) -> None:
    """Defines the flags of `training.exports.export_checkpoint`."""
    flags.DEFINE_string("step", "newest", "Step of the checkpoint, or newest, or best.", flag_values=values)
    average = "Write the mean of the weights of so many checkpoints: that one and those before it."
    flags.DEFINE_integer("average", 1, average, lower_bound=1, upper_bound=1 << 20, flag_values=values)
    flags.DEFINE_string("output", None, "The directory to write.", flag_values=values)
    choice(values, "dtype", None, ("float32", "float16", "bfloat16"), "Type of the tensors, by default the run's export_dtype")
    flags.DEFINE_string("license", None, "Licence for the card, as the hub spells it, e.g. apache-2.0.", flag_values=values)
    flags.DEFINE_list("language", [], "Languages for the card, e.g. de.", flag_values=values)
    flags.DEFINE_boolean("overwrite", False, "Replace an existing output.", flag_values=values)


def run(values: flags.FlagValues, arguments: list[str]) -> None:
    """Exports, and says which step it was."""
    import functools
    import sys

    import jax

    # Accelerators belong to the run; all that is needed here is the host.
    jax.config.update("jax_platforms", "cpu")
    from wechsel_jax.training.exports import export_checkpoint

    options = picked(values, "average", "dtype", "license", "language", "overwrite")
    options["say"] = functools.partial(print, file=sys.stderr)
    step = export_checkpoint(arguments[0], values.output, values.step, **options)
    several = f"the mean of {values.average} checkpoints up to" if values.average > 1 else "the weights of"
    print(f"{values.output}: {several} step {step:,}")
