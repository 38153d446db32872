"""Where an axis begins, ends and has its ticks; for the drawings here and for matplotlib alike."""

import math
from collections.abc import Sequence


def logarithmic(values: Sequence[float], most: int = 7) -> tuple[float, float, list[float]]:
    """Returns (low, high, ticks) of a logarithmic axis around positive values: ticks as 100, 200, 500, 1000."""
    low, high = min(values), max(values)
    spread = max(math.log(high / low), math.log(1.5))
    low, high = low * math.exp(-0.07 * spread), high * math.exp(0.07 * spread)
    for digits in ((1, 2, 5), (1, 1.5, 2, 3, 5, 7)):
        ticks = _decades(low, high, digits)
        if len(ticks) >= 3:
            break
    else:
        # So short a stretch of a logarithmic axis is nearly linear.
        step = _round_step((high - low) / 4)
        ticks = [i * step for i in range(math.ceil(low / step), math.floor(high / step) + 1)]
    if len(ticks) > most:
        ticks = _decades(low, high, (1,))
    return low, high, ticks[:: math.ceil(len(ticks) / most)]


def tick_label(tick: float) -> str:
    """Formats a tick: 10,000 or 2.5."""
    return f"{tick:,.10g}"


def linear(high: float, most: int = 6) -> list[float]:
    """Returns evenly spaced round ticks from 0 to at most `high`."""
    if high <= 0:
        return [0.0]
    step = _round_step(high / most)
    if high >= most and step < 1:
        step = 1.0
    return [i * step for i in range(int(high / step + 1e-9) + 1)]


def spread_apart(positions: Sequence[float], gap: float, low: float, high: float) -> list[float]:
    """Moves labels just so far that they do not overlap, and stay between `low` and `high`; their order is kept."""
    order = sorted(range(len(positions)), key=positions.__getitem__)
    # Without the room that the labels before it need, a label may be anywhere behind its predecessor: isotonic regression.
    groups: list[tuple[float, int]] = []
    for rank, i in enumerate(order):
        groups.append((positions[i] - gap * rank, 1))
        while len(groups) > 1 and groups[-1][0] < groups[-2][0]:
            (above, m), (below, n) = groups[-2:]
            groups[-2:] = [((above * m + below * n) / (m + n), m + n)]
    room = max(low, high - gap * (len(order) - 1))
    flat = [min(max(place, low), room) for place, count in groups for _ in range(count)]
    moved = [0.0] * len(positions)
    for rank, i in enumerate(order):
        moved[i] = flat[rank] + gap * rank
    return moved


def _round_step(least: float) -> float:
    """The smallest of 1, 2, 2.5 and 5 times a power of ten that is not less than `least`."""
    magnitude = 10 ** math.floor(math.log10(least))
    return next(factor * magnitude for factor in (1, 2, 2.5, 5, 10) if factor * magnitude >= least * (1 - 1e-9))


def _decades(low: float, high: float, digits: Sequence[float]) -> list[float]:
    exponents = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    return [digit * 10.0**exponent for exponent in exponents for digit in digits if low <= digit * 10.0**exponent <= high]
