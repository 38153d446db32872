"""Labels for texts, for words and for where answers start and end: cross-entropy of the scores of a head."""

import dataclasses
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp

from wechsel_jax.models import Family, ModelConfig
from wechsel_jax.objectives.loss import token_loss


@dataclasses.dataclass(frozen=True)
class LabelObjective:
    """Cross-entropy of labels, in nats. Call it as (params, batch, key, train=...); see `Objective`.

    Attributes:
      family: with a head for labels, see `models.heads`.
      config: the model's configuration.
      dtype: what matrix products compute in.
      name: "classification", "tagging" or "answers".
    """

    family: Family
    config: ModelConfig
    dtype: str
    name: str
    head_fraction: float = 1.0

    def scores(
        self, params: dict, batch: Mapping[str, jax.Array], key: jax.Array | None = None, *, train: bool = False
    ) -> jax.Array:
        """Returns float32 (B, C), (B, L, C) for tagging or (B, 2, L) for answers; `key` drives dropout in training."""
        return self.family.scores(
            params,
            self.config,
            batch["tokens"],
            batch["mask"],
            batch.get("types"),
            dropout_key=key if train else None,
            dtype=jnp.dtype(self.dtype),
        )

    def loss(self, scores: jax.Array, batch: Mapping[str, jax.Array]) -> tuple[jax.Array, jax.Array]:
        """Returns the sums of the loss and of the weight of the right first guesses, from `scores`."""
        return token_loss(scores, batch["labels"], batch["weights"])

    def __call__(
        self, params: dict, batch: Mapping[str, jax.Array], key: jax.Array, *, train: bool
    ) -> tuple[jax.Array, jax.Array, dict[str, Any]]:
        """Returns (loss_sum in nats, weight_sum, {"correct": weight of the right first guesses}), float32 scalars.

        Args:
          params: the model's parameters.
          batch: of `data.rows.LabelledRows`.
          key: drives dropout.
          train: whether dropout is on.
        """
        loss, correct = self.loss(self.scores(params, batch, key, train=train), batch)
        return loss, jnp.sum(batch["weights"]), {"correct": correct}
