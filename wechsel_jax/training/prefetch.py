"""Batches made ahead of the step that asks for them, in a thread."""

import queue
import threading
import time
from collections.abc import Callable
from typing import Any


class Prefetcher:
    """Makes the batches after the one asked for while the devices compute.

    A batch is what `make(step)` returns, whoever calls it and when, so a run with a prefetcher computes what it would without.
    The thread may place arrays on devices of its own process (which does not wait for them), but must not make the processes
    of a run wait for each other.

    Args:
      make: step -> batch; called from the thread alone, one step after the other.
      depth: how many batches may lie ready; 0 makes each one when it is asked for, without a thread.
      end: the first step that nobody will ask for; None: there is none.

    Attributes:
      waited: seconds that `get` has waited so far.
    """

    def __init__(self, make: Callable[[int], Any], depth: int, end: int | None = None):
        self.make, self.depth, self.end = make, depth, end
        self.waited = 0.0
        self._ahead: _Ahead | None = None

    def get(self, step: int) -> Any:
        """Returns the batch of a step. Asking for another step than the next one drops what was made ahead.

        Raises:
          Whatever `make` raised for this step; the next call tries again.
        """
        began = time.perf_counter()
        try:
            if self.depth < 1:
                return self.make(step)
            if self._ahead is None or self._ahead.next != step:
                self.close()
                self._ahead = _Ahead(self.make, self.depth, step, self.end)
            try:
                return self._ahead.get()
            except BaseException:
                self.close()
                raise
        finally:
            self.waited += time.perf_counter() - began

    def close(self) -> None:
        """Ends the thread and drops what it has made; `get` may be called again."""
        if self._ahead is not None:
            self._ahead.close()
            self._ahead = None


class _Ahead:
    """A thread that makes the batches from `first` on, in order, and at most `depth` more than were asked for."""

    def __init__(self, make: Callable[[int], Any], depth: int, first: int, end: int | None):
        self.next = first
        self._stopped = threading.Event()
        self._room = threading.Semaphore(depth)
        self._ready: queue.SimpleQueue = queue.SimpleQueue()
        # A daemon, so that an error elsewhere never leaves the program waiting for a batch that nobody wants.
        self._thread = threading.Thread(target=self._work, args=(make, first, end), name="prefetch", daemon=True)
        self._thread.start()

    def get(self) -> Any:
        self._room.release()
        batch, error = self._ready.get()
        if error is not None:
            raise error
        self.next += 1
        return batch

    def close(self) -> None:
        self._stopped.set()
        self._room.release()
        self._thread.join()

    def _work(self, make: Callable[[int], Any], step: int, end: int | None) -> None:
        # The step that was asked for is made even at `end`, where a caller asks for it.
        last = None if end is None else max(end, step + 1)
        while last is None or step < last:
            self._room.acquire()
            if self._stopped.is_set():
                return
            try:
                batch = make(step)
            except BaseException as error:
                self._ready.put((None, error))
                return
            self._ready.put((batch, None))
            step += 1
