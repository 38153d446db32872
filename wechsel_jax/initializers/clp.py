"""CLP-Transfer: a new token is a mean of the shared tokens, weighted by their similarity in a model of the target language."""

from collections.abc import Callable

import numpy as np

from wechsel_jax.errors import UserError
from wechsel_jax.initializers.anchors import anchored_plan, find_anchors, helper_rows, on_source_rows
from wechsel_jax.initializers.plan import Side, TransferPlan
from wechsel_jax.search.bonus import Bonus
from wechsel_jax.search.neighbors import nearest_neighbors
from wechsel_jax.search.threads import one_thread
from wechsel_jax.tokens.overlap import Overlap

# Weights of a dense plan: 4 bytes and a 4-byte source row each, and a few copies while it is made: 2 GB.
_DENSE = 2**26
_BLOCK = 256


def clp(
    source: Side,
    target: Side,
    *,
    overlap: Overlap,
    parity: bool = False,
    neighbors: int = 10,
    word_start: float = 0.0,
    progress: Callable[[int, int], None] | None = None,
) -> TransferPlan:
    """Similarity-weighted mean of shared tokens (CLP-Transfer, Ostendorff and Rehm, 2023).

    Shared tokens are copied. By default any other token is the mean of the `neighbors` shared tokens of highest cosine
    similarity in the helper model, each weighted by its similarity; similarities below zero count as zero.

    With `parity`, it is the paper's: all shared tokens take part, special ones included, with weights cos / sum of cos, and
    negative similarities stay. Such a plan is dense, and the mean over everything lies close to the mean of the vocabulary, so
    this is for comparison and limited to 2**26 weights.

    Args:
      source: V_s tokens; neither vectors nor embeddings are read.
      target: V_t tokens with a helper model's rows (V_t, h); a token without one is noise.
      overlap: the shared tokens; the paper matches by spelling ("exact").
      parity: weigh as the paper and PyPI langsfer 0.1.0 do.
      neighbors: how many shared tokens make one new token; not read with `parity`.
      word_start: is added to the similarity of shared tokens whose source token begins a word if the new token does, and does
        not if not; not read with `parity`.
      progress: called with (tokens done, tokens to do).

    Returns:
      A plan whose weights sum to 1 in every mixed row; convex unless `parity`.

    Raises:
      UserError: no helper, no shared token that it knows, `neighbors` below 1, or a dense plan that is too large.
    """
    if neighbors < 1:
        raise UserError(f"neighbors {neighbors}: expected at least 1; the usual number is 10")
    table, known = helper_rows(target, "clp")
    wanted = np.flatnonzero(~overlap.shared & known)
    if parity:
        anchors = np.flatnonzero(overlap.shared & known)
        return _dense(table, overlap, anchors, wanted, progress)
    anchors = find_anchors(source, target, overlap, known, "clp")
    rows, k = overlap.source[anchors], min(neighbors, len(anchors))
    bonus = Bonus(word_start, target.vocabulary.word_start[wanted], source.vocabulary.word_start[rows])
    similarity, places = nearest_neighbors(table[wanted], table[anchors], k, bonus=bonus, progress=progress)
    return anchored_plan(overlap, wanted, *on_source_rows(rows[places], _shares(np.maximum(similarity, 0))))


def _shares(similarity_TxK: np.ndarray) -> np.ndarray:
    """Each row divided by its sum, float64; zeros where the sum is zero."""
    wide_TxK = similarity_TxK.astype(np.float64)
    total_T = wide_TxK.sum(axis=1, keepdims=True)
    return np.divide(wide_TxK, total_T, out=np.zeros_like(wide_TxK), where=total_T != 0)


@one_thread()
def _dense(
    table: np.ndarray, overlap: Overlap, anchors: np.ndarray, wanted: np.ndarray, progress: Callable | None
) -> TransferPlan:
    rows, width = len(overlap.source), len(anchors)
    if not width:
        raise UserError("clp: the helper model knows no shared token; expected some; choose a looser overlap or another helper")
    if rows * width > _DENSE:
        raise UserError(
            f"clp --parity: {rows:,} tokens x {width:,} shared tokens are {rows * width:,} weights; expected at most {_DENSE:,}"
            "; leave --parity out, which keeps the most similar shared tokens only"
        )
    unit = table / np.maximum(np.linalg.norm(table.astype(np.float64), axis=1), 1e-300)[:, None]
    keys = unit[anchors].T
    weights = np.empty((len(wanted), width), np.float32)
    for begin in range(0, len(wanted), _BLOCK):
        weights[begin : begin + _BLOCK] = _shares(unit[wanted[begin : begin + _BLOCK]] @ keys)
        if progress is not None:
            progress(min(begin + _BLOCK, len(wanted)), len(wanted))
    return anchored_plan(overlap, wanted, np.broadcast_to(overlap.source[anchors], weights.shape), weights)
