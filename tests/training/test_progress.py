"""What a person sees of a run, on terminals of several widths and in plain logs."""

import io
import os

import pytest

from wechsel_jax.training import progress as module
from wechsel_jax.training.progress import Clock, Progress, duration

LINE = {
    "kind": "train", "step": 250, "phase": "all", "loss": 3.14159, "learning_rate": 1e-4, "gradient_norm": 1.0,
    "tokens_per_second": 189630.0, "seconds": 100.0, "mfu": 0.312, "data_wait": 0.0, "something_new": "x",
}  # fmt: skip


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.fixture
def columns(monkeypatch):
    """Sets the width of the terminal."""

    def choose(width: int) -> None:
        monkeypatch.setattr(module.shutil, "get_terminal_size", lambda: os.terminal_size((width, 24)))

    return choose


def screen(stream: io.StringIO) -> list[str]:
    """What stands on the screen: a carriage return goes back to the start of its line."""
    shown = []
    for line in stream.getvalue().split("\n"):
        text = ""
        for part in line.split("\r"):
            text = part + text[len(part) :]
        shown.append(text.rstrip())
    return shown


def test_a_bar_on_a_terminal(columns):
    columns(140)
    stream = Terminal()
    progress = Progress(1000, stream)
    progress.train(LINE, seconds_left=4 * 86400 + 3 * 3600 + 300)
    (shown,) = screen(stream)
    bar, text = shown.split(" ", 1)
    assert bar == "█" * (len(bar) // 4) + "░" * (len(bar) - len(bar) // 4) and len(bar) > 10
    assert text.strip() == ("25.0 %  step 250/1,000  loss 3.1416  4 d 03:05 h left  189,630 tokens/s  lr 1.00e-04  MFU 31.2%")
    progress.train({**LINE, "step": 500, "seconds": 110.0, "data_wait": 3.0}, seconds_left=9.4)
    progress.evaluation({"step": 500, "perplexity": 20.5, "tokens": 98304.0})
    progress.say("exported")
    assert screen(stream) == ["step 500/1,000: held-out perplexity 20.50 (98,304 tokens)", "exported", ""]
    progress.train({**LINE, "step": 510, "seconds": 120.0, "data_wait": 3.0}, seconds_left=9.4)
    assert screen(stream)[-1].endswith("MFU 31.2%  waiting for data 30%")
    progress.close()
    assert stream.getvalue().endswith("\n")


@pytest.mark.parametrize("width", [20, 40, 60, 80, 100, 200])
def test_a_bar_never_wraps(columns, width):
    columns(width)
    stream = Terminal()
    progress = Progress(250_000, stream)
    for step in (1, 125_000, 250_000):
        progress.train({**LINE, "step": step}, seconds_left=1e6)
        assert len(screen(stream)[-1]) < width
    assert "100.0 %" in screen(stream)[-1]
    assert ("loss 3.1416" in screen(stream)[-1]) == (width >= 60)


def test_plain_logs_get_a_line_now_and_then(monkeypatch):
    now = [0.0]
    monkeypatch.setattr(module.time, "monotonic", lambda: now[0])
    stream = io.StringIO()
    progress = Progress(1000, stream)
    for step in range(10, 1001, 10):
        now[0] += 1.0
        progress.train({**LINE, "step": step}, seconds_left=60.0)
    lines = stream.getvalue().splitlines()
    assert len(lines) == 11 and not any("\r" in line for line in lines)
    assert lines[0].startswith("step 10/1,000 (1.0%)  loss 3.1416  1:00 min left") and lines[-1].startswith("step 1,000/1,000")


def test_quiet_prints_nothing():
    stream = Terminal()
    progress = Progress(1000, stream, quiet=True)
    progress.train(LINE, seconds_left=1.0)
    progress.evaluation({"step": 1, "perplexity": 2.0, "tokens": 3})
    progress.say("x")
    progress.close()
    assert stream.getvalue() == ""


def test_a_terminal_without_blocks_gets_plain_signs(columns):
    columns(100)

    class Ascii(io.TextIOWrapper):
        def isatty(self):
            return True

    stream = Ascii(io.BytesIO(), encoding="ascii")
    Progress(1000, stream).train(LINE, seconds_left=5.0)
    stream.seek(0)
    text = stream.read()
    assert text.startswith("#") and "." in text.split()[0] and "loss 3.1416" in text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.4, "0 s"), (59.6, "1:00 min"), (754, "12:34 min"), (14700, "4:05 h"), (273900, "3 d 04:05 h"), (float("inf"), "?")],
)
def test_durations(seconds, text):
    assert duration(seconds) == text


def test_the_clock_leaves_pauses_out(monkeypatch):
    now = [100.0]
    monkeypatch.setattr(module.time, "perf_counter", lambda: now[0])
    clock = Clock(1000, [{"seconds": 50.0}, {"kind": "eval"}])
    assert clock.before == 50.0
    clock.start(10)
    now[0] += 4.0
    with clock.paused():
        now[0] += 100.0
    assert clock.tokens_per_second(14) == pytest.approx(1000.0)
    assert clock.seconds() == pytest.approx(154.0)
