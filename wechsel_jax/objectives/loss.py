"""Cross-entropy over a vocabulary without the logits of all positions in memory."""

from collections.abc import Callable

import jax
import jax.numpy as jnp

Logits = Callable[[dict, jax.Array], jax.Array]


def token_loss(logits: jax.Array, targets: jax.Array, weights: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Weighted cross-entropy in nats, and the weight of the right first guesses.

    Args:
      logits: (..., V) float32.
      targets: int32 (...).
      weights: float32 (...).

    Returns:
      (loss_sum, correct_sum), float32 scalars.
    """
    score = jnp.take_along_axis(logits, targets[..., None], axis=-1)[..., 0]
    loss = jax.nn.logsumexp(logits, axis=-1) - score
    # A target that ties with another row counts as a right guess: argmax would need a second pass over V.
    correct = score >= jax.lax.stop_gradient(jnp.max(logits, axis=-1))
    return jnp.sum(weights * loss), jnp.sum(weights * correct)


def chunked_loss(
    logits: Logits, head: dict, hidden: jax.Array, targets: jax.Array, weights: jax.Array, chunk: int
) -> tuple[jax.Array, jax.Array]:
    """`token_loss` over a few positions of every row at a time.

    The backward pass computes the logits of a chunk again, so never more than (B, chunk, V) of them exist. Chunks run
    along the positions, not along the rows, so that rows stay where a mesh has put them.

    Args:
      logits: (head, hidden (B, chunk, d)) -> (B, chunk, V) float32.
      head: the parameters that `logits` reads.
      hidden: (B, L, d).
      targets: int32 (B, L).
      weights: float32 (B, L).
      chunk: positions of a row at a time.

    Returns:
      (loss_sum, correct_sum), float32 scalars.
    """
    length = hidden.shape[1]
    chunk = min(chunk, length)
    if chunk == length:
        return token_loss(logits(head, hidden), targets, weights)
    padding = -length % chunk

    def split(x: jax.Array) -> jax.Array:
        x = jnp.pad(x, ((0, 0), (0, padding)) + ((0, 0),) * (x.ndim - 2))
        return jnp.moveaxis(x.reshape(x.shape[0], -1, chunk, *x.shape[2:]), 1, 0)

    @jax.checkpoint
    def score(head: dict, part: tuple[jax.Array, ...]) -> tuple[jax.Array, jax.Array]:
        hidden, targets, weights = part
        return token_loss(logits(head, hidden), targets, weights)

    def step(sums: tuple[jax.Array, jax.Array], part: tuple[jax.Array, ...]) -> tuple[tuple[jax.Array, jax.Array], None]:
        loss, correct = score(head, part)
        return (sums[0] + loss, sums[1] + correct), None

    parts = (split(hidden), split(targets), split(weights))
    sums, _ = jax.lax.scan(step, (jnp.float32(0), jnp.float32(0)), parts)
    return sums
