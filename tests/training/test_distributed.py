"""Runs of 2 and 4 real processes against the same run in one; processes that are killed, asked to stop, or never come."""

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
from pathlib import Path

import jax
import numpy as np
import pytest
from ml_collections import ConfigDict
from safetensors.numpy import load_file

from tests.training.processes import ROOT, SECONDS, free_port, last_step, running
from wechsel_jax.errors import UserError
from wechsel_jax.training import distributed, train
from wechsel_jax.training.distributed import LOST
from wechsel_jax.training.metrics import read_metrics

STEPS, SAVED = 24, 8
FSDP = {"count": 2, "devices": 2, "mesh": {"fsdp": 4}}


@pytest.fixture(scope="module")
def config(make_config) -> ConfigDict:
    """Two phases, dropout, accumulation, a line for every step."""
    changes = {"steps": STEPS, "eval_every": 12, "checkpoint_every": SAVED, "log_every": 1, "accumulation": 2}
    return make_config(**changes, keep=10)


@pytest.fixture(scope="module")
def train_alone(config):
    """Returns a function workdir -> workdir of the run in this process, on 4 of its devices."""

    def run(workdir: Path) -> Path:
        here = config.copy_and_resolve_references()
        here.mesh = ConfigDict({"data": 2, "fsdp": 2, "tensor": 1})
        train(here, workdir)
        return workdir

    return run


@pytest.fixture(scope="module")
def alone(train_alone, tmp_path_factory) -> Path:
    """The workdir of the run in one process."""
    return train_alone(tmp_path_factory.mktemp("alone") / "run")


@pytest.fixture(scope="module")
def pair(runs, config, alone, tmp_path_factory) -> Path:
    """The workdir of the run in two processes that share every parameter."""
    folder = tmp_path_factory.mktemp("pair")
    with running(runs, config, folder / "run", **FSDP) as group:
        assert group.wait() == [0, 0], group.errors(0) + group.errors(1)
    assert group.errors(1).count("step") == 0, "the second process shows progress too"
    return folder / "run"


def unfinished(run: Path, workdir: Path) -> Path:
    """Copies what there was of a run after step SAVED."""
    shutil.copytree(run, workdir, ignore=shutil.ignore_patterns("export"))
    lines = (run / "metrics.jsonl").read_text().splitlines(keepends=True)
    (workdir / "metrics.jsonl").write_text("".join(line for line in lines if json.loads(line)["step"] <= SAVED))
    for path in (workdir / "checkpoints").iterdir():
        if path.name.isdecimal() and int(path.name) > SAVED:
            shutil.rmtree(path)
    return workdir


def assert_same_run(one: Path, other: Path, tolerance: float) -> None:
    """The same batches and updates give the same losses, gradients and weights; dropout makes every row's place count."""
    numbers = ("loss", "gradient_norm", "perplexity", "learning_rate", "tokens", "step")
    lines = [read_metrics(run / "metrics.jsonl") for run in (one, other)]
    assert [(line["kind"], line["step"]) for line in lines[0]] == [(line["kind"], line["step"]) for line in lines[1]]
    assert [line["step"] for line in lines[0] if line["kind"] == "train"] == list(range(1, STEPS + 1))
    for expected, found in zip(*lines, strict=True):
        for name in numbers:
            if name in expected:
                assert found[name] == pytest.approx(expected[name], rel=tolerance), (name, expected["step"])
    exported = [load_file(run / "export" / "model.safetensors") for run in (one, other)]
    assert exported[0].keys() == exported[1].keys()
    for name, tensor in exported[0].items():
        np.testing.assert_allclose(exported[1][name], tensor, rtol=0, atol=tolerance * 10, err_msg=name)


@pytest.mark.slow
def test_two_processes_do_what_one_does(alone, pair):
    assert_same_run(alone, pair, 1e-5)
    assert sorted(path.name for path in pair.iterdir()) == sorted(path.name for path in alone.iterdir())


@pytest.mark.slow
def test_a_process_is_killed_and_all_are_started_again(runs, config, pair, tmp_path):
    dying = config.copy_and_resolve_references()
    dying.distributed.heartbeat = 10
    with running(runs, dying, tmp_path / "run", **FSDP) as group:
        group.signal_at(SAVED + 3, 1, signal.SIGKILL)
        # A collective of the other may fail, or wait for the end of heartbeats.
        statuses = group.wait(40)
        assert statuses[1] == -signal.SIGKILL
        # Either a collective fails first, or JAX's service ends the program from C++ and names the other process.
        assert statuses[0] in (LOST, -signal.SIGABRT), group.errors(0)
        if statuses[0] == LOST:
            (line,) = (line for line in group.errors(0).splitlines() if "lost another process" in line)
            assert line.startswith("process 0 of 2: ") and "start all of them again" in line
            assert "Traceback" not in group.errors(0)
    assert last_step(tmp_path / "run") < STEPS
    with running(runs, config, tmp_path / "run", **FSDP) as group:
        assert group.wait() == [0, 0], group.errors(0) + group.errors(1)
        assert f"going on from step {SAVED}" in group.errors(0)
    assert_same_run(pair, tmp_path / "run", 0.0)


@pytest.mark.slow
def test_four_processes_go_on_from_two_and_one_from_four(runs, config, pair, alone, train_alone, tmp_path):
    """One of the four is asked to stop; all save together; "fsdp" and "tensor" both span processes."""
    workdir = unfinished(pair, tmp_path / "run")
    with running(runs, config, workdir, count=4, devices=1, mesh={"fsdp": 2, "tensor": 2}) as group:
        group.signal_at(SAVED + 3, 2, signal.SIGTERM)
        assert group.wait() == [143] * 4, "".join(group.errors(number) for number in range(4))
        saved = max(int(path.name) for path in (workdir / "checkpoints").iterdir() if path.name.isdecimal())
        assert all(f"saved step {saved}" in group.errors(number) for number in range(4))
        assert SAVED + 3 <= saved < STEPS
    assert_same_run(alone, train_alone(workdir), 1e-4)


@pytest.mark.slow
def test_two_processes_go_on_from_one(runs, config, alone, tmp_path):
    """Each process holds all rows of the batch and half of every matrix."""
    workdir = unfinished(alone, tmp_path / "run")
    with running(runs, config, workdir, count=2, devices=1, mesh={"tensor": 2}) as group:
        assert group.wait(SECONDS) == [0, 0], group.errors(0) + group.errors(1)
    assert_same_run(alone, workdir, 1e-4)


@pytest.mark.slow
def test_a_mistake_that_one_process_finds_ends_all(runs, make_config, tmp_path):
    """Only the first process reads the text; the other waits for it."""
    config = make_config(data__train=(str(tmp_path / "missing.txt"),))
    with running(runs, config, tmp_path / "run", count=2, devices=1, mesh={"data": 2}) as group:
        statuses = group.wait(120)
        assert statuses[0] == 2, group.errors(0)
        assert statuses[1] in (2, LOST, -signal.SIGABRT), group.errors(1)
    (line,) = (line for line in group.errors(0).splitlines() if "missing.txt" in line)
    assert "error: " in line and "Traceback" not in group.errors(0)


START = """
import sys
from ml_collections import ConfigDict
from wechsel_jax.program import program
from wechsel_jax.training import distributed
coordinator, processes, process = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
with program("train"):
    here = dict(coordinator=coordinator, processes=processes, process=process, timeout=8, heartbeat=8)
    distributed.start(ConfigDict(here))
"""


@pytest.mark.slow
def test_processes_that_wait_in_vain_say_for_whom():
    alone, incomplete = f"localhost:{free_port()}", f"localhost:{free_port()}"
    cases = [(alone, 2, 1), (incomplete, 3, 0), (incomplete, 3, 1), ("auto", 0, -1)]
    removed = ("SLURM_", "OMPI_", "PMI_", "TPU_", "JAX_", "CLOUD_TPU")
    environment = {name: value for name, value in os.environ.items() if not name.startswith(removed)}
    environment |= {"PYTHONPATH": str(ROOT), "JAX_PLATFORMS": "cpu"}
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", START, *map(str, case)],
            env=environment,
            stderr=subprocess.PIPE,
            text=True,
            stdout=subprocess.DEVNULL,
        )
        for case in cases
    ]
    errors = [process.communicate(timeout=120)[1] for process in processes]
    assert [process.returncode for process in processes] == [2] * 4, errors
    late = r"not every process of this run has come within 8 seconds \(this is process {} of {}\); expected all, process 0 at"
    expected = [
        rf"{alone}: {late.format(1, 2)}",
        rf"{incomplete}: {late.format(0, 3)}",
        rf"{incomplete}: {late.format(1, 3)}",
        r"distributed.coordinator: auto: finds no Cloud TPU slice, Slurm job or MPI job here .*; expected one; set coordinator",
    ]
    for pattern, text in zip(expected, errors, strict=True):
        assert re.search(pattern, text), text
        assert "Traceback" not in text and "Check failure" not in text


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        (("", 2, 1), "coordinator: is empty, but processes is 2"),
        (("localhost:1234", 2, 2), "process 2 of 2; expected"),
        (("localhost:1234", 0, -1), "process -1 of 0; expected"),
        (("localhost", 2, 0), "'localhost'; expected host:port"),
        (("localhost:99999", 2, 0), "'localhost:99999'; expected host:port"),
    ],
)
def test_settings_that_name_no_run_are_refused(settings, named):
    with pytest.raises(UserError, match=named):
        distributed.start(ConfigDict(dict(zip(("coordinator", "processes", "process"), settings, strict=True), timeout=1)))


# Wherever the other program listens, and with IPv6 where there is such.
TAKEN = [(socket.AF_INET, "0.0.0.0"), (socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::")]


@pytest.mark.parametrize(("family", "host"), TAKEN if socket.has_dualstack_ipv6() else TAKEN[:2])
def test_a_port_that_is_taken_is_refused(monkeypatch, family, host):
    monkeypatch.setattr(distributed, "_PORT_SECONDS", 0.0)
    with socket.socket(family) as taken:
        taken.bind((host, 0))
        taken.listen()
        port = taken.getsockname()[1]
        settings = {"coordinator": f"localhost:{port}", "processes": 2, "process": 0, "timeout": 1}
        with pytest.raises(UserError, match=rf"port {port} cannot be taken \(.+\); expected a free port"):
            distributed.start(ConfigDict(settings))


@pytest.mark.parametrize(
    ("error", "status", "said"),
    [
        (UserError("data.train: is empty"), 2, "process 0 of 4: error: data.train: is empty"),
        (
            OSError(28, "No space left on device", "run/metrics.jsonl"),
            2,
            "run/metrics.jsonl: No space left on device; free some",
        ),
        (MemoryError(), 2, "not enough memory; ask for less"),
        (
            jax.errors.JaxRuntimeError("UNKNOWN: Gloo AllReduce failed: Connection reset by peer"),
            LOST,
            "start all of them again",
        ),
        (ZeroDivisionError("division by zero"), 1, "ended by the error above"),
    ],
)
def test_a_failure_ends_a_process_that_has_others_at_once(monkeypatch, capsys, error, status, said):
    ends = []

    def end(message, status):
        ends.append((message, status))
        raise SystemExit(status)

    monkeypatch.setattr(distributed, "_end", end)
    with pytest.raises(type(error)), distributed.abort_together():
        raise error
    assert ends == []
    monkeypatch.setattr(jax, "process_count", lambda: 4)
    with pytest.raises(SystemExit), distributed.abort_together():
        raise error
    ((message, found),) = ends
    assert found == status and said in message
    assert ("Traceback" in capsys.readouterr().err) == (status == 1)


def test_nobody_has_to_read_why_a_process_ends(monkeypatch):
    def end(status):
        raise SystemExit(status)

    monkeypatch.setattr(distributed.os, "_exit", end)
    with open("/dev/full", "w") as full, pytest.raises(SystemExit) as left:
        monkeypatch.setattr(distributed.sys, "stderr", full)
        distributed._end("a disk is full" * 10_000, 75)
    assert left.value.code == 75


def test_processes_that_leave_together_are_left_alone(monkeypatch):
    monkeypatch.setattr(jax, "process_count", lambda: 4)
    with pytest.raises(SystemExit) as left, distributed.abort_together():
        raise SystemExit(143)
    assert left.value.code == 143
