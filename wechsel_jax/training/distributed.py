"""Start-up and failure handling of runs with several processes, one a host.

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

import jax
import numpy as np
from ml_collections import ConfigDict

from wechsel_jax.errors import UserError, one_line
from wechsel_jax.program import mistake

# EX_TEMPFAIL: nothing is wrong with this process; all of them started again go on.
LOST = 75
# A coordinator that was killed a moment ago may still hold its port.
_PORT_SECONDS = 5.0
# JAX's own limit aborts the program without saying what is missing, so it comes after ours.
_MARGIN_SECONDS = 60
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
        one's number from 0; empty for one process. `timeout` and `heartbeat`, after which a silent process counts as lost, in
        seconds.

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
    here = ""
    if settings.coordinator == "auto":
        arguments = ()
    else:
        port = _port(settings)
        if settings.process == 0:
            _require_free_port(port, settings.coordinator)
        here = f" (this is process {settings.process} of {settings.processes})"
        arguments = (settings.coordinator, settings.processes, settings.process)
    deadline = threading.Timer(
        settings.timeout,
        _end,
        (
            f"error: distributed.coordinator: {settings.coordinator}: not every process of this run has come within "
            f"{settings.timeout} seconds{here}; expected all, process 0 at this address; start each with the same coordinator "
            "and processes and its own number, open the port between the hosts, or raise distributed.timeout",
            2,
        ),
    )
    deadline.daemon = True
    deadline.start()
    try:
        # A collective need not fail where its peer is gone: then only the missing heartbeats end the wait for it.
        jax.distributed.initialize(
            *arguments,
            initialization_timeout=settings.timeout + _MARGIN_SECONDS,
            heartbeat_timeout_seconds=settings.heartbeat,
        )
    except (RuntimeError, ValueError) as error:
        raise _refused(settings, error) from error
    finally:
        deadline.cancel()


def is_first() -> bool:
    """Whether this process writes the run's files."""
    return jax.process_index() == 0


def barrier(name: str) -> None:
    """Waits until every process is here."""
    if jax.process_count() > 1:
        from jax.experimental import multihost_utils

        multihost_utils.sync_global_devices(name)


def broadcast_from_first(value: int) -> int:
    """Returns the first process's value, in every process; all must call it."""
    if jax.process_count() == 1:
        return value
    from jax.experimental import multihost_utils

    return int(multihost_utils.broadcast_one_to_all(np.int32(value)))


@contextlib.contextmanager
def abort_together() -> Iterator[None]:
    """Ends this process at once where the block fails and there are others, which would wait for it, or it for them.

    One line on stderr and status 2 for what the user can mend (`program.mistake`), status 75 where another process has gone
    (start all of them again), a traceback and status 1 for anything else. Nothing is unwound: background threads that save a
    checkpoint would wait for the other processes too, and what they leave half-written is cleaned up at the next start.
    `SystemExit` passes, because the processes leave together then. With one process the block's exceptions are left alone.
    """
    try:
        yield
    except SystemExit:
        raise
    except BaseException as error:
        if jax.process_count() == 1:
            raise
        here = f"process {jax.process_index()} of {jax.process_count()}"
        if (line := mistake(error)) is not None:
            _end(f"{here}: error: {line}", 2)
        if isinstance(error, (RuntimeError, ValueError)) and _LOST_PEER.search(str(error)):
            _end(
                f"{here}: lost another process of this run ({one_line(error)}); "
                "start all of them again: the run goes on from its newest checkpoint",
                LOST,
            )
        traceback.print_exc()
        _end(f"{here}: ended by the error above", 1)


def _end(message: str, status: int) -> None:
    # Nobody may read it, or the disk with the log be full.
    with contextlib.suppress(OSError, ValueError):
        print(message, file=sys.stderr, flush=True)
    with contextlib.suppress(OSError, ValueError):
        sys.stdout.flush()
    os._exit(status)


def _port(settings: ConfigDict) -> int:
    """Returns the coordinator's port; checks the settings."""
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
    return int(port)


def _require_free_port(port: int, coordinator: str) -> None:
    """Refuses a port that is taken: JAX's server would share it with the other program, or end with a segmentation fault."""
    dual = socket.has_dualstack_ipv6()
    give_up = time.monotonic() + _PORT_SECONDS
    while True:
        try:
            family = socket.AF_INET6 if dual else socket.AF_INET
            socket.create_server(("", port), family=family, dualstack_ipv6=dual).close()
            return
        except OSError as error:
            if time.monotonic() > give_up:
                raise UserError(
                    f"distributed.coordinator: {coordinator}: port {port} cannot be taken ({error.strerror}); expected a free "
                    "port; end what uses it (an earlier process of this run?) or name another port to every process"
                ) from error
        time.sleep(0.2)


def _refused(settings: ConfigDict, error: Exception) -> UserError:
    reason = one_line(error)
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
