"""From two vocabularies to the target's embedding matrix: one plan, however it was made."""

from wechsel_jax.initializers.method import Method, Setting
from wechsel_jax.initializers.noise import KINDS as NOISES
from wechsel_jax.initializers.noise import draw_noise
from wechsel_jax.initializers.plan import Side, TransferPlan
from wechsel_jax.initializers.registry import METHODS
from wechsel_jax.initializers.transforms import SHUFFLES, STANDARDIZATIONS, shuffle, standardize

__all__ = [
    "METHODS", "NOISES", "SHUFFLES", "STANDARDIZATIONS", "Method", "Setting", "Side", "TransferPlan", "draw_noise",
    "shuffle", "standardize",
]  # fmt: skip
