"""Cross-entropy over a vocabulary without the logits of all positions in memory, and without computing them twice.

`token_loss` is the loss. `chunked_loss` is the same over a few positions at a time; the rest of the module is its derivative,
made by hand because automatic differentiation would either keep the logits of all chunks or compute each chunk twice.
"""

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax.custom_derivatives import CustomVJPPrimal, SymbolicZero

Logits = Callable[[dict, jax.Array], jax.Array]

# A product of fewer rows reads the table too often; more only take memory.
_TOKENS_ON_CPU, _TOKENS_ELSEWHERE = 512, 2048


@jax.custom_vjp
def token_loss(
    logits: jax.Array, targets: jax.Array, weights: jax.Array, soft: tuple[jax.Array, jax.Array] | None = None
) -> tuple[jax.Array, jax.Array]:
    """Weighted cross-entropy in nats, and the weight of the right first guesses.

    Gradients flow to the logits only. With soft targets they are those of the cross-entropy with a distribution that has its
    shares at some tokens and the rest at the target; the value stays that of the target alone, so that it can be compared.

    Args:
      logits: (..., V) float32.
      targets: int32 (...).
      weights: float32 (...).
      soft: tokens int32 (..., c), which may occur several times, and their shares float32 (..., c), in sum at most 1.

    Returns:
      (loss_sum, correct_sum), float32 scalars.
    """
    return _token_loss(logits, targets, weights, soft)[0]


def _token_loss(
    logits: jax.Array, targets: jax.Array, weights: jax.Array, soft: tuple[jax.Array, jax.Array] | None
) -> tuple[tuple[jax.Array, jax.Array], tuple]:
    nats, right, normaliser = _token_nats(logits, targets)
    return (jnp.sum(weights * nats), jnp.sum(weights * right)), (logits, normaliser, targets, weights, soft)


def _token_nats(logits: jax.Array, targets: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
    score = jnp.take_along_axis(logits, targets[..., None], axis=-1)[..., 0]
    largest = jnp.max(logits, axis=-1)
    normaliser = largest + jnp.log(jnp.sum(jnp.exp(logits - largest[..., None]), axis=-1))
    # A target that ties with another row counts as a right guess: argmax would need a second pass over V.
    return normaliser - score, score >= largest, normaliser


def _token_gradient(saved: tuple, cotangents: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, None, None, None]:
    # One pass over (..., V); the derivative of a gather would be a scatter into as many zeros.
    logits, normaliser, targets, weights, soft = saved
    hit = jax.lax.broadcasted_iota(targets.dtype, logits.shape, logits.ndim - 1) == targets[..., None]
    share = jnp.exp(logits - normaliser[..., None])
    if soft is None:
        share -= hit
    else:
        ids, shares = soft
        share -= hit * (1 - jnp.sum(shares, axis=-1, keepdims=True))

        # Axis by axis, so that a mesh leaves rows where they are.
        def subtracted(row: jax.Array, places: jax.Array, values: jax.Array) -> jax.Array:
            return row.at[places].add(-values)

        for _ in range(share.ndim - 1):
            subtracted = jax.vmap(subtracted)
        share = subtracted(share, ids, shares)
    return share * (cotangents[0] * weights)[..., None], None, None, None


token_loss.defvjp(_token_loss, _token_gradient)


def token_nats(
    logits: Logits, head: dict, hidden: jax.Array, targets: jax.Array, chunk: int = 0
) -> tuple[jax.Array, jax.Array]:
    """What each target costs, a few positions of every row at a time; for scores, not for gradients.

    Args:
      logits: (head, hidden (B, chunk, d)) -> (B, chunk, V) float32.
      head: the parameters that `logits` reads.
      hidden: (B, L, d).
      targets: int32 (B, L).
      chunk: positions of a row at a time; 0: what `fitting_chunk` finds.

    Returns:
      (nats (B, L) float32, whether the target was the first guess (B, L) bool).
    """
    chunk = chunk or fitting_chunk(*hidden.shape[:2])
    if chunk >= hidden.shape[1]:
        return _token_nats(logits(head, hidden), targets)[:2]

    def part(pair: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        return _token_nats(logits(head, pair[0]), pair[1])[:2]

    return jax.tree.map(lambda x: _join(x, hidden.shape[1]), jax.lax.map(part, _split(chunk, (hidden, targets))))


def text_sums(
    nats: jax.Array, right: jax.Array, weights: jax.Array, sizes: jax.Array
) -> tuple[jax.Array, dict[str, jax.Array]]:
    """Sums of an evaluation that also counts bytes of text.

    Args:
      nats: float32 (...), of each target.
      right: bool (...), whether it was the first guess.
      weights: float32 (...), what it counts.
      sizes: (...), how many bytes of text it stands for; 0: none, as a special token.

    Returns:
      (loss_sum, {"correct", "text_loss": nats of the targets that stand for text, "bytes": of those}), float32 scalars.
    """
    of_text = weights * (sizes > 0)
    metrics = {"correct": weights * right, "text_loss": of_text * nats, "bytes": weights * sizes}
    return jnp.sum(weights * nats), {name: jnp.sum(value) for name, value in metrics.items()}


def without_padding(logits: jax.Array, vocabulary_size: int) -> jax.Array:
    """Takes rows behind the vocabulary out: logits (..., rows of the table) -> the same, with -inf where there is no token.

    Such a row gets probability 0 and a gradient of exactly 0.
    """
    if logits.shape[-1] == vocabulary_size:
        return logits
    row = jax.lax.broadcasted_iota(jnp.int32, logits.shape, logits.ndim - 1)
    return jnp.where(row < vocabulary_size, logits, -jnp.inf)


def chunked_loss(
    logits: Logits,
    head: dict,
    hidden: jax.Array,
    targets: jax.Array,
    weights: jax.Array,
    chunk: int,
    soft: tuple[jax.Array, jax.Array] | None = None,
) -> tuple[jax.Array, jax.Array]:
    """`token_loss` over a few positions of every row at a time.

    Where gradients are asked for, each chunk makes its own as soon as its logits are there (the loss is a plain sum, so they
    need only be scaled later): never more than (B, chunk, V) logits exist, and none is computed twice. Chunks run along the
    positions, not along the rows, so that rows stay where a mesh has put them.

    Args:
      logits: (head, hidden (B, chunk, d)) -> (B, chunk, V) float32.
      head: the parameters that `logits` reads.
      hidden: (B, L, d).
      targets: int32 (B, L).
      weights: float32 (B, L).
      chunk: positions of a row at a time; 0: what `fitting_chunk` finds.
      soft: see `token_loss`, (B, L, c).

    Returns:
      (loss_sum, correct_sum), float32 scalars.
    """
    chunk = chunk or fitting_chunk(*hidden.shape[:2])
    if chunk >= hidden.shape[1]:
        return token_loss(logits(head, hidden), targets, weights, soft)
    return _chunked(logits, chunk, head, hidden, targets, weights, soft)


def fitting_chunk(rows: int, length: int) -> int:
    """Positions of a row at a time, so that a device has a good number of tokens at once: 512 on a CPU, else 2,048.

    Args:
      rows: B, split over the axes "data" and "fsdp" of the mesh that `jax.set_mesh` has set.
      length: L.
    """
    mesh = jax.sharding.get_abstract_mesh()
    parts = math.prod(mesh.shape.get(axis, 1) for axis in ("data", "fsdp"))
    tokens = _TOKENS_ON_CPU if jax.default_backend() == "cpu" else _TOKENS_ELSEWHERE
    count = math.ceil(length * rows / (parts * tokens))
    return math.ceil(length / max(1, count))


@partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def _chunked(
    logits: Logits, chunk: int, head: dict, hidden: jax.Array, targets: jax.Array, weights: jax.Array, soft: Any
) -> tuple[jax.Array, jax.Array]:
    def step(sums: tuple[jax.Array, jax.Array], part: tuple) -> tuple[tuple[jax.Array, jax.Array], None]:
        hidden, *labels = part
        return jax.tree.map(jnp.add, sums, token_loss(logits(head, hidden), *labels)), None

    return jax.lax.scan(step, (jnp.float32(0), jnp.float32(0)), _split(chunk, (hidden, targets, weights, soft)))[0]


def _forward(logits: Logits, chunk: int, head: Any, hidden: Any, *labels: Any) -> tuple[Any, Any]:
    """The sums, and the gradients of the loss by (head, hidden); None for head parameters that are not differentiated.

    With `symbolic_zeros`, JAX passes each argument as a pair: its value, and whether it is differentiated.
    """
    values, labels = jax.tree.map(lambda leaf: leaf.value, (head, labels), is_leaf=_is_primal)
    wanted = [leaf.perturbed for leaf in jax.tree.leaves(head, is_leaf=_is_primal)]
    leaves, shape = jax.tree.flatten(values)

    def loss(asked: list, part_hidden: jax.Array, *part_labels: Any) -> tuple:
        remaining = iter(asked)
        whole = [next(remaining) if want else leaf for leaf, want in zip(leaves, wanted, strict=True)]
        return token_loss(logits(jax.tree.unflatten(shape, whole), part_hidden), *part_labels)

    asked = [leaf for leaf, want in zip(leaves, wanted, strict=True) if want]
    gradient = jax.value_and_grad(loss, argnums=(0, 1) if hidden.perturbed else 0, has_aux=True)

    def step(carry: tuple, part: tuple) -> tuple[tuple, jax.Array | None]:
        sums, head_gradient = carry
        pair, gradients = gradient(asked, *part)
        of_head, of_hidden = gradients if hidden.perturbed else (gradients, None)
        return (jax.tree.map(jnp.add, sums, pair), jax.tree.map(jnp.add, head_gradient, of_head)), of_hidden

    start = ((jnp.float32(0), jnp.float32(0)), [jnp.zeros_like(leaf) for leaf in asked])
    parts = _split(chunk, (hidden.value, *labels))
    # Two chunks side by side keep the cores of a CPU busy where one of them waits for a sum that runs on a single core.
    unroll = 2 if jax.default_backend() == "cpu" else 1
    (sums, head_gradient), of_hidden = jax.lax.scan(step, start, parts, unroll=unroll)
    found = iter(head_gradient)
    of_head = jax.tree.unflatten(shape, [next(found) if want else None for want in wanted])
    return sums, (of_head, None if of_hidden is None else _join(of_hidden, hidden.value.shape[1]))


def _backward(logits: Logits, chunk: int, saved: tuple, cotangents: tuple) -> tuple:
    """Scales the gradients that `_forward` made: the loss is a plain sum, so its cotangent is one factor for all."""
    scale = cotangents[0]
    if isinstance(scale, SymbolicZero):
        return (None,) * 5
    of_head, of_hidden = jax.tree.map(lambda x: (scale * x).astype(x.dtype), saved)
    return of_head, of_hidden, None, None, None


_chunked.defvjp(_forward, _backward, symbolic_zeros=True)


def _is_primal(x: Any) -> bool:
    return isinstance(x, CustomVJPPrimal)


def _split(chunk: int, arrays: Any) -> Any:
    """(B, L, ...) -> (L / chunk, B, chunk, ...), with zeros behind the end."""

    def split(x: jax.Array) -> jax.Array:
        x = jnp.pad(x, ((0, 0), (0, -x.shape[1] % chunk)) + ((0, 0),) * (x.ndim - 2))
        return jnp.moveaxis(x.reshape(x.shape[0], -1, chunk, *x.shape[2:]), 1, 0)

    return jax.tree.map(split, arrays)


def _join(x: jax.Array, length: int) -> jax.Array:
    """Undoes `_split`."""
    x = jnp.moveaxis(x, 0, 1)
    return x.reshape(x.shape[0], -1, *x.shape[3:])[:, :length]
