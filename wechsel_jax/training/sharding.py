"""Where arrays live: a mesh of ("data", "fsdp", "tensor") and regex rules that cover every parameter."""

import math
import re
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any

import jax
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec
from ml_collections import ConfigDict

from wechsel_jax.errors import UserError
from wechsel_jax.models.weights import flatten, unflatten
from wechsel_jax.training.coordinates import ROWS
from wechsel_jax.training.distributed import is_first

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
    if used < len(devices) and jax.process_count() > 1:
        raise UserError(
            f"mesh: {described} uses {used} of {len(devices)} devices; expected all of them, as there are several processes; "
            "set one axis to -1"
        )
    if used > len(devices):
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
      tree: optimizer state (or its shapes); what belongs to a parameter stands under the parameter's path as dictionary key,
        and what has its rows, but columns of its own, under the path behind "rows/".
      params: nested NamedSharding of the parameters.
      mesh: of the run; everything else is replicated over it.
    """
    flat = flatten(params)

    def of(path: tuple, _: Any) -> NamedSharding:
        key = next((entry.key for entry in reversed(path) if isinstance(entry, jax.tree_util.DictKey)), "")
        if key.startswith(ROWS):
            return NamedSharding(mesh, PartitionSpec(*flat[key.removeprefix(ROWS)].spec[:1]))
        return flat.get(key, replicated(mesh))

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


def rows_of_process(mesh: Mesh, rows: int) -> np.ndarray:
    """Returns which rows of a batch the devices of this process hold, int64 (n,), ascending.

    Processes that share rows (an axis "tensor" that spans them) each get all of those; without one the rows of all processes
    are disjoint and make up the batch.

    Args:
      mesh: of the run.
      rows: of the batch of all processes, a multiple of `batch_devices(mesh)`.
    """
    held = np.zeros(rows, bool)
    for (part,) in batch_sharding(mesh).addressable_devices_indices_map((rows,)).values():
        held[part] = True
    return np.flatnonzero(held)


def put_local(tree: Any, where: NamedSharding, held: np.ndarray, rows: int) -> Any:
    """Places a batch of which every process has read its own rows only; no process talks to another.

    Args:
      tree: numpy arrays whose axis of rows, the one that `where` splits over data x fsdp, holds the rows `held`.
      where: `batch_sharding`.
      held: `rows_of_process`.
      rows: of the batch of all processes.
    """
    axis = where.spec.index(BATCH_AXES)

    def place(value: np.ndarray) -> jax.Array:
        shape = (*value.shape[:axis], rows, *value.shape[axis + 1 :])

        def part(index: tuple[slice, ...]) -> np.ndarray:
            start, stop, _ = index[axis].indices(rows)
            first = int(np.searchsorted(held, start))
            return value[(*index[:axis], slice(first, first + stop - start), *index[axis + 1 :])]

        return jax.make_array_from_callback(shape, where, part)

    return jax.device_put(tree, where) if jax.process_count() == 1 else jax.tree.map(place, tree)


def put(tree: Any, sharding: Any) -> Any:
    """Places host arrays, of which every process can make the whole, on the mesh; each copies what its devices hold.

    Args:
      tree: numpy arrays, or functions that return one: called one after the other, so that no more than one of the arrays
        is in host memory at a time.
      sharding: one sharding for all of them or a tree of shardings.
    """
    if isinstance(sharding, NamedSharding):
        sharding = jax.tree.map(lambda _: sharding, tree)

    def place(value: np.ndarray | Callable[[], np.ndarray], where: NamedSharding) -> jax.Array:
        lazy = callable(value)
        value = value() if lazy else value
        if jax.process_count() == 1:
            placed = jax.device_put(value, where)
        else:
            placed = jax.make_array_from_callback(np.shape(value), where, lambda index: np.asarray(value)[index])
        # The copy to the devices runs in the background and holds the array until it is done.
        return placed.block_until_ready() if lazy else placed

    return jax.tree.map(place, tree, sharding)


def to_host(params: Any, largest: int = 1 << 30) -> Any:
    """Copies parameters to the first process, one after the other; every process must call it.

    Args:
      params: tree of arrays on the mesh.
      largest: bytes that each device may hold beside its own part while a parameter is on its way; one with a leading axis that
        is not split (layers) travels in parts of at most that size, at least one layer each.

    Returns:
      A tree of numpy arrays in the first process, None in the others.
    """
    if jax.process_count() == 1:
        return jax.device_get(params)
    first = is_first()

    def fetch(value: jax.Array) -> np.ndarray | None:
        if value.is_fully_replicated:
            return np.asarray(value.addressable_data(0)) if first else None
        if value.sharding.shard_shape(value.shape)[0] < value.shape[0]:
            count = value.shape[0]
        else:
            count = max(1, min(value.shape[0], largest * value.shape[0] // value.nbytes))
        host = np.empty(value.shape, value.dtype) if first else None
        for start in range(0, value.shape[0], count):
            part = _gather(value.sharding.mesh, min(count, value.shape[0] - start))(value, start)
            if host is not None:
                host[start : start + count] = part.addressable_data(0)
            # Otherwise the devices could be asked for the next part while they still hold this one.
            part.block_until_ready().delete()
        return host

    fetched = jax.tree.map(fetch, params)
    return fetched if first else None


@lru_cache
def _gather(mesh: Mesh, count: int) -> Callable[[jax.Array, int], jax.Array]:
    """Returns the jitted (value, start) -> value[start : start + count], whole on every device."""

    def part(value: jax.Array, start: int) -> jax.Array:
        return jax.lax.dynamic_slice_in_dim(value, start, count)

    return jax.jit(part, out_shardings=replicated(mesh))
