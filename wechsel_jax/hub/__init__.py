"""The model card from what was recorded, and the upload to the hub."""

from wechsel_jax.hub.card import model_card
from wechsel_jax.hub.run_facts import RunFacts, read_facts
from wechsel_jax.hub.upload import push

__all__ = ["RunFacts", "model_card", "push", "read_facts"]
