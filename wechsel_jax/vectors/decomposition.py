"""The leading singular vectors of a large matrix."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from scipy.sparse import csr_array

_OVERSAMPLING, _ITERATIONS = 16, 2


def decompose(rows: csr_array, rank: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Truncated singular value decomposition by subspace iteration (Halko, Martinsson and Tropp, 2011, algorithm 4.4).

    Args:
      rows: float32 (n, c) sparse; it is made dense.
      rank: m, at most as many as there are rows or columns.
      seed: of the random start.

    Returns:
      The right singular vectors (c, m) and singular values (m,), descending, float32.
    """
    rank = min(rank, *rows.shape)
    width = min(rank + _OVERSAMPLING, *rows.shape)
    start = np.random.default_rng(seed).standard_normal((rows.shape[1], width), np.float32)
    basis, gram = _subspace(jnp.asarray(rows.toarray()), jnp.asarray(start))
    values, turns = np.linalg.eigh(np.asarray(gram, np.float64))
    order = np.argsort(-values, kind="stable")[:rank]
    axes = np.asarray(basis, np.float64) @ turns[:, order]
    # The sign of an axis is arbitrary; its largest entry is made positive.
    axes *= np.sign(axes[np.abs(axes).argmax(axis=0), np.arange(rank)])
    return axes.astype(np.float32), np.sqrt(np.maximum(values[order], 0)).astype(np.float32)


@jax.jit
def _subspace(rows_RxC: jax.Array, start_CxM: jax.Array) -> tuple[jax.Array, jax.Array]:
    """An orthonormal basis (C, M) of the leading right singular vectors, and the Gram matrix (M, M) of the rows on it."""
    product = functools.partial(jnp.matmul, precision=jax.lax.Precision.HIGHEST)

    def step(basis: jax.Array, _: None) -> tuple[jax.Array, None]:
        basis, _ = jnp.linalg.qr(product(rows_RxC.T, product(rows_RxC, basis)))
        return basis, None

    basis, _ = jax.lax.scan(step, jnp.linalg.qr(start_CxM)[0], None, length=_ITERATIONS)
    projected = product(rows_RxC, basis)
    return basis, product(projected.T, projected)
