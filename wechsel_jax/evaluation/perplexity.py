"""Perplexity of held-out text."""

import math
import sys
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any

import jax

from wechsel_jax.errors import UserError


def perplexity(
    objective: Callable, params: Any, batches: Iterable[Mapping[str, Any]], key: jax.Array | None = None
) -> dict[str, float | int]:
    """exp of the mean loss over all predicted tokens of all batches, in nats.

    For a masked model this is the exponential of its loss at masked positions. Batch i is masked with key i folded from `key`,
    so the same tokens are asked for at every evaluation that is given the same key and batches.

    Args:
      objective: (params, batch, key, train=False) -> (loss_sum, weight_sum, metrics); hashable, equal ones share a compilation.
      params: of the model, on whatever devices and with whatever sharding.
      batches: each as the objective wants it, all of one shape (one compilation); numpy or placed on the devices of `params`.
      key: of the masking; default `jax.random.key(0)`.

    Returns:
      {"loss": nats a token, "perplexity": infinity where exp overflows, "tokens": how many were predicted}.

    Raises:
      UserError: no token was predicted.
    """
    key = jax.random.key(0) if key is None else key
    loss = weight = 0.0
    waiting = None
    for number, batch in enumerate(batches):
        sums = _sums(objective, params, batch, jax.random.fold_in(key, number))
        # Reading the sums of the batch before leaves one batch running while the next is made, and no more than that.
        loss, weight = _added(loss, weight, waiting)
        waiting = sums
    loss, weight = _added(loss, weight, waiting)
    if not weight > 0:
        raise UserError("evaluation: no token was predicted; expected text with ordinary tokens; give more text")
    mean = loss / weight
    # A NaN stays one.
    value = math.inf if mean > math.log(sys.float_info.max) else math.exp(mean)
    return {"loss": mean, "perplexity": value, "tokens": round(weight)}


@partial(jax.jit, static_argnums=0)
def _sums(objective: Callable, params: Any, batch: Mapping[str, jax.Array], key: jax.Array) -> tuple[jax.Array, jax.Array]:
    loss, weight, _ = objective(params, batch, key, train=False)
    return loss, weight


def _added(loss: float, weight: float, sums: tuple[jax.Array, jax.Array] | None) -> tuple[float, float]:
    """Adds in float64: a float32 sum would lose the small change of a late batch."""
    if sums is None:
        return loss, weight
    more_loss, more_weight = jax.device_get(sums)
    return loss + float(more_loss), weight + float(more_weight)
