"""The leading singular vectors of a large sparse matrix."""

import numpy as np
from scipy.sparse import csr_array

from wechsel_jax.search.threads import one_thread

_OVERSAMPLING, _ITERATIONS = 16, 2


@one_thread()
def decompose(rows: csr_array, rank: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Truncated singular value decomposition by subspace iteration (Halko, Martinsson and Tropp, 2011, algorithm 4.4).

    The matrix stays sparse: some percent of the contexts are not zero.

    Args:
      rows: float32 (n, c).
      rank: m, at most as many as there are rows or columns.
      seed: of the random start.

    Returns:
      The right singular vectors (c, m) and singular values (m,), descending, float32.
    """
    rank = min(rank, *rows.shape)
    width = min(rank + _OVERSAMPLING, *rows.shape)
    columns = rows.T.tocsr()
    basis = _orthonormal(np.random.default_rng(seed).standard_normal((rows.shape[1], width), np.float32))
    for _ in range(_ITERATIONS):
        basis = _orthonormal(columns @ (rows @ basis))
    values, turns = np.linalg.eigh(_gram(rows @ basis))
    order = np.argsort(-values, kind="stable")[:rank]
    axes = basis.astype(np.float64) @ turns[:, order]
    # The sign of an axis is arbitrary; its largest entry is made positive.
    axes *= np.sign(axes[np.abs(axes).argmax(axis=0), np.arange(rank)])
    return axes.astype(np.float32), np.sqrt(np.maximum(values[order], 0)).astype(np.float32)


def _gram(tall: np.ndarray) -> np.ndarray:
    tall = tall.astype(np.float64)
    return tall.T @ tall


def _orthonormal(tall: np.ndarray) -> np.ndarray:
    """Orthonormal float32 columns of the same span, by the Gram matrix; directions of almost no length are almost zero."""
    values, turns = np.linalg.eigh(_gram(tall))
    return tall @ (turns / np.sqrt(np.maximum(values, max(1e-10 * values[-1], 1e-30)))).astype(np.float32)
