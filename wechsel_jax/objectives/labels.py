"""Labels for texts and words, where answers start and end, and trees: cross-entropy of the scores of a head."""

import dataclasses
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp

from wechsel_jax.models import Family, ModelConfig
from wechsel_jax.models.trees import TreeScores
from wechsel_jax.objectives.loss import token_loss


@dataclasses.dataclass(frozen=True)
class LabelObjective:
    """Cross-entropy of labels, in nats. Call it as (params, batch, key, train=...); see `Objective`.

    Attributes:
      family: with a head for labels, see `models.heads`.
      config: the model's configuration.
      dtype: what matrix products compute in.
      name: of the form, see `models.heads.FORMS`.
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
        return self._scores(params, batch, key if train else None)

    def _scores(self, params: dict, batch: Mapping[str, jax.Array], key: jax.Array | None, **words: jax.Array) -> Any:
        given = (batch["tokens"], batch["mask"], batch.get("types"))
        dtype = jnp.dtype(self.dtype)
        return self.family.scores(params, self.config, *given, dropout_key=key, dtype=dtype, **words)

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


@dataclasses.dataclass(frozen=True)
class ParsingObjective(LabelObjective):
    """Cross-entropy of the head of each word and of the relation to the right head (Dozat and Manning, 2017)."""

    def scores(
        self, params: dict, batch: Mapping[str, jax.Array], key: jax.Array | None = None, *, train: bool = False
    ) -> TreeScores:
        """Returns scores of W = L words, those of the labels to the right heads; `key` drives dropout in training."""
        return self._scores(params, batch, key if train else None, words=batch["words"], heads=batch["heads"])

    def loss(self, scores: TreeScores, batch: Mapping[str, jax.Array]) -> tuple[jax.Array, jax.Array]:
        """Returns the sums over words of the loss and of the right first guesses of heads."""
        weights, labels = batch["weights"], batch["labels"]
        of_heads, correct = token_loss(scores.arcs, batch["heads"], weights)
        # A relation that the model does not know can only be missed.
        of_labels, _ = token_loss(scores.labels, jnp.maximum(labels, 0), weights * (labels >= 0))
        return of_heads + of_labels, correct


def label_objective(family: Family, config: ModelConfig, dtype: str, form: str) -> LabelObjective:
    """Returns the objective of a form of `models.heads.FORMS`."""
    return (ParsingObjective if form == "parsing" else LabelObjective)(family, config, dtype, form)
