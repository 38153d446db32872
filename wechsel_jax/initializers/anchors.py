"""Shared tokens as anchors: they have a row in a model of the target language and a row in the source model."""

import numpy as np

from wechsel_jax.errors import UserError
from wechsel_jax.initializers.plan import Side, TransferPlan
from wechsel_jax.tokens.overlap import Overlap


def helper_rows(target: Side, method: str) -> tuple[np.ndarray, np.ndarray]:
    """Returns the helper's rows float32 (V_t, h) of the target tokens, and bool (V_t,): the helper has the token.

    Raises:
      UserError: there is no helper, or one of its rows is not finite.
    """
    if target.embeddings is None:
        raise UserError(
            f"{method}: no helper model; expected a model of the target language whose vocabulary holds the target tokens; "
            "name its directory with --helper"
        )
    table = np.ascontiguousarray(target.embeddings, np.float32)
    finite = np.isfinite(table.sum(axis=1, dtype=np.float64))
    if not finite.all():
        raise UserError(
            f"{method}: the helper's row of target token {int(finite.argmin())} holds NaN or infinity; expected finite "
            "numbers; choose another helper model"
        )
    return table, table.any(axis=1)


def find_anchors(source: Side, target: Side, overlap: Overlap, usable: np.ndarray, method: str) -> np.ndarray:
    """Target ids, ascending, of the shared tokens that `usable`, bool (V_t,), allows; special tokens are never among them.

    Raises:
      UserError: there is none.
    """
    found = overlap.shared & usable & ~np.asarray(target.vocabulary.special, bool)
    found &= ~np.asarray(source.vocabulary.special, bool)[overlap.source]
    if not found.any():
        raise UserError(
            f"{method}: none of the {int(overlap.shared.sum())} shared tokens can be an anchor; expected shared tokens that "
            "the helper model knows (and, for SALT, that have a word vector); choose a looser overlap or another helper model"
        )
    return np.flatnonzero(found)


def on_source_rows(neighbors: np.ndarray, weights: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Adds up weights that fall on the same source row, and drops zeros.

    Args:
      neighbors: int (T, K), source rows, repeated ones allowed.
      weights: float64 (T, K).

    Returns:
      neighbors int32 and weights float32 (T, K'), by descending magnitude of the weight, then by id; K' is the largest support.
    """
    if not neighbors.size:
        return np.zeros((len(neighbors), 0), np.int32), np.zeros((len(neighbors), 0), np.float32)
    order = np.argsort(neighbors, axis=1, kind="stable")
    ids, parts = (np.take_along_axis(x, order, axis=1) for x in (neighbors, weights))
    first = np.ones(ids.shape, bool)
    first[:, 1:] = ids[:, 1:] != ids[:, :-1]
    starts = np.flatnonzero(first)
    summed = np.zeros(ids.size, np.float32)
    summed[starts] = np.add.reduceat(parts.reshape(-1), starts)
    summed = summed.reshape(ids.shape)
    ids = np.where(summed != 0, ids, 0)
    order = np.lexsort((ids, -np.abs(summed)), axis=-1)[:, : int((summed != 0).sum(axis=1).max())]
    return np.take_along_axis(ids, order, axis=1).astype(np.int32), np.take_along_axis(summed, order, axis=1)


def anchored_plan(overlap: Overlap, rows: np.ndarray, neighbors: np.ndarray, weights: np.ndarray) -> TransferPlan:
    """Shared tokens copied, the target ids `rows` (n,) mixed from source rows (n, K), everything else and empty mixes noise."""
    size = len(overlap.source)
    all_neighbors = np.zeros((size, neighbors.shape[1]), np.int32)
    all_weights = np.zeros((size, neighbors.shape[1]), np.float32)
    all_neighbors[rows], all_weights[rows] = neighbors, weights
    plan = TransferPlan.mixed(all_neighbors, all_weights)
    return plan.with_noise(where=~all_weights.any(axis=1)).with_copies(overlap.source)
