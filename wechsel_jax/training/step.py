"""One update of the parameters: sums over microbatches and devices first, then one division."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax.sharding import Mesh

from wechsel_jax.models.weights import flatten
from wechsel_jax.objectives import Objective
from wechsel_jax.training import sharding
from wechsel_jax.training.optimizer import join, split

# Streams of random numbers of a run; each is folded into the seed's key.
INIT_STREAM, TRAIN_STREAM, EVALUATION_STREAM = 0, 1, 2


class TrainState(NamedTuple):
    """All that a run needs to go on.

    Attributes:
      params: nested dictionary of float32 arrays.
      opt_state: optimizer state of the trainable parameters of the current phase.
      step: int32 scalar, updates made so far.
    """

    params: dict[str, Any]
    opt_state: Any
    step: jax.Array


def stream_key(seed: int, stream: int) -> jax.Array:
    """Returns the key of one of a run's streams of random numbers."""
    return jax.random.fold_in(jax.random.key(seed), stream)


def state_shardings(
    mesh: Mesh,
    params: Mapping[str, Any],
    optimizer: optax.GradientTransformation,
    trainable: frozenset[str],
    shapes: Mapping[str, Any],
) -> TrainState:
    """Returns a TrainState of NamedSharding for a phase.

    Args:
      mesh: of the run.
      params: nested NamedSharding of the parameters.
      optimizer: of the phase.
      trainable: paths that the phase trains.
      shapes: nested `jax.ShapeDtypeStruct` of the parameters.
    """
    opt_state = jax.eval_shape(optimizer.init, split(shapes, trainable)[0])
    return TrainState(dict(params), sharding.matching_shardings(opt_state, params, mesh), sharding.replicated(mesh))


def start_phase(
    params: Mapping[str, Any],
    step: int,
    optimizer: optax.GradientTransformation,
    trainable: frozenset[str],
    shardings: TrainState,
) -> TrainState:
    """Returns a state with new optimizer state for the parameters that the phase trains; `params` are taken as they are."""
    init = jax.jit(lambda params: optimizer.init(split(params, trainable)[0]), out_shardings=shardings.opt_state)
    return TrainState(dict(params), init(params), jax.device_put(jnp.int32(step), shardings.step))


def make_train_step(
    objective: Objective, optimizer: optax.GradientTransformation, trainable: frozenset[str], shardings: TrainState, seed: int
) -> Callable[[TrainState, Mapping[str, jax.Array], Any], tuple[TrainState, dict[str, jax.Array]]]:
    """Returns the jitted step of a phase: (state, batch, learning_rate) -> (state, metrics).

    The state that goes in is donated. `batch` holds arrays (A, B / A, L): A microbatches whose gradients are summed before the
    update, so that A changes memory and nothing else (dropout and masking keys are folded from seed, step and microbatch).
    Metrics are scalars of the whole batch before the update: "loss" (nats a predicted token), "weight" (predicted tokens),
    "gradient_norm" (of the trainable parameters, before clipping).
    """
    key = stream_key(seed, TRAIN_STREAM)
    gradient_shardings = {path: where for path, where in flatten(shardings.params).items() if path in trainable}

    def sums(trained: dict, frozen: dict, microbatch: Mapping[str, jax.Array], key: jax.Array) -> tuple[jax.Array, jax.Array]:
        loss, weight, _ = objective(join(trained, frozen), microbatch, key, train=True)
        return loss, weight

    def total(trained: dict, frozen: dict, batch: Mapping[str, jax.Array], key: jax.Array) -> tuple[Any, Any, Any]:
        count = batch["tokens"].shape[0]
        gradient = jax.value_and_grad(sums, has_aux=True)

        def add(carry: tuple, part: tuple) -> tuple[tuple, None]:
            microbatch, i = part
            (loss, weight), grads = gradient(trained, frozen, microbatch, jax.random.fold_in(key, i))
            carry = jax.tree.map(jnp.add, carry, (loss, weight, grads))
            return (*carry[:2], jax.lax.with_sharding_constraint(carry[2], gradient_shardings)), None

        start = (jnp.float32(0), jnp.float32(0), jax.tree.map(jnp.zeros_like, trained))
        if count == 1:
            return add(start, (jax.tree.map(lambda x: x[0], dict(batch)), 0))[0]
        return jax.lax.scan(add, start, (dict(batch), jnp.arange(count)))[0]

    @partial(jax.jit, donate_argnums=0, out_shardings=(shardings, None))
    def train_step(state: TrainState, batch: Mapping[str, jax.Array], learning_rate: jax.Array) -> tuple[TrainState, dict]:
        trained, frozen = split(state.params, trainable)
        loss, weight, grads = total(trained, frozen, batch, jax.random.fold_in(key, state.step))
        weight_or_one = jnp.maximum(weight, 1e-6)
        grads = jax.tree.map(lambda x: x / weight_or_one, grads)
        metrics = {"loss": loss / weight_or_one, "weight": weight, "gradient_norm": _norm(grads)}
        direction, opt_state = optimizer.update(grads, state.opt_state, trained)
        trained = jax.tree.map(lambda x, u: x - learning_rate * u, trained, direction)
        return TrainState(join(trained, frozen), opt_state, state.step + 1), metrics

    return train_step


def _norm(tree: Any) -> jax.Array:
    return jnp.sqrt(sum(jnp.sum(jnp.square(leaf)) for leaf in jax.tree.leaves(tree)))
