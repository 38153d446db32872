"""Scores of labels: accuracy and macro F1 of texts, accuracy or F1 of entities of words, F1 of roles of predicates.

Entities are counted as `seqeval` does, roles by the rules of CoNLL 2005 (Carreras and Màrquez, 2005, section 2.1).
"""

import re
import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np

from wechsel_jax.errors import from_extra

Tags = Sequence[Sequence[str]]
OUTSIDE = "O"
_VERB, _CONTINUES = "V", "C-"
# Last words and words alone in BILOU (Ratinov and Roth, 2009), by their names in BIOES, which seqeval knows.
_AS_BIOES = {"L-": "E-", "U-": "S-"}
_ENTITY = re.compile(r"[BIESLU]-\w")
# The role, and (first, last) word of each of its parts.
Argument = tuple[str, tuple[tuple[int, int], ...]]


def has_entities(labels: Sequence[str]) -> bool:
    """Whether labels say where entities begin and go on, as "B-PER" and "I-PER" do; "S--" is a word class of Indonesian."""
    return any(_ENTITY.match(label) for label in labels)


def _known(tags: Sequence[str]) -> list[str]:
    """The labels of a sentence as seqeval reads them."""
    return [_AS_BIOES.get(tag[:2], tag[:2]) + tag[2:] for tag in tags]


def require_seqeval(what: str) -> None:
    """Raises `UserError` where seqeval is not installed; `what` needs it."""
    with from_extra("eval", f"to score the entities of {what}"):
        import seqeval.metrics  # noqa: F401


def classification_scores(gold: Sequence[str], predicted: Sequence[str]) -> dict[str, Any]:
    """Accuracy and macro F1.

    Args:
      gold: the right label of each text.
      predicted: the model's.

    Returns:
      {"accuracy": share of right labels, "macro_f1": mean F1 of all labels that are right or predicted somewhere (that of a
      label without a true positive is 0), "items": of each text (1 where it is right, 1): sums to the accuracy}.
    """
    numbers = {label: number for number, label in enumerate(sorted({*gold, *predicted}))}
    right, found = (np.asarray([numbers[label] for label in labels]) for labels in (gold, predicted))
    hits = np.bincount(right[right == found], minlength=len(numbers))
    sizes = np.bincount(right, minlength=len(numbers)) + np.bincount(found, minlength=len(numbers))
    return {
        "accuracy": float(np.mean(right == found)),
        "macro_f1": float(np.mean(2 * hits / sizes)),
        "items": [(float(one), 1.0) for one in right == found],
    }


def tagging_scores(gold: Tags, predicted: Tags, entities: bool) -> dict[str, Any]:
    """Accuracy of the labels of words, and where they name entities their F1, precision and recall.

    An entity counts as found where its kind, its first and its last word are right (seqeval's default mode, which is that of
    the CoNLL script). Labels are of IOB1, IOB2, BIOES or BILOU.

    Args:
      gold: the right labels of each sentence.
      predicted: the model's.
      entities: whether labels name entities, see `has_entities`.

    Returns:
      {"accuracy", "items"}, and of entities "f1", "precision" and "recall", micro averages. Items are (numerator, denominator)
      of each sentence, whose sums make up the F1, or without entities the accuracy.

    Raises:
      UserError: entities are to be scored and seqeval is not installed.
    """
    pairs = [pair for right, found in zip(gold, predicted, strict=True) for pair in zip(right, found, strict=True)]
    scores: dict[str, Any] = {"accuracy": sum(right == found for right, found in pairs) / len(pairs)}
    if entities:
        require_seqeval("tagging")
        from seqeval.metrics import f1_score, precision_score, recall_score
        from seqeval.metrics.sequence_labeling import get_entities

        given = ([*map(_known, gold)], [*map(_known, predicted)])
        with warnings.catch_warnings():
            # A model that finds no entity has no precision; its F1 is 0.
            warnings.simplefilter("ignore")
            for name, score in (("f1", f1_score), ("precision", precision_score), ("recall", recall_score)):
                scores[name] = float(score(*given))
        both = [[{*get_entities(tags)} for tags in pair] for pair in zip(*given, strict=True)]
        scores["items"] = [(2.0 * len(right & found), float(len(right) + len(found))) for right, found in both]
    else:
        hits = [[one == other for one, other in zip(*pair, strict=True)] for pair in zip(gold, predicted, strict=True)]
        scores["items"] = [(float(sum(some)), float(len(some))) for some in hits]
    return scores


def arguments(labels: Sequence[str]) -> set[Argument]:
    """Returns the arguments of a predicate, from labels of the words such as "B-A0", as `srl-eval.pl` counts them.

    "C-A1" goes on with the A1 before it, and both are one argument of several parts; without one before it, it is an A1.
    References, as "R-A1", are arguments of their own. The predicate itself, V, is none.

    Where a role stands at one word, as "A0" alone, each is an argument for itself, C-A1 too (CoNLL 2009).
    """
    if not has_entities(labels):
        return {(label, ((place, place),)) for place, label in enumerate(labels) if label != OUTSIDE}
    require_seqeval("roles")
    from seqeval.metrics.sequence_labeling import get_entities

    found: list[tuple[str, list[tuple[int, int]]]] = []
    latest: dict[str, int] = {}
    for kind, first, last in get_entities(list(labels)):
        role = kind.removeprefix(_CONTINUES)
        if kind == role or role not in latest:
            latest[role] = len(found)
            found.append((role, []))
        found[latest[role]][1].append((first, last))
    return {(role, tuple(parts)) for role, parts in found if role != _VERB}


def role_scores(gold: Tags, predicted: Tags) -> dict[str, Any]:
    """F1, precision and recall of the arguments of all predicates together.

    An argument is found where its role and every one of its parts are right.

    Args:
      gold: the right labels of the words, of each predicate.
      predicted: the model's.

    Returns:
      {"f1", "precision", "recall", "items"}. Items are (numerator, denominator) of each predicate, whose sums make up the F1.

    Raises:
      UserError: seqeval is not installed.
    """
    right = found = both = 0
    items = []
    for one, other in zip(gold, predicted, strict=True):
        wanted, given = arguments(one), arguments(other)
        right, found, both = right + len(wanted), found + len(given), both + len(wanted & given)
        items.append((2.0 * len(wanted & given), float(len(wanted) + len(given))))
    shares = {"f1": (2 * both, right + found), "precision": (both, found), "recall": (both, right)}
    return {name: part / whole if whole else 0.0 for name, (part, whole) in shares.items()} | {"items": items}
