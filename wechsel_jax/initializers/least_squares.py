"""Many small least-squares problems: which weights of a token's support rows come closest to its own row.

They are solved on the host in float64. The normal equations square the condition number, which float32 does not survive, and
thirty rows of 768 numbers are too few to be worth a trip to a device: one symmetric product, one Cholesky factor and one
triangular inverse a token, on exactly its own rows. Nothing is padded or batched, so no row's bits depend on another's.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from scipy.linalg import blas, lapack

# Up to this condition the normal equations keep nine digits of the weights; beyond, singular values are worth their price.
_TRUSTED = 1e4
_STRIDE = 256


@dataclass(frozen=True)
class Fit:
    """The solutions of T least-squares problems, and how far each can be trusted.

    Attributes:
      weights: float64 (T, K); 0 outside the support.
      condition: float64 (T,), ||A||_F ||A^+||_F of the support rows A (Demmel's condition number): between the usual ratio of
        singular values and k times that; k for orthogonal rows of one length. Before any cut-off: 1e15 and
        more, or infinite, where A has lost rank. With a ridge, that of the problem with the ridge. 0 without support.
      residual: float64 (T,), ||wanted - weights A|| / ||wanted||, to seven digits after the point; 0 where `wanted` is zero.
    """

    weights: np.ndarray
    condition: np.ndarray
    residual: np.ndarray

    @property
    def norm(self) -> np.ndarray:
        """float64 (T,): the Euclidean length of each row's weights."""
        return np.sqrt(np.square(self.weights).sum(axis=1))


def least_squares(
    table: np.ndarray,
    ids: np.ndarray,
    used: np.ndarray,
    wanted: np.ndarray,
    *,
    ridge: float = 0.0,
    cutoff: float = 1e-6,
    progress: Callable[[int, int], None] | None = None,
) -> Fit:
    """Weights c of least length that minimise ||c A - e||, for each token's support rows A and its own row e.

    c = e A^+, so that c B = e (A^+ B) for any B: the image of e under the minimum-norm linear map from the rows A to the rows B
    (SALT, Lee et al., 2025, equation 3, with B the source model's rows), without that map ever being formed.

    Singular values of A below `cutoff` times the largest count as zero, as in `numpy.linalg.pinv(A, rcond=cutoff)`. The default
    is far above numpy's 1e-15 because the rows are float32 at best: two that differ in their last bits are the same row, and
    numpy would let that rounding decide the weights.

    Args:
      table: (R, h), any float type, finite.
      ids: int (T, K), rows of `table`.
      used: bool (T, K), the places of `ids` that count.
      wanted: (T, h), the rows to come close to.
      ridge: adds ridge times the mean squared length of a token's support rows to their Gram matrix's diagonal: no unit, the
        same for any scale of the table.
      cutoff: see above.
      progress: called with (tokens done, T).

    Returns:
      The weights and their diagnostics. Row t depends on its own inputs only.

    Raises:
      ValueError: a negative ridge, a cut-off outside [0, 1), or shapes that do not fit.
    """
    if ridge < 0 or not 0 <= cutoff < 1:
        raise ValueError(f"ridge must not be negative and cutoff must be in [0, 1), got {ridge}, {cutoff}")
    if ids.shape != used.shape or len(ids) != len(wanted) or table.shape[1:] != wanted.shape[1:]:
        raise ValueError(f"shapes do not fit: {table.shape}, {ids.shape}, {used.shape}, {wanted.shape}")
    count = len(ids)
    fit = Fit(np.zeros(ids.shape), np.zeros(count), np.zeros(count))
    rows = np.empty((ids.shape[1] + 1, table.shape[1]))
    for t in range(count):
        support = ids[t, used[t]]
        k = len(support)
        rows[:k], rows[k] = table[support], wanted[t]
        fit.weights[t, used[t]], fit.condition[t], fit.residual[t] = _solve(rows[: k + 1], ridge, cutoff)
        if progress is not None and ((t + 1) % _STRIDE == 0 or t + 1 == count):
            progress(t + 1, count)
    return fit


def _solve(rows: np.ndarray, ridge: float, cutoff: float) -> tuple[np.ndarray, float, float]:
    """Returns weights (k,), condition and relative residual for k support rows and the wanted row, stacked (k + 1, h)."""
    k = len(rows) - 1
    if not k:
        return np.zeros(0), 0.0, float(rows[0].any())
    solution = _by_gram(rows, ridge, cutoff) if k <= rows.shape[1] else None
    return solution or _by_singular_values(rows[:k], rows[k], ridge, cutoff)


def _by_gram(rows: np.ndarray, ridge: float, cutoff: float) -> tuple[np.ndarray, float, float] | None:
    """Solves the normal equations; None where the rows are not known to be independent enough."""
    k = len(rows) - 1
    # The wanted row rides along: its products with the others and with itself are the last column.
    gram = blas.dsyrk(1.0, rows.T, trans=1)
    diagonal, products, squared = gram.diagonal()[:k], gram[:k, k].copy(), gram[k, k]
    shift = ridge * diagonal.mean()
    trace = diagonal.sum() + k * shift
    system = gram[:k, :k]
    if shift:
        system[np.diag_indices(k)] += shift
    factor, failed = lapack.dpotrf(system, clean=1)
    if failed:
        return None
    inverse, failed = lapack.dtrtri(factor, overwrite_c=1)
    # ||inverse||_F^2 is the trace of the inverse Gram matrix, hence the square of ||A^+||_F.
    condition = np.sqrt(trace * np.vdot(inverse, inverse))
    if failed or not condition < min(_TRUSTED, 1 / max(cutoff, 1e-300)):
        return None
    weights = inverse @ (products @ inverse)
    missed = squared - weights @ products - shift * (weights @ weights)
    return weights, condition, float(np.sqrt(max(missed, 0) / squared)) if squared else 0.0


def _by_singular_values(
    support: np.ndarray, wanted: np.ndarray, ridge: float, cutoff: float
) -> tuple[np.ndarray, float, float]:
    left, values, right = np.linalg.svd(support, full_matrices=False)
    squares = np.square(values)
    shift = ridge * squares.sum() / len(support)
    kept = values > cutoff * values[0]
    factors = np.divide(values, squares + shift, out=np.zeros_like(values), where=kept)
    weights = left @ (factors * (right @ wanted))
    with np.errstate(divide="ignore", invalid="ignore"):
        condition = np.sqrt((squares + shift).sum() * (1 / (squares + shift)).sum())
    length = np.linalg.norm(wanted)
    residual = np.linalg.norm(wanted - weights @ support) / length if length else 0.0
    return weights, float(condition) if np.isfinite(condition) else np.inf, float(residual)
