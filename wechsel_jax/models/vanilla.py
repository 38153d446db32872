"""The Transformer of Vaswani et al. (2017) as `torch.nn.Transformer` has it: an encoder, and one with a decoder to translate.

It is the model that Kim et al. study embeddings with. They name its layers, heads and widths (section 4, appendix A.2, table 5)
and that it is written in PyTorch. What they leave open follows from the numbers of parameters in table 5: all twelve are those
of feed-forward layers of 512 and an output layer of its own, with a bias. A norm behind each stack, post-norm layers and a relu
are `torch.nn.Transformer`'s; weights are stored under its names, so that PyTorch reads them too.
"""

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn
from jax.sharding import PartitionSpec

from wechsel_jax.errors import UserError
from wechsel_jax.initializers.transforms import sinusoidal_positions
from wechsel_jax.models.attention import attention, real_keys
from wechsel_jax.models.cache import Cache
from wechsel_jax.models.config import Fields, ModelConfig
from wechsel_jax.models.dropout import Dropout
from wechsel_jax.models.encoder import Block
from wechsel_jax.models.family import Family, Params
from wechsel_jax.models.layers import Attention, Embedding, FeedForward, attend, keep_rows, layer_norm, normal, pin, stack
from wechsel_jax.models.weights import TensorNames, Weight, flatten, linear, unflatten

MODEL_TYPE = "transformer"
# Exponents of the sines: j / D for dimension j (Kim et al., equation 2), or one for a sine and its cosine (Vaswani et al.).
POSITIONS = ("literal", "paired", "none")
_DEFAULTS = {
    "d_model": 512,
    "nhead": 8,
    "num_encoder_layers": 3,
    "num_decoder_layers": 3,
    "dim_feedforward": 512,
    "dropout": 0.1,
    "activation": "relu",
    "layer_norm_eps": 1e-5,
    "max_position_embeddings": 512,
    "positions": "literal",
    "pad_token_id": None,
}


def read_config(hf: Mapping[str, Any]) -> ModelConfig:
    """Reads `config.json`, whose fields have the names of `torch.nn.Transformer`'s arguments; see `Family.config`.

    Besides them there are vocab_size, max_position_embeddings, "positions" (one of `POSITIONS`), and for translation
    decoder_vocab_size.
    """
    fields = Fields(hf, _DEFAULTS)
    fields.refuse(norm_first=False, bias=True, tie_word_embeddings=False)
    width, dropout = fields.number("d_model"), fields.number("dropout", float)
    if fields["positions"] not in POSITIONS:
        raise UserError(f"config.json: positions are {fields['positions']!r}; expected one of {', '.join(POSITIONS)}")
    return ModelConfig(
        model_type=MODEL_TYPE,
        vocabulary_size=fields.number("vocab_size"),
        hidden_size=width,
        layers=fields.number("num_encoder_layers"),
        heads=fields.number("nhead"),
        inner_size=fields.number("dim_feedforward"),
        max_length=fields.number("max_position_embeddings"),
        activation=fields["activation"],
        norm_epsilon=fields.number("layer_norm_eps", float),
        **dict.fromkeys(("embedding_dropout", "attention_dropout", "residual_dropout", "inner_dropout"), dropout),
        positions=fields["positions"],
        pad_token_id=fields.padding(fields.number("vocab_size")),
        fused_qkv=True,
        embedding_scale=math.sqrt(width),
    )


def read_translator(hf: Mapping[str, Any]) -> ModelConfig:
    """Reads the `config.json` of an encoder-decoder; see `read_config`."""
    fields = Fields(hf, _DEFAULTS)
    sizes = {
        "target_vocabulary_size": fields.number("decoder_vocab_size"),
        "decoder_layers": fields.number("num_decoder_layers"),
    }
    for name, size in sizes.items():
        if size < 1:
            raise UserError(f"config.json: {MODEL_TYPE} has {name} {size}; expected at least 1")
    return dataclasses.replace(read_config(hf), **sizes)


class Encoder(nn.Module):
    """Scaled embeddings plus positions, the layers, and a norm; a head for labels stands on its `hidden`."""

    config: ModelConfig
    dtype: Any
    deterministic: bool

    def setup(self):
        config = self.config
        self.token_embedding = Embedding(config.vocabulary_size, config.hidden_size, 1.0, self.dtype)
        self.dropout = Dropout(config.embedding_dropout, deterministic=self.deterministic)
        self.layers = stack(Block, config, self.dtype, self.deterministic)
        self.norm = layer_norm(config, self.dtype)

    def __call__(self, tokens: jax.Array, mask: jax.Array | None = None) -> jax.Array:
        return self.hidden(tokens, mask)

    def hidden(self, tokens: jax.Array, mask: jax.Array | None) -> jax.Array:
        x = self.placed(self.token_embedding(tokens), jnp.arange(tokens.shape[1])[None])
        x, _ = self.layers(x, real_keys(mask))
        return self.norm(x)

    def placed(self, rows: jax.Array, position: jax.Array) -> jax.Array:
        """x sqrt(D) + P (Kim et al., appendix A.1, equation 3): rows (B, L, d) of a table, position int32 (B or 1, L)."""
        config = self.config
        x = rows * jnp.asarray(config.embedding_scale, rows.dtype)
        if config.positions != "none":
            table = sinusoidal_positions(config.max_length, config.hidden_size, paired=config.positions == "paired")
            x = x + jnp.asarray(table, jnp.float32)[position].astype(self.dtype)
        return keep_rows(self.dropout(x))


class _Fused(nn.Module):
    """The projections of an attention to queries, keys and values as `torch.nn.MultiheadAttention` holds them."""

    config: ModelConfig
    dtype: Any

    @nn.compact
    def __call__(self, first: int, last: int, x: jax.Array) -> jax.Array:
        """x (..., d) -> (..., last - first, d), of which 0 are queries, 1 keys and 2 values."""
        size = self.config.hidden_size
        kernel = self.param("kernel", normal(self.config.initializer_range), (size, 3, size))
        bias = self.param("bias", nn.initializers.zeros, (3, size))
        product = jnp.einsum("...d,dne->...ne", x.astype(self.dtype), kernel[:, first:last].astype(self.dtype))
        return product + bias[first:last].astype(self.dtype)


class CrossAttention(nn.Module):
    """Attention of what is being written to what was read."""

    config: ModelConfig
    dtype: Any
    deterministic: bool

    @nn.compact
    def __call__(self, x: jax.Array, memory: jax.Array, visible: jax.Array | None) -> jax.Array:
        """Mixes memory into x (B, M, d).

        Args:
          x: the stream of the decoder.
          memory: (B, L, d) of the encoder, or keys and values that `TransformerFamily.remember` made of it, (B, L, 2, d).
          visible: bool (B, 1, 1, L), or None.
        """
        config, project = self.config, _Fused(self.config, self.dtype, name="qkv")

        def heads(x: jax.Array) -> jax.Array:
            return x.reshape(*x.shape[:2], config.heads, config.head_features)

        both = memory if memory.ndim == 4 else project(1, 3, memory)
        query, scale = project(0, 1, x)[:, :, 0], 1.0 / math.sqrt(config.head_features)
        dropout = Dropout(config.attention_dropout, self.deterministic)
        parts = (heads(query), heads(both[:, :, 0]), heads(both[:, :, 1]))
        mixed = attention(*parts, visible, causal=False, scale=scale, dropout=dropout)
        return nn.Dense(config.hidden_size, dtype=self.dtype, name="output")(mixed.reshape(x.shape))


class DecoderBlock(nn.Module):
    """Attention to what has been written, to what was read, and feed-forward; each added to the stream and normed after it."""

    config: ModelConfig
    dtype: Any
    deterministic: bool

    @nn.compact
    def __call__(self, carry: tuple, shared: tuple) -> tuple[tuple, None]:
        """One layer.

        Args:
          carry: x (B, M, d), the layer's number, and the cache or None.
          shared: which written tokens are visible, bool (B, 1, M, S) with a cache, else None; the memory (B, L, d), with a
            cache that of all layers (N, B, L, 2, d); and which of it is visible, bool (B, 1, 1, L) or None.
        """
        (x, layer, cache), (written, memory, read) = carry, shared
        config, kind = self.config, (self.config, self.dtype, self.deterministic)
        dropout = Dropout(config.residual_dropout, deterministic=self.deterministic)
        mixed, cache = Attention(*kind, causal=True, name="attention")(x, written, None, layer, cache)
        x = layer_norm(config, self.dtype, "attention_norm")(x + dropout(mixed))
        of_layer = memory if cache is None else memory[layer]
        x = layer_norm(config, self.dtype, "cross_norm")(x + dropout(CrossAttention(*kind, name="cross")(x, of_layer, read)))
        x = layer_norm(config, self.dtype, "mlp_norm")(x + dropout(FeedForward(*kind, name="mlp")(x)))
        return (keep_rows(x), layer + 1, cache), None


class Head(nn.Module):
    """The output layer: a table (V_t, d) and a bias of its own."""

    config: ModelConfig
    dtype: Any

    @nn.compact
    def __call__(self, hidden: jax.Array) -> jax.Array:
        """hidden (..., d) -> (..., V_t) float32."""
        shape = (self.config.target_vocabulary_size, self.config.hidden_size)
        table = self.param("embedding", normal(1.0), shape)
        return attend(hidden, pin(table, ("tensor",)), self.dtype) + self.param("bias", nn.initializers.zeros, shape[:1])


class EncoderDecoder(Encoder):
    """The whole Transformer; `TransformerFamily` says what its methods take."""

    def setup(self):
        super().setup()
        config = self.config
        self.target_embedding = Embedding(config.target_vocabulary_size, config.hidden_size, 1.0, self.dtype)
        self.decoder = stack(DecoderBlock, decoder_config(config), self.dtype, self.deterministic)
        self.decoder_norm = layer_norm(config, self.dtype)
        self.head = Head(config, self.dtype)

    def __call__(self, tokens: jax.Array) -> jax.Array:
        return self.logits(self.translate(tokens, None, tokens))

    def translate(self, tokens: jax.Array, mask: jax.Array | None, targets: jax.Array) -> jax.Array:
        x = self.placed(self.target_embedding(targets), jnp.arange(targets.shape[1])[None])
        (x, _, _), _ = self.decoder((x, jnp.int32(0), None), (None, self.hidden(tokens, mask), real_keys(mask)))
        return self.decoder_norm(x)

    def write(self, targets: jax.Array, cache: Cache, memory: jax.Array, mask: jax.Array) -> tuple[jax.Array, Cache]:
        cache, position = cache.take_slots(jnp.ones(targets.shape, bool))
        seen = cache.position[:, None, :]
        written = ((seen >= 0) & (seen <= position[:, :, None]))[:, None]
        x = self.placed(self.target_embedding(targets), position)
        (x, _, cache), _ = self.decoder((x, jnp.int32(0), cache), (written, memory, real_keys(mask)))
        return self.decoder_norm(x), cache

    def logits(self, hidden: jax.Array) -> jax.Array:
        return self.head(hidden)

    @staticmethod
    def head_flops(config: ModelConfig) -> float:
        """FLOPs of the decoder and its output layer for one token, forward; targets are as long as sources."""
        d = config.hidden_size
        return 2.0 * (config.decoder_layers * (8 * d * d + 2 * d * config.inner_size) + d * config.target_vocabulary_size)


def decoder_config(config: ModelConfig) -> ModelConfig:
    """The configuration of the decoder's stack, and of a `Cache` of what it has written."""
    return dataclasses.replace(config, layers=config.decoder_layers)


class TransformerFamily(Family):
    """A family whose weights are new always: Xavier's (Glorot and Bengio, 2010)."""

    def init(self, config: ModelConfig, key: jax.Array) -> Params:
        """Draws all matrices and tables uniformly in +-sqrt(6 / (in + out)); biases are 0.

        Queries, keys and values are one matrix (d, 3 d) there, as `torch.nn.init.xavier_uniform_` sees them in PyTorch.
        """
        drawn = flatten(super().init(config, key))
        for number, (path, value) in enumerate(sorted(drawn.items())):
            if path.endswith(("kernel", "embedding")):
                shape = value.shape[1:] if path.startswith(("layers/", "decoder/")) else value.shape
                limit = math.sqrt(6.0 / (shape[0] + math.prod(shape[1:])))
                drawn[path] = jax.random.uniform(jax.random.fold_in(key, number), value.shape, minval=-limit, maxval=limit)
        return unflatten(drawn)

    def head(self, params: Params) -> Params:
        """Returns the part of the parameters that `logits` reads."""
        return {"head": params["head"]}

    def translate(
        self,
        params: Params,
        config: ModelConfig,
        tokens: jax.Array,
        mask: jax.Array | None,
        targets: jax.Array,
        *,
        dropout_key: jax.Array | None = None,
        dtype: Any = jnp.float32,
    ) -> jax.Array:
        """Reads sources and their translations; of encoder-decoders only, as `remember` and `write`.

        Args:
          params: parameters.
          config: the model's configuration.
          tokens: int32 (B, L), of the sources.
          mask: bool (B, L), true for real tokens; None where all are.
          targets: int32 (B, M), the token before each one that is to be predicted.
          dropout_key: turns dropout on; None is evaluation.
          dtype: what matrix products compute in.

        Returns:
          (B, M, d) of `dtype`, which `logits` makes scores (B, M, V_t) of.
        """
        given = (tokens, mask, targets)
        return self.apply(params, config, *given, method="translate", dropout_key=dropout_key, dtype=dtype)

    def remember(
        self, params: Params, config: ModelConfig, tokens: jax.Array, mask: jax.Array, *, dtype: Any = jnp.float32
    ) -> jax.Array:
        """Reads sources once: int32 (B, L) and bool (B, L) -> keys and values of every layer of the decoder (N, B, L, 2, d)."""
        hidden = self.hidden(params, config, tokens, mask, dtype=dtype)
        qkv = params["decoder"]["cross"]["qkv"]
        kernel, bias = (jnp.asarray(qkv[name], jnp.dtype(dtype)) for name in ("kernel", "bias"))
        return jnp.einsum("bld,ndie->nblie", hidden, kernel[:, :, 1:]) + bias[:, None, None, 1:]

    def write(
        self,
        params: Params,
        config: ModelConfig,
        targets: jax.Array,
        cache: Cache,
        memory: jax.Array,
        mask: jax.Array,
        *,
        dtype: Any = jnp.float32,
    ) -> tuple[jax.Array, Cache]:
        """Goes on with translations whose beginnings are in a cache.

        Args:
          params: parameters.
          config: the model's configuration.
          targets: int32 (B, M).
          cache: `Cache.empty(decoder_config(config), ...)`, or that with the tokens before.
          memory: of `remember`.
          mask: bool (B, L), of the sources.
          dtype: what matrix products compute in.

        Returns:
          (B, M, d), as `translate` of the whole has it, and the cache with these tokens.
        """
        return self.apply(params, config, targets, cache, memory, mask, method="write", dtype=dtype)


def _weights(config: ModelConfig) -> tuple[Weight, ...]:
    parts = [Weight("token_embedding/embedding", ("src_tok_emb.embedding.weight",))]
    stacks = {"layers": ("encoder", {"attention": "self_attn"}, ("attention_norm", "mlp_norm"), "norm")}
    if config.decoder_layers:
        norms = ("attention_norm", "cross_norm", "mlp_norm")
        stacks["decoder"] = ("decoder", {"attention": "self_attn", "cross": "multihead_attn"}, norms, "decoder_norm")
        parts.append(Weight("target_embedding/embedding", ("tgt_tok_emb.embedding.weight",)))
        parts += [Weight(f"head/{ours}", (f"generator.{name}",)) for ours, name in (("embedding", "weight"), ("bias", "bias"))]
    for ours, (theirs, attentions, norms, last) in stacks.items():
        layer = f"transformer.{theirs}.layers.{{layer}}."
        for mine, name in attentions.items():
            parts.append(Weight(f"{ours}/{mine}/qkv/kernel", (f"{layer}{name}.in_proj_weight",), "below"))
            parts.append(Weight(f"{ours}/{mine}/qkv/bias", (f"{layer}{name}.in_proj_bias",), "below"))
        matrices = {f"{mine}/output": f"{name}.out_proj" for mine, name in attentions.items()}
        for mine, name in (matrices | {"mlp/up": "linear1", "mlp/down": "linear2"}).items():
            parts += linear(f"{ours}/{mine}", layer + name)
        numbered = {f"{ours}/{mine}": f"{layer}norm{number}" for number, mine in enumerate(norms, 1)}
        for mine, name in (numbered | {last: f"transformer.{theirs}.norm"}).items():
            parts += [Weight(f"{mine}/{leaf}", (f"{name}.{end}",)) for leaf, end in (("scale", "weight"), ("bias", "bias"))]
    return tuple(parts)


_LAYERS = r"^(layers|decoder)/"
_RULES = (
    (r"^(token_embedding|target_embedding|head)/embedding$", PartitionSpec("tensor", "fsdp")),
    (r"^head/bias$", PartitionSpec("tensor")),
    (rf"{_LAYERS}(attention|cross)/qkv/kernel$", PartitionSpec(None, "fsdp", None, "tensor")),
    (rf"{_LAYERS}(attention|cross)/qkv/bias$", PartitionSpec(None, None, "tensor")),
    (rf"{_LAYERS}((attention|cross)/output|mlp/down)/kernel$", PartitionSpec(None, "tensor", "fsdp")),
    (rf"{_LAYERS}((attention|cross)/output|mlp/down)/bias$", PartitionSpec()),
    (rf"{_LAYERS}mlp/up/kernel$", PartitionSpec(None, "fsdp", "tensor")),
    (rf"{_LAYERS}mlp/up/bias$", PartitionSpec(None, "tensor")),
    (r"norm/(scale|bias)$", PartitionSpec()),
)
_TENSORS = TensorNames(prefix="", ignored=r"^positional_encoding\.", tied=(), weights=_weights)
# Without a head of its own; `heads.with_head` gives it one for labels.
ENCODER = TransformerFamily("transformer", "Transformer", False, Encoder, read_config, _TENSORS, _RULES)
# Padding reaches the source table alone: the two vocabularies differ in size.
TRANSLATOR = dataclasses.replace(
    ENCODER,
    architecture="TransformerForTranslation",
    module=EncoderDecoder,
    read_config=read_translator,
    token_parameters=r"^token_embedding/embedding$",
    embedding_parameters=r"^(token_embedding|target_embedding)/embedding$",
)
