"""How a run shows that it lives: a bar that is overwritten on a terminal, a line now and then elsewhere."""

import contextlib
import math
import shutil
import sys
import time
from collections.abc import Iterator
from typing import Any, TextIO

PLAIN_SECONDS = 10.0
_FULL, _EMPTY = "█", "░"
_WIDEST_BAR, _NARROWEST_BAR = 28, 8
# A smaller share of the time that the devices waited for text is no news.
_WAITING = 0.05


class Progress:
    """Prints the state of a run.

    Args:
      total: steps of the run.
      stream: where to; stderr by default.
      quiet: print nothing (all processes but the first).
    """

    def __init__(self, total: int, stream: TextIO | None = None, quiet: bool = False):
        self.total, self.quiet = total, quiet
        self.stream = sys.stderr if stream is None else stream
        self.terminal = self.stream.isatty()
        self._last, self._width = -math.inf, 0
        self._seconds, self._shown = 0.0, False

    def train(self, line: dict[str, Any], seconds_left: float) -> None:
        """Shows a training line of the metrics; where lines cannot be overwritten, at most one every ten seconds."""
        waited, self._seconds = self._waited(line), line.get("seconds", self._seconds)
        if not self.terminal and time.monotonic() - self._last < PLAIN_SECONDS and line["step"] != self.total:
            return
        self._last = time.monotonic()
        parts = self._parts(line, seconds_left, waited)
        self._show(
            self._bar(line["step"], parts) if self.terminal else self._line(line["step"], parts), overwrite=self.terminal
        )

    def evaluation(self, line: dict[str, Any]) -> None:
        """Shows an evaluation; it stays on the screen."""
        count = f"{line['tokens']:,.0f} tokens"
        self._show(f"step {line['step']:,}/{self.total:,}: held-out perplexity {line['perplexity']:,.2f} ({count})")

    def say(self, text: str) -> None:
        """Shows a sentence; it stays on the screen."""
        self._show(text)

    def close(self) -> None:
        """Ends the line that the bar is on."""
        if self._width and not self.quiet:
            self.stream.write("\n")
            self.stream.flush()
            self._width = 0

    def _waited(self, line: dict[str, Any]) -> float:
        """The share of the time since the last line that the devices waited for text."""
        stretch = line.get("seconds", 0.0) - self._seconds
        return min(1.0, line.get("data_wait", 0.0) / stretch) if stretch > 0 else 0.0

    def _parts(self, line: dict[str, Any], seconds_left: float, waited: float) -> list[str]:
        """What is known, the most important first."""
        parts = [f"loss {line['loss']:.4f}", f"{duration(seconds_left)} left", f"{line['tokens_per_second']:,.0f} tokens/s"]
        parts.append(f"lr {line['learning_rate']:.2e}")
        if "mfu" in line:
            parts.append(f"MFU {line['mfu']:.1%}")
        if waited >= _WAITING:
            parts.append(f"waiting for data {waited:.0%}")
        return parts

    def _line(self, step: int, parts: list[str]) -> str:
        return "  ".join([f"step {step:,}/{self.total:,} ({step / self.total:.1%})", *parts])

    def _bar(self, step: int, parts: list[str]) -> str:
        """One line no wider than the terminal: what does not fit is left out, from the end."""
        columns = shutil.get_terminal_size().columns - 1
        share = step / self.total
        counts = f"{100 * share:5.1f} %  step {step:,}/{self.total:,}"
        while parts and len("  ".join([counts, *parts])) + _NARROWEST_BAR + 3 > columns:
            parts = parts[:-1]
        text = "  ".join([counts, *parts])
        width = min(_WIDEST_BAR, columns - len(text) - 3)
        if width < 1:
            return text[:columns]
        full = int(width * share + 1e-9)
        return f"{_FULL * full}{_EMPTY * (width - full)} {text}"

    def _show(self, text: str, overwrite: bool = False) -> None:
        if self.quiet:
            return
        start = "\r" + text.ljust(self._width) if self._width else text
        try:
            self.stream.write(start + ("" if overwrite else "\n"))
        except UnicodeEncodeError:
            plain = start.replace(_FULL, "#").replace(_EMPTY, ".").encode("ascii", "replace").decode()
            self.stream.write(plain + ("" if overwrite else "\n"))
        self.stream.flush()
        self._width = len(text) if overwrite else 0


def duration(seconds: float) -> str:
    """Formats seconds: "3 d 04:05 h", "4:05 h", "12:34 min", "9 s"."""
    if not math.isfinite(seconds):
        return "?"
    minutes, rest = divmod(max(0, round(seconds)), 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    if days:
        return f"{days} d {hours:02d}:{minutes:02d} h"
    if hours:
        return f"{hours}:{minutes:02d} h"
    return f"{minutes}:{rest:02d} min" if minutes else f"{rest} s"


class Clock:
    """Tokens a second between two lines of the metrics, without evaluations, checkpoints and compilation.

    Args:
      tokens_per_step: of all devices together.
      lines: what the run has recorded before this start; seconds go on from there.

    Attributes:
      before: seconds that the run had recorded before this start.
    """

    def __init__(self, tokens_per_step: int, lines: list[dict[str, Any]]):
        self.tokens_per_step = tokens_per_step
        self.before = max((line.get("seconds", 0.0) for line in lines), default=0.0)
        self._began = time.perf_counter()
        self._mark, self._step, self._lost = self._began, 0, 0.0

    def start(self, step: int) -> None:
        """Begins a stretch at `step`."""
        self._mark, self._step, self._lost = time.perf_counter(), step, 0.0

    def seconds(self) -> float:
        """Since the run began, the time between an interruption and the next start left out."""
        return self.before + time.perf_counter() - self._began

    def tokens_per_second(self, step: int) -> float:
        """The rate since the last call or start."""
        elapsed = max(1e-9, time.perf_counter() - self._mark - self._lost)
        rate = (step - self._step) * self.tokens_per_step / elapsed
        self.start(step)
        return rate

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """Leaves out the time that the block takes."""
        began = time.perf_counter()
        yield
        self._lost += time.perf_counter() - began
