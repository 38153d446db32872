"""Scaled dot-product attention (Vaswani et al., 2017, section 3.2.1), as every family computes it."""

import jax
import jax.numpy as jnp

from wechsel_jax.models.dropout import Dropout
from wechsel_jax.models.products import wide_product

# A CPU runs one product of many heads on one core, but blocks of queries side by side; of a causal model a block leaves out the
# keys behind it. Shorter blocks cost more to start than they save. Elsewhere one block is one kernel.
_BLOCKS_ON_CPU = 4
_SHORTEST_BLOCK = 32


def attention(
    query: jax.Array,
    key: jax.Array,
    value: jax.Array,
    visible: jax.Array | None,
    *,
    causal: bool,
    scale: float,
    dropout: Dropout,
    limit: float | None = None,
) -> jax.Array:
    """Attention of query (B, L, heads, c) to key and value (B, S, groups, c), whose heads may be fewer and are not repeated.

    On a GPU it is cuDNN's attention where that fits and S is L; else the scores are made, in blocks of queries on a CPU.

    Args:
      query: of every head; those of a group stand together.
      key: of each group.
      value: of each group.
      visible: bool, broadcastable to (B, 1, L, S), which keys padding and windows leave for a query to see; None: all.
      causal: whether a query sees no later key; S is L then.
      scale: what scores are multiplied by.
      dropout: applied to the probabilities.
      limit: what `cap` keeps the scores within; None: no limit.

    Returns:
      (B, L, heads, c).
    """
    if limit is None and key.shape[1] == query.shape[1] and fits_flash_attention(query, dropout):
        return flash_attention(query, key, value, visible, causal, scale)
    length, count = query.shape[1], blocks_of_queries(query.shape[1])
    parts = []
    for i in range(count):
        rows = slice(i * length // count, (i + 1) * length // count)
        keys = rows.stop if causal else key.shape[1]
        of_rows = visible_keys(visible, causal, rows, keys)
        shares = dropout(probabilities(query[:, rows], key[:, :keys], of_rows, scale, limit))
        parts.append(jnp.einsum("bkgqs,bskc->bqkgc", shares, value[:, :keys]).reshape(query[:, rows].shape))
    return parts[0] if count == 1 else jnp.concatenate(parts, axis=1)


def real_keys(mask: jax.Array | None) -> jax.Array | None:
    """Which keys are there for every query: mask (B, L), true for real tokens, or None -> bool (B, 1, 1, L), or None."""
    return None if mask is None else mask.astype(bool)[:, None, None, :]


def visible_keys(visible: jax.Array | None, causal: bool, rows: slice, keys: int) -> jax.Array | None:
    """Which of the first `keys` keys the queries `rows` see: bool, broadcastable to (B, 1, rows, keys); None: all."""
    if visible is not None:
        visible = visible[:, :, rows if visible.shape[2] > 1 else slice(None), :keys]
    if not causal:
        return visible
    earlier = (jnp.arange(rows.start, rows.stop)[:, None] >= jnp.arange(keys))[None, None]
    return earlier if visible is None else visible & earlier


def probabilities(
    query: jax.Array, key: jax.Array, visible: jax.Array | None, scale: float, limit: float | None = None
) -> jax.Array:
    """How much each query attends to each key.

    Args:
      query: (B, L, heads, c).
      key: (B, S, groups, c).
      visible: bool, broadcastable to (B, 1, L, S), see `visible_keys`; None: all.
      scale: of the scores.
      limit: what `cap` keeps them within.

    Returns:
      (B, groups, heads / groups, L, S) of the queries' type; the S of a query add up to 1.
    """
    grouped = query.reshape(*query.shape[:2], key.shape[2], -1, query.shape[3])
    scores = scale * wide_product("bqkgc,bskc->bkgqs", grouped, key)
    scores = cap(scores, limit)
    if visible is not None:
        # A finite number: a query that sees nothing (left padding) gets a uniform row instead of NaN.
        scores = jnp.where(visible[:, :, None], scores, jnp.finfo(jnp.float32).min)
    return jax.nn.softmax(scores, axis=-1).astype(query.dtype)


def blocks_of_queries(length: int) -> int:
    """Into how many blocks the queries of L positions are split."""
    if jax.default_backend() != "cpu" or length % _BLOCKS_ON_CPU or length < _BLOCKS_ON_CPU * _SHORTEST_BLOCK:
        return 1
    return _BLOCKS_ON_CPU


def cap(x: jax.Array, limit: float | None) -> jax.Array:
    """Keeps x between -limit and limit, smoothly; None changes nothing."""
    return x if limit is None else limit * jnp.tanh(x / limit)


def fits_flash_attention(query: jax.Array, dropout: Dropout) -> bool:
    """Whether cuDNN's attention, which never stores the L x L scores, can take the place of the plain one.

    It needs a GPU, 16-bit queries (B, L, heads, c), heads of at most 128 features, and no dropout on the probabilities.
    """
    length, size = query.shape[1], query.shape[3]
    wide = query.dtype.itemsize == 2 and size % 8 == 0 and size <= 128 and length % 64 == 0
    return wide and (dropout.deterministic or dropout.rate == 0.0) and jax.default_backend() == "gpu"


def flash_attention(
    query: jax.Array, key: jax.Array, value: jax.Array, visible: jax.Array | None, causal: bool, scale: float
) -> jax.Array:
    """cuDNN's attention.

    Args:
      query: (B, L, heads, c).
      key: (B, L, heads or fewer, c).
      value: like the keys.
      visible: bool, broadcastable to (B, 1, L, L); None: all.
      causal: whether a query sees no later key.
      scale: of the scores.

    Returns:
      (B, L, heads, c).
    """
    length = query.shape[1]
    if visible is not None:
        # cuDNN takes no mask that is broadcast along the queries, and one mask holds causality as well.
        visible = visible_keys(visible, causal, slice(0, length), length)
        visible = jnp.broadcast_to(visible, (*visible.shape[:2], length, length))
    # By name, causality costs less than as an array.
    named = causal and visible is None
    return jax.nn.dot_product_attention(query, key, value, mask=visible, scale=scale, is_causal=named, implementation="cudnn")
