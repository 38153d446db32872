"""Runs of several processes on this machine, each with CPU devices of its own."""

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from ml_collections import ConfigDict

from wechsel_jax.training.config import as_dict
from wechsel_jax.training.metrics import read_metrics

ROOT = Path(__file__).parents[2]
SECONDS = 300
PROGRAM = """
import json, sys
import jax
jax.config.update("jax_platforms", "cpu")
jax.config.update("jax_num_cpu_devices", int(sys.argv[3]))
from wechsel_jax.program import program
from wechsel_jax.training import default_config, train
config = default_config()
with config.ignore_type(), program("train"):
    config.update(json.loads(open(sys.argv[1]).read()))
    train(config, sys.argv[2])
"""


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("localhost", 0))
        return probe.getsockname()[1]


class Group:
    """The processes of one run, started together.

    Args:
      folder: gets the settings and what each process prints.
      config: settings of the run.
      workdir: of the run.
      count: how many processes.
      devices: of each.
      mesh: sizes of the axes.
    """

    def __init__(self, folder: Path, config: ConfigDict, workdir: Path, count: int, devices: int, mesh: dict[str, int]):
        folder.mkdir(parents=True, exist_ok=True)
        self.workdir, self.processes, self._errors = workdir, [], []
        coordinator = f"localhost:{free_port()}"
        for number in range(count):
            joined = {"coordinator": coordinator, "processes": count, "process": number, "timeout": 120}
            settings = {**as_dict(config), "mesh": {"data": 1, "fsdp": 1, "tensor": 1, **mesh}, "distributed": joined}
            file = folder / f"{number}.json"
            file.write_text(json.dumps(settings))
            self._errors.append(folder / f"{number}.stderr")
            self.processes.append(self._start(file, workdir, devices, self._errors[-1]))

    @staticmethod
    def _start(file: Path, workdir: Path, devices: int, errors: Path) -> subprocess.Popen:
        environment = {**os.environ, "PYTHONPATH": str(ROOT), "XLA_FLAGS": "--xla_backend_optimization_level=0"}
        command = [sys.executable, "-c", PROGRAM, str(file), str(workdir), str(devices)]
        with errors.open("w") as stream:
            return subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=stream)

    def errors(self, number: int) -> str:
        """What a process has written to stderr."""
        return self._errors[number].read_text()

    def wait(self, seconds: float = SECONDS) -> list[int]:
        """Waits for the end of all processes; returns their exit statuses."""
        give_up = time.monotonic() + seconds
        return [process.wait(max(0.1, give_up - time.monotonic())) for process in self.processes]

    def signal_at(self, step: int, number: int, sent: signal.Signals) -> None:
        """Sends a signal to one process once the metrics have reached a step."""
        give_up = time.monotonic() + SECONDS
        while last_step(self.workdir) < step and time.monotonic() < give_up:
            assert all(process.poll() is None for process in self.processes), self.errors(number)
            time.sleep(0.01)
        self.processes[number].send_signal(sent)

    def end(self) -> None:
        for process in self.processes:
            if process.poll() is None:
                process.kill()
            process.wait()


@contextlib.contextmanager
def running(*arguments, **named) -> Iterator[Group]:
    """A `Group` of which nothing is left when the block ends."""
    group = Group(*arguments, **named)
    try:
        yield group
    finally:
        group.end()


def last_step(workdir: Path) -> int:
    try:
        return max((line["step"] for line in read_metrics(workdir / "metrics.jsonl")), default=0)
    except FileNotFoundError:
        return 0
