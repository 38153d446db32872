"""Runs that are killed at chosen operations on their files, that run out of disk, and that are started twice."""

import signal
import time

import pytest

from tests.training.runs import assert_same_run, lines_without_timing
from wechsel_jax.training.metrics import read_metrics

pytestmark = pytest.mark.slow
STEPS = 30


@pytest.fixture(scope="module")
def config(make_config):
    return make_config(
        steps=STEPS,
        eval_every=10,
        checkpoint_every=4,
        log_every=3,
        phases=({"name": "all", "fraction": 1.0, "warmup": 0.5},),
    )


@pytest.fixture(scope="module")
def whole(runs, config, tmp_path_factory):
    """A run that nobody disturbed: (workdir, kinds of the operations on its files in the order of the first of each)."""
    folder = tmp_path_factory.mktemp("whole")
    workdir, events = folder / "run", folder / "events"
    runs.finish(config, workdir, events=str(events))
    return workdir, list(dict.fromkeys(events.read_text().splitlines()))


def test_killed_before_operations_of_every_sort(runs, config, whole, tmp_path):
    """One run after the other in the same directory, each killed just before another kind of operation; then one to the end."""
    workdir, kinds = whole
    saving, exporting = ([kind for kind in kinds if name in kind] for name in (".N.N.saving", ".export."))
    assert len(saving) > 8 and len(exporting) > 3
    chosen = [kinds[5], saving[0], saving[-4], saving[-2], saving[-1], "os.rmdir checkpoints/.N.removed", *exporting[1:4:2]]
    for kind in chosen:
        run = runs.start(config, tmp_path / "run", at=[kind, 1])
        assert run.wait() == -signal.SIGKILL, (kind, run.output)
    last = runs.finish(config, tmp_path / "run")
    assert "going on from step 30" in last.output
    assert_same_run(workdir, tmp_path / "run")


def test_a_full_disk_for_a_while(runs, config, whole, tmp_path):
    """One checkpoint cannot be begun, one cannot be finished: each is said in one line, and the result is the same."""
    run = runs.start(config, tmp_path / "run", at=["os.mkdir checkpoints/.N.N.saving", 2], do="full once")
    assert run.wait() == 0
    said = [line for line in run.output.splitlines() if "could not be written" in line]
    kept = "that of step 4 is kept; the next one is tried"
    assert said == [f"the checkpoint of step 8 could not be written (No space left on device); {kept}"]
    assert_same_run(whole[0], tmp_path / "run")


def test_a_disk_that_stays_full(runs, config, whole, tmp_path):
    """Training goes on to the end, which is an error; with space again, the same command finishes."""
    run = runs.start(config, tmp_path / "run", at=["os.rename checkpoints/.N.N.saving", 3], do="full")
    assert run.wait() == 2
    lines = run.output.splitlines()
    assert "the checkpoint of the last step, 30, could not be written" in lines[-1] and "Traceback" not in run.output
    assert not (tmp_path / "run" / "export").exists()
    assert max(line["step"] for line in read_metrics(tmp_path / "run" / "metrics.jsonl")) == STEPS
    again = runs.finish(config, tmp_path / "run")
    assert "going on from step 8" in again.output
    assert_same_run(whole[0], tmp_path / "run")


def test_arrays_that_do_not_fit(runs, config, whole, tmp_path):
    """The library that writes arrays in the background fails, not Python; each time, it is one line.

    The embedding table alone (39 kB) is more than a file may hold: how arrays are gathered into files differs each time.
    """
    run = runs.start(config, tmp_path / "run", file_limit=30_000)
    assert run.wait() == 2
    assert "the checkpoint of step 4 could not be written (File too large); there is none yet; the next one" in run.output
    assert "Traceback" not in run.output and run.output.splitlines()[-1].startswith("train: error: ")
    assert not [path for path in (tmp_path / "run" / "checkpoints").iterdir() if path.name.isdecimal()]
    runs.finish(config, tmp_path / "run")
    assert_same_run(whole[0], tmp_path / "run")


def test_an_export_that_does_not_fit(runs, config, whole, tmp_path):
    run = runs.start(config, tmp_path / "run", at=["open .export.*.partial/model.safetensors", 1], do="full")
    assert run.wait() == 2
    last = run.output.splitlines()[-1]
    assert "export: cannot be written (No space left on device)" in last and "nothing is trained anew" in last
    again = runs.finish(config, tmp_path / "run")
    assert "going on from step 30" in again.output
    assert_same_run(whole[0], tmp_path / "run")


def test_a_second_run_in_the_same_place_is_refused(runs, config, whole, tmp_path):
    first = runs.start(config, tmp_path / "run")
    first.reach(1)
    second = runs.start(config, tmp_path / "run")
    assert second.wait() == 2
    assert f"process {first.pid} on " in second.output and "is at work here" in second.output
    # A lock must not outlive its process.
    first.send(signal.SIGKILL)
    assert first.wait() == -signal.SIGKILL
    runs.finish(config, tmp_path / "run")
    assert_same_run(whole[0], tmp_path / "run")


@pytest.mark.parametrize("kind", ["open checkpoints/.N.N.saving/manifest.json", "open .export.*.partial/model.safetensors"])
def test_sigterm_while_files_are_written(runs, config, whole, tmp_path, kind):
    """Inside a checkpoint, the run saves its newest step and leaves; inside the export, everything is saved already."""
    began = time.monotonic()
    run = runs.start(config, tmp_path / "run", at=[kind, 1], do="term")
    assert run.wait() == 143, run.output
    assert "the same command" in run.output.splitlines()[-1] and time.monotonic() - began < 60
    assert not list((tmp_path / "run").glob("*.partial")) and not list((tmp_path / "run" / "checkpoints").glob(".*"))
    runs.finish(config, tmp_path / "run")
    assert lines_without_timing(tmp_path / "run") == lines_without_timing(whole[0])
    assert_same_run(whole[0], tmp_path / "run")
