"""Several processes of one run, one a host."""

import jax
from ml_collections import ConfigDict

from wechsel_jax.errors import UserError


def start(settings: ConfigDict) -> None:
    """Joins the processes of a run, where `settings` ask for it; otherwise there is one process.

    Args:
      settings: `coordinator` "auto" (Cloud TPU, Slurm: JAX finds out) or "host:port" with `processes` and `process`, this one's
        number from 0; empty for one process.

    Raises:
      UserError: the settings are incomplete, or the others cannot be reached.
    """
    if not settings.coordinator or jax.distributed.is_initialized():
        return
    try:
        if settings.coordinator == "auto":
            jax.distributed.initialize()
            return
        if settings.processes < 1 or not 0 <= settings.process < settings.processes:
            raise UserError(
                f"distributed: process {settings.process} of {settings.processes}; "
                "expected processes >= 1 and process from 0 to one less"
            )
        jax.distributed.initialize(settings.coordinator, settings.processes, settings.process)
    except (RuntimeError, ValueError) as error:
        reason = " ".join(str(error).split())[:200]
        raise UserError(
            f"distributed.coordinator: {settings.coordinator}: cannot join the run ({reason}); start every process"
        ) from error


def is_first() -> bool:
    """Whether this process writes the run's files."""
    return jax.process_index() == 0


def barrier(name: str) -> None:
    """Waits until every process is here."""
    if jax.process_count() > 1:
        from jax.experimental import multihost_utils

        multihost_utils.sync_global_devices(name)
