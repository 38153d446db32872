"""How far training has moved the embeddings from where a transfer put them (WECHSEL, version 1, Figure 6)."""

import os
from typing import Any

import numpy as np

from wechsel_jax.checkpoint import Checkpoint
from wechsel_jax.errors import UserError
from wechsel_jax.inspection.origins import require_fit, rows_by_origin, source_here
from wechsel_jax.records import TransferRecord
from wechsel_jax.records.names import PLAN_FILE, RECORD_FILE

NEIGHBORS = 10
# Tokens whose nearest source tokens are looked up.
_TOKENS = 2000
# Rows that are compared at once, in float64.
_BLOCK = 1 << 9


def drift(
    directory: str | os.PathLike,
    before: str | os.PathLike,
    *,
    source: str | os.PathLike | None = None,
    seed: int = 0,
    samples: int = 10,
) -> dict[str, Any]:
    """Compares the input embeddings of a model with those that its training began with.

    Args:
      directory: the trained model.
      before: what `wechsel-jax transfer` wrote, or any model with the same tokens.
      source: the source model, where it is no longer where the record says.
      seed: of the tokens that are looked up in the source table.
      samples: how many of them are shown with their nearest source tokens.

    Returns:
      Ready for JSON. "before"; "groups": for all tokens and, where `before` has a plan, for the copied, mixed and random ones,
      {"how", "tokens", "cosine" (mean, of each row to itself before), "change" (mean length of the difference over that of the
      row before), "length" (mean length over that before)}; "nearest": of up to 2,000 tokens {"tokens", "neighbors", "kept":
      share of the 10 nearest source tokens by cosine that are the same as before}; "samples": [{"target", "before", "after":
      the 3 nearest source tokens}]. The last two are None without a source model.

    Raises:
      UserError: a directory is missing or damaged, or the models do not have the same tokens.
    """
    from wechsel_jax.initializers import TransferPlan
    from wechsel_jax.search import nearest_neighbors
    from wechsel_jax.tokens import Vocabulary, load_tokenizer, readable

    now, then = Checkpoint.open(directory), Checkpoint.open(before)
    new, old = (one.read(one.table) for one in (now, then))
    vocabulary = Vocabulary.from_tokenizer(load_tokenizer(now.directory))
    if new.shape != old.shape or vocabulary.strings != Vocabulary.from_tokenizer(load_tokenizer(then.directory)).strings:
        raise UserError(
            f"{before}: has embeddings of {old.shape[0]:,} x {old.shape[1]}, {directory} of {new.shape[0]:,} x {new.shape[1]}, "
            "or other tokens; expected the model that the training began with"
        )
    rows = np.arange(len(vocabulary))
    groups = {"all": np.ones(len(rows), bool)}
    if (then.directory / PLAN_FILE).exists():
        plan = TransferPlan.load(then.directory / PLAN_FILE)
        require_fit(plan, vocabulary, before)
        groups |= rows_by_origin(plan)
    lengths, dots, changes = np.empty((2, len(old))), np.empty(len(old)), np.empty(len(old))
    for start in range(0, len(old), _BLOCK):
        block = slice(start, start + _BLOCK)
        one, other = (table[block].astype(np.float64) for table in (old, new))
        lengths[0, block], lengths[1, block] = (np.linalg.norm(table, axis=1) for table in (one, other))
        dots[block], changes[block] = (one * other).sum(axis=1), np.linalg.norm(other - one, axis=1)
    # A row of zeros has no direction, one with an infinite element no length.
    there = (np.isfinite(lengths) & (lengths > 0)).all(axis=0)
    found: dict[str, Any] = {"before": str(before), "groups": [], "nearest": None, "samples": None}
    for how, members in groups.items():
        chosen = rows[members & there[: len(rows)]]
        if len(chosen):
            length, present = lengths[:, chosen]
            values = {
                "cosine": (dots[chosen] / length / present).mean(),
                "change": (changes[chosen] / length).mean(),
                "length": (present / length).mean(),
            }
            found["groups"].append({"how": how, "tokens": len(chosen), **{name: float(v) for name, v in values.items()}})
    place = source
    if place is None and (then.directory / RECORD_FILE).exists():
        place = source_here(TransferRecord.read(then.directory))
    if place is None:
        return found
    original = Checkpoint.open(place)
    keys = original.read(original.table).astype(np.float32)
    words = Vocabulary.from_tokenizer(load_tokenizer(original.directory))
    ordinary = rows[~vocabulary.special & there[: len(rows)]]
    chosen = np.sort(np.random.default_rng(seed).permutation(ordinary)[:_TOKENS])
    if not len(chosen):
        return found
    count = min(NEIGHBORS, len(words))
    candidates = np.arange(len(keys)) < len(words)
    ids = [nearest_neighbors(table[chosen].astype(np.float32), keys, count, candidates=candidates)[1] for table in (old, new)]
    kept = [len(np.intersect1d(one, other)) / count for one, other in zip(*ids, strict=True)]
    found["nearest"] = {"tokens": len(chosen), "neighbors": count, "kept": float(np.mean(kept))}
    shown = np.sort(np.random.default_rng(seed).permutation(len(chosen))[:samples])
    found["samples"] = [
        {
            "target": readable(vocabulary, int(chosen[i])),
            "before": [readable(words, int(j)) for j in ids[0][i, :3]],
            "after": [readable(words, int(j)) for j in ids[1][i, :3]],
        }
        for i in shown
    ]
    return found
