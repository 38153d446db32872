"""Statistics of embedding tables (lengths of rows, spread of entries, twins, beside the source's) and of a plan's weights."""

from typing import Any

import numpy as np

from wechsel_jax.initializers.plan import TransferPlan
from wechsel_jax.search.rescoring import distinct_rows

QUANTILES = (0, 5, 25, 50, 75, 95, 100)
_ROWS_AT_ONCE = 4096


def statistics(table: np.ndarray) -> dict[str, Any]:
    """Describes a table, in blocks of rows.

    Args:
      table: (V, d), or (V,) for the bias of a head; any float type.

    Returns:
      "rows", "dimensions"; "norm_mean", "norm_std" and "norm_quantiles" (percent -> length) of the rows' lengths; "mean" and
      "std" of all entries (Kim et al., 2024, section 3.4: one mean and one deviation for the whole table); "dimension_std", a
      list (d,), deviation of each dimension; "zero_rows"; "not_finite_rows", which all other figures leave out; "duplicates",
      rows that equal another row, and "duplicate_share" (None for a bias).
    """
    matrix = table.reshape(len(table), -1)
    lengths, finite = np.zeros(len(matrix)), np.ones(len(matrix), bool)
    shift = None
    total, squares = np.zeros(matrix.shape[1]), np.zeros(matrix.shape[1])
    for start in range(0, len(matrix), _ROWS_AT_ONCE):
        block = matrix[start : start + _ROWS_AT_ONCE].astype(np.float64)
        good = np.isfinite(block).all(axis=1)
        finite[start : start + len(block)] = good
        block = block[good]
        lengths[start : start + len(good)][good] = np.linalg.norm(block, axis=1)
        if len(block):
            # Around some row, so that a mean far from zero costs the variance no digits.
            shift = block[0].copy() if shift is None else shift
            block -= shift
            total += block.sum(axis=0)
            squares += np.square(block, out=block).sum(axis=0)
    count = int(finite.sum())
    found: dict[str, Any] = {"rows": len(matrix), "dimensions": matrix.shape[1], "not_finite_rows": len(matrix) - count}
    if not count:
        return found | {"duplicates": None, "duplicate_share": None}
    mean, variance = total / count, np.maximum(squares / count - (total / count) ** 2, 0)
    centre = mean + shift
    spread = np.sqrt(variance.mean() + centre.var())
    lengths = lengths[finite]
    values = np.percentile(lengths, QUANTILES)
    found |= {
        "norm_mean": float(lengths.mean()),
        "norm_std": float(lengths.std()),
        "norm_quantiles": {str(q): float(value) for q, value in zip(QUANTILES, values, strict=True)},
        "mean": float(centre.mean()),
        "std": float(spread),
        "dimension_std": np.sqrt(variance).tolist(),
        "zero_rows": int((lengths == 0).sum()),
    }
    twins = None if table.ndim == 1 else duplicates(table)
    return found | {"duplicates": twins, "duplicate_share": None if twins is None else twins / len(table)}


def duplicates(table: np.ndarray) -> int:
    """Counts the rows of a table (V, d) that are the same, bit for bit, as another row."""
    if not len(table):
        return 0
    # Rows of two-byte floats are compared as float32, which holds them exactly; float64 is rounded.
    _, place = distinct_rows(table.astype(np.float32) if table.dtype.itemsize == 8 else table)
    sizes = np.bincount(place)
    return int(sizes[sizes > 1].sum())


def compared(name: str, role: str, target: dict[str, Any], source: dict[str, Any] | None) -> dict[str, Any]:
    """Lays the statistics of a new table beside the source's.

    Args:
      name: of the tensor.
      role: "input", "head" or "bias".
      target: of the new table, as `statistics` returns them.
      source: of the source table; None where it is not to be had.

    Returns:
      "name", "role", "target", "source" (both without their "dimension_std"), and "ratios", target to source: of "norm_mean",
      "norm_std", "mean_shift" (difference of means in source deviations), "std" and of the deviations of single dimensions
      ("dimension_std_min", "_median", "_max").
    """
    ratios, before = {}, source or {}
    for key in ("norm_mean", "norm_std", "std"):
        if before.get(key) and key in target:
            ratios[key] = target[key] / before[key]
    if "std" in ratios:
        ratios["mean_shift"] = (target["mean"] - before["mean"]) / before["std"]
        new, old = np.array(target["dimension_std"]), np.array(before["dimension_std"])
        if new.shape == old.shape and (old > 0).any():
            single = new[old > 0] / old[old > 0]
            ends = {"min": single.min(), "median": np.median(single), "max": single.max()}
            ratios |= {f"dimension_std_{which}": float(value) for which, value in ends.items()}
    sides = {
        side: None if found is None else {key: value for key, value in found.items() if key != "dimension_std"}
        for side, found in (("target", target), ("source", source))
    }
    return {"name": name, "role": role, **sides, "ratios": ratios or None}


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
