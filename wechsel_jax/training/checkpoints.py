"""Checkpoints of a run's state: written in the background, whole or not at all, restored onto any mesh."""

from pathlib import Path
from typing import Any

import jax

from wechsel_jax.errors import UserError
from wechsel_jax.training.step import TrainState


class Checkpoints:
    """The newest checkpoints of a run, one directory a step.

    Args:
      directory: where they are.
      keep: how many; older ones are removed.
    """

    def __init__(self, directory: str | Path, keep: int):
        import orbax.checkpoint as ocp

        self._ocp = ocp
        self.directory = Path(directory).resolve()
        options = ocp.CheckpointManagerOptions(max_to_keep=keep, cleanup_tmp_directories=True, create=True)
        self._manager = ocp.CheckpointManager(self.directory, options=options)

    def latest(self) -> int | None:
        """Returns the step of the newest complete checkpoint, None where there is none."""
        return self._manager.latest_step()

    def save(self, step: int, state: TrainState) -> None:
        """Copies the state to the host and writes it in the background; does nothing where `step` is saved already."""
        if self.latest() != step:
            self._manager.save(step, args=self._ocp.args.StandardSave(state._asdict()))

    def restore(self, step: int, state: TrainState, shardings: TrainState) -> TrainState:
        """Reads a checkpoint.

        Args:
          step: one that is there.
          state: shapes and dtypes, as `jax.eval_shape` gives them.
          shardings: where the arrays shall live; they may have lived elsewhere when they were saved.

        Raises:
          UserError: the checkpoint is damaged or of another model.
        """

        def target(value: Any, where: Any) -> jax.ShapeDtypeStruct:
            return jax.ShapeDtypeStruct(value.shape, value.dtype, sharding=where)

        wanted = jax.tree.map(target, state._asdict(), shardings._asdict())
        try:
            restored = self._manager.restore(step, args=self._ocp.args.StandardRestore(wanted))
        except (ValueError, KeyError, TypeError, FileNotFoundError) as error:
            reason = " ".join(str(error).split())[:200]
            where = self.directory / str(step)
            raise UserError(
                f"{where}: cannot be restored ({reason}); remove this directory to go on from an older one"
            ) from error
        # Restored arrays may share memory with what the reader holds; the training step donates its input, so give it its own.
        own = jax.jit(lambda tree: jax.tree.map(lambda x: x.copy(), tree), out_shardings=shardings._asdict())
        return TrainState(**own(restored))

    def wait(self) -> None:
        """Returns once everything is on disk."""
        self._manager.wait_until_finished()

    def close(self) -> None:
        """Waits and ends the background threads."""
        self._manager.close()
