"""One run a workdir: whoever starts a second one there is told who has it."""

import contextlib
import errno
import fcntl
import os
import socket
from collections.abc import Callable, Iterator
from pathlib import Path

from wechsel_jax.errors import UserError

LOCK = ".lock"


@contextlib.contextmanager
def only_run(workdir: str | Path, say: Callable[[str], None] = print) -> Iterator[None]:
    """Holds `workdir/.lock` while the block runs.

    It is a lock of the operating system (POSIX `fcntl`), which ends with the process however that dies, so there are no stale
    ones. It also works between the machines that share an NFS directory, as long as its lock service runs; where the file
    system has no locks (some bucket mounts) a line says so and the run goes on unguarded.

    Raises:
      UserError: another process holds it; the message names its machine and number.
    """
    workdir = Path(workdir)
    workdir.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(workdir / LOCK, os.O_RDWR | os.O_CREAT, 0o666)
    try:
        try:
            fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno in (errno.EACCES, errno.EAGAIN):
                holder = os.read(descriptor, 200).decode(errors="replace").strip() or "another process"
                raise UserError(
                    f"{workdir}: {holder} is at work here; expected one run a workdir; wait for it, stop it, or use another"
                ) from None
            say(f"{workdir}: the file system has no locks ({error.strerror}); see to it that no second run writes here")
        else:
            with contextlib.suppress(OSError):
                # A full disk must not keep a run from its last steps.
                os.ftruncate(descriptor, 0)
                os.write(descriptor, f"process {os.getpid()} on {socket.gethostname()}\n".encode())
        yield
    finally:
        os.close(descriptor)
