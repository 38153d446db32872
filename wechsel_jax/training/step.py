"""One update of the parameters: sums over microbatches and devices first, then one division."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import Mesh

from wechsel_jax.objectives import Objective
from wechsel_jax.training import sharding
from wechsel_jax.training.groups import Grouping
from wechsel_jax.training.optimizer import join, kept, split, trained_shardings, whole

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


def train_key(seed: int) -> np.ndarray:
    """Returns the key that a step takes, uint32 (2,): of numpy, which every process of a run may give as its own."""
    return np.asarray(jax.random.key_data(stream_key(seed, TRAIN_STREAM)))


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
    where = sharding.matching_shardings(opt_state, trained_shardings(params, trainable), mesh)
    return TrainState(dict(params), where, sharding.replicated(mesh))


def start_phase(
    params: Mapping[str, Any],
    step: int,
    optimizer: optax.GradientTransformation,
    trainable: frozenset[str],
    shardings: TrainState,
    previous: Any = None,
) -> TrainState:
    """Returns a state with new optimizer state for the parameters that the phase trains; `params` are taken as they are.

    With `previous`, the optimizer state of the phase before, parameters that trained there keep what it holds about them.
    """
    init = jax.jit(lambda params: optimizer.init(split(params, trainable)[0]), out_shardings=shardings.opt_state)
    opt_state = init(params) if previous is None else kept(init(params), previous)
    return TrainState(dict(params), opt_state, jax.device_put(jnp.int32(step), shardings.step))


def make_train_step(
    objective: Objective,
    optimizer: optax.GradientTransformation,
    trainable: frozenset[str],
    shardings: TrainState,
    *,
    grouping: Grouping | None = None,
    statistics: bool = False,
) -> Callable[[TrainState, Mapping[str, jax.Array], Any, np.ndarray], tuple[TrainState, dict[str, jax.Array]]]:
    """Returns the jitted step of a phase: (state, batch, learning_rate, key) -> (state, metrics).

    `learning_rate` is a float32 scalar, or with a grouping float32 (groups,), see `Grouping.learning_rates`. `key` is what
    `train_key` returns; it is no constant of the program, so that seeds share one that is cached. The state that goes in is
    donated. `batch` holds arrays (A, B / A, L): A microbatches whose gradients are summed before the update, so that
    A changes memory and nothing else (dropout and masking keys are folded from key, step and microbatch). Where the loss or
    the gradient is not finite, parameters and optimizer state come out as they went in, bit for bit, and `step` advances: the
    update is skipped.

    Metrics are scalars of the whole batch before the update: "loss" (nats a predicted token), "weight" (predicted tokens),
    "gradient_norm" (of the trainable parameters, before clipping), "finite" (bool, whether the update was made). With
    `statistics` there are "gradient_norm/GROUP" and "update_norm/GROUP" (of what was added to the parameters), where a group is
    the first part of a path, or "layers/PART".
    """
    gradient_shardings = trained_shardings(shardings.params, trainable)

    @partial(jax.jit, donate_argnums=0, out_shardings=(shardings, None))
    def train_step(
        state: TrainState, batch: Mapping[str, jax.Array], learning_rate: jax.Array, key: jax.Array
    ) -> tuple[TrainState, dict]:
        trained, frozen = split(state.params, trainable)
        step_key = jax.random.fold_in(jax.random.wrap_key_data(key), state.step)
        loss, weight, grads = _total(objective, trained, frozen, batch, step_key, gradient_shardings)
        weight_or_one = jnp.maximum(weight, 1e-6)
        loss, grads = jax.tree.map(lambda x: x / weight_or_one, (loss, grads))
        norm = _norm(grads)
        finite = jnp.isfinite(loss) & jnp.isfinite(norm)
        metrics = {"loss": loss, "weight": weight, "gradient_norm": norm, "finite": finite}
        direction, opt_state = optimizer.update(grads, state.opt_state, trained)

        def update(place: tuple, direction: jax.Array) -> jax.Array:
            rate = learning_rate if grouping is None else learning_rate[grouping.of[whole(place[-1].key)]]
            return rate * direction

        updates = jax.tree_util.tree_map_with_path(update, direction)
        if statistics:
            metrics |= _by_group("gradient_norm", grads)
            metrics |= {name: jnp.where(finite, x, 0.0) for name, x in _by_group("update_norm", updates).items()}

        def unless_skipped(new: jax.Array, old: jax.Array) -> jax.Array:
            return jnp.where(finite, new, old)

        opt_state = jax.tree.map(unless_skipped, opt_state, state.opt_state)
        trained = jax.tree.map(lambda x, u: unless_skipped(x - u, x), trained, updates)
        return TrainState(join(trained, frozen), opt_state, state.step + 1), metrics

    return train_step


def _total(
    objective: Objective,
    trained: dict[str, jax.Array],
    frozen: dict[str, jax.Array],
    batch: Mapping[str, jax.Array],
    key: jax.Array,
    gradient_shardings: Mapping[str, Any],
) -> tuple[jax.Array, jax.Array, dict[str, jax.Array]]:
    """Sums of loss, weight and gradients by the trained parameters over all microbatches."""

    def sums(trained: dict, microbatch: Mapping[str, jax.Array], key: jax.Array) -> tuple[jax.Array, jax.Array]:
        loss, weight, _ = objective(join(trained, frozen), microbatch, key, train=True)
        return loss, weight

    def part(microbatch: Mapping[str, jax.Array], i: Any) -> tuple[jax.Array, jax.Array, dict[str, jax.Array]]:
        gradient = jax.value_and_grad(sums, has_aux=True)
        (loss, weight), grads = gradient(trained, microbatch, jax.random.fold_in(key, i))
        return loss, weight, jax.lax.with_sharding_constraint(grads, gradient_shardings)

    def add(carry: tuple, numbered: tuple) -> tuple[tuple, None]:
        loss, weight, grads = jax.tree.map(jnp.add, carry, part(*numbered))
        return (loss, weight, jax.lax.with_sharding_constraint(grads, gradient_shardings)), None

    count = batch["tokens"].shape[0]
    if count == 1:
        return part(jax.tree.map(lambda x: x[0], dict(batch)), 0)
    start = (jnp.float32(0), jnp.float32(0), jax.tree.map(jnp.zeros_like, trained))
    return jax.lax.scan(add, start, (dict(batch), jnp.arange(count)))[0]


def group(path: str) -> str:
    """The group of a parameter in the statistics: the first part of its path, for layers the first two."""
    parts = whole(path).split("/")
    return "/".join(parts[: 2 if parts[0] == "layers" else 1])


def _by_group(name: str, flat: Mapping[str, jax.Array]) -> dict[str, jax.Array]:
    """Norms of flat arrays by the group of their path, as metrics."""
    groups: dict[str, list[jax.Array]] = {}
    for path, leaf in sorted(flat.items()):
        groups.setdefault(group(path), []).append(leaf)
    return {f"{name}/{where}": _norm(leaves) for where, leaves in groups.items()}


def _norm(tree: Any) -> jax.Array:
    return jnp.sqrt(sum(jnp.sum(jnp.square(leaf)) for leaf in jax.tree.leaves(tree)))
