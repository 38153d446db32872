"""Dropout whose random bits are those of `jax.random`, made in one pass on every backend."""

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn

_ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24))
_PARITY = 0x1BD11BDA


class Dropout(nn.Module):
    """Sets a share `rate` of the elements to zero and scales the others by 1 / (1 - rate); draws from the stream "dropout".

    Attributes:
      rate: from 0 to less than 1.
      deterministic: whether nothing is dropped.
    """

    rate: float
    deterministic: bool

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        """x of any shape -> the same shape and type."""
        if self.deterministic or self.rate == 0.0:
            return x
        kept = random_bits(self.make_rng("dropout"), x.shape) >= np.uint32(round(self.rate * 2**32))
        return jnp.where(kept, x / (1.0 - self.rate), jnp.zeros_like(x))


def random_bits(key: jax.Array, shape: tuple[int, ...]) -> jax.Array:
    """Returns `jax.random.bits(key, shape)`, uint32, an element at a time.

    JAX runs the rounds of its generator (Threefry-2x32-20, Salmon et al., 2011) as a loop over whole arrays on a CPU, which
    takes eight times as long as the one pass that these unrolled rounds become. An element depends on its index and the key
    alone, so the bits are the same however a mesh splits the array.

    Args:
      key: of JAX's default generator; another one, or 2^32 elements and more, are left to JAX.
      shape: of the result.
    """
    words: Any = jax.random.key_data(key)
    if words.shape != (2,) or math.prod(shape) >= 2**32 or not jax.config.jax_threefry_partitionable:
        return jax.random.bits(key, shape)
    index = jnp.zeros(shape, jnp.uint32)
    for axis in range(len(shape)):
        index += jax.lax.broadcasted_iota(jnp.uint32, shape, axis) * np.uint32(math.prod(shape[axis + 1 :]))
    schedule = (words[0], words[1], words[0] ^ words[1] ^ np.uint32(_PARITY))
    left, right = jnp.broadcast_to(schedule[0], shape), index + schedule[1]
    for turn in range(5):
        for rotation in _ROTATIONS[turn % 2]:
            left += right
            right = (right << np.uint32(rotation) | right >> np.uint32(32 - rotation)) ^ left
        left += schedule[(turn + 1) % 3]
        right += schedule[(turn + 2) % 3] + np.uint32(turn + 1)
    return left ^ right
