"""Rows as a linear function of what a text says about their tokens, fitted on source tokens, whose rows are known.

`white` makes the features, or any coordinates of tokens, fit to be trained along.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Annotated

import numpy as np
from scipy.sparse import csr_array

from wechsel_jax.initializers.method import Setting
from wechsel_jax.initializers.plan import Side, TransferPlan
from wechsel_jax.records import work
from wechsel_jax.search.threads import one_thread
from wechsel_jax.tokens.overlap import Overlap

# The setting of every method that has it.
Predicted = Annotated[bool, Setting("Rows are predicted from vectors and frequency; else they are mixtures only")]

# What of the neighbors' residuals is passed on. Sometimes more is better (docs/anker.md, "How much of the residuals").
RESIDUAL = 0.5
Residual = Annotated[
    float, Setting("Share of its neighbors' residuals that a predicted row gets; with more, rows lie further apart", 0, 100)
]
# Of the mean diagonal of the normal equations: little, since there are far more tokens than features; more where the rows that
# it predicts for the target would be longer than this many times those for the source (docs/log.md, 2026-11-27).
_RIDGES, _LONGER = (1e-4, 1e-3, 1e-2, 1e-1), 1.1
# Frequent tokens have better vectors, but there are few of them: a token is weighted by the root of its count.
_WEIGHT_POWER = 0.5
# Of the largest variance: what is less is rounding.
_NO_DIRECTION = 1e-6
_ROWS_AT_ONCE = 8192


@dataclass(frozen=True)
class Regression:
    """A linear map from features to rows, whatever the rows are.

    Attributes:
      source: float64 (V_s, r), features of the source tokens.
      target: float64 (V_t, r), of the target tokens.
      basis: float64 (r, V_s); `basis @ E` are the coefficients for a table E (V_s, d), so that `target @ (basis @ E)` predicts
        the target's rows.
      ridge: s, in units of the mean diagonal of the normal equations.
      longer: root mean square length of the rows predicted for the target over that for the source; None where the source's
        rows were not given.
    """

    source: np.ndarray
    target: np.ndarray
    basis: np.ndarray
    ridge: float
    longer: float | None


@one_thread()
def fit_regression(source: Side, target: Side) -> Regression:
    """Fits rows to tokens' vectors, frequencies and word starts by ridge regression.

    The features of a token are its vector scaled to length 1 and centred over its language, one, the logarithm of the share
    that it has of its text and the square of that, and whether it begins a word. With F the features of the source tokens that
    occur in the text, W their weights (roots of their counts) and s a ten-thousandth of the mean diagonal of F' W F, the basis
    is (F' W F + s I)^-1 F' W. Where target vectors go in directions that source vectors hardly have, coefficients are fitted to
    little and rows grow: with the source's rows at hand, s is ten times as much until the rows predicted for the target are at
    most 1.1 times as long, in root mean square, as those for the source, or up to a tenth of the mean diagonal.

    Centring by language removes a constant difference between the two languages' contexts. Frequencies outside the range of the
    source tokens that occur are clipped to it. Tokens too rare to have a vector are still fitted, using the mean vector: they
    show what the rows of rare tokens look like. Tokens that do not occur are left out of the fit: most tokens of a multilingual
    model belong to other languages.

    Args:
      source: V_s tokens with vectors (V_s, m), some of them not zero, or None (m is 0 then); their `counts`, which only those
        with vectors may lack; and as `embeddings` their rows, or None.
      target: V_t tokens likewise, without rows.

    Returns:
      The regression of rank r = m + 4. Special source tokens and those that do not occur are left out: their columns of the
      basis are zero.
    """
    fitted = (source.has_vector | (_occurrences(source) > 1)) & ~source.vocabulary.special
    logs = [_log_shares(side) for side in (source, target)]
    low, high = logs[0][fitted].min(), logs[0][fitted].max()
    middle, scale = (low + high) / 2, max((high - low) / 2, 1e-12)
    features = []
    for side, shares in zip((source, target), logs, strict=True):
        frequency = (np.clip(shares, low, high) - middle) / scale
        flag = side.vocabulary.word_start.astype(np.float64)
        columns = [_centred(side), np.ones_like(flag), frequency, frequency**2, flag]
        features.append(np.column_stack(columns))
    weighted = np.where(fitted, _weights(source), 0.0)[:, None] * features[0]
    (size, rank), wide = features[0].shape, 0 if source.embeddings is None else source.embeddings.shape[1]
    work.product(2 * size + len(features[1]), rank, rank)
    normal = weighted.T @ features[0]
    grams = [part.T @ part / len(part) for part in (features[0][fitted], features[1])]
    for ridge in _RIDGES:
        penalised = normal.copy()
        penalised[np.diag_indices_from(normal)] += ridge * np.trace(normal) / len(normal)
        work.solve(rank, size)
        basis = np.linalg.solve(penalised, weighted.T)
        if source.embeddings is None:
            return Regression(*features, basis, ridge, None)
        parts = [slice(begin, begin + _ROWS_AT_ONCE) for begin in range(0, len(features[0]), _ROWS_AT_ONCE)]
        coefficients = sum(basis[:, part] @ source.embeddings[part].astype(np.float64) for part in parts)
        # Mean squared lengths of the predicted rows.
        work.product(rank, size + 2 * rank, wide)
        of_source, of_target = (np.sum(coefficients * (gram @ coefficients)) for gram in grams)
        longer = float(np.sqrt(of_target / of_source)) if of_source else 1.0
        if longer <= _LONGER:
            break
    return Regression(*features, basis, ridge, longer)


def regressed(
    plan: TransferPlan,
    source: Side,
    target: Side,
    share: float | np.ndarray = RESIDUAL,
    notes: Callable[[str], None] | None = None,
) -> TransferPlan:
    """Adds the regression to a plan whose rows are mixtures.

    With x a token's features, R the coefficients of `fit_regression` and w the weights of the mixture, a row becomes
    x_t R + share sum_s w_s (e_s - x_s R). A mean of neighbors has their frequency, word start and place in the space of the
    vectors; the regression puts in the token's own, which in a tied model decide how often it is predicted, and a share of the
    residuals leaves out what only one source token has.

    Args:
      plan: V_t rows. Those that are random have no weights and become the prediction alone; copied ones stay.
      source: V_s tokens with vectors (V_s, m) or without, and their `counts` where frequencies are to be known.
      target: V_t tokens likewise.
      share: of the residuals, one or (V_t,).
      notes: called with a sentence where the ridge is not the usual one.

    Returns:
      A plan with coordinates of rank m + 4, and behind them those that `plan` has.
    """
    fitted = fit_regression(source, target)
    if fitted.ridge != _RIDGES[0] and notes is not None:
        notes(
            f"The regression's ridge is {fitted.ridge:g} of the mean diagonal instead of {_RIDGES[0]:g}, since target vectors "
            "go in directions that source vectors hardly have; predicted rows are "
            f"{fitted.longer:.2f} times as long for the target as for the source."
        )
    share = np.asarray(share, np.float32)[..., None]
    weights = (share * plan.weights).astype(np.float32)
    rows, k = weights.shape
    part = csr_array((weights.ravel(), plan.neighbors.ravel(), np.arange(rows + 1) * k), shape=(rows, len(source.vocabulary)))
    work.product(part.nnz, fitted.source.shape[1])
    coordinates, basis = fitted.target - part @ fitted.source, fitted.basis
    if plan.basis is not None:
        others = share * plan.coordinates
        work.product(len(plan.basis), rows + plan.basis.shape[1], fitted.source.shape[1])
        coordinates = np.column_stack([coordinates - others @ (plan.basis @ fitted.source), others])
        basis = np.concatenate([basis, plan.basis])
    return TransferPlan.mixed(plan.neighbors, weights).with_regression(coordinates, basis).with_copies(plan.copy)


def regressed_by_shared(
    plan: TransferPlan,
    source: Side,
    target: Side,
    vectors: np.ndarray,
    overlap: Overlap,
    anchors: np.ndarray,
    notes: Callable[[str], None] | None = None,
) -> TransferPlan:
    """`regressed` by vectors that only target tokens have: source tokens have those of the target tokens that share them.

    Args:
      plan: V_t rows.
      source: V_s tokens.
      target: V_t tokens.
      vectors: (V_t, m) of the target tokens: word vectors, or a helper model's rows.
      overlap: which source token is shared with which target token.
      anchors: target ids of the shared tokens whose vectors are taken.
      notes: see `regressed`.

    Returns:
      A plan with coordinates as `regressed` has them.
    """
    known = np.zeros((len(source.vocabulary), vectors.shape[1]), vectors.dtype)
    known[overlap.source[anchors]] = vectors[anchors]
    return regressed(plan, replace(source, vectors=known), replace(target, vectors=vectors), notes=notes)


def regressed_by_counts(
    plan: TransferPlan, source: Side, target: Side, notes: Callable[[str], None] | None = None
) -> TransferPlan:
    """`regressed` by frequency and word start alone, for plans whose tokens have no vectors in a space of both languages.

    The frequency and word start of the mixture are exchanged for the token's. All of the residuals is kept: in them alone is
    what a token means.

    Args:
      plan: V_t rows.
      source: V_s tokens with `counts`.
      target: V_t tokens likewise.
      notes: see `regressed`.

    Returns:
      A plan with coordinates of rank 4, and behind them those that `plan` has.
    """
    # The ridge is against vectors: without the source's rows it stays what it is.
    sides = replace(source, vectors=None, embeddings=None), replace(target, vectors=None)
    return regressed(plan, *sides, share=1.0, notes=notes)


@one_thread()
def white(x: np.ndarray, rows: int) -> np.ndarray:
    """Returns X (X' X)^(-1/2), scaled to a mean square of 1 for the length of the rows that are not zero.

    So the elements of the shared updates are, at first, about as large as those of the rows' own, and no coordinate moves
    faster than another.

    Args:
      x: floats (V, d), not all zeros.
      rows: of the result, at least V; those behind are zeros.

    Returns:
      float32 (rows, d).
    """
    parts = [slice(begin, begin + _ROWS_AT_ONCE) for begin in range(0, len(x), _ROWS_AT_ONCE)]
    variances, axes = np.linalg.eigh(sum(part.T @ part for part in (x[part].astype(np.float64) for part in parts)))
    found = variances > _NO_DIRECTION * variances[-1]
    whiten = (axes[:, found] / np.sqrt(variances[found])) @ axes[:, found].T
    whiten *= np.sqrt(x.any(axis=1).sum() / found.sum())
    result = np.zeros((rows, x.shape[1]), np.float32)
    for part in parts:
        result[: len(x)][part] = x[part].astype(np.float64) @ whiten
    return result


def _occurrences(side: Side) -> np.ndarray:
    """(V,) counts of the tokens in their text, plus one; all ones if the side has no counts."""
    return np.ones(len(side.vocabulary)) if side.counts is None else np.asarray(side.counts, np.float64) + 1


def _log_shares(side: Side) -> np.ndarray:
    return np.log(_occurrences(side) / _occurrences(side).sum())


def _weights(side: Side) -> np.ndarray:
    return _occurrences(side) ** _WEIGHT_POWER


def _centred(side: Side) -> np.ndarray:
    """float64 (V, m), vectors scaled to length 1, minus their weighted mean; zeros for tokens without a vector."""
    if side.vectors is None:
        return np.zeros((len(side.vocabulary), 0))
    vectors = np.asarray(side.vectors, np.float64)
    known = side.has_vector
    if not known.any():
        return np.zeros_like(vectors)
    units = vectors / np.where(known, np.linalg.norm(vectors, axis=1), 1)[:, None]
    return np.where(known[:, None], units - np.average(units[known], axis=0, weights=_weights(side)[known]), 0)
