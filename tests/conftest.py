"""Eight CPU devices for every test, and the folder of real data where there is one."""

import os
from pathlib import Path

import jax
import pytest

os.environ.setdefault("HF_HUB_OFFLINE", "1")
jax.config.update("jax_platforms", "cpu")
jax.config.update("jax_num_cpu_devices", 8)


@pytest.fixture(scope="session")
def data_directory() -> Path:
    """The folder that WECHSEL_JAX_TEST_DATA names: tokenizers/, dict/, text/ of real languages."""
    value = os.environ.get("WECHSEL_JAX_TEST_DATA", "")
    if not value or not Path(value).is_dir():
        pytest.skip("WECHSEL_JAX_TEST_DATA names no folder of real data")
    return Path(value)
