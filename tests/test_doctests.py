"""The examples in the documentation run."""

import doctest
import importlib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1] / "wechsel_jax"
MODULES = [
    ".".join(("wechsel_jax", *path.relative_to(ROOT).with_suffix("").parts))
    for path in sorted(ROOT.rglob("*.py"))
    if ">>> " in path.read_text(encoding="utf-8")
]


@pytest.mark.slow
@pytest.mark.parametrize("name", MODULES)
def test_the_examples_run(name):
    result = doctest.testmod(importlib.import_module(name.removesuffix(".__init__")))
    assert result.attempted and not result.failed
