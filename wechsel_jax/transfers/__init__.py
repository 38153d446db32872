"""The main job, a source checkpoint to a target checkpoint: read `job` first; `settings` holds everything it may be told."""

from wechsel_jax.transfers.job import transfer

__all__ = ["transfer"]
