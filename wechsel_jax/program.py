"""How a program ends: by a user's mistake, a lack of memory, a signal; always with one line and nothing half-written."""

import contextlib
import importlib.machinery
import os
import re
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any, NoReturn

from wechsel_jax.errors import UserError, one_line, printable
from wechsel_jax.files import FULL, remove_unfinished

# How long Python has to hear of a signal before the process ends without it: inside a library's code no handler runs.
_PATIENCE_SECONDS = 2.0
_LONGEST_LINE = 2000
_NO_UNKNOWN = re.compile(r"Missing \[UNK\]|unknown token but `unk_id` is missing")
_SAID = {signal.SIGINT: "interrupted", signal.SIGTERM: "stopped by SIGTERM"}


class Terminated(KeyboardInterrupt):
    """SIGTERM arrived; whatever catches Ctrl-C to clean up catches this too."""


@contextlib.contextmanager
def program(name: str, *, last: bool = False) -> Iterator[None]:
    """Runs the block as a program: whatever ends it leaves one line on stderr, and no temporary files.

    Args:
      name: what the line starts with, e.g. "wechsel-jax transfer".
      last: the process ends with the block, after a signal at once; one that comes while Python clears up changes nothing any
        more.

    Raises:
      SystemExit: with status 2 after a mistake, see `mistake`; 130 after Ctrl-C and 143 after SIGTERM.
    """
    for stream in (sys.stdout, sys.stderr):
        # Where a terminal's or a file's encoding lacks a character, it is told by its number.
        with contextlib.suppress(AttributeError):
            stream.reconfigure(errors="backslashreplace")
    with _Signals(name, last) as signals:
        try:
            yield
        except BaseException as error:
            if isinstance(error, KeyboardInterrupt) and not signals.arrived:
                signals.arrived = signal.SIGINT
            # Importing a library, and much else, turns an interrupt into an error of its own.
            if signals.arrived:
                signals.leave(str(error) if isinstance(error, KeyboardInterrupt) else "")
            # A training run handles signals itself, and has said so.
            if last and isinstance(error, SystemExit) and error.code in {128 + number for number in _SAID} and not _others():
                _end(error.code)
            line = mistake(error)
            if line is None:
                raise
            print(f"{name}: error: {line}", file=sys.stderr)
            raise SystemExit(2) from None


class _NoTorch(importlib.machinery.PathFinder):
    """Finds what Python's own does, but for PyTorch."""

    @classmethod
    def find_spec(cls, fullname: str, *place: Any) -> importlib.machinery.ModuleSpec | None:
        return None if fullname == "torch" else super().find_spec(fullname, *place)


def without_torch() -> None:
    """Keeps PyTorch out of the process: transformers imports it wherever it is installed, which takes a second of each start.

    Nothing of this package needs it. For programs alone: who imports the package may want it, and who has imported transformers
    already has told it that PyTorch is there. It is not found; a None among the modules would keep it out as well, but what
    only looks whether it has been imported (scipy, and so scikit-learn; datasets) takes that for PyTorch and fails.
    """
    if not {"torch", "transformers"} & sys.modules.keys():
        own = importlib.machinery.PathFinder
        sys.meta_path[:] = [_NoTorch if finder is own else finder for finder in sys.meta_path]


def mistake(error: BaseException) -> str | None:
    """Returns the line for what the user can mend: a `UserError`, what the system says, a lack of memory; None for the rest."""
    if isinstance(error, UserError):
        return _bounded(str(error))
    if isinstance(error, MemoryError):
        what = f"{one_line(error)}; " if str(error) else ""
        return f"{what}not enough memory; ask for less, or use a machine with more memory"
    if isinstance(error, OSError) and error.errno is not None:
        where = f"{error.filename}: " if error.filename else ""
        advice = "; free some space and run the same command again" if error.errno in FULL else ""
        return _bounded(f"{where}{error.strerror}{advice}")
    asked = os.environ.get("JAX_PLATFORMS", "")
    if type(error) in (RuntimeError, AssertionError) and asked not in ("", "cpu") and not _devices():
        return (
            f"JAX finds no device of JAX_PLATFORMS={asked}; expected one, and the extra for it (wechsel-jax[gpu] or [tpu]); "
            "install that, or unset JAX_PLATFORMS"
        )
    # Of tokenizers, which has no exception of its own.
    if type(error) is Exception and _NO_UNKNOWN.search(str(error)):
        return (
            f"a tokenizer has no token for text that it does not know, and there is some ({one_line(error)}); expected one "
            "with an unknown token; make it again, or take such text out"
        )
    # Of jaxlib, which need not be imported to be known.
    if type(error).__name__ in ("JaxRuntimeError", "XlaRuntimeError") and "RESOURCE_EXHAUSTED" in str(error):
        return "not enough memory on the device; compute less at once, or use more devices or larger ones"
    return None


def _bounded(text: str) -> str:
    """One line: what a file or an argument put into it may be of any length, and its end says what to do."""
    line = printable(text)
    return line if len(line) <= _LONGEST_LINE else f"{line[: _LONGEST_LINE // 2]} ... {line[-_LONGEST_LINE // 2 :]}"


def _devices() -> bool:
    """Whether JAX, which is loaded already where it has failed, has any."""
    jax = sys.modules.get("jax")
    with contextlib.suppress(Exception):
        return jax is None or bool(jax.devices())
    return False


def _others() -> bool:
    """Whether other processes train with this one, which JAX tells of its end while Python clears up."""
    jax = sys.modules.get("jax")
    return jax is not None and jax.distributed.is_initialized()


def _end(status: int) -> NoReturn:
    """Ends the process at once: where JAX is computing, its threads go on while Python clears up, and crash."""
    with contextlib.suppress(OSError, ValueError):
        sys.stdout.flush()
    os._exit(status)


@contextlib.contextmanager
def never_ignored(kind: type[BaseException], forget: Callable[[], int]) -> Iterator[None]:
    """Sends a signal again whose exception came in a callback of the garbage collector, where Python ignores it (JAX has one).

    Args:
      kind: of the exception that the signal's handler raises.
      forget: makes the handler as it was before the signal, whose number it returns.
    """

    def hook(ignored: "sys.UnraisableHookArgs") -> None:
        if issubclass(ignored.exc_type, kind):
            threading.Timer(0.05, signal.pthread_kill, (threading.main_thread().ident, forget())).start()
        else:
            before(ignored)

    before, sys.unraisablehook = sys.unraisablehook, hook
    try:
        yield
    finally:
        sys.unraisablehook = before


class _Signals:
    """Raises `KeyboardInterrupt` or `Terminated` in the main thread at the first signal; the second ends the program at once.

    Attributes:
      arrived: the signal's number; None before it.
    """

    def __init__(self, name: str, last: bool):
        self._name, self._last = name, last
        self.arrived: int | None = None
        self._heard = threading.Event()

    def leave(self, advice: str) -> NoReturn:
        """Prints the line and ends the program."""
        remove_unfinished()
        print(f"{self._name}: {_SAID[self.arrived]}{advice and '; '}{advice}", file=sys.stderr, flush=True)
        if self._last:
            _end(128 + self.arrived)
        raise SystemExit(128 + self.arrived)

    def __enter__(self) -> "_Signals":
        self._stack = contextlib.ExitStack()
        if threading.current_thread() is threading.main_thread():
            reader, writer = os.pipe()
            os.set_blocking(writer, False)
            self._stack.callback(os.close, writer)
            self._stack.callback(signal.set_wakeup_fd, signal.set_wakeup_fd(writer, warn_on_full_buffer=False))
            for number in _SAID:
                # A shell's background job, and nohup, ignore a signal on purpose.
                if signal.getsignal(number) != signal.SIG_IGN:
                    before = signal.signal(number, self._handle)
                    self._stack.callback(signal.signal, number, signal.SIG_IGN if self._last else before)
            self._stack.enter_context(never_ignored(KeyboardInterrupt, self._forget))
            threading.Thread(target=self._guard, args=(reader,), name="signals", daemon=True).start()
        return self

    def __exit__(self, *_) -> None:
        self._heard.set()
        self._stack.close()

    def _handle(self, number: int, _: FrameType | None) -> None:
        self._heard.set()
        if self.arrived:
            self._quit(self.arrived)
        self.arrived = number
        raise Terminated if number == signal.SIGTERM else KeyboardInterrupt

    def _forget(self) -> int:
        number, self.arrived = self.arrived or signal.SIGINT, None
        return number

    def _guard(self, reader: int) -> None:
        """In a thread, told by the system: ends the program for a main thread that is inside a library."""
        for number in iter(lambda: os.read(reader, 1), b""):
            if number[0] in _SAID and signal.getsignal(number[0]) == self._handle and not self._heard.wait(_PATIENCE_SECONDS):
                self._quit(number[0])
        os.close(reader)

    def _quit(self, number: int) -> NoReturn:
        remove_unfinished()
        # A library that was stopped inside has left its bar on the terminal's line.
        start = "\n" if os.isatty(2) else ""
        os.write(2, f"{start}{self._name}: {_SAID[number]}\n".encode())
        os._exit(128 + number)
