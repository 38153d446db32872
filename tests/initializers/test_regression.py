"""The regression of rows on tokens' features, against least squares by numpy's own solver."""

import dataclasses

import numpy as np
import pytest

from tests.initializers.conftest import COUNTED_SIZES
from wechsel_jax.initializers import METHODS, Side
from wechsel_jax.initializers.regression import fit_regression, regressed
from wechsel_jax.initializers.trans_tokenization import Translations
from wechsel_jax.initializers.wechsel import wechsel
from wechsel_jax.tokens.overlap import Overlap

S, T, M = COUNTED_SIZES


def features_by_hand(side: Side, low: float, high: float) -> np.ndarray:
    units = side.vectors.astype(np.float64)
    units[side.has_vector] /= np.linalg.norm(units[side.has_vector], axis=1, keepdims=True)
    weights = np.sqrt(side.counts + 1)[side.has_vector]
    units[side.has_vector] -= weights @ units[side.has_vector] / weights.sum()
    shares = np.clip(np.log((side.counts + 1) / (side.counts + 1).sum()), low, high)
    scaled = 2 * (shares - low) / (high - low) - 1
    return np.column_stack([units, np.ones(len(units)), scaled, scaled**2, side.vocabulary.word_start])


def test_predictions_are_those_of_penalised_least_squares(counted_sides):
    source, target = counted_sides
    roles = (*source.vocabulary.roles[:-1], frozenset({"eos"}))
    source = dataclasses.replace(source, vocabulary=dataclasses.replace(source.vocabulary, roles=roles))
    rows = np.random.default_rng(1).standard_normal((S, 7))
    unseen, seldom = np.flatnonzero(~source.has_vector)[:2]
    source.counts[[unseen, seldom]] = 0, 1
    known = (np.arange(S) < S - 1) & (np.arange(S) != unseen)
    assert known[seldom] and source.has_vector.sum() < known.sum()
    shares = np.log((source.counts + 1) / (source.counts + 1).sum())[known]
    ours, theirs = (features_by_hand(side, shares.min(), shares.max()) for side in (source, target))
    # Ridge is least squares with a row for each coefficient.
    scale = np.sqrt(np.sqrt(source.counts[known] + 1))[:, None]
    stacked = scale * ours[known]
    penalty = np.sqrt(1e-4 * np.square(stacked).sum() / stacked.shape[1]) * np.eye(stacked.shape[1])
    left = np.concatenate([stacked, penalty])
    right = np.concatenate([scale * rows[known], np.zeros((len(penalty), 7))])
    coefficients = np.linalg.lstsq(left, right, rcond=None)[0]
    fitted = fit_regression(source, target)
    np.testing.assert_allclose(fitted.source, ours, atol=1e-6)
    np.testing.assert_allclose(fitted.target, theirs, atol=1e-6)
    np.testing.assert_allclose(fitted.target @ (fitted.basis @ rows), theirs @ coefficients, atol=1e-6)
    assert not fitted.basis[:, ~known].any()


def test_rows_that_follow_from_features_are_found_again(counted_sides):
    """A table that is linear in the features is predicted for target tokens, but for the penalty."""
    first = fit_regression(*counted_sides)
    coefficients = np.random.default_rng(2).standard_normal((first.source.shape[1], 5))
    predicted = first.target @ (first.basis @ (first.source @ coefficients))
    assert np.abs(predicted - first.target @ coefficients).max() < 0.05 * np.abs(predicted).max()


def test_what_the_source_text_does_not_show_has_no_say_whatever_its_rows(counted_sides):
    """A multilingual model's tokens of other languages."""
    source, target = counted_sides
    rows = np.random.default_rng(3).standard_normal((S, 4))
    unseen = ~source.has_vector
    source.counts[unseen] = 0
    fitted = fit_regression(source, target)
    predicted = fitted.target @ (fitted.basis @ rows)
    assert np.isfinite(predicted).all()
    np.testing.assert_array_equal(predicted, fitted.target @ (fitted.basis @ np.where(unseen[:, None], 1e6, rows)))


def test_rare_tokens_tell_what_a_token_has_that_the_target_text_does_not_show(counted_sides):
    source, target = counted_sides
    source.counts[:], target.counts[:] = 1000, 1000
    source.counts[~source.has_vector], target.counts[~target.has_vector] = 1, 0
    fitted = fit_regression(source, target)
    predicted = fitted.target @ (fitted.basis @ np.where(source.has_vector, 0.0, 1.0))
    assert (predicted[~target.has_vector] > 0.9).all() and np.abs(predicted[target.has_vector]).max() < 0.1


def test_frequencies_stay_in_the_sources_range_and_lengths_of_vectors_are_no_matter(counted_sides):
    source, target = counted_sides
    target.counts[0] = 10**9
    before = fit_regression(source, target)
    assert np.abs(before.target[:, -3]).max() <= 1 + 1e-12
    again = fit_regression(source, Side(target.vocabulary, target.vectors * 3, counts=target.counts))
    np.testing.assert_allclose(again.target, before.target, atol=1e-6)


def lengths(fitted, table, known):
    """Root mean squares of the rows that are predicted for the source and for the target."""
    return [np.sqrt(np.square(x @ (fitted.basis @ table)).sum(axis=1).mean()) for x in (fitted.source[known], fitted.target)]


def test_rows_of_the_target_do_not_grow_in_directions_that_the_source_hardly_has(counted_sides):
    source, target = counted_sides
    known = (source.has_vector | (source.counts > 0)) & ~source.vocabulary.special
    plain = fit_regression(source, target)
    # Rows that follow from the features are as long for one language as for the other, and nothing changes.
    table = (plain.source @ np.random.default_rng(4).standard_normal((plain.source.shape[1], 6))).astype(np.float32)
    of_source, of_target = lengths(plain, table, known)
    assert of_target <= 1.1 * of_source
    np.testing.assert_array_equal(fit_regression(dataclasses.replace(source, embeddings=table), target).basis, plain.basis)
    table = np.random.default_rng(5).standard_normal((S, 6)).astype(np.float32)
    flat = source.vectors.copy()
    flat[:, : M // 2] *= 3e-3
    source = dataclasses.replace(source, vectors=flat)
    of_source, of_target = lengths(fit_regression(source, target), table, known)
    assert of_target > 1.5 * of_source
    of_source, of_target = lengths(fit_regression(dataclasses.replace(source, embeddings=table), target), table, known)
    assert 0.1 < of_target <= 1.1 * of_source
    # Which ridge it was is told where it is not the usual one.
    mixed, told = wechsel(source, target), []
    regressed(mixed, source, target, notes=told.append)
    assert not told
    source = dataclasses.replace(source, embeddings=table)
    fitted = fit_regression(source, target)
    assert fitted.longer == pytest.approx(of_target / of_source)
    plan = wechsel(source, target, regression=True, notes=told.append)
    np.testing.assert_array_equal(plan.basis, fitted.basis.astype(np.float32))
    (note,) = told
    assert f"ridge is {fitted.ridge:g} of the mean diagonal instead of 0.0001" in note
    assert f"{of_target / of_source:.2f} times as long" in note


@pytest.mark.parametrize("target_too", [False, True])
def test_without_counts_or_vectors_it_still_fits(counted_sides, target_too):
    source, target = counted_sides
    empty = Side(target.vocabulary, np.zeros((T, M), np.float32), counts=target.counts)
    fitted = fit_regression(Side(source.vocabulary, source.vectors), empty if target_too else target)
    assert np.isfinite(fitted.basis).all() and np.isfinite(fitted.target).all()


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize(
    "name", [name for name, method in METHODS.items() if "regression" in method.settings and name != "anker"]
)
def test_every_method_that_has_it_adds_the_residuals_of_its_own_plan(counted_sides, name, shared):
    """x_t R + c sum_s w_s (e_s - x_s R), a token at a time, where the method's own plan does not copy."""
    source, target = counted_sides
    method, generator = METHODS[name], np.random.default_rng(3)
    copies = np.full(T, -1)
    if shared or method.helper or name == "focus":
        copies[3:40:2] = np.arange(20, 20 + len(copies[3:40:2]))
    overlap = Overlap(copies.astype(np.int32), np.where(copies >= 0, 3, 0).astype(np.int8))
    options = {"overlap": overlap}
    if method.helper:
        helper = generator.standard_normal((T, 4)).astype(np.float32)
        helper[8] = 0
        target = dataclasses.replace(target, embeddings=helper)
    if "pieces" in method.options:
        options["pieces"] = [np.array([i % S, 5][: i % 3]) for i in range(T)]
    if "translations" in method.options:
        options["translations"] = Translations(
            [np.array([i]) for i in range(9)], [np.array([i + 41]) for i in range(9)], np.full(9, 20.0)
        )
    if name == "trelm":
        options["start"] = "shared"
        source = dataclasses.replace(source, embeddings=generator.standard_normal((S, M)).astype(np.float32))
        raw = (*source.vocabulary.bytes[:20], *target.vocabulary.bytes[20:])
        target = dataclasses.replace(target, vocabulary=dataclasses.replace(target.vocabulary, bytes=raw))
    table = generator.standard_normal((S, 5)).astype(np.float32)
    own = method.plan(source, target, **options)
    plan = method.plan(source, target, regression=True, **options)
    plan.validate(S)
    rows = plan.apply(table)
    vectors = source.vectors, target.vectors
    if name == "focus" or method.helper:
        # The vectors are the target's, or the helper's; a source token has the one of the token that it is shared with.
        of_target = target.vectors if name == "focus" else target.embeddings
        vectors = np.zeros((S, of_target.shape[1]), np.float32), of_target
        for i, copy in enumerate(copies):
            if copy >= 0 and (name != "salt" or target.has_vector[i]):
                vectors[0][copy] = of_target[i]
    share = 0.5 if method.features else 1.0
    if not method.features:
        vectors = np.zeros((S, 0), np.float32), np.zeros((T, 0), np.float32)
    sides = [dataclasses.replace(side, vectors=own) for side, own in zip((source, target), vectors, strict=True)]
    fitted = fit_regression(dataclasses.replace(sides[0], embeddings=None), sides[1])
    coefficients = fitted.basis @ table
    residuals = table - fitted.source @ coefficients
    for i in range(T):
        if own.copy[i] >= 0:
            np.testing.assert_array_equal(rows[i], table[own.copy[i]])
            continue
        weights = np.zeros(S)
        np.add.at(weights, own.neighbors[i], own.weights[i])
        if own.basis is not None:
            weights += own.coordinates[i].astype(np.float64) @ own.basis
        np.testing.assert_allclose(rows[i], fitted.target[i] @ coefficients + share * weights @ residuals, rtol=1e-4, atol=1e-4)
    assert own.random.any() and not plan.random.any()
