"""Weight maps between Hugging Face tensors and parameters, exact in both directions."""

import dataclasses
import re
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any

import jax.numpy as jnp
import numpy as np

from wechsel_jax.errors import UserError
from wechsel_jax.models.config import ModelConfig

LAYER = "{layer}"
# Kind of a weight and rank -> axes of inputs, axes of outputs. Vectors have none.
_MATRIX_AXES = {
    ("plain", 2): ((0,), (1,)),
    ("linear", 2): ((0,), (1,)),
    ("fused", 3): ((0,), (2,)),
    ("split", 3): ((0,), (2,)),
    ("below", 3): ((0,), (2,)),
    ("to_heads", 3): ((0,), (1, 2)),
    ("split_to_heads", 4): ((0,), (2, 3)),
    ("from_heads", 3): ((0, 1), (2,)),
}
# Heads stand beside the model whose names begin with the family's prefix.
_HEADS = ("lm_head.", "cls.", "classifier.", "score.", "qa_outputs.")


@dataclasses.dataclass(frozen=True)
class Weight:
    """One parameter and the tensor (or tensors) that hold it in a Hugging Face checkpoint.

    H heads have c features each; n tensors are stored apart.

    Attributes:
      path: "/"-joined parameter path. Parameters of a layer have a leading axis of N layers.
      names: tensor names without the family's prefix; `{layer}` stands for the layer's number.
      kind: "plain": the same array. "linear": (out, in) in the checkpoint, (in, out) here.
        "fused": queries, keys and values side by side in the last axis. "split": n tensors (out, in) or n biases (out,),
        stacked here as (in, n, out) or (n, out). "below": the same n matrices below each other in one tensor (n out, in).
        "to_heads": (H c, in) or a bias (H c,) in the checkpoint, (in, H, c) or (H, c) here; "split_to_heads": n of
        those, stacked here as (in, n, H, c) or (n, H, c). "from_heads": (out, H c) in the checkpoint, (H, c, out) here.
      copies: names of further copies: read where the first name is missing, written always.
      old: a name that old checkpoints have instead of the first: read where that is missing, never written.
    """

    path: str
    names: tuple[str, ...]
    kind: str = "plain"
    copies: tuple[str, ...] = ()
    old: str = ""

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
        if self.kind in ("below", "to_heads"):
            return (shape[-2] * shape[-1], *shape[:-2])
        if self.kind == "split_to_heads":
            return (shape[-2] * shape[-1], *shape[:-3])
        if self.kind == "from_heads":
            return (shape[-1], shape[0] * shape[1])
        return shape

    def matrix_axes(self, rank: int) -> tuple[tuple[int, ...], tuple[int, ...]] | None:
        """Which axes of a parameter are inputs and outputs of the matrices that it holds, where it holds any.

        Args:
          rank: of the parameter, an axis of layers included. The axes that are neither number the matrices.
        """
        found = _MATRIX_AXES.get((self.kind, rank - self.layered))
        return found and tuple(tuple(axis + self.layered for axis in side) for side in found)

    def combine(self, tensors: list[np.ndarray], shape: tuple[int, ...]) -> np.ndarray:
        """Tensors of the checkpoint -> the parameter (of one layer)."""
        if self.kind == "split":
            return np.stack([tensor.T for tensor in tensors], axis=-2)
        if self.kind == "split_to_heads":
            return np.stack([tensor.T for tensor in tensors], axis=-2).reshape(shape)
        return (tensors[0] if self.kind in ("plain", "fused") else tensors[0].T).reshape(shape)

    def separate(self, value: np.ndarray) -> list[np.ndarray]:
        """The parameter (of one layer) -> tensors of the checkpoint."""
        if self.kind == "split":
            return [value[..., i, :].T for i in range(value.shape[-2])]
        if self.kind == "split_to_heads":
            flat = value.reshape(*value.shape[:-2], -1)
            return [flat[..., i, :].T for i in range(flat.shape[-2])]
        stored = self.stored_shape(value.shape)
        return [value.reshape(stored) if self.kind in ("plain", "fused") else value.reshape(stored[::-1]).T]


def linear(ours: str, theirs: str, kind: str = "linear", *, biased: bool = True) -> list[Weight]:
    """The kernel, of a kind of `Weight`, and the bias of a linear layer, by its path and its name in the checkpoint."""
    kernel, bias = Weight(f"{ours}/kernel", (f"{theirs}.weight",), kind), Weight(f"{ours}/bias", (f"{theirs}.bias",))
    return [kernel, bias] if biased else [kernel]


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


@dataclasses.dataclass(frozen=True)
class TensorNames:
    """How a Hugging Face checkpoint of a family names and stores its tensors.

    Attributes:
      prefix: of the names, e.g. "transformer."; checkpoints of the bare model have none.
      ignored: regex of names (without the prefix) that hold no parameter of the language model.
      tied: (name of a copy, name of the tensor that it must equal) of a tied head, both without the prefix.
      weights: ModelConfig -> the weight map.
      other_prefixes: of names that are read, too, but never written.
    """

    prefix: str
    ignored: str
    tied: tuple[tuple[str, str], ...]
    weights: Callable[[ModelConfig], tuple[Weight, ...]]
    other_prefixes: tuple[str, ...] = ()

    def read(
        self, tensors: Mapping[str, np.ndarray], config: ModelConfig, shapes: Mapping[str, tuple[int, ...]], lazy: bool = False
    ) -> dict[str, Any]:
        """Builds parameters from a checkpoint's tensors.

        Args:
          tensors: name -> array of any float type, names with or without the prefix.
          config: the model's configuration.
          shapes: "/"-joined path -> expected shape, a leading axis of N for layers included.
          lazy: return functions in place of arrays, so that a large model need never be in memory as a whole.

        Returns:
          A nested dictionary of float32 numpy arrays, or of functions that each build one.

        Raises:
          UserError: a tensor is missing, has another shape, or belongs to no parameter, or a tied head has two values.
            Functions raise the first two when called.
        """
        if config.tied:
            self._check_tied(tensors)
        present = self.present(tensors)
        used, flat = {copy for copy, _ in self.tied}, {}

        def stored_names(weight: Weight, layer: int) -> list[str]:
            names = [name.replace(LAYER, str(layer)) for name in weight.names]
            if weight.copies and names[0] not in present:
                names = [next((copy for copy in weight.copies if copy in present), names[0])]
            if weight.old and names[0] not in present and (old := weight.old.replace(LAYER, str(layer))) in present:
                names = [old]
            return names

        def take(weight: Weight, shape: tuple[int, ...], layer: int) -> np.ndarray:
            stored = weight.stored_shape(shape)
            return weight.combine([self._tensor(tensors, present, name, stored) for name in stored_names(weight, layer)], shape)

        def build(weight: Weight) -> np.ndarray:
            shape = shapes[weight.path]
            if not weight.layered:
                return np.ascontiguousarray(take(weight, shape, 0), dtype=np.float32)
            value = np.empty(shape, np.float32)
            for layer in range(shape[0]):
                value[layer] = take(weight, shape[1:], layer)
            return value

        for weight in self.weights(config):
            for layer in range(shapes[weight.path][0] if weight.layered else 1):
                used.update(stored_names(weight, layer), weight.copies)
            flat[weight.path] = partial(build, weight) if lazy else build(weight)
        for name in present:
            if name not in used and not re.search(self.ignored, name):
                raise UserError(
                    f"{present[name]}: this tensor belongs to no parameter of the model that config.json describes; "
                    "expected a checkpoint of that architecture; check model_type and the number of layers"
                )
        return unflatten(flat)

    def present(self, tensors: Iterable[str]) -> dict[str, str]:
        """Returns name without prefix -> name, of a checkpoint's tensors."""
        found = {}
        for name in tensors:
            prefix = next((prefix for prefix in (self.prefix, *self.other_prefixes) if name.startswith(prefix)), "")
            found[name.removeprefix(prefix)] = name
        return found

    def write(self, params: Mapping[str, Any], config: ModelConfig, under: str = "") -> dict[str, np.ndarray]:
        """Turns parameters into a checkpoint's tensors, float32 and contiguous: the inverse of `read`.

        With `under`, only parameters whose path begins so are needed and written.
        """
        flat = flatten(params)
        tensors = {}
        for weight in (weight for weight in self.weights(config) if weight.path.startswith(under)):
            value = np.asarray(flat[weight.path], np.float32)
            for layer, part in enumerate(value if weight.layered else [value]):
                for name, tensor in zip(weight.names, weight.separate(part), strict=True):
                    name = name.replace(LAYER, str(layer))
                    tensors[self._full(name)] = np.ascontiguousarray(tensor)
                tensors |= {copy: part.copy() for copy in weight.copies}
        return tensors

    def _full(self, name: str) -> str:
        return name if name.startswith(_HEADS) else self.prefix + name

    def _tensor(
        self, tensors: Mapping[str, np.ndarray], present: Mapping[str, str], name: str, shape: tuple[int, ...]
    ) -> np.ndarray:
        if name not in present:
            raise UserError(f"{self._full(name)}: the checkpoint has no tensor of this name; expected one of shape {shape}")
        tensor = np.asarray(tensors[present[name]])
        if tensor.shape != shape:
            raise UserError(
                f"{present[name]}: the tensor has shape {tensor.shape}; expected {shape}; "
                "config.json and the weights must agree"
            )
        if not jnp.issubdtype(tensor.dtype, jnp.floating):
            raise UserError(
                f"{present[name]}: the tensor holds {tensor.dtype}, as quantized weights do; expected floats; use the weights "
                "that were quantized"
            )
        return tensor.astype(np.float32)

    def _check_tied(self, tensors: Mapping[str, np.ndarray]) -> None:
        """Raises `UserError` where a tied head has two different values in a checkpoint."""
        for copy, original in self.tied:
            value = tensors.get(copy)
            expected = tensors.get(self._full(original), tensors.get(original))
            if value is not None and expected is not None and not np.array_equal(value, expected):
                raise UserError(
                    f"{copy}: differs from {self._full(original)}, but config.json ties them; "
                    "expected equal tensors; set tie_word_embeddings to false to keep both"
                )
