"""What a causal model keeps of the tokens it has read: their keys and values, so that each new token costs one position."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp

from wechsel_jax.models.config import ModelConfig


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Cache:
    """Keys and values of B rows in S slots; tokens that are given together stand in the same slots of all rows.

    Which slots a query sees follows from `position` alone. So padding may stand on either side or between the parts of a text:
    a padded slot is lost, and the positions of a row count its real tokens.

    Attributes:
      keys: (N, B, S, groups, c), turned already where positions are rotary.
      values: like the keys.
      position: int32 (B, S), of the token in each slot; -1 where there is none.
      used: int32, how many slots are taken.
    """

    keys: jax.Array
    values: jax.Array
    position: jax.Array
    used: jax.Array

    @classmethod
    def empty(cls, config: ModelConfig, rows: int, slots: int, dtype: Any = jnp.float32) -> "Cache":
        """Returns a cache that holds nothing yet.

        Args:
          config: the model's configuration.
          rows: B.
          slots: S, of all tokens to come, padding included.
          dtype: what the model's matrix products compute in.
        """
        shape = (config.layers, rows, slots, config.key_value_heads or config.heads, config.head_features)
        empty = jnp.full((rows, slots), -1, jnp.int32)
        return cls(jnp.zeros(shape, dtype), jnp.zeros(shape, dtype), empty, jnp.int32(0))

    def grown(self, slots: int) -> "Cache":
        """Returns the cache with more slots, S = `slots`."""
        more = slots - self.position.shape[1]
        keys, values = (jnp.pad(part, ((0, 0), (0, 0), (0, more), (0, 0), (0, 0))) for part in (self.keys, self.values))
        return Cache(keys, values, jnp.pad(self.position, ((0, 0), (0, more)), constant_values=-1), self.used)

    def take_slots(self, mask: jax.Array) -> tuple["Cache", jax.Array]:
        """Takes the next L slots for tokens whose mask is bool (B, L); also returns their positions, int32 (B, L)."""
        before = self.position.max(axis=1, keepdims=True)
        new = jnp.where(mask, before + jnp.cumsum(mask, axis=1, dtype=jnp.int32), -1)
        position = jax.lax.dynamic_update_slice(self.position, new, (0, self.used))
        return dataclasses.replace(self, position=position, used=self.used + mask.shape[1]), new

    def store(self, layer: jax.Array, key: jax.Array, value: jax.Array) -> tuple["Cache", jax.Array, jax.Array]:
        """Puts a layer's keys and values (B, L, groups, c) into the slots taken last.

        Returns:
          The cache, and the layer's keys and values of all slots, (B, S, groups, c) each.
        """
        place = (layer, 0, self.used - key.shape[1], 0, 0)
        keys = jax.lax.dynamic_update_slice(self.keys, key[None], place)
        values = jax.lax.dynamic_update_slice(self.values, value[None], place)
        return dataclasses.replace(self, keys=keys, values=values), keys[layer], values[layer]
