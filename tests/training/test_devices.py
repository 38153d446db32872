import subprocess
import sys

import jax
import pytest

from wechsel_jax.training.devices import peak_flops, utilisation


@pytest.mark.parametrize(
    ("kind", "teraflops"),
    [
        ("TPU v2", 22.5),
        ("TPU v3", 61.5),
        ("TPU v4", 275),
        ("TPU v5 lite", 197),
        ("TPU v5p", 459),
        ("TPU v6 lite", 918),
        ("NVIDIA A100-SXM4-80GB", 312),
        ("NVIDIA H100 80GB HBM3", 989),
        ("NVIDIA H200", 989),
    ],
)
def test_known_peaks(kind, teraflops):
    assert peak_flops(kind) == teraflops * 1e12


def test_no_utilisation_is_made_up_for_a_cpu():
    assert utilisation(1e9, 1e3, jax.devices("cpu")) is None


def test_the_papers_run_used_31_percent():
    """Minixhofer et al. (2022), appendix B: 250,000 x 512 x 512 tokens in 4 days on a TPU v3-8, 801 MFLOP a token."""

    class Core:
        device_kind = "TPU v3"

    assert utilisation(801e6, 250_000 * 512 * 512 / (4 * 86400), [Core()] * 8) == pytest.approx(0.31, abs=0.005)


FAULTS = """
import resource, sys
import numpy as np
from wechsel_jax.training.devices import keep_freed_memory
kept = sys.argv[1] == "keep" and keep_freed_memory()
for _ in range(3):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    np.ones(25_000_000, np.float32)
print(kept, resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="malloc of glibc")
def test_kept_memory_is_not_paid_for_again():
    """Page faults of the third array of 100 MB: 24,400, or 50 and some where the system gives huge pages, against none."""
    faults = {}
    for mode in ("keep", "default"):
        command = [sys.executable, "-c", FAULTS, mode]
        kept, count = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
        faults[mode] = int(count)
        assert kept == str(mode == "keep")
    assert faults["default"] > 40
    assert faults["keep"] < 10
