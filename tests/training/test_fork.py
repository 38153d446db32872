"""A run of another length goes on from a checkpoint of a run, and ends as if it had been alone."""

import json
import shutil

import pytest

from tests.training.runs import assert_same_run
from wechsel_jax.errors import UserError
from wechsel_jax.training import stable_phase, train

MODEL = {"model_type": "gpt2", "n_embd": 16, "n_layer": 1, "n_head": 2, "n_positions": 32}


@pytest.fixture(scope="module")
def settings(make_config):
    def make(steps, **changes):
        phases = stable_phase(warmup_steps=3, decay_fraction=0.25)
        return make_config(
            model__config=MODEL, mesh__data=1, steps=steps, phases=phases, keep=9, eval_every=4, checkpoint_every=4, **changes
        )

    return make


@pytest.fixture(scope="module")
def long(settings, tmp_path_factory):
    workdir = tmp_path_factory.mktemp("forked") / "long"
    train(settings(16), workdir)
    return workdir


# The long run begins to decay after 12 updates, the shorter one after 6 and the longer one after 15.
@pytest.mark.parametrize(("steps", "step"), [(8, 4), pytest.param(20, 12, marks=pytest.mark.slow)])
def test_a_shorter_and_a_longer_run_end_as_if_alone(settings, long, tmp_path, capsys, steps, step):
    train(settings(steps), tmp_path / "alone")
    train(settings(steps, fork=str(long / "checkpoints" / str(step))), tmp_path / "forked")
    assert f"begins as {long} did until step {step}" in capsys.readouterr().err
    assert_same_run(tmp_path / "alone", tmp_path / "forked")
    config = json.loads((tmp_path / "forked" / "config.json").read_text())
    assert config["steps"] == steps and config["fork"].endswith(f"checkpoints/{step}")


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"steps": 20, "fork": "checkpoints/16"}, "update 13 had other learning rates"),
        ({"steps": 8, "fork": "checkpoints/8"}, "has 8 steps and this run 8; expected more"),
        ({"steps": 20, "fork": "checkpoints/4", "seed": 1}, "seed was 0 in .*, now 1; expected only steps, phases"),
        ({"steps": 20, "fork": "checkpoints/4", "optimizer__b2": 0.9}, r"optimizer\.b2 was 0\.98"),
        ({"steps": 20, "fork": "checkpoints/5"}, "checkpoints/5: no such"),
        ({"steps": 20, "fork": "checkpoints"}, "is no checkpoint|manifest.json is missing"),
    ],
)
def test_what_would_not_have_led_there_is_refused(settings, long, tmp_path, changes, named):
    changes = {**changes, "fork": str(long / changes["fork"])}
    with pytest.raises(UserError, match=named):
        train(settings(**changes), tmp_path / "run")
    assert not (tmp_path / "run" / "checkpoints").exists()


def test_a_damaged_checkpoint_is_not_gone_on_from(settings, long, tmp_path):
    shutil.copytree(long, tmp_path / "long")
    place = tmp_path / "long" / "checkpoints" / "4"
    largest = max((file for file in place.rglob("*") if file.is_file()), key=lambda file: file.stat().st_size)
    largest.write_bytes(largest.read_bytes()[:-1])
    with pytest.raises(UserError, match=r"fork: .*/4: state/.* bytes instead of"):
        train(settings(8, fork=str(place)), tmp_path / "run")
