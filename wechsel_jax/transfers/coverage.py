"""How much of a new vocabulary each rule of the overlap covers, and what becomes of the rest, with examples."""

from typing import TYPE_CHECKING

import numpy as np

from wechsel_jax.tokens import Vocabulary, readable
from wechsel_jax.tokens.overlap import RULES, Overlap

if TYPE_CHECKING:
    from wechsel_jax.initializers.plan import TransferPlan


def coverage(
    overlap: Overlap,
    plan: "TransferPlan",
    source: Vocabulary,
    target: Vocabulary,
    has_vector: np.ndarray | None = None,
    examples: int = 5,
    seed: int = 0,
) -> dict:
    """Counts the target tokens by the rule that matched them and by what the plan makes of them.

    Args:
      overlap: what V_s source tokens and V_t target tokens share.
      plan: where each of the V_t rows comes from; a shared token need not be copied (WECHSEL mixes ordinary ones).
      source: V_s tokens.
      target: V_t tokens.
      has_vector: bool (V_t,), which target tokens have a vector; None where the method uses none.
      examples: how many to draw for each rule, evenly at random.
      seed: of the draw.

    Returns:
      JSON-ready: {"tokens": V_t without holes, "shared": how many, "rows": [...], "without_vector": {"tokens", "examples"} or
      None, "noise": {"tokens", "examples"}}. A row is {"rule", "tokens", "share" (of all tokens, 0 to 1), "with_vector" (or
      None), "copied", "mixed", "noise", "examples"}; the last one has the rule "none": the tokens that are not shared. An
      example of a rule is [target token, source token]; one of "none" names the source token of the largest weight, None
      where there is none; one of "without_vector" and "noise" is a target token. "without_vector" and "noise" count tokens not
      shared.
    """
    generator = np.random.default_rng(seed)

    def draw(where: np.ndarray) -> list[int]:
        ids = np.flatnonzero(where)
        return np.sort(generator.permutation(ids)[:examples]).tolist()

    def some(where: np.ndarray) -> dict:
        return {"tokens": int(where.sum()), "examples": [readable(target, i) for i in draw(where)]}

    total = int(target.is_token.sum())
    rows = []
    for position, rule in [*enumerate(RULES[1:], 1), (0, RULES[0])]:
        where = target.is_token & (overlap.rule == position)
        count = int(where.sum())
        origins = [(i, int(overlap.source[i]) if rule != RULES[0] else _heaviest(plan, i)) for i in draw(where)]
        rows.append(
            {
                "rule": rule,
                "tokens": count,
                "share": round(count / total, 6) if total else 0.0,
                "with_vector": None if has_vector is None else int((where & has_vector).sum()),
                "copied": int((where & (plan.copy >= 0)).sum()),
                "mixed": int((where & plan.is_mixed).sum()),
                "noise": int((where & plan.random).sum()),
                "examples": [[readable(target, i), None if s is None else readable(source, s)] for i, s in origins],
            }
        )
    missing = target.is_token & ~overlap.shared
    return {
        "tokens": total,
        "shared": int((target.is_token & overlap.shared).sum()),
        "rows": rows,
        "without_vector": None if has_vector is None else some(missing & ~has_vector),
        "noise": some(missing & plan.random),
    }


def _heaviest(plan: "TransferPlan", token_id: int) -> int | None:
    if plan.copy[token_id] >= 0:
        return int(plan.copy[token_id])
    ids, _ = plan.sources(token_id)
    return int(ids[0]) if len(ids) else None
