"""Scores of labels for words: micro F1 of entities as `seqeval` counts them, or accuracy."""

import warnings
from collections.abc import Sequence
from typing import Any

from wechsel_jax.errors import from_extra

Tags = Sequence[Sequence[str]]
OUTSIDE = "O"


def has_entities(labels: Sequence[str]) -> bool:
    """Whether labels say where entities begin and go on, as "B-PER" and "I-PER" do."""
    return any(label.startswith(("B-", "I-", "S-", "E-")) for label in labels)


def require_seqeval(what: str) -> None:
    """Raises `UserError` where seqeval is not installed; `what` needs it."""
    with from_extra("eval", f"to score the entities of {what}"):
        import seqeval.metrics  # noqa: F401


def tagging_scores(gold: Tags, predicted: Tags, entities: bool) -> dict[str, Any]:
    """Accuracy of the labels of words, and where they name entities their F1, precision and recall.

    An entity counts as found where its kind, its first and its last word are right (seqeval's default mode, which is that of
    the CoNLL script).

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

        given = ([list(tags) for tags in gold], [list(tags) for tags in predicted])
        with warnings.catch_warnings():
            # A model that finds no entity has no precision; its F1 is 0.
            warnings.simplefilter("ignore")
            for name, score in (("f1", f1_score), ("precision", precision_score), ("recall", recall_score)):
                scores[name] = float(score(*given))
        both = [[{*get_entities(list(tags))} for tags in pair] for pair in zip(gold, predicted, strict=True)]
        scores["items"] = [(2.0 * len(right & found), float(len(right) + len(found))) for right, found in both]
    else:
        hits = [[one == other for one, other in zip(*pair, strict=True)] for pair in zip(gold, predicted, strict=True)]
        scores["items"] = [(float(sum(some)), float(len(some))) for some in hits]
    return scores
