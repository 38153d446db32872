"""Transformer parts that the families share, as Linen modules with fp32 parameters.

`dtype` is what matrix products compute in. Layer norms and softmax always compute in float32.
"""

import math
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn
from jax.sharding import PartitionSpec

from wechsel_jax.models.attention import attention
from wechsel_jax.models.config import ModelConfig
from wechsel_jax.models.dropout import Dropout

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
    return jnp.einsum("...d,vd->...v", hidden.astype(dtype), table.astype(dtype), preferred_element_type=jnp.float32)


def layer_norm(config: ModelConfig, dtype: Any, name: str | None = None) -> nn.LayerNorm:
    """Returns a layer norm that computes in float32 with the two-pass variance."""
    return nn.LayerNorm(epsilon=config.norm_epsilon, dtype=dtype, use_fast_variance=False, name=name)


class SelfAttention(nn.Module):
    """Multi-head self-attention with one fused projection to queries, keys and values."""

    config: ModelConfig
    dtype: Any
    deterministic: bool
    output_std: float
    causal: bool

    @nn.compact
    def __call__(self, x: jax.Array, visible: jax.Array | None) -> jax.Array:
        """x (B, L, d), visible bool broadcastable to (B, heads, L, L) -> (B, L, d)."""
        config = self.config
        head_size = config.hidden_size // config.heads
        init = normal(config.initializer_range)
        qkv = nn.DenseGeneral((3, config.hidden_size), dtype=self.dtype, kernel_init=init, name="qkv")(x)
        query, key, value = (qkv[:, :, i].reshape(*x.shape[:2], config.heads, head_size) for i in range(3))
        scale = 1.0 / math.sqrt(head_size) if config.scale_attention else 1.0
        dropout = Dropout(config.attention_dropout, self.deterministic)
        mixed = attention(query, key, value, visible, causal=self.causal, scale=scale, dropout=dropout)
        mixed = mixed.reshape(x.shape)
        return nn.Dense(config.hidden_size, dtype=self.dtype, kernel_init=normal(self.output_std), name="output")(mixed)


class FeedForward(nn.Module):
    """Two dense layers with an activation between them."""

    config: ModelConfig
    dtype: Any
    output_std: float

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        """x (B, L, d) -> (B, L, d)."""
        config = self.config
        init = normal(config.initializer_range)
        x = nn.Dense(config.inner_size, dtype=self.dtype, kernel_init=init, name="up")(x)
        x = ACTIVATION_FUNCTIONS[config.activation](x)
        return nn.Dense(config.hidden_size, dtype=self.dtype, kernel_init=normal(self.output_std), name="down")(x)


def products_kept(primitive: Any, *_: Any, **__: Any) -> bool:
    """A policy of `jax.checkpoint`: matrix products, cuDNN's attention among them, are kept for the backward pass.

    Activations, norms, softmax and dropout are computed again from them: that takes less time than to write and read what they
    would keep (six arrays for a gelu alone), and half of the memory.
    """
    return "dot" in primitive.name


def stack(block: type[nn.Module], config: ModelConfig, dtype: Any, deterministic: bool) -> nn.Module:
    """Returns N blocks as one loop whose parameters have a leading axis of N layers.

    One loop compiles in a time that does not grow with N; without `scan_layers` it is unrolled, with the same parameters and
    results. A block maps (x (B, L, d), visible) to (x, None).
    """
    unroll = min(config.unroll, config.layers) if config.scan_layers else config.layers
    policies = {"none": products_kept, "dots": jax.checkpoint_policies.dots_with_no_batch_dims_saveable, "full": None}
    # In a loop of one layer the compiler cannot find out that the backward pass computes the same again.
    block = nn.remat(block, prevent_cse=unroll > 1 and config.remat != "none", policy=policies[config.remat])
    looped = nn.scan(
        block,
        variable_axes={"params": 0},
        split_rngs={"params": True, "dropout": True},
        in_axes=nn.broadcast,
        length=config.layers,
        unroll=unroll,
    )
    return looped(config, dtype, deterministic)
