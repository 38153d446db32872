"""Scores of models. `perplexity` scores batches; `step_zero` scores a model directory on a text file, before any training."""

from wechsel_jax.evaluation.perplexity import perplexity

__all__ = ["perplexity"]
