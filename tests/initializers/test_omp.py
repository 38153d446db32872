"""Orthogonal matching pursuit against scikit-learn and against the algorithm in float64."""

import jax
import numpy as np
import pytest

from wechsel_jax.errors import UserError
from wechsel_jax.initializers import Side
from wechsel_jax.initializers.omp import omp
from wechsel_jax.search.pursuit import pursue, unit_rows
from wechsel_jax.tokens.overlap import Overlap

SOURCES, TARGETS, SHARED, HELPER = 200, 260, 180, 40


def make_rows(seed=0, atoms=150, tokens=40, width=32):
    """Rows of very different lengths around a common direction, as embeddings are."""
    generator = np.random.default_rng(seed)
    common = generator.standard_normal(width)
    rows = generator.standard_normal((atoms + tokens, width)) + common
    rows *= np.exp(generator.standard_normal((atoms + tokens, 1)))
    return rows[:atoms].astype(np.float32), rows[atoms:].astype(np.float32)


def by_the_book(dictionary, wanted, count):
    """Places, coefficients and the smallest relative margin of any choice, in float64."""
    dictionary, wanted = dictionary.astype(np.float64), wanted.astype(np.float64)
    chosen, margin, residual = [], np.inf, wanted
    for _ in range(count):
        fit = np.abs(dictionary @ residual)
        fit[chosen] = -1
        first, second = np.sort(fit)[-1:-3:-1]
        margin = min(margin, (first - second) / first)
        chosen.append(int(fit.argmax()))
        coefficients, *_ = np.linalg.lstsq(dictionary[chosen].T, wanted, rcond=None)
        residual = wanted - coefficients @ dictionary[chosen]
    return chosen, coefficients, margin


@pytest.mark.parametrize("unit", [True, False], ids=["unit rows", "rows as they are"])
@pytest.mark.parametrize("scale", [1.0, 1e-4, 1e4])
def test_chooses_what_float64_chooses(unit, scale):
    dictionary, wanted = make_rows()
    dictionary, wanted = dictionary * np.float32(scale), wanted * np.float32(scale)
    compared = unit_rows(dictionary) if unit else dictionary
    found = pursue(compared, wanted, 12)
    clear = 0
    for t, row in enumerate(wanted):
        chosen, _, margin = by_the_book(compared, row, 12)
        if margin > 1e-4:
            clear += 1
            assert found[t].tolist() == chosen
    assert clear > 25


def test_equals_scikit_learn():
    linear_model = pytest.importorskip("sklearn.linear_model")
    dictionary, wanted = make_rows(seed=1)
    compared = unit_rows(dictionary)
    found = pursue(compared, wanted, 8)
    expected = linear_model.orthogonal_mp(compared.astype(np.float64).T, wanted.astype(np.float64).T, n_nonzero_coefs=8).T
    same = [set(found[t]) == set(np.flatnonzero(expected[t])) for t in range(len(wanted))]
    unclear = [by_the_book(compared, row, 8)[2] < 1e-4 for row in wanted]
    assert sum(unclear) < 8 and all(np.array(same) | unclear)


def make_problem(fakes, seed=0):
    generator = np.random.default_rng(seed)
    source = Side(fakes.vocabulary("s", SOURCES, fakes.gpt2_roles))
    helper = np.concatenate(make_rows(seed, SHARED, TARGETS - SHARED, HELPER))
    helper[[3, 250]] = 0
    found, rule = np.full(TARGETS, -1, np.int32), np.zeros(TARGETS, np.int8)
    found[1:SHARED], rule[1:SHARED] = generator.permutation(np.arange(1, SOURCES))[: SHARED - 1], 3
    found[0], rule[0] = 0, 2
    target = Side(fakes.vocabulary("t", TARGETS, fakes.gpt2_roles), None, helper)
    return source, target, Overlap(found, rule), generator.standard_normal((SOURCES, 24)).astype(np.float32)


@pytest.mark.parametrize("parity", [False, True])
def test_the_whole_method(fakes, parity):
    source, target, overlap, matrix = make_problem(fakes)
    plan = omp(source, target, overlap=overlap, atoms=10, parity=parity)
    assert plan.counts() == {"copied": SHARED, "mixed": TARGETS - SHARED - 1, "random": 1} and plan.random[250]
    result = plan.apply(matrix, np.zeros((TARGETS, 24), np.float32))
    # Token 0 is special: an atom for tokensurgeon only.
    anchors = np.array([i for i in range(0 if parity else 1, SHARED) if i != 3])
    rows = target.embeddings[anchors]
    lengths = np.ones(len(rows)) if parity else np.linalg.norm(rows.astype(np.float64), axis=1)
    compared = rows / lengths[:, None]
    clear = 0
    for t in np.flatnonzero(plan.is_mixed):
        chosen, coefficients, margin = by_the_book(compared, target.embeddings[t], 10)
        if margin < 1e-4:
            continue
        clear += 1
        weights = dict(zip(overlap.source[anchors[chosen]], coefficients / lengths[chosen], strict=True))
        assert set(plan.neighbors[t]) == set(weights)
        expected = [weights[i] for i in plan.neighbors[t]]
        np.testing.assert_allclose(plan.weights[t], expected, rtol=1e-5, atol=1e-6 * np.abs(expected).max())
        row = matrix[list(weights)].T.astype(np.float64) @ list(weights.values())
        assert np.linalg.norm(result[t] - row) < 1e-5 * np.linalg.norm(row)
    assert clear > 50 and (plan.weights < 0).any()
    assert ((plan.neighbors == 0) & (plan.weights != 0)).any() == parity


def test_parity_favors_long_rows(fakes):
    source, target, overlap, _ = make_problem(fakes)
    length = {int(overlap.source[i]): np.linalg.norm(target.embeddings[i]) for i in range(SHARED)}
    means = [
        np.mean([length[i] for i in plan.neighbors[plan.is_mixed].reshape(-1)])
        for plan in (omp(source, target, overlap=overlap, atoms=4, parity=parity) for parity in (False, True))
    ]
    assert means[1] > 1.5 * means[0]


def test_a_token_that_equals_an_anchor_takes_it_alone(fakes):
    source, target, overlap, _ = make_problem(fakes)
    helper = target.embeddings.copy()
    helper[200], helper[201] = 3 * helper[20], helper[30] - 2 * helper[31]
    plan = omp(source, Side(target.vocabulary, None, helper), overlap=overlap)
    assert np.count_nonzero(plan.weights[200]) == 1 and plan.neighbors[200, 0] == overlap.source[20]
    assert plan.weights[200, 0] == pytest.approx(3)
    assert plan.weights.shape[1] == HELPER


def test_no_bit_depends_on_the_devices():
    dictionary, wanted = make_rows(seed=2, tokens=700)
    found = [pursue(dictionary, wanted, 16, devices=jax.devices()[:count]) for count in (1, 3)]
    np.testing.assert_array_equal(*found)
    np.testing.assert_array_equal(pursue(dictionary, wanted[300:320], 16), found[0][300:320])


def test_ties_go_to_the_lower_id():
    dictionary, wanted = make_rows(seed=3)
    twice = np.concatenate([dictionary, -dictionary])
    assert (pursue(twice, wanted, 6) < len(dictionary)).all()


def test_progress_and_mistakes(fakes):
    source, target, overlap, _ = make_problem(fakes)
    seen = []
    omp(source, target, overlap=overlap, atoms=2, progress=lambda *done: seen.append(done))
    assert seen[-1] == (TARGETS - SHARED - 1, TARGETS - SHARED - 1)
    with pytest.raises(UserError, match="atoms 0"):
        omp(source, target, overlap=overlap, atoms=0)
    with pytest.raises(UserError, match="no helper model"):
        omp(source, Side(target.vocabulary), overlap=overlap)
    every = Overlap(np.arange(TARGETS, dtype=np.int32) % SOURCES, np.full(TARGETS, 3, np.int8))
    assert omp(source, target, overlap=every).counts()["copied"] == TARGETS
