"""Ctrl-C and SIGTERM: the first asks for a checkpoint and an orderly end, the second Ctrl-C ends at once."""

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Iterable, Iterator
from types import FrameType
from typing import TypeVar

import jax

from wechsel_jax.program import never_ignored

T = TypeVar("T")
# How long Python has to act on a signal where there is nothing to save, before the process ends without it.
_PATIENCE_SECONDS = 2.0


class Interrupted(Exception):
    """A signal arrived inside an evaluation."""


class Interrupts:
    """What signals have asked for.

    Attributes:
      graceful: set it once there is something to save; before that a signal ends the program at once.
    """

    def __init__(self):
        self.graceful = False
        self._signal: int | None = None
        self._asked: tuple[int, bool] | None = None
        self._idle = "stopped before training; the same command starts it again"
        self._left = threading.Event()
        self._told = False

    def requested(self, step: int) -> bool:
        """Whether the run shall end after this step; the same answer in every process."""
        if jax.process_count() > 1:
            from jax.experimental import multihost_utils

            # JAX counts its calls: one a step.
            if self._asked is None or self._asked[0] != step:
                self._asked = step, multihost_utils.reached_preemption_sync_point(step)
            return self._asked[1]
        return self._signal is not None

    def watch(self, items: Iterable[T]) -> Iterator[T]:
        """Passes items on; raises `Interrupted` between two of them once a signal has arrived."""
        for item in items:
            if self._signal is not None and jax.process_count() == 1:
                raise Interrupted
            yield item

    @contextlib.contextmanager
    def nothing_to_save(self, message: str) -> Iterator[None]:
        """Inside the block a signal ends the program at once, also while XLA compiles; then it prints the message."""
        before = self.graceful, self._idle
        self.graceful, self._idle = False, message
        try:
            if self._signal is not None:
                self.leave(message)
            yield
        finally:
            self.graceful, self._idle = before

    def leave(self, message: str) -> None:
        """Prints one line and ends the program with status 128 + the signal's number (130 or 143)."""
        self._left.set()
        if not self._told:
            print(f"{_name(self._signal)}: {message}", file=sys.stderr, flush=True)
        self._told = True
        raise SystemExit(128 + (self._signal or signal.SIGTERM))

    def _forget(self) -> int:
        number, self._signal = self._signal or signal.SIGTERM, None
        self._left.clear()
        return number

    def _handle(self, number: int, _: FrameType | None) -> None:
        if self._signal is not None:
            if number == signal.SIGINT:
                os._exit(128 + number)
            return
        self._signal = number
        if jax.process_count() > 1:
            # Only SIGINT comes here; as SIGTERM, JAX tells the other processes of it.
            if self.graceful:
                os.kill(os.getpid(), signal.SIGTERM)
            else:
                self._quit(number)
        if not self.graceful:
            self.leave(self._idle)
        # Not print: the signal may have interrupted one.
        os.write(2, f"{_name(number)}: saving a checkpoint; Ctrl-C quits at once\n".encode())

    def _guard(self, wakeups: int) -> None:
        """In a thread: ends the program for a main thread that is inside XLA, where no Python handler runs."""
        for number in iter(lambda: os.read(wakeups, 1), b""):
            number = number[0]
            if number not in (signal.SIGINT, signal.SIGTERM) or self.graceful:
                continue
            if not self._left.wait(_PATIENCE_SECONDS) and not self.graceful:
                self._quit(number)
        os.close(wakeups)

    def _quit(self, number: int) -> None:
        os.write(2, f"{_name(number)}: {self._idle}\n".encode())
        os._exit(128 + number)

    @contextlib.contextmanager
    def installed(self) -> Iterator["Interrupts"]:
        """Handles signals inside the block; only the main thread can, and with several processes JAX handles SIGTERM itself."""
        if threading.current_thread() is not threading.main_thread():
            yield self
            return
        wakeups, waker = os.pipe()
        os.set_blocking(waker, False)
        old_waker = signal.set_wakeup_fd(waker, warn_on_full_buffer=False)
        threading.Thread(target=self._guard, args=(wakeups,), name="interrupts", daemon=True).start()
        numbers = [signal.SIGINT] if jax.process_count() > 1 else [signal.SIGINT, signal.SIGTERM]
        # A shell's background job, and nohup, ignore a signal on purpose.
        numbers = [number for number in numbers if signal.getsignal(number) != signal.SIG_IGN]
        old = {number: signal.signal(number, self._handle) for number in numbers}
        try:
            with never_ignored(SystemExit, self._forget):
                yield self
        finally:
            for number, handler in old.items():
                signal.signal(number, handler)
            signal.set_wakeup_fd(old_waker)
            os.close(waker)


def _name(number: int | None) -> str:
    return signal.Signals(number).name if number is not None else "preempted"
