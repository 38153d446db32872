"""GPT-2 (Radford et al., 2019): pre-norm causal transformer with learned positions."""

import math
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn

from wechsel_jax.models.attention import attention_mask
from wechsel_jax.models.config import Fields, ModelConfig
from wechsel_jax.models.dropout import Dropout
from wechsel_jax.models.layers import Embedding, FeedForward, SelfAttention, keep_rows, layer_norm, stack
from wechsel_jax.models.weights import Weight, check_copies

PREFIX = "transformer."
# Causal masks that old versions saved as buffers, and heads of other tasks; a tied copy of the head is compared first.
IGNORED_TENSORS = r"\.attn\.(bias|masked_bias)$|^score\.|^classifier\.|^multiple_choice_head\.|^lm_head\.weight$"

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
        scale_attn_by_inverse_layer_idx=False, reorder_and_upcast_attn=False, add_cross_attention=False, pruned_heads={}
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
        tied=bool(fields["tie_word_embeddings"]),
        scale_attention=bool(fields["scale_attn_weights"]),
    )


class Block(nn.Module):
    """Attention and feed-forward, each on the normed stream and added to it."""

    config: ModelConfig
    dtype: Any
    deterministic: bool

    @nn.compact
    def __call__(self, x: jax.Array, visible: jax.Array | None) -> tuple[jax.Array, None]:
        """x (B, L, d), visible bool (B or 1, 1, L, L) -> (x (B, L, d), None)."""
        config = self.config
        dropout = Dropout(config.residual_dropout, deterministic=self.deterministic)
        # Both projections into the residual stream start smaller by 1/sqrt(their number).
        output_std = config.initializer_range / math.sqrt(2 * config.layers)
        attention = SelfAttention(config, self.dtype, self.deterministic, output_std, causal=True, name="attention")
        x = x + dropout(attention(layer_norm(config, self.dtype, "attention_norm")(x), visible))
        mlp = FeedForward(config, self.dtype, output_std, name="mlp")
        return keep_rows(x + dropout(mlp(layer_norm(config, self.dtype, "mlp_norm")(x)))), None


class GPT2(nn.Module):
    """The whole model; `hidden` and `logits` are its two halves."""

    config: ModelConfig
    dtype: Any
    deterministic: bool

    def setup(self):
        config = self.config
        table = (config.hidden_size, config.initializer_range, self.dtype)
        self.token_embedding = Embedding(config.vocabulary_size, *table)
        self.position_embedding = Embedding(config.max_length, *table)
        self.dropout = Dropout(config.embedding_dropout, deterministic=self.deterministic)
        self.layers = stack(Block, config, self.dtype, self.deterministic)
        self.final_norm = layer_norm(config, self.dtype)
        if not config.tied:
            self.head = Embedding(config.vocabulary_size, *table)

    def __call__(self, tokens: jax.Array, mask: jax.Array | None = None) -> jax.Array:
        return self.logits(self.hidden(tokens, mask))

    def hidden(self, tokens: jax.Array, mask: jax.Array | None) -> jax.Array:
        length = tokens.shape[1]
        x = self.dropout(self.token_embedding(tokens) + self.position_embedding(jnp.arange(length)))
        x, _ = self.layers(keep_rows(x), attention_mask(mask, length, causal=True))
        return self.final_norm(x)

    def logits(self, hidden: jax.Array) -> jax.Array:
        return (self.token_embedding if self.config.tied else self.head).attend(hidden)


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
        parts.append(Weight(f"layers/{ours}/kernel", (f"h.{{layer}}.{theirs}.weight",)))
        parts.append(Weight(f"layers/{ours}/bias", (f"h.{{layer}}.{theirs}.bias",)))
    norms = {"layers/attention_norm": "h.{layer}.ln_1", "layers/mlp_norm": "h.{layer}.ln_2", "final_norm": "ln_f"}
    for ours, theirs in norms.items():
        parts.append(Weight(f"{ours}/scale", (f"{theirs}.weight",)))
        parts.append(Weight(f"{ours}/bias", (f"{theirs}.bias",)))
    if not config.tied:
        parts.append(Weight("head/embedding", ("lm_head.weight",)))
    return tuple(parts)


def check_tensors(tensors: Mapping[str, np.ndarray], config: ModelConfig) -> None:
    """Raises `UserError` where the head should be tied but the checkpoint holds another one."""
    if config.tied:
        check_copies(tensors, {"lm_head.weight": "wte.weight"}, PREFIX)


def head_flops(config: ModelConfig) -> float:
    """FLOPs of the head for one token, forward."""
    return 2.0 * config.hidden_size * config.vocabulary_size
