"""A score before training: what a transfer made, in numbers, and in plain words what looks off."""

from wechsel_jax.inspection.facts import completed, measure, score, score_vectors
from wechsel_jax.inspection.origins import origins
from wechsel_jax.inspection.verdict import summary, verdict

__all__ = ["completed", "measure", "origins", "score", "score_vectors", "summary", "verdict"]
