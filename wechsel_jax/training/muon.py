"""Muon (Jordan et al., 2024): momentum whose matrices are made orthogonal, each on its own, shared out over the devices."""

import math
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jax.sharding import NamedSharding
from optax.contrib import MuonDimensionNumbers
from optax.contrib import scale_by_muon as newton_schulz

from wechsel_jax.training.groups import Axes

_MOMENTUM = 0.95
# An orthogonal matrix times this and the root of its larger side has elements about as large as Adam's updates, so that rates
# and weight decay of Adam suit (Liu et al., 2025, Muon is Scalable for LLM Training, section 2.2).
_SCALE = 0.2


def scale_by_muon(axes: Mapping[str, Axes], shardings: Mapping[str, NamedSharding]) -> optax.GradientTransformation:
    """Returns Muon's direction: Nesterov momentum, then five Newton-Schulz steps for every matrix, scaled as Adam's updates.

    Matrices that are stored as one array (layers; queries, keys and values) are orthogonalised apart. On a mesh, each device
    gets whole matrices, its share of them, and gives back their parts to where they live: none holds more than its share,
    rounded up to one matrix, and none computes what another does.

    Args:
      axes: "/"-joined path -> axes of the parameter that are inputs and outputs of its matrices; the other axes number them.
        Paths of what is updated may name a part of the layers, "path[first:end]".
      shardings: path -> where the parameter lives; empty on one device. The axes that number matrices are not split.
    """

    def direction(place: tuple, value: jax.Array) -> jax.Array:
        path = place[-1].key.partition("[")[0]
        inputs, outputs = axes[path]
        numbers = tuple(axis for axis in range(value.ndim) if axis not in (*inputs, *outputs))
        order = (*numbers, *inputs, *outputs)
        moved = value.transpose(order)
        stacked = moved.reshape(-1, *moved.shape[len(numbers) :])
        rows, columns = (math.prod(value.shape[axis] for axis in side) for side in (inputs, outputs))

        def orthogonal(part: jax.Array) -> jax.Array:
            return _orthogonal(part.reshape(-1, rows, columns)).reshape(part.shape)

        where = shardings.get(path)
        if where is None or where.mesh.size == 1:
            done = orthogonal(stacked)
        else:
            spec = tuple(where.spec) + (None,) * (value.ndim - len(where.spec))
            split = jax.sharding.PartitionSpec(None, *(spec[axis] for axis in (*inputs, *outputs)))
            shared = jax.shard_map(
                lambda part: _shared_out(part, orthogonal, split, where.mesh),
                mesh=where.mesh,
                in_specs=split,
                out_specs=split,
                check_vma=False,
            )
            done = shared(stacked)
        scale = _SCALE * math.sqrt(max(rows, columns))
        return scale * done.reshape(moved.shape).transpose(sorted(range(value.ndim), key=order.__getitem__))

    def directions(momentum: Any, params: Any = None) -> Any:
        del params
        return jax.tree_util.tree_map_with_path(direction, momentum)

    return optax.chain(optax.trace(_MOMENTUM, nesterov=True), optax.stateless(directions))


def orthogonal_flops(axes: Mapping[str, Axes], shapes: Mapping[str, tuple[int, ...]]) -> float:
    """FLOPs that Muon adds to a step, whatever its batch: 5 x (4 m^2 n + 2 m^3) for a matrix of sides m <= n.

    Args:
      axes: as of `scale_by_muon`.
      shapes: path -> shape of its parameters, among others.
    """
    total = 0.0
    for path, sides in axes.items():
        m, n = sorted(math.prod(shapes[path][axis] for axis in side) for side in sides)
        total += math.prod(shapes[path]) / (m * n) * 5 * (4 * m**2 * n + 2 * m**3)
    return total


def _orthogonal(matrices: jax.Array) -> jax.Array:
    """Newton-Schulz steps for matrices (n, rows, columns)."""
    # Without a momentum of its own: that one, unlike the authors' and torch's, corrects both terms of Nesterov's sum for the
    # zeros that they start from, each in its way, which makes other directions of them in the first steps.
    steps = newton_schulz(beta=0.0, nesterov=False, weight_dimension_numbers=MuonDimensionNumbers(1, 2))
    return steps.update(matrices, steps.init(matrices))[0]


def _shared_out(part: jax.Array, function: Any, split: jax.sharding.PartitionSpec, mesh: jax.sharding.Mesh) -> jax.Array:
    """Computes a function of whole matrices inside a shard_map, on each device of its share of them.

    Args:
      part: of matrices (n, ...), what this device holds of all of them.
      function: whole matrices (m, ...) -> the same shape.
      split: the axes of the mesh that split each axis of the matrices.
      mesh: of the run.
    """
    count = part.shape[0]
    # Matrices of zeros make the shares equal.
    part = jnp.pad(part, ((0, -count % mesh.size), *((0, 0),) * (part.ndim - 1)))
    holding = [(axis, name) for axis, name in enumerate(split) if name is not None]
    copied = [name for name, size in mesh.shape.items() if size > 1 and name not in split]
    for axis, name in holding:
        part = jax.lax.all_to_all(part, name, split_axis=0, concat_axis=axis, tiled=True)
    for name in copied:
        share = part.shape[0] // mesh.shape[name]
        part = jax.lax.dynamic_slice_in_dim(part, jax.lax.axis_index(name) * share, share)
    part = function(part)
    for name in reversed(copied):
        part = jax.lax.all_gather(part, name, tiled=True)
    for axis, name in reversed(holding):
        part = jax.lax.all_to_all(part, name, split_axis=axis, concat_axis=0, tiled=True)
    return part[:count]
