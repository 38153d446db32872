"""Anker's rows against numpy in float64, and what becomes of shared tokens and of tokens without a vector."""

import dataclasses

import numpy as np
import pytest

from tests.initializers.conftest import COUNTED_SIZES
from wechsel_jax.errors import UserError
from wechsel_jax.initializers import Side
from wechsel_jax.initializers.anker import anker
from wechsel_jax.initializers.regression import fit_regression
from wechsel_jax.initializers.wechsel import wechsel
from wechsel_jax.tokens.overlap import RULES, Overlap

S, T, M = COUNTED_SIZES


def shared(pairs: dict[int, int]) -> Overlap:
    source, rules = np.full(T, -1, np.int32), np.zeros(T, np.int8)
    for target_id, source_id in pairs.items():
        source[target_id], rules[target_id] = source_id, RULES.index("exact")
    return Overlap(source, rules)


@pytest.mark.parametrize(("residual", "share"), [({}, 0.5), ({"residual": 2.0}, 2.0)])
def test_rows_are_the_prediction_and_a_share_of_the_neighbors_residuals(counted_sides, residual, share):
    source, target = counted_sides
    table = np.random.default_rng(3).standard_normal((S, 9))
    plan = anker(source, target, overlap=shared({}), **residual)
    plan.validate(S)
    mixed, fitted = wechsel(source, target, word_start=0.1), fit_regression(source, target)
    coefficients = fitted.basis @ table
    residuals = table - fitted.source @ coefficients
    expected = fitted.target @ coefficients
    expected += share * np.einsum("tk,tkd->td", mixed.weights.astype(np.float64), residuals[mixed.neighbors])
    np.testing.assert_allclose(plan.apply(table.astype(np.float32)), expected, atol=2e-5)
    np.testing.assert_array_equal(plan.weights, np.float32(share) * mixed.weights)
    # A table and a bias are made alike: the columns of a table are as many biases.
    np.testing.assert_allclose(plan.apply(table[:, 0].astype(np.float32)), expected[:, 0], atol=2e-5)


def test_without_regression_it_is_wechsel(counted_sides):
    plan = anker(*counted_sides, overlap=shared({}), word_start=0.0, regression=False)
    expected = wechsel(*counted_sides)
    np.testing.assert_array_equal(plan.neighbors, expected.neighbors)
    np.testing.assert_array_equal(plan.weights, expected.weights)
    np.testing.assert_array_equal(plan.random, ~counted_sides[1].has_vector)
    assert plan.basis is None


def test_shared_tokens_are_copied(counted_sides):
    plan = anker(*counted_sides, overlap=shared({1: 7, T - 1: 9}))
    assert plan.copy[1] == 7 and plan.copy[T - 1] == 9 and plan.counts()["copied"] == 2
    assert not plan.coordinates[[1, T - 1]].any()


def test_a_token_without_a_vector_is_predicted_from_its_frequency_and_word_start(counted_sides):
    source, target = counted_sides
    unseen = np.flatnonzero(~target.has_vector)
    target.counts[unseen] = [0, 0, 7, 7]
    plan = anker(source, target, overlap=shared({}))
    assert not plan.random.any() and not plan.weights[unseen].any()
    rows = plan.apply(np.random.default_rng(5).standard_normal((S, 4)).astype(np.float32))[unseen]
    starts = target.vocabulary.word_start[unseen]
    for a in range(4):
        for b in range(4):
            alike = a // 2 == b // 2 and starts[a] == starts[b]
            assert np.allclose(rows[a], rows[b]) == alike


@pytest.mark.parametrize("regression", [True, False])
def test_a_token_without_a_vector_is_the_source_token_of_its_bytes_but_for_its_frequency(counted_sides, regression):
    source, target = counted_sides
    spelled = list(target.vocabulary.bytes)
    # The first is in the text, the second in the source's text only, the third is copied by the overlap, the fourth in neither.
    same = {2: 5, T - 3: 6, T - 2: 7, T - 1: S - 1}
    for target_id, source_id in same.items():
        spelled[target_id] = source.vocabulary.bytes[source_id]
        target.vocabulary.word_start[target_id] = source.vocabulary.word_start[source_id]
    target = dataclasses.replace(target, vocabulary=dataclasses.replace(target.vocabulary, bytes=tuple(spelled)))
    source.counts[S - 1] = target.counts[T - 1] = 0
    plan = anker(source, target, overlap=shared({T - 2: 9}), regression=regression)
    assert (
        np.flatnonzero(plan.copy >= 0).tolist() == [T - 2]
        and plan.copy[T - 2] == 9
        and not plan.random[[2, T - 3, T - 1]].any()
    )
    table = np.random.default_rng(6).standard_normal((S, 3)).astype(np.float32)
    rows, fitted = plan.apply(table, np.zeros((T, 3), np.float32)), fit_regression(source, target)
    for target_id in (T - 3, T - 1):
        moved = (fitted.target[target_id] - fitted.source[same[target_id]]) @ fitted.basis @ table if regression else 0
        np.testing.assert_allclose(rows[target_id], table[same[target_id]] + moved, atol=1e-5)
    # Where neither text shows the token and it is as rare, nothing moves it.
    assert not regression or np.abs(rows[T - 1] - table[S - 1]).max() < np.abs(rows[T - 3] - table[6]).max()


def test_other_vectors_stand_in_where_there_is_no_vector(counted_sides):
    generator = np.random.default_rng(4)
    source, target = (
        Side(side.vocabulary, side.vectors, counts=side.counts, other_vectors=generator.standard_normal((n, 5), np.float32))
        for side, n in zip(counted_sides, (S, T), strict=True)
    )
    target.other_vectors[T - 1] = 0
    others = Side(source.vocabulary, source.other_vectors), Side(target.vocabulary, target.other_vectors)
    expected = wechsel(*others, word_start=0.1)
    table = generator.standard_normal((S, 3)).astype(np.float32)
    for regression in (True, False):
        plan = anker(source, target, overlap=shared({}), regression=regression)
        plain = anker(*counted_sides, overlap=shared({}), regression=regression)
        noise = np.zeros((T, 3), np.float32)
        rows, without, by_words = (made.apply(table, noise) for made in (plan, plain, expected))
        stands_in = ~target.has_vector & target.other_vectors.any(axis=1)
        assert stands_in.sum() == 3
        np.testing.assert_array_equal(rows[stands_in], by_words[stands_in])
        np.testing.assert_allclose(rows[~stands_in], without[~stands_in], atol=1e-6)
        assert np.flatnonzero(plan.random).tolist() == ([] if regression else [T - 1])


def test_mistakes(counted_sides):
    for wrong in ({"temperature": 0}, {"neighbors": 0}):
        with pytest.raises(UserError, match="expected positive"):
            anker(*counted_sides, overlap=shared({}), **wrong)
    empty = Side(counted_sides[0].vocabulary, np.zeros((S, M), np.float32), counts=np.zeros(S, int))
    with pytest.raises(UserError, match="no source token has a vector"):
        anker(empty, counted_sides[1], overlap=shared({}))
