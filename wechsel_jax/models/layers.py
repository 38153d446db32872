"""Transformer parts that the families share, as Linen modules with fp32 parameters; `ModelConfig` says what each family does.

`dtype` is what matrix products compute in. Layer norms and softmax always compute in float32.
"""

import math
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn
from jax.sharding import PartitionSpec

from wechsel_jax.models.attention import attention, probabilities, visible_keys
from wechsel_jax.models.cache import Cache
from wechsel_jax.models.config import ModelConfig
from wechsel_jax.models.dropout import Dropout
from wechsel_jax.models.products import wide_product
from wechsel_jax.models.rotary import rotate

# The collection of what `Family.attended` asks for; it is made only where a caller names it as mutable.
WATCHED = "watched"
ACTIVATION_FUNCTIONS = {
    "gelu": partial(jax.nn.gelu, approximate=False),
    "gelu_python": partial(jax.nn.gelu, approximate=False),
    "gelu_new": partial(jax.nn.gelu, approximate=True),
    "gelu_fast": partial(jax.nn.gelu, approximate=True),
    "gelu_pytorch_tanh": partial(jax.nn.gelu, approximate=True),
    "relu": jax.nn.relu,
    "silu": jax.nn.silu,
    "swish": jax.nn.silu,
    "tanh": jnp.tanh,
}


def normal(std: float, zero_row: int | None = None) -> nn.initializers.Initializer:
    """Returns an initializer N(0, std); row `zero_row` (a padding token) is zero."""

    def draw(key: jax.Array, shape: tuple[int, ...], dtype: Any = jnp.float32) -> jax.Array:
        weights = std * jax.random.normal(key, shape, dtype)
        return weights if zero_row is None else weights.at[zero_row].set(0.0)

    return draw


def pin(x: jax.Array, *axes: tuple[str, ...]) -> jax.Array:
    """Pins dimension i of x to the axes `axes[i]` of the mesh that `jax.set_mesh` has set, and the others to none.

    Without such a mesh x is left to the compiler. Axes that the mesh lacks, or that do not divide the dimension, are dropped.
    """
    mesh = jax.sharding.get_abstract_mesh()
    if mesh.empty:
        return x
    spec = []
    for size, names in zip(x.shape, axes, strict=False):
        present = tuple(name for name in names if name in mesh.axis_names)
        spec.append(present if size % math.prod(mesh.shape[name] for name in present) == 0 else None)
    return jax.lax.with_sharding_constraint(x, PartitionSpec(*spec))


def keep_rows(x: jax.Array) -> jax.Array:
    """Keeps the rows of x (B, ...) where the batch is: parameters are split over "fsdp" too, which misleads the partitioner."""
    return pin(x, ("data", "fsdp"))


class Embedding(nn.Module):
    """A table (rows, features), looked up by id or used as an output head."""

    rows: int
    features: int
    std: float
    dtype: Any = jnp.float32
    zero_row: int | None = None

    def setup(self):
        self.embedding = self.param("embedding", normal(self.std, self.zero_row), (self.rows, self.features))

    def __call__(self, ids: jax.Array) -> jax.Array:
        """Rows of the table: ids (...) -> (..., features)."""
        # Gathering before the cast keeps the whole table out of the cast, and its gradient in float32.
        return self.table()[ids].astype(self.dtype)

    def attend(self, hidden: jax.Array) -> jax.Array:
        """Scores of every row: hidden (..., features) -> (..., rows) float32."""
        return attend(hidden, self.table(), self.dtype)

    def table(self) -> jax.Array:
        """The table, gathered over "fsdp" once for all its uses."""
        return pin(self.embedding, ("tensor",))


def attend(hidden: jax.Array, table: jax.Array, dtype: Any) -> jax.Array:
    """Scores of every row of a table: hidden (..., d), table (V, d) -> (..., V) float32."""
    return wide_product("...d,vd->...v", hidden.astype(dtype), table.astype(dtype))


def layer_norm(config: ModelConfig, dtype: Any, name: str | None = None) -> nn.LayerNorm:
    """Returns a layer norm that computes in float32 with the two-pass variance."""
    return nn.LayerNorm(epsilon=config.norm_epsilon, dtype=dtype, use_fast_variance=False, name=name)


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


class Attention(nn.Module):
    """Self-attention in which groups of query heads share keys and values (Ainslie et al., 2023); groups of one are usual."""

    config: ModelConfig
    dtype: Any
    deterministic: bool
    causal: bool

    @nn.compact
    def __call__(
        self,
        x: jax.Array,
        visible: jax.Array | None,
        angles: tuple[jax.Array, jax.Array] | None = None,
        layer: jax.Array | None = None,
        cache: Cache | None = None,
    ) -> tuple[jax.Array, Cache | None]:
        """Mixes x (B, L, d) along L.

        Args:
          x: the normed stream.
          visible: bool, broadcastable to (B, 1, L, L), or None.
          angles: cos and sin (L, c / 2), or with a leading axis of B or 1.
          layer: the layer's number, with a cache.
          cache: with slots taken for x, whose keys and values it gets. `visible` is (B, 1, L, S) then, and causal of itself.

        Returns:
          (B, L, d) and the cache.
        """
        config, dtype, size = self.config, self.dtype, self.config.head_features
        groups = config.key_value_heads or config.heads
        settings = {"dtype": dtype, "kernel_init": normal(config.initializer_range)}
        # The layouts differ because checkpoints of runs keep what each family began with.
        if config.fused_qkv:
            qkv = nn.DenseGeneral((3, config.hidden_size), name="qkv", **settings)(x)
            query, key, value = (qkv[:, :, i].reshape(*x.shape[:2], config.heads, size) for i in range(3))
        else:
            query = nn.DenseGeneral((config.heads, size), use_bias=config.qkv_bias, name="query", **settings)(x)
            both = nn.DenseGeneral((2, groups, size), use_bias=config.qkv_bias, name="key_value", **settings)(x)
            key, value = both[:, :, 0], both[:, :, 1]
        if config.query_key_norms:
            query, key = norm(config, dtype, "query_norm")(query), norm(config, dtype, "key_norm")(key)
        if angles is not None:
            query, key = rotate(query, *angles), rotate(key, *angles)
        scale = 1.0 / math.sqrt(size) if config.query_scale is None else config.query_scale
        dropout = Dropout(config.attention_dropout, self.deterministic)
        causal = self.causal and cache is None
        if cache is not None:
            cache, key, value = cache.store(layer, key, value)
        if self.is_mutable_collection(WATCHED) and not self.is_initializing():
            seen = visible_keys(visible, causal, slice(0, x.shape[1]), key.shape[1])
            self.sow(WATCHED, "probabilities", probabilities(query, key, seen, scale, config.score_cap))
            self.sow(WATCHED, "values", value)
        mixed = attention(query, key, value, visible, causal=causal, scale=scale, dropout=dropout, limit=config.score_cap)
        settings = {"dtype": dtype, "kernel_init": normal(config.residual_range), "use_bias": config.output_bias}
        if config.fused_qkv:
            return nn.Dense(config.hidden_size, name="output", **settings)(mixed.reshape(x.shape)), cache
        return nn.DenseGeneral(config.hidden_size, axis=(-2, -1), name="output", **settings)(mixed), cache


class FeedForward(nn.Module):
    """Feed-forward layer, with a gate (Shazeer, 2020) where the configuration says so."""

    config: ModelConfig
    dtype: Any
    deterministic: bool

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        """x (B, L, d) -> (B, L, d)."""
        config = self.config
        settings = {"dtype": self.dtype, "use_bias": config.mlp_bias}
        init, activation = normal(config.initializer_range), ACTIVATION_FUNCTIONS[config.activation]
        inner = nn.Dense(config.inner_size, kernel_init=init, name="up", **settings)(x)
        if config.gated:
            inner = activation(nn.Dense(config.inner_size, kernel_init=init, name="gate", **settings)(x)) * inner
        else:
            inner = activation(inner)
        inner = Dropout(config.inner_dropout, self.deterministic)(inner)
        return nn.Dense(config.hidden_size, kernel_init=normal(config.residual_range), name="down", **settings)(inner)


def products_kept(primitive: Any, *_: Any, **__: Any) -> bool:
    """A policy of `jax.checkpoint`: matrix products, cuDNN's attention among them, are kept for the backward pass.

    Activations, norms, softmax and dropout are computed again from them: that takes less time than to write and read what they
    would keep (six arrays for a gelu alone), and half of the memory.
    """
    return "dot" in primitive.name


def saving(block: type[nn.Module], config: ModelConfig, looped: bool = True) -> type[nn.Module]:
    """A block that computes in the backward pass again what `config.remat` says; `looped`: an iteration holds it alone."""
    policies = {"none": products_kept, "dots": jax.checkpoint_policies.dots_with_no_batch_dims_saveable, "full": None}
    # In a loop of one layer the compiler cannot find out that the backward pass computes the same again.
    return nn.remat(block, prevent_cse=not looped and config.remat != "none", policy=policies[config.remat])


def stack(block: type[nn.Module], config: ModelConfig, dtype: Any, deterministic: bool, **where: Any) -> nn.Module:
    """Returns N blocks as one loop whose parameters have a leading axis of N layers.

    One loop compiles in a time that does not grow with N; without `scan_layers` it is unrolled, with the same parameters and
    results. A block maps (what it passes on, what all blocks share) to (what it passes on, None).
    """
    looped = nn.scan(
        saving(block, config, config.scan_layers or config.layers == 1),
        variable_axes={"params": 0, WATCHED: 0},
        split_rngs={"params": True, "dropout": True},
        in_axes=nn.broadcast,
        length=config.layers,
        unroll=1 if config.scan_layers else config.layers,
    )
    return looped(config, dtype, deterministic, **where)
