"""Matrix products of 16-bit numbers with results of 32."""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax.custom_derivatives import SymbolicZero


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def wide_product(subscripts: str, left: jax.Array, right: jax.Array) -> jax.Array:
    """`jnp.einsum` of two arrays of one type, in float32; what flows back is multiplied in the operands' type.

    The derivative of a product with `preferred_element_type` is one of float32 by 16-bit numbers, for which a GPU widens the
    latter: half as fast, and twice the bytes to read.

    Args:
      subscripts: of `jnp.einsum`.
      left: of any shape.
      right: of any shape, of left's type.

    Returns:
      float32.
    """
    return jnp.einsum(subscripts, left, right, preferred_element_type=jnp.float32)


def _forward(subscripts: str, left: Any, right: Any) -> tuple[jax.Array, tuple]:
    # Structure without arrays says what is differentiated: None is not, such as a frozen table.
    wanted = tuple(() if operand.perturbed else None for operand in (left, right))
    # Not by `wide_product`, which policies of `jax.checkpoint` could not tell for a product.
    result = jnp.einsum(subscripts, left.value, right.value, preferred_element_type=jnp.float32)
    return result, (left.value, right.value, wanted)


def _backward(subscripts: str, saved: tuple, cotangent: Any) -> tuple[jax.Array | None, jax.Array | None]:
    left, right, wanted = saved
    if isinstance(cotangent, SymbolicZero):
        return None, None
    cotangent = cotangent.astype(left.dtype)

    def gradient(product: Callable[[jax.Array], jax.Array], operand: jax.Array) -> jax.Array:
        return jax.linear_transpose(product, operand)(cotangent)[0]

    return (
        gradient(lambda x: jnp.einsum(subscripts, x, right), left) if wanted[0] is not None else None,
        gradient(lambda x: jnp.einsum(subscripts, left, x), right) if wanted[1] is not None else None,
    )


wide_product.defvjp(_forward, _backward, symbolic_zeros=True)
