"""Anker: rows predicted from the anchored contexts of their tokens, plus a share of the nearest source tokens' residuals."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from wechsel_jax.errors import UserError
from wechsel_jax.initializers.anker.sides import text_sides
from wechsel_jax.initializers.method import Method, Neighbors, Temperature, WordStart
from wechsel_jax.initializers.plan import Side, TransferPlan
from wechsel_jax.initializers.regression import RESIDUAL, Predicted, Residual, regressed
from wechsel_jax.initializers.wechsel import CITATION, wechsel
from wechsel_jax.tokens.overlap import Overlap, find_overlap


def anker(
    source: Side,
    target: Side,
    *,
    overlap: Overlap,
    neighbors: Neighbors = 10,
    temperature: Temperature = 0.1,
    word_start: WordStart = 0.1,
    regression: Predicted = True,
    residual: Residual = RESIDUAL,
    progress: Callable[[int, int], None] | None = None,
    notes: Callable[[str], None] | None = None,
) -> TransferPlan:
    """Each row is a regression prediction from the token's contexts and frequency, plus a share of its neighbors' residuals.

    With w the weights that WECHSEL gives the k source tokens of the most similar contexts and c the share, a target row is
    x_t R + c sum_s w_s (e_s - x_s R), see `regressed`.

    Args:
      source: V_s tokens with vectors (V_s, m) of `vectors.anchored_vectors` and their `counts`; optionally `other_vectors`.
      target: V_t tokens likewise.
      overlap: shared tokens, which are copied: special ones, unless the user says otherwise.
      neighbors: k, how many source rows make one target row.
      temperature: of the softmax over similarities.
      word_start: is added to the similarity of source tokens that begin a word if the target token does, and do not if not.
      regression: without it, a row is sum_s w_s e_s, as in WECHSEL.
      residual: c. Predictions, and means of k residuals, lie closer together than the source's rows; a larger share moves them
        apart.
      progress: see `nearest_neighbors`.
      notes: see `regressed`.

    Returns:
      A plan with a regression. Tokens too rare in the text to have a vector are mixed by `other_vectors` as in WECHSEL, if both
      sides have them. Else, if the source has a token s of the same bytes, the row is x_t R + e_s - x_s R: almost e_s if s is
      rare in the source's text too (a line feed where every line is a document), and a rarer token's row if it is not. Else the
      row is the prediction alone, or random without a regression.

    Raises:
      UserError: a temperature that is not above zero, no neighbors, or no source token with a vector.
    """
    if not temperature > 0 or neighbors < 1:
        raise UserError(f"temperature {temperature}, neighbors {neighbors}: expected positive numbers")
    known = int(source.has_vector.sum())
    if not known:
        raise UserError("anker: no source token has a vector; expected text of the source language; name more of it")
    options = {"temperature": temperature, "word_start": word_start}
    plan = wechsel(source, target, neighbors=min(neighbors, known), progress=progress, **options)
    plan, same = _with_same_bytes(plan, source, target)
    if regression:
        plan = regressed(plan, source, target, np.where(same, 1, residual), notes=notes)
    plan = _with_other_vectors(plan, source, target, neighbors=neighbors, **options)
    return plan.with_copies(overlap.source)


def _with_same_bytes(plan: TransferPlan, source: Side, target: Side) -> tuple[TransferPlan, np.ndarray]:
    """The plan in which tokens without a vector have the source token of the same bytes as neighbor, and bool (V_t,): which."""
    found = find_overlap(source.vocabulary, target.vocabulary, "exact").source
    same = ~target.has_vector & (found >= 0)
    ids, weights = np.where(same[:, None], 0, plan.neighbors), np.where(same[:, None], 0, plan.weights)
    ids[same, 0], weights[same, 0] = found[same], 1
    return TransferPlan.mixed(ids, weights).with_noise(plan.random & ~same), same


def _with_other_vectors(plan: TransferPlan, source: Side, target: Side, *, neighbors: int, **options) -> TransferPlan:
    """The same plan, but tokens that have only other vectors are mixed by these, as in WECHSEL."""
    if source.other_vectors is None or target.other_vectors is None:
        return plan
    wanted = ~target.has_vector & target.other_vectors.any(axis=1)
    others = Side(source.vocabulary, source.other_vectors)
    usable = int(others.has_vector.sum())
    if not usable or not wanted.any():
        return plan
    vectors = np.where(wanted[:, None], target.other_vectors, np.float32(0))
    other = wechsel(others, Side(target.vocabulary, vectors), neighbors=min(neighbors, usable), **options)
    width = max(plan.neighbors.shape[1], other.neighbors.shape[1])
    ids, weights = (
        np.where(wanted[:, None], _wide(getattr(other, name), width), _wide(getattr(plan, name), width))
        for name in ("neighbors", "weights")
    )
    mixed = TransferPlan.mixed(ids, weights).with_noise(plan.random & ~wanted)
    if plan.basis is not None:
        mixed = mixed.with_regression(np.where(wanted[:, None], 0, plan.coordinates), plan.basis)
    return mixed


def _wide(values: np.ndarray, width: int) -> np.ndarray:
    return np.pad(values, ((0, 0), (0, width - values.shape[1])))


def _rules(settings: Mapping[str, Any]) -> list[str]:
    return [
        "Tokens are compared by the anchors within {window} tokens before and after them in text (positive PMI, {dimensions} "
        "dimensions); anchors are pairs of tokens from the dictionary, if any, and of equal bytes, then also mutual CSLS "
        "nearest neighbors (self-learning rounds: {rounds}).".format(**settings)
    ]


ANKER = Method(
    name="anker",
    label="anker",
    color=6,
    plan=anker,
    text=text_sides,
    paper="this project",
    # Where the regression leaves a residual, neighbors are weighed as in WECHSEL.
    citation=f"""@misc{{wechsel-jax-anker,
  title = {{anker: embeddings of a new vocabulary regressed on anchored contexts}},
  author = {{{{the wechsel-jax maintainers}}}},
  year = {{2026}},
}}

{CITATION}""",
    summary="each row predicted from its token's frequency and contexts, by a regression fitted on the source's tokens",
    rules=_rules,
)
