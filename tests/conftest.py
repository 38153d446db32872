"""Eight CPU devices for every test, and the folder of real data where there is one.

WECHSEL_JAX_TEST_PLATFORM=cuda takes that machine's devices instead. Tests of several devices need as many; those that compare
with float64 need JAX_DEFAULT_MATMUL_PRECISION=highest there, since products of float32 are rounded to 10 bits without it.
"""

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import jax
import pytest

from tests.quick import compile_quickly

os.environ.setdefault("HF_HUB_OFFLINE", "1")
PLATFORM = os.environ.get("WECHSEL_JAX_TEST_PLATFORM", "cpu")
jax.config.update("jax_platforms", PLATFORM)
jax.config.update("jax_num_cpu_devices", 8)
# What a program computes is what these are about. Machine code as users get it takes three to nine times as long to make.
QUICKLY_COMPILED = {
    "evaluation",
    "initializers",
    "inspection",
    "models",
    "objectives",
    "records",
    "tests",
    "training",
    "transfers",
}


def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """Two processes for many files: programs as small as these use one core each. None where files are named."""
    return 0 if any(".py" in argument for argument in config.args) else 2


@pytest.fixture(scope="module", autouse=True)
def quick_compilation(request: pytest.FixtureRequest) -> Iterator[None]:
    compile_quickly(PLATFORM == "cpu" and request.path.parent.name in QUICKLY_COMPILED)
    yield
    compile_quickly(False)


@pytest.fixture(scope="module", autouse=True)
def same_signals() -> Iterator[None]:
    """A program that was called and not started must not end with signals ignored: later tests would start deaf processes."""
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    yield
    assert {number: signal.getsignal(number) for number in before} == before


@pytest.fixture(scope="session")
def data_directory() -> Path:
    """The folder that WECHSEL_JAX_TEST_DATA names: tokenizers/, dict/, text/ of real languages."""
    value = os.environ.get("WECHSEL_JAX_TEST_DATA", "")
    if not value or not Path(value).is_dir():
        pytest.skip("WECHSEL_JAX_TEST_DATA names no folder of real data")
    return Path(value)
