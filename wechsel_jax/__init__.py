"""wechsel-jax brings a pretrained language model to a new language."""
