"""Products of 16-bit numbers in float32: their gradients are made of 16-bit numbers, and of nothing that is not asked for."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from wechsel_jax.models.layers import products_kept
from wechsel_jax.models.products import wide_product

SUBSCRIPTS = "...d,vd->...v"


def operands(dtype):
    rng = np.random.default_rng(0)
    return tuple(jnp.asarray(rng.normal(size=shape), dtype) for shape in ((3, 5, 16), (7, 16)))


def plain(subscripts, left, right):
    return jnp.einsum(subscripts, left, right, preferred_element_type=jnp.float32)


def gradients(product, argnums=(0, 1)):
    weights = jnp.asarray(np.random.default_rng(1).normal(size=(3, 5, 7)), jnp.float32)
    return jax.grad(lambda *x: jnp.sum(weights * product(SUBSCRIPTS, *x)), argnums=argnums)


def products(function, *arguments):
    """The types of the operands of every matrix product."""
    found, equations = [], list(jax.make_jaxpr(function)(*arguments).jaxpr.eqns)
    while equations:
        equation = equations.pop()
        if equation.primitive.name == "dot_general":
            found.append({operand.aval.dtype.name for operand in equation.invars})
        for value in equation.params.values():
            equations += getattr(getattr(value, "jaxpr", value), "eqns", ())
    return found


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_value_is_einsums(dtype):
    left, right = operands(dtype)
    result = wide_product(SUBSCRIPTS, left, right)
    assert result.dtype == jnp.float32
    np.testing.assert_array_equal(result, plain(SUBSCRIPTS, left, right))


def test_gradients_in_float32_are_einsums():
    for one, other in zip(*(gradients(p)(*operands("float32")) for p in (wide_product, plain)), strict=True):
        np.testing.assert_array_equal(one, other)


def test_gradients_of_16_bits_are_products_of_16_bits():
    left, right = operands("bfloat16")
    assert {"float32", "bfloat16"} in products(gradients(plain), left, right)
    assert products(gradients(wide_product), left, right) == [{"bfloat16"}] * 3
    exact = gradients(plain)(left.astype(jnp.float32), right.astype(jnp.float32))
    for one, other in zip(gradients(wide_product)(left, right), exact, strict=True):
        assert one.dtype == jnp.bfloat16
        assert np.linalg.norm(one.astype(np.float32) - other) < 0.01 * np.linalg.norm(other)


def test_what_is_kept_for_the_backward_pass_is_kept():
    """`remat="none"` keeps the results of products: none is computed twice."""
    left, right = operands("bfloat16")

    def total(product):
        return lambda *x: jnp.sum(jnp.tanh(product(SUBSCRIPTS, *x)))

    def kept(product):
        return len(products(jax.grad(jax.checkpoint(total(product), policy=products_kept), argnums=(0, 1)), left, right))

    assert kept(wide_product) == kept(plain) == 3


@pytest.mark.parametrize("argument", [0, 1])
def test_what_is_not_differentiated_costs_no_product(argument):
    left, right = operands("bfloat16")
    assert len(products(gradients(wide_product, argument), left, right)) == 2
