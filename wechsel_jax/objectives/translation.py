"""Translation: each token of a target from the ones before it and the source."""

import dataclasses
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp

from wechsel_jax.models import ModelConfig
from wechsel_jax.models.vanilla import TransformerFamily
from wechsel_jax.objectives.loss import chunked_loss


@dataclasses.dataclass(frozen=True)
class TranslationObjective:
    """Cross-entropy of targets, in nats. Call it as (params, batch, key, train=...); see `Objective`.

    Attributes:
      family: `vanilla.TRANSLATOR`.
      config: the model's configuration.
      dtype: what matrix products compute in.
      chunk: positions of a row whose logits exist at once; 0: chosen, see `loss.fitting_chunk`.
    """

    family: TransformerFamily
    config: ModelConfig
    dtype: str
    chunk: int = 0
    name: str = "translation"
    head_fraction: float = 1.0

    def __call__(
        self, params: dict, batch: Mapping[str, jax.Array], key: jax.Array, *, train: bool
    ) -> tuple[jax.Array, jax.Array, dict[str, Any]]:
        """Returns (loss_sum in nats, weight_sum, {"correct": weight of the right first guesses}), float32 scalars.

        Args:
          params: the model's parameters.
          batch: of `data.pairs.TranslationRows`.
          key: drives dropout.
          train: whether dropout is on.
        """
        hidden = self.family.translate(
            params,
            self.config,
            batch["tokens"],
            batch["mask"],
            batch["targets"],
            dropout_key=key if train else None,
            dtype=jnp.dtype(self.dtype),
        )
        head, weights = self.family.head(params), batch["weights"]
        loss, correct = chunked_loss(self.logits, head, hidden, batch["labels"], weights, self.chunk)
        return loss, jnp.sum(weights), {"correct": correct}

    def logits(self, head: dict, hidden: jax.Array) -> jax.Array:
        """Scores of the target's vocabulary: hidden (..., d) -> (..., V_t) float32."""
        return self.family.logits(head, self.config, hidden, dtype=jnp.dtype(self.dtype))
