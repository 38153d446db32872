"""Where the arrays of a run live on its devices, and what they are at the start of a phase."""

from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from ml_collections import ConfigDict

from wechsel_jax.data import TokenBlocks, training_batch
from wechsel_jax.errors import UserError
from wechsel_jax.models.weights import unflatten
from wechsel_jax.training import sharding
from wechsel_jax.training.checkpoints import Checkpoints
from wechsel_jax.training.config import phases as make_phases
from wechsel_jax.training.ingredients import Ingredients
from wechsel_jax.training.optimizer import make_optimizer, split, trainable_paths
from wechsel_jax.training.schedules import phase_at
from wechsel_jax.training.step import TrainState, make_train_step, start_phase, state_shardings


class Layout:
    """The mesh of a run, and the states and batches that are laid out on it.

    Args:
      config: settings of the run.
      ingredients: of the run.
      say: shows one line to the user.

    Attributes:
      mesh: ("data", "fsdp", "tensor").
      phases: of the run.
      rows: of a microbatch of all processes.

    Raises:
      UserError: the devices cannot be laid out as the settings say, or cannot share a batch.
    """

    def __init__(self, config: ConfigDict, ingredients: Ingredients, say: Callable[[str], None]):
        self._config, self._ingredients = config, ingredients
        self.mesh = sharding.make_mesh(config.mesh)
        self.phases = make_phases(config)
        self.rows, parts = config.batch_size // config.accumulation, sharding.batch_devices(self.mesh)
        if self.rows % parts:
            raise UserError(
                f"batch_size: {config.batch_size} in {config.accumulation} parts gives {self.rows} rows, which {parts} devices "
                "cannot share; expected a multiple; change batch_size or accumulation, or set mesh.data to fewer devices"
            )
        family = ingredients.family
        shapes = family.shapes(ingredients.device_model)
        self._shapes = unflatten({path: jax.ShapeDtypeStruct(shape, np.float32) for path, shape in shapes.items()})
        self._parameter_shardings, notes = sharding.parameter_shardings(self.mesh, family.sharding_rules, shapes)
        for note in notes:
            say(note)
        self._optimizer = make_optimizer(config.optimizer)
        self._trainable = [trainable_paths(family, shapes, phase.trainable, phase.layers) for phase in self.phases]
        self._held = sharding.rows_of_process(self.mesh, self.rows)

    def initial(self) -> TrainState:
        """Returns the state before the first update."""
        return self.first(0, self._ingredients.initial(self._config.seed, self._parameter_shardings))

    def first(self, index: int, params: dict[str, Any], before: Any = None) -> TrainState:
        """Returns the first state of a phase.

        Args:
          index: of the phase.
          params: on the devices.
          before: optimizer state of the phase before, for a phase that goes on with it.
        """
        phase = self.phases[index]
        previous = before if phase.keep_optimizer else None
        return start_phase(params, phase.start, self._optimizer, self._trainable[index], self._shardings(index), previous)

    def restore(self, checkpoints: Checkpoints, step: int) -> TrainState:
        """Returns the state that a checkpoint holds; after the last update of a phase, that is the next one's first state."""
        index = phase_at(self.phases, step)
        opt_state = jax.eval_shape(self._optimizer.init, split(self._shapes, self._trainable[index])[0])
        shapes = TrainState(self._shapes, opt_state, jax.ShapeDtypeStruct((), np.int32))
        return checkpoints.restore(step, shapes, self._shardings(index))

    def batch(self, blocks: TokenBlocks, step: int) -> dict[str, jax.Array]:
        """Returns the batch of update number `step`, (A, B / A, L), on its way to the devices."""
        config = self._config
        rows = np.arange(config.batch_size).reshape(config.accumulation, -1)
        batch = training_batch(blocks, step, config.batch_size, config.seed, rows[:, self._held].ravel())
        parts = {name: value.reshape(config.accumulation, -1, *value.shape[1:]) for name, value in batch.items()}
        return sharding.put_local(parts, sharding.batch_sharding(self.mesh, accumulated=True), self._held, self.rows)

    def train_step(self, index: int) -> Callable:
        """Returns the jitted step of a phase; see `make_train_step`."""
        return make_train_step(
            self._ingredients.objective,
            self._optimizer,
            self._trainable[index],
            self._shardings(index),
            self._config.seed,
            statistics=self._config.statistics,
        )

    def advice(self) -> dict[str, Any]:
        """Returns the settings that decide how much memory a step takes; see `compile_step`."""
        config = self._config
        return {
            "batch_size": config.batch_size,
            "accumulation": config.accumulation,
            "block_length": config.block_length,
            "model.remat": config.model.remat,
            "mesh.fsdp": self.mesh.shape["fsdp"],
            "devices": self.mesh.size,
        }

    def _shardings(self, index: int) -> TrainState:
        return state_shardings(self.mesh, self._parameter_shardings, self._optimizer, self._trainable[index], self._shapes)
