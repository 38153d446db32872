"""Perplexity of held-out text."""

import math
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any

import jax

from wechsel_jax.errors import UserError

Step = Callable[[Any, Mapping[str, Any], jax.Array], tuple[jax.Array, jax.Array]]


def evaluation_step(objective: Callable) -> Step:
    """Returns the jitted (params, batch, key) -> (loss_sum, weight_sum); equal objectives share one compilation."""
    return partial(_sums, objective)


@partial(jax.jit, static_argnums=0)
def _sums(objective: Callable, params: Any, batch: Mapping[str, jax.Array], key: jax.Array) -> tuple[jax.Array, jax.Array]:
    loss, weight, _ = objective(params, batch, key, train=False)
    return loss, weight


def perplexity(
    objective: Callable,
    params: Any,
    batches: Iterable[Mapping[str, Any]],
    key: jax.Array | None = None,
    *,
    step: Step | None = None,
) -> dict[str, float | int]:
    """exp of the mean loss over all predicted tokens of all batches, in nats.

    For a masked model this is the exponential of its loss at masked positions. Batch i is masked with key i folded from `key`,
    so the same tokens are asked for at every evaluation that is given the same key and batches.

    Args:
      objective: (params, batch, key, train=False) -> (loss_sum, weight_sum, metrics); hashable.
      params: of the model, on whatever devices and with whatever sharding.
      batches: each as the objective wants it, all of one shape (one compilation); numpy or placed on the devices of `params`.
      key: of the masking; default `jax.random.key(0)`.
      step: an `evaluation_step` of the objective to use in place of its own, e.g. a compiled one; it may return more sums.

    Returns:
      {"loss": nats a token, "perplexity": infinity where exp overflows, "tokens": how many were predicted}.

    Raises:
      UserError: no token was predicted.
    """
    step = evaluation_step(objective) if step is None else step
    key = jax.random.key(0) if key is None else key
    total = _Total()
    waiting = None
    for number, batch in enumerate(batches):
        sums = step(params, batch, jax.random.fold_in(key, number))[:2]
        # Reading the sums of the batch before leaves one batch running while the next is made, and no more than that.
        total.add(waiting)
        waiting = sums
    total.add(waiting)
    if not total.weight > 0:
        raise UserError("evaluation: no token was predicted; expected text with ordinary tokens; give more text")
    loss = total.loss / total.weight
    return {"loss": loss, "perplexity": _exp(loss), "tokens": round(total.weight)}


class _Total:
    """Sums in float64: a float32 sum would lose the small change of a late batch."""

    def __init__(self):
        self.loss = self.weight = 0.0

    def add(self, sums: tuple[jax.Array, jax.Array] | None) -> None:
        if sums is not None:
            loss, weight = jax.device_get(sums)
            self.loss += float(loss)
            self.weight += float(weight)


def _exp(value: float) -> float:
    try:
        return math.exp(value)
    except OverflowError:
        return math.inf
