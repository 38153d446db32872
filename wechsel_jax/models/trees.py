"""A head for dependency trees: two biaffine scorers over the words of a sentence (Dozat and Manning, 2017, section 2.2)."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import linen as nn

from wechsel_jax.models.config import ModelConfig
from wechsel_jax.models.dropout import Dropout
from wechsel_jax.models.layers import keep_rows, normal
from wechsel_jax.models.weights import Weight, linear

# Sizes and dropout of the paper, table 1.
ARC_SIZE, LABEL_SIZE, DROPOUT = 500, 100, 0.33
# Of the negative side, as in the authors' program.
_SLOPE = 0.1
_LAYERS = {"arc_dependent": ARC_SIZE, "arc_head": ARC_SIZE, "label_dependent": LABEL_SIZE, "label_head": LABEL_SIZE}


class TreeScores(NamedTuple):
    """Scores of W words, float32.

    Attributes:
      arcs: (B, W, W + 1), that the head of a word is the root (0) or another word, from 1 on; -inf for the word itself and
        for what is no word.
      labels: (B, W, C), of the relation to the given head.
      best: int32 (B, W, W + 1), the best relation to every head that a word could have.
    """

    arcs: jax.Array
    labels: jax.Array
    best: jax.Array


class TreeHead(nn.Module):
    """From the last hidden states to scores of heads and relations.

    A word's state is that of its first token. The root's is a parameter, as the first token of causal models may be a word.
    """

    config: ModelConfig
    dtype: Any
    deterministic: bool

    @nn.compact
    def __call__(self, hidden: jax.Array, words: jax.Array | None = None, heads: jax.Array | None = None) -> TreeScores:
        """Scores the words of each row.

        Args:
          hidden: (B, L, d).
          words: int32 (B, W), the token that stands for each word, -1 behind the last; None: every token is one.
          heads: int32 (B, W), the heads whose relations `labels` scores, 0 for the root; None: all are the root.
        """
        config, dtype = self.config, self.dtype
        if words is None:
            words = jnp.broadcast_to(jnp.arange(hidden.shape[1]), hidden.shape[:2])
        heads = jnp.zeros_like(words) if heads is None else heads
        real = words >= 0
        x = jnp.take_along_axis(hidden, jnp.maximum(words, 0)[..., None], axis=1)
        root = self.param("root", normal(1.0), (config.hidden_size,)).astype(x.dtype)
        with_root = jnp.concatenate([jnp.broadcast_to(root, (len(x), 1, root.size)), x], axis=1)
        dropout = Dropout(config.classifier_dropout, deterministic=self.deterministic)

        def layer(name: str) -> jax.Array:
            states = nn.Dense(_LAYERS[name], dtype=dtype, name=name)(with_root if name.endswith("head") else x)
            return dropout(jax.nn.leaky_relu(keep_rows(states), _SLOPE))

        def with_one(states: jax.Array) -> jax.Array:
            return jnp.concatenate([states, jnp.ones((*states.shape[:2], 1), states.dtype)], axis=-1)

        # Zeros: every head is as likely as the others at first.
        zeros = nn.initializers.zeros
        of_arcs = self.param("arcs", zeros, (ARC_SIZE + 1, ARC_SIZE)).astype(dtype)
        of_labels = self.param("labels", zeros, (config.labels, LABEL_SIZE + 1, LABEL_SIZE + 1)).astype(dtype)
        dependent = with_one(layer("arc_dependent"))
        arcs = jnp.einsum("bip,pq,bjq->bij", dependent, of_arcs, layer("arc_head"), preferred_element_type=jnp.float32)
        itself = jnp.eye(*arcs.shape[1:], k=1, dtype=bool)
        possible = jnp.pad(real, ((0, 0), (1, 0)), constant_values=True)[:, None] & ~itself
        dependent, head = with_one(layer("label_dependent")), with_one(layer("label_head"))
        chosen = jnp.take_along_axis(head, heads[..., None], axis=1)
        labels = jnp.einsum("bip,cpq,biq->bic", dependent, of_labels, chosen, preferred_element_type=jnp.float32)

        def better(found: tuple[jax.Array, jax.Array], label: tuple[jax.Array, jax.Array]) -> tuple[tuple, None]:
            (most, best), (number, of_label) = found, label
            score = jnp.einsum("bip,pq,bjq->bij", *fixed[:1], of_label, *fixed[1:], preferred_element_type=jnp.float32)
            return (jnp.maximum(most, score), jnp.where(score > most, number, best)), None

        # A label at a time: never are there (B, W, W + 1, C) scores. Nothing is learned from what is the best.
        fixed = jax.lax.stop_gradient((dependent, head))
        start = (jnp.full(arcs.shape, -jnp.inf), jnp.zeros(arcs.shape, jnp.int32))
        (_, best), _ = jax.lax.scan(better, start, (jnp.arange(config.labels), jax.lax.stop_gradient(of_labels)))
        return TreeScores(jnp.where(possible, arcs, -jnp.inf), labels, best)


def head_weights(path: str) -> list[Weight]:
    """The weight map of the head: a linear layer's tensors are named as torch does, the others as here."""
    layers = (weight for name in _LAYERS for weight in linear(f"{path}/{name}", f"{path}.{name}"))
    return [*layers, *(Weight(f"{path}/{name}", (f"{path}.{name}",)) for name in ("root", "arcs", "labels"))]


def head_flops(config: ModelConfig) -> float:
    """FLOPs of the head for one token that is a word, forward; what grows with the length of a sentence is little beside it."""
    return 2.0 * (sum(_LAYERS.values()) * config.hidden_size + ARC_SIZE**2 + config.labels * LABEL_SIZE**2)
