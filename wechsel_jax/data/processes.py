"""Worker processes: parts of text go out to them, and what they make comes back in order."""

import contextlib
import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterable, Iterator
from multiprocessing.connection import Connection, wait
from pathlib import Path

from wechsel_jax.data.work import Result, Task, Worker
from wechsel_jax.errors import UserError
from wechsel_jax.text.parts import PART_BYTES

_PROGRAM = "wechsel_jax.data.worker"
FINE, MISTAKE, MEMORY, FAILURE = b"fine", b"mistake", b"memory", b"failure"
# How far the others may be ahead of the slowest one; what they have made is held in memory until its turn.
_AHEAD = 4
_LONG = 2 * PART_BYTES
_ENDED = (
    "a process that prepares text was ended from outside, often for want of memory; "
    "run the same command again, with fewer processes or a smaller max_document_bytes: it goes on where it stopped"
)
_ONE_THREAD = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")


class ProcessEnded(UserError):
    """A worker is gone; what has been done so far is good."""


def work_through(worker: Worker, tasks: Iterable[Task], processes: int) -> Iterator[tuple[Task, Result]]:
    """Yields each task with its result, in the order of the tasks whatever the number of processes.

    Args:
      worker: what is done with each task.
      tasks: read no further ahead than the processes need.
      processes: how many; 0: this one does the work.

    Raises:
      UserError: the first task in order that is in error, or a process was killed.
      MemoryError: there is too little for a task.
    """
    if processes == 0:
        yield from ((task, worker(task.part, task.choice)) for task in tasks)
        return
    with _started(worker, processes) as connections:
        yield from _in_order(connections, iter(tasks))


def _in_order(connections: list[Connection], tasks: Iterator[Task]) -> Iterator[tuple[Task, Result]]:
    idle, running, task = list(connections), {}, None
    done: dict[int, tuple[Task, list[bytes]]] = {}
    given = returned = 0
    last: UserError | None = None
    more = True
    while True:
        while returned in done:
            finished, message = done.pop(returned)
            returned += 1
            yield finished, _result(message)
        while more and idle and given - returned < _AHEAD * len(connections):
            try:
                task = task or next(tasks, None)
            except UserError as error:
                # Tasks before this one may be in error too; theirs is the one to report.
                last = error
            if task is None:
                more = False
                break
            # A long document may take gigabytes; one at a time.
            if task.part.bytes > _LONG and any(other.part.bytes > _LONG for _, other in running.values()):
                break
            connection = idle.pop()
            send(connection, _pack_task(task))
            running[connection], given, task = (given, task), given + 1, None
        if not running and not more:
            break
        for connection in wait(list(running)):
            number, finished = running.pop(connection)
            done[number] = finished, receive(connection)
            idle.append(connection)
    if last is not None:
        raise last


@contextlib.contextmanager
def _started(worker: Worker, processes: int) -> Iterator[list[Connection]]:
    """Starts workers, each with a socket of its own, and ends them.

    They are programs of their own, not forks: JAX's threads do not survive a fork, and what `multiprocessing` spawns runs
    the user's script once more. When this process ends, however it ends, the sockets close and so they end too.
    """
    environment = {**os.environ, **dict.fromkeys(_ONE_THREAD, "1"), "TOKENIZERS_PARALLELISM": "false"}
    package = str(Path(__file__).parents[2])
    environment["PYTHONPATH"] = os.pathsep.join([package, *(path for path in sys.path if path and path != package)])
    children: list[tuple[subprocess.Popen, Connection]] = []
    try:
        for _ in range(processes):
            ours, theirs = socket.socketpair()
            with theirs:
                command = [sys.executable, "-P", "-m", _PROGRAM, str(theirs.fileno())]
                # A process group of their own: Ctrl-C is for this process, which tells them.
                child = subprocess.Popen(
                    command, env=environment, stdin=subprocess.DEVNULL, pass_fds=[theirs.fileno()], process_group=0
                )
            children.append((child, Connection(ours.detach())))
        connections = [connection for _, connection in children]
        hello = worker.pack()
        for connection in connections:
            send(connection, hello)
        yield connections
    finally:
        for child, connection in children:
            connection.close()
            child.terminate()
        for child, _ in children:
            child.wait()


def _pack_task(task: Task) -> list[bytes]:
    chosen = task.choice is not None
    return [json.dumps({"chosen": chosen}).encode(), *task.part.pack(), task.choice.tobytes() if chosen else b""]


def _result(message: list[bytes]) -> Result:
    kind, text, *data = message
    if kind == MISTAKE:
        raise UserError(text.decode())
    if kind == MEMORY:
        raise MemoryError(text.decode())
    if kind == FAILURE:
        raise RuntimeError(f"a process that prepares text failed:\n{text.decode()}")
    return Result(json.loads(text), data)


def send(connection: Connection, pieces: list[bytes]) -> None:
    """Sends bytes that `receive` returns on the other side; no pickles."""
    try:
        connection.send_bytes(str(len(pieces)).encode())
        for piece in pieces:
            connection.send_bytes(piece)
    except OSError:
        raise ProcessEnded(_ENDED) from None


def receive(connection: Connection) -> list[bytes]:
    """Returns what `send` was given; raises `ProcessEnded` where the other side is gone."""
    try:
        return [connection.recv_bytes() for _ in range(int(connection.recv_bytes()))]
    except (EOFError, OSError):
        raise ProcessEnded(_ENDED) from None
