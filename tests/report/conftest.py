"""The report on three runs."""

from pathlib import Path

import pytest

from tests.records.conftest import comparison, runs  # noqa: F401
from wechsel_jax.report import write_report


@pytest.fixture(scope="session")
def report(runs, tmp_path_factory) -> Path:  # noqa: F811
    """The report of `comparison`, plots beside it. Read only."""
    return write_report(runs, tmp_path_factory.mktemp("report") / "report.html")
