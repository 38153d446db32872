"""SAVA against numpy's and scikit-learn's least squares, and against the steps of the authors' code."""

import dataclasses

import numpy as np
import pytest
import sklearn.linear_model
import torch

from wechsel_jax.errors import UserError
from wechsel_jax.initializers import Side, TransferPlan
from wechsel_jax.initializers.sava import sava
from wechsel_jax.tokens.overlap import Overlap, find_overlap

SOURCES, TARGETS, SHARED, HELPER, HIDDEN = 150, 220, 90, 24, 16


@pytest.fixture
def problem(fakes):
    """Tokens t0 ... t89 in both vocabularies; helper rows around a common direction, of unequal spread by dimension."""
    generator = np.random.default_rng(0)
    source, target = fakes.vocabulary("t", SOURCES, {}), fakes.vocabulary("t", TARGETS, {})
    own = tuple(f"n{i}" if i >= SHARED else string for i, string in enumerate(target.strings))
    target = dataclasses.replace(target, strings=own, bytes=tuple(string.encode() for string in own))
    helper = generator.standard_normal((TARGETS, HELPER)) * np.geomspace(0.1, 3, HELPER) + generator.standard_normal(HELPER)
    tables = generator.standard_normal((2, SOURCES, HIDDEN)).astype(np.float32)
    sides = Side(source), Side(target, None, helper.astype(np.float32))
    return *sides, find_overlap(source, target), tables


def shared_rows(target, overlap, matrix):
    """Of the shared tokens, in the helper and in the source, and the helper's rows of the others; float64."""
    rows = target.embeddings.astype(np.float64)
    return rows[overlap.shared], matrix[overlap.source[overlap.shared]].astype(np.float64), rows[~overlap.shared]


def with_one(rows):
    return np.column_stack([rows, np.ones(len(rows))])


def test_is_the_least_squares_of_numpy(problem, tmp_path):
    source, target, overlap, tables = problem
    plan = sava(source, target, overlap=overlap)
    plan.validate(SOURCES)
    plan.save(tmp_path / "plan.npz")
    plan = TransferPlan.load(tmp_path / "plan.npz")
    assert plan.counts() == {"copied": SHARED, "mixed": TARGETS - SHARED, "random": 0}
    bias = tables[0][:, 0]
    for matrix in (*tables, bias):
        known, wanted, new = shared_rows(target, overlap, matrix)
        expected = with_one(new) @ np.linalg.lstsq(with_one(known), wanted, rcond=None)[0]
        made = plan.apply(matrix)
        np.testing.assert_allclose(made[~overlap.shared], expected, atol=2e-5)
        np.testing.assert_array_equal(made[overlap.shared], matrix[overlap.source[overlap.shared]])
    weights = plan.coordinates.astype(np.float64) @ plan.basis
    np.testing.assert_allclose(weights[~overlap.shared].sum(axis=1), 1, atol=1e-5)


def test_the_authors_transforms_change_nothing(problem):
    """Their code scales by dimension and by the mean norm, solves by torch's lstsq, and scales back."""
    source, target, overlap, (matrix, _) = problem
    known, wanted, new = (torch.tensor(rows) for rows in shared_rows(target, overlap, matrix))

    def scaled(rows, fitted):
        centred, spread = fitted - fitted.mean(0), fitted.std(0)
        return (rows - fitted.mean(0)) / spread / (centred / spread).norm(dim=1).mean()

    back = (wanted - wanted.mean(0)) / wanted.std(0)
    made = scaled(new, known) @ torch.linalg.lstsq(scaled(known, known), scaled(wanted, wanted)).solution
    expected = made * back.norm(dim=1).mean() * wanted.std(0) + wanted.mean(0)
    np.testing.assert_allclose(sava(source, target, overlap=overlap).apply(matrix)[~overlap.shared], expected, atol=2e-5)


@pytest.mark.parametrize("ridge", [0.01, 1.0])
def test_a_ridge_is_that_of_scikit_learn(problem, ridge):
    source, target, overlap, (matrix, _) = problem
    known, wanted, new = shared_rows(target, overlap, matrix)
    alpha = ridge * np.square(known - known.mean(axis=0)).sum() / SHARED
    expected = sklearn.linear_model.Ridge(alpha=alpha, solver="svd").fit(known, wanted).predict(new)
    np.testing.assert_allclose(
        sava(source, target, overlap=overlap, ridge=ridge).apply(matrix)[~overlap.shared], expected, atol=2e-5
    )


def test_few_shared_tokens_give_the_shortest_map_and_a_note(problem):
    source, target, overlap, (matrix, _) = problem
    few, said = Overlap(np.where(np.arange(TARGETS) < 10, overlap.source, -1).astype(np.int32), overlap.rule), []
    made = sava(source, target, overlap=few, notes=said.append).apply(matrix)
    known, wanted, new = shared_rows(target, few, matrix)
    centre = known.mean(axis=0), wanted.mean(axis=0)
    expected = (new - centre[0]) @ np.linalg.lstsq(known - centre[0], wanted - centre[1], rcond=1e-6)[0] + centre[1]
    np.testing.assert_allclose(made[~few.shared], expected, atol=2e-5)
    assert len(said) == 1 and said[0].startswith("10 shared tokens are too few for a map from 24 dimensions")
    said.clear()
    sava(source, target, overlap=overlap, notes=said.append)
    assert said == []


def test_equal_rows_and_constant_dimensions_are_no_trouble(problem):
    source, target, overlap, (matrix, _) = problem
    helper = target.embeddings.copy()
    helper[:, 3], helper[:, 4] = 0.7, helper[:, 5]
    plan = sava(source, Side(target.vocabulary, None, helper), overlap=overlap)
    left = np.delete(helper, [3, 4], axis=1).astype(np.float64)
    known, new = left[overlap.shared], left[~overlap.shared]
    # Equal dimensions say as much as one of them, and a constant one as much as the intercept.
    expected = with_one(new) @ np.linalg.lstsq(with_one(known), matrix[overlap.source[overlap.shared]], rcond=None)[0]
    np.testing.assert_allclose(plan.apply(matrix)[~overlap.shared], expected, atol=5e-5)


def test_anchors_of_one_source_token_have_their_weights_together(problem):
    source, target, overlap, (matrix, _) = problem
    loose = Overlap(np.where(overlap.shared, overlap.source % 60, -1).astype(np.int32), overlap.rule)
    known, wanted, new = shared_rows(target, loose, matrix)
    expected = with_one(new) @ np.linalg.lstsq(with_one(known), wanted, rcond=None)[0]
    np.testing.assert_allclose(sava(source, target, overlap=loose).apply(matrix)[~loose.shared], expected, atol=2e-5)


def test_special_tokens_and_what_the_helper_lacks_are_no_anchors(problem):
    source, target, overlap, _ = problem
    special = dataclasses.replace(target.vocabulary, roles=(frozenset({"unk"}), *target.vocabulary.roles[1:]))
    helper = target.embeddings.copy()
    helper[[2, 200]] = 0
    plan = sava(source, Side(special, None, helper), overlap=overlap)
    assert not plan.basis[:, overlap.source[[0, 2]]].any() and plan.basis[:, overlap.source[1]].any()
    np.testing.assert_array_equal(np.flatnonzero(plan.random), [200])
    assert plan.copy[0] == overlap.source[0] and plan.copy[2] == overlap.source[2]


def test_mistakes_are_named(problem):
    source, target, overlap, _ = problem
    nothing = Overlap(np.full(TARGETS, -1, np.int32), np.zeros(TARGETS, np.int8))
    with pytest.raises(UserError, match="sava: none of the 0 shared tokens"):
        sava(source, target, overlap=nothing)
    with pytest.raises(UserError, match="sava: no helper model"):
        sava(source, Side(target.vocabulary), overlap=overlap)
    with pytest.raises(UserError, match="ridge -1"):
        sava(source, target, overlap=overlap, ridge=-1)
    helper = target.embeddings.copy()
    helper[7, 1] = np.nan
    with pytest.raises(UserError, match="target token 7 holds NaN"):
        sava(source, Side(target.vocabulary, None, helper), overlap=overlap)
