"""Runs as programs of their own that are killed, and asked to stop, at any moment."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from wechsel_jax.training.config import as_dict
from wechsel_jax.training.metrics import read_metrics

ROOT = Path(__file__).parents[2]
PROGRAM = """
import json, sys
import jax
jax.config.update("jax_platforms", "cpu")
jax.config.update("jax_num_cpu_devices", int(sys.argv[3]))
from wechsel_jax.errors import exit_on_user_error
from wechsel_jax.training import default_config, train
config = default_config()
with config.ignore_type(), exit_on_user_error("train"):
    fields = json.loads(open(sys.argv[1]).read())
    config.update(fields)
    train(config, sys.argv[2])
"""
STEPS = 200


@pytest.fixture(scope="module")
def program(make_config, tmp_path_factory):
    """Returns a function (workdir, devices) -> running process; all share one cache of compiled programs."""
    folder = tmp_path_factory.mktemp("program")
    config = make_config(
        steps=STEPS, eval_every=50, checkpoint_every=11, log_every=3, compilation_cache=str(folder / "compiled")
    )
    (folder / "config.json").write_text(json.dumps(as_dict(config)))
    (folder / "program.py").write_text(PROGRAM)
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "XLA_FLAGS": "--xla_backend_optimization_level=0"}

    def start(workdir: Path, devices: int) -> subprocess.Popen:
        command = [sys.executable, str(folder / "program.py"), str(folder / "config.json"), str(workdir), str(devices)]
        return subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)

    return start


@pytest.fixture(scope="module")
def uninterrupted(program, tmp_path_factory):
    """Returns a function devices -> workdir of a run that nobody disturbed."""
    done = {}

    def workdir(devices: int) -> Path:
        if devices not in done:
            done[devices] = tmp_path_factory.mktemp(f"whole{devices}") / "run"
            process = program(done[devices], devices)
            errors = process.communicate(timeout=300)[1]
            assert process.returncode == 0, errors
        return done[devices]

    return workdir


def last_step(workdir: Path) -> int:
    try:
        return max((line["step"] for line in read_metrics(workdir / "metrics.jsonl")), default=0)
    except FileNotFoundError:
        return 0


def stop_at(process: subprocess.Popen, workdir: Path, step: int, delay: float, number: int) -> bool:
    """Sends a signal a moment after the metrics have reached a step; False where the run ended before."""
    while process.poll() is None and last_step(workdir) < step:
        time.sleep(0.01)
    time.sleep(delay)
    if process.poll() is None:
        process.send_signal(number)
    process.wait(timeout=300)
    return process.returncode != 0


def assert_same_run(one: Path, other: Path) -> None:
    timing = ("tokens_per_second", "seconds")
    lines = [
        [{name: value for name, value in line.items() if name not in timing} for line in read_metrics(run / "metrics.jsonl")]
        for run in (one, other)
    ]
    assert lines[0] == lines[1]
    assert lines[0][-1]["step"] == STEPS
    for name in ("model.safetensors", "config.json", "tokenizer.json"):
        assert (one / "export" / name).read_bytes() == (other / "export" / name).read_bytes(), name


@pytest.mark.slow
@pytest.mark.parametrize(("devices", "kill_times"), [(1, (0, 40, 120)), (8, (60,))])
def test_killed_runs_go_on_exactly(program, uninterrupted, tmp_path, devices, kill_times):
    workdir, generator = tmp_path / "run", random.Random(devices)
    kills = 0
    for start in kill_times:
        process = program(workdir, devices)
        kills += stop_at(
            process, workdir, generator.randint(start + 1, start + 40), generator.uniform(0.0, 0.05), signal.SIGKILL
        )
        process.stderr.close()
    assert kills == len(kill_times)
    process = program(workdir, devices)
    errors = process.communicate(timeout=300)[1]
    assert process.returncode == 0, errors
    assert_same_run(uninterrupted(devices), workdir)


@pytest.mark.slow
def test_sigterm_saves_a_checkpoint(program, uninterrupted, tmp_path):
    workdir = tmp_path / "run"
    process = program(workdir, 1)
    assert stop_at(process, workdir, 50, 0.0, signal.SIGTERM)
    errors = process.communicate()[1]
    assert process.returncode == 143, errors
    saved = max(int(path.name) for path in (workdir / "checkpoints").iterdir() if path.name.isdigit())
    assert f"SIGTERM: saved step {saved}; the same command goes on from there" in errors.splitlines()
    assert "Traceback" not in errors
    assert 50 <= last_step(workdir) <= saved < STEPS
    process = program(workdir, 1)
    errors = process.communicate(timeout=300)[1]
    assert process.returncode == 0 and f"going on from step {saved}" in errors
    assert_same_run(uninterrupted(1), workdir)
