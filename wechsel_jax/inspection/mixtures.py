"""What the weights of a plan's mixed rows look like."""

from typing import Any

import numpy as np

from wechsel_jax.initializers.plan import TransferPlan


def mixture(plan: TransferPlan) -> dict[str, Any] | None:
    """Describes the weights of the mixed rows' neighbors; None where no row has any. What a regression adds is left out.

    Returns:
      "effective_neighbors": mean over the rows of exp(entropy of |weights|), how many source tokens a row really leans on;
      "support_mean" and "support_max": source tokens with a weight that is not 0; "negative_share": of those weights, the part
      below zero; "largest_absolute_sum": the largest sum of absolute weights of a row, 1 for a convex mixture, and
      "largest_absolute_sum_row" that row; "source_tokens": how many different source tokens are used at all.
    """
    rows = np.flatnonzero(plan.is_mixed & plan.weights.any(axis=1))
    if not len(rows):
        return None
    weights = plan.weights[rows].astype(np.float64)
    sizes = np.abs(weights)
    sums = sizes.sum(axis=1)
    share = sizes / sums[:, None]
    entropy = -(share * np.log(share, where=share > 0, out=np.zeros_like(share))).sum(axis=1)
    used = weights != 0
    return {
        "effective_neighbors": float(np.exp(entropy).mean()),
        "support_mean": float(used.sum(axis=1).mean()),
        "support_max": int(used.sum(axis=1).max()),
        "negative_share": float((weights < 0).sum() / used.sum()),
        "largest_absolute_sum": float(sums.max()),
        "largest_absolute_sum_row": int(rows[sums.argmax()]),
        "source_tokens": len(np.unique(plan.neighbors[rows][used])),
    }


def regression(plan: TransferPlan) -> dict[str, int] | None:
    """Returns the "rank" of a plan's regression, and of how many "source_tokens" and "target_tokens"; None without one."""
    if plan.basis is None:
        return None
    used = {"source_tokens": plan.basis.any(axis=0), "target_tokens": plan.coordinates.any(axis=1)}
    return {"rank": len(plan.basis), **{name: int(which.sum()) for name, which in used.items()}}


def equal_origins(plan: TransferPlan) -> int:
    """Counts the rows that will equal another row whatever they are applied to: same copy, or same weights of the same rows."""
    used = plan.weights != 0
    neighbors = np.where(used, plan.neighbors, -1)
    order = np.argsort(neighbors, axis=1, kind="stable")
    weights = np.take_along_axis(np.where(used, plan.weights, np.float32(0)), order, axis=1)
    parts = [plan.copy[:, None], np.take_along_axis(neighbors, order, axis=1), weights.view(np.int32)]
    if plan.coordinates is not None:
        parts.append(plan.coordinates.view(np.int32))
    keys = np.ascontiguousarray(np.concatenate(parts, axis=1)[~plan.random])
    # As bytes: numpy sorts those much faster than rows.
    _, place, sizes = np.unique(keys.view(f"V{keys.strides[0]}").ravel(), return_inverse=True, return_counts=True)
    return int((sizes[place] > 1).sum())
