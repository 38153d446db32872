"""Weight maps between Hugging Face tensors and parameters, exact in both directions."""

import dataclasses
import re
from collections.abc import Mapping
from typing import Any

import numpy as np

from wechsel_jax.errors import UserError

LAYER = "{layer}"


@dataclasses.dataclass(frozen=True)
class Weight:
    """One parameter and the tensor (or three tensors) that hold it in a Hugging Face checkpoint.

    Attributes:
      path: "/"-joined parameter path. Parameters of a layer have a leading axis of N layers.
      names: tensor names without the family's prefix; `{layer}` stands for the layer's number.
      kind: "plain": the same array. "linear": (out, in) in the checkpoint, (in, out) here.
        "fused": queries, keys and values side by side in the last axis. "split": three tensors of kind "linear" or
        three biases, for queries, keys and values.
      copies: names of further copies: read where the first name is missing, written always.
    """

    path: str
    names: tuple[str, ...]
    kind: str = "plain"
    copies: tuple[str, ...] = ()

    @property
    def layered(self) -> bool:
        return LAYER in self.names[0]

    def stored_shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """The shape of each tensor in the checkpoint, from the parameter's shape (of one layer)."""
        if self.kind == "linear":
            return shape[::-1]
        if self.kind == "fused":
            return (*shape[:-2], shape[-2] * shape[-1])
        if self.kind == "split":
            return (shape[-1], *shape[:-2])
        return shape

    def combine(self, tensors: list[np.ndarray], shape: tuple[int, ...]) -> np.ndarray:
        """Tensors of the checkpoint -> the parameter (of one layer)."""
        if self.kind == "split":
            return np.stack([tensor.T for tensor in tensors], axis=-2)
        return tensors[0].T if self.kind == "linear" else tensors[0].reshape(shape)

    def separate(self, value: np.ndarray) -> list[np.ndarray]:
        """The parameter (of one layer) -> tensors of the checkpoint."""
        if self.kind == "split":
            return [value[..., i, :].T for i in range(3)]
        return [value.T if self.kind == "linear" else value.reshape(self.stored_shape(value.shape))]


def flatten(tree: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested dictionaries -> one dictionary with "/"-joined paths."""
    flat = {}
    for name, value in tree.items():
        flat |= flatten(value, f"{prefix}{name}/") if isinstance(value, Mapping) else {prefix + name: value}
    return flat


def unflatten(flat: Mapping[str, Any]) -> dict[str, Any]:
    """One dictionary with "/"-joined paths -> nested dictionaries."""
    tree: dict[str, Any] = {}
    for path, value in flat.items():
        *parents, leaf = path.split("/")
        node = tree
        for parent in parents:
            node = node.setdefault(parent, {})
        node[leaf] = value
    return tree


def read_weights(
    tensors: Mapping[str, np.ndarray],
    weights: tuple[Weight, ...],
    shapes: Mapping[str, tuple[int, ...]],
    prefix: str,
    ignored: str,
) -> dict[str, Any]:
    """Builds parameters from a checkpoint's tensors.

    Args:
      tensors: name -> array of any float type, names with or without `prefix`.
      weights: the family's map for this configuration.
      shapes: "/"-joined path -> expected shape, a leading axis of N for layers included.
      prefix: e.g. "transformer.".
      ignored: regex of names (without the prefix) that hold no parameter of the language model.

    Returns:
      A nested dictionary of float32 numpy arrays.

    Raises:
      UserError: a tensor is missing, has another shape, or belongs to no parameter.
    """
    present = {name.removeprefix(prefix): name for name in tensors}
    used, flat = set(), {}

    def take(weight: Weight, shape: tuple[int, ...], layer: int) -> np.ndarray:
        names = [name.replace(LAYER, str(layer)) for name in weight.names]
        if weight.copies and names[0] not in present:
            names = [next((copy for copy in weight.copies if copy in present), names[0])]
        used.update(names)
        return weight.combine([_tensor(tensors, present, prefix, name, weight.stored_shape(shape)) for name in names], shape)

    for weight in weights:
        shape = shapes[weight.path]
        if weight.layered:
            value = np.empty(shape, np.float32)
            for layer in range(shape[0]):
                value[layer] = take(weight, shape[1:], layer)
        else:
            value = np.ascontiguousarray(take(weight, shape, 0), dtype=np.float32)
        flat[weight.path] = value
    for name in present:
        if name not in used and not re.search(ignored, name):
            raise UserError(
                f"{present[name]}: this tensor belongs to no parameter of the model that config.json describes; "
                "expected a checkpoint of that architecture; check model_type and the number of layers"
            )
    return unflatten(flat)


def write_weights(params: Mapping[str, Any], weights: tuple[Weight, ...], prefix: str) -> dict[str, np.ndarray]:
    """Turns parameters into a checkpoint's tensors, float32 and contiguous: the inverse of `read_weights`."""
    flat = flatten(params)
    tensors = {}
    for weight in weights:
        value = np.asarray(flat[weight.path], np.float32)
        for layer, part in enumerate(value if weight.layered else [value]):
            for name, tensor in zip(weight.names, weight.separate(part), strict=True):
                name = name.replace(LAYER, str(layer))
                full = name if name.startswith("lm_head.") else prefix + name
                tensors[full] = np.ascontiguousarray(tensor)
            tensors |= {copy: part.copy() for copy in weight.copies}
    return tensors


def _tensor(
    tensors: Mapping[str, np.ndarray], present: Mapping[str, str], prefix: str, name: str, shape: tuple[int, ...]
) -> np.ndarray:
    full = name if name.startswith("lm_head.") else prefix + name
    if name not in present:
        raise UserError(f"{full}: the checkpoint has no tensor of this name; expected one of shape {shape}")
    tensor = np.asarray(tensors[present[name]])
    if tensor.shape != shape:
        raise UserError(
            f"{present[name]}: the tensor has shape {tensor.shape}; expected {shape}; config.json and the weights must agree"
        )
    return tensor.astype(np.float32)
