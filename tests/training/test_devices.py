import io

import jax
import pytest

from wechsel_jax.training.devices import peak_flops, utilisation
from wechsel_jax.training.progress import Progress


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


def test_a_log_file_does_not_get_a_line_a_step():
    stream = io.StringIO()
    progress = Progress(100, stream)
    for step in range(1, 101):
        line = {"step": step, "loss": 2.0, "learning_rate": 1e-3, "tokens_per_second": 1234.5}
        progress.train(line, seconds_left=100.0 - step)
    lines = stream.getvalue().splitlines()
    assert len(lines) == 2
    assert lines[0].startswith("step 1/100  loss 2.0000") and "0:01:39 left" in lines[0] and "MFU" not in lines[0]
    assert lines[1].startswith("step 100/100")


def test_a_terminal_line_is_overwritten():
    class Terminal(io.StringIO):
        def isatty(self):
            return True

    stream = Terminal()
    progress = Progress(9, stream)
    progress.train({"step": 1, "loss": 2.0, "learning_rate": 1e-3, "tokens_per_second": 5.0, "mfu": 0.4}, 8.0)
    progress.evaluation({"step": 2, "perplexity": 3.0, "tokens": 10})
    first, second = stream.getvalue().split("\r")
    assert "\n" not in first and "MFU 40.0%" in first
    assert second.startswith("step 2/9: held-out perplexity 3.00") and second.endswith("\n") and len(second) > len(first)
