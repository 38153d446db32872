"""Files of `wechsel-jax embeddings` as sections: the verdict, distributions with their drawing, positions, analogies."""

import re
from collections.abc import Sequence
from pathlib import Path

from wechsel_jax.files import new_file, refuse_file
from wechsel_jax.inspection.verdict import summary
from wechsel_jax.records.embeddings import Absorption, Analogies, Distribution, Embeddings, EmbeddingsRecord
from wechsel_jax.report.display import NO_VALUE, number, percent
from wechsel_jax.report.figures import WRITER
from wechsel_jax.report.markdown import comment, markdown
from wechsel_jax.report.plots import Histograms
from wechsel_jax.report.section import Block, Figure, Items, Note, Section, Strong, Table

STEPS = {
    "scaled": "× √D",
    "pretrained_xavier": "Xavier's spread",
    "xavier_pretrained": "Xavier with its spread",
    "xavier": "Xavier",
    "rows_columns": "rows, columns shuffled",
    "elements": "entries shuffled",
    "positions": "+ positions",
    "stretched_positions": "+ positions × σp/σx",
}
POSITIONS = {
    "sinusoidal": "sinusoidal, j / D",
    "paired": "sinusoidal, in pairs",
    "halves": "sinusoidal, in halves",
    "learned": "learned",
    "rotary": "rotary",
    "relative": "relative",
}


def read_embeddings(files: Sequence[str | Path]) -> EmbeddingsRecord:
    """Reads files of `wechsel-jax embeddings` as one record."""
    return EmbeddingsRecord(tuple(table for file in files for table in EmbeddingsRecord.read(file).tables))


def sections(record: EmbeddingsRecord) -> list[Section]:
    """A section for each table of a record."""
    return [_section(table, i) for i, table in enumerate(record.tables)]


def write_embeddings(files: Sequence[str | Path], output: str | Path, *, overwrite: bool = False) -> Path:
    """Writes the sections of files of embeddings as one Markdown file; `page.write_report` writes them as a page."""
    output, told = Path(output), comment(f"{WRITER} from {', '.join(map(str, files))}.")
    refuse_file(output, lambda path: WRITER.encode() in path.read_bytes()[:2000], "report", overwrite, files)
    text = markdown(sections(read_embeddings(files)))
    with new_file(output, "w") as handle:
        handle.write(f"{told}\n\n{text}\n")
    return output


def named(steps: Sequence[str]) -> str:
    """What was done to a table, in words.

    >>> named(()), named(("pretrained_xavier", "positions"))
    ('as it is', "Xavier's spread + positions")
    """
    return " ".join(STEPS.get(step, step) for step in steps) or "as it is"


def distribution_table(found: Sequence[Distribution]) -> Table:
    """Range, mean, deviation, lengths and directions of each state of a table."""
    head = (
        *("table", "rows", "least", "largest", "mean", "deviation", "of Xavier's", "outside Xavier's range"),
        *("shortest row", "mean length", "longest", "mean cosine"),
    )
    rows = tuple(
        (
            named(one.steps) if one.group == "all" else one.group,
            f"{one.rows:,}",
            *(_short(value) for value in (one.least, one.largest, one.mean, one.sd)),
            f"{number(one.ratio)} ×",
            percent(one.outside),
            *(_short(value) for value in (one.norm_least, one.norm_mean, one.norm_largest)),
            NO_VALUE if one.anisotropy is None else f"{one.anisotropy:.3f}",
        )
        for one in found
    )
    return Table(head, rows, "distribution of the entries")


def absorption_table(found: Sequence[Absorption]) -> Table:
    """What positions explain of the input at each scale, and how much of them is read back."""
    probed = any(one.probe_r2 is not None for one in found)
    head = ("input", "positions", "scale", "deviation", "of positions", "share of variance", "linear reader, R²")
    rows = []
    for one in found:
        cells = (named(one.steps), POSITIONS.get(one.positions, one.positions), number(one.scale))
        deviations = tuple(NO_VALUE if value is None else _short(value) for value in (one.embedding_sd, one.position_sd))
        row = (*cells, *deviations, f"{100 * one.share:.3g} %", f"{one.linear:.3f}")
        if probed:
            values = ((one.probe_r2, "{:.3f}"), (one.probe_accuracy, "{:.1%}"))
            row += tuple(NO_VALUE if value is None else form.format(value).replace("%", " %") for value, form in values)
        rows.append(row)
    head += ("probe, R²", "probe, right position") if probed else ()
    return Table(head, tuple(rows), "positions in the input", text=(0, 1))


def analogies_table(found: Sequence[Analogies]) -> Table:
    """Analogies answered after each change of the table."""
    rows = tuple(
        (
            named(one.steps),
            f"{one.correct:,}",
            f"{one.total:,}",
            f"{100 * one.correct / one.total:.1f}" if one.total else NO_VALUE,
        )
        for one in found
    )
    return Table(("table", "right", "of", "%"), rows, "word analogies")


def _section(table: Embeddings, place: int) -> Section:
    blocks: list[Block] = []
    if table.findings:
        lines = tuple((Strong(one.severity, one.severity), f": {one.text}") for one in table.findings)
        blocks += [f"Will they train well? {summary(table.findings)}", Items(lines)]
    plain = table.distributions[0]
    blocks.append(distribution_table(table.distributions))
    limit = _short(plain.xavier_limit)
    cosine = "The mean cosine is that of all pairs of rows: 0 where they point everywhere, 1 where all point one way."
    blocks.append(Note(f"Xavier's range for {table.rows:,} x {table.dimensions} is ±{limit}. {cosine}"))
    named_parts = [(named(one.steps) if one.group == "all" else one.group, one) for one in table.distributions]
    panels = tuple((name, one.bins, one.counts, one.xavier_limit) for name, one in named_parts if one.bins[0] < one.bins[1])
    if panels:
        short = re.sub(r"[^a-z0-9]+", "-", Path(table.name).name.lower()).strip("-")
        described = "; ".join(f"{name} {_short(one.least)} to {_short(one.largest)}" for name, one in named_parts)
        title = f"Entries of {table.name}, {table.table}"
        words = f"Entries within four deviations of their mean, Xavier's range in grey. Whole ranges: {described}."
        blocks.append(Figure(f"embeddings-{place + 1}-{short}", title, words, Histograms(panels)))
    if table.absorptions:
        length = table.absorptions[0].length
        text = (
            f"Over {length} positions: the part of the variance of the input that its position explains, and how much of the "
            "variance of the position's number the best linear reader finds in the whole vocabulary"
        )
        probes = "; probes are scored on words that they have not seen" if table.absorptions[-1].probe_r2 is not None else ""
        blocks.append(Section("Positions in the input", (absorption_table(table.absorptions), Note(f"{text}{probes}."))))
    if table.analogies:
        one = table.analogies[0]
        words = f" among {table.settings['words']:,} words" if "words" in table.settings else ""
        text = f"{one.total:,} of {one.asked:,} questions have all their words in the vocabulary; 3CosAdd{words}."
        blocks.append(Section("Word analogies", (analogies_table(table.analogies), Note(text))))
    heading = f"{table.name}, {table.table}: {table.rows:,} x {table.dimensions}"
    return Section(heading, tuple(blocks))


def _short(value: float) -> str:
    """A number with three digits; one so small that it is nothing but rounding is 0."""
    return "0" if abs(value) < 1e-9 else number(value)
