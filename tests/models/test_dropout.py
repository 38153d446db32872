"""Dropout: the bits of `jax.random`, the rate, the scale, and nothing where it is off."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from wechsel_jax.models.dropout import Dropout, random_bits


@pytest.mark.slow
@pytest.mark.parametrize("shape", [(), (1,), (7,), (3, 5), (2, 3, 4, 5)], ids=str)
def test_the_bits_are_those_of_jax(shape):
    for seed in (0, 1, 2**31 - 1):
        key = jax.random.fold_in(jax.random.key(seed), 5)
        np.testing.assert_array_equal(random_bits(key, shape), jax.random.bits(key, shape))
        np.testing.assert_array_equal(random_bits(jax.random.key_data(key), shape), jax.random.bits(key, shape))


def test_other_generators_are_left_to_jax():
    key = jax.random.key(3, impl="rbg")
    np.testing.assert_array_equal(random_bits(key, (4,)), jax.random.bits(key, (4,)))


@pytest.mark.parametrize("rate", [0.1, 0.5, 0.9])
def test_rate_and_scale(rate):
    x = jnp.full((500, 400), 3.0)
    y = np.asarray(Dropout(rate, False).apply({}, x, rngs={"dropout": jax.random.key(0)}))
    assert set(np.unique(y)) == {np.float32(0.0), np.float32(3.0) / np.float32(1.0 - rate)}
    deviation = np.sqrt(rate * (1 - rate) / y.size)
    assert abs(np.mean(y == 0) - rate) < 5 * deviation


def test_the_gradient_is_that_of_the_elements_that_stay():
    x = jnp.arange(1.0, 101.0)

    def total(x):
        return jnp.sum(Dropout(0.5, False).apply({}, x, rngs={"dropout": jax.random.key(0)}))

    y = Dropout(0.5, False).apply({}, x, rngs={"dropout": jax.random.key(0)})
    np.testing.assert_array_equal(jax.grad(total)(x), np.where(np.asarray(y) == 0, 0.0, 2.0))


def test_off_is_the_identity_without_a_key():
    x = jnp.arange(4.0)
    assert Dropout(0.5, True).apply({}, x) is x
    assert Dropout(0.0, False).apply({}, x) is x
