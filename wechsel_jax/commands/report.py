"""Writes one self-contained HTML file about training runs: curves, tables, where tokens came from. Or tables of scores.

wechsel-jax report runs/demo/wechsel runs/demo/full_rand --output=report.html
wechsel-jax report scores.json --output=scores.md

The page's plots are written beside it for papers and slides, as PNG and SVG: report-learning-curves.png,
report-token-origins.svg, report-embedding-lengths.png and so on, as far as the runs have data for them.

Runs are compared in bits per byte where all of them recorded these, else in perplexity. Runs that were scored on different
held-out text are refused. A run may still be going: the page says where it stands and when it will be done.

Files that `wechsel-jax embeddings` wrote become sections of the page, with or without runs; alone also a .md file.

Of files of scores that `wechsel-jax evaluate` wrote, tables are written: .md, .tex (a tabular each, for booktabs) or .csv
(every metric of every score, no differences); or a drawing, .svg or .png, with --heat_map of the shaded table, with
--grid=neighbors,temperature of the scores by two settings of the models' transfers. Models that were scored on different data
are not put side by side.
"""

from pathlib import Path

from absl import flags

from wechsel_jax.errors import UserError
from wechsel_jax.files import refuse_file, require_directory, require_file

ARGUMENTS = "RUN|SCORES|EMBEDDINGS..."
REQUIRED = ("output",)


def define(values: flags.FlagValues) -> None:
    """Defines the flags of `report.write_report`."""
    output = "The HTML file to write; of scores a .md, .tex, .csv, .svg or .png."
    flags.DEFINE_string("output", "report.html", output, flag_values=values)
    flags.DEFINE_string("title", None, "Title of the page.", flag_values=values)
    heat_map = "Of scores as a drawing: a heat map of the table instead of intervals."
    flags.DEFINE_boolean("heat_map", False, heat_map, flag_values=values)
    grid = "Of scores as a drawing: a heat map of two settings of the transfers, ROWS,COLUMNS, as neighbors,temperature."
    flags.DEFINE_string("grid", None, grid, flag_values=values)
    flags.DEFINE_boolean("overwrite", False, "Replace an existing report and its plots.", flag_values=values)


def run(values: flags.FlagValues, arguments: list[str]) -> None:
    """Writes the report and says where it is."""
    output = Path(values.output)
    from wechsel_jax.records.embeddings import is_embeddings

    embeddings = [argument for argument in arguments if Path(argument).is_file() and is_embeddings(argument)]
    page = output.suffix in (".html", ".htm")
    drawing = output.suffix in (".svg", ".png"), "a drawing of scores (.svg or .png)"
    for flag, works, expected in (("title", page, "a page (.html)"), ("heat_map", *drawing), ("grid", *drawing)):
        if values[flag].value and not works:
            raise UserError(f"--{flag}: has no effect on --output={output}; expected {expected}; leave it out")
    if values.grid and values.heat_map:
        raise UserError("--heat_map: has no effect with --grid, which is one; leave it out")
    if embeddings and output.suffix == ".md" and len(embeddings) == len(arguments):
        from wechsel_jax.report.embeddings_sections import write_embeddings

        print(write_embeddings(embeddings, output, overwrite=values.overwrite))
        return
    if not embeddings and all(argument.endswith(".json") for argument in arguments):
        from wechsel_jax.report.scores_table import read_scores, scores_text, write_scores

        for argument in arguments:
            require_file(argument, "a file of scores")
        # First, because who reads the tables may go away (`| head`).
        look = {"shaded": values.heat_map, "settings": values.grid.split(",") if values.grid else ()}
        written = write_scores(arguments, output, **look, overwrite=values.overwrite)
        print(scores_text(read_scores(arguments)), written, sep="\n")
        return
    rest = [argument for argument in arguments if argument not in embeddings]
    runs = [require_directory(argument, "the directory of a run or a transfer, or .json files of scores") for argument in rest]
    from wechsel_jax.report.page import is_report, write_report

    refuse_file(output, is_report, "report", values.overwrite)
    if not page:
        raise UserError(f"--output={output}: a report of runs is a page; expected the name of a .html file")

    title = {"title": values.title} if values.title else {}
    print(write_report(runs, output, overwrite=values.overwrite, embeddings=embeddings, **title))
