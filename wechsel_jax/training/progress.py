"""How a run shows that it lives: one line that is overwritten on a terminal, a line now and then elsewhere."""

import contextlib
import datetime
import math
import sys
import time
from collections.abc import Iterator
from typing import Any, TextIO

PLAIN_SECONDS = 10.0


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

    def train(self, line: dict[str, Any], seconds_left: float) -> None:
        """Shows a training line of the metrics; where lines cannot be overwritten, at most one every ten seconds."""
        if not self.terminal and time.monotonic() - self._last < PLAIN_SECONDS and line["step"] != self.total:
            return
        self._last = time.monotonic()
        self._show(self._text(line, seconds_left), overwrite=self.terminal)

    def evaluation(self, line: dict[str, Any]) -> None:
        """Shows an evaluation; it stays on the screen."""
        count = f"{line['tokens']:,.0f} tokens"
        self._show(f"step {line['step']:,}/{self.total:,}: held-out perplexity {line['perplexity']:,.2f} ({count})")

    def say(self, text: str) -> None:
        """Shows a sentence; it stays on the screen."""
        self._show(text)

    def _text(self, line: dict[str, Any], seconds_left: float) -> str:
        parts = [
            f"step {line['step']:,}/{self.total:,}",
            f"loss {line['loss']:.4f}",
            f"learning rate {line['learning_rate']:.2e}",
            f"{line['tokens_per_second']:,.0f} tokens/s",
            f"{datetime.timedelta(seconds=round(seconds_left))} left",
        ]
        if "mfu" in line:
            parts.append(f"MFU {line['mfu']:.1%}")
        return "  ".join(parts)

    def _show(self, text: str, overwrite: bool = False) -> None:
        if self.quiet:
            return
        start = "\r" + text.ljust(self._width) if self._width else text
        self.stream.write(start + ("" if overwrite else "\n"))
        self.stream.flush()
        self._width = len(text) if overwrite else 0


class Clock:
    """Tokens a second between two lines of the metrics, without evaluations, checkpoints and compilation.

    Args:
      tokens_per_step: of all devices together.
      lines: what the run has recorded before this start; seconds go on from there.
    """

    def __init__(self, tokens_per_step: int, lines: list[dict[str, Any]]):
        self.tokens_per_step = tokens_per_step
        self._offset = max((line.get("seconds", 0.0) for line in lines), default=0.0)
        self._began = time.perf_counter()
        self._mark, self._step, self._lost = self._began, 0, 0.0

    def start(self, step: int) -> None:
        """Begins a stretch at `step`."""
        self._mark, self._step, self._lost = time.perf_counter(), step, 0.0

    def seconds(self) -> float:
        """Since the run began, the time between an interruption and the next start left out."""
        return self._offset + time.perf_counter() - self._began

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
