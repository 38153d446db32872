"""RoBERTa (Liu et al., 2019): post-norm bidirectional transformer with a masked-language-model head."""

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn

from wechsel_jax.errors import UserError
from wechsel_jax.models.config import Fields, ModelConfig
from wechsel_jax.models.layers import (
    Embedding,
    FeedForward,
    SelfAttention,
    attend,
    attention_mask,
    keep_rows,
    layer_norm,
    normal,
    pin,
    stack,
)
from wechsel_jax.models.weights import Weight

PREFIX = "roberta."
# Buffers, the pooler and heads of other tasks; `lm_head.decoder.*` repeats the table and the bias (compared first).
IGNORED_TENSORS = (
    r"embeddings\.(position_ids|token_type_ids)$|^pooler\.|^classifier\.|^qa_outputs\.|^lm_head\.(decoder\.|bias$)"
)

_DEFAULTS = {
    "hidden_size": 768,
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
    "intermediate_size": 3072,
    "hidden_act": "gelu",
    "hidden_dropout_prob": 0.1,
    "attention_probs_dropout_prob": 0.1,
    "max_position_embeddings": 512,
    "type_vocab_size": 2,
    "initializer_range": 0.02,
    "layer_norm_eps": 1e-12,
    "pad_token_id": 1,
    "tie_word_embeddings": True,
}


def read_config(hf: Mapping[str, Any]) -> ModelConfig:
    """Reads `config.json` of a RoBERTa; see `Family.config`.

    Positions start at pad_token_id + 1, so that many rows of the position table are never used by real tokens:
    514 rows with padding id 1 hold 512 tokens.
    """
    fields = Fields(hf, _DEFAULTS)
    fields.refuse(is_decoder=False, add_cross_attention=False, position_embedding_type="absolute", pruned_heads={})
    padding, types = fields.number("pad_token_id"), fields.number("type_vocab_size")
    if types < 1:
        raise UserError(f"config.json: type_vocab_size is {types}; expected at least 1 for a RoBERTa")
    vocabulary_size = fields.number("vocab_size")
    if not 0 <= padding < vocabulary_size:
        raise UserError(f"config.json: pad_token_id is {padding}; expected an id from 0 to {vocabulary_size - 1}")
    return ModelConfig(
        model_type="roberta",
        vocabulary_size=vocabulary_size,
        hidden_size=fields.number("hidden_size"),
        layers=fields.number("num_hidden_layers"),
        heads=fields.number("num_attention_heads"),
        inner_size=fields.number("intermediate_size"),
        max_length=fields.number("max_position_embeddings") - padding - 1,
        activation=fields["hidden_act"],
        norm_epsilon=fields.number("layer_norm_eps", float),
        embedding_dropout=fields.number("hidden_dropout_prob", float),
        attention_dropout=fields.number("attention_probs_dropout_prob", float),
        residual_dropout=fields.number("hidden_dropout_prob", float),
        initializer_range=fields.number("initializer_range", float),
        tied=bool(fields["tie_word_embeddings"]),
        pad_token_id=padding,
        type_vocabulary_size=types,
    )


class Block(nn.Module):
    """Attention and feed-forward, each added to the stream and normed after it."""

    config: ModelConfig
    dtype: Any
    deterministic: bool

    @nn.compact
    def __call__(self, x: jax.Array, visible: jax.Array | None) -> tuple[jax.Array, None]:
        """x (B, L, d), visible bool (B, 1, 1, L) or None -> (x (B, L, d), None)."""
        config = self.config
        dropout = nn.Dropout(config.residual_dropout, deterministic=self.deterministic)
        attention = SelfAttention(config, self.dtype, self.deterministic, config.initializer_range, name="attention")
        x = layer_norm(config, self.dtype, "attention_norm")(x + dropout(attention(x, visible)))
        mlp = FeedForward(config, self.dtype, config.initializer_range, name="mlp")
        return keep_rows(layer_norm(config, self.dtype, "mlp_norm")(x + dropout(mlp(x)))), None


class Head(nn.Module):
    """Dense layer, gelu and norm before the scores; owns the bias and, where untied, the table."""

    config: ModelConfig
    dtype: Any

    def setup(self):
        config = self.config
        self.dense = nn.Dense(config.hidden_size, dtype=self.dtype, kernel_init=normal(config.initializer_range))
        self.norm = layer_norm(config, self.dtype)
        self.bias = self.param("bias", nn.initializers.zeros, (config.vocabulary_size,))
        if not config.tied:
            shape = (config.vocabulary_size, config.hidden_size)
            self.embedding = self.param("embedding", normal(config.initializer_range), shape)

    def __call__(self, hidden: jax.Array, token_table: jax.Array) -> jax.Array:
        """hidden (..., d), token_table (V, d) -> (..., V) float32."""
        # The head's gelu is the exact one whatever `hidden_act` says.
        x = keep_rows(self.norm(jax.nn.gelu(self.dense(hidden), approximate=False)))
        table = token_table if self.config.tied else pin(self.embedding, ("tensor",))
        return attend(x, table, self.dtype) + self.bias


class Roberta(nn.Module):
    """The whole model; `hidden` and `logits` are its two halves."""

    config: ModelConfig
    dtype: Any
    deterministic: bool

    def setup(self):
        config = self.config
        std, padding = config.initializer_range, config.pad_token_id
        self.token_embedding = Embedding(config.vocabulary_size, config.hidden_size, std, self.dtype, padding)
        rows = config.max_length + padding + 1
        self.position_embedding = Embedding(rows, config.hidden_size, std, self.dtype, padding)
        self.type_embedding = Embedding(config.type_vocabulary_size, config.hidden_size, std, self.dtype)
        self.embedding_norm = layer_norm(config, self.dtype)
        self.dropout = nn.Dropout(config.embedding_dropout, deterministic=self.deterministic)
        self.layers = stack(Block, config, self.dtype, self.deterministic)
        self.head = Head(config, self.dtype)

    def __call__(self, tokens: jax.Array, mask: jax.Array | None = None) -> jax.Array:
        return self.logits(self.hidden(tokens, mask))

    def hidden(self, tokens: jax.Array, mask: jax.Array | None) -> jax.Array:
        real = (tokens != self.config.pad_token_id).astype(jnp.int32)
        positions = jnp.cumsum(real, axis=1) * real + self.config.pad_token_id
        x = self.token_embedding(tokens) + self.type_embedding(jnp.zeros_like(tokens[:1, :1]))
        x = self.dropout(self.embedding_norm(x + self.position_embedding(positions)))
        x, _ = self.layers(keep_rows(x), attention_mask(mask, tokens.shape[1], causal=False))
        return x

    def logits(self, hidden: jax.Array) -> jax.Array:
        return self.head(hidden, self.token_embedding.table())


def weights(config: ModelConfig) -> tuple[Weight, ...]:
    """The weight map. `nn.Linear` keeps matrices as (out, in); here they are (in, out)."""
    layer, heads = "encoder.layer.{layer}.", ("query", "key", "value")
    parts = [
        Weight("token_embedding/embedding", ("embeddings.word_embeddings.weight",)),
        Weight("position_embedding/embedding", ("embeddings.position_embeddings.weight",)),
        Weight("type_embedding/embedding", ("embeddings.token_type_embeddings.weight",)),
        Weight("layers/attention/qkv/kernel", tuple(f"{layer}attention.self.{name}.weight" for name in heads), "split"),
        Weight("layers/attention/qkv/bias", tuple(f"{layer}attention.self.{name}.bias" for name in heads), "split"),
    ]
    matrices = {
        "layers/attention/output": layer + "attention.output.dense",
        "layers/mlp/up": layer + "intermediate.dense",
        "layers/mlp/down": layer + "output.dense",
        "head/dense": "lm_head.dense",
    }
    for ours, theirs in matrices.items():
        parts.append(Weight(f"{ours}/kernel", (f"{theirs}.weight",), "linear"))
        parts.append(Weight(f"{ours}/bias", (f"{theirs}.bias",)))
    norms = {
        "embedding_norm": "embeddings.LayerNorm",
        "layers/attention_norm": layer + "attention.output.LayerNorm",
        "layers/mlp_norm": layer + "output.LayerNorm",
        "head/norm": "lm_head.layer_norm",
    }
    for ours, theirs in norms.items():
        parts.append(Weight(f"{ours}/scale", (f"{theirs}.weight",)))
        parts.append(Weight(f"{ours}/bias", (f"{theirs}.bias",)))
    if config.tied:
        return (*parts, Weight("head/bias", ("lm_head.bias",)))
    # transformers 5 scores an untied head with `decoder.bias`; `lm_head.bias` is then written too, for older readers.
    bias = Weight("head/bias", ("lm_head.decoder.bias",), copies=("lm_head.bias",))
    return (*parts, bias, Weight("head/embedding", ("lm_head.decoder.weight",)))


def check_tensors(tensors: Mapping[str, np.ndarray], config: ModelConfig) -> None:
    """Raises `UserError` where the head should be tied but the checkpoint holds another one."""
    if not config.tied:
        return
    name = "embeddings.word_embeddings.weight"
    table = tensors.get(PREFIX + name, tensors.get(name))
    pairs = {"lm_head.decoder.weight": table, "lm_head.decoder.bias": tensors.get("lm_head.bias")}
    for name, original in pairs.items():
        copy = tensors.get(name)
        if copy is not None and original is not None and not np.array_equal(copy, original):
            raise UserError(
                f"{name}: differs from the tensor that config.json ties it to; expected equal tensors; "
                "set tie_word_embeddings to false to keep both"
            )


def head_flops(config: ModelConfig) -> float:
    """FLOPs of the head for one token, forward."""
    return 2.0 * config.hidden_size * (config.hidden_size + config.vocabulary_size)
