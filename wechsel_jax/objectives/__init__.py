"""Training objectives: (params, batch, key) -> (loss_sum, weight_sum, metrics). Sums, never means.

Read `clm` or `mlm` first: what is predicted, and what it counts. `loss` is the cross-entropy that they share, made so that the
logits of all positions never exist together. `next_sentence` adds BERT's second objective to `mlm`, and `cdlm` is for pairs of
sentences in two languages. `make_objective` checks a user's settings. `labels` is for models with a head for labels, whatever
these are of, and `translation` for encoder-decoders.
"""

from wechsel_jax.objectives.registry import Objective, make_objective

__all__ = ["Objective", "make_objective"]
