"""Per-token offsets of a head's scores, fitted so that a model's average prediction is a given distribution of tokens.

A head with a bias gets the offsets there. A head without one gets them through its rows: an offset times a direction u along
which all hidden states have almost the same component, one, is almost a bias.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from wechsel_jax.records import work
from wechsel_jax.search.threads import one_thread

# Logits of a block of positions: 64 MiB. A few such arrays exist at a time.
_BLOCK_NUMBERS = 1 << 24
_BISECTIONS = 60
_LARGEST_STEP = 20.0

Score = Callable[[Any, jax.Array], jax.Array]


@dataclass(frozen=True)
class Fit:
    """What `fit_offsets` found.

    Attributes:
      offsets: float64 (V,).
      objective: what is minimised, before each step and after the last; it never rises.
      average: float64 (V,), the average prediction with the offsets.
    """

    offsets: np.ndarray
    objective: tuple[float, ...]
    average: np.ndarray


def fit_offsets(
    score: Score,
    parameters: Any,
    hidden: np.ndarray,
    wanted: np.ndarray,
    *,
    slopes: np.ndarray | None = None,
    start: np.ndarray | None = None,
    free: np.ndarray | None = None,
    deviation: float = 3.0,
    tokens: float = 1e6,
    steps: int = 10,
) -> Fit:
    """Fits offsets o that minimise the cross-entropy of the average prediction, a convex problem.

    The objective is mean_n logsumexp_v(l_nv + s_n o_v) - mean(s) sum_v q_v o_v + sum_v o_v^2 / (2 deviation^2 tokens), with l
    the scores, s the slopes and q the wanted distribution. With slopes of one and without the last term, it is the
    cross-entropy of a model with a free bias on text whose tokens come as often as q says, whatever their contexts, and at its
    minimum the average prediction is q. The last term is a Gaussian prior: an offset that few tokens speak for stays near 0.

    Each step minimises a bound of the objective that separates into V problems of one variable (for slopes of one it is a step
    of iterative scaling, o_v += log(q_v / average_v), but for the prior), so no step raises the objective.

    Args:
      score: jit-able (parameters, hidden (n, d)) -> scores (n, V) float32; hashable.
      parameters: of `score`.
      hidden: (N, d), hidden states in contexts of the text.
      wanted: float64 (V,), the wanted distribution q.
      slopes: float (N,), how much an offset of one adds to a score at each position; ones where None.
      start: float64 (V,), the offsets to begin with; zeros where None.
      free: bool (V,), the offsets that may change; all where None.
      deviation: of the prior.
      tokens: on how many tokens `wanted` rests.
      steps: how many.

    Returns:
      The offsets. Memory: scores of so many positions at a time that they take 64 MiB (at least one position), in a few copies.
    """
    slopes = np.ones(len(hidden)) if slopes is None else np.asarray(slopes, np.float64)
    offsets = np.zeros(len(wanted)) if start is None else np.array(start, np.float64)
    largest, mean = max(np.abs(slopes).max(), 1e-6), slopes.mean()
    precision = 1 / (deviation**2 * tokens)
    history = []
    for step in range(steps + 1):
        normaliser, rising, falling, average = _expectations(score, parameters, hidden, slopes, offsets)
        history.append(normaliser - mean * float(wanted @ offsets) + precision / 2 * float(offsets @ offsets))
        if step < steps:
            change = _minimum(rising, falling, mean * wanted, offsets, largest, precision)
            offsets = offsets + (change if free is None else np.where(free, change, 0.0))
    return Fit(offsets, tuple(history), average)


def _minimum(
    rising: np.ndarray, falling: np.ndarray, wanted: np.ndarray, offsets: np.ndarray, largest: float, precision: float
) -> np.ndarray:
    """The change d (V,) at which the bound's derivative, which rises with d, is zero.

    For |s| <= c, exp(s d) lies below the chord between exp(-c d), 1 and exp(c d); hence the bound's derivative is
    rising exp(c d) - falling exp(-c d) - wanted + precision (offsets + d).
    """
    low, high = np.full((2, len(wanted)), [[-_LARGEST_STEP / largest], [_LARGEST_STEP / largest]])
    for _ in range(_BISECTIONS):
        middle = (low + high) / 2
        slope = rising * np.exp(largest * middle) - falling * np.exp(-largest * middle) - wanted
        positive = slope + precision * (offsets + middle) > 0
        low, high = np.where(positive, low, middle), np.where(positive, middle, high)
    return (low + high) / 2


def _expectations(
    score: Score, parameters: Any, hidden: np.ndarray, slopes: np.ndarray, offsets: np.ndarray
) -> tuple[float, np.ndarray, np.ndarray, np.ndarray]:
    """Means over the positions: the normaliser, and the predictions (V,) times max(s, 0), times max(-s, 0) and as they are."""
    # Scores count as the product with a table.
    work.product(*hidden.shape, len(offsets))
    work.product(3, len(hidden), len(offsets))
    totals = np.zeros((3, len(offsets)))
    normaliser = 0.0
    for block, weights in _blocks(len(hidden), len(offsets)):
        parts = _sums(score, parameters, hidden[block], np.float32(slopes[block]), weights, np.float32(offsets))
        normaliser += float(parts[0])
        totals += np.asarray(parts[1], np.float64)
    return normaliser / len(hidden), *(totals / len(hidden))


@partial(jax.jit, static_argnums=0)
def _sums(score, parameters, hidden_NxD, slopes_N, weights_N, offsets_V):
    scores_NxV = score(parameters, hidden_NxD) + slopes_N[:, None] * offsets_V
    normaliser_N = jax.nn.logsumexp(scores_NxV, axis=1)
    shares_NxV = jnp.exp(scores_NxV - normaliser_N[:, None])
    factors_3xN = weights_N * jnp.stack([jnp.maximum(slopes_N, 0), jnp.maximum(-slopes_N, 0), jnp.ones_like(slopes_N)])
    return jnp.sum(weights_N * normaliser_N), jnp.matmul(factors_3xN, shares_NxV, precision=jax.lax.Precision.HIGHEST)


def cross_entropy(score: Score, parameters: Any, hidden: np.ndarray, targets: np.ndarray, *, size: int) -> float:
    """Mean loss in nats of predicting targets int (N,) from hidden (N, d); `size` is V."""
    work.product(*hidden.shape, size)
    total = 0.0
    for block, weights in _blocks(len(hidden), size):
        total += float(_losses(score, parameters, hidden[block], np.int32(targets[block]), weights))
    return total / len(hidden)


@partial(jax.jit, static_argnums=0)
def _losses(score, parameters, hidden_NxD, targets_N, weights_N):
    scores_NxV = score(parameters, hidden_NxD)
    right_N = jnp.take_along_axis(scores_NxV, targets_N[:, None], axis=1)[:, 0]
    return jnp.sum(weights_N * (jax.nn.logsumexp(scores_NxV, axis=1) - right_N))


def _blocks(positions: int, size: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yields (places, weights) of blocks of one shape; the last one is filled up with position 0 of weight 0."""
    height = min(max(_BLOCK_NUMBERS // size, 1), positions)
    for begin in range(0, positions, height):
        count = min(height, positions - begin)
        places = np.zeros(height, np.int64)
        places[:count] = np.arange(begin, begin + count)
        yield places, (np.arange(height) < count).astype(np.float32)


@one_thread()
def constant_direction(hidden: np.ndarray, ridge: float = 1e-3) -> np.ndarray:
    """The direction u (d,) along which hidden states (N, d) come nearest to having the component 1.

    It minimises mean_n (h_n u - 1)^2 + ridge mean_n |h_n|^2 |u|^2 / d. Behind a layer norm with a bias it is almost exact; with
    a large ridge it turns to the mean hidden state. It is scaled so that the mean component is 1.
    """
    states = np.asarray(hidden, np.float64)
    work.product(states.shape[1], *states.shape)
    work.solve(states.shape[1], 1)
    second, mean = states.T @ states / len(states), states.mean(axis=0)
    second[np.diag_indices_from(second)] += ridge * np.trace(second) / len(second)
    direction = np.linalg.solve(second, mean)
    scale = mean @ direction
    return direction / scale if scale > 0 else np.zeros_like(direction)
