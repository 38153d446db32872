"""SOAP (Vyas et al., 2025) for tables: Adam along the axes in which a table's gradients vary, not along its columns."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

# How fast the columns' second moments forget, and updates between one set of axes and the next: the authors' settings.
_FORGET, _EVERY = 0.95, 10
# What is less than this part of all that varies is rounding.
_ROUNDING = 1e-6


class SoapState(NamedTuple):
    """State of `scale_by_soap`.

    Attributes:
      count: updates so far.
      mu: mean of the gradients, as Adam's.
      nu: mean of their squares along the axes.
      grams: {"columns/PATH": float32 (d, d)}, mean of G'G of a table's gradients; of tables alone.
      axes: the same keys, orthogonal matrices: axes of a table stand in its columns.
    """

    count: jax.Array
    mu: dict[str, Any]
    nu: dict[str, Any]
    grams: dict[str, jax.Array]
    axes: dict[str, jax.Array]


def present(tree: Mapping[str, Any]) -> dict[str, Any]:
    """The parameters of a flat tree that its optimizer updates: `optax.partition` masks the others."""
    return {path: value for path, value in tree.items() if not isinstance(value, optax.MaskedNode)}


def _first_axes(gram: jax.Array, _: jax.Array) -> jax.Array:
    """Eigenvectors, of the largest eigenvalue first.

    A batch that reaches fewer rows than a table has columns varies along some directions only. The axes that `eigh` gives the
    others are rounding's choice, and the next gradients would be weighed along them: runs on other devices would differ
    visibly. Here they follow from the eigenvectors that are determined, whose Householder reflections make up all axes.
    """
    values, vectors = jnp.linalg.eigh(gram)
    return jnp.linalg.qr(jnp.where(values > _ROUNDING * jnp.trace(gram), vectors, 0)[:, ::-1])[0]


def _next_axes(gram: jax.Array, axes: jax.Array) -> jax.Array:
    """One step of orthogonal iteration; directions that have not varied yet keep their axes, which rounding would turn."""
    return jnp.linalg.qr(jnp.matmul(gram, axes, precision="highest") + _ROUNDING * jnp.trace(gram) * axes)[0]


def scale_by_soap(b1: float, b2: float, eps: float) -> optax.GradientTransformation:
    """Returns SOAP's direction for tables (V, d), and Adam's for vectors, which have no columns.

    A row of a head is pulled along the states it predicts from, and those lie near few directions, the same for all rows. Adam
    weighs columns, which say nothing of these directions; Q, the eigenvectors of a running mean of G'G, are them. Adam's second
    moments are then of GQ, and its direction is turned back. Q follows by one step of orthogonal iteration every ten updates
    (Vyas et al., 2025, arXiv 2409.11321). Of the paper's two sides it is that of the columns alone: the other one would be
    V x V. Ours is that new axes serve the update that finds them, that the first update counts, and that axes are not sorted
    again before an iteration.

    An update costs four products of V x d and d x d for each table.

    Args:
      b1: of Adam; the means of gradients are kept as they are and turned when used, so that new axes do no harm to them.
      b2: of Adam, along the axes.
      eps: of Adam.
    """

    def init(params: Mapping[str, Any]) -> SoapState:
        found = present(params)
        columns = {f"columns/{path}": value.shape[1] for path, value in found.items() if value.ndim == 2}
        zeros = {path: jnp.zeros_like(value) for path, value in found.items()}
        return SoapState(
            jnp.zeros((), jnp.int32),
            zeros,
            zeros,
            {key: jnp.zeros((d, d)) for key, d in columns.items()},
            {key: jnp.eye(d) for key, d in columns.items()},
        )

    def update(grads: Mapping[str, Any], state: SoapState, params: Any = None) -> tuple[dict[str, Any], SoapState]:
        del params
        found = present(grads)
        grams, axes = {}, {}
        for key, gram in state.grams.items():
            g = found[key.removeprefix("columns/")]
            grams[key] = _FORGET * gram + (1 - _FORGET) * jnp.matmul(g.T, g, precision="highest")
            axes[key] = jax.lax.switch(
                # A table may join in a later phase, when others have axes already.
                jnp.where(jnp.any(gram), jnp.where(state.count % _EVERY == 0, 1, 2), 0),
                [_first_axes, _next_axes, lambda gram, axes: axes],
                grams[key],
                state.axes[key],
            )

        def turned(values: Mapping[str, jax.Array], back: bool = False) -> dict[str, jax.Array]:
            """Values along the axes; or from there along the columns."""
            return {
                path: jnp.matmul(value, q.T if back else q, precision="highest")
                if (q := axes.get(f"columns/{path}")) is not None
                else value
                for path, value in values.items()
            }

        count = state.count + 1
        mu = optax.tree.update_moment(found, state.mu, b1, 1)
        nu = optax.tree.update_moment(turned(found), state.nu, b2, 2)
        means = optax.tree.bias_correction(turned(mu), b1, count)
        squares = optax.tree.bias_correction(nu, b2, count)
        directions = jax.tree.map(lambda mean, square: mean / (jnp.sqrt(square) + eps), means, squares)
        return {**grads, **turned(directions, back=True)}, SoapState(count, mu, nu, grams, axes)

    return optax.GradientTransformation(init, update)
