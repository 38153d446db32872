"""Exact search by cosine: the k nearest (`neighbors`), sparsemax, CSLS; blocked and jitted, the same bits on any device.

The names below are imported when they are first used: who lists the methods need not load JAX.
"""

import importlib

_HOME = {
    "csls_neighbors": "csls",
    "nearest_neighbors": "neighbors",
    "neighborhood_mean": "csls",
    "pursue": "pursuit",
    "sparsemax_neighbors": "sparsemax",
    "unit_rows": "pursuit",
}

__all__ = [*_HOME]


def __getattr__(name: str):
    if name not in _HOME:
        raise AttributeError(f"module 'wechsel_jax.search' has no attribute {name!r}")
    return getattr(importlib.import_module(f"wechsel_jax.search.{_HOME[name]}"), name)
