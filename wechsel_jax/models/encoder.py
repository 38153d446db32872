"""The bidirectional post-norm transformer of BERT, RoBERTa and XLM-R, with a masked-language-model head."""

from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn

from wechsel_jax.errors import UserError
from wechsel_jax.models.config import Fields, ModelConfig
from wechsel_jax.models.dropout import Dropout
from wechsel_jax.models.layers import (
    ACTIVATION_FUNCTIONS,
    Attention,
    Embedding,
    FeedForward,
    attend,
    keep_rows,
    layer_norm,
    normal,
    pin,
    stack,
)
from wechsel_jax.models.weights import Weight

DEFAULTS = {
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
    "tie_word_embeddings": True,
}


def shared_fields(fields: Fields, model_type: str) -> dict[str, Any]:
    """Returns the arguments of ModelConfig that BERT, RoBERTa and XLM-R read alike.

    Raises:
      UserError: a field asks for something that is not implemented.
    """
    fields.refuse(
        is_decoder=False,
        add_cross_attention=False,
        position_embedding_type="absolute",
        pruned_heads={},
        quantization_config=None,
    )
    types = fields.number("type_vocab_size")
    if types < 1:
        raise UserError(f"config.json: type_vocab_size is {types}; expected at least 1 for a {model_type}")
    dropout = fields.number("hidden_dropout_prob", float)
    return {
        "model_type": model_type,
        "vocabulary_size": fields.number("vocab_size"),
        "hidden_size": fields.number("hidden_size"),
        "layers": fields.number("num_hidden_layers"),
        "heads": fields.number("num_attention_heads"),
        "inner_size": fields.number("intermediate_size"),
        "activation": fields["hidden_act"],
        "norm_epsilon": fields.number("layer_norm_eps", float),
        "embedding_dropout": dropout,
        "attention_dropout": fields.number("attention_probs_dropout_prob", float),
        "residual_dropout": dropout,
        "initializer_range": fields.number("initializer_range", float),
        "tied": bool(fields["tie_word_embeddings"]),
        "type_vocabulary_size": types,
        "fused_qkv": True,
    }


class Block(nn.Module):
    """Attention and feed-forward, each added to the stream and normed after it."""

    config: ModelConfig
    dtype: Any
    deterministic: bool

    @nn.compact
    def __call__(self, x: jax.Array, visible: jax.Array | None) -> tuple[jax.Array, None]:
        """x (B, L, d), visible bool (B, 1, 1, L) or None -> (x (B, L, d), None)."""
        config = self.config
        dropout = Dropout(config.residual_dropout, deterministic=self.deterministic)
        attention = Attention(config, self.dtype, self.deterministic, causal=False, name="attention")
        x = layer_norm(config, self.dtype, "attention_norm")(x + dropout(attention(x, visible)[0]))
        mlp = FeedForward(config, self.dtype, self.deterministic, name="mlp")
        return keep_rows(layer_norm(config, self.dtype, "mlp_norm")(x + dropout(mlp(x)))), None


class Head(nn.Module):
    """Dense layer, activation and norm before the scores; owns the bias and, where untied, the table."""

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
        x = keep_rows(self.norm(ACTIVATION_FUNCTIONS[self.config.head_activation](self.dense(hidden))))
        table = token_table if self.config.tied else pin(self.embedding, ("tensor",))
        return attend(x, table, self.dtype) + self.bias


class Encoder(nn.Module):
    """The whole model; `hidden` and `logits` are its two halves."""

    config: ModelConfig
    dtype: Any
    deterministic: bool

    def setup(self):
        config = self.config
        std, padding = config.initializer_range, config.pad_token_id
        self.token_embedding = Embedding(config.vocabulary_size, config.hidden_size, std, self.dtype, padding)
        padded = config.positions == "padded"
        rows = config.max_length + (padding + 1 if padded else 0)
        self.position_embedding = Embedding(rows, config.hidden_size, std, self.dtype, padding if padded else None)
        self.type_embedding = Embedding(config.type_vocabulary_size, config.hidden_size, std, self.dtype)
        self.embedding_norm = layer_norm(config, self.dtype)
        self.dropout = Dropout(config.embedding_dropout, deterministic=self.deterministic)
        self.layers = stack(Block, config, self.dtype, self.deterministic)
        self.head = Head(config, self.dtype)

    def __call__(self, tokens: jax.Array, mask: jax.Array | None = None) -> jax.Array:
        return self.logits(self.hidden(tokens, mask))

    def hidden(self, tokens: jax.Array, mask: jax.Array | None, types: jax.Array | None = None) -> jax.Array:
        x = self.token_embedding(tokens) + self.type_embedding(jnp.zeros_like(tokens[:1, :1]) if types is None else types)
        x = self.dropout(self.embedding_norm(x + self.position_embedding(self._positions(tokens))))
        x, _ = self.layers(keep_rows(x), None if mask is None else mask.astype(bool)[:, None, None, :])
        return x

    def _positions(self, tokens: jax.Array) -> jax.Array:
        if self.config.positions != "padded":
            return jnp.arange(tokens.shape[1])[None]
        real = (tokens != self.config.pad_token_id).astype(jnp.int32)
        return jnp.cumsum(real, axis=1) * real + self.config.pad_token_id

    @staticmethod
    def head_flops(config: ModelConfig) -> float:
        """FLOPs of the head for one token, forward."""
        return 2.0 * config.hidden_size * (config.hidden_size + config.vocabulary_size)

    def logits(self, hidden: jax.Array) -> jax.Array:
        return self.head(hidden, self.token_embedding.table())


def weights(config: ModelConfig, *, dense: str, norm: str, decoder: str, bias: str) -> tuple[Weight, ...]:
    """The weight map. `nn.Linear` keeps matrices as (out, in); here they are (in, out).

    Args:
      config: the model's configuration.
      dense: name of the head's dense layer.
      norm: name of the head's norm.
      decoder: name of the head's last layer, which is stored where it is not the token table.
      bias: name of the head's bias.
    """
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
        "head/dense": dense,
    }
    for ours, theirs in matrices.items():
        parts.append(Weight(f"{ours}/kernel", (f"{theirs}.weight",), "linear"))
        parts.append(Weight(f"{ours}/bias", (f"{theirs}.bias",)))
    norms = {
        "embedding_norm": "embeddings.LayerNorm",
        "layers/attention_norm": layer + "attention.output.LayerNorm",
        "layers/mlp_norm": layer + "output.LayerNorm",
        "head/norm": norm,
    }
    for ours, theirs in norms.items():
        # Checkpoints that were made from TensorFlow keep its names.
        parts.append(Weight(f"{ours}/scale", (f"{theirs}.weight",), old=f"{theirs}.gamma"))
        parts.append(Weight(f"{ours}/bias", (f"{theirs}.bias",), old=f"{theirs}.beta"))
    if config.tied:
        return (*parts, Weight("head/bias", (bias,)))
    # transformers 5 scores an untied head with the decoder's bias; the other name is then written too, for older readers.
    own_bias = Weight("head/bias", (f"{decoder}.bias",), copies=(bias,))
    return (*parts, own_bias, Weight("head/embedding", (f"{decoder}.weight",)))
