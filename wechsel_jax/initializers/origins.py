"""Where a target token came from, in words that a person reads."""

import numpy as np

from wechsel_jax.initializers.plan import TransferPlan
from wechsel_jax.tokens import Vocabulary, readable


def origin(plan: TransferPlan, source: Vocabulary, target: Vocabulary, token_id: int) -> dict:
    """Says where one target token came from: {"target", "how", "sources": [[source token, weight], ...]}."""
    if plan.random[token_id]:
        how, sources = "random", []
    elif plan.copy[token_id] >= 0:
        how, sources = "copied", [[readable(source, int(plan.copy[token_id])), 1.0]]
    else:
        weights = plan.weights[token_id]
        order = [k for k in np.argsort(-np.abs(weights), kind="stable") if weights[k]]
        sources = [[readable(source, int(plan.neighbors[token_id, k])), round(float(weights[k]), 4)] for k in order]
        how = "mixed"
    return {"target": readable(target, token_id), "how": how, "sources": sources}
