"""Text to token blocks on disk, and from there to the batch of any step."""

from wechsel_jax.data.batches import evaluation_batches, evaluation_tokens, training_batch
from wechsel_jax.data.blocks import TokenBlocks
from wechsel_jax.data.order import permuted
from wechsel_jax.data.prepare import prepare

__all__ = ["TokenBlocks", "evaluation_batches", "evaluation_tokens", "permuted", "prepare", "training_batch"]
