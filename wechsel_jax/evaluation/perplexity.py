"""Perplexity and bits per byte of held-out text."""

import math
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import Any, TypeVar

import jax
import numpy as np

from wechsel_jax.errors import UserError

# Sums that some objectives add to their loss and weight.
_METRICS = (
    *("text_loss", "bytes", "cdlm_loss", "cdlm_weight"),
    *("mlm_loss", "nsp_loss", "nsp_correct", "nsp_weight"),
)
_Found = TypeVar("_Found")


def perplexity(
    objective: Callable, params: Any, batches: Iterable[Mapping[str, Any]], key: jax.Array | None = None
) -> dict[str, float | int]:
    """exp of the mean loss over all predicted tokens of all batches, in nats, and bits per byte of text.

    Perplexities of two tokenizers cannot be compared; bits per byte can: nats of the predicted tokens over ln 2 times the bytes
    of text that they stand for, special tokens in neither. For a masked model both are of its masked positions. Batch i is
    masked with key i folded from `key`, so the same tokens are asked for at every evaluation with the same key and batches.

    Args:
      objective: (params, batch, key, train=False) -> (loss_sum, weight_sum, metrics); hashable, equal ones share a compilation.
      params: of the model, on whatever devices and with whatever sharding.
      batches: each as the objective wants it, all of one shape (one compilation); numpy or placed on the devices of `params`.
        Where they have "bytes", bytes are counted.
      key: of the masking; default `jax.random.key(0)`.

    Returns:
      {"loss": nats a token, "perplexity": infinity where exp overflows, "tokens": how many were predicted}, and where bytes
      were counted "bits_per_byte" and "bytes", those of the predicted tokens. Where sentences were predicted from their
      translations, "cdlm_loss" of those and "mlm_loss" of the masked tokens. With next sentence prediction "loss" is the sum of
      "mlm_loss" and "nsp_loss", nats a pair, and there is "nsp_accuracy"; all else is of the masked tokens.

    Raises:
      UserError: no token was predicted.
    """
    key = jax.random.key(0) if key is None else key
    # Added in float64: a float32 sum would lose the small change of a late batch.
    total = np.zeros(2 + len(_METRICS))
    for sums in one_behind(_sums(objective, params, batch, jax.random.fold_in(key, i)) for i, batch in enumerate(batches)):
        total += np.asarray(sums, np.float64)
    loss, weight, text_loss, size, crossed_loss, crossed, masked_loss, guessed_loss, guessed, pairs = total.tolist()
    if not weight > 0:
        raise UserError("evaluation: no token was predicted; expected text with ordinary tokens; give more text")
    mean = (masked_loss if pairs else loss) / weight
    # A NaN stays one.
    value = math.inf if mean > math.log(sys.float_info.max) else math.exp(mean)
    found = {"loss": mean, "perplexity": value, "tokens": round(weight)}
    if crossed:
        found["cdlm_loss"] = crossed_loss / crossed
        found |= {"mlm_loss": (loss - crossed_loss) / (weight - crossed)} if weight > crossed else {}
    if pairs:
        found |= {"loss": mean + guessed_loss / pairs, "mlm_loss": mean}
        found |= {"nsp_loss": guessed_loss / pairs, "nsp_accuracy": guessed / pairs}
    return found | ({"bits_per_byte": text_loss / math.log(2) / size, "bytes": round(size)} if size else {})


def one_behind(found: Iterable[_Found]) -> Iterator[_Found]:
    """Yields what devices find for each batch, read by the host while they are busy with the batch after it, and no further."""
    waiting = None
    for running in found:
        if waiting is not None:
            yield jax.device_get(waiting)
        waiting = running
    if waiting is not None:
        yield jax.device_get(waiting)


@partial(jax.jit, static_argnums=0)
def _sums(objective: Callable, params: Any, batch: Mapping[str, jax.Array], key: jax.Array) -> tuple[Any, ...]:
    loss, weight, metrics = objective(params, batch, key, train=False)
    return loss, weight, *(metrics.get(name, 0.0) for name in _METRICS)
