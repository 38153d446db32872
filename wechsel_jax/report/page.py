"""One self-contained HTML file about one or several runs, and its plots as files."""

import re
from collections.abc import Sequence
from html import escape
from importlib import resources
from pathlib import Path

from wechsel_jax.errors import UserError
from wechsel_jax.files import new_file, refuse_file
from wechsel_jax.report import detail_sections, quality_sections, sections, token_sections, watching_sections
from wechsel_jax.report.figures import WRITER, render
from wechsel_jax.report.headline import headline, plain
from wechsel_jax.report.palette import css_variables
from wechsel_jax.report.records import RunRecord, read_comparison, read_runs
from wechsel_jax.report.sections import Report


def write_report(
    runs: Sequence[str | Path | RunRecord],
    output: str | Path,
    title: str | None = None,
    *,
    plots: bool = True,
    overwrite: bool = True,
) -> Path:
    """Writes what runs recorded as one HTML file without external resources, and its plots as PNG and SVG beside it.

    All files are drawn before the first is written.

    Args:
      runs: directories as in `read_run`, workdirs of `train.compare`, or runs that were read.
      output: the HTML file; plots are named after it, "report-learning-curves.png" beside "report.html".
      title: above the headline; by default made from the source model's name.
      plots: write the PNG and SVG files, which needs matplotlib. The page has its plots without it.
      overwrite: replace an earlier report of the same name, and its plots.

    Returns:
      `output`.

    Raises:
      UserError: a run is missing or damaged, `output` is a directory, matplotlib is missing, or one of the files exists and
        `overwrite` is false.
    """
    output = Path(output)
    if output.is_dir():
        raise UserError(f"{output}: is a directory; expected the name of an HTML file")
    records = read_runs(runs)
    report = Report(records, read_comparison(records))
    files = render(records, report.slots) if plots else {}
    names = {name: output.with_name(f"{output.stem}-{name}") for name in files}

    def own(path: Path) -> bool:
        # The plots of earlier versions did not name it, but their page names them.
        return is_report(path) or (is_report(output) and path.name.encode() in output.read_bytes())

    for path in (output, *names.values()):
        refuse_file(path, own, "report", overwrite)
    page = _page(report, title or _title(records), sorted(path.name for path in names.values()))
    for name, contents in files.items():
        with new_file(names[name]) as handle:
            handle.write(contents)
    with new_file(output) as handle:
        # A token may hold half of a surrogate pair, which UTF-8 cannot.
        handle.write(page.encode("utf-8", errors="replace"))
    return output


def is_report(path: Path) -> bool:
    """Whether a file is one that `write_report` writes: each names its writer."""
    return WRITER.encode() in path.read_bytes()


def _page(report: Report, title: str, files: Sequence[str]) -> str:
    style = resources.files("wechsel_jax.report").joinpath("style.css").read_text(encoding="utf-8")
    body = "".join(
        (
            watching_sections.standing(report),
            sections.curves(report),
            sections.perplexities(report),
            watching_sections.history(report),
            quality_sections.verdicts(report),
            token_sections.origins(report),
            quality_sections.coverage(report),
            token_sections.alignment(report),
            token_sections.examples(report),
            token_sections.norms(report),
            detail_sections.timings(report),
            detail_sections.settings(report),
        )
    )
    # A number and its sign stay on one line.
    header, body = (re.sub(r"(\d) ([%×])", r"\1&nbsp;\2", part) for part in (sections.top(report, title), body))
    paths = ", ".join(escape(str(run.path)) for run in report.runs)
    beside = f" The plots are beside this file: {', '.join(map(escape, files))}." if files else ""
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width,initial-scale=1"><meta name="color-scheme" content="light dark">'
        f'<meta name="description" content="{escape(plain(headline(report.runs)))}"><title>{escape(title)}</title>'
        f"<style>{css_variables()}{style}</style></head><body>\n{header}\n<main>{body}</main>\n"
        f"<footer><p>{WRITER} from {paths}.{beside}</p></footer></body></html>\n"
    )


def _title(runs: Sequence[RunRecord]) -> str:
    models = {str(run.transfer.source["model"]) for run in runs if run.transfer and run.transfer.source.get("model")}
    return f"{Path(models.pop()).name} in a new language" if len(models) == 1 else "A language model in a new language"
