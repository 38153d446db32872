"""Runs as processes of their own that are killed, and asked to stop, at any moment."""

import random
import signal
import time

import pytest

from tests.training.runs import assert_same_run, last_step, lines_without_timing

pytestmark = pytest.mark.slow
STEPS = 120
SPLIT = {"mesh__fsdp": 2, "mesh__tensor": 2}


@pytest.fixture(scope="module")
def settings(make_config):
    """Returns a function (field=value, ...) -> settings."""

    def make(**changes):
        return make_config(steps=STEPS, eval_every=30, checkpoint_every=11, log_every=3, **changes)

    return make


@pytest.fixture(scope="module")
def whole(runs, settings, tmp_path_factory):
    """The workdir of a run on one device that nobody disturbed."""
    workdir = tmp_path_factory.mktemp("whole") / "run"
    runs.finish(settings(), workdir)
    return workdir


def test_runs_killed_at_random_moments_go_on_exactly(runs, settings, whole, tmp_path):
    generator = random.Random(0)
    for start in (0, 30, 70):
        run = runs.start(settings(), tmp_path / "run")
        run.reach(generator.randint(start + 1, start + 25))
        time.sleep(generator.uniform(0.0, 0.05))
        run.send(signal.SIGKILL)
        assert run.wait() == -signal.SIGKILL, run.output
    runs.finish(settings(), tmp_path / "run")
    assert_same_run(whole, tmp_path / "run")


def test_a_run_goes_on_on_other_devices(runs, settings, whole, tmp_path):
    """Begun on eight devices, killed, ended on four that are laid out otherwise: the run on one device, but for rounding."""
    first = runs.start(settings(**SPLIT), tmp_path / "run", devices=8)
    first.reach(40)
    first.send(signal.SIGKILL)
    assert first.wait() == -signal.SIGKILL, first.output
    last = runs.finish(settings(mesh__fsdp=4), tmp_path / "run", devices=4)
    assert "going on from step" in last.output
    lines, expected = lines_without_timing(tmp_path / "run"), lines_without_timing(whole)
    assert [(line["kind"], line["step"]) for line in lines] == [(line["kind"], line["step"]) for line in expected]
    for line, wanted in zip(lines, expected, strict=True):
        if "loss" in line:
            assert line["loss"] == pytest.approx(wanted["loss"], abs=2e-3), line
        assert line.get("learning_rate") == wanted.get("learning_rate")


def test_sigterm_saves_a_checkpoint(runs, settings, whole, tmp_path):
    run = runs.start(settings(), tmp_path / "run")
    run.reach(40)
    began = time.monotonic()
    run.send(signal.SIGTERM)
    run.send(signal.SIGTERM)
    assert run.wait() == 143, run.output
    # A machine that is taken away gives 30 seconds.
    assert time.monotonic() - began < 20
    saved = max(int(path.name) for path in (tmp_path / "run" / "checkpoints").iterdir() if path.name.isdigit())
    assert f"SIGTERM: saved step {saved}; the same command goes on from there" in run.output.splitlines()
    assert "Traceback" not in run.output and 40 <= last_step(tmp_path / "run") <= saved < STEPS
    again = runs.finish(settings(), tmp_path / "run")
    assert f"going on from step {saved}" in again.output
    assert_same_run(whole, tmp_path / "run")
