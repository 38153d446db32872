"""GPT-2 (Radford et al., 2019): the decoder with learned positions, and one matrix for queries, keys and values."""

from collections.abc import Mapping
from typing import Any

from wechsel_jax.models.config import Fields, ModelConfig
from wechsel_jax.models.weights import TensorNames, Weight, linear

_ALIASES = {
    "hidden_size": "n_embd",
    "max_position_embeddings": "n_positions",
    "num_attention_heads": "n_head",
    "num_hidden_layers": "n_layer",
}
_DEFAULTS = {
    "n_positions": 1024,
    "n_embd": 768,
    "n_layer": 12,
    "n_head": 12,
    "n_inner": None,
    "activation_function": "gelu_new",
    "resid_pdrop": 0.1,
    "embd_pdrop": 0.1,
    "attn_pdrop": 0.1,
    "layer_norm_epsilon": 1e-5,
    "initializer_range": 0.02,
    "scale_attn_weights": True,
    "tie_word_embeddings": True,
}


def read_config(hf: Mapping[str, Any]) -> ModelConfig:
    """Reads `config.json` of a GPT-2; see `Family.config`."""
    fields = Fields(hf, _DEFAULTS, _ALIASES)
    fields.refuse(
        scale_attn_by_inverse_layer_idx=False,
        reorder_and_upcast_attn=False,
        add_cross_attention=False,
        pruned_heads={},
        quantization_config=None,
    )
    inner = fields["n_inner"]
    return ModelConfig(
        model_type="gpt2",
        vocabulary_size=fields.number("vocab_size"),
        hidden_size=fields.number("n_embd"),
        layers=fields.number("n_layer"),
        heads=fields.number("n_head"),
        inner_size=4 * fields.number("n_embd") if inner is None else fields.number("n_inner"),
        max_length=fields.number("n_positions"),
        activation=fields["activation_function"],
        norm_epsilon=fields.number("layer_norm_epsilon", float),
        embedding_dropout=fields.number("embd_pdrop", float),
        attention_dropout=fields.number("attn_pdrop", float),
        residual_dropout=fields.number("resid_pdrop", float),
        initializer_range=fields.number("initializer_range", float),
        scaled_outputs=True,
        tied=bool(fields["tie_word_embeddings"]),
        query_scale=None if fields["scale_attn_weights"] else 1.0,
        fused_qkv=True,
    )


def weights(config: ModelConfig) -> tuple[Weight, ...]:
    """The weight map. GPT-2's `Conv1D` keeps matrices as (in, out), as here."""
    parts = [
        Weight("token_embedding/embedding", ("wte.weight",)),
        Weight("position_embedding/embedding", ("wpe.weight",)),
        Weight("layers/attention/qkv/kernel", ("h.{layer}.attn.c_attn.weight",), "fused"),
        Weight("layers/attention/qkv/bias", ("h.{layer}.attn.c_attn.bias",), "fused"),
    ]
    matrices = {"attention/output": "attn.c_proj", "mlp/up": "mlp.c_fc", "mlp/down": "mlp.c_proj"}
    for ours, theirs in matrices.items():
        parts += linear(f"layers/{ours}", f"h.{{layer}}.{theirs}", "plain")
    norms = {"layers/attention_norm": "h.{layer}.ln_1", "layers/mlp_norm": "h.{layer}.ln_2", "final_norm": "ln_f"}
    for ours, theirs in norms.items():
        parts.append(Weight(f"{ours}/scale", (f"{theirs}.weight",)))
        parts.append(Weight(f"{ours}/bias", (f"{theirs}.bias",)))
    if not config.tied:
        parts.append(Weight("head/embedding", ("lm_head.weight",)))
    return tuple(parts)


TENSORS = TensorNames(
    prefix="transformer.",
    # Causal masks that old versions saved as buffers, and heads of other tasks.
    ignored=r"\.attn\.(bias|masked_bias)$|^score\.|^classifier\.|^multiple_choice_head\.",
    tied=(("lm_head.weight", "wte.weight"),),
    weights=weights,
)
