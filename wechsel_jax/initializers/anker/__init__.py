"""anker, this project's method: rows from the contexts of tokens in text; read `method` first, docs/anker.md tells why."""

from wechsel_jax.initializers.anker.method import anker

__all__ = ["anker"]
