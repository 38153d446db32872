"""Anker: rows regressed on the anchored contexts of their tokens, and what the nearest source tokens' rows have beside."""

from collections.abc import Callable

import numpy as np
from scipy.sparse import csr_array

from wechsel_jax.errors import UserError
from wechsel_jax.initializers.anker.regression import fit_regression
from wechsel_jax.initializers.plan import Side, TransferPlan
from wechsel_jax.initializers.wechsel import wechsel
from wechsel_jax.tokens.overlap import Overlap, find_overlap

# How much of what the neighbors' rows have beside the regression is passed on.
_RESIDUAL = 0.5


def anker(
    source: Side,
    target: Side,
    *,
    overlap: Overlap,
    neighbors: int = 10,
    temperature: float = 0.1,
    word_start: float = 0.1,
    regression: bool = True,
    progress: Callable[[int, int], None] | None = None,
) -> TransferPlan:
    """A row is what its token's contexts and frequency predict, and half of what its neighbors' rows have beside that.

    With x a token's features, R the coefficients of `fit_regression`, and w the weights that WECHSEL gives the k source tokens
    of the most similar contexts, a target row is x_t R + 1/2 sum_s w_s (e_s - x_s R). A mean of neighbors has the frequency,
    the word start and the contexts of the neighbors; the regression puts in the token's own, which decide in a tied model how
    often it is predicted, and leaves out what only one source token has.

    Args:
      source: V_s tokens with vectors (V_s, m) of `vectors.anchored_vectors` and their `counts`; optionally `other_vectors`.
      target: V_t tokens likewise.
      overlap: shared tokens, which are copied: special ones, unless the user says otherwise.
      neighbors: k, how many source rows make one target row.
      temperature: of the softmax over similarities.
      word_start: is added to the similarity of source tokens that begin a word if the target token does, and do not if not.
      regression: without it, a row is sum_s w_s e_s, as in WECHSEL.
      progress: see `nearest_neighbors`.

    Returns:
      A plan with a regression. Tokens without a vector, which the text does not show, are mixed by `other_vectors` as in
      WECHSEL where both sides have them. Else, where the source has a token s of the same bytes, the row is
      x_t R + e_s - x_s R: almost e_s where the source's text does not show it either (a line feed where every line is a
      document), and less frequent than that where it does. Else the regression predicts the row, or it is random.

    Raises:
      UserError: a temperature that is not above zero, no neighbors, or no source token with a vector.
    """
    if not temperature > 0 or neighbors < 1:
        raise UserError(f"temperature {temperature}, neighbors {neighbors}: expected positive numbers")
    known = int(source.has_vector.sum())
    if not known:
        raise UserError("anker: no source token has a vector; expected text of the source language; name more of it")
    options = {"temperature": temperature, "word_start": word_start}
    plan = wechsel(source, target, neighbors=min(neighbors, known), progress=progress, **options)
    plan, same = _with_same_bytes(plan, source, target)
    if regression:
        plan = _regressed(plan, source, target, np.where(same, 1, _RESIDUAL))
    plan = _with_other_vectors(plan, source, target, neighbors=neighbors, **options)
    return plan.with_copies(overlap.source)


def _with_same_bytes(plan: TransferPlan, source: Side, target: Side) -> tuple[TransferPlan, np.ndarray]:
    """The plan with the source token of the same bytes as only neighbor where there is no vector, and bool (V_t,): where."""
    found = find_overlap(source.vocabulary, target.vocabulary, "exact").source
    same = ~target.has_vector & (found >= 0)
    ids, weights = np.where(same[:, None], 0, plan.neighbors), np.where(same[:, None], 0, plan.weights)
    ids[same, 0], weights[same, 0] = found[same], 1
    return TransferPlan.mixed(ids, weights).with_noise(plan.random & ~same), same


def _regressed(plan: TransferPlan, source: Side, target: Side, share: np.ndarray) -> TransferPlan:
    """Shares (V_t,) of the plan's mixtures, and for every token the coordinates that the regression has beside their part."""
    fitted = fit_regression(source, target)
    weights = share[:, None].astype(np.float32) * plan.weights
    rows, k = weights.shape
    part = csr_array((weights.ravel(), plan.neighbors.ravel(), np.arange(rows + 1) * k), shape=(rows, len(source.vocabulary)))
    return TransferPlan.mixed(plan.neighbors, weights).with_regression(fitted.target - part @ fitted.source, fitted.basis)


def _with_other_vectors(plan: TransferPlan, source: Side, target: Side, *, neighbors: int, **options) -> TransferPlan:
    """The same plan, but WECHSEL's by other vectors where there are those and no vector."""
    if source.other_vectors is None or target.other_vectors is None:
        return plan
    wanted = ~target.has_vector & target.other_vectors.any(axis=1)
    others = Side(source.vocabulary, source.other_vectors)
    usable = int(others.has_vector.sum())
    if not usable or not wanted.any():
        return plan
    vectors = np.where(wanted[:, None], target.other_vectors, np.float32(0))
    other = wechsel(others, Side(target.vocabulary, vectors), neighbors=min(neighbors, usable), **options)
    width = max(plan.neighbors.shape[1], other.neighbors.shape[1])
    ids, weights = (
        np.where(wanted[:, None], _wide(getattr(other, name), width), _wide(getattr(plan, name), width))
        for name in ("neighbors", "weights")
    )
    mixed = TransferPlan.mixed(ids, weights).with_noise(plan.random & ~wanted)
    if plan.basis is not None:
        mixed = mixed.with_regression(np.where(wanted[:, None], 0, plan.coordinates), plan.basis)
    return mixed


def _wide(values: np.ndarray, width: int) -> np.ndarray:
    return np.pad(values, ((0, 0), (0, width - values.shape[1])))
