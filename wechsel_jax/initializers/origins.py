"""Where a target token came from, in words that a person reads."""

from wechsel_jax.initializers.plan import TransferPlan
from wechsel_jax.tokens import Vocabulary, readable


def origin(plan: TransferPlan, source: Vocabulary, target: Vocabulary, token_id: int) -> dict:
    """Says where one target token came from: {"target", "how", "sources": [[source token, weight], ...]}."""
    if plan.random[token_id]:
        how, sources = "random", []
    elif plan.copy[token_id] >= 0:
        how, sources = "copied", [[readable(source, int(plan.copy[token_id])), 1.0]]
    else:
        ids, weights = plan.sources(token_id)
        # Digits that count: a mean over all shared tokens has small weights.
        pairs = zip(ids.tolist(), weights.tolist(), strict=True)
        how, sources = "mixed", [[readable(source, i), float(f"{weight:.4g}")] for i, weight in pairs]
    return {"target": readable(target, token_id), "how": how, "sources": sources}
