"""Anker: WECHSEL's mixture on vectors of anchored contexts, with a look at how often each token occurs."""

from collections.abc import Callable

import numpy as np

from wechsel_jax.errors import UserError
from wechsel_jax.initializers.bonus import Bonus
from wechsel_jax.initializers.neighbors import nearest_neighbors
from wechsel_jax.initializers.plan import Side, TransferPlan
from wechsel_jax.initializers.wechsel import softmax, wechsel
from wechsel_jax.tokens.overlap import Overlap

# So many times k source tokens are looked at before frequency decides among them.
_SHORTLIST = 5
# A token of the same bytes that a text does not show is taken to be the same where it is about as frequent.
_FREQUENCY_RATIO = 4.5


def anker(
    source: Side,
    target: Side,
    *,
    overlap: Overlap,
    neighbors: int = 10,
    temperature: float = 0.1,
    word_start: float = 0.1,
    frequency: float = 0.1,
    progress: Callable[[int, int], None] | None = None,
) -> TransferPlan:
    """Softmax over the k source tokens of the most similar contexts and frequency.

    The score is cosine + word_start [both begin a word, or neither does] - frequency |log f_t - log f_s|, f the share of the
    token in its language's text. Where a model's output rows are its input rows, a row's length and direction decide how often
    its token is predicted, so a token should be made of tokens that are about as frequent. Of the 5 k source tokens that
    score highest without frequency the k highest with it are taken.

    A shared token is copied where its contexts say so too: its own source token has the highest score. Where a text does not
    show one of them often enough, the source token must be at most 4.5 times as frequent or as rare. Two languages share many
    short strings that mean different things (German " die", " war", " es"), and a copy of a rare English token in place of a
    frequent German one costs more than a mixture.

    Args:
      source: V_s tokens with vectors (V_s, m) of `vectors.anchored_vectors` and their `counts`; optionally `other_vectors`.
      target: V_t tokens likewise.
      overlap: shared tokens. Special ones, and pairs that a user mapped, are always copied.
      neighbors: k, how many source rows make one target row.
      temperature: of the softmax over scores.
      word_start: the bonus.
      frequency: the penalty for a factor e in frequency; 0: none.
      progress: see `nearest_neighbors`.

    Returns:
      A convex plan. Tokens without a vector are mixed by `other_vectors` as in WECHSEL where both sides have them, else random.

    Raises:
      UserError: a temperature that is not above zero, a negative frequency, or no source token with a vector.
    """
    if not temperature > 0 or neighbors < 1 or not frequency >= 0:
        raise UserError(f"temperature {temperature}, neighbors {neighbors}, frequency {frequency}: expected positive numbers")
    known = int(source.has_vector.sum())
    k = min(neighbors, known)
    if not k:
        raise UserError("anker: no source token has a vector; expected text of the source language; name more of it")
    scores_TxK, nearest_TxK = nearest_neighbors(
        target.vectors,
        source.vectors,
        min(_SHORTLIST * k if frequency else k, known),
        candidates=source.has_vector,
        bonus=Bonus(word_start, target.vocabulary.word_start, source.vocabulary.word_start),
        progress=progress,
    )
    difference = _log_shares(target)[:, None] - _log_shares(source)[nearest_TxK]
    scores_TxK = scores_TxK.astype(np.float64) - frequency * np.abs(difference)
    order = np.argsort(-scores_TxK, axis=1, kind="stable")[:, :k]
    scores_TxK, nearest_TxK = (np.take_along_axis(x, order, axis=1) for x in (scores_TxK, nearest_TxK))
    plan = TransferPlan.mixed(nearest_TxK, softmax(scores_TxK, temperature))
    plan = _with_fallback(plan, source, target, neighbors, temperature, word_start)
    agrees = _agrees(source, target, overlap, nearest_TxK[:, 0])
    return plan.with_copies(np.where(agrees | (overlap.special >= 0), overlap.source, -1))


def _log_shares(side: Side) -> np.ndarray:
    """(V,) log of the share of each token in its text, as if each had occurred once more; all alike where nothing is known."""
    counts = np.ones(len(side.vocabulary)) if side.counts is None else np.asarray(side.counts, np.float64) + 1
    return np.log(counts / counts.sum())


def _with_fallback(
    plan: TransferPlan, source: Side, target: Side, neighbors: int, temperature: float, word_start: float
) -> TransferPlan:
    """The same plan where a target token has a vector; elsewhere WECHSEL's by other vectors, or noise."""
    missing = ~target.has_vector
    if source.other_vectors is None or target.other_vectors is None or not missing.any():
        return plan.with_noise(where=missing)
    wanted = np.where(missing[:, None], target.other_vectors, np.float32(0))
    sides = Side(source.vocabulary, source.other_vectors), Side(target.vocabulary, wanted)
    usable = int(sides[0].has_vector.sum())
    if not usable:
        return plan.with_noise(where=missing)
    other = wechsel(*sides, neighbors=min(neighbors, usable), temperature=temperature, word_start=word_start)
    width = max(plan.neighbors.shape[1], other.neighbors.shape[1])
    ids, weights = (
        np.where(missing[:, None], _wide(getattr(other, name), width), _wide(getattr(plan, name), width))
        for name in ("neighbors", "weights")
    )
    return TransferPlan.mixed(ids, weights).with_noise(where=missing & ~sides[1].has_vector)


def _wide(values: np.ndarray, width: int) -> np.ndarray:
    return np.pad(values, ((0, 0), (0, width - values.shape[1])))


def _agrees(source: Side, target: Side, overlap: Overlap, best: np.ndarray) -> np.ndarray:
    """bool (V_t,): the token is shared, and its twin scores best; or a text does not show one of them, and they are as rare."""
    ids = np.maximum(overlap.source, 0)
    unseen = ~target.has_vector | ~source.has_vector[ids]
    alike = np.abs(_log_shares(target) - _log_shares(source)[ids]) <= np.log(_FREQUENCY_RATIO)
    return overlap.shared & np.where(unseen, alike, best == ids)
