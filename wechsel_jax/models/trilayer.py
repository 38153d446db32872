"""TreLM's models (Li et al., 2021): an encoder with language embeddings, and a TRILayer between its halves that may reorder.

What such a model computes, `encoder.Encoder` says. Here is how one begins (`begin`), how two of them become one (`combine`),
and how one becomes an ordinary encoder with a layer more (`fold`). Their `config.json` has the model types "tri-bert",
"tri-roberta" and "tri-xlm-roberta", so that no other software takes one for the ordinary model that it nearly is.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec

from wechsel_jax.errors import UserError
from wechsel_jax.models.config import Fields, ModelConfig
from wechsel_jax.models.family import Family, Params

PREFIX = "tri-"
# Fields of config.json that an ordinary encoder has not.
_FIELDS = {"language_count": 2, "tri_layer": True}


def tri_family(plain: Family) -> Family:
    """Returns the family of an encoder's models with languages and a TRILayer."""

    def read_config(hf: Mapping[str, Any]) -> ModelConfig:
        fields = Fields(hf, _FIELDS)
        stated = {"language_count": fields.number("language_count"), "tri_layer": fields.flag("tri_layer")}
        return dataclasses.replace(plain.read_config(hf), model_type=PREFIX + plain.name, **stated)

    rules = [
        (pattern.replace("^layers/", "^tri_layer/"), PartitionSpec(*spec[1:]))
        for pattern, spec in plain.sharding_rules
        if pattern.startswith("^layers/")
    ]
    return dataclasses.replace(
        plain,
        name=PREFIX + plain.name,
        architecture=f"Tri{plain.architecture}",
        read_config=read_config,
        sharding_rules=(*plain.sharding_rules, *rules),
    )


def begin(
    params: Params,
    hf_config: Mapping[str, Any],
    key: jax.Array,
    *,
    languages: int = 2,
    tri_layer: bool = True,
    parity: bool = False,
) -> tuple[Params, dict[str, Any]]:
    """Returns an ordinary encoder as the beginning of a TreLM model (section 3.2, "commonality training").

    Args:
      params: of the encoder, with N layers, numpy or JAX.
      hf_config: its `config.json`.
      key: draws the table of languages, whose rows have length 1 and stand at right angles.
      languages: how many there are; the last is the one that the model is brought to.
      tri_layer: whether to add a TRILayer: a copy of layer N / 2, counted from 1.
      parity: copy the layer after it, as the paper's code does.

    Returns:
      Parameters and `config.json` of the "tri-" family.
    """
    config = {**hf_config, "model_type": PREFIX + hf_config["model_type"], "language_count": languages, "tri_layer": tri_layer}
    stack, size = params["layers"], np.shape(params["position_embedding"]["embedding"])[1]
    new = dict(params)
    if languages:
        rows = jax.nn.initializers.orthogonal()(key, (languages, size), jnp.float32)
        new["language_embedding"] = {"embedding": np.asarray(rows)}
    if tri_layer:
        count = len(jax.tree.leaves(stack)[0])
        if count < 2:
            raise UserError(f"config.json: the model has {count} layer; expected at least 2, for a TRILayer between two halves")
        copied = count // 2 - (0 if parity else 1)
        new["tri_layer"] = jax.tree.map(lambda value: np.asarray(value[copied]), stack)
    return new, config | {"architectures": [f"Tri{name}" for name in hf_config.get("architectures", [])]}


def combine(forward: Params, backward: Params) -> Params:
    """Makes one model of the target language of two that translate (Algorithm 1, line 17).

    Args:
      forward: of the model from the source language to the target language, whose upper half has learned to write it.
      backward: of the model from the target language to the source language, whose lower half has learned to read it.

    Returns:
      The lower half of the layers of `backward`, the upper of `forward`, and the mean of everything else.
    """

    def halves(upper: np.ndarray, lower: np.ndarray) -> np.ndarray:
        middle = len(upper) // 2
        return np.concatenate([lower[:middle], upper[middle:]])

    mean = jax.tree.map(lambda one, other: (one + other) * np.float32(0.5), forward, backward)
    return mean | {"layers": jax.tree.map(halves, forward["layers"], backward["layers"])}


def fold(
    params: Params, config: ModelConfig, hf_config: Mapping[str, Any], language: int = -1
) -> tuple[Params, dict[str, Any]]:
    """Returns the ordinary encoder that is nearest to a TreLM model that reads one language in its own order.

    The TRILayer becomes layer N / 2 + 1 of N + 1. The language's row goes into all rows of the segments' table, and once more,
    for the sum before the TRILayer, into the bias of the norm before it; both are exact. The positions in that sum are not
    expressible: an ordinary layer reads the output of a norm, which lies on one ellipsoid for all positions, and what the
    TRILayer reads lies on one around each position's row. The mean over all positions goes into the same bias, which is the
    best that a bias can do; where their rows are all the same, the two models are equal. Training that follows the folding
    makes up for the difference, and is exported as it is.

    Args:
      params: of the model, numpy.
      config: of the model.
      hf_config: its `config.json`.
      language: whose text it shall read; by default the last.

    Returns:
      Parameters and `config.json` of the ordinary family.
    """
    new = {name: value for name, value in params.items() if name not in ("language_embedding", "tri_layer")}
    row = np.zeros(config.hidden_size, np.float32)
    if config.language_count:
        row = params["language_embedding"]["embedding"][language]
    new["type_embedding"] = {"embedding": params["type_embedding"]["embedding"] + row}
    plain = {name: value for name, value in hf_config.items() if name not in _FIELDS}
    plain["model_type"] = hf_config["model_type"].removeprefix(PREFIX)
    plain["architectures"] = [name.removeprefix("Tri") for name in hf_config.get("architectures", [])]
    if not config.tri_layer:
        return new, plain
    middle = config.layers // 2
    # RoBERTa's first rows are of no text.
    positions = params["position_embedding"]["embedding"][-config.max_length :]
    layers = jax.tree.map(lambda stack, one: np.insert(stack, middle, one, axis=0), params["layers"], params["tri_layer"])
    bias = layers["mlp_norm"]["bias"].copy()
    bias[middle - 1] += row + positions.mean(axis=0)
    new["layers"] = layers | {"mlp_norm": layers["mlp_norm"] | {"bias": bias}}
    return new, plain | {"num_hidden_layers": config.layers + 1}
