"""Least-squares weights against numpy's pseudo-inverse in float64, and what makes them trustworthy."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.memory import most_held
from wechsel_jax.initializers.least_squares import least_squares


def make_problem(seed=0, rows=300, width=96, tokens=60, most=60, scale=1.0):
    """Support rows with a common direction, as embeddings have, of 1 to `most` rows a token; a float32 table."""
    generator = np.random.default_rng(seed)
    table = generator.standard_normal((rows, width)) + 0.5 * generator.standard_normal(width)
    counts = generator.integers(1, most + 1, tokens)
    ids = np.stack([generator.permutation(rows)[:most] for _ in range(tokens)]).astype(np.int32)
    used = np.arange(most) < counts[:, None]
    wanted = generator.standard_normal((tokens, width))
    return (scale * table).astype(np.float32), ids, used, (scale * wanted).astype(np.float32)


def by_pinv(table, ids, used, wanted, rcond=1e-15):
    out = np.zeros(ids.shape)
    for t in range(len(ids)):
        support = table[ids[t, used[t]]].astype(np.float64)
        out[t, used[t]] = wanted[t].astype(np.float64) @ np.linalg.pinv(support, rcond=rcond)
    return out


def relative(found, expected):
    return np.linalg.norm(found - expected, axis=1) / np.maximum(np.linalg.norm(expected, axis=1), 1e-300)


@pytest.mark.parametrize("width", [96, 24], ids=["fewer rows than dimensions", "more rows than dimensions"])
@pytest.mark.parametrize("scale", [1e-4, 1.0, 1e3])
def test_equals_the_pseudo_inverse(width, scale):
    problem = make_problem(width=width, scale=scale)
    assert (problem[2].sum(axis=1) > width).any() == (width == 24)
    fit = least_squares(*problem)
    assert relative(fit.weights, by_pinv(*problem)).max() < 1e-9


def test_is_the_papers_map_without_forming_it():
    table, ids, used, wanted = make_problem()
    model = np.random.default_rng(1).standard_normal((len(table), 40))
    fit = least_squares(table, ids, used, wanted)
    for t in range(len(ids)):
        support = ids[t, used[t]]
        mapping = np.linalg.pinv(table[support].astype(np.float64)) @ model[support]
        expected = wanted[t].astype(np.float64) @ mapping
        np.testing.assert_allclose(fit.weights[t] @ model[ids[t]], expected, rtol=0, atol=1e-9 * np.abs(expected).max())


@pytest.mark.parametrize("exponent", range(1, 9))
def test_accuracy_holds_at_every_condition(exponent):
    """Two rows that are ever closer; the wanted row needs their difference. Below the cut-off they are one row."""
    generator = np.random.default_rng(exponent)
    table = generator.standard_normal((30, 64))
    table[1] = table[0] + 10.0**-exponent * generator.standard_normal(64)
    ids, used = np.arange(30)[None], np.ones((1, 30), bool)
    wanted = generator.standard_normal((1, 64))
    fit = least_squares(table, ids, used, wanted)
    singular = np.linalg.svd(table, compute_uv=False)
    expected = by_pinv(table, ids, used, wanted, rcond=1e-6)
    assert relative(fit.weights, expected).max() < 1e-9
    np.testing.assert_allclose(fit.condition[0], np.sqrt((singular**2).sum() * (singular**-2.0).sum()), rtol=1e-5)
    if exponent == 8:
        # numpy's default would keep the difference of the twins and blow it up.
        assert fit.norm[0] < 10 and np.linalg.norm(by_pinv(table, ids, used, wanted)) > 1e6


@pytest.mark.parametrize("cutoff", [0.0, 1e-3, 0.05, 0.5])
def test_the_cutoff_is_that_of_the_pseudo_inverse(cutoff):
    """Also where the rows are independent enough for the normal equations."""
    generator = np.random.default_rng(5)
    left, right = (np.linalg.qr(generator.standard_normal((width, 20)))[0] for width in (20, 64))
    table = left * np.geomspace(1, 1e-3, 20) @ right.T
    problem = table, np.arange(20)[None], np.ones((1, 20), bool), generator.standard_normal((1, 64))
    fit = least_squares(*problem, cutoff=cutoff)
    assert relative(fit.weights, by_pinv(*problem, rcond=max(cutoff, 1e-15))).max() < 1e-9


def test_equal_rows_share_the_weight():
    table, ids, used, wanted = make_problem()
    table[ids[0, 1]] = table[ids[0, 0]]
    used[0, :2] = True
    fit = least_squares(table, ids[:1], used[:1], wanted[:1])
    np.testing.assert_allclose(fit.weights[0, 0], fit.weights[0, 1], rtol=1e-9)
    assert fit.condition[0] > 1e7


def test_a_row_of_zeros_gets_no_weight():
    table, ids, used, wanted = make_problem()
    without = used.copy()
    without[:, 0] = False
    expected = least_squares(table, ids[:1], without[:1], wanted[:1])
    table[ids[0, 0]] = 0
    fit = least_squares(table, ids[:1], used[:1] | (np.arange(60) == 0), wanted[:1])
    np.testing.assert_allclose(fit.weights, expected.weights, atol=1e-9)
    assert abs(fit.weights[0, 0]) < 1e-14 and fit.condition[0] > 1e14


def test_ridge_solves_the_penalised_problem():
    table, ids, used, wanted = make_problem()
    table[ids[:, 1]] = table[ids[:, 0]] * np.float32(1 + 1e-6)
    fit = least_squares(table, ids, used, wanted, ridge=0.03)
    for t in range(len(ids)):
        support = table[ids[t, used[t]]].astype(np.float64)
        gram = support @ support.T
        penalty = 0.03 * np.trace(gram) / len(gram)
        expected = np.linalg.solve(gram + penalty * np.eye(len(gram)), support @ wanted[t].astype(np.float64))
        np.testing.assert_allclose(fit.weights[t, used[t]], expected, atol=1e-9)
        missed = np.linalg.norm(wanted[t] - expected @ support) / np.linalg.norm(wanted[t].astype(np.float64))
        np.testing.assert_allclose(fit.residual[t], missed, atol=1e-7)
    few = least_squares(*make_problem(width=24), ridge=0.03)
    assert (few.norm < least_squares(*make_problem(width=24)).norm).all()


def test_diagnostics_are_what_they_say():
    table, ids, used, wanted = make_problem()
    wanted[3] = table[ids[3, used[3]]].sum(axis=0)
    wanted[4], used[5] = 0, False
    fit = least_squares(table, ids, used, wanted)
    for t in set(range(60)) - {4, 5}:
        support = table[ids[t, used[t]]].astype(np.float64)
        singular = np.linalg.svd(support, compute_uv=False)
        np.testing.assert_allclose(fit.condition[t], np.sqrt((singular**2).sum() * (singular**-2.0).sum()), rtol=1e-6)
        missed = np.linalg.norm(wanted[t] - fit.weights[t, used[t]] @ support) / np.linalg.norm(wanted[t].astype(np.float64))
        np.testing.assert_allclose(fit.residual[t], missed, atol=1e-7)
        np.testing.assert_allclose(fit.norm[t], np.linalg.norm(fit.weights[t]))
    assert fit.residual[3] < 1e-7 and fit.residual[4] == 0 and fit.norm[4] == 0
    assert (fit.residual[5], fit.condition[5], fit.norm[5]) == (1, 0, 0)


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 2**32 - 1), st.sampled_from([np.float32, np.float16, np.float64]))
def test_a_row_does_not_depend_on_its_company(seed, dtype):
    generator = np.random.default_rng(seed)
    table, ids, used, wanted = make_problem(seed, tokens=12, most=int(generator.integers(2, 40)), width=24)
    table, wanted = table.astype(dtype), wanted.astype(dtype)
    table[ids[0, 0]] = table[ids[0, -1]]
    fit = least_squares(table, ids, used, wanted)
    part = generator.permutation(12)[: generator.integers(1, 12)]
    wide = ((0, 0), (0, 7))
    again = least_squares(table, np.pad(ids[part], wide), np.pad(used[part], wide), wanted[part])
    np.testing.assert_array_equal(again.weights[:, : ids.shape[1]], fit.weights[part])
    np.testing.assert_array_equal(again.condition, fit.condition[part])
    np.testing.assert_array_equal(again.residual, fit.residual[part])


@pytest.mark.parametrize("most", [12, 40])
def test_memory_does_not_grow_with_the_tokens(most):
    """Beyond the weights themselves there is a block, however many tokens have equally many support rows."""

    def peak(tokens):
        table, ids, used, wanted = make_problem(width=96, tokens=tokens, most=most)
        used[:] = True
        weights = least_squares(table, ids, used, wanted).weights
        return most_held(lambda: least_squares(table, ids, used, wanted)) - weights.nbytes

    assert peak(2400) < peak(1200) + 1200 * 100


def test_the_wanted_row_may_lie_in_the_span_and_the_support_may_be_zero():
    """Rows of zeros only, alone or with others of as many support rows that are not."""
    table, ids, used, wanted = make_problem(tokens=6, most=5)
    used[:] = True
    table[ids[2]] = 0
    with np.errstate(all="raise"):
        fit = least_squares(table, ids, used, wanted)
    assert not fit.weights[2].any() and fit.condition[2] == np.inf and fit.residual[2] == 1
    assert relative(fit.weights, by_pinv(table, ids, used, wanted)).max() < 1e-9


def test_progress_and_bad_arguments():
    table, ids, used, wanted = make_problem(tokens=600, width=8, most=3)
    seen = []
    least_squares(table, ids, used, wanted, progress=lambda *done: seen.append(done))
    assert len(seen) == 2 and seen[-1] == (600, 600) and 300 < seen[0][0] < 512
    assert least_squares(table, ids[:0], used[:0], wanted[:0]).weights.shape == (0, 3)
    for wrong in ({"ridge": -1}, {"cutoff": 1}, {"cutoff": -1e-9}):
        with pytest.raises(ValueError, match="cutoff"):
            least_squares(table, ids, used, wanted, **wrong)
    for outside in (-1, 300):
        with pytest.raises(ValueError, match="not all rows of a table of 300"):
            least_squares(table, np.where(used, outside, 0), used, wanted)
    least_squares(table, np.where(used, ids, 10**6), used, wanted)
    with pytest.raises(ValueError, match="shapes"):
        least_squares(table, ids, used[1:], wanted)
