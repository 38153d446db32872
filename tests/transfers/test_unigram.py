"""The fit of offsets against a general minimiser in float64, and what its minimum means."""

import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize
from scipy.special import logsumexp, softmax

from wechsel_jax.transfers import unigram as calibration
from wechsel_jax.transfers.unigram import constant_direction, cross_entropy, fit_offsets


def score(table, hidden):
    return hidden @ table.T


def make_problem(seed=0, positions=120, size=17, width=5, scale=1.0):
    """Hidden states, a table, a distribution in which two tokens never occur, and slopes of both signs."""
    generator = np.random.default_rng(seed)
    hidden, table = (scale * generator.standard_normal((n, width)).astype(np.float32) for n in (positions, size))
    wanted = generator.dirichlet(np.full(size, 0.5))
    wanted[[2, 7]] = 0
    slopes = 1 + 0.7 * generator.standard_normal(positions)
    return hidden, jnp.asarray(table), wanted / wanted.sum(), slopes


def objective(offsets, hidden, table, wanted, slopes, precision):
    scores = np.float64(hidden) @ np.float64(table).T + slopes[:, None] * offsets
    return logsumexp(scores, axis=1).mean() - slopes.mean() * wanted @ offsets + precision / 2 * offsets @ offsets


@pytest.mark.parametrize("varying", [False, True], ids=["bias", "slopes"])
def test_equals_a_general_minimiser(monkeypatch, varying):
    monkeypatch.setattr(calibration, "_BLOCK_NUMBERS", 17 * 50)
    hidden, table, wanted, slopes = make_problem()
    slopes = slopes if varying else np.ones(len(hidden))
    fit = fit_offsets(score, table, hidden, wanted, slopes=slopes, deviation=2.0, tokens=5, steps=250 if varying else 80)
    arguments = (hidden, table, wanted, slopes, 1 / (4 * 5))
    best = minimize(objective, np.zeros(len(wanted)), arguments, method="BFGS", options={"gtol": 1e-9})
    np.testing.assert_allclose(fit.offsets, best.x, atol=5e-3)
    np.testing.assert_allclose(fit.objective[-1], best.fun, atol=1e-6)
    np.testing.assert_allclose(fit.objective[0], objective(0 * wanted, *arguments), atol=1e-6)
    scores = np.float64(hidden) @ np.float64(table).T + slopes[:, None] * fit.offsets
    np.testing.assert_allclose(fit.average, softmax(scores, axis=1).mean(axis=0), atol=1e-6)


def test_a_free_bias_makes_the_average_prediction_the_wanted_one():
    hidden, table, wanted, _ = make_problem(1)
    fit = fit_offsets(score, table, hidden, wanted, tokens=1e9, steps=40)
    np.testing.assert_allclose(fit.average, wanted, atol=1e-5)
    plain = softmax(hidden @ np.asarray(table).T, axis=1).mean(axis=0)
    assert np.abs(plain - wanted).max() > 0.05


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 2**32 - 1), st.floats(0.1, 5), st.booleans())
def test_no_step_raises_the_objective(seed, scale, varying):
    hidden, table, wanted, slopes = make_problem(seed, positions=40, scale=scale)
    fit = fit_offsets(score, table, hidden, wanted, slopes=slopes if varying else None, tokens=100, steps=8)
    assert (np.diff(fit.objective) <= 2e-6).all() and np.isfinite(fit.offsets).all(), fit.objective


def test_few_tokens_say_little():
    """The less text the frequencies rest on, the nearer the offsets stay to 0; those of unpredicted tokens stay there."""
    hidden, table, wanted, _ = make_problem(2)
    lengths = [np.linalg.norm(fit_offsets(score, table, hidden, wanted, tokens=n).offsets) for n in (1, 100, 10_000)]
    assert lengths[0] < 0.7 * lengths[1] < 0.9 * lengths[2]
    longer = jnp.concatenate([table, jnp.zeros((1, table.shape[1]))])
    never = fit_offsets(rare_last, longer, hidden, np.append(wanted, 0.0), tokens=10_000).offsets
    assert abs(never[-1]) < 0.01 < 0.5 < abs(never[2])


def rare_last(table, hidden):
    return (hidden @ table.T).at[:, -1].add(-25.0)


def test_offsets_that_are_not_free_keep_their_start():
    hidden, table, wanted, _ = make_problem(3)
    free = np.arange(len(wanted)) % 3 > 0
    start = np.linspace(-1, 1, len(wanted))
    offsets = fit_offsets(score, table, hidden, wanted, free=free, start=start).offsets
    np.testing.assert_array_equal(offsets[~free], start[~free])
    assert (np.abs(offsets - start)[free] > 1e-3).all()


def test_cross_entropy_equals_numpy(monkeypatch):
    monkeypatch.setattr(calibration, "_BLOCK_NUMBERS", 17 * 7)
    hidden, table, wanted, _ = make_problem(4)
    targets = np.random.default_rng(0).integers(len(wanted), size=len(hidden))
    found = cross_entropy(score, table, hidden, targets, size=len(wanted))
    scores = np.float64(hidden) @ np.float64(table).T
    expected = (logsumexp(scores, axis=1) - scores[np.arange(len(targets)), targets]).mean()
    np.testing.assert_allclose(found, expected, rtol=1e-6)


def test_behind_a_layer_norm_with_a_bias_there_is_a_constant_direction():
    generator = np.random.default_rng(5)
    normed = generator.standard_normal((400, 12))
    normed -= normed.mean(axis=1, keepdims=True)
    normed /= normed.std(axis=1, keepdims=True)
    hidden = normed * generator.uniform(0.5, 2, 12) + generator.standard_normal(12)
    near = hidden @ constant_direction(hidden, 1e-9)
    np.testing.assert_allclose(near, 1, atol=1e-4)
    mean = hidden.mean(axis=0)
    far = constant_direction(hidden, 1e6)
    np.testing.assert_allclose(far, mean / (mean @ mean), atol=1e-5)
    for ridge in (1e-3, 0.1, 10):
        direction = constant_direction(hidden, ridge)
        np.testing.assert_allclose((hidden @ direction).mean(), 1)
        assert (hidden @ direction).std() < (hidden @ far).std()
        assert np.linalg.norm(direction) < np.linalg.norm(constant_direction(hidden, ridge / 10))
    assert not constant_direction(np.outer([1, -1, 1, -1], np.ones(3)), 0.1).any()
