"""Where arrays live: a mesh of ("data", "fsdp", "tensor") and regex rules that cover every parameter."""

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec
from ml_collections import ConfigDict

from wechsel_jax.errors import UserError
from wechsel_jax.models.weights import flatten, unflatten

AXES = ("data", "fsdp", "tensor")
BATCH_AXES = ("data", "fsdp")
Rules = Sequence[tuple[str, PartitionSpec]]


def make_mesh(sizes: ConfigDict | Mapping[str, int]) -> Mesh:
    """Returns the mesh of the run.

    Args:
      sizes: devices along data, fsdp and tensor; -1 takes what the others leave. Without a -1, fewer devices than there are
        may be used in a single process.

    Raises:
      UserError: the devices cannot be laid out like this.
    """
    shape, devices = [sizes[axis] for axis in AXES], jax.devices()
    described = ", ".join(f"{axis}={size}" for axis, size in zip(AXES, shape, strict=True))
    fixed = math.prod(size for size in shape if size != -1)
    if -1 in shape:
        if len(devices) % fixed:
            raise UserError(f"mesh: {described} does not divide {len(devices)} devices; expected axes whose product does")
        shape = [len(devices) // fixed if size == -1 else size for size in shape]
    used = math.prod(shape)
    if used > len(devices) or (used < len(devices) and jax.process_count() > 1):
        raise UserError(f"mesh: {described} needs {used} devices and there are {len(devices)}; expected at most as many")
    return jax.make_mesh(tuple(shape), AXES, axis_types=(AxisType.Auto,) * len(AXES), devices=devices[:used])


def parameter_shardings(mesh: Mesh, rules: Rules, shapes: Mapping[str, tuple[int, ...]]) -> tuple[dict[str, Any], list[str]]:
    """Applies the rules to every parameter.

    Args:
      mesh: of the run.
      rules: (regex, PartitionSpec); the first whose regex is found in a path decides.
      shapes: "/"-joined path -> shape.

    Returns:
      A nested dictionary of NamedSharding, and one sentence for every dimension that stays whole on each device because the
      mesh axis of its rule does not divide it.

    Raises:
      UserError: no rule matches a parameter.
    """
    flat, notes = {}, []
    for path, shape in shapes.items():
        spec = next((spec for pattern, spec in rules if re.search(pattern, path)), None)
        if spec is None:
            raise UserError(f"{path}: no sharding rule matches this parameter; expected one of the family's rules to")
        axes = []
        for dimension, axis in zip(shape, tuple(spec) + (None,) * (len(shape) - len(spec)), strict=True):
            size = mesh.shape[axis] if axis else 1
            if dimension % size:
                notes.append(
                    f"{path}: {size} devices of mesh axis {axis} do not divide its dimension {dimension}: not split there"
                )
            axes.append(axis if size > 1 and dimension % size == 0 else None)
        flat[path] = NamedSharding(mesh, PartitionSpec(*axes))
    return unflatten(flat), notes


def matching_shardings(tree: Any, params: Mapping[str, Any], mesh: Mesh) -> Any:
    """Gives optimizer state the shardings of the parameters it belongs to.

    Args:
      tree: optimizer state (or its shapes); what belongs to a parameter stands under the parameter's path as dictionary key.
      params: nested NamedSharding of the parameters.
      mesh: of the run; everything else is replicated over it.
    """
    flat = flatten(params)

    def of(path: tuple, _: Any) -> NamedSharding:
        keys = [entry.key for entry in path if isinstance(entry, jax.tree_util.DictKey)]
        return flat[keys[-1]] if keys and keys[-1] in flat else replicated(mesh)

    return jax.tree_util.tree_map_with_path(of, tree)


def replicated(mesh: Mesh) -> NamedSharding:
    """The sharding of what every device holds whole."""
    return NamedSharding(mesh, PartitionSpec())


def batch_sharding(mesh: Mesh, accumulated: bool = False) -> NamedSharding:
    """Rows over data x fsdp; with `accumulated`, an axis of microbatches that is not split stands before them."""
    return NamedSharding(mesh, PartitionSpec(None, BATCH_AXES) if accumulated else PartitionSpec(BATCH_AXES))


def batch_devices(mesh: Mesh) -> int:
    """How many parts the rows of a batch are split into."""
    return math.prod(mesh.shape[axis] for axis in BATCH_AXES)


def put(tree: Any, sharding: Any) -> Any:
    """Places host arrays, of which every process holds the whole, on the mesh.

    Args:
      tree: numpy arrays.
      sharding: one sharding for all of them or a tree of shardings.
    """
    if isinstance(sharding, NamedSharding):
        sharding = jax.tree.map(lambda _: sharding, tree)

    def place(value: np.ndarray, where: NamedSharding) -> jax.Array:
        if jax.process_count() == 1:
            return jax.device_put(value, where)
        return jax.make_array_from_callback(np.shape(value), where, lambda index: np.asarray(value)[index])

    return jax.tree.map(place, tree, sharding)
