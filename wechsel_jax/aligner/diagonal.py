"""IBM model 1 with a prior for the diagonal: the reparameterisation of model 2 of Dyer, Chahuneau and Smith (2013), fast_align.

Each target token is the translation of one source token or of none. How likely source token i of n is for target token j of
m falls with the distance of i / n from j / m, at a rate that is fitted as well; which word it becomes is a table, fitted by
variational Bayes. Sentences of one shape are computed together, as dense arrays.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from scipy.special import digamma

from wechsel_jax.errors import UserError

# Cells, one for each source token of each target token, of an array that is computed at once.
_CELLS = 1 << 20
# Of one pair of sentences, which are computed at once whatever their size: 0.3 GB.
_MOST_CELLS = 1 << 22
_TENSION = (0.1, 14.0)
_TENSION_STEPS, _TENSION_RATE = 8, 20.0


@dataclass(frozen=True)
class DiagonalSettings:
    """The values are fast_align's with -d -o -v, but for the iterations: its last one of five only writes the links.

    Attributes:
      iterations: of expectation and maximisation.
      null: probability that a target token translates no source token; None: as likely as each of the sentence's source tokens,
        which is fast_align's model 1 (without -d).
      tension: how strongly the diagonal is preferred, at first; 0: not at all, and then it stays 0.
      fit_tension: whether it is fitted from the second iteration on.
      alpha: pseudo-count of each translation in the variational Bayes; 0: plain maximum likelihood.
    """

    iterations: int = 4
    null: float | None = 0.08
    tension: float = 4.0
    fit_tension: bool = True
    alpha: float = 0.01


@dataclass(frozen=True)
class Aligned:
    """What the model found.

    Attributes:
      links: int32 (T_t,), for each target token the place of the source token in its sentence, -1 for none.
      tension: of the last iteration.
      log_likelihood: of the target side after each expectation, in nats per token of sentences that have a source side; with
        alpha 0 it never falls.
      entries: int64 (K, 2), the pairs of a source token (-1 for none) and a target token that occur in a pair of sentences.
      counts: float64 (K,), how often each of them was aligned, as the last expectation has it.
    """

    links: np.ndarray
    tension: float
    log_likelihood: list[float] = field(repr=False)
    entries: np.ndarray = field(repr=False)
    counts: np.ndarray = field(repr=False)


class _Group(NamedTuple):
    """Sentences of one shape.

    Attributes:
      shape: (m, n), target and source tokens.
      targets: int64 (g, m), places of the target tokens.
      ids: int32 (g, m, n + 1), which entry of the table each pair of tokens is; source place 0 is the empty word.
    """

    shape: tuple[int, int]
    targets: np.ndarray
    ids: np.ndarray


def align_diagonal(
    source: np.ndarray,
    source_starts: np.ndarray,
    target: np.ndarray,
    target_starts: np.ndarray,
    settings: DiagonalSettings | None = None,
    *,
    progress: Callable[[str], None] | None = None,
    place: Callable[[int], str] = "pair {}".format,
) -> Aligned:
    """Links every target token with at most one source token.

    Memory: 4 bytes for each pair of tokens of two sentences, and some 60 for each different one; about a gigabyte for 100,000
    pairs of 20 tokens.

    Args:
      source: int (T_s,), tokens of n sentences one after the other, none negative.
      source_starts: int (n + 1,), where sentences begin.
      target: int (T_t,), tokens of their translations.
      target_starts: int (n + 1,).
      settings: of the model; fast_align's where None.
      progress: called with a line after each iteration.
      place: says where a pair stands, for errors.

    Raises:
      UserError: a pair is too long to be two sentences.
    """
    settings = settings or DiagonalSettings()
    n, m = np.diff(source_starts), np.diff(target_starts)
    long = np.flatnonzero(n * m > _MOST_CELLS)
    if len(long):
        raise UserError(
            f"{place(int(long[0]))}: a pair of {n[long[0]]:,} and {m[long[0]]:,} tokens; expected two sentences, of "
            f"{math.isqrt(_MOST_CELLS):,} tokens each at most; cut them into sentences, or leave the line out"
        )
    groups, words, translations = _grouped(source, source_starts, target, target_starts)
    size = len(words)
    # Every word of the target side alike: the first expectation knows nothing but the prior.
    table, tension = np.full(size, 1 / max(1, np.count_nonzero(np.bincount(target)))), settings.tension
    sizes = _shapes(groups)
    # Of sentences that have no other side nothing is observed.
    tokens, history, counts = max(1, int(m[n > 0].sum())), [], np.zeros(size)
    for iteration in range(settings.iterations):
        counts, feature, likelihood = np.zeros(size), 0.0, 0.0
        for group in groups:
            prior, observed = _prior(group.shape, tension, settings.null), _distance(group.shape, first=0)
            share = table[group.ids] * prior
            total = share.sum(axis=-1, keepdims=True)
            likelihood += float(np.log(total).sum())
            share /= total
            np.add.at(counts, group.ids.reshape(-1), share.reshape(-1))
            feature += float((share[..., 1:].sum(axis=0) * observed).sum())
        history.append(likelihood / tokens)
        if settings.fit_tension and tension and iteration and groups:
            tension = _fitted_tension(tension, feature / tokens, sizes)
        table = _maximised(counts, words, settings.alpha)
        if progress is not None:
            progress(f"iteration {iteration + 1} of {settings.iterations}: tension {tension:.2f}")
    links = np.full(len(target), -1, np.int32)
    for group in groups:
        prior = _prior(group.shape, tension, settings.null)
        # The first of equals, and the empty word before all, as in fast_align.
        links[group.targets] = np.argmax(table[group.ids] * prior, axis=-1) - 1
    return Aligned(links, tension, history, np.stack([words - 1, translations], axis=1), counts)


def _grouped(
    source: np.ndarray, source_starts: np.ndarray, target: np.ndarray, target_starts: np.ndarray
) -> tuple[list[_Group], np.ndarray, np.ndarray]:
    """Sentences by their shapes, and for each entry of the table (K,) one more than its source token, and its target token."""
    n, m = np.diff(source_starts), np.diff(target_starts)
    width = int(target.max(initial=0)) + 1
    chunks: list[tuple[tuple[int, int], np.ndarray, np.ndarray]] = []
    found: list[np.ndarray] = []
    for rows, lengths in _by_shape(n, m):
        sources = source_starts[rows][:, None] + np.arange(lengths[1])
        targets = target_starts[rows][:, None] + np.arange(lengths[0])
        words = np.zeros((len(rows), lengths[1] + 1), np.int64)
        words[:, 1:] = source[sources].astype(np.int64) + 1
        keys = words[:, None, :] * width + target[targets].astype(np.int64)[:, :, None]
        unique, inverse = np.unique(keys, return_inverse=True)
        chunks.append((lengths, targets, inverse.reshape(keys.shape).astype(np.int32)))
        found.append(unique)
    # With counts numpy sorts; without them, from version 2.3 on, it hashes, which takes twenty times as long.
    keys = np.unique(np.concatenate(found), return_counts=True)[0] if found else np.zeros(0, np.int64)
    groups = []
    # From the end, so that no chunk is held twice.
    while chunks:
        lengths, targets, inverse = chunks.pop()
        groups.append(_Group(lengths, targets, np.searchsorted(keys, found.pop()).astype(np.int32)[inverse]))
    return groups, keys // width, keys % width


def _by_shape(n: np.ndarray, m: np.ndarray) -> Iterator[tuple[np.ndarray, tuple[int, int]]]:
    """Yields sentences of one shape with as many cells as are computed at once, and the shape (m, n)."""
    usable = np.flatnonzero((n > 0) & (m > 0))
    order = usable[np.lexsort((m[usable], n[usable]))]
    ends = np.flatnonzero(np.diff(n[order]) | np.diff(m[order])) + 1
    for rows in np.split(order, ends) if len(order) else ():
        shape = int(m[rows[0]]), int(n[rows[0]])
        step = max(1, _CELLS // (shape[0] * (shape[1] + 1)))
        for begin in range(0, len(rows), step):
            yield rows[begin : begin + step], shape


def _distance(shape: tuple[int, int], first: int = 1) -> np.ndarray:
    """h (m, n), minus how far each pair of places is from the diagonal (equation 1); target places count from `first`.

    The observed distances, to which the tension is fitted, have 0 here: fast_align counts so. That gives half the tension, and
    links that agree better with those of eflomal and of an HMM (English with German, Chinese and Japanese, both directions).
    """
    m, n = shape
    return -np.abs(np.arange(first, m + first)[:, None] / m - np.arange(1, n + 1) / n)


def _prior(shape: tuple[int, int], tension: float, null: float | None) -> np.ndarray:
    """The probability (m, n + 1) of each source place, of none first."""
    null = 1 / (shape[1] + 1) if null is None else null
    weight = np.exp(tension * _distance(shape))
    weight *= (1 - null) / weight.sum(axis=1, keepdims=True)
    return np.concatenate([np.full((shape[0], 1), null), weight], axis=1)


def _shapes(groups: list[_Group]) -> dict[tuple[int, int], int]:
    counted: dict[tuple[int, int], int] = {}
    for group in groups:
        counted[group.shape] = counted.get(group.shape, 0) + len(group.targets)
    return counted


def _fitted_tension(tension: float, wanted: float, shapes: dict[tuple[int, int], int]) -> float:
    """Steps towards the tension whose mean distance is the observed one (section 3.2)."""
    tokens = sum(shape[0] * count for shape, count in shapes.items())
    distances = {shape: _distance(shape) for shape in shapes}
    for _ in range(_TENSION_STEPS):
        expected = 0.0
        for shape, count in shapes.items():
            weight = np.exp(tension * distances[shape])
            expected += count * float(((weight * distances[shape]).sum(axis=1) / weight.sum(axis=1)).sum())
        tension = min(max(tension + _TENSION_RATE * (wanted - expected / tokens), _TENSION[0]), _TENSION[1])
    return tension


def _maximised(counts: np.ndarray, words: np.ndarray, alpha: float) -> np.ndarray:
    """The table from the expected counts (K,): each source token's translations, of variational Bayes unless alpha is 0."""
    smoothed = counts + alpha
    total = np.bincount(words, smoothed)[words]
    if not alpha:
        return smoothed / total
    return np.exp(digamma(smoothed) - digamma(total))
