"""Runs as processes of their own, for tests that disturb them."""

import itertools
import json
import os
import subprocess
import sys
import time
from pathlib import Path

from ml_collections import ConfigDict

from wechsel_jax.training.config import as_dict
from wechsel_jax.training.metrics import TIMING, read_metrics

ROOT = Path(__file__).parents[2]


class Run:
    """One process that trains."""

    def __init__(self, runs: "Runs", pid: int, workdir: Path, log: Path):
        self._runs, self.pid, self.workdir, self._log = runs, pid, workdir, log
        self.status: int | None = None

    @property
    def output(self) -> str:
        return self._log.read_text() if self._log.exists() else ""

    def send(self, number: int) -> None:
        os.kill(self.pid, number)

    def wait(self) -> int:
        """Returns the exit status, minus the signal's number where one killed it."""
        if self.status is None:
            self.status = self._runs.ask({"wait": self.pid})["status"]
        return self.status

    @property
    def alive(self) -> bool:
        try:
            return " Z " not in Path(f"/proc/{self.pid}/stat").read_text()
        except FileNotFoundError:
            return False

    def reach(self, step: int) -> None:
        """Waits until the metrics hold a line of at least this step."""
        while last_step(self.workdir) < step:
            assert self.alive, self.output
            time.sleep(0.005)


class Runs:
    """Starts runs; see `run_server.py`, which does it."""

    def __init__(self, folder: Path):
        self.folder, self._number = folder, itertools.count()
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        command = [sys.executable, str(Path(__file__).with_name("run_server.py"))]
        self._server = subprocess.Popen(
            command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )
        assert json.loads(self._server.stdout.readline())["ready"]

    def ask(self, request: dict) -> dict:
        self._server.stdin.write(json.dumps(request) + "\n")
        self._server.stdin.flush()
        return json.loads(self._server.stdout.readline())

    def start(self, config: ConfigDict, workdir: Path, devices: int = 1, **options) -> Run:
        log = self.folder / f"log{next(self._number)}"
        request = {"config": as_dict(config), "workdir": str(workdir), "devices": devices, "log": str(log), **options}
        return Run(self, self.ask({"start": request})["pid"], workdir, log)

    def finish(self, config: ConfigDict, workdir: Path, devices: int = 1, **options) -> Run:
        """Starts a run and waits for its end, which must be a good one."""
        run = self.start(config, workdir, devices, **options)
        assert run.wait() == 0, run.output
        return run

    def close(self) -> None:
        self._server.stdin.close()
        self._server.wait()


def last_step(workdir: Path) -> int:
    try:
        return max((line["step"] for line in read_metrics(workdir / "metrics.jsonl")), default=0)
    except FileNotFoundError:
        return 0


def lines_without_timing(workdir: Path) -> list[dict]:
    lines = read_metrics(workdir / "metrics.jsonl")
    return [{name: value for name, value in line.items() if name not in TIMING} for line in lines]


def assert_same_run(one: Path, other: Path) -> None:
    """Both have the same metrics and the same export, bit for bit, and nothing half-written lies about."""
    assert lines_without_timing(one) == lines_without_timing(other)
    files, others = (
        sorted(str(path.relative_to(run)) for path in (run / "export").rglob("*") if path.is_file()) for run in (one, other)
    )
    assert "export/model.safetensors" in files and files == others
    for name in files:
        assert (one / name).read_bytes() == (other / name).read_bytes(), name
    assert sorted(path.name for path in other.glob(".*")) == [".lock"]
    assert not list((other / "checkpoints").glob(".*"))
