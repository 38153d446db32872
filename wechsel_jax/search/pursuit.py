"""Orthogonal matching pursuit: greedily, the few atoms of a dictionary that together come closest to a row."""

import functools
from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from wechsel_jax.records import work

# Rows that one device pursues at a time. Fixed: a product of another shape may round differently and turn a close choice.
_ROWS = 256
# A residual or a new direction that is shorter, relative to what it came from, is float32's rounding.
_NOISE = 1e-5


def unit_rows(matrix: np.ndarray) -> np.ndarray:
    """Rows of length one, float32; rows of zeros stay zero."""
    length = np.sqrt(np.square(matrix, dtype=np.float64).sum(axis=1, keepdims=True))
    return np.divide(matrix, length, out=np.zeros(matrix.shape), where=length > 0).astype(np.float32)


def pursue(
    dictionary: np.ndarray,
    wanted: np.ndarray,
    atoms: int,
    *,
    devices: Sequence[jax.Device] | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> np.ndarray:
    """Chooses atoms greedily; of two that fit equally well, the one with the lower id.

    The choice is made in float32: two atoms whose fit differs by less than about 1e-6 of the residual may trade places. It is
    the same for every number of devices. A device holds the dictionary and, for 256 rows at a time, products (256, R) and the
    directions chosen so far (256, K, h).

    Args:
      dictionary: (R, h), the atoms as they are compared.
      wanted: (T, h).
      atoms: how many to choose at most.
      devices: the rows are split over these; this process's devices where None.
      progress: called with (rows done, T).

    Returns:
      int32 (T, K), atoms in the order of their choice, -1 where no more were needed; K = min(atoms, R, h).
    """
    devices = tuple(devices) if devices is not None else tuple(jax.local_devices())
    mesh = Mesh(np.asarray(devices), ("targets",))
    split = NamedSharding(mesh, PartitionSpec("targets"))
    limit = min(atoms, *dictionary.shape)
    search = _pursuit(mesh, limit)
    atoms_RxH = jax.device_put(np.asarray(dictionary, np.float32), NamedSharding(mesh, PartitionSpec()))
    # Lengths of one: float32's range then suffices for helpers of any scale.
    directions = unit_rows(wanted)
    # Of each step: the fit of all atoms, and the new direction made orthogonal to the chosen ones, twice.
    work.product(limit, len(wanted), len(dictionary) + 4 * limit, dictionary.shape[1])
    step = _ROWS * len(devices)
    found = np.empty((len(wanted), limit), np.int32)
    for begin in range(0, len(wanted), step):
        block = directions[begin : begin + step]
        padded = np.pad(block, ((0, step - len(block)), (0, 0)))
        found[begin : begin + step] = np.asarray(search(jax.device_put(padded, split), atoms_RxH))[: len(block)]
        if progress is not None:
            progress(begin + len(block), len(wanted))
    return found


@functools.lru_cache(maxsize=16)
def _pursuit(mesh: Mesh, limit: int) -> Callable:
    """Returns the jitted pursuit of unit rows (T, h) over atoms (R, h), split over the mesh by rows: ids int32 (T, limit)."""
    product = functools.partial(jnp.einsum, precision=jax.lax.Precision.HIGHEST)

    def pursue_block(wanted_TxH: jax.Array, atoms_RxH: jax.Array) -> jax.Array:
        rows, width = wanted_TxH.shape
        count = atoms_RxH.shape[0]

        def choose(step, state):
            residual_TxH, basis_TxKxH, chosen_TxK = state
            fit_TxR = jnp.abs(product("th,rh->tr", residual_TxH, atoms_RxH))
            # Unfilled places hold `count`, which lies outside and is dropped.
            fit_TxR = fit_TxR.at[jnp.arange(rows)[:, None], chosen_TxK].set(-1.0, mode="drop")
            best_T = jnp.argmax(fit_TxR, axis=1).astype(jnp.int32)
            atom_TxH = atoms_RxH[best_T]
            length_T = jnp.linalg.norm(atom_TxH, axis=1)
            direction_TxH = atom_TxH / jnp.maximum(length_T, jnp.finfo(jnp.float32).tiny)[:, None]
            # Twice, since once leaves float32's rounding of a large component in a small remainder.
            for _ in range(2):
                along_TxK = product("tkh,th->tk", basis_TxKxH, direction_TxH)
                direction_TxH -= product("tk,tkh->th", along_TxK, basis_TxKxH)
            rest_T = jnp.linalg.norm(direction_TxH, axis=1)
            useful_T = (rest_T > _NOISE) & (jnp.linalg.norm(residual_TxH, axis=1) > _NOISE)
            direction_TxH = jnp.where(useful_T[:, None], direction_TxH / jnp.maximum(rest_T, _NOISE)[:, None], 0.0)
            share_T = jnp.sum(residual_TxH * direction_TxH, axis=1)
            residual_TxH = jnp.where(useful_T[:, None], residual_TxH - share_T[:, None] * direction_TxH, 0.0)
            chosen_TxK = chosen_TxK.at[:, step].set(jnp.where(useful_T, best_T, count))
            return residual_TxH, basis_TxKxH.at[:, step].set(direction_TxH), chosen_TxK

        basis_TxKxH = jnp.zeros((rows, limit, width), jnp.float32)
        chosen_TxK = jnp.full((rows, limit), count, jnp.int32)
        _, _, chosen_TxK = jax.lax.fori_loop(0, limit, choose, (wanted_TxH, basis_TxKxH, chosen_TxK))
        return jnp.where(chosen_TxK < count, chosen_TxK, -1)

    split, replicated = PartitionSpec("targets"), PartitionSpec()
    specs = {"in_specs": (split, replicated), "out_specs": split}
    return jax.jit(jax.shard_map(pursue_block, mesh=mesh, check_vma=False, **specs))
