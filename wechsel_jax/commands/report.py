"""Writes one self-contained HTML file about training runs: curves, tables, where tokens came from.

wechsel-jax report runs/demo/wechsel runs/demo/full_rand --output=report.html

A run may still be going: the page says where it stands and when it will be done, and what was measured until now.
"""

from absl import flags

from wechsel_jax.files import refuse_existing, require_directory

ARGUMENTS = "RUN..."
REQUIRED = ("output",)


def define(values: flags.FlagValues) -> None:
    """Defines the flags of `report.write_report`."""
    flags.DEFINE_string("output", "report.html", "The file to write.", flag_values=values)
    flags.DEFINE_string("title", None, "Title of the page.", flag_values=values)
    flags.DEFINE_boolean("overwrite", False, "Replace an existing output.", flag_values=values)


def run(values: flags.FlagValues, arguments: list[str]) -> None:
    """Writes the report and says where it is."""
    from pathlib import Path

    runs = [require_directory(argument, "the workdir of a training run") for argument in arguments]
    refuse_existing(values.output, values.overwrite)
    from wechsel_jax.report import write_report

    title = {"title": values.title} if values.title else {}
    print(write_report(runs, Path(values.output), **title))
