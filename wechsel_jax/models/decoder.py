"""The causal transformer of Llama, Mistral, Qwen2, Gemma 1 to 3 and XGLM; `ModelConfig` says what each of them does.

Layers run in one loop, so what differs between layers (a sliding window, other rotary frequencies) is looked up by the layer's
number inside it.
"""

import math
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn

from wechsel_jax.models.attention import attention, attention_mask, cap
from wechsel_jax.models.config import ModelConfig
from wechsel_jax.models.dropout import Dropout
from wechsel_jax.models.layers import (
    ACTIVATION_FUNCTIONS,
    Embedding,
    keep_rows,
    layer_norm,
    normal,
    stack,
)
from wechsel_jax.models.rotary import rotate
from wechsel_jax.models.weights import Weight, check_copies

PREFIX = "model."
# Buffers that follow from the configuration and heads of other tasks; a tied copy of the head is compared first.
IGNORED_TENSORS = r"rotary_emb\.inv_freq$|^embed_positions\.weights$|^score\.|^classifier\.|^qa_outputs\.|^lm_head\.weight$"


class RMSNorm(nn.Module):
    """Division by the root mean square (Zhang and Sennrich, 2019), in float32."""

    epsilon: float
    offset: float
    dtype: Any

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        """x (..., features) -> (..., features)."""
        scale = self.param("scale", nn.initializers.constant(1.0 - self.offset), (x.shape[-1],))
        x = x.astype(jnp.float32)
        x = x * jax.lax.rsqrt(jnp.mean(jnp.square(x), axis=-1, keepdims=True) + self.epsilon)
        return (x * (self.offset + scale)).astype(self.dtype)


def norm(config: ModelConfig, dtype: Any, name: str | None = None) -> nn.Module:
    """Returns the family's kind of norm."""
    if config.rms_norm:
        return RMSNorm(config.norm_epsilon, config.norm_offset, dtype, name=name)
    return layer_norm(config, dtype, name)


class GroupedAttention(nn.Module):
    """Causal self-attention in which groups of query heads share keys and values (Ainslie et al., 2023)."""

    config: ModelConfig
    dtype: Any
    deterministic: bool

    @nn.compact
    def __call__(self, x: jax.Array, visible: jax.Array, angles: tuple[jax.Array, jax.Array] | None) -> jax.Array:
        """x (B, L, d), visible bool (B or 1, 1, L, L), angles: cos and sin (L, c / 2) -> (B, L, d)."""
        config, size = self.config, self.config.head_features
        groups = config.key_value_heads or config.heads
        settings = {"dtype": self.dtype, "kernel_init": normal(config.initializer_range)}
        query = nn.DenseGeneral((config.heads, size), use_bias=config.qkv_bias, name="query", **settings)(x)
        both = nn.DenseGeneral((2, groups, size), use_bias=config.qkv_bias, name="key_value", **settings)(x)
        key, value = both[:, :, 0], both[:, :, 1]
        if config.query_key_norms:
            query, key = norm(config, self.dtype, "query_norm")(query), norm(config, self.dtype, "key_norm")(key)
        if angles is not None:
            query, key = rotate(query, *angles), rotate(key, *angles)
        scale = 1.0 / math.sqrt(size) if config.query_scale is None else config.query_scale
        dropout = Dropout(config.attention_dropout, deterministic=self.deterministic)
        mixed = attention(
            query, key, value, visible, causal=True, scale=scale, dropout=dropout, limit=config.score_cap
        )  # fmt: skip
        output = nn.DenseGeneral(config.hidden_size, axis=(-2, -1), use_bias=config.output_bias, name="output", **settings)
        return output(mixed)


class GatedFeedForward(nn.Module):
    """Feed-forward layer, with a gate (Shazeer, 2020) where the configuration says so."""

    config: ModelConfig
    dtype: Any
    deterministic: bool

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        """x (B, L, d) -> (B, L, d)."""
        config = self.config
        settings = {
            "dtype": self.dtype,
            "use_bias": config.mlp_bias,
            "kernel_init": normal(config.initializer_range),
        }
        activation = ACTIVATION_FUNCTIONS[config.activation]
        up = nn.Dense(config.inner_size, name="up", **settings)(x)
        inner = activation(nn.Dense(config.inner_size, name="gate", **settings)(x)) * up if config.gated else activation(up)
        inner = Dropout(config.inner_dropout, deterministic=self.deterministic)(inner)
        return nn.Dense(config.hidden_size, name="down", **settings)(inner)


class Block(nn.Module):
    """Attention and feed-forward, each on the normed stream and added to it."""

    config: ModelConfig
    dtype: Any
    deterministic: bool

    @nn.compact
    def __call__(self, carry: tuple[jax.Array, jax.Array], shared: Mapping[str, Any]) -> tuple[tuple, None]:
        """((x (B, L, d), layer's number), what `Decoder` prepares for all layers) -> ((x, next number), None)."""
        config, dtype = self.config, self.dtype
        x, layer = carry
        visible, angles = for_layer(shared, layer, x.shape[0])
        dropout = Dropout(config.residual_dropout, deterministic=self.deterministic)

        def add(x: jax.Array, sublayer: nn.Module, name: str, *args: Any) -> jax.Array:
            change = sublayer(norm(config, dtype, f"{name}_norm")(x), *args)
            if config.post_norms:
                change = norm(config, dtype, f"{name}_post_norm")(change)
            return x + dropout(change)

        x = add(x, GroupedAttention(config, dtype, self.deterministic, name="attention"), "attention", visible, angles)
        x = add(x, GatedFeedForward(config, dtype, self.deterministic, name="mlp"), "mlp")
        return (keep_rows(x), layer + 1), None


def for_all_layers(config: ModelConfig, mask: jax.Array | None, length: int) -> dict[str, Any]:
    """Prepares what layers look up.

    Args:
      config: the model's configuration.
      mask: bool (B, L), true for real tokens; None where all are.
      length: L.

    Returns:
      "visible" bool (B or 1, 1, L, L) of layers without a window; "near" bool (L, L), what a window leaves, or None where no
      window is as short as L; "windowed" bool (N,); "angles": cos and sin (1 or 2, L, c / 2), the second for layers with a
      window, or None.
    """
    windowed = config.windowed or (False,) * config.layers
    near = None
    if any(windowed) and config.window < length:
        position = jnp.arange(length)
        near = position[:, None] - position < config.window
    angles = None
    if config.positions == "rotary":
        ropes = (config.rope,) if config.window_rope is None else (config.rope, config.window_rope)
        both = [rope.cos_sin(config.head_features, length) for rope in ropes]
        angles = tuple(jnp.stack(parts) for parts in zip(*both, strict=True))
    return {
        "visible": attention_mask(mask, length, causal=True),
        "near": near,
        "windowed": jnp.asarray(windowed),
        "angles": angles,
    }


def for_layer(shared: Mapping[str, Any], layer: jax.Array, rows: int) -> tuple[jax.Array, tuple[jax.Array, jax.Array] | None]:
    """Looks up what the layer of this number sees in each of B rows, and by which angles it rotates; see `for_all_layers`."""
    visible, angles, windowed = shared["visible"], shared["angles"], shared["windowed"][layer]
    if shared["near"] is not None:
        visible = visible & (shared["near"] | ~windowed)
        # One mask for all rows would pass for the causal one in `flash_attention`.
        visible = jnp.broadcast_to(visible, (rows, *visible.shape[1:]))
    if angles is not None:
        kind = windowed.astype(jnp.int32) if angles[0].shape[0] == 2 else 0
        angles = tuple(part[kind] for part in angles)
    return visible, angles


def sinusoids(length: int, features: int, zero_position: int | None) -> jax.Array:
    """Positions as sines and cosines (Vaswani et al., 2017, section 3.5), as fairseq lays them out: counted from 2.

    Args:
      length: L.
      features: d; the first half are sines, the second cosines, an odd last one is zero.
      zero_position: the number (counted from 2) whose row is zero, where it is reached: XGLM's padding token.

    Returns:
      float32 (L, d).
    """
    half = features // 2
    number = jnp.arange(2, length + 2)
    frequencies = np.exp(np.arange(half, dtype=np.float32) * np.float32(-math.log(10000) / (half - 1)))
    angles = number.astype(jnp.float32)[:, None] * frequencies
    rows = jnp.concatenate([jnp.sin(angles), jnp.cos(angles), jnp.zeros((length, features % 2))], axis=1)
    return rows if zero_position is None else jnp.where((number == zero_position)[:, None], 0.0, rows)


class Decoder(nn.Module):
    """The whole model; `hidden` and `logits` are its two halves."""

    config: ModelConfig
    dtype: Any
    deterministic: bool

    def setup(self):
        config = self.config
        table = (config.hidden_size, config.initializer_range, self.dtype)
        self.token_embedding = Embedding(config.vocabulary_size, *table, config.pad_token_id)
        self.dropout = Dropout(config.embedding_dropout, deterministic=self.deterministic)
        self.layers = stack(Block, config, self.dtype, self.deterministic)
        self.final_norm = norm(config, self.dtype)
        if not config.tied:
            self.head = Embedding(config.vocabulary_size, *table)

    def __call__(self, tokens: jax.Array, mask: jax.Array | None = None) -> jax.Array:
        return self.logits(self.hidden(tokens, mask))

    def hidden(self, tokens: jax.Array, mask: jax.Array | None) -> jax.Array:
        config, length = self.config, tokens.shape[1]
        x = self.token_embedding(tokens) * config.embedding_scale
        if config.positions == "sinusoidal":
            x = x + sinusoids(length, config.hidden_size, config.pad_token_id).astype(self.dtype)
        start = (keep_rows(self.dropout(x)), jnp.int32(0))
        (x, _), _ = self.layers(start, for_all_layers(config, mask, length))
        return self.final_norm(x)

    def logits(self, hidden: jax.Array) -> jax.Array:
        scores = (self.token_embedding if self.config.tied else self.head).attend(hidden)
        return cap(scores, self.config.logit_cap)


def weights(config: ModelConfig) -> tuple[Weight, ...]:
    """The weight map in the names of Llama, which Mistral, Qwen2 and Gemma share."""
    layer = "layers.{layer}."
    norms = {"attention_norm": "input_layernorm"}
    if config.post_norms:
        norms |= {"attention_post_norm": "post_attention_layernorm"}
        norms |= {"mlp_norm": "pre_feedforward_layernorm", "mlp_post_norm": "post_feedforward_layernorm"}
    else:
        norms |= {"mlp_norm": "post_attention_layernorm"}
    if config.query_key_norms:
        norms |= {"attention/query_norm": "self_attn.q_norm", "attention/key_norm": "self_attn.k_norm"}
    names = {f"layers/{ours}": layer + theirs for ours, theirs in norms.items()} | {"final_norm": "norm"}
    attention = {"q": "q_proj", "k": "k_proj", "v": "v_proj", "o": "o_proj"}
    mlp = {"up": "mlp.up_proj", "down": "mlp.down_proj"} | ({"gate": "mlp.gate_proj"} if config.gated else {})
    return named_weights(
        config,
        norms=names,
        attention={ours: f"{layer}self_attn.{theirs}" for ours, theirs in attention.items()},
        mlp={ours: layer + theirs for ours, theirs in mlp.items()},
    )


def named_weights(
    config: ModelConfig, *, norms: Mapping[str, str], attention: Mapping[str, str], mlp: Mapping[str, str]
) -> tuple[Weight, ...]:
    """Returns the weight map of a decoder.

    Args:
      config: the model's configuration.
      norms: path of a norm -> its name in the checkpoint, without ".weight".
      attention: "q", "k", "v" and "o" -> name of the projection.
      mlp: "up", "down" and, where gated, "gate" -> name of the matrix.
    """
    parts = [Weight("token_embedding/embedding", ("embed_tokens.weight",))]
    pairs = (attention["k"], attention["v"])
    for suffix, leaf in (("weight", "kernel"), ("bias", "bias")):
        if leaf == "kernel" or config.qkv_bias:
            parts.append(Weight(f"layers/attention/query/{leaf}", (f"{attention['q']}.{suffix}",), "to_heads"))
            names = tuple(f"{name}.{suffix}" for name in pairs)
            parts.append(Weight(f"layers/attention/key_value/{leaf}", names, "split_to_heads"))
        if leaf == "kernel" or config.output_bias:
            kind = "from_heads" if leaf == "kernel" else "plain"
            parts.append(Weight(f"layers/attention/output/{leaf}", (f"{attention['o']}.{suffix}",), kind))
        if leaf == "kernel" or config.mlp_bias:
            parts += [Weight(f"layers/mlp/{ours}/{leaf}", (f"{name}.{suffix}",), "linear") for ours, name in mlp.items()]
    for ours, theirs in norms.items():
        parts.append(Weight(f"{ours}/scale", (f"{theirs}.weight",)))
        if not config.rms_norm:
            parts.append(Weight(f"{ours}/bias", (f"{theirs}.bias",)))
    if not config.tied:
        parts.append(Weight("head/embedding", ("lm_head.weight",)))
    return tuple(parts)


def check_tensors(tensors: Mapping[str, np.ndarray], config: ModelConfig) -> None:
    """Raises `UserError` where the head should be tied but the checkpoint holds another one."""
    if config.tied:
        check_copies(tensors, {"lm_head.weight": "embed_tokens.weight"}, PREFIX)


def head_flops(config: ModelConfig) -> float:
    """FLOPs of the head for one token, forward."""
    return 2.0 * config.hidden_size * config.vocabulary_size
