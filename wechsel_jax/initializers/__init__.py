"""From two vocabularies to the target's embedding matrix: one plan, however it was made."""

from wechsel_jax.initializers.neighbors import nearest_neighbors
from wechsel_jax.initializers.plan import Side, TransferPlan, draw_noise
from wechsel_jax.initializers.registry import METHODS, Method

__all__ = ["METHODS", "Method", "Side", "TransferPlan", "draw_noise", "nearest_neighbors"]
