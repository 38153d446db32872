"""SOAP of tables: against the same updates in float64, and what they promise whatever the columns are."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import scipy.linalg

from wechsel_jax.training.coordinates import scale_by_coordinates
from wechsel_jax.training.optimizer import kept
from wechsel_jax.training.soap import scale_by_soap

SETTINGS = {"b1": 0.9, "b2": 0.98, "eps": 1e-6}


def gradients(steps=25, rows=30, columns=6, seed=0):
    """Gradients of a table whose columns vary together, and some more of them with time, float64 (steps, rows, columns)."""
    generator = np.random.default_rng(seed)
    mixing = generator.normal(size=(columns, columns)) * np.geomspace(3, 0.3, columns)
    return generator.normal(size=(steps, rows, columns)) @ mixing + 0.2 * generator.normal(size=(rows, columns))


def directions(transformation, values):
    """The directions of each step, for {"table": ...} or what else the steps hold."""
    state, update, found = transformation.init(values[0]), jax.jit(transformation.update), []
    for value in values:
        direction, state = update(value, state)
        found.append(direction)
    return found


def of_table(transformation, values):
    return np.array([one["table"] for one in directions(transformation, [{"table": jnp.float32(g)} for g in values])])


def test_the_updates_in_float64():
    """Adam along the eigenvectors of the columns' second moment, with a step of orthogonal iteration every ten updates."""
    values = gradients()
    gram, mu, nu, expected = np.zeros((6, 6)), 0.0, 0.0, []
    for step, g in enumerate(values):
        gram = 0.95 * gram + 0.05 * g.T @ g
        if step == 0:
            axes = scipy.linalg.eigh(gram)[1][:, ::-1]
        elif step % 10 == 0:
            axes = scipy.linalg.qr(gram @ axes)[0]
        mu, nu = 0.9 * mu + 0.1 * g, 0.98 * nu + 0.02 * (g @ axes) ** 2
        along = (mu @ axes / (1 - 0.9 ** (step + 1))) / (np.sqrt(nu / (1 - 0.98 ** (step + 1))) + 1e-6)
        expected.append(along @ axes.T)
    np.testing.assert_allclose(of_table(scale_by_soap(**SETTINGS), values), expected, atol=2e-4)


def test_a_table_that_joins_later_gets_its_axes_at_once():
    """In a phase that keeps what the optimizer knows of the others."""
    values, soap = gradients(), scale_by_soap(**SETTINGS)
    first, both = ({name: jnp.zeros_like(jnp.float32(values[0])) for name in names} for names in ("a", "ab"))
    _, old = soap.update({"a": jnp.float32(values[0])}, soap.init(first))
    state = kept(soap.init(both), old)
    _, after = soap.update({name: jnp.float32(values[1]) for name in both}, state)
    np.testing.assert_array_equal(after.axes["columns/a"], old.axes["columns/a"])
    expected = np.abs(scipy.linalg.eigh(values[1].T @ values[1])[1][:, ::-1])
    np.testing.assert_allclose(np.abs(after.axes["columns/b"]), expected, atol=1e-3)


def test_columns_that_are_turned_turn_the_directions():
    """Which Adam's do not: it weighs the columns as they are."""
    values, turn = gradients(), scipy.linalg.qr(np.random.default_rng(1).normal(size=(6, 6)))[0]
    soap, adam = scale_by_soap(**SETTINGS), optax.scale_by_adam(**SETTINGS)
    np.testing.assert_allclose(of_table(soap, values @ turn), of_table(soap, values) @ turn, atol=5e-4)
    assert np.abs(of_table(adam, values @ turn) - of_table(adam, values) @ turn).max() > 0.1


def test_what_has_no_columns_is_adams():
    values = [{"head/bias": jnp.float32(g[:, 0]), "other": optax.MaskedNode()} for g in gradients()]
    soap, adam = (directions(one(**SETTINGS), values) for one in (scale_by_soap, optax.scale_by_adam))
    for ours, theirs in zip(soap, adam, strict=True):
        np.testing.assert_allclose(ours["head/bias"], theirs["head/bias"], rtol=1e-6)
        assert isinstance(ours["other"], optax.MaskedNode)


@pytest.mark.parametrize("rows", [3, 30])
def test_rows_that_no_gradient_reaches_stay(rows):
    """Also where a batch has fewer tokens than columns, so that some axes have no gradient at all."""
    values = gradients()
    values[:, rows:] = 0
    found = of_table(scale_by_coordinates(scale_by_soap(**SETTINGS), 2, 1.0), values)
    assert np.isfinite(found).all() and not found[:, rows:].any() and found[:, :rows].any()


@pytest.mark.parametrize("rows", [1, 3])
def test_axes_along_which_nothing_varied_are_not_roundings_choice(rows):
    """A batch of fewer rows than columns leaves some open, and what devices sum in another order differs in its last bits."""
    values = gradients(steps=12, rows=rows)
    signs = np.random.default_rng(1).choice([-1, 1], values.shape)
    ours, others = (of_table(scale_by_soap(**SETTINGS), values * (1 + change * signs))[1:] for change in (0, 1e-7))
    np.testing.assert_allclose(others, ours, atol=2e-3)
