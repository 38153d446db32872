"""Masked language modelling and next sentence prediction, as BERT is pretrained (Devlin et al., 2019, section 3.1)."""

import dataclasses
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp

from wechsel_jax.objectives.loss import token_loss
from wechsel_jax.objectives.mlm import MaskedObjective


@dataclasses.dataclass(frozen=True)
class NextSentenceObjective:
    """The mean over the masked tokens plus the mean over the pairs. Call it as (params, batch, key, train=...).

    As sums: a pair counts as many times as there are masked tokens for each pair of the batch. In the parts of an accumulated
    update these numbers differ a little where rows differ in length.

    Attributes:
      masked: what masks the tokens, and the model, of a family of `heads.with_next_sentence`.
    """

    masked: MaskedObjective
    name: str = "mlm_nsp"

    @property
    def head_fraction(self) -> float:
        """Share of the positions that go through the head."""
        return self.masked.head_fraction

    def __call__(
        self, params: dict, batch: Mapping[str, jax.Array], key: jax.Array, *, train: bool
    ) -> tuple[jax.Array, jax.Array, dict[str, Any]]:
        """Returns what `MaskedObjective` does, with both losses in the sum, and metrics of their own.

        These are "mlm_loss", the sum over the masked tokens, whose weight is weight_sum; and "nsp_loss", "nsp_correct" and
        "nsp_weight", the sums over pairs. What else there is, is of the masked tokens.

        Args:
          params: the model's parameters.
          batch: of `data.sentences.SentencePairs`; in evaluations "weights" float32 (B,) too, 0 for rows that do not count.
          key: drives the masking and, where `train` is true, dropout.
          train: whether dropout is on.
        """
        loss, weight, metrics, hidden = self.masked.with_hidden(params, batch, key, train=train)
        classifier = {"classifier": params["classifier"]}
        scores = self.masked.family.apply(classifier, self.masked.config, hidden, method="guess", dtype=self.masked.dtype)
        weights = batch.get("weights", jnp.ones(len(batch["labels"]), jnp.float32))
        pairs = jnp.sum(weights)
        guessed, correct = token_loss(scores, batch["labels"], weights)
        metrics |= {"mlm_loss": loss, "nsp_loss": guessed, "nsp_correct": correct, "nsp_weight": pairs}
        return loss + guessed * weight / jnp.maximum(pairs, 1.0), weight, metrics
