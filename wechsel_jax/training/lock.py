"""One run a workdir: whoever starts a second one there is told who has it."""

import contextlib
import errno
import fcntl
import json
import os
import socket
import struct
from collections.abc import Callable, Iterator
from pathlib import Path

from wechsel_jax.errors import UserError

LOCK = ".lock"
# A lock of the open file, where there are such (Linux), is not lost as one of the process is when another descriptor of the
# file is closed: a process may write a report on its own run.
_TAKE = getattr(fcntl, "F_OFD_SETLK", fcntl.F_SETLK)
_WHOLE_FILE = struct.pack("hhqqi", fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)


@contextlib.contextmanager
def only_run(workdir: str | Path, say: Callable[[str], None] = print) -> Iterator[None]:
    """Holds `workdir/.lock` while the block runs.

    It is a lock of the operating system, which ends with the process however that dies, so there are no stale ones. It also
    works between the machines that share an NFS directory, as long as its lock service runs; where the file system has no
    locks (some bucket mounts) a line says so and the run goes on unguarded.

    Raises:
      UserError: another process holds it; the message names its machine and number. Or the workdir cannot be made.
    """
    workdir = Path(workdir)
    try:
        workdir.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(workdir / LOCK, os.O_RDWR | os.O_CREAT, 0o666)
    except OSError as error:
        raise UserError(
            f"{workdir}: cannot be made or written ({error.strerror}); expected a directory for the run; choose another one"
        ) from None
    try:
        try:
            fcntl.fcntl(descriptor, _TAKE, _WHOLE_FILE)
        except OSError as error:
            if error.errno in (errno.EACCES, errno.EAGAIN):
                holder = os.read(descriptor, 200).decode(errors="replace").strip() or "another process"
                raise UserError(
                    f"{workdir}: {holder} is at work here; expected one run a workdir; wait for it, stop it, or use another"
                ) from None
            say(f"{workdir}: the file system has no locks ({error.strerror}); make sure that no second run writes here")
        with contextlib.suppress(OSError):
            # A full disk must not keep a run from its last steps.
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, f"process {os.getpid()} on {socket.gethostname()}\n".encode(), 0)
        yield
    finally:
        os.close(descriptor)


def has_begun(workdir: Path) -> bool:
    """Whether a run or a comparison has begun in a directory: it holds the lock's file, or the settings, of one."""
    with contextlib.suppress(OSError):
        if (workdir / LOCK).read_bytes().startswith(b"process "):
            return True
    with contextlib.suppress(OSError, ValueError, AttributeError, RecursionError):
        names = json.loads((workdir / "config.json").read_bytes()).keys()
        return {"steps", "model", "optimizer"} <= names or {"methods", "training"} <= names
    return False
