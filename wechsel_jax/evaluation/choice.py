"""Forced choice: which of several continuations, or of two sentences, a model finds likeliest."""

import itertools
import math
import os
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from wechsel_jax.errors import UserError
from wechsel_jax.evaluation.items import FORMS, Item, read_items
from wechsel_jax.evaluation.loaded import LoadedModel
from wechsel_jax.evaluation.scoring import encode_pairs, encoded_loglikelihoods, pseudo_loglikelihoods

# Between examples, and between them and the question.
_BETWEEN = "\n\n"


def prompts(items: Sequence[Item], shots: int = 0, pool: Sequence[Item] | None = None) -> list[str]:
    """The contexts of items, behind `shots` examples with their answers, as lm-eval joins them.

    Args:
      items: to be asked.
      shots: how many examples; the same for all items, but that none is its own example.
      pool: where examples come from, the first of them, as lm-eval's `first_n` has it; None: `items`.

    Raises:
      UserError: the pool has too few, or items or examples have no context that examples could stand before.
    """
    if not shots:
        return [item.context for item in items]
    pool = items if pool is None else pool
    if bare := [item for item in (*items, *pool) if not item.context]:
        if len(bare) == len(items) + len(pool):
            raise UserError(f"shots {shots}: whole sentences are compared, which take no examples; expected 0")
        raise UserError(
            f"{bare[0].place or 'an item'}: has no context, and others have; expected one for every item with shots {shots}; "
            "give those without a file of their own"
        )
    contexts = []
    for item in items:
        chosen = list(itertools.islice((example for example in pool if example != item), shots))
        if len(chosen) < shots:
            raise UserError(f"shots {shots}: there are {len(chosen)} examples; expected as many; ask for fewer, or name more")
        shown = [f"{example.context}{example.continuations[example.answers[0]]}{_BETWEEN}" for example in chosen]
        contexts.append("".join(shown) + item.context)
    return contexts


def score_choices(
    model: LoadedModel,
    path: str | os.PathLike,
    *,
    form: str = "",
    shots: int = 0,
    examples: str | os.PathLike | None = None,
    limit: int | None = None,
    within_word: bool = False,
) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Scores a model on a forced-choice task.

    A causal model scores a choice by its log-likelihood after the context, a masked one by its pseudo-log-likelihood.

    Args:
      model: the model.
      path: the task's file, see `read_items`.
      form: see `read_items`.
      shots: how many examples stand before each question, see `prompts`.
      examples: a file that they come from, of the same form; None: the task's own.
      limit: how many items are scored at most.
      within_word: of a masked model, see `pseudo_loglikelihoods`.

    Returns:
      Two dictionaries. Metrics: "form", "shots", "items" (how many), and for each of "acc" (the likeliest choice is right),
      "acc_norm" (log-likelihoods divided by the characters of the choice) and "acc_bytes" (by its UTF-8 bytes) the mean and
      "..._stderr", its standard error (None for a single item); "phenomena": the same of each phenomenon, where there are any.
      "..._ties" is how many items have several best choices, of which, as in lm-eval, the first counts.
      "cut" is how many items have a context that was too long for a causal model and lost its beginning, where there are any.
      Of "truthfulqa_mc2" "acc" is the mean probability of the right choices among all, and there is no other.
      Items, arrays of n rows: "log_likelihood" (n, C), NaN where there is no such choice, "choice", "answer" (the first right
      one), "phenomenon", and what the means are of: "acc", "acc_norm", "acc_bytes".

    Raises:
      UserError: as `read_items`, `prompts`, `encode_pairs` and `pseudo_loglikelihoods` do.
    """
    # Examples come from behind the limit, too.
    name, pool = read_items(path, form=form, limit=None if shots else limit)
    items = pool[:limit]
    if examples:
        pool = read_items(examples, form=form or name)[1]
    contexts = prompts(items, shots, pool)
    pairs = [(context, text) for context, item in zip(contexts, items, strict=True) for text in item.continuations]
    places = [item.place for item in items for _ in item.choices]
    owners = [number for number, item in enumerate(items) for _ in item.choices]
    if model.family.causal:
        encoded = encode_pairs(model, pairs, places=places)
        flat, cut = encoded_loglikelihoods(model, encoded)[0], set()
        for owner, (context, _), (before, ids) in zip(owners, pairs, encoded, strict=True):
            # Without a context nothing is lost: such a text is read in windows.
            if context.strip() and len(before) + len(ids) > model.config.max_length + 1:
                cut.add(owner)
    else:
        flat, cut = pseudo_loglikelihoods(model, pairs, within_word=within_word, places=places), set()
    most = max(len(item.choices) for item in items)
    found, characters, sizes = (np.full((len(items), most), np.nan) for _ in range(3))
    there = np.arange(most) < np.array([len(item.choices) for item in items])[:, None]
    found[there] = flat
    characters[there] = [len(choice) for item in items for choice in item.choices]
    sizes[there] = [len(choice.encode()) for item in items for choice in item.choices]
    right = np.array([[number in item.answers for number in range(most)] for item in items])
    if FORMS[name].mass:
        share = np.where(there, np.exp(found - np.nanmax(found, axis=1, keepdims=True)), 0)
        scores, ties = {"acc": (share * right).sum(axis=1) / share.sum(axis=1)}, {}
    else:
        weighed = {"acc": found, "acc_norm": found / characters, "acc_bytes": found / sizes}
        rows = np.arange(len(items))
        scores = {metric: right[rows, np.nanargmax(value, axis=1)].astype(float) for metric, value in weighed.items()}
        best = {metric: value == np.nanmax(value, axis=1, keepdims=True) for metric, value in weighed.items()}
        ties = {f"{metric}_ties": int((value.sum(axis=1) > 1).sum()) for metric, value in best.items()}
    phenomena = np.array([item.phenomenon for item in items])
    metrics = {"form": name, "shots": shots, **_means(scores), **ties}
    if cut:
        metrics["cut"] = len(cut)
    if any(phenomena):
        groups = np.unique(phenomena[phenomena != ""])
        metrics["phenomena"] = {
            str(group): _means({metric: value[phenomena == group] for metric, value in scores.items()}) for group in groups
        }
    answers = np.array([item.answers[0] for item in items])
    outcomes = {"log_likelihood": found, "choice": np.nanargmax(found, axis=1), "answer": answers, "phenomenon": phenomena}
    return metrics, outcomes | scores


def _means(scores: Mapping[str, np.ndarray]) -> dict[str, Any]:
    means: dict[str, Any] = {"items": len(next(iter(scores.values())))}
    for metric, value in scores.items():
        means[metric] = float(value.mean())
        means[f"{metric}_stderr"] = float(value.std(ddof=1) / math.sqrt(len(value))) if len(value) > 1 else None
    return means
