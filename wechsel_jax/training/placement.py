"""The arrays of a run on its mesh: the state at the start of each phase, batches made ahead, and the evaluation."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeVar

import jax
import numpy as np
from ml_collections import ConfigDict

from wechsel_jax.data import Dataset
from wechsel_jax.errors import UserError
from wechsel_jax.models.weights import unflatten
from wechsel_jax.training import sharding
from wechsel_jax.training.checkpoints import Checkpoints
from wechsel_jax.training.config import groups as read_groups
from wechsel_jax.training.config import phases as make_phases
from wechsel_jax.training.coordinates import Coordinates, with_coordinates
from wechsel_jax.training.groups import assign
from wechsel_jax.training.optimizer import make_optimizer, split, trainable_paths
from wechsel_jax.training.run_spec import RunSpec
from wechsel_jax.training.schedules import phase_at
from wechsel_jax.training.step import (
    EVALUATION_STREAM,
    TrainState,
    make_train_step,
    start_phase,
    state_shardings,
    stream_key,
    train_key,
)

T = TypeVar("T")


def rows_of_batch(config: ConfigDict, mesh: jax.sharding.Mesh) -> int:
    """Returns how many rows are computed at once: a batch, or one of the parts that it is accumulated of.

    Raises:
      UserError: the devices that share them cannot.
    """
    rows, parts = config.batch_size // config.accumulation, sharding.batch_devices(mesh)
    if rows % parts:
        raise UserError(
            f"batch_size: {config.batch_size} in {config.accumulation} parts gives {rows} rows, "
            f"which {parts} devices cannot share; expected a multiple; "
            "change batch_size or accumulation, or set mesh.data to fewer devices"
        )
    return rows


class Placement:
    """The mesh of a run, and the states, steps and batches on it.

    Args:
      config: settings of the run.
      spec: of the run.
      say: shows one line to the user.

    Attributes:
      mesh: ("data", "fsdp", "tensor").
      phases: of the run.
      train_key: uint32 (2,), what the jitted steps take.

    Raises:
      UserError: the devices cannot be laid out as the settings say, or cannot share a batch.
    """

    def __init__(self, config: ConfigDict, spec: RunSpec, say: Callable[[str], None]):
        self._config, self._spec = config, spec
        self.mesh = sharding.make_mesh(config.mesh)
        self.phases = make_phases(config)
        self.train_key = train_key(config.seed)
        self._rows = rows_of_batch(config, self.mesh)
        family = spec.model.family
        shapes = family.shapes(spec.model.device_config)
        self._shapes = unflatten({path: jax.ShapeDtypeStruct(shape, np.float32) for path, shape in shapes.items()})
        self._parameter_shardings, notes = sharding.parameter_shardings(self.mesh, family.sharding_rules, shapes)
        for note in (*notes, *spec.notes):
            say(note)
        # Without groups a run is what it was before there were any.
        self._grouping = None
        if config.optimizer.groups:
            groups = read_groups(config)
            # A transfer's plan is of the tokenizer's tokens; the checkpoint may have rows of padding behind them.
            given = {"tokens": len(spec.model.vocabulary), "checkpoint": config.model.checkpoint}
            self._grouping = assign(groups, family, spec.model.device_config, shapes, **given)
            for group in (group for group in groups if group.coordinates):
                together = [path for path in self._grouping.coordinates if self._grouping.group(path) is group]
                ranks = {self._grouping.coordinates[path].shape[1] for path in together}
                say(
                    f"rows of {', '.join(together)} also move together, by {ranks.pop()} coordinates"
                    if together
                    else f"{config.model.checkpoint}: its transfer gave the tokens no coordinates; each row moves by itself"
                )
        self._optimizer = make_optimizer(config.optimizer, self._grouping, self._parameter_shardings)
        self._trainable = [
            trainable_paths(family, shapes, phase.trainable, phase.layers, self._grouping) for phase in self.phases
        ]
        self._held = sharding.rows_of_process(self.mesh, self._rows)

    @property
    def coordinates(self) -> Mapping[str, Coordinates]:
        """Those of tables whose rows also move together, see `Grouping`."""
        return {} if self._grouping is None else self._grouping.coordinates

    def initial(self) -> TrainState:
        """Returns the state before the first update."""
        return self.first(0, self._spec.initial(self._config.seed, self._parameter_shardings))

    def first(self, index: int, params: dict[str, Any], before: Any = None) -> TrainState:
        """Returns the first state of a phase.

        Args:
          index: of the phase.
          params: on the devices.
          before: optimizer state of the phase before, for a phase that goes on with it.
        """
        phase, shardings = self.phases[index], self._shardings(index)
        previous = before if phase.keep_optimizer else None
        state = start_phase(params, phase.start, self._optimizer, self._trainable[index], shardings, previous)
        if self._grouping is None:
            return state
        return state._replace(opt_state=with_coordinates(state.opt_state, self._grouping.coordinates, shardings.opt_state))

    def restore(self, checkpoints: Checkpoints, step: int) -> TrainState:
        """Returns the state that a checkpoint holds; after the last update of a phase, that is the next one's first state."""
        index = phase_at(self.phases, step)
        opt_state = jax.eval_shape(self._optimizer.init, split(self._shapes, self._trainable[index])[0])
        shapes = TrainState(self._shapes, opt_state, jax.ShapeDtypeStruct((), np.int32))
        return checkpoints.restore(step, shapes, self._shardings(index))

    def batch(self, data: Dataset, step: int) -> dict[str, jax.Array]:
        """Returns the batch of update number `step`, arrays (A, B / A, ...), on its way to the devices."""
        config = self._config
        rows = np.arange(config.batch_size).reshape(config.accumulation, -1)
        batch = data.batch(step, config.batch_size, config.seed, rows[:, self._held].ravel())
        parts = {name: value.reshape(config.accumulation, -1, *value.shape[1:]) for name, value in batch.items()}
        return sharding.put_local(parts, sharding.batch_sharding(self.mesh, accumulated=True), self._held, self._rows)

    def evaluate(
        self, params: dict[str, Any], data: Dataset, watch: Callable[[Iterable[T]], Iterator[T]] = iter
    ) -> dict[str, Any]:
        """Evaluates parameters the same way at every step.

        Args:
          params: on the mesh.
          data: held out; `eval_batches` limits how much of it is read.
          watch: passes the batches on; what it raises ends the evaluation.

        Returns:
          The scores of the run's `Evaluator`.
        """
        config, evaluator = self._config, self._spec.evaluator
        # Smaller parts of a step are more of them, of the same text.
        limit = config.eval_batches and config.eval_batches * config.accumulation
        batches = evaluator.batches(data, self._rows, limit, self._held)
        where = sharding.batch_sharding(self.mesh)
        placed = (sharding.put_local(batch, where, self._held, self._rows) for batch in watch(batches))
        # One key for all evaluations: a masked model is asked for the same tokens each time.
        return evaluator.scores(params, placed, data, stream_key(config.seed, EVALUATION_STREAM))

    def train_step(self, index: int) -> Callable:
        """Returns the jitted step of a phase; see `make_train_step`."""
        return make_train_step(
            self._spec.objective,
            self._optimizer,
            self._trainable[index],
            self._shardings(index),
            grouping=self._grouping,
            statistics=self._config.statistics,
        )

    def learning_rates(self, index: int, step: int) -> np.ndarray:
        """Returns what the jitted step of a phase takes at update number `step` of the run, float32 () or (groups,)."""
        phase = self.phases[index]
        if self._grouping is None:
            return np.float32(phase.learning_rate(step - phase.start))
        return self._grouping.learning_rates(phase, step - phase.start)

    def advice(self) -> dict[str, Any]:
        """Returns the settings that decide how much memory a step takes; see `compile_step`."""
        config = self._config
        return {
            "batch_size": config.batch_size,
            "accumulation": config.accumulation,
            "block_length": config.block_length,
            "model.remat": config.model.remat,
            "mesh.fsdp": self.mesh.shape["fsdp"],
            "batch_devices": sharding.batch_devices(self.mesh),
        }

    def _shardings(self, index: int) -> TrainState:
        return state_shardings(self.mesh, self._parameter_shardings, self._optimizer, self._trainable[index], self._shapes)


class Prefetcher:
    """Makes the batches after the one asked for while the devices compute.

    A batch is what `make(step)` returns, whoever calls it and when, so a run with a prefetcher computes what it would without.
    The thread may place arrays on devices of its own process (which does not wait for them), but must not make the processes
    of a run wait for each other.

    Args:
      make: step -> batch; called from one thread alone, one step after the other.
      depth: how many batches may lie ready; 0 makes each one when it is asked for, without a thread.
      end: the first step that nobody will ask for.
    """

    def __init__(self, make: Callable[[int], Any], depth: int, end: int):
        self._make, self._depth, self._end = make, depth, end
        self._pool: ThreadPoolExecutor | None = None
        self._ahead: deque[tuple[int, Future]] = deque()

    def get(self, step: int) -> Any:
        """Returns the batch of a step. Asking for another step than the next one drops what was made ahead.

        Raises:
          Whatever `make` raised for this step; the next call tries again.
        """
        if self._depth < 1:
            return self._make(step)
        if not self._ahead or self._ahead[0][0] != step:
            self.close()
            self._pool = ThreadPoolExecutor(1, "prefetch")
            self._ahead.append((step, self._pool.submit(self._make, step)))
        for later in range(self._ahead[-1][0] + 1, min(step + self._depth + 1, self._end)):
            self._ahead.append((later, self._pool.submit(self._make, later)))
        try:
            return self._ahead.popleft()[1].result()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Ends the thread and drops what it has made; `get` may be called again."""
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)
            self._pool = None
        self._ahead.clear()
