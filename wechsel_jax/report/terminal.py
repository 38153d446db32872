"""Sections as lines for a terminal."""

import unicodedata
from collections.abc import Sequence

from wechsel_jax.report import section
from wechsel_jax.report.display import printable


def terminal(sections: Sequence[section.Section | section.Block]) -> str:
    """Renders sections, or blocks without a heading, as plain text: a drawing by its description, a best value by a star."""
    return "\n\n".join(filter(None, map(_block, sections)))


def aligned(table: section.Table) -> list[str]:
    """Returns a table as lines: columns of equal width, numbers ending below each other."""
    stars = {i for row in (table.head, *table.rows) for i, cell in enumerate(row) if _starred(cell)}
    rows = [[_cell(cell, i in stars) for i, cell in enumerate(row)] for row in (table.head, *table.rows)]
    widths = [max(_width(row[i]) for row in rows) for i in range(len(rows[0]))]
    lines = []
    for row in rows:
        blanks = [" " * (width - _width(cell)) for cell, width in zip(row, widths, strict=True)]
        both = enumerate(zip(row, blanks, strict=True))
        lines.append("  ".join(cell + blank if i in table.at_left else blank + cell for i, (cell, blank) in both).rstrip())
    return [lines[0], "-" * max(map(_width, lines)), *lines[1:]]


def _width(text: str) -> int:
    """How many columns of a terminal a text takes: Chinese characters two; marks above or below a letter, and joiners, none."""
    wide = {"W": 2, "F": 2}
    none = ("Mn", "Me", "Cf")
    return sum(0 if unicodedata.category(one) in none else wide.get(unicodedata.east_asian_width(one), 1) for one in text)


def _block(block: section.Block) -> str:
    match block:
        case section.Section():
            return "\n\n".join([_cell(block.heading), *filter(None, map(_block, block.blocks))])
        case section.Table():
            return "\n".join(aligned(block))
        case section.Items():
            return "\n".join(f"- {_cell(item)}" for item in block.items)
        case section.KeyFigures():
            return "\n".join(f"- {printable(value)} {_cell(what)}" for value, what in block.items)
        case section.Note():
            return _cell(block.text)
        case section.Listing():
            return "\n".join(map(printable, block.text.splitlines()))
        case section.Figure():
            return printable(block.description)
        case section.Panels():
            return "\n".join(f"{printable(heading)}: {printable(figure.description)}" for heading, _, figure in block.panels)
        case _:
            return _cell(block)


def _starred(cell: section.Text) -> bool:
    return any(isinstance(part, section.Best) for part in section.parts(cell))


def _cell(cell: section.Text, stars: bool = False) -> str:
    return printable(section.plain(cell)) + ("*" if _starred(cell) else " " if stars else "")
