"""One sandbox for each test of the scripts."""

import shutil
import tempfile
from pathlib import Path

import pytest

from tests.tpu_scripts.sandbox import Sandbox


@pytest.fixture(params=["real" if shutil.which("tmux") else "stub"])
def sandbox(request):
    """A laptop, a cloud and a bucket; parametrise it with "stub" for a machine without tmux."""
    # Short, because a tmux socket's path may have about 100 characters.
    with tempfile.TemporaryDirectory(prefix="tpu") as path:
        box = Sandbox(Path(path), request.param)
        yield box
        box.close()
