"""The causal transformer of GPT-2, Llama, Mistral, Qwen2, Gemma 1 to 3 and XGLM; `ModelConfig` says what each of them does.

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

from wechsel_jax.models.attention import cap, real_keys
from wechsel_jax.models.cache import Cache
from wechsel_jax.models.config import ModelConfig
from wechsel_jax.models.dropout import Dropout
from wechsel_jax.models.layers import Attention, Embedding, FeedForward, keep_rows, norm, stack
from wechsel_jax.models.weights import TensorNames, Weight


class Block(nn.Module):
    """Attention and feed-forward, each on the normed stream and added to it."""

    config: ModelConfig
    dtype: Any
    deterministic: bool

    @nn.compact
    def __call__(
        self, carry: tuple[jax.Array, jax.Array, Cache | None], shared: Mapping[str, Any]
    ) -> tuple[tuple[jax.Array, jax.Array, Cache | None], None]:
        """((x (B, L, d), layer's number, cache), what `Decoder` prepares for all layers) -> ((x, next number, cache), None)."""
        config, dtype = self.config, self.dtype
        x, layer, cache = carry
        visible, angles = for_layer(shared, layer)
        dropout = Dropout(config.residual_dropout, deterministic=self.deterministic)

        def add(x: jax.Array, change: jax.Array, name: str) -> jax.Array:
            if config.post_norms:
                change = norm(config, dtype, f"{name}_post_norm")(change)
            return x + dropout(change)

        attention = Attention(config, dtype, self.deterministic, causal=True, name="attention")
        change, cache = attention(norm(config, dtype, "attention_norm")(x), visible, angles, layer, cache)
        x = add(x, change, "attention")
        mlp = FeedForward(config, dtype, self.deterministic, name="mlp")
        x = add(x, mlp(norm(config, dtype, "mlp_norm")(x)), "mlp")
        return (keep_rows(x), layer + 1, cache), None


def for_all_layers(
    config: ModelConfig, visible: jax.Array | None, position: jax.Array, key_position: jax.Array
) -> dict[str, Any]:
    """Prepares what layers look up. The positions' leading axis is B, or 1 where those of all rows are the same.

    Args:
      config: the model's configuration.
      visible: bool, broadcastable to (B, 1, L, S), the keys that are there for a query, windows apart; None: all.
      position: int32 (B, L), of the queries.
      key_position: int32 (B, S), of the keys.

    Returns:
      "visible" as given; "near" bool (B, 1, L, S), what a window leaves, or None where no window is as short as S; "windowed"
      bool (N,); "angles": cos and sin (1 or 2, B, L, c / 2), the second for layers with a window, or None.
    """
    windowed = config.windowed or (False,) * config.layers
    near = None
    if any(windowed) and config.window < key_position.shape[1]:
        near = (position[:, :, None] - key_position[:, None, :] < config.window)[:, None]
    angles = None
    if config.positions == "rotary":
        ropes = (config.rope,) if config.window_rope is None else (config.rope, config.window_rope)
        both = [rope.cos_sin(config.head_features, position) for rope in ropes]
        angles = tuple(jnp.stack(parts) for parts in zip(*both, strict=True))
    return {"visible": visible, "near": near, "windowed": jnp.asarray(windowed), "angles": angles}


def for_layer(shared: Mapping[str, Any], layer: jax.Array) -> tuple[jax.Array | None, tuple[jax.Array, jax.Array] | None]:
    """Looks up what the layer of this number sees, causality apart, and by which angles it rotates; see `for_all_layers`."""
    visible, angles, windowed = shared["visible"], shared["angles"], shared["windowed"][layer]
    if shared["near"] is not None:
        near = shared["near"] | ~windowed
        visible = near if visible is None else visible & near
    if angles is not None:
        kind = windowed.astype(jnp.int32) if angles[0].shape[0] == 2 else 0
        angles = tuple(part[kind] for part in angles)
    return visible, angles


def sinusoids(position: jax.Array, features: int, zero_position: int | None) -> jax.Array:
    """Positions as sines and cosines (Vaswani et al., 2017, section 3.5), as fairseq lays them out: counted from 2.

    Args:
      position: int32 (..., L), counted from 0.
      features: d; the first half are sines, the second cosines, an odd last one is zero.
      zero_position: the number (counted from 2) whose row is zero, where it is reached: XGLM's padding token.

    Returns:
      float32 (..., L, d).
    """
    half = features // 2
    number = position + 2
    frequencies = np.exp(np.arange(half, dtype=np.float32) * np.float32(-math.log(10000) / (half - 1)))
    angles = number.astype(jnp.float32)[..., None] * frequencies
    rows = jnp.concatenate([jnp.sin(angles), jnp.cos(angles), jnp.zeros((*number.shape, features % 2))], axis=-1)
    return rows if zero_position is None else jnp.where((number == zero_position)[..., None], 0.0, rows)


class Decoder(nn.Module):
    """The whole model; `hidden` and `logits` are its two halves, and `extend` is `hidden` with a memory."""

    config: ModelConfig
    dtype: Any
    deterministic: bool

    def setup(self):
        config = self.config
        table = (config.hidden_size, config.initializer_range, self.dtype)
        self.token_embedding = Embedding(config.vocabulary_size, *table, config.pad_token_id)
        if config.positions == "learned":
            self.position_embedding = Embedding(config.max_length, *table)
        self.dropout = Dropout(config.embedding_dropout, deterministic=self.deterministic)
        self.layers = stack(Block, config, self.dtype, self.deterministic)
        self.final_norm = norm(config, self.dtype)
        if not config.tied:
            self.head = Embedding(config.vocabulary_size, *table)

    def __call__(self, tokens: jax.Array, mask: jax.Array | None = None) -> jax.Array:
        return self.logits(self.hidden(tokens, mask))

    def hidden(self, tokens: jax.Array, mask: jax.Array | None) -> jax.Array:
        return self.extend(tokens, mask, None)[0]

    def extend(self, tokens: jax.Array, mask: jax.Array | None, cache: Cache | None) -> tuple[jax.Array, Cache | None]:
        config = self.config
        if cache is None:
            position = key_position = jnp.arange(tokens.shape[1])[None]
            visible = real_keys(mask)
        else:
            cache, position = cache.take_slots(mask)
            key_position = cache.position
            visible = ((key_position >= 0)[:, None, :] & (key_position[:, None, :] <= position[:, :, None]))[:, None]
        x = self.token_embedding(tokens) * config.embedding_scale
        if config.positions == "learned":
            x = x + self.position_embedding(position)
        elif config.positions == "sinusoidal":
            x = x + sinusoids(position, config.hidden_size, config.pad_token_id).astype(self.dtype)
        start = (keep_rows(self.dropout(x)), jnp.int32(0), cache)
        (x, _, cache), _ = self.layers(start, for_all_layers(config, visible, position, key_position))
        return self.final_norm(x), cache

    @staticmethod
    def head_flops(config: ModelConfig) -> float:
        """FLOPs of the head for one token, forward."""
        return 2.0 * config.hidden_size * config.vocabulary_size

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


TENSORS = TensorNames(
    prefix="model.",
    # Buffers that follow from the configuration and heads of other tasks.
    ignored=r"rotary_emb\.inv_freq$|^embed_positions\.weights$|^score\.|^classifier\.|^qa_outputs\.",
    tied=(("lm_head.weight", "embed_tokens.weight"),),
    weights=weights,
)
