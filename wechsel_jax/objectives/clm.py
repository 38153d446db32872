"""Causal language modelling: each token from the ones before it."""

import dataclasses
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp

from wechsel_jax.models import Family, ModelConfig
from wechsel_jax.objectives.loss import chunked_loss, text_sums, token_nats, without_padding


@dataclasses.dataclass(frozen=True)
class CausalObjective:
    """Next-token cross-entropy. Call it as (params, batch, key, train=...); see `make_objective`."""

    family: Family
    config: ModelConfig
    dtype: str
    chunk: int
    vocabulary_size: int
    name: str = "clm"
    head_fraction: float = 1.0

    def __call__(
        self, params: dict, batch: Mapping[str, jax.Array], key: jax.Array, *, train: bool
    ) -> tuple[jax.Array, jax.Array, dict[str, Any]]:
        """Returns (loss_sum in nats, weight_sum, {"correct": weight of the right first guesses}), float32 scalars.

        With "bytes" in the batch, which evaluations give, the metrics have what `loss.text_sums` adds.

        Args:
          params: the model's parameters.
          batch: "tokens" int32 (B, L); "weights" float32 (B, L), what each token counts as a predicted one; "mask" bool
            (B, L), true for real tokens; "bytes" (B, L), how many bytes of text each token stands for. Without weights, a
            real token that follows a real token counts 1. Where `train` is true also "soft_tokens" int32 (B, L, c) and
            "soft_weights" float32, what is expected after each token beside the next one, see `loss.token_loss`.
          key: drives dropout; not read where `train` is false.
          train: whether dropout is on.
        """
        tokens, mask = batch["tokens"], batch.get("mask")
        hidden = self.family.hidden(
            params, self.config, tokens, mask, dropout_key=key if train else None, dtype=jnp.dtype(self.dtype)
        )
        weights = batch.get("weights")
        if weights is None:
            real = jnp.ones(tokens.shape, bool) if mask is None else jnp.asarray(mask, bool)
            weights = real.at[:, 1:].set(real[:, 1:] & real[:, :-1])
        # Position i predicts token i + 1. The last one predicts nothing but stays, so that L remains a multiple of the chunk.
        weights = jnp.roll(weights.astype(jnp.float32), -1, axis=1).at[:, -1].set(0.0)
        targets = jnp.roll(tokens, -1, axis=1)
        if "bytes" in batch:
            nats, right = token_nats(self._logits, self.family.head(params), hidden, targets, self.chunk)
            loss, metrics = text_sums(nats, right, weights, jnp.roll(batch["bytes"], -1, axis=1))
            return loss, jnp.sum(weights), metrics
        soft = (batch["soft_tokens"], batch["soft_weights"]) if train and "soft_tokens" in batch else None
        loss, correct = chunked_loss(self._logits, self.family.head(params), hidden, targets, weights, self.chunk, soft)
        return loss, jnp.sum(weights), {"correct": correct}

    def _logits(self, head: dict, hidden: jax.Array) -> jax.Array:
        logits = self.family.logits(head, self.config, hidden, dtype=jnp.dtype(self.dtype))
        return without_padding(logits, self.vocabulary_size)
