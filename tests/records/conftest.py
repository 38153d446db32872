"""Three runs of a comparison."""

import json
from pathlib import Path

import pytest

from tests.records.runs import CURVES, make_run


@pytest.fixture(scope="session")
def comparison(tmp_path_factory) -> Path:
    """A workdir of `train.compare` with three runs. Read only."""
    root = tmp_path_factory.mktemp("comparison") / "demo"
    for method in CURVES:
        make_run(root, method)
    seconds = {"tokenizer": 2.91, "wechsel transfer": 3.2, "wechsel training": 148.0}
    result = {"methods": {method: {} for method in CURVES}, "seed": 0, "machine": "x86_64, 1 x cpu", "seconds": seconds}
    (root / "comparison.json").write_text(json.dumps(result))
    return root


@pytest.fixture(scope="session")
def runs(comparison) -> list[Path]:
    """The three runs of `comparison`."""
    return [comparison / method for method in CURVES]
