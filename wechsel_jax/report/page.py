"""What runs recorded, as one self-contained HTML file with its plots beside it, and as a table for the terminal."""

import contextlib
from collections.abc import Sequence
from html import escape
from importlib import resources
from pathlib import Path

from wechsel_jax.errors import UserError
from wechsel_jax.files import new_file, refuse_file
from wechsel_jax.records import RunRecord, read_comparison
from wechsel_jax.report import curves, embeddings_sections, run_sections, training_sections, transfer_sections
from wechsel_jax.report.figures import NARROW, SMALL, WIDE, WRITER, drawn, encoded, inline
from wechsel_jax.report.html import html, words
from wechsel_jax.report.palette import css
from wechsel_jax.report.runs import Report, read_runs
from wechsel_jax.report.section import Figure, Section, plain
from wechsel_jax.report.terminal import terminal

# In the order of a reader's questions: did it work, how did it go, what was it made of, how is it made again.
_SECTIONS = (
    training_sections.standing, training_sections.learning_curves, training_sections.label_scores,
    training_sections.translations, training_sections.perplexities, training_sections.bits_per_byte, training_sections.history,
    transfer_sections.verdicts, transfer_sections.origins, transfer_sections.coverage, transfer_sections.alignment,
    transfer_sections.examples, transfer_sections.lengths, run_sections.timings, run_sections.settings,
)  # fmt: skip


def write_report(
    runs: Sequence[str | Path | RunRecord],
    output: str | Path,
    title: str | None = None,
    *,
    plots: bool = True,
    overwrite: bool = True,
    embeddings: Sequence[str | Path] = (),
) -> Path:
    """Writes what runs recorded as one HTML file without external resources, and its plots as PNG and SVG beside it.

    All files are written, or none is.

    Args:
      runs: directories as in `read_run`, workdirs of `train.compare`, or runs that were read; may be none beside `embeddings`.
      output: the HTML file; plots are named after it, "report-learning-curves.png" beside "report.html".
      title: above the headline; by default made from the source model's name.
      plots: write the PNG and SVG files; the page holds its plots without them.
      overwrite: replace an earlier report of the same name, and its plots.
      embeddings: files of `wechsel-jax embeddings`, of which each table has a section.

    Returns:
      `output`.

    Raises:
      UserError: a run is missing or damaged, two were scored on different held-out text, `output` is a directory, matplotlib is
        missing, or one of the files exists and `overwrite` is false.
    """
    output = Path(output)
    if output.is_dir():
        raise UserError(f"{output}: is a directory; expected the name of an HTML file")
    tables = embeddings_sections.read_embeddings(embeddings)
    records = [] if tables.tables and not runs else read_runs(runs, measured=True)
    sections = embeddings_sections.sections(tables)
    if records:
        report = Report(records, read_comparison(records))
        sections = [section for make in _SECTIONS for section in make(report)] + sections
    figures = [block for section in sections for block in section.blocks if isinstance(block, Figure)]
    canvases = {figure.name: drawn(figure, WIDE) for figure in figures}
    files = {
        output.with_name(f"{output.stem}-{name}.{kind}"): encoded(canvas, kind)
        for name, canvas in canvases.items()
        for kind in ("png", "svg")
        if plots
    }

    def draw(figure: Figure, small: bool) -> str:
        if small:
            return inline(drawn(figure, SMALL), figure, "small")
        narrow = drawn(figure, NARROW)
        return inline(canvases[figure.name], figure, "wide") + inline(narrow, figure, "narrow")

    def own(path: Path) -> bool:
        # The plots of earlier versions did not name it, but their page names them.
        return is_report(path) or (is_report(output) and path.name.encode() in output.read_bytes())

    for path in (output, *files):
        refuse_file(path, own, "report", overwrite)
    models = {str(run.transfer.source["model"]) for run in records if run.transfer and run.transfer.source.get("model")}
    about = f"{Path(models.pop()).name} in a new language" if len(models) == 1 else "A language model in a new language"
    if all(curves.scored(run) for run in records):
        about = "A fine-tuned model" if records else "Embeddings"
    elif all(run.config.get("objective") == "translation" for run in records):
        about = "A model that translates"
    top = training_sections.top(report) if records else Section("Will these embeddings train well?")
    style = resources.files("wechsel_jax.report").joinpath("style.css").read_text(encoding="utf-8")
    places = map(str, (*(run.path for run in records), *embeddings))
    beside = f" The plots are beside this file: {', '.join(escape(path.name) for path in sorted(files))}." if files else ""
    page = (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width,initial-scale=1"><meta name="color-scheme" content="light dark">'
        f'<meta name="description" content="{escape(plain(top.heading))}"><title>{escape(title or about)}</title>'
        f'<style>{css()}{style}</style></head><body>\n<header><h1 class="eyebrow">{escape(title or about)}</h1>'
        f'<p class="headline">{words(top.heading)}</p>{html(top.blocks, draw)}</header>\n<main>{html(sections, draw)}</main>\n'
        f"<footer><p>{WRITER} from {', '.join(map(escape, places))}.{beside}</p></footer></body></html>\n"
    )
    # The page, which names the plots, gets its name last. A token may hold half of a surrogate pair, which UTF-8 cannot.
    with contextlib.ExitStack() as written:
        for path, contents in {output: page.encode("utf-8", errors="replace"), **files}.items():
            handle = written.enter_context(new_file(path))
            handle.write(contents)
            handle.flush()
    return output


def is_report(path: Path) -> bool:
    """Whether a file is one that `write_report` writes: each names its writer."""
    return WRITER.encode() in path.read_bytes()


def comparison_table(runs: Sequence[str | Path | RunRecord]) -> str:
    """Returns held-out bits per byte and perplexities as lines for a terminal, with the sentences that sum them up.

    The lowest value of an evaluation has a star. Where one run was trained from scratch, a last column says how many steps it
    needs for what the best run has by then. Of more than six runs each is a line, the best first; an evaluation is a column.

    Args:
      runs: directories as in `read_run`, or runs that were read.

    Raises:
      UserError: a run cannot be read, or two were scored on different held-out text.
    """
    report = Report(read_runs(runs))
    top = training_sections.top(report)
    told = [*training_sections.perplexities(report), *training_sections.bits_per_byte(report)]
    return terminal([*told, Section(top.heading, top.blocks)])
