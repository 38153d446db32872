"""The bidirectional post-norm transformer of BERT, RoBERTa and XLM-R, with a masked-language-model head.

With `config.language_count` and `config.tri_layer` it is TreLM's (Li et al., 2021, section 3.1); see `trilayer`.
"""

import dataclasses
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import linen as nn

from wechsel_jax.errors import UserError
from wechsel_jax.models.attention import real_keys
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
    saving,
    stack,
)
from wechsel_jax.models.weights import Weight, linear

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


class Crossing(NamedTuple):
    """What a model with languages and a TRILayer reads besides tokens: from which language to which, and in which order.

    Attributes:
      languages: int32 (B,), or (B, L) where a row holds several; None: the last one, the language that the model is brought to.
      order: int32 (B, L), for each position after the TRILayer the one before it whose state it takes; None: each its own.
      target_mask: bool (B, L), which positions are real after the reordering; None: all. Without an order the mask stays.
      target_languages: int32 (B,) after the reordering; None: as before.
      tri_mask: bool (B, L), what the TRILayer alone sees where that differs from `target_mask`.
      positions: int32 (1 or B, L), rows of the position table; None: those of one text, from its start on.
    """

    languages: jax.Array | None = None
    order: jax.Array | None = None
    target_mask: jax.Array | None = None
    target_languages: jax.Array | None = None
    tri_mask: jax.Array | None = None
    positions: jax.Array | None = None


class LanguageEmbedding(Embedding):
    """Rows of length 1 at right angles (Li et al., 2021, section 3.2)."""

    def setup(self):
        self.embedding = self.param("embedding", nn.initializers.orthogonal(), (self.rows, self.features))


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
        if config.language_count:
            self.language_embedding = LanguageEmbedding(config.language_count, config.hidden_size, std, self.dtype)
        self.layers = stack(Block, config, self.dtype, self.deterministic)
        if config.tri_layer:
            self.tri_layer = saving(Block, config)(config, self.dtype, self.deterministic)
        self.head = Head(config, self.dtype)

    def __call__(self, tokens: jax.Array, mask: jax.Array | None = None) -> jax.Array:
        return self.logits(self.hidden(tokens, mask))

    def hidden(
        self, tokens: jax.Array, mask: jax.Array | None, types: jax.Array | None = None, crossing: Crossing | None = None
    ) -> jax.Array:
        config, crossing = self.config, crossing or Crossing()
        x = self.token_embedding(tokens) + self.type_embedding(jnp.zeros_like(tokens[:1, :1]) if types is None else types)
        real = None if config.pad_token_id is None else tokens != config.pad_token_id
        positions = self._positions(tokens, real) if crossing.positions is None else crossing.positions
        languages = None
        if config.language_count:
            languages = self._languages(crossing.languages)
            x = x + languages
        x = keep_rows(self.dropout(self.embedding_norm(x + self.position_embedding(positions))))
        if not config.tri_layer:
            return self.layers(x, real_keys(mask))[0]
        lower, upper = self._halves(x)
        x = self._run(lower, x, mask)
        if crossing.order is not None:
            x = keep_rows(jnp.take_along_axis(x, crossing.order[..., None], axis=1))
            mask = crossing.target_mask
            positions = self._positions(tokens, mask)
        # The states have lost where they stand, and are to be of another language now. No norm follows (section 3.1).
        x = x + self.position_embedding(positions)
        if config.language_count:
            x = x + (languages if crossing.target_languages is None else self._languages(crossing.target_languages))
        x, _ = self.tri_layer(keep_rows(x), real_keys(mask if crossing.tri_mask is None else crossing.tri_mask))
        return self._run(upper, x, mask)

    def _halves(self, x: jax.Array) -> list[dict[str, Any]]:
        """The parameters of the layers below and above the TRILayer.

        From one split the compiler sees that the gradients of a frozen half are not needed; from two slices it does not.
        """
        if self.is_initializing():
            self.layers(x, None)
        leaves, tree = jax.tree.flatten(self.layers.variables["params"])
        pairs = [jnp.split(leaf, [self.config.layers // 2]) for leaf in leaves]
        return [jax.tree.unflatten(tree, half) for half in zip(*pairs, strict=True)]

    def _run(self, params: dict[str, Any], x: jax.Array, mask: jax.Array | None) -> jax.Array:
        """Layers with these parameters."""
        count = len(jax.tree.leaves(params)[0])
        part = stack(Block, dataclasses.replace(self.config, layers=count), self.dtype, self.deterministic, parent=None)
        rngs = None if self.deterministic else {"dropout": self.make_rng("dropout")}
        return part.apply({"params": params}, x, real_keys(mask), rngs=rngs)[0]

    def _languages(self, ids: jax.Array | None) -> jax.Array:
        """Rows (B, L or 1, d) or (1, 1, d) of the table of languages."""
        if ids is None:
            ids = jnp.full((1, 1), self.config.language_count - 1)
        return self.language_embedding(ids[:, None] if ids.ndim == 1 else ids)

    def _positions(self, tokens: jax.Array, real: jax.Array | None) -> jax.Array:
        if self.config.positions != "padded":
            return jnp.arange(tokens.shape[1])[None]
        real = jnp.ones_like(tokens) if real is None else real.astype(jnp.int32)
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
    heads = ("query", "key", "value")
    layers = {"layers": "encoder.layer.{layer}."} | ({"tri_layer": "encoder.tri_layer."} if config.tri_layer else {})
    parts = [
        Weight("token_embedding/embedding", ("embeddings.word_embeddings.weight",)),
        Weight("position_embedding/embedding", ("embeddings.position_embeddings.weight",)),
        Weight("type_embedding/embedding", ("embeddings.token_type_embeddings.weight",)),
    ]
    if config.language_count:
        parts.append(Weight("language_embedding/embedding", ("embeddings.language_embeddings.weight",)))
    matrices, norms = {"head/dense": dense}, {"embedding_norm": "embeddings.LayerNorm", "head/norm": norm}
    for ours, theirs in layers.items():
        for kind in ("kernel", "bias"):
            stored = "weight" if kind == "kernel" else kind
            names = tuple(f"{theirs}attention.self.{name}.{stored}" for name in heads)
            parts.append(Weight(f"{ours}/attention/qkv/{kind}", names, "split"))
        matrices[f"{ours}/attention/output"] = f"{theirs}attention.output.dense"
        matrices[f"{ours}/mlp/up"] = f"{theirs}intermediate.dense"
        matrices[f"{ours}/mlp/down"] = f"{theirs}output.dense"
        norms[f"{ours}/attention_norm"] = f"{theirs}attention.output.LayerNorm"
        norms[f"{ours}/mlp_norm"] = f"{theirs}output.LayerNorm"
    for ours, theirs in matrices.items():
        parts += linear(ours, theirs)
    for ours, theirs in norms.items():
        # Checkpoints that were made from TensorFlow keep its names.
        parts.append(Weight(f"{ours}/scale", (f"{theirs}.weight",), old=f"{theirs}.gamma"))
        parts.append(Weight(f"{ours}/bias", (f"{theirs}.bias",), old=f"{theirs}.beta"))
    if config.tied:
        return (*parts, Weight("head/bias", (bias,)))
    # transformers 5 scores an untied head with the decoder's bias; the other name is then written too, for older readers.
    own_bias = Weight("head/bias", (f"{decoder}.bias",), copies=(bias,))
    return (*parts, own_bias, Weight("head/embedding", (f"{decoder}.weight",)))
