"""What a figure shows, as data; `figures` draws it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from wechsel_jax.report.display import number

# Near the largest number there is, an axis has no room above.
HIGHEST = 1e100


@dataclass(frozen=True)
class Series:
    """One line.

    Attributes:
      label: beside its end, where there are several.
      slot: its colour, see `palette.slots`.
      points: (step, value), by step.
      dots: further (step, value) that are drawn as dots.
    """

    label: str
    slot: int
    points: Sequence[tuple[int, float]]
    dots: Sequence[tuple[int, float]] = ()


@dataclass(frozen=True)
class Lines:
    """Values over the training steps.

    Attributes:
      series: at least one with a point.
      log: a logarithmic scale, where all values are positive.
      value: what the values are, for the axis; a small drawing has none, and no markers.
      switches: (step, words, slot) of a vertical line; a small drawing has no words.
      lead: (first step, last step, value, words) of a horizontal line, the head start of one curve over another.
      highest: what lies above it is drawn at the upper edge.
      from_zero: a scale that is not logarithmic begins at 0.
      decimals: of values in words; None: three significant digits.
    """

    series: tuple[Series, ...]
    log: bool = True
    value: str = ""
    switches: tuple[tuple[int, str, int], ...] = ()
    lead: tuple[float, float, float, str] | None = None
    highest: float = HIGHEST
    from_zero: bool = True
    decimals: int | None = None

    def told(self, value: float) -> str:
        """Formats a value."""
        return number(value) if self.decimals is None else f"{value:,.{self.decimals}f}"


@dataclass(frozen=True)
class Stacks:
    """Bars of counts: (label, origin -> count) each, drawn in shares."""

    bars: tuple[tuple[str, Mapping[str, int]], ...]


@dataclass(frozen=True)
class Spreads:
    """Means with their deviations to both sides: (label, slot or None for grey, mean, deviation) each."""

    rows: tuple[tuple[str, int | None, float, float], ...]


@dataclass(frozen=True)
class Intervals:
    """Values with their intervals, a panel for each task.

    Attributes:
      rows: what the values are of.
      panels: (heading, (value, low, high) of each row; None where there is none).
    """

    rows: tuple[str, ...]
    panels: tuple[tuple[str, tuple[tuple[float, float, float] | None, ...]], ...]


@dataclass(frozen=True)
class HeatMap:
    """A table whose cells are shaded.

    Attributes:
      rows: a label each.
      columns: a label each.
      cells: of each row and column (what stands in it, its shade from 0, the worst, to 1); None where there is nothing.
      together: so many columns each are drawn with a gap to the next; 0: all.
    """

    rows: tuple[str, ...]
    columns: tuple[str, ...]
    cells: tuple[tuple[tuple[str, float] | None, ...], ...]
    together: int = 0


@dataclass(frozen=True)
class Histograms:
    """How numbers are distributed, a small drawing for each set of them, each with an axis of its own.

    Attributes:
      panels: (heading, (low, high), counts of the equal parts between these, half the width of a band around 0) each.
    """

    panels: tuple[tuple[str, tuple[float, float], Sequence[int], float], ...]


Plot = Lines | Stacks | Spreads | Intervals | HeatMap | Histograms
