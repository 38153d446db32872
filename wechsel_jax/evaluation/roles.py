"""Scores of semantic roles: micro F1 of the arguments by the rules of CoNLL 2005 (Carreras and Màrquez, 2005, section 2.1)."""

from collections.abc import Sequence
from typing import Any

from wechsel_jax.evaluation.tagging import OUTSIDE, Tags, has_entities, require_seqeval

_VERB, _CONTINUES = "V", "C-"
# The role, and (first, last) word of each of its parts.
Argument = tuple[str, tuple[tuple[int, int], ...]]


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
