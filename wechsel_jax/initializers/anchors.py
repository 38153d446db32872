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


def find_anchors(
    source: Side, target: Side, overlap: Overlap, usable: np.ndarray, method: str, special: bool = False
) -> np.ndarray:
    """Target ids, ascending, of the shared tokens that `usable`, bool (V_t,), allows; special tokens only with `special`.

    Raises:
      UserError: there is none.
    """
    ordinary = ~(target.vocabulary.special | source.vocabulary.special[overlap.source])
    found = overlap.shared & usable & (special | ordinary)
    if not found.any():
        raise UserError(
            f"{method}: none of the {int(overlap.shared.sum())} shared tokens can be an anchor; expected shared tokens that "
            "the helper model knows (and, for SALT, that have a word vector); choose a looser overlap or another helper model"
        )
    return np.flatnonzero(found)


def anchored_plan(overlap: Overlap, rows: np.ndarray, neighbors: np.ndarray, weights: np.ndarray) -> TransferPlan:
    """Shared tokens copied, the target ids `rows` (n,) mixed from source rows (n, K), everything else and empty mixes noise."""
    size = len(overlap.source)
    all_neighbors = np.zeros((size, neighbors.shape[1]), np.int32)
    all_weights = np.zeros((size, neighbors.shape[1]), np.float32)
    all_neighbors[rows], all_weights[rows] = neighbors, weights
    plan = TransferPlan.mixed(all_neighbors, all_weights)
    return plan.with_noise(where=~all_weights.any(axis=1)).with_copies(overlap.source)
