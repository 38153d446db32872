"""Learning curves as SVG inside the page: colours come from the page's style, so light, dark and print are its business."""

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from wechsel_jax.report.axes import linear, logarithmic, spread_apart, tick_label
from wechsel_jax.report.curves import baseline, head_start
from wechsel_jax.report.display import number, plural
from wechsel_jax.report.headline import leader
from wechsel_jax.report.palette import is_dashed, marker
from wechsel_jax.report.records import RunRecord

_LONGEST_NAME = 22
# Markers are smaller where a curve has so many of them, or eight curves have half as many each.
_MANY_POINTS = 40
_TRAINABLE = {"all": "all parameters", "tokens": "tokens only", "embeddings": "embeddings only"}


@dataclass(frozen=True)
class _Frame:
    """The plotting area and its two scales."""

    left: float
    right: float
    top: float
    bottom: float
    last_step: float
    low: float
    high: float

    def x(self, step: float) -> float:
        return self.left + (self.right - self.left) * step / max(self.last_step, 1)

    def y(self, perplexity: float) -> float:
        share = math.log(perplexity / self.low) / math.log(self.high / self.low)
        return self.bottom - (self.bottom - self.top) * share


def learning_curves(runs: Sequence[RunRecord], slots: Sequence[int], *, width: int, height: int, name: str) -> str:
    """Draws perplexity over steps, logarithmic, with the runs' names at the ends of their curves.

    Args:
      runs: at least one with an evaluation.
      slots: colour and marker of each, see `palette.slots`.
      width: of the drawing; under 500 it is drawn for a narrow screen.
      height: of the drawing.
      name: prefix of the ids, different for each drawing of a page.

    Returns:
      An <svg> element.
    """
    drawn = [(run, slot) for run, slot in zip(runs, slots, strict=True) if run.curve]
    narrow = width < 500
    values = [perplexity for run, _ in drawn for _, perplexity in run.curve]
    low, high, ticks = logarithmic(values)
    longest = max(len(shortened(run.label)) for run, _ in drawn)
    right = 14 + (7.9 * min(longest, 12) if narrow else 8.2 * longest + (100 if _crowded(len(drawn), height, narrow) else 12))
    last = max(run.curve[-1][0] for run, _ in drawn)
    widest = max(len(tick_label(tick)) for tick in ticks) if ticks else 1
    frame = _Frame(14 + 7 * widest, width - right, 44 if narrow else 34, height - 46, last, low, high)
    parts = [*_grid(frame, ticks, width, narrow), *_switches(frame, drawn, narrow), *_lead(frame, runs, narrow)]
    points = max(len(run.curve) * max(1.0, len(drawn) / 4) for run, _ in drawn)
    for run, slot in reversed(drawn):
        parts += _curve(frame, run, slot, 1.0 if points < _MANY_POINTS else 0.6)
    parts += _names(frame, drawn, narrow, _crowded(len(drawn), height, narrow))
    title = f"Perplexity on held-out text over training steps of {', '.join(run.label for run, _ in drawn)}"
    ends = "; ".join(f"{run.label} from {number(run.curve[0][1])} to {number(run.curve[-1][1])}" for run, _ in drawn)
    return (
        f'<svg class="{"narrow" if narrow else "wide"}" viewBox="0 0 {width} {height}" role="img" '
        f'aria-labelledby="{name}-title {name}-desc"><title id="{name}-title">{escape(title)}</title>'
        f'<desc id="{name}-desc">Logarithmic scale, lower is better. {escape(ends)}. The table below has all values.</desc>'
        f"{''.join(parts)}</svg>"
    )


def shortened(label: str) -> str:
    """Returns a label that fits beside a curve."""
    return label if len(label) <= _LONGEST_NAME else label[: _LONGEST_NAME - 1] + "…"


def phase_switches(runs: Sequence[RunRecord]) -> dict[int, list[tuple[RunRecord, str]]]:
    """Returns step -> the runs that begin another phase there, with what they train from then on."""
    switches: dict[int, list[tuple[RunRecord, str]]] = {}
    for run in runs:
        for phase in run.phases[1:]:
            what = _TRAINABLE.get(phase.trainable, f"phase “{phase.name}”")
            switches.setdefault(phase.start, []).append((run, what))
    return dict(sorted(switches.items()))


def _grid(frame: _Frame, ticks: Sequence[float], width: float, narrow: bool) -> list[str]:
    parts = []
    for tick in ticks:
        y = frame.y(tick)
        parts.append(f'<line class="grid" x1="{frame.left:.1f}" x2="{frame.right:.1f}" y1="{y:.1f}" y2="{y:.1f}"/>')
        parts.append(f'<text class="tick" x="{frame.left - 8:.1f}" y="{y + 4:.1f}" text-anchor="end">{tick_label(tick)}</text>')
    for tick in linear(frame.last_step, 4 if narrow else 8):
        x = frame.x(tick)
        parts.append(f'<line class="axis" x1="{x:.1f}" x2="{x:.1f}" y1="{frame.bottom:.1f}" y2="{frame.bottom + 5:.1f}"/>')
        label = frame.bottom + 20
        parts.append(f'<text class="tick" x="{x:.1f}" y="{label:.1f}" text-anchor="middle">{tick_label(tick)}</text>')
    parts.append(
        f'<line class="axis" x1="{frame.left:.1f}" x2="{frame.right:.1f}" y1="{frame.bottom:.1f}" y2="{frame.bottom:.1f}"/>'
    )
    middle = (frame.left + frame.right) / 2
    parts.append(f'<text class="tick" x="{middle:.1f}" y="{frame.bottom + 40:.1f}" text-anchor="middle">training steps</text>')
    parts.append('<text class="tick" x="2" y="14">perplexity, log scale</text>')
    return parts


def _switches(frame: _Frame, drawn: Sequence[tuple[RunRecord, int]], narrow: bool) -> list[str]:
    """A dashed line where a run begins another phase, named at its top."""
    slot_of = {run.label: slot for run, slot in drawn}
    parts = []
    free_from = -math.inf
    for step, switching in phase_switches([run for run, _ in drawn]).items():
        if step > frame.last_step:
            continue
        x, slot = frame.x(step), slot_of[switching[0][0].label]
        names = ", ".join(run.label for run, _ in switching)
        text = f"{names}: {switching[0][1]} from step {step:,}"
        parts.append(
            f'<line class="switch s{slot}" x1="{x:.1f}" x2="{x:.1f}" y1="{frame.top - 6:.1f}" y2="{frame.bottom:.1f}">'
            f"<title>{escape(text)}</title></line>"
        )
        shown = f"{switching[0][1]} from step {step:,}" if narrow else text
        wide = 6.6 * len(shown)
        if x < free_from:
            continue
        at_end = x + wide > frame.right + 60
        parts.append(
            f'<text class="note s{slot}" x="{x + (-5 if at_end else 5):.1f}" y="{frame.top - 1:.1f}" '
            f'text-anchor="{"end" if at_end else "start"}">{escape(shown)}</text>'
        )
        free_from = x + wide + 10
    return parts


def _lead(frame: _Frame, runs: Sequence[RunRecord], narrow: bool) -> list[str]:
    """The head start of the best run over the one from scratch, as the stretch of steps between the two."""
    best, scratch = leader(runs), baseline(runs)
    sooner = head_start(best, scratch) if best and scratch else None
    if sooner is None:
        return []
    reached, last, value = sooner
    start, end, y = frame.x(reached), frame.x(last), frame.y(value)
    text = f"{number(last / reached, 2)} × fewer steps" if reached > 0 else "before any training"
    parts = [
        f'<line class="lead" x1="{start + 6:.1f}" x2="{end - 7:.1f}" y1="{y:.1f}" y2="{y:.1f}"/>',
        f'<path class="lead-tip" d="M{start + 3:.1f},{y:.1f}l8,-4.5v9z"/>',
    ]
    if not narrow and end - start > 9 * len(text):
        x, base = _clearest(frame, runs, start, end, y, 6.9 * len(text))
        parts.append(f'<text class="note lead-text" x="{x:.1f}" y="{base:.1f}" text-anchor="middle">{text}</text>')
    return parts


def _clearest(frame: _Frame, runs: Sequence[RunRecord], start: float, end: float, y: float, wide: float) -> tuple[float, float]:
    """Finds the place for a text along a line from `start` to `end`, just over or under it, that is farthest from all curves.

    Returns the middle of the text and its base line.
    """
    samples: list[tuple[float, float]] = []
    for run in runs:
        points = [(frame.x(step), frame.y(perplexity)) for step, perplexity in run.curve]
        for (x0, y0), (x1, y1) in itertools.pairwise(points):
            samples += [(x0 + (x1 - x0) * i / 24, y0 + (y1 - y0) * i / 24) for i in range(25)]

    def room(place: tuple[float, float]) -> float:
        x, base = place
        return min(max(abs(sx - x) - wide / 2, abs(sy - (base - 4)) - 6) for sx, sy in samples)

    low, high = start + wide / 2 + 14, end - wide / 2 - 8
    places = [(low + (high - low) * i / 20, base) for base in (y - 7, y + 16) for i in range(21)]
    return max(places, key=room)


def _curve(frame: _Frame, run: RunRecord, slot: int, size: float) -> list[str]:
    points = [(frame.x(step), frame.y(perplexity)) for step, perplexity in run.curve]
    path = "M" + "L".join(f"{x:.1f},{y:.1f}" for x, y in points)
    dashed = " dashed" if is_dashed(slot) else ""
    parts = [f'<path class="curve s{slot}{dashed}" d="{path}"/>']
    for (step, perplexity), (x, y) in zip(run.curve, points, strict=True):
        where = "before training" if step == 0 else f"after {plural(step, 'step')}"
        parts.append(
            f'<g class="point s{slot}"><title>{escape(run.label)}, {where}: perplexity {number(perplexity)}</title>'
            f'<circle class="reach" cx="{x:.1f}" cy="{y:.1f}" r="11"/>{_marker(marker(slot), x, y, size)}</g>'
        )
    return parts


def _marker(shape: str, x: float, y: float, size: float) -> str:
    outlines = {
        "square": "M-4,-4h8v8h-8z",
        "triangle": "M0,-5.2L5,3.8H-5z",
        "diamond": "M0,-5.6L5,0L0,5.6L-5,0z",
        "down": "M0,5.2L5,-3.8H-5z",
        "left": "M-5.2,0L3.8,-5V5z",
        "right": "M5.2,0L-3.8,-5V5z",
        "cross": "M-4.6,-2L-2,-4.6L0,-2.4L2,-4.6L4.6,-2L2.4,0L4.6,2L2,4.6L0,2.4L-2,4.6L-4.6,2L-2.4,0z",
    }
    if shape == "circle":
        return f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{4.4 * size:.1f}"/>'
    return f'<path transform="translate({x:.1f},{y:.1f}) scale({size})" d="{outlines[shape]}"/>'


def _crowded(names: int, height: float, narrow: bool) -> bool:
    """Whether name and value must share a line, since two lines each would need more room than there is."""
    return names * (34 if narrow else 37) > height - 80


def _names(frame: _Frame, drawn: Sequence[tuple[RunRecord, int]], narrow: bool, crowded: bool) -> list[str]:
    """Names and last values, beside the ends of the curves, moved apart where they would overlap."""
    ends = [(frame.x(run.curve[-1][0]), frame.y(run.curve[-1][1])) for run, _ in drawn]
    gap = 34 if narrow else 37
    if crowded:
        gap = min(21, (frame.bottom - frame.top - 18) / (len(drawn) - 1))
    places = spread_apart([y for _, y in ends], gap, frame.top + 6, frame.bottom - 12)
    parts = []
    for (run, slot), (x, y), place in zip(drawn, ends, places, strict=True):
        left = frame.right + (34 if crowded and not narrow else 14)
        if x < frame.right - 1 or abs(place - y) > (6 if crowded else 18):
            parts.append(f'<path class="leader" d="M{x + 7:.1f},{y:.1f}L{left - 4:.1f},{place:.1f}"/>')
        label = shortened(run.label)
        if narrow and len(label) > 12:
            # What tells long names apart is as often at their end as at their beginning.
            label = f"{label[:6]}…{label[-5:]}"
        if crowded and not narrow:
            # So many curves need a sample of the line beside each name.
            dashed = " dashed" if is_dashed(slot) else ""
            parts.append(f'<path class="curve s{slot}{dashed}" d="M{left:.1f},{place:.1f}h24"/>')
            parts.append(f'<g class="point s{slot}">{_marker(marker(slot), left + 12, place, 0.8)}</g>')
            left += 30
        value = 'dx="6"' if crowded else f'x="{left:.1f}" dy="16"'
        value = f'<tspan class="value" {value}>{number(run.curve[-1][1])}</tspan>'
        place += 4 if crowded else -2
        parts.append(
            f'<text class="name s{slot}{" small" if crowded else ""}" x="{left:.1f}" y="{place:.1f}">{escape(label)}'
            f"{'' if crowded and narrow else value}</text>"
        )
    return parts
