"""Sparsemax over the cosine similarities to all keys: exact, blocked, and the same to the last bit however it is blocked.

Sparsemax (Martins and Astudillo, 2016) gives weight to a few keys only: those whose score exceeds a threshold that the highest
scores alone decide. So the search nominates the keys of highest product, the threshold of their products with a bound on its
error tells which of them could have weight, and only those are scored again in float64. A row is settled when no key that was
not nominated can reach the threshold; the others are searched again with more nominees.
"""

import math
from collections.abc import Callable, Sequence

import jax
import numpy as np

from wechsel_jax.errors import UserError
from wechsel_jax.search.columns import Bonus
from wechsel_jax.search.neighbors import Nomination, Problem, Search, make_problem
from wechsel_jax.search.rescoring import sort_rows

# How many keys are nominated at first, and how many times as many each time that these settle too few rows.
_FIRST, _FACTOR = 24, 4
# Queries that are tried before all others are searched with as many nominees.
_SAMPLE = 512
_NOMINEES_PER_BLOCK = 1 << 20
# Far above what rounding does to a threshold in float64, far below what a weight means.
_ROUNDING = 1e-9


def sparsemax_neighbors(
    queries: np.ndarray,
    keys: np.ndarray,
    *,
    candidates: np.ndarray | None = None,
    scale: float = 1.0,
    bonus: Bonus | None = None,
    target_block: int = 512,
    source_block: int = 8192,
    devices: Sequence[jax.Device] | None = None,
    product: str | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> tuple[np.ndarray, np.ndarray]:
    """Sparsemax of scale * cosine over every candidate key, as over the whole (V_t, V_s) matrix, which is never held.

    The weights of a query are max(scale * cosine - tau, 0) with the one tau at which they sum to 1 (Martins and Astudillo,
    2016, "From Softmax to Sparsemax", algorithm 1), computed in float64. Equal vectors get equal weights, however many they
    are. Ids and weights have the same bits for every block size, number of devices and `product`.

    Args:
      queries: (V_t, m) target vectors; searched as float32.
      keys: (V_s, m) source vectors; searched as float32.
      candidates: bool (V_s,), the keys that may have weight; all where None.
      scale: factor of the cosine, 1 / temperature; the larger, the fewer keys have weight.
      bonus: is added to the cosine of keys that agree with the query; None: nothing is.
      target_block: queries that one device searches at a time.
      source_block: keys that one matrix product covers at most.
      devices: the queries are split over these; this process's devices where None.
      product: see `nearest_neighbors`.
      progress: called with (distinct queries done, distinct queries in all) after every block.

    Returns:
      ids int32 (V_t, K) and weights float32 (V_t, K), K the largest support, by descending weight and ascending id; the rest of
      a row is id 0 and weight 0, and so is the whole row of a query of zeros.

    Raises:
      UserError: no candidate, a scale that is not a positive number, different dimensions, or a value that is not finite.
      ValueError: a block size below 1, an unknown product, or an array of the wrong rank.
    """
    if not (scale > 0 and math.isfinite(scale)):
        raise UserError(f"scale {scale}: expected a positive number")
    if min(target_block, source_block) < 1:
        raise ValueError(f"target_block and source_block must be positive, got {target_block}, {source_block}")
    layout = {"target_block": target_block, "source_block": source_block, "devices": devices, "product": product}
    problem = make_problem(queries, keys, candidates, bonus)
    if bonus is not None:
        # The cosine of the longer vectors lacks a scale and a constant, and a constant changes no sparsemax.
        scale *= 1 + bonus.amount / 2
    if len(problem.allowed) == 0:
        raise UserError("no source token can be a neighbor; expected at least one with a vector")
    found: list[tuple[np.ndarray, ...]] = []
    waiting, nominees, done = problem.searched, _FIRST, 0
    while len(waiting):
        nominees = min(nominees, len(problem.index))
        height = max(1, min(target_block, _NOMINEES_PER_BLOCK // nominees))
        search = Search(problem.index, nominees, **(layout | {"target_block": height}))
        # A sample tells whether so few nominees settle most rows.
        rest, waiting = waiting[_SAMPLE:], waiting[:_SAMPLE]
        unsettled: list[np.ndarray] = []
        while len(waiting):
            for block in search.nominations(problem.queries, problem.distinct[waiting]):
                rows = waiting[block.where]
                settled, (row, ids, weights) = _weigh(block, problem, scale)
                found.append((rows[row], problem.allowed[ids], weights))
                unsettled.append(rows[~settled])
                done += int(settled.sum())
                if progress is not None:
                    progress(done, len(problem.searched))
            enough = sum(map(len, unsettled)) <= _SAMPLE // 8
            waiting, rest = (rest, rest[:0]) if enough else (rest[:0], rest)
        waiting, nominees = np.concatenate([*unsettled, rest]), nominees * _FACTOR
    ids, weights = _padded(found, len(problem.distinct))
    return ids[problem.which], weights[problem.which]


def thresholds(scores_TxK: np.ndarray, counts_TxK: np.ndarray | None = None) -> np.ndarray:
    """The tau of sparsemax for each row of scores.

    Args:
      scores_TxK: float64 (T, K), descending; -inf is no score.
      counts_TxK: int (T, K), how many entries each score stands for; 1 each where None.

    Returns:
      float64 (T,); the additions go from left to right, so scores that have no weight leave no trace in the bits.
    """
    counts_TxK = np.ones(scores_TxK.shape, np.int64) if counts_TxK is None else counts_TxK
    number_TxK = np.cumsum(counts_TxK, axis=1)
    total_TxK = np.cumsum(scores_TxK * counts_TxK, axis=1)
    last_T = np.maximum((1 + number_TxK * scores_TxK > total_TxK).sum(axis=1) - 1, 0)[:, None]
    total_T, number_T = (np.take_along_axis(x, last_T, axis=1)[:, 0] for x in (total_TxK, number_TxK))
    return (total_T - 1) / number_T


def _weigh(block: Nomination, problem: Problem, scale: float) -> tuple[np.ndarray, tuple[np.ndarray, ...]]:
    """Returns settled bool (n,) and the pairs of the settled rows: row, place in `problem.allowed`, and float64 weight."""
    sizes = np.diff(problem.groups.start)
    rounding = _ROUNDING * max(1.0, scale)
    # A threshold moves by no more than the scores that it is made of.
    products = block.values.astype(np.float64) * scale
    least = thresholds(products, sizes[block.ids]) - 2 * scale * block.bound - rounding
    row, place = np.nonzero(products >= least[:, None])
    scores, ids = np.full(products.shape, -np.inf), block.ids
    scores[row, place] = scale * problem.index.scores(block.queries, row, ids[row, place])
    sort_rows(scores, ids)
    width = int(np.isfinite(scores).sum(axis=1).max(initial=1))
    scores, ids = scores[:, :width], ids[:, :width]
    tau = thresholds(scores, sizes[ids])
    settled = scale * (block.missed + block.bound) < tau - rounding
    settled |= block.ids.shape[1] == len(problem.index)
    weights = np.maximum(scores - tau[:, None], 0)
    row, place = np.nonzero((weights > 0) & settled[:, None])
    return settled, problem.groups.members_of(row, ids[row, place], weights[row, place])


def _padded(found: list[tuple[np.ndarray, ...]], rows: int) -> tuple[np.ndarray, np.ndarray]:
    """Lays out pairs (row, id, weight), in order within a row, as ids and float32 weights (rows, K), filled up with zeros."""
    nothing = (np.empty(0, np.int64), np.empty(0, np.int64), np.empty(0))
    row, ids, weights = (np.concatenate(parts) for parts in zip(nothing, *found, strict=True))
    order = np.argsort(row, kind="stable")
    length = np.bincount(row, minlength=rows)
    place = np.arange(len(row)) - np.repeat(np.cumsum(length) - length, length)
    shape = rows, int(length.max(initial=0))
    out_ids, out = np.zeros(shape, np.int32), np.zeros(shape, np.float32)
    out_ids[row[order], place], out[row[order], place] = ids[order], weights[order]
    return out_ids, out
