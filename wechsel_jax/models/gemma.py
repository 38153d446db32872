"""`config.json` of Gemma 1 to 3 (Gemma Team, 2024 and 2025): Llama's decoder with scaled embeddings and zero-centred norms."""

import math
from collections.abc import Mapping
from typing import Any

from wechsel_jax.errors import UserError
from wechsel_jax.models.config import Fields, ModelConfig
from wechsel_jax.models.llama import layer_windows, one_rope, shared_fields
from wechsel_jax.models.rotary import read_rope

_DEFAULTS = {
    "head_dim": 256,
    "initializer_range": 0.02,
    "rms_norm_eps": 1e-6,
    "attention_dropout": 0.0,
    "attention_bias": False,
    "pad_token_id": 0,
    "tie_word_embeddings": True,
    "rope_theta": 10_000.0,
}
_GEMMA = {
    "hidden_size": 3072,
    "intermediate_size": 24576,
    "num_hidden_layers": 28,
    "num_attention_heads": 16,
    "num_key_value_heads": 16,
    "hidden_act": "gelu_pytorch_tanh",
    "max_position_embeddings": 8192,
}
_GEMMA2 = {
    "hidden_size": 2304,
    "intermediate_size": 9216,
    "num_hidden_layers": 26,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "hidden_activation": "gelu_pytorch_tanh",
    "max_position_embeddings": 8192,
    "query_pre_attn_scalar": 256,
    "sliding_window": 4096,
    "layer_types": None,
    "final_logit_softcapping": 30.0,
    "attn_logit_softcapping": 50.0,
}
_GEMMA3 = {
    "max_position_embeddings": 131_072,
    "final_logit_softcapping": None,
    "attn_logit_softcapping": None,
    "sliding_window_pattern": 6,
    "rope_theta": 1_000_000.0,
    "rope_local_base_freq": 10_000.0,
}


def read_gemma(hf: Mapping[str, Any]) -> ModelConfig:
    """Reads `config.json` of a first Gemma; see `Family.config`."""
    fields = Fields(hf, _DEFAULTS | _GEMMA)
    fields.refuse(hidden_activation="gelu_pytorch_tanh", sliding_window=None, layer_types=None)
    shared = _gemma_fields(fields, "gemma", "hidden_act")
    # The first release wrote "gelu" and meant the approximation that it was trained with.
    activation = "gelu_pytorch_tanh" if shared["activation"] == "gelu" else shared["activation"]
    return ModelConfig(**(shared | {"activation": activation}), rope=one_rope(fields))


def read_gemma2(hf: Mapping[str, Any]) -> ModelConfig:
    """Reads `config.json` of a Gemma 2: soft caps, norms after sublayers, a window in every other layer."""
    fields = Fields(hf, _DEFAULTS | _GEMMA2)
    return ModelConfig(
        **_gemma_fields(fields, "gemma2", "hidden_activation"),
        **_later_fields(fields, pattern=2),
        rope=one_rope(fields),
        score_cap=fields.optional("attn_logit_softcapping", float),
    )


def read_gemma3(hf: Mapping[str, Any]) -> ModelConfig:
    """Reads `config.json` of a Gemma 3's text model: norms of queries and keys, five layers with a window to one without."""
    fields = Fields(hf, _DEFAULTS | _GEMMA2 | _GEMMA3)
    # transformers reads this cap and does not apply it.
    fields.refuse(attn_logit_softcapping=None)
    everywhere, near = _two_ropes(fields)
    return ModelConfig(
        **_gemma_fields(fields, "gemma3_text", "hidden_activation"),
        **_later_fields(fields, pattern=fields.number("sliding_window_pattern")),
        rope=everywhere,
        window_rope=None if near == everywhere else near,
        query_key_norms=True,
    )


def _gemma_fields(fields: Fields, model_type: str, activation: str) -> dict[str, Any]:
    shared, bias = shared_fields(fields, model_type, activation), fields.flag("attention_bias")
    own = {"norm_offset": 1.0, "embedding_scale": math.sqrt(max(shared["hidden_size"], 0))}
    return shared | own | {"qkv_bias": bias, "output_bias": bias, "mlp_bias": False}


def _later_fields(fields: Fields, pattern: int) -> dict[str, Any]:
    """What Gemma 2 and 3 share: every layer but each `pattern`th has a window."""
    if pattern < 1:
        raise UserError(f"config.json: sliding_window_pattern is {pattern}; expected at least 1")
    fields.refuse(hidden_act=fields["hidden_activation"])
    scalar = fields.number("query_pre_attn_scalar", float)
    if not scalar > 0:
        raise UserError(f"config.json: query_pre_attn_scalar is {scalar}; expected a number above 0")
    default = [(layer + 1) % pattern != 0 for layer in range(fields.number("num_hidden_layers"))]
    return {
        "post_norms": True,
        "query_scale": scalar**-0.5,
        "logit_cap": fields.optional("final_logit_softcapping", float),
        "window": fields.optional("sliding_window"),
        "windowed": layer_windows(fields, default),
    }


def _two_ropes(fields: Fields) -> tuple[Any, Any]:
    """The rotary positions of layers without a window and with one."""
    stated = {"full_attention": {}, "sliding_attention": {}}
    new = fields.get("rope_parameters")
    if new is not None:
        if not isinstance(new, Mapping) or not all(value is None or isinstance(value, Mapping) for value in new.values()):
            raise UserError("config.json: rope_parameters must hold full_attention and sliding_attention; expected two sets")
        unknown = [name for name in new if name not in stated]
        if unknown:
            raise UserError(f"config.json: rope_parameters holds {unknown[0]!r}; expected {' and '.join(stated)}")
        stated |= {name: dict(value or {}) for name, value in new.items()}
    scaling = fields.get("rope_scaling") or {}
    if not isinstance(scaling, Mapping):
        raise UserError(f"config.json: rope_scaling is {scaling!r}; expected an object")
    stated["full_attention"] |= scaling
    length = fields.number("max_position_embeddings")
    bases = {"full_attention": "rope_theta", "sliding_attention": "rope_local_base_freq"}
    return tuple(read_rope(stated[kind], fields.number(base, float), length) for kind, base in bases.items())
