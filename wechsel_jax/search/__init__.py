"""Exact search by cosine: the k nearest (`neighbors`), sparsemax, CSLS; blocked and jitted, the same bits on any device."""

from wechsel_jax.search.neighbors import nearest_neighbors

__all__ = ["nearest_neighbors"]
