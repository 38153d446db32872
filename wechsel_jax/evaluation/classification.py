"""Scores of labels for texts."""

from collections.abc import Sequence
from typing import Any

import numpy as np


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
