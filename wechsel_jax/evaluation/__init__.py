"""Scores of models: one contract, one registry."""

from wechsel_jax.evaluation.perplexity import evaluation_step, perplexity
from wechsel_jax.evaluation.registry import EVALUATIONS, Evaluation

__all__ = ["EVALUATIONS", "Evaluation", "evaluation_step", "perplexity"]
