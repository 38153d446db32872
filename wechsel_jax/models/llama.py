"""`config.json` of Llama (Touvron et al., 2023; SmolLM too), Mistral (Jiang et al., 2023) and Qwen2 (Yang et al., 2024)."""

from collections.abc import Mapping
from typing import Any

from wechsel_jax.errors import UserError
from wechsel_jax.models.config import Fields, ModelConfig
from wechsel_jax.models.rotary import Rope, read_rope

# What some checkpoints state and this decoder does not do: field -> the only value that may stand there.
UNSUPPORTED = {
    "attention_sink": None,
    "attention_sinks": None,
    "partial_rotary_factor": 1.0,
    "pretraining_tp": 1,
    "pruned_heads": {},
    "quantization_config": None,
    "rope_interleaved": False,
    "use_bidirectional_attention": False,
    "use_mrope": False,
    "use_qk_norm": False,
}
LAYER_TYPES = {"full_attention": False, "sliding_attention": True}
_DEFAULTS = {
    "hidden_size": 4096,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": None,
    "head_dim": None,
    "hidden_act": "silu",
    "initializer_range": 0.02,
    "rms_norm_eps": 1e-6,
    "attention_dropout": 0.0,
    "pad_token_id": None,
    "tie_word_embeddings": False,
    "rope_theta": 10_000.0,
}
_LLAMA = {"intermediate_size": 11008, "max_position_embeddings": 2048, "attention_bias": False, "mlp_bias": False}
_MISTRAL = {
    "intermediate_size": 14336,
    "num_key_value_heads": 8,
    "max_position_embeddings": 131_072,
    "sliding_window": 4096,
}
_QWEN2 = {
    "intermediate_size": 22016,
    "num_key_value_heads": 32,
    "max_position_embeddings": 32768,
    "use_sliding_window": False,
    "sliding_window": 4096,
    "max_window_layers": 28,
    "layer_types": None,
}


def read_llama(hf: Mapping[str, Any]) -> ModelConfig:
    """Reads `config.json` of a Llama; see `Family.config`."""
    fields = Fields(hf, _DEFAULTS | _LLAMA)
    fields.refuse(sliding_window=None, layer_types=None)
    bias = fields.flag("attention_bias")
    return ModelConfig(
        **shared_fields(fields, "llama"),
        rope=one_rope(fields),
        qkv_bias=bias,
        output_bias=bias,
        mlp_bias=fields.flag("mlp_bias"),
    )


def read_mistral(hf: Mapping[str, Any]) -> ModelConfig:
    """Reads `config.json` of a Mistral: a Llama whose layers all have the window, where there is one."""
    fields = Fields(hf, _DEFAULTS | _MISTRAL)
    fields.refuse(attention_bias=False, mlp_bias=False, layer_types=None)
    window, shared = fields.optional("sliding_window"), shared_fields(fields, "mistral")
    return ModelConfig(
        **shared,
        rope=one_rope(fields),
        qkv_bias=False,
        output_bias=False,
        mlp_bias=False,
        window=window,
        windowed=() if window is None else (True,) * shared["layers"],
    )


def read_qwen2(hf: Mapping[str, Any]) -> ModelConfig:
    """Reads `config.json` of a Qwen2: a Llama with biases on queries, keys and values, and windows in its last layers."""
    fields = Fields(hf, _DEFAULTS | _QWEN2)
    fields.refuse(attention_bias=True, mlp_bias=False)
    shared = shared_fields(fields, "qwen2")
    window = fields.optional("sliding_window") if fields.flag("use_sliding_window") else None
    first = shared["layers"] if window is None else fields.number("max_window_layers")
    windowed = layer_windows(fields, [layer >= first for layer in range(shared["layers"])])
    return ModelConfig(
        **shared,
        rope=one_rope(fields),
        qkv_bias=True,
        output_bias=False,
        mlp_bias=False,
        window=window,
        windowed=windowed if any(windowed) else (),
    )


def shared_fields(fields: Fields, model_type: str, activation: str = "hidden_act") -> dict[str, Any]:
    """Returns the arguments of ModelConfig that the whole Llama family reads alike.

    Args:
      fields: of `config.json`.
      model_type: the family's name.
      activation: the field that names the activation.

    Raises:
      UserError: a field asks for something that is not implemented.
    """
    fields.refuse(**UNSUPPORTED)
    hidden_size, heads, vocabulary_size = (fields.number(name) for name in ("hidden_size", "num_attention_heads", "vocab_size"))
    return {
        "model_type": model_type,
        "vocabulary_size": vocabulary_size,
        "hidden_size": hidden_size,
        "layers": fields.number("num_hidden_layers"),
        "heads": heads,
        "key_value_heads": fields.optional("num_key_value_heads") or heads,
        "head_size": fields.optional("head_dim") or hidden_size // max(heads, 1),
        "inner_size": fields.number("intermediate_size"),
        "max_length": fields.number("max_position_embeddings"),
        "activation": fields[activation],
        "norm_epsilon": fields.number("rms_norm_eps", float),
        "embedding_dropout": 0.0,
        "attention_dropout": fields.number("attention_dropout", float),
        "residual_dropout": 0.0,
        "initializer_range": fields.number("initializer_range", float),
        "tied": fields.flag("tie_word_embeddings"),
        "positions": "rotary",
        "pad_token_id": fields.padding(vocabulary_size),
        "gated": True,
        "rms_norm": True,
    }


def one_rope(fields: Fields) -> Rope:
    """Reads the rotary positions of a model whose layers all share them."""
    # transformers lets rope_scaling, the older name, win.
    stated = fields.get("rope_scaling") or fields.get("rope_parameters") or {}
    if not isinstance(stated, Mapping) or any(isinstance(value, Mapping) for value in stated.values()):
        raise UserError(
            "config.json: rope_parameters differ between layers; expected one set for all layers of this model type"
        )
    original = fields.get("original_max_position_embeddings")
    if original is not None and "llama3" in (stated.get("rope_type"), stated.get("type")):
        stated = {**stated, "original_max_position_embeddings": original}
    return read_rope(stated, fields.number("rope_theta", float), fields.number("max_position_embeddings"))


def layer_windows(fields: Fields, default: list[bool]) -> tuple[bool, ...]:
    """Returns whether each layer has a sliding window: as `layer_types` says, else `default`."""
    types = fields["layer_types"]
    if types is None:
        return tuple(default)
    if not isinstance(types, list | tuple) or not all(isinstance(kind, str) for kind in types):
        raise UserError(f"config.json: layer_types is {types!r}; expected a list of names: {', '.join(LAYER_TYPES)}")
    unknown = [kind for kind in types if kind not in LAYER_TYPES]
    if unknown:
        raise UserError(
            f"config.json: layer_types holds {unknown[0]!r}, which is not implemented; expected {', '.join(LAYER_TYPES)}"
        )
    return tuple(LAYER_TYPES[kind] for kind in types)
