"""Runs of several processes on this machine, each with CPU devices of its own."""

import contextlib
import signal
import socket
import time
from collections.abc import Iterator
from pathlib import Path

from ml_collections import ConfigDict

from tests.training.runs import ROOT, Runs, last_step

__all__ = ["ROOT", "SECONDS", "free_port", "last_step", "running"]
SECONDS = 300


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("localhost", 0))
        return probe.getsockname()[1]


class Group:
    """The processes of one run, started together.

    Args:
      runs: starts them.
      config: settings of the run.
      workdir: of the run.
      count: how many processes.
      devices: of each.
      mesh: sizes of the axes.
    """

    def __init__(self, runs: Runs, config: ConfigDict, workdir: Path, count: int, devices: int, mesh: dict[str, int]):
        self.workdir, self.processes = workdir, []
        coordinator = f"localhost:{free_port()}"
        for number in range(count):
            here = config.copy_and_resolve_references()
            here.mesh = ConfigDict({"data": 1, "fsdp": 1, "tensor": 1, **mesh})
            here.distributed.update({"coordinator": coordinator, "processes": count, "process": number, "timeout": 120})
            self.processes.append(runs.start(here, workdir, devices))

    def errors(self, number: int) -> str:
        """What a process has written to stderr."""
        return self.processes[number].output

    def wait(self, seconds: float = SECONDS) -> list[int]:
        """Waits for the end of all processes; returns their exit statuses."""
        give_up = time.monotonic() + seconds
        while any(process.alive for process in self.processes):
            assert time.monotonic() < give_up, [process.output for process in self.processes]
            time.sleep(0.02)
        return [process.wait() for process in self.processes]

    def signal_at(self, step: int, number: int, sent: signal.Signals) -> None:
        """Sends a signal to one process once the metrics have reached a step."""
        give_up = time.monotonic() + SECONDS
        while last_step(self.workdir) < step and time.monotonic() < give_up:
            assert all(process.alive for process in self.processes), self.errors(number)
            time.sleep(0.01)
        self.processes[number].send(sent)

    def end(self) -> None:
        for process in self.processes:
            if process.status is None:
                if process.alive:
                    process.send(signal.SIGKILL)
                process.wait()


@contextlib.contextmanager
def running(*arguments, **named) -> Iterator[Group]:
    """A `Group` of which nothing is left when the block ends."""
    group = Group(*arguments, **named)
    try:
        yield group
    finally:
        group.end()
