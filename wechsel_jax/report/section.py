"""What is told, once for all renderers: sections of sentences, lists, tables and figures.

A section is data. `terminal.terminal`, `html.html` and `markdown.markdown` turn sections into text, and each escapes what it is
given: whatever a token, a name or a setting holds, it stays text. So nothing in a section is escaped or marked up beforehand.

>>> from wechsel_jax.report.terminal import terminal
>>> table = Table(("token", "row"), (((Token("Ġhaus"), "copied")), (Code("<pad>"), Strong("random"))), text=(0, 1))
>>> print(terminal([Section("Tokens", ("Every token has a row.", table))]))
Tokens
<BLANKLINE>
Every token has a row.
<BLANKLINE>
token  row
-------------
␣haus  copied
<pad>  random
"""

from collections.abc import Sequence
from dataclasses import dataclass

from wechsel_jax.report.display import shown
from wechsel_jax.report.plots import Plot


@dataclass(frozen=True)
class Name:
    """The label of a run, in the colour of its slot, see `palette`."""

    text: str
    slot: int


@dataclass(frozen=True)
class Token:
    """A token of a vocabulary as the vocabulary spells it; a renderer shows its space, and keeps its direction to itself."""

    text: str


@dataclass(frozen=True)
class Code:
    """A name, path or value that is shown letter by letter."""

    text: str


@dataclass(frozen=True)
class Strong:
    """A word that stands out. `kind` is its role in the page's style ("wrong", "look", "ok"), for colour beside the word."""

    text: str
    kind: str = ""


@dataclass(frozen=True)
class Best:
    """The best value of a row or column: bold, with a star in the terminal and a dot of its run's colour in the page."""

    text: str
    slot: int = 0


@dataclass(frozen=True)
class Weight:
    """A source token and its weight in a target token's row; the page draws a bar. `value` is what stands for the weight."""

    token: str
    weight: float
    value: str
    kind: str = "mixed"


@dataclass(frozen=True)
class Bar:
    """A share from 0 to 1 as a bar, in the page only; the number itself must stand beside it."""

    share: float
    kind: str = "mixed"


Inline = str | Name | Token | Code | Strong | Best | Weight | Bar
# A sentence, or the cell of a table.
Text = Inline | tuple[Inline, ...]


@dataclass(frozen=True)
class Items:
    """A list of sentences."""

    items: tuple[Text, ...]


@dataclass(frozen=True)
class Note:
    """A sentence about what stands before it; of kind "warning" one that must be seen."""

    text: Text
    kind: str = "caption"


@dataclass(frozen=True)
class KeyFigures:
    """Few numbers that matter most, each with what it is."""

    items: tuple[tuple[str, Text], ...]


@dataclass(frozen=True)
class Table:
    """A table; the first cell of a row names it.

    Attributes:
      head: a cell for each column.
      rows: cells of the rows, as many as `head` has.
      name: what the table holds, for readers who do not see it.
      text: columns of words, aligned to the left; the others are numbers. The first column is always of words.
      left: columns of numbers that are aligned to the left, since a second one follows in brackets.
    """

    head: tuple[Text, ...]
    rows: tuple[tuple[Text, ...], ...]
    name: str = ""
    text: tuple[int, ...] = (0,)
    left: tuple[int, ...] = ()

    @property
    def at_left(self) -> set[int]:
        """All columns that are aligned to the left."""
        return {0, *self.text, *self.left}


@dataclass(frozen=True)
class Listing:
    """Lines of a program or of BibTeX, letter by letter."""

    text: str
    language: str = ""


@dataclass(frozen=True)
class Figure:
    """A drawing.

    Attributes:
      name: of its file and its ids, different for each figure of a page: "learning-curves".
      title: what is drawn, for readers who do not see it.
      description: what can be seen in it, likewise; a terminal and Markdown show it in the drawing's place.
      plot: what `figures.drawn` draws, see `plots`.
    """

    name: str
    title: str
    description: str
    plot: Plot


@dataclass(frozen=True)
class Panels:
    """Small figures side by side, each with a heading and a line about it."""

    panels: tuple[tuple[str, Text, Figure], ...]


@dataclass(frozen=True)
class Section:
    """A heading and what stands under it.

    Attributes:
      heading: one line.
      blocks: in their order. A text is a paragraph, a section a part with a heading of its own.
      folded: the page shows the heading alone until the reader opens it.
    """

    heading: Text
    blocks: tuple["Block", ...] = ()
    folded: bool = False


Block = Text | Items | Note | KeyFigures | Table | Listing | Figure | Panels | Section


def parts(text: Text) -> tuple[Inline, ...]:
    """Returns the parts of a sentence or cell."""
    return text if isinstance(text, tuple) else (text,)


def plain(text: Text) -> str:
    """Returns a sentence or cell as characters alone."""
    found = []
    for part in parts(text):
        match part:
            case str():
                found.append(part)
            case Token():
                found.append(shown(part.text))
            case Weight():
                found.append(f"{shown(part.token)} {part.value}")
            case Bar():
                pass
            case _:
                found.append(part.text)
    return "".join(found)


def joined(texts: Sequence[Text], separator: str = ", ", last: str | None = None) -> tuple[Inline, ...]:
    """Returns texts in one sentence, `separator` between them, `last` before the last one.

    >>> plain(joined(["a", Name("b", 1), "c"], last=" and "))
    'a, b and c'
    """
    found: list[Inline] = []
    for i, text in enumerate(texts):
        if i:
            found.append(last if last is not None and i == len(texts) - 1 else separator)
        found += parts(text)
    return tuple(found)
