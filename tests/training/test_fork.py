"""A run of another length goes on from a checkpoint of a run, and ends as if it had been alone."""

import json
import shutil

import pytest

from tests.full_disk import no_file_above
from tests.training.runs import assert_same_run
from wechsel_jax.errors import UserError
from wechsel_jax.program import mistake
from wechsel_jax.tokens.files import write_tokenizer
from wechsel_jax.training import stable_phase, train
from wechsel_jax.training.fork import _best_until
from wechsel_jax.training.metrics import best_evaluation, read_metrics
from wechsel_jax.training.recorder import Recorder
from wechsel_jax.training.run_spec import named_model

MODEL = {"model_type": "gpt2", "n_embd": 16, "n_layer": 1, "n_head": 2, "n_positions": 32}


@pytest.fixture(scope="module")
def settings(make_config):
    def make(steps, **changes):
        phases = stable_phase(warmup_steps=3, decay_fraction=0.25)
        given = {"model__config": MODEL, "mesh__data": 1, "phases": phases, "keep": 9, "eval_every": 4, "checkpoint_every": 4}
        return make_config(steps=steps, **{**given, **changes})

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


def test_soft_targets_are_those_of_a_run_alone(settings, tmp_path):
    """They last as many steps as the shorter run, and so end in the middle of the longer one."""
    train(settings(8, soft_targets__share=0.8), tmp_path / "short")
    longer = {"soft_targets__share": 0.8, "fork": str(tmp_path / "short" / "checkpoints" / "4")}
    with pytest.raises(UserError, match=r"update 1 had other learning rates, soft targets or parameters .* their steps"):
        train(settings(16, **longer), tmp_path / "forked")
    train(settings(16, soft_targets__steps=8, **longer), tmp_path / "forked")
    train(settings(16, soft_targets__steps=8, soft_targets__share=0.8), tmp_path / "alone")
    assert_same_run(tmp_path / "alone", tmp_path / "forked")


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"steps": 20, "fork": "checkpoints/16"}, "update 13 had other learning rates"),
        ({"steps": 8, "fork": "checkpoints/8"}, "has 8 steps and this run 8; expected more"),
        ({"steps": 20, "fork": "checkpoints/4", "seed": 1}, "seed was 0 in .*, now 1; expected only steps, phases"),
        ({"steps": 20, "fork": "checkpoints/4", "optimizer__b2": 0.9}, r"optimizer\.b2 was 0\.98"),
        ({"steps": 20, "fork": "checkpoints/5"}, "checkpoints/5: no such"),
        ({"steps": 20, "fork": "checkpoints"}, "is no checkpoint|manifest.json is missing"),
        ({"steps": 20, "fork": "/"}, "fork: /: "),
    ],
)
def test_what_would_not_have_led_there_is_refused(settings, long, tmp_path, changes, named):
    changes = {**changes, "fork": str(long / changes["fork"])}
    with pytest.raises(UserError, match=named):
        train(settings(**changes), tmp_path / "run")
    assert not [*(tmp_path / "run" / "checkpoints").glob("*")]


def test_a_damaged_checkpoint_is_not_gone_on_from(settings, long, tmp_path):
    shutil.copytree(long, tmp_path / "long")
    place = tmp_path / "long" / "checkpoints" / "4"
    largest = max((file for file in place.rglob("*") if file.is_file()), key=lambda file: file.stat().st_size)
    largest.write_bytes(largest.read_bytes()[:-1])
    with pytest.raises(UserError, match=r"fork: .*/4: state/.* bytes instead of"):
        train(settings(8, fork=str(place)), tmp_path / "run")


def test_a_full_disk_is_one_line(settings, long, tmp_path):
    with no_file_above(16_384), pytest.raises(OSError) as raised:
        train(settings(8, fork=str(long / "checkpoints" / "4")), tmp_path / "run")
    place = tmp_path / "run" / "checkpoints" / "4"
    assert mistake(raised.value) == f"{place}: File too large; free some space and run the same command again"
    assert not [*place.parent.iterdir()]


def test_a_full_disk_while_the_tokenizer_is_written_is_one_line_too(settings, tmp_path):
    model = named_model(settings(8))
    (tmp_path / "tokenizer").mkdir()
    with no_file_above(200), pytest.raises(OSError) as raised:
        write_tokenizer(model.tokenizer, tmp_path / "tokenizer")
    assert "File too large; free some space" in mistake(raised.value)


def test_what_ended_the_other_run_does_not_end_this_one(settings, tmp_path, capsys):
    """From the last checkpoint of a run that stopped early, and of one that has done all its steps."""
    # So high a rate that the first evaluation stays the best.
    rate = {"optimizer__peak_learning_rate": 3.0, "optimizer__clip_norm": None}
    train(settings(24, patience=8, **rate), tmp_path / "stopped")
    kinds = [(line["kind"], line["step"]) for line in read_metrics(tmp_path / "stopped" / "metrics.jsonl")]
    stop = next(step for kind, step in kinds if kind == "stop")
    assert stop < 16
    train(settings(24, **rate), tmp_path / "alone")
    forked = settings(24, fork=str(tmp_path / "stopped" / "checkpoints" / str(stop)), **rate)
    assert train(forked, tmp_path / "forked")["step"] == 24
    assert_same_run(tmp_path / "alone", tmp_path / "forked")
    # Its own patience is one that it would have lost there.
    again = settings(24, fork=forked.fork, patience=4, **rate)
    with pytest.raises(UserError, match=r"fork: .*: with patience 4 this run stops at step \d+, the best evaluation being"):
        train(again, tmp_path / "again")
    constant = {"phases": ({"name": "all", "fraction": 1.0, "warmup_steps": 3, "decay": "constant"},)}
    for steps, name in ((8, "short"), (12, "long")):
        train(settings(steps, **constant), tmp_path / name)
    longer = settings(12, fork=str(tmp_path / "short" / "checkpoints" / "8"), **constant)
    ended = train(longer, tmp_path / "longer")
    assert_same_run(tmp_path / "long", tmp_path / "longer")
    assert train(longer, tmp_path / "longer") == ended and ended["step"] == 12
    assert "all 12 steps are done" in capsys.readouterr().err


def test_the_best_weights_before_the_fork_are_exported(settings, tmp_path):
    rate = {"optimizer__peak_learning_rate": 3.0, "optimizer__clip_norm": None, "patience": 100}
    train(settings(12, **rate), tmp_path / "alone")
    (end,) = [line for line in read_metrics(tmp_path / "alone" / "metrics.jsonl") if line["kind"] == "end"]
    assert end["exported_step"] < 8
    train(settings(12, fork=str(tmp_path / "alone" / "checkpoints" / "8"), **rate), tmp_path / "forked")
    assert_same_run(tmp_path / "alone", tmp_path / "forked")


def test_lines_that_the_other_run_wrote_at_its_end_alone_are_left_out(settings, tmp_path):
    constant = ({"name": "all", "fraction": 1.0, "warmup_steps": 3, "decay": "constant"},)
    same = {"phases": constant, "log_every": 4, "patience": 8}
    train(settings(6, **same), tmp_path / "short")
    kinds = [(line["kind"], line["step"]) for line in read_metrics(tmp_path / "short" / "metrics.jsonl")]
    assert {("eval", 6), ("train", 6)} <= {*kinds}
    train(settings(12, **same), tmp_path / "alone")
    train(settings(12, fork=str(tmp_path / "short" / "checkpoints" / "6"), **same), tmp_path / "forked")
    assert_same_run(tmp_path / "alone", tmp_path / "forked")


def test_a_mistake_in_the_settings_leaves_the_workdir_to_the_corrected_ones(settings, tmp_path):
    def phases(steps, trainable="all"):
        return (
            {"name": "first", "steps": 6, "decay": "constant", "warmup_steps": 2},
            {"name": "second", "steps": steps, "trainable": trainable},
        )

    train(settings(8, phases=phases(2)), tmp_path / "long")
    fork = str(tmp_path / "long" / "checkpoints" / "4")
    with pytest.raises(UserError, match="trainable 'tokns' matches no parameter"):
        train(settings(12, phases=phases(6, "tokns"), fork=fork), tmp_path / "run")
    assert train(settings(12, phases=phases(6, "tokens"), fork=fork), tmp_path / "run")["step"] == 12


def test_the_best_evaluation_so_far_is_that_of_all_lines(settings, monkeypatch):
    """And each line is looked at once."""
    losses = [9.0, 4.0, float("nan"), 3.0, 3.0, 5.0, None, 3.5]
    lines = [{"kind": "eval", "step": 4 * i, "loss": loss} for i, loss in enumerate(losses)]
    looked = []
    monkeypatch.setattr(
        "wechsel_jax.training.fork.best_evaluation", lambda lines: looked.append(len(lines)) or best_evaluation(lines)
    )
    assert _best_until(lines, settings(40, patience=20), "place") == best_evaluation(lines)["step"] == 12
    assert max(looked) == 2
    with pytest.raises(UserError, match="patience 12 this run stops at step 24, the best evaluation being that of step 12"):
        _best_until(lines, settings(40, patience=12), "place")


def test_killed_behind_its_export_a_run_still_says_how_it_ended(settings, tmp_path, monkeypatch):
    train(settings(8), tmp_path / "alone")

    def killed(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(Recorder, "end", killed)
    with pytest.raises(KeyboardInterrupt):
        train(settings(8), tmp_path / "run")
    assert (tmp_path / "run" / "export" / "model.safetensors").exists()
    monkeypatch.undo()
    train(settings(8), tmp_path / "run")
    assert_same_run(tmp_path / "alone", tmp_path / "run")
