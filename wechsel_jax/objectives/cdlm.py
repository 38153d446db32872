"""Objectives for pairs of sentences: TreLM's cross-lingual language modelling, and those that it is compared with."""

import dataclasses
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp

from wechsel_jax.models.encoder import Crossing
from wechsel_jax.objectives.loss import chunked_loss, token_nats
from wechsel_jax.objectives.mlm import MaskedObjective


@dataclasses.dataclass(frozen=True)
class CrossLingualObjective:
    """CdLM and MLM in the same batch (Li et al., 2021, section 3.1). Call it as (params, batch, key, train=...).

    A row of CdLM reads a sentence unmasked, reorders its states as the links between the two sentences say, and predicts every
    token of the other sentence, those around it too. A row of MLM reads a sentence of which some tokens are hidden, in its own
    order, and predicts those. All predicted tokens count the same, so CdLM counts about 1 / 0.15 times as much as MLM where
    there are as many rows of both.

    Attributes:
      masked: what masks the rows of MLM, and the model.
      chunk: positions of a row whose logits exist at once; 0: chosen, see `loss.fitting_chunk`.
      parity: compute as the public code does. Its TRILayer sees all positions, padding too; the layers above it see as many as
        the source sentence has; and in BERT the embeddings are those of the last language whatever the sentence is.
    """

    masked: MaskedObjective
    chunk: int
    parity: bool = False
    name: str = "cdlm"
    head_fraction: float = 1.0

    def __call__(
        self, params: dict, batch: Mapping[str, jax.Array], key: jax.Array, *, train: bool
    ) -> tuple[jax.Array, jax.Array, dict[str, Any]]:
        """Returns (loss_sum in nats, weight_sum, {"correct": weight of the right first guesses}), float32 scalars.

        In evaluations the metrics have "cdlm_loss" and "cdlm_weight" too, the sums of the rows of CdLM alone.

        Args:
          params: the model's parameters.
          batch: "tokens" int32 (B, L), "mask" bool (B, L) and "languages" int32 (B,) of what is read; "targets", "target_mask"
            and "target_languages" likewise of what is predicted; "order" int32 (B, L), for each target position the position
            that it is read from; "masked" bool (B,), whether the row is one of MLM, whose two sides are the same; "weights"
            float32 (B,) or (B, L), what each token counts if it is predicted, 1 where there are none.
          key: drives the masking and, where `train` is true, dropout.
          train: whether dropout is on.
        """
        family, config, dtype = self.masked.family, self.masked.config, jnp.dtype(self.masked.dtype)
        mask_key, dropout_key = jax.random.split(key)
        mask, target_mask, is_masked = batch["mask"], batch["target_mask"], batch["masked"][:, None]
        hidden_away = self.masked.hide(mask_key, batch["tokens"], mask & is_masked)
        languages, tri_mask = batch["languages"], None
        visible = target_mask
        if self.parity:
            visible, tri_mask = mask, jnp.ones_like(mask)
            # RoBERTa's code passes the language on.
            languages = languages if config.positions == "padded" else jnp.full_like(languages, config.language_count - 1)
        crossing = Crossing(languages, batch["order"], visible, batch["target_languages"], tri_mask)
        hidden = family.hidden(
            params,
            config,
            hidden_away.tokens,
            mask,
            crossing=crossing,
            dropout_key=dropout_key if train else None,
            dtype=dtype,
        )
        chosen = jax.vmap(lambda at, real: jnp.zeros(mask.shape[1], bool).at[at].set(real, unique_indices=True))(
            hidden_away.positions, hidden_away.chosen
        )
        weights = jnp.where(is_masked, chosen, target_mask).astype(jnp.float32)
        if "weights" in batch:
            given = batch["weights"].astype(jnp.float32)
            weights *= given[:, None] if given.ndim == 1 else given
        head, targets = family.head(params), batch["targets"]
        if train:
            loss, correct = chunked_loss(self.masked.logits, head, hidden, targets, weights, self.chunk)
            return loss, jnp.sum(weights), {"correct": correct}
        nats, right = token_nats(self.masked.logits, head, hidden, targets, self.chunk)
        crossed = jnp.where(is_masked, 0.0, weights)
        metrics = {"correct": jnp.sum(weights * right), "cdlm_loss": jnp.sum(crossed * nats), "cdlm_weight": jnp.sum(crossed)}
        return jnp.sum(weights * nats), jnp.sum(weights), metrics


@dataclasses.dataclass(frozen=True)
class TranslationMaskedObjective:
    """TLM (Conneau & Lample, 2019, section 3.3): MLM over the two sentences of a pair, one behind the other.

    Every token has its own language, and positions begin anew in the second sentence. Rows of MLM keep their one sentence.

    With `bridge` it is bridge language modelling (Ji et al., 2020) as we read what Li et al. (appendix A.4) say of it: a masked
    token that is linked with one of the other sentence is predicted from that one's state, so that words which translate each
    other get alike states. The others are predicted from their own.
    """

    masked: MaskedObjective
    bridge: bool = False

    @property
    def name(self) -> str:
        """As the settings call it."""
        return "brlm" if self.bridge else "tlm"

    @property
    def head_fraction(self) -> float:
        """Share of the positions of both sentences that go through the head."""
        return self.masked.mask_rate

    def __call__(
        self, params: dict, batch: Mapping[str, jax.Array], key: jax.Array, *, train: bool
    ) -> tuple[jax.Array, jax.Array, dict[str, Any]]:
        """Returns what `MaskedObjective` does, for rows of 2 L tokens; the batch is that of `CrossLingualObjective`."""
        config, length = self.masked.config, batch["tokens"].shape[1]
        masks = batch["mask"], batch["target_mask"] & ~batch["masked"][:, None]
        positions = [jnp.broadcast_to(jnp.arange(length), batch["tokens"].shape)] * 2
        if config.positions == "padded":
            positions = [jnp.cumsum(mask, axis=1) * mask + config.pad_token_id for mask in masks]
        pair = {
            "tokens": jnp.concatenate([batch["tokens"], batch["targets"]], axis=1),
            "mask": jnp.concatenate(masks, axis=1),
            "languages": jnp.repeat(jnp.stack([batch["languages"], batch["target_languages"]], axis=1), length, axis=1),
            "positions": jnp.concatenate(positions, axis=1),
        }
        if self.bridge:
            pair["linked"] = self._linked(batch)
        if "weights" in batch:
            given = batch["weights"]
            pair["weights"] = given if given.ndim == 1 else jnp.concatenate([given, given], axis=1)
        return self.masked(params, pair, key, train=train)

    @staticmethod
    def _linked(batch: Mapping[str, jax.Array]) -> jax.Array:
        """int32 (B, 2 L): the position that each token is linked with, its own where there is none.

        Of several tokens that are linked with the same one of the first sentence, that one takes the last.
        """
        rows, length = batch["order"].shape
        own = jnp.broadcast_to(jnp.arange(length, dtype=jnp.int32), (rows, length))
        # The placeholder of what is not linked is no token of the first sentence.
        crossed = batch["target_mask"] & ~batch["masked"][:, None]
        crossed &= jnp.take_along_axis(batch["mask"], batch["order"], axis=1)
        back = jax.vmap(lambda at, place: jnp.full(length, -1, jnp.int32).at[at].max(place))(
            batch["order"], jnp.where(crossed, own, -1)
        )
        return jnp.concatenate(
            [jnp.where(back >= 0, back + length, own), jnp.where(crossed, batch["order"], own + length)], axis=1
        )
