"""Several processes of one run, one a host: they start together, and none waits for ever for one that has ended.

JAX's own runtime does the work. What it leaves to its user is done here: it aborts the program from C++ where processes are
missing at the start, or waits minutes for the others where one leaves with an error.
"""

import contextlib
import os
import re
import socket
import sys
import threading
import time
import traceback
from collections.abc import Iterator
from pathlib import Path

import jax
from ml_collections import ConfigDict

from wechsel_jax.errors import UserError

# EX_TEMPFAIL: nothing is wrong with this process; all of them started again go on.
LOST = 75
# A coordinator that was killed a moment ago may still hold its port.
_PORT_SECONDS = 5.0
# JAX's own limit aborts the program without saying what is missing, so it comes after ours.
_MARGIN_SECONDS = 60
# State of an open connection in /proc/net/tcp (include/net/tcp_states.h of Linux).
_ESTABLISHED = "01"
# What collectives, the coordination service and its barriers say when a process is gone, on CPU, GPU and TPU.
_LOST_PEER = re.compile(
    r"gloo|nccl|unavailable|deadline[ _]exceeded|barrier|coordination|heartbeat|connection (reset|closed|refused)",
    re.IGNORECASE,
)


def start(settings: ConfigDict) -> None:
    """Joins the processes of a run, where `settings` ask for it; otherwise there is one process.

    Where the others do not come within `settings.timeout` seconds, the program ends with one line and status 2: JAX offers no
    way to give up waiting.

    Args:
      settings: `coordinator` "auto" (Cloud TPU, Slurm, MPI: JAX finds out) or "host:port" with `processes` and `process`, this
        one's number from 0; empty for one process. `timeout` in seconds.

    Raises:
      UserError: the settings are incomplete, the port is taken, or "auto" finds nothing.
    """
    if jax.distributed.is_initialized():
        return
    if not settings.coordinator:
        if settings.processes > 1 or settings.process > 0:
            raise UserError(
                f"distributed.coordinator: is empty, but processes is {settings.processes} and process {settings.process}; "
                "expected host:port of process 0; set it, or leave all three out for one process"
            )
        return
    if settings.coordinator == "auto":
        address, arguments = None, ()
    else:
        address, arguments = _address(settings), (settings.coordinator, settings.processes, settings.process)
        if settings.process == 0:
            _require_free_port(address[1], settings.coordinator)
    try:
        with _Deadline(address, settings):
            jax.distributed.initialize(*arguments, initialization_timeout=settings.timeout + _MARGIN_SECONDS)
    except (RuntimeError, ValueError) as error:
        raise _refused(settings, error) from error


def is_first() -> bool:
    """Whether this process writes the run's files."""
    return jax.process_index() == 0


def barrier(name: str) -> None:
    """Waits until every process is here."""
    if jax.process_count() > 1:
        from jax.experimental import multihost_utils

        multihost_utils.sync_global_devices(name)


@contextlib.contextmanager
def together() -> Iterator[None]:
    """Ends this process at once where the block fails and there are others, which would wait for it, or it for them.

    One line on stderr and status 2 for a user's mistake, status 75 where another process has gone (start all of them again),
    a traceback and status 1 for anything else. Nothing is unwound: background threads that save a checkpoint would wait for
    the other processes too, and what they leave half-written is cleaned up at the next start. `SystemExit` passes, because
    the processes leave together then. With one process the block's exceptions are left alone.
    """
    try:
        yield
    except SystemExit:
        raise
    except BaseException as error:
        if jax.process_count() == 1:
            raise
        here, text = f"process {jax.process_index()} of {jax.process_count()}", " ".join(str(error).split())
        if isinstance(error, (UserError, OSError)):
            _end(f"{here}: error: {text}", 2)
        if isinstance(error, (RuntimeError, ValueError)) and _LOST_PEER.search(text):
            _end(
                f"{here}: lost another process of this run ({text[:200]}); "
                "start all of them again: the run goes on from its newest checkpoint",
                LOST,
            )
        traceback.print_exc()
        _end(f"{here}: ended by the error above", 1)


def _end(message: str, status: int) -> None:
    print(message, file=sys.stderr, flush=True)
    sys.stdout.flush()
    os._exit(status)


def _address(settings: ConfigDict) -> tuple[str, int]:
    """Returns the coordinator's host and port; checks the settings."""
    if settings.processes < 1 or not 0 <= settings.process < settings.processes:
        raise UserError(
            f"distributed: process {settings.process} of {settings.processes}; "
            "expected processes >= 1 and process from 0 to one less"
        )
    host, colon, port = settings.coordinator.rpartition(":")
    if not (colon and host and port.isdigit() and 0 < int(port) < 65536):
        raise UserError(
            f"distributed.coordinator: is {settings.coordinator!r}; "
            "expected host:port of process 0, e.g. 10.0.0.2:8476, or auto"
        )
    return host.strip("[]"), int(port)


def _require_free_port(port: int, coordinator: str) -> None:
    """Refuses a port that is taken: JAX's server would share it with the other program, or crash."""
    give_up = time.monotonic() + _PORT_SECONDS
    while (problem := _port_problem(port)) is not None:
        if time.monotonic() > give_up:
            raise UserError(
                f"distributed.coordinator: {coordinator}: port {port} cannot be taken ({problem}); expected a free port; "
                "end what uses it (an earlier process of this run?) or name another port to every process"
            )
        time.sleep(0.2)


def _port_problem(port: int) -> str | None:
    """Returns why this machine cannot listen at a port, None where it can."""
    # An IPv6 socket listens for IPv4 too; a machine without IPv6 has only the other kind.
    kinds = [(socket.AF_INET, "0.0.0.0")] + ([(socket.AF_INET6, "::")] if socket.has_dualstack_ipv6() else [])
    try:
        for family, host in kinds:
            with socket.socket(family, socket.SOCK_STREAM) as probe:
                # Closed connections of an earlier run are no reason to refuse.
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                probe.bind((host, port))
                probe.listen()
    except OSError as error:
        return error.strerror or str(error)
    return None


def _refused(settings: ConfigDict, error: Exception) -> UserError:
    reason = " ".join(str(error).split())[:200]
    if "backend" in reason:
        return UserError(
            f"distributed: JAX was used before the run started ({reason}); expected a fresh program; start it anew"
        )
    if settings.coordinator == "auto":
        return UserError(
            f"distributed.coordinator: auto: finds no Cloud TPU slice, Slurm job or MPI job here ({reason}); "
            "expected one; set coordinator to host:port, with processes and process, or leave it empty for one process"
        )
    return UserError(f"distributed.coordinator: {settings.coordinator}: cannot join the run ({reason}); start every process")


class _Deadline:
    """Ends the program with one line where the block takes longer than `timeout` seconds."""

    def __init__(self, address: tuple[str, int] | None, settings: ConfigDict):
        self._address, self._settings = address, settings
        self._done = threading.Event()
        self._problem = "it has not been tried"

    def __enter__(self) -> None:
        threading.Thread(target=self._watch, daemon=True).start()

    def __exit__(self, *_) -> None:
        self._done.set()

    def _watch(self) -> None:
        give_up = time.monotonic() + self._settings.timeout
        while not self._done.wait(min(1.0, max(0.0, give_up - time.monotonic()))):
            if time.monotonic() >= give_up:
                _end(f"error: {self._message()}", 2)
            if self._address and self._settings.process != 0 and self._problem:
                self._problem = _connection_problem(self._address)

    def _message(self) -> str:
        settings, waited = self._settings, f"within {self._settings.timeout} seconds"
        if self._address is None:
            return f"distributed: not every process of this run has come {waited}; start the program on every host"
        here = f"this is process {settings.process} of {settings.processes}"
        advice = (
            "expected all; start each with the same coordinator and processes and its own number, or raise distributed.timeout"
        )
        if settings.process == 0:
            count = connections(self._address[1])
            present = "not all" if count is None else f"only {count} of {settings.processes}"
            return f"distributed: {present} processes have come to {settings.coordinator} {waited} ({here}); {advice}"
        if self._problem:
            return (
                f"distributed.coordinator: {settings.coordinator}: cannot be reached {waited} ({self._problem}; "
                f"{here}); expected process 0 there; start it, check the address, and open the port between the hosts"
            )
        return (
            f"distributed: {settings.coordinator} answers, but not all {settings.processes} processes have come {waited} "
            f"({here}); process 0 says how many have; {advice}"
        )


def _connection_problem(address: tuple[str, int]) -> str:
    """Returns why nobody answers at an address, or "" where somebody does."""
    try:
        with socket.create_connection(address, timeout=2.0):
            return ""
    except OSError as error:
        return error.strerror or str(error)


def connections(port: int) -> int | None:
    """How many connections to a local port there are, from /proc/net; None where the system does not tell."""
    found = 0
    for file in (Path("/proc/net/tcp"), Path("/proc/net/tcp6")):
        try:
            lines = file.read_text().splitlines()[1:]
        except OSError:
            return None
        rows = [line.split() for line in lines]
        found += sum(row[3] == _ESTABLISHED and int(row[1].rpartition(":")[2], 16) == port for row in rows)
    return found
