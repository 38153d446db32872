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

T = TypeVar("T")


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

    def requested(self, step: int) -> bool:
        """Whether the run shall end after this step; the same answer in every process."""
        if jax.process_count() > 1:
            from jax.experimental import multihost_utils

            return multihost_utils.reached_preemption_sync_point(step)
        return self._signal is not None

    def watch(self, items: Iterable[T]) -> Iterator[T]:
        """Passes items on; raises `Interrupted` between two of them once a signal has arrived."""
        for item in items:
            if self._signal is not None and jax.process_count() == 1:
                raise Interrupted
            yield item

    def leave(self, message: str) -> None:
        """Prints one line and ends the program with status 128 + the signal's number (130 or 143)."""
        print(f"{_name(self._signal)}: {message}", file=sys.stderr, flush=True)
        raise SystemExit(128 + (self._signal or signal.SIGTERM))

    def _handle(self, number: int, _: FrameType | None) -> None:
        if self._signal is not None:
            if number == signal.SIGINT:
                os._exit(128 + number)
            return
        self._signal = number
        if not self.graceful:
            self.leave("stopped before training; the same command starts it again")
        # Not print: the signal may have interrupted one.
        os.write(2, f"{_name(number)}: saving a checkpoint; Ctrl-C quits at once\n".encode())

    @contextlib.contextmanager
    def installed(self) -> Iterator["Interrupts"]:
        """Handles signals inside the block; only the main thread can, and with several processes JAX handles SIGTERM itself."""
        if threading.current_thread() is not threading.main_thread():
            yield self
            return
        numbers = [signal.SIGINT] if jax.distributed.is_initialized() else [signal.SIGINT, signal.SIGTERM]
        old = {number: signal.signal(number, self._handle) for number in numbers}
        try:
            yield self
        finally:
            for number, handler in old.items():
                signal.signal(number, handler)


def _name(number: int | None) -> str:
    return signal.Signals(number).name if number is not None else "preempted"
