"""Many small least-squares problems: which weights of a token's support rows come closest to its own row.

They are solved on the host in float64. The normal equations square the condition number, which float32 does not survive, and
thirty rows of 768 numbers are too few to be worth a trip to a device. Tokens with equally many support rows are solved
together, so that nothing is padded, and each on its own rows, so that no token's bits depend on another's.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
from scipy.linalg import blas, lapack

from wechsel_jax.records import work
from wechsel_jax.search.threads import one_thread

# Up to this condition the normal equations keep nine digits of the weights; beyond, singular values are worth their price.
_TRUSTED = 1e4
# Tokens of a block at most.
_BLOCK = 256
# Rows of a Gram matrix that one product makes. BLAS has fast kernels for products this narrow, and they leave out most of the
# upper triangle: half the time of its symmetric product, which is made for larger matrices.
_PANEL = 8
# Two float32 rows that differ in their last bits are the same row.
CUTOFF = 1e-6


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


@one_thread()
def least_squares(
    table: np.ndarray,
    ids: np.ndarray,
    used: np.ndarray,
    wanted: np.ndarray,
    *,
    ridge: float = 0.0,
    cutoff: float = CUTOFF,
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
      ValueError: a negative ridge, a cut-off outside [0, 1), an id outside the table, or shapes that do not fit.
    """
    if ridge < 0 or not 0 <= cutoff < 1:
        raise ValueError(f"ridge must not be negative and cutoff must be in [0, 1), got {ridge}, {cutoff}")
    if ids.shape != used.shape or len(ids) != len(wanted) or table.shape[1:] != wanted.shape[1:]:
        raise ValueError(f"shapes do not fit: {table.shape}, {ids.shape}, {used.shape}, {wanted.shape}")
    # `take` would copy any other table as a whole each time.
    table = np.ascontiguousarray(table)
    count = len(ids)
    fit, done = Fit(np.zeros(ids.shape), np.zeros(count), np.zeros(count)), 0
    for tokens, places in _equal_supports(used):
        support = np.take_along_axis(ids[tokens], places, axis=1).astype(np.intp)
        if support.size and not 0 <= support.min() <= support.max() < len(table):
            raise ValueError(f"ids {support.min()} to {support.max()} are not all rows of a table of {len(table)}")
        weights, fit.condition[tokens], fit.residual[tokens] = _solve(table, support, wanted[tokens], ridge, cutoff)
        fit.weights[tokens[:, None], places] = weights
        done += len(tokens)
        if progress is not None and (done // _BLOCK > (done - len(tokens)) // _BLOCK or done == count):
            progress(done, count)
    return fit


def _equal_supports(used: np.ndarray) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yields tokens (B,) with equally many places in use, and those places (B, k)."""
    counts = used.sum(axis=1)
    order = np.argsort(counts, kind="stable")
    sizes, starts = np.unique(counts[order], return_index=True)
    for k, group in zip(sizes.tolist(), np.split(order, starts)[1:], strict=True):
        for begin in range(0, len(group), _BLOCK):
            tokens = group[begin : begin + _BLOCK]
            yield tokens, np.nonzero(used[tokens])[1].reshape(len(tokens), k)


def _solve(
    table: np.ndarray, support: np.ndarray, wanted: np.ndarray, ridge: float, cutoff: float
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Returns weights (B, k), condition and relative residual (B,) for support rows (B, k) and wanted rows (B, h)."""
    count, k = support.shape
    if not k:
        return np.zeros((count, 0)), np.zeros(count), wanted.any(axis=1).astype(np.float64)
    if k <= table.shape[1]:
        # The Gram matrix, its Cholesky factor and that one's inverse.
        work.flops(count * (k + 1) ** 2 * (table.shape[1] + 2 * (k + 1) / 3))
        weights, condition, residual = _by_gram(table, support, wanted, ridge)
        # Written so that what is not a number counts as untrusted.
        left = np.flatnonzero(~(condition < min(_TRUSTED, 1 / max(cutoff, 1e-300))))
    else:
        weights, condition, residual, left = np.empty((count, k)), np.empty(count), np.empty(count), np.arange(count)
    for b in left:
        rows, row = (x.astype(np.float64) for x in (table[support[b]], wanted[b]))
        weights[b], condition[b], residual[b] = _by_singular_values(rows, row, ridge, cutoff)
    return weights, condition, residual


def _by_gram(
    table: np.ndarray, support: np.ndarray, wanted: np.ndarray, ridge: float
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """What `_solve` returns, by the normal equations; the condition is infinite where they have no Cholesky factor.

    The wanted row e is one more below the support A. With A A^T = L L^T and the corner z^2 + ||y||^2, the Gram matrix of all
    has the factor [L 0; y^T z], where L y = A e; the inverse of the factor, [L^-1 0; -c^T / z, 1 / z], holds the weights c.
    """
    (count, k), width = support.shape, table.shape[1]
    gathered, rows = np.empty((k, width), table.dtype), np.empty((k + 1, width))
    gram = np.empty((k + 1, k + 1), order="F")
    diagonal = gram.reshape(-1, order="F")[:: k + 2]
    panels = [(gram[i:, i : i + _PANEL], rows[i:].T, rows[i : i + _PANEL].T) for i in range(0, k + 1, _PANEL)]
    squares, last, total = np.empty((count, k + 1)), np.ones((count, k + 1)), np.full(count, np.inf)
    for b in range(count):
        np.take(table, support[b], axis=0, out=gathered, mode="clip")
        rows[:k], rows[k] = gathered, wanted[b]
        for panel, below, across in panels:
            panel[...] = blas.dgemm(1.0, below, across, trans_a=1)
        squares[b] = diagonal
        if ridge:
            diagonal[:k] += ridge * squares[b, :k].mean()
        # ||y|| <= ||e||: with this corner z is a number also where e lies in the span of A.
        diagonal[k] = 2 * diagonal[k] or 1.0
        factor, failed = lapack.dpotrf(gram, lower=1, clean=1, overwrite_a=1)
        if not failed:
            inverse = lapack.dtrtri(factor, lower=1, overwrite_c=1)[0]
            last[b], total[b] = inverse[k], np.vdot(inverse.T, inverse.T)
    trace, squared = squares[:, :k].sum(axis=1), squares[:, k]
    weights = -last[:, :k] / last[:, k:]
    # ||L^-1||_F^2 is the trace of the inverse Gram matrix, hence the square of ||A^+||_F.
    with np.errstate(invalid="ignore"):  # rows of zeros only: not a number
        condition = np.sqrt((1 + ridge) * trace * (total - np.square(last).sum(axis=1)))
    missed = 1 / np.square(last[:, k]) - squared - ridge * trace / k * np.square(weights).sum(axis=1)
    residual = np.sqrt(np.maximum(missed, 0) / np.where(squared > 0, squared, np.inf))
    return weights, condition, residual


def _by_singular_values(
    support: np.ndarray, wanted: np.ndarray, ridge: float, cutoff: float
) -> tuple[np.ndarray, float, float]:
    work.svd(*support.shape)
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
