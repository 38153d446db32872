"""What a person sees of a run, on terminals of several widths and in plain logs."""

import contextlib
import fcntl
import io
import os
import pty
import struct
import termios

import pytest

from wechsel_jax.training import progress as module
from wechsel_jax.training.progress import Clock, Progress, duration

LINE = {
    "kind": "train", "step": 250, "phase": "all", "loss": 3.14159, "learning_rate": 1e-4, "gradient_norm": 1.0,
    "tokens_per_second": 189630.0, "seconds": 100.0, "mfu": 0.312, "data_wait": 0.0, "something_new": "x",
}  # fmt: skip


class Terminal:
    """A terminal of the system: what is written to `stream` can be read as text, or as what stands on the screen."""

    def __init__(self, columns: int, encoding: str):
        self._master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
        os.set_blocking(self._master, False)
        self.stream, self._text, self._encoding = os.fdopen(slave, "w", encoding=encoding), "", encoding

    def text(self) -> str:
        self.stream.flush()
        with contextlib.suppress(BlockingIOError):
            while read := os.read(self._master, 4096):
                self._text += read.decode(self._encoding).replace("\r\n", "\n")
        return self._text

    def screen(self) -> list[str]:
        """Lines; a carriage return goes back to the start of one."""
        shown = []
        for line in self.text().split("\n"):
            text = ""
            for part in line.split("\r"):
                text = part + text[len(part) :]
            shown.append(text.rstrip())
        return shown

    def close(self) -> None:
        self.stream.close()
        os.close(self._master)


@pytest.fixture
def terminal():
    """Returns a function (columns, encoding) -> Terminal."""
    opened = []

    def open_(columns: int, encoding: str = "utf-8") -> Terminal:
        opened.append(Terminal(columns, encoding))
        return opened[-1]

    yield open_
    for made in opened:
        made.close()


def test_a_bar_on_a_terminal(terminal):
    shown = terminal(140)
    progress = Progress(1000, shown.stream)
    progress.train(LINE, seconds_left=4 * 86400 + 3 * 3600 + 300)
    text = "4 d 03:05 h left  189,630 tokens/s  lr 1.00e-04  MFU 31.2%"
    assert shown.screen()[-1].strip() == f"25.0 %|██▌       | step 250/1,000, loss 3.1416  {text}"
    progress.train({**LINE, "step": 500, "seconds": 110.0, "data_wait": 3.0}, seconds_left=9.4)
    progress.evaluation({"step": 500, "perplexity": 20.5, "tokens": 98304.0})
    progress.evaluation({"step": 500, "perplexity": 20.5, "tokens": 1000.0, "bits_per_byte": 1.0301, "bytes": 4230})
    progress.say("exported")
    *said, bar = shown.screen()
    assert said == [
        "step 500/1,000: held-out perplexity 20.50 (98,304 tokens)",
        "step 500/1,000: held-out 1.030 bits per byte, perplexity 20.50 (1,000 tokens)",
        "exported",
    ]
    assert bar.strip().startswith("50.0 %|█████     | step 500/1,000, loss 3.1416  9 s left")
    assert bar.endswith("MFU 31.2%  waiting for data 30%")
    progress.train({**LINE, "step": 510}, seconds_left=9.0, bytes_per_token=4.23)
    assert "189,630 tokens/s, 802.1 kB/s  lr" in (bar := shown.screen()[-1])
    progress.close()
    assert shown.text().endswith("\n") and shown.screen()[-2] == bar
    # What is said before the first line and after the last one is on lines of its own.
    progress.say("done")
    assert shown.screen()[-2:] == ["done", ""]


@pytest.mark.parametrize("width", [20, 40, 60, 80, 100, 200])
def test_a_bar_never_wraps(terminal, width):
    shown = terminal(width)
    progress = Progress(250_000, shown.stream)
    for step in (1, 125_000, 250_000):
        progress.train({**LINE, "step": step}, seconds_left=1e6)
        assert len(shown.screen()[-1]) <= width
    assert "100.0 %" in shown.screen()[-1]
    assert ("loss 3.1416" in shown.screen()[-1]) == (width >= 60)
    progress.close()


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


def test_quiet_prints_nothing(terminal):
    shown = terminal(80)
    progress = Progress(1000, shown.stream, quiet=True)
    progress.train(LINE, seconds_left=1.0)
    progress.evaluation({"step": 1, "perplexity": 2.0, "tokens": 3})
    progress.say("x")
    progress.close()
    assert shown.text() == ""


def test_a_terminal_without_blocks_gets_plain_signs(terminal):
    shown = terminal(100, "ascii")
    progress = Progress(1000, shown.stream)
    progress.train(LINE, seconds_left=5.0)
    assert shown.screen()[-1].strip().startswith("25.0 %|##5       | step 250/1,000, loss 3.1416")
    progress.close()


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.4, "0 s"), (59.6, "1:00 min"), (754, "12:34 min"), (14700, "4:05 h"), (273900, "3 d 04:05 h"), (float("inf"), "?")],
)
def test_durations(seconds, text):
    assert duration(seconds) == text


def test_the_clock_leaves_pauses_out(monkeypatch):
    now = [100.0]
    monkeypatch.setattr(module.time, "perf_counter", lambda: now[0])
    clock = Clock(lambda first, end: 1000 * (end - first), [{"seconds": 50.0}, {"kind": "eval"}])
    assert clock.before == 50.0
    clock.start(10)
    now[0] += 4.0
    with clock.paused():
        now[0] += 100.0
    assert clock.tokens_per_second(14) == pytest.approx(1000.0)
    assert clock.seconds() == pytest.approx(154.0)
