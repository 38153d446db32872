"""A model directory as data: read `directory` first (config, tokenizer, tensors), then `surgery` (a new vocabulary)."""

from wechsel_jax.checkpoint.directory import Checkpoint, VocabularyTensor, write_checkpoint

__all__ = ["Checkpoint", "VocabularyTensor", "write_checkpoint"]
