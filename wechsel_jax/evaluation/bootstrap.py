"""How sure a score, or a difference between two models on the same items, is: items drawn with replacement."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from wechsel_jax.errors import UserError

# Items of one model: numerators and denominators, whose sums make up the score. A mean has denominators of 1.
Items = tuple[Sequence[float], Sequence[float]]
_RESAMPLES = 2_000
# Drawn numbers that are in memory at once.
_AT_ONCE = 1 << 22


class Interval(NamedTuple):
    """A value with its 95 % interval (percentiles of the resampled values).

    Draws without anything to score, such as entities, do not count; where no others are, and of one item, the ends are NaN.
    """

    value: float
    low: float
    high: float


def bootstrap(items: Items) -> Interval:
    """Returns a score with its interval, always the same one.

    >>> bootstrap(([1, 0, 1, 1], [1, 1, 1, 1])).value
    0.75
    """
    (values,) = _resampled([items])
    return Interval(score(items), *_ends(values, items))


def paired_bootstrap(a: Items, b: Items) -> Interval:
    """Returns how much larger one score is than another on the same items, both on the same draws (Koehn, EMNLP 2004).

    Args:
      a: items of one model.
      b: the same items of the other.

    Raises:
      UserError: they are not of the same number of items, or of none.
    """
    first, second = _resampled([a, b])
    return Interval(score(a) - score(b), *_ends(first - second, a))


def score(items: Items) -> float:
    """Returns what the items make up; 0 where all denominators are 0, as seqeval has the F1 where there is no entity."""
    return float(np.nan_to_num(_divided(np.sum(items[0]), np.sum(items[1]))))


def _ends(values: np.ndarray, items: Items) -> tuple[float, float]:
    values = values[~np.isnan(values)]
    # All draws of one item are the same, which says nothing of others.
    low, high = np.quantile(values, (0.025, 0.975)) if values.size and len(items[0]) > 1 else (np.nan, np.nan)
    return float(low), float(high)


def _divided(numerators: np.ndarray, denominators: np.ndarray) -> np.ndarray:
    """NaN where there is nothing to score, such as entities."""
    return numerators / np.where(denominators == 0, np.nan, denominators)


def _resampled(models: Sequence[Items]) -> list[np.ndarray]:
    """The score of each model, (2000,), on the same draws."""
    counts = {len(part) for items in models for part in items}
    if len(counts) != 1 or counts == {0}:
        raise UserError(f"scores of {' and '.join(map(str, sorted(counts)))} items; expected scores of the same items")
    size, rng = counts.pop(), np.random.default_rng(0)
    parts = [[np.asarray(part, float) for part in items] for items in models]
    found: list[list[np.ndarray]] = [[] for _ in models]
    step = max(1, _AT_ONCE // size)
    for start in range(0, _RESAMPLES, step):
        drawn = rng.integers(0, size, (min(step, _RESAMPLES - start), size))
        for (numerators, denominators), values in zip(parts, found, strict=True):
            values.append(_divided(numerators[drawn].sum(axis=1), denominators[drawn].sum(axis=1)))
    return [np.concatenate(values) for values in found]
