"""The leading singular vectors of a large sparse matrix."""

import numpy as np
from scipy.sparse import csr_array

from wechsel_jax.records import work
from wechsel_jax.search.threads import one_thread

# With these, 1 to 3 of 128 axes are not yet those of the exact decomposition. Two rounds of subspace iteration, which take half
# the time, left 60, and another start made others.
_WIDTH, _STEPS = 32, 16


@one_thread()
def decompose(rows: csr_array, rank: int) -> tuple[np.ndarray, np.ndarray]:
    """Truncated singular value decomposition by block Lanczos iteration (Musco and Musco, 2015, algorithm 2).

    The singular values of contexts fall slowly, so few rounds of subspace iteration leave axes that depend on their random
    start. A Krylov space keeps the blocks of all rounds and is exact with far fewer products. The matrix stays sparse: some
    percent of the contexts are not zero.

    Args:
      rows: float32 (n, c).
      rank: m, at most as many as there are rows or columns.

    Returns:
      The right singular vectors (c, m) and singular values (m,), descending, float32. The start of the iteration is always the
      same, so they depend on nothing but the matrix.
    """
    rank = min(rank, *rows.shape)
    columns, size = rows.T.tocsr(), rows.shape[1]
    width = max(_WIDTH, rank // 4)
    if size <= 2 * width * (_STEPS + 1):
        work.product(np.square(np.diff(rows.indptr), dtype=np.float64).sum())
        basis, projected = np.eye(size, dtype=np.float32), (columns @ rows).toarray().astype(np.float64)
    else:
        basis, projected = _krylov(rows, columns, width)
    work.eigh(len(projected))
    work.product(size, len(projected), rank)
    values, turns = np.linalg.eigh(projected)
    order = np.argsort(-values, kind="stable")[:rank]
    axes = basis @ turns[:, order].astype(np.float32)
    # The sign of an axis is arbitrary; its largest entry is made positive.
    axes *= np.sign(axes[np.abs(axes).argmax(axis=0), np.arange(rank)])
    return axes, np.sqrt(np.maximum(values[order], 0)).astype(np.float32)


def _krylov(rows: csr_array, columns: csr_array, width: int) -> tuple[np.ndarray, np.ndarray]:
    """An orthonormal basis (c, r) of blocks, each the image under columns @ rows of the one before, and that product in it."""
    size = rows.shape[1]
    # By columns: the blocks so far are one array.
    basis = np.zeros((size, width * (_STEPS + 1)), np.float32, order="F")
    projected = np.zeros((basis.shape[1],) * 2)
    block = np.linalg.qr(np.random.default_rng(0).standard_normal((size, width), np.float32))[0]
    for end in range(width, basis.shape[1] + 1, width):
        here = slice(end - width, end)
        basis[:, here] = block
        found = basis[:, :end]
        work.product(2 * rows.nnz, width)
        work.product(4, size, end, width)
        work.qr(size, width)
        image = columns @ (rows @ np.ascontiguousarray(block))
        along = found.T @ image
        projected[:end, here], projected[here, :end] = along, along.T
        block = np.linalg.qr(image - found @ along)[0]
        # Once more: rounding leaves a little of what was large, and where nothing new was left, a direction that is not new.
        block -= found @ (found.T @ block)
    return basis, projected
