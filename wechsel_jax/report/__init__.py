"""How records are told: as HTML, for the terminal and in Markdown. Read `section.py` first.

The names below are imported when they are first used: a model card (`card.py`) needs no figures.
"""

import importlib

_HOME = {
    "comparison_table": "page",
    "steps_needed": "curves",
    "write_report": "page",
}

__all__ = [*_HOME]


def __getattr__(name: str):
    if name not in _HOME:
        raise AttributeError(f"module 'wechsel_jax.report' has no attribute {name!r}")
    return getattr(importlib.import_module(f"wechsel_jax.report.{_HOME[name]}"), name)
