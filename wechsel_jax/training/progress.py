"""How a run shows that it lives: a bar on a terminal, a line now and then elsewhere."""

import contextlib
import math
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any, TextIO

from tqdm import tqdm

PLAIN_SECONDS = 10.0
# A smaller share of the time that the devices waited for text is no news.
_WAITING = 0.05
_BAR = "{percentage:5.1f} %|{bar:10}| step {n:,}/{total:,}{postfix}"


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
        self._bar: tqdm | None = None
        self._last, self._seconds = -math.inf, 0.0

    def train(self, line: dict[str, Any], seconds_left: float, bytes_per_token: float | None = None) -> None:
        """Shows a training line of the metrics; where lines cannot be overwritten, at most one every ten seconds.

        Args:
          line: of the metrics.
          seconds_left: until the run's end.
          bytes_per_token: how much text a token is; None where that is not known.
        """
        stretch = line.get("seconds", 0.0) - self._seconds
        waited = min(1.0, line.get("data_wait", 0.0) / stretch) if stretch > 0 else 0.0
        self._seconds = line.get("seconds", self._seconds)
        # The most important first: a terminal that is too narrow shows no more than fits.
        rate = line["tokens_per_second"]
        parts = [f"loss {line['loss']:.4f}", f"{duration(seconds_left)} left", f"{rate:,.0f} tokens/s"]
        if bytes_per_token is not None:
            parts[-1] += f", {rate * bytes_per_token / 1000:,.1f} kB/s"
        parts.append(f"lr {line['learning_rate']:.2e}")
        if "mfu" in line:
            parts.append(f"MFU {line['mfu']:.1%}")
        if waited >= _WAITING:
            parts.append(f"waiting for data {waited:.0%}")
        if self.quiet:
            return
        if self.stream.isatty():
            if self._bar is None:
                self._bar = tqdm(total=self.total, file=self.stream, bar_format=_BAR, dynamic_ncols=True, leave=True)
            self._bar.n = line["step"]
            # tqdm's own rate and time left would count evaluations and compilation, and begin at step 0 where a run goes on.
            self._bar.set_postfix_str("  ".join(parts))
        elif time.monotonic() - self._last >= PLAIN_SECONDS or line["step"] == self.total:
            self._last = time.monotonic()
            step = f"step {line['step']:,}/{self.total:,} ({line['step'] / self.total:.1%})"
            self.say("  ".join([step, *parts]))

    def evaluation(self, line: dict[str, Any]) -> None:
        """Shows an evaluation; it stays on the screen."""
        if "score" in line:
            told = f"held-out {line['metric'].replace('_', ' ')} {line['score']:.4f}, loss {line['loss']:.4f}"
            self.say(f"step {line['step']:,}/{self.total:,}: {told} ({line['examples']:,} examples)")
            return
        bits = f"{line['bits_per_byte']:.3f} bits per byte, " if "bits_per_byte" in line else ""
        told = f"held-out {bits}perplexity {line['perplexity']:,.2f} ({line['tokens']:,.0f} tokens)"
        self.say(f"step {line['step']:,}/{self.total:,}: {told}")

    def say(self, text: str) -> None:
        """Shows a sentence; it stays on the screen."""
        if not self.quiet:
            tqdm.write(text, file=self.stream)
            self.stream.flush()

    def close(self) -> None:
        """Ends the line that the bar is on."""
        if self._bar is not None:
            self._bar.close()
            self._bar = None


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
      tokens: (first step, one more than the last) -> positions of these steps' batches, of all devices together.
      lines: what the run has recorded before this start; seconds go on from there.

    Attributes:
      before: seconds that the run had recorded before this start.
      seconds_per_step: in the last stretch.
    """

    def __init__(self, tokens: Callable[[int, int], int], lines: list[dict[str, Any]]):
        self._tokens, self.seconds_per_step = tokens, 0.0
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
        rate = self._tokens(self._step, step) / elapsed
        self.seconds_per_step = elapsed / max(1, step - self._step)
        self.start(step)
        return rate

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """Leaves out the time that the block takes."""
        began = time.perf_counter()
        yield
        self._lost += time.perf_counter() - began
