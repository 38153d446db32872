"""The upload of a model directory to the hub."""

from wechsel_jax.hub.upload import push

__all__ = ["push"]
