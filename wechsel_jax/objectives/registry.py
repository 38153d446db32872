"""Objectives by name."""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import jax

from wechsel_jax.errors import UserError
from wechsel_jax.models import Family, ModelConfig
from wechsel_jax.objectives.cdlm import CrossLingualObjective, TranslationMaskedObjective
from wechsel_jax.objectives.clm import CausalObjective
from wechsel_jax.objectives.mlm import MaskedObjective
from wechsel_jax.objectives.next_sentence import NextSentenceObjective

NAMES = ("clm", "mlm", "mlm_nsp", "cdlm", "tlm", "brlm")


class Objective(Protocol):
    """A loss as sums, so that devices and accumulation steps add up before anything is divided."""

    name: str
    head_fraction: float

    def __call__(
        self, params: dict, batch: Mapping[str, jax.Array], key: jax.Array, *, train: bool
    ) -> tuple[jax.Array, jax.Array, dict[str, Any]]: ...


def make_objective(
    name: str,
    family: Family,
    config: ModelConfig,
    *,
    dtype: str = "float32",
    chunk: int = 0,
    mask_token_id: int | None = None,
    special_ids: Sequence[int] = (),
    mask_rate: float = 0.15,
    vocabulary_size: int | None = None,
    parity: bool = False,
) -> Objective:
    """Returns objective(params, batch, key, *, train) -> (loss_sum, weight_sum, metrics), all float32 sums.

    Args:
      name: "clm", "mlm", "mlm_nsp" (with next sentence prediction), or for translations "cdlm", "tlm" or "brlm".
      family: the model's family.
      config: the model's configuration.
      dtype: what matrix products compute in, "float32" or "bfloat16"; the loss is float32 always.
      chunk: clm, cdlm: positions of a row whose logits exist at once; 0: chosen, see `loss.fitting_chunk`.
      mask_token_id: all but clm: id of the mask token.
      special_ids: all but clm: ids that are never masked and never drawn as a replacement: of special tokens (padding and the
        mask among them) and of rows without a token.
      mask_rate: all but clm: share of the tokens to predict.
      vocabulary_size: how many tokens there are, where the model's tables are padded with rows of none; None: all rows are.
      parity: cdlm: as the public code of TreLM does it, see `CrossLingualObjective`.

    Raises:
      UserError: the name is unknown, does not fit the family, or a setting makes no sense.
    """
    if name not in NAMES:
        raise UserError(f"objective: {name!r} is not known; expected {', '.join(NAMES[:-1])} or {NAMES[-1]}")
    if (name == "clm") != family.causal:
        raise UserError(f"objective: {name} does not fit a {family.name}; expected {'clm' if family.causal else 'mlm'}")
    if name == "cdlm" and not config.tri_layer:
        raise UserError(
            f"objective: cdlm does not fit a {family.name}; expected a model with a TRILayer; train.trelm makes one"
        )
    if name == "mlm_nsp" and not hasattr(family.module, "guess"):
        raise UserError(
            f"objective: mlm_nsp does not fit a {family.name} without a head for it; expected one of `heads.with_next_sentence`"
        )
    if dtype not in ("float32", "bfloat16"):
        raise UserError(f"objective: dtype is {dtype!r}; expected float32 or bfloat16")
    size = config.vocabulary_size if vocabulary_size is None else vocabulary_size
    if not 0 < size <= config.vocabulary_size:
        raise UserError(
            f"objective: {size} tokens do not fit a model of {config.vocabulary_size} rows; expected at most that many"
        )
    if name in ("clm", "cdlm") and chunk < 0:
        raise UserError(f"objective: chunk is {chunk}; expected a number of positions, or 0 to have it chosen")
    if name == "clm":
        return CausalObjective(family, config, dtype, chunk, size)
    masked = _masked(family, config, dtype, mask_token_id, special_ids, mask_rate, size)
    if name == "cdlm":
        return CrossLingualObjective(masked, chunk, parity)
    if name == "mlm_nsp":
        return NextSentenceObjective(masked)
    return masked if name == "mlm" else TranslationMaskedObjective(masked, bridge=name == "brlm")


def _masked(
    family: Family,
    config: ModelConfig,
    dtype: str,
    mask_token_id: int | None,
    special_ids: Sequence[int],
    mask_rate: float,
    size: int,
) -> MaskedObjective:
    if mask_token_id is None:
        raise UserError("objective: mlm needs a mask token; expected a tokenizer that has one; add it or train a causal model")
    special = tuple(sorted({int(i) for i in special_ids} | {int(mask_token_id)}))
    if special[0] < 0 or special[-1] >= size:
        raise UserError(f"objective: special ids {special} do not fit a model of {size} tokens; use the model's own tokenizer")
    if len(special) == size:
        raise UserError(f"objective: all {size} tokens are special; expected a vocabulary with ordinary tokens")
    if not 0.0 < mask_rate <= 1.0:
        raise UserError(f"objective: mask_rate is {mask_rate}; expected a share above 0 and at most 1")
    return MaskedObjective(family, config, dtype, int(mask_token_id), special, float(mask_rate), size)
