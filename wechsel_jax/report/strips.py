"""Small drawings of what was measured at every logged step: one quantity each, all runs in it."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from wechsel_jax.report.axes import linear, logarithmic, spread_apart, tick_label
from wechsel_jax.report.display import number

_WIDTH, _HEIGHT = 440, 210
_LEFT, _TOP, _BOTTOM = 52, 16, 180
# More points than this are drawn as their means, in a band from the lowest to the highest.
_MOST_POINTS = 180


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


def strip(name: str, title: str, series: Sequence[Series], *, log: bool = False, switches: Sequence[int] = ()) -> str:
    """Draws one quantity over the steps.

    Args:
      name: prefix of the ids, different for each drawing of a page.
      title: what is drawn, for readers who do not see it.
      series: at least one with a point.
      log: a logarithmic scale, where all values are positive; else it begins at 0.
      switches: steps at which another phase began.

    Returns:
      An <svg> element.
    """
    values = [value for one in series for _, value in (*one.points, *one.dots)]
    last = max(step for one in series for step, _ in (*one.points, *one.dots))
    log = log and min(values) > 0
    low, high, ticks = logarithmic(values, 5) if log else _from_zero(values)
    several = len(series) > 1
    right = _WIDTH - (100 if several else 12)

    def x(step: float) -> float:
        return _LEFT + (right - _LEFT) * step / max(last, 1)

    def y(value: float) -> float:
        share = math.log(value / low) / math.log(high / low) if log else (value - low) / (high - low)
        return _BOTTOM - (_BOTTOM - _TOP) * share

    parts = []
    tiny = max(map(abs, ticks), default=0.0) < 1e-2
    for tick in ticks:
        parts.append(f'<line class="grid" x1="{_LEFT}" x2="{right}" y1="{y(tick):.1f}" y2="{y(tick):.1f}"/>')
        label = _exponential(tick) if tiny and tick else tick_label(tick)
        parts.append(f'<text class="tick" x="{_LEFT - 6}" y="{y(tick) + 4:.1f}" text-anchor="end">{label}</text>')
    for tick in linear(last, 4):
        parts.append(f'<line class="axis" x1="{x(tick):.1f}" x2="{x(tick):.1f}" y1="{_BOTTOM}" y2="{_BOTTOM + 4}"/>')
        parts.append(f'<text class="tick" x="{x(tick):.1f}" y="{_BOTTOM + 18}" text-anchor="middle">{tick_label(tick)}</text>')
    parts.append(f'<line class="axis" x1="{_LEFT}" x2="{right}" y1="{_BOTTOM}" y2="{_BOTTOM}"/>')
    for step in switches:
        if 0 < step <= last:
            parts.append(f'<line class="switch quiet" x1="{x(step):.1f}" x2="{x(step):.1f}" y1="{_TOP}" y2="{_BOTTOM}"/>')
    for one in reversed(series):
        parts += _line(one, x, y)
    if several:
        parts += _labels(series, y, right)
    told = "; ".join(f"{one.label} ends at {number(one.points[-1][1])}" for one in series if one.points)
    return (
        f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-labelledby="{name}-title {name}-desc">'
        f'<title id="{name}-title">{escape(title)} over training steps</title><desc id="{name}-desc">{escape(told)}</desc>'
        f"{''.join(parts)}</svg>"
    )


def _from_zero(values: Sequence[float]) -> tuple[float, float, list[float]]:
    high = max(*values, 0.0)
    if high <= 0:
        return 0.0, 1.0, [0.0, 1.0]
    ticks = linear(high, 4)
    return min(0.0, *values), high * 1.06, ticks


def _line(one: Series, x, y) -> list[str]:
    parts = []
    points = [(x(step), y(mean), y(least), y(most)) for step, mean, least, most in thinned(one.points)]
    if len(points) < len(one.points):
        edge = [f"{px:.1f},{top:.1f}" for px, _, _, top in points] + [f"{px:.1f},{low:.1f}" for px, _, low, _ in points[::-1]]
        parts.append(f'<path class="band s{one.slot}" d="M{"L".join(edge)}z"/>')
    if len(points) == 1:
        parts.append(f'<circle class="dot s{one.slot}" cx="{points[0][0]:.1f}" cy="{points[0][1]:.1f}" r="2.6"/>')
    elif points:
        parts.append(f'<path class="line s{one.slot}" d="M{"L".join(f"{px:.1f},{py:.1f}" for px, py, _, _ in points)}"/>')
    for step, value in one.dots:
        parts.append(
            f'<circle class="dot s{one.slot}" cx="{x(step):.1f}" cy="{y(value):.1f}" r="3.2">'
            f"<title>{escape(one.label)}, step {step:,}: {number(value)}</title></circle>"
        )
    return parts


def thinned(points: Sequence[tuple[int, float]]) -> list[tuple[float, float, float, float]]:
    """Returns (step, mean, lowest, highest) of at most 180 stretches of as many points each."""
    size = math.ceil(len(points) / _MOST_POINTS) if points else 1
    stretches = [points[i : i + size] for i in range(0, len(points), size)]
    found = []
    for stretch in stretches:
        steps, values = zip(*stretch, strict=True)
        found.append((sum(steps) / len(steps), sum(values) / len(values), min(values), max(values)))
    return found


def _labels(series: Sequence[Series], y, right: float) -> list[str]:
    drawn = [one for one in series if one.points]
    gap = min(15.0, (_BOTTOM - _TOP) / max(len(drawn), 1))
    places = spread_apart([y(thinned(one.points)[-1][1]) for one in drawn], gap, _TOP, _BOTTOM)
    return [
        f'<text class="mark s{one.slot}" x="{right + 7:.1f}" y="{place + 4:.1f}">{escape(_short(one.label))}</text>'
        for one, place in zip(drawn, places, strict=True)
    ]


def _exponential(tick: float) -> str:
    digits, exponent = f"{tick:.1e}".split("e")
    return f"{digits.removesuffix('.0')}e{int(exponent)}"


def _short(label: str) -> str:
    # What tells long names apart is as often at their end as at their beginning.
    return label if len(label) <= 13 else f"{label[:6]}…{label[-6:]}"
