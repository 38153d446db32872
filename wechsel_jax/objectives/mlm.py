"""Masked language modelling (Devlin et al., 2019, section 3.1), masked anew in every step from a key."""

import dataclasses
import math
from collections.abc import Mapping
from functools import cached_property
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from wechsel_jax.models import Family, ModelConfig
from wechsel_jax.models.encoder import Crossing
from wechsel_jax.objectives.loss import text_sums, token_loss, token_nats, without_padding

MASK_SHARE, RANDOM_SHARE = 0.8, 0.1


class Masked(NamedTuple):
    """Rows with some tokens hidden.

    Attributes:
      tokens: int32 (B, L), what the model sees.
      positions: int32 (B, M), slots for the positions to predict.
      targets: int32 (B, M), the original tokens there.
      chosen: bool (B, M), false for slots that are not used.
    """

    tokens: jax.Array
    positions: jax.Array
    targets: jax.Array
    chosen: jax.Array


def mask_tokens(
    key: jax.Array, tokens: jax.Array, eligible: jax.Array, replacements: jax.Array, mask_token_id: int, rate: float
) -> Masked:
    """Chooses round(rate * n) of the n eligible tokens of each row, uniformly without replacement.

    Each chosen token becomes the mask token (80 %), a token drawn uniformly from `replacements` (10 %) or stays (10 %).
    The papers draw each token alone with probability `rate`; a fixed count a row has that mean but for its rounding (of 3
    tokens at .15 none is chosen), and gives static shapes without dropping any.

    Args:
      key: decides everything.
      tokens: int32 (B, L).
      eligible: bool (B, L), tokens that may be chosen.
      replacements: int32 (n,), ids to draw from.
      mask_token_id: id of the mask token.
      rate: share of the eligible tokens.

    Returns:
      Masked with M = ceil(rate * L) slots a row.
    """
    slots = mask_slots(tokens.shape[1], rate)
    choose_key, kind_key, draw_key = jax.random.split(key, 3)
    rank = jnp.where(eligible, jax.random.uniform(choose_key, tokens.shape), -1.0)
    _, positions = jax.lax.top_k(rank, slots)
    count = jnp.round(rate * jnp.sum(eligible, axis=1)).astype(jnp.int32)
    chosen = jnp.arange(slots) < count[:, None]
    targets = jnp.take_along_axis(tokens, positions, axis=1)
    kind = jax.random.uniform(kind_key, targets.shape)
    drawn = replacements[jax.random.randint(draw_key, targets.shape, 0, replacements.shape[0])]
    seen = jnp.where(kind < MASK_SHARE, mask_token_id, jnp.where(kind < MASK_SHARE + RANDOM_SHARE, drawn, targets))
    seen = jnp.where(chosen, seen, targets).astype(tokens.dtype)
    # Slots of a row are distinct positions, so an unused one writes back its own token and disturbs no other.
    hidden = jax.vmap(lambda row, at, values: row.at[at].set(values, unique_indices=True))(tokens, positions, seen)
    return Masked(hidden, positions, targets, chosen)


def mask_slots(length: int, rate: float) -> int:
    """How many slots a row of `length` tokens needs: ceil(rate * length)."""
    return max(1, min(length, math.ceil(rate * length)))


@dataclasses.dataclass(frozen=True)
class MaskedObjective:
    """Cross-entropy at masked positions. Call it as (params, batch, key, train=...); see `make_objective`."""

    family: Family
    config: ModelConfig
    dtype: str
    mask_token_id: int
    special_ids: tuple[int, ...]
    mask_rate: float
    vocabulary_size: int
    name: str = "mlm"

    @property
    def head_fraction(self) -> float:
        """Share of the positions that go through the head."""
        return self.mask_rate

    @cached_property
    def _special(self) -> np.ndarray:
        special = np.zeros(self.vocabulary_size, bool)
        special[[*self.special_ids, self.mask_token_id]] = True
        return special

    def hide(self, key: jax.Array, tokens: jax.Array, mask: jax.Array | None, weights: jax.Array | None = None) -> Masked:
        """Masks rows as `mask_tokens` does: real tokens of a weight above 0 that are not special ones.

        Args:
          key: decides everything.
          tokens: int32 (B, L).
          mask: bool (B, L) or None.
          weights: (B, L), or (B,) of whole rows, or None.
        """
        eligible = ~jnp.asarray(self._special)[tokens]
        if mask is not None:
            eligible &= jnp.asarray(mask, bool)
        if weights is not None:
            eligible &= (weights[:, None] if weights.ndim == 1 else weights) > 0
        replacements = jnp.asarray(np.flatnonzero(~self._special), jnp.int32)
        return mask_tokens(key, tokens, eligible, replacements, self.mask_token_id, self.mask_rate)

    def logits(self, head: dict, hidden: jax.Array) -> jax.Array:
        """Scores of the vocabulary: hidden (..., d) -> (..., rows of the table) float32, -inf where there is no token."""
        logits = self.family.logits(head, self.config, hidden, dtype=jnp.dtype(self.dtype))
        return without_padding(logits, self.vocabulary_size)

    def __call__(
        self, params: dict, batch: Mapping[str, jax.Array], key: jax.Array, *, train: bool
    ) -> tuple[jax.Array, jax.Array, dict[str, Any]]:
        """Returns what `with_hidden` does, without the hidden states."""
        return self.with_hidden(params, batch, key, train=train)[:3]

    def with_hidden(
        self, params: dict, batch: Mapping[str, jax.Array], key: jax.Array, *, train: bool
    ) -> tuple[jax.Array, jax.Array, dict[str, Any], jax.Array]:
        """Returns (loss_sum in nats, weight_sum, {"correct": weight of the right first guesses}, last hidden states (B, L, d)).

        With "bytes" in the batch, which evaluations give, the metrics have what `loss.text_sums` adds.

        Args:
          params: the model's parameters.
          batch: "tokens" int32 (B, L); "types" int32 (B, L), their segments, where the model tells some apart; "weights"
            float32 (B, L), what each token counts if it is predicted (0: never chosen); "mask" bool (B, L), true for real
            tokens; "bytes" (B, L), how many bytes of text each token stands for; "languages" and "positions", see `Crossing`;
            "linked" int32 (B, L), the position whose state predicts each token, its own where there is none. Weights may be
            (B,), of whole rows; without any a real token counts 1.
          key: drives the masking and, where `train` is true, dropout.
          train: whether dropout is on.
        """
        mask, weights = batch.get("mask"), batch.get("weights")
        mask_key, dropout_key = jax.random.split(key)
        masked = self.hide(mask_key, batch["tokens"], mask, weights)
        crossing = Crossing(batch["languages"], positions=batch.get("positions")) if "languages" in batch else None
        hidden = self.family.hidden(
            params,
            self.config,
            masked.tokens,
            mask,
            batch.get("types"),
            crossing=crossing,
            dropout_key=dropout_key if train else None,
            dtype=jnp.dtype(self.dtype),
        )
        places = masked.positions
        if "linked" in batch:
            places = jnp.take_along_axis(batch["linked"], places, axis=1)
        chosen = jnp.take_along_axis(hidden, places[..., None], axis=1)
        counted = masked.chosen.astype(jnp.float32)
        if weights is not None:
            of_slots = weights[:, None] if weights.ndim == 1 else jnp.take_along_axis(weights, masked.positions, axis=1)
            counted *= of_slots.astype(jnp.float32)
        head = self.family.head(params)
        if "bytes" in batch:
            nats, right = token_nats(self.logits, head, chosen, masked.targets, chosen.shape[1])
            sizes = jnp.take_along_axis(batch["bytes"], masked.positions, axis=1)
            loss, metrics = text_sums(nats, right, counted, sizes)
            return loss, jnp.sum(counted), metrics, hidden
        loss, correct = token_loss(self.logits(head, chosen), masked.targets, counted)
        return loss, jnp.sum(counted), {"correct": correct}, hidden
