"""XGLM (Lin et al., 2022): a multilingual causal transformer with scaled embeddings and computed positions."""

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

from wechsel_jax.errors import UserError
from wechsel_jax.models.config import Fields, ModelConfig
from wechsel_jax.models.decoder import TENSORS as LLAMA_TENSORS
from wechsel_jax.models.decoder import named_weights
from wechsel_jax.models.weights import Weight

_ALIASES = {"hidden_size": "d_model", "num_attention_heads": "attention_heads", "num_hidden_layers": "num_layers"}
_DEFAULTS = {
    "max_position_embeddings": 2048,
    "d_model": 1024,
    "ffn_dim": 4096,
    "num_layers": 24,
    "attention_heads": 16,
    "activation_function": "gelu",
    "dropout": 0.1,
    "attention_dropout": 0.1,
    "activation_dropout": 0.0,
    "init_std": 0.02,
    "scale_embedding": True,
    "pad_token_id": 1,
    "tie_word_embeddings": True,
}


def read_config(hf: Mapping[str, Any]) -> ModelConfig:
    """Reads `config.json` of an XGLM; see `Family.config`."""
    fields = Fields(hf, _DEFAULTS, _ALIASES)
    fields.refuse(add_cross_attention=False, layerdrop=0.0, pruned_heads={}, quantization_config=None)
    hidden_size, vocabulary_size = fields.number("d_model"), fields.number("vocab_size")
    if hidden_size < 4:
        raise UserError(f"config.json: d_model is {hidden_size}; expected at least 4, which its positions need")
    dropout = fields.number("dropout", float)
    return ModelConfig(
        model_type="xglm",
        vocabulary_size=vocabulary_size,
        hidden_size=hidden_size,
        layers=fields.number("num_layers"),
        heads=fields.number("attention_heads"),
        inner_size=fields.number("ffn_dim"),
        max_length=fields.number("max_position_embeddings"),
        activation=fields["activation_function"],
        norm_epsilon=1e-5,
        embedding_dropout=dropout,
        attention_dropout=fields.number("attention_dropout", float),
        residual_dropout=dropout,
        initializer_range=fields.number("init_std", float),
        tied=fields.flag("tie_word_embeddings"),
        positions="sinusoidal",
        pad_token_id=fields.padding(vocabulary_size),
        embedding_scale=math.sqrt(hidden_size) if fields.flag("scale_embedding") else 1.0,
        inner_dropout=fields.number("activation_dropout", float),
    )


def weights(config: ModelConfig) -> tuple[Weight, ...]:
    """The weight map."""
    layer = "layers.{layer}."
    attention = {"q": "q_proj", "k": "k_proj", "v": "v_proj", "o": "out_proj"}
    return named_weights(
        config,
        norms={
            "layers/attention_norm": layer + "self_attn_layer_norm",
            "layers/mlp_norm": layer + "final_layer_norm",
            "final_norm": "layer_norm",
        },
        attention={ours: f"{layer}self_attn.{theirs}" for ours, theirs in attention.items()},
        mlp={"up": layer + "fc1", "down": layer + "fc2"},
    )


TENSORS = dataclasses.replace(LLAMA_TENSORS, weights=weights)
