"""Training objectives: (params, batch, key) -> (loss_sum, weight_sum, metrics). Sums, never means."""

from wechsel_jax.objectives.registry import Objective, make_objective

__all__ = ["Objective", "make_objective"]
