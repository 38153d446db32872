"""Token tables padded for the device: a multiple of 128 rows suits matrix units, a multiple of mesh.tensor can be split.

Rows behind the vocabulary hold zeros. The objective gives them probability 0 (see `make_objective`, vocabulary_size), so their
gradients are exactly 0 and they stay zeros; exported tables are without them.
"""

import re
from collections.abc import Callable, Mapping
from typing import Any

import jax.numpy as jnp
import numpy as np

from wechsel_jax.models import Family, ModelConfig
from wechsel_jax.models.weights import flatten, unflatten


def padded(config: ModelConfig, multiple: int) -> ModelConfig:
    """Returns the configuration of a model whose tables have the next multiple of rows."""
    return config.override(vocabulary_size=-(-config.vocabulary_size // multiple) * multiple)


def pad(params: Mapping[str, Any], family: Family, config: ModelConfig, multiple: int) -> tuple[dict[str, Any], ModelConfig]:
    """Pads everything that has a vocabulary axis (tables, untied head, bias of the head) with zeros.

    Args:
      params: nested arrays, numpy or JAX (inside `jax.jit` too), or functions that return one.
      family: of the model.
      config: of the model without padding.
      multiple: what the number of rows shall be a multiple of; 1 pads nothing.

    Returns:
      The padded parameters and the configuration that fits them.
    """
    wide = padded(config, multiple)
    behind = wide.vocabulary_size - config.vocabulary_size

    def extend(value: Any) -> Any:
        if callable(value):
            return lambda: extend(value())
        module = np if isinstance(value, np.ndarray) else jnp
        return module.pad(value, ((0, behind),) + ((0, 0),) * (value.ndim - 1))

    return _mapped(params, family, extend if behind else None), wide


def strip(params: Mapping[str, Any], family: Family, config: ModelConfig) -> dict[str, Any]:
    """Undoes `pad`.

    Args:
      params: nested arrays, numpy or JAX.
      family: of the model.
      config: of the model without padding.
    """
    return _mapped(params, family, lambda value: value[: config.vocabulary_size])


def _mapped(params: Mapping[str, Any], family: Family, change: Callable[[Any], Any] | None) -> dict[str, Any]:
    flat = flatten(params)
    if change is None:
        return unflatten(flat)
    # The first axis of every token parameter is the vocabulary.
    return unflatten({path: change(x) if re.search(family.token_parameters, path) else x for path, x in flat.items()})
