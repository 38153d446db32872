"""Text to token blocks on disk, and from there to the batch of any step."""

from wechsel_jax.data.batches import evaluation_batches, evaluation_tokens, training_batch, training_indices
from wechsel_jax.data.blocks import TokenBlocks
from wechsel_jax.data.manifest import wait_for
from wechsel_jax.data.order import permuted
from wechsel_jax.data.prepare import prepare, prepare_split

__all__ = [
    "TokenBlocks",
    "evaluation_batches",
    "evaluation_tokens",
    "permuted",
    "prepare",
    "prepare_split",
    "training_batch",
    "training_indices",
    "wait_for",
]
