"""A run and a comparison: what their files hold, by versions before and after, and what is named where they are damaged."""

import json
import math
import shutil
from pathlib import Path

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from tests.records.runs import config, make_run, metrics
from wechsel_jax.checkpoint import Checkpoint
from wechsel_jax.errors import UserError
from wechsel_jax.records import ComparisonRecord, Evaluation, RunRecord, best_evaluation, expand, read_comparison, read_run
from wechsel_jax.records.compute import compute
from wechsel_jax.records.run import exported_model, require_settings
from wechsel_jax.report.curves import PERPLEXITY
from wechsel_jax.training.schedules import make_phases

# As version 0.1.0 wrote them in November 2026.
EARLIER = Path(__file__).parent / "earlier"
EXAMPLE = '{"method": "wechsel", "examples": [{"target": "a", %s}]}'


def test_a_run_is_read_whole(runs):
    run = read_run(runs[1])
    assert run.label == run.method == "trans_inner" and not run.unfinished
    assert run.curve[0] == (0, 8203) and run.curve[-1] == (200, 349) and len(run.curve) == 9
    assert [(phase.start, phase.trainable) for phase in run.phases] == [(0, "tokens"), (20, "all")]
    assert run.transfer.counts == {"copied": 3, "mixed": 0, "random": 97}


def test_the_model_of_a_run_is_its_export(tmp_path):
    run = make_run(tmp_path, "wechsel")
    assert exported_model(run) == run
    with pytest.raises(UserError, match=r"is the workdir of a run; expected a model directory, such as .*export"):
        Checkpoint.open(run)
    (tmp_path / "config.json").write_text('{"methods": ["wechsel"]}')
    with pytest.raises(
        UserError, match=r"is the workdir of several runs; expected a model directory, such as .*wechsel.export"
    ):
        Checkpoint.open(tmp_path)
    (run / "export").mkdir()
    assert exported_model(run) == exported_model(run / "export") == run / "export" and exported_model("gpt2") == "gpt2"


def test_a_folder_of_runs_names_them(tmp_path):
    runs = [make_run(tmp_path, method) for method in ("wechsel", "full_rand")]
    with pytest.raises(UserError, match="such as the runs in it: " + ", ".join(map(str, sorted(runs)))):
        read_run(tmp_path)


def test_a_line_that_is_being_written_is_left_out(tmp_path):
    run = make_run(tmp_path, "wechsel")
    (run / "metrics.jsonl").write_text(metrics("wechsel", 50) + '{"kind": "eval", "step": 75, "perpl')
    read = read_run(run)
    assert [step for step, _ in read.curve] == [0, 25, 50] and read.unfinished


def test_a_step_that_was_made_again_counts_once(tmp_path):
    run = make_run(tmp_path, "wechsel")
    again = {"kind": "eval", "step": 50, "loss": 6.0, "perplexity": 400.0, "tokens": 5.0}
    (run / "metrics.jsonl").write_text(metrics("wechsel", 50) + json.dumps(again) + "\n")
    assert read_run(run).curve == [(0, 5806), (25, 1120), (50, 400.0)]


def test_a_perplexity_that_overflowed_is_no_part_of_the_curve(tmp_path):
    run = make_run(tmp_path, "wechsel")
    overflowed = '{"kind": "eval", "step": 0, "loss": null, "perplexity": null}\n'
    (run / "metrics.jsonl").write_text(overflowed + metrics("full_rand", 25).split("\n", 1)[1])
    read = read_run(run)
    assert math.isinf(read.evaluations[0].perplexity) and read.curve == [(25, 2410)]


def test_phases_come_from_the_metrics_without_settings(tmp_path):
    run = tmp_path / "run"
    run.mkdir()
    lines = [{"kind": "train", "step": step, "phase": "tokens" if step <= 20 else "all"} for step in range(10, 60, 10)]
    (run / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert [(phase.name, phase.start) for phase in read_run(run).phases] == [("tokens", 0), ("all", 29)]


@given(st.lists(st.integers(1, 60) | st.floats(0.05, 0.4), min_size=1, max_size=4), st.integers(100, 1000))
def test_phases_begin_where_training_lays_them(lengths, steps):
    """Whether a phase's length is given in steps or as a fraction; the last one fills the run."""
    phases = [{"fraction": one} if isinstance(one, float) else {"steps": one} for one in lengths]
    left = 1.0 - sum(one if isinstance(one, float) else one / steps for one in lengths)
    assume(left > 0.01)
    phases = [{"name": str(i), **phase} for i, phase in enumerate([*phases, {"fraction": left}])]
    laid = [phase.start for phase in make_phases(phases, steps, 1e-3)]
    assert [phase.start for phase in RunRecord(Path("run"), "run", {"phases": phases, "steps": steps}).phases] == laid


def test_the_output_of_a_transfer_is_a_run_without_training(tmp_path, runs):
    shutil.copytree(runs[0] / "transfer", tmp_path / "german")
    (tmp_path / "german" / "config.json").write_text('{"model_type": "gpt2"}')
    run = read_run(tmp_path / "german")
    assert run.label == "wechsel" and run.curve == [] and run.config == {} and run.transfer.counts["mixed"] == 91


def test_a_comparison_stands_for_its_runs(comparison, runs):
    assert expand(comparison) == runs and expand(runs[0]) == [runs[0]]
    found = read_comparison([read_run(run) for run in runs])
    assert found.machine == "x86_64, 1 x cpu" and [*found.methods] == [run.name for run in runs]
    assert read_comparison([RunRecord(runs[0], "a"), RunRecord(comparison, "b")]).methods == {}


@pytest.mark.parametrize(
    ("name", "contents", "told"),
    [
        ("metrics.jsonl", '{"kind": "eval", "step": 0, "perplexity": 5}\nnonsense\n', "line 2"),
        ("metrics.jsonl", '{"kind": "eval", "step": 0, "perplexity": "low"}\n', "line 1"),
        ("metrics.jsonl", '{"kind": "eval", "step": 0, "perplexity": NaN}\n', "line 1"),
        ("metrics.jsonl", "[1]\n", "line 1"),
        ("metrics.jsonl", "[" * 100000 + "\n", "line 1"),
        ("metrics.jsonl", '{"step": 1}\n', "line 1"),
        ("metrics.jsonl", '{"kind": "eval", "step": 0, "perplexity": 1' + "0" * 400 + "}\n", "line 1"),
        ("machine.json", '{"starts": [{"devices": "8"}]}', "field starts.0.devices"),
        ("data/train/manifest.json", '{"text_bytes": []}', "field text_bytes is []"),
        ("config.json", "{", "not JSON"),
        ("config.json", "[]", "no JSON object"),
        ("transfer/transfer.json", "", "empty"),
        ("transfer/transfer.json", "\udcff", "not JSON"),
        ("transfer/transfer.json", "{}", "method"),
        ("transfer/transfer.json", '{"method": "wechsel", "format": 2}', "format 2"),
        ("transfer/transfer.json", '{"method": "wechsel", "counts": {"copied": 1}}', "field counts.mixed is missing"),
        ("transfer/transfer.json", '{"method": "wechsel", "norms": {"source": {"mean": 1, "std": "x"}}}', "source.std"),
        ("transfer/transfer.json", '{"method": "wechsel", "norms": {}}', "norms"),
        ("transfer/transfer.json", EXAMPLE % '"how": "magic", "sources": []', "field examples.0"),
        ("transfer/transfer.json", EXAMPLE % '"how": "mixed", "sources": [["b"]]', "field examples.0"),
        ("transfer/transfer.json", '{"method": "wechsel", "behaviour": "none"}', "behaviour"),
        ("transfer/transfer.json", '{"method": "wechsel", "coverage": "x"}', "field coverage is 'x'"),
        ("transfer/transfer.json", '{"method": "wechsel", "coverage": {"rows": 5}}', "field coverage.rows is 5"),
        ("transfer/transfer.json", '{"method": "wechsel", "source": {"vocabulary_size": "9"}}', "field source.vocabulary_size"),
        ("transfer/transfer.json", f'{{"method": "wechsel", "timings": {{"a": {"9" * 400}}}}}', "field timings.a"),
        ("transfer/transfer.json", '{"method": "anker", "alignment": {"anchors": {}, "rounds": [{}]}}', "rounds.0.anchors"),
    ],
)
def test_damaged_files_are_named(tmp_path, name, contents, told):
    run = make_run(tmp_path, "wechsel")
    (run / name).parent.mkdir(parents=True, exist_ok=True)
    (run / name).write_text(contents, errors="surrogateescape")
    with pytest.raises(UserError) as caught:
        read_run(run)
    assert str(run / name) in str(caught.value) and told in str(caught.value) and "expected" in str(caught.value)


def test_what_is_no_run_is_refused(tmp_path):
    with pytest.raises(UserError, match="no such directory"):
        read_run(tmp_path / "nothing")
    with pytest.raises(UserError, match=r"no metrics\.jsonl and no transfer\.json"):
        read_run(tmp_path)


@pytest.mark.parametrize("contents", ["{", '{"methods": {}}', '{"methods": {"wechsel": {}}, "seconds": {"a": "b"}}'])
def test_a_damaged_comparison_is_named(tmp_path, contents):
    make_run(tmp_path, "wechsel")
    (tmp_path / "comparison.json").write_text(contents)
    with pytest.raises(UserError, match=r"comparison\.json"):
        read_comparison([read_run(run) for run in expand(tmp_path)])


def test_settings_without_their_types_do_no_harm(tmp_path):
    run = make_run(tmp_path, "wechsel")
    for strange in ({"phases": 3, "steps": "many"}, {"phases": [{}], "steps": 5}, {"phases": [None], "steps": 5}):
        (run / "config.json").write_text(json.dumps({**config("wechsel"), **strange}))
        assert len(read_run(run).phases) == 1


def test_step_0_is_never_the_best_of_a_trained_run(tmp_path):
    """A model that an earlier training left good is spoiled at first; what is exported is still what training made."""
    run = make_run(tmp_path, "wechsel")
    lines = [(0, 2.0), (25, 4.0), (50, 3.0), (75, 3.0), (100, None)]
    told = [{"kind": "eval", "step": step, "loss": loss, "perplexity": loss and math.exp(loss)} for step, loss in lines]
    (run / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in told))
    read = read_run(run)
    lowest = (50, pytest.approx(math.exp(3.0)))
    assert PERPLEXITY.lowest(read) == lowest == PERPLEXITY.lowest(read.until(60)) and PERPLEXITY.lowest(read.until(20)) is None
    assert best_evaluation(read.evaluations).step == best_evaluation(reversed(read.evaluations)).step == 50


def test_the_lowest_perplexity_need_not_be_at_the_lowest_loss(tmp_path):
    """A loss may count more than perplexity does: whether sentences follow one another, what ends a text."""
    told = [(0, 2.0, 9.0), (10, 20.1, 5.0), (20, 21.1, 4.5), (30, 20.1, 5.0), (40, math.inf, 1.0)]
    points = tuple(Evaluation(step, perplexity, loss=loss) for step, perplexity, loss in told)
    run = RunRecord(tmp_path, "nsp", evaluations=points[:4])
    assert PERPLEXITY.lowest(run) == (10, 20.1) and best_evaluation(run.evaluations).step == 20
    assert PERPLEXITY.lowest(RunRecord(tmp_path, "nsp", evaluations=points)) == (10, 20.1)
    assert PERPLEXITY.lowest(RunRecord(tmp_path, "nsp", evaluations=points[:1])) is None


def test_a_run_says_which_weights_it_exported(tmp_path):
    run = make_run(tmp_path, "wechsel")
    assert read_run(run).exported_step is None
    with (run / "metrics.jsonl").open("a") as handle:
        handle.write('{"kind": "end", "step": 200, "exported_step": 150}\n')
    assert read_run(run).exported_step == 150 and not read_run(run).unfinished


@pytest.mark.parametrize("method", ["anker", "wechsel_tfr"])
def test_a_run_of_an_earlier_version_is_read(method):
    run = read_run(EARLIER / method)
    assert run.transfer.method == run.label == method and run.planned_steps == run.last_step == run.exported_step == 6
    assert [step for step, _ in run.curve] == [0, 2, 4, 6] and len(run.training) == 4 and not run.unfinished
    assert PERPLEXITY.lowest(run)[0] == {"anker": 4, "wechsel_tfr": 6}[method] and [phase.name for phase in run.phases] == [
        "all"
    ]
    used = compute(run)
    assert used.devices == ("1 x cpu",) and used.device_seconds == used.seconds == run.training[-1]["seconds"]
    assert run.starts[0]["versions"]["wechsel-jax"] == "0.1.0"


def test_a_comparison_of_an_earlier_version_is_read(tmp_path):
    runs = expand(EARLIER)
    assert [run.name for run in runs] == ["anker", "wechsel_tfr"]
    found = read_comparison([read_run(run) for run in runs])
    assert found.seed == 0 and found.methods["anker"]["evaluations"][0][0] == 0 and found.steps_needed["anker"] == [None] * 4
    found.write(tmp_path)
    assert json.loads((tmp_path / "comparison.json").read_text()) == json.loads((EARLIER / "comparison.json").read_text())


def test_device_hours_follow_the_starts(tmp_path):
    run = make_run(tmp_path, "wechsel")
    starts = [
        {"seconds": 0.0, "devices": 8, "device_kind": "TPU v3"},
        {"seconds": 40.0, "devices": 16, "device_kind": "TPU v3"},
    ]
    (run / "machine.json").write_text(json.dumps({"starts": starts}))
    # A step takes 0.7 s.
    used, half = (compute(read_run(run).until(step)) for step in (200, 50))
    assert used.device_seconds == pytest.approx(40 * 8 + 100 * 16) and used.devices == ("8 x TPU v3", "16 x TPU v3")
    assert half.device_seconds == pytest.approx(35 * 8) and half.devices == ("8 x TPU v3",)
    (run / "machine.json").unlink()
    assert compute(read_run(run)).device_seconds is None and compute(read_run(run).until(0)) is None


def test_prepared_text_is_told_by_its_manifest(tmp_path):
    run = make_run(tmp_path, "wechsel")
    for name in ("data/train", "others"):
        (run / name).mkdir(parents=True)
        (run / name / "manifest.json").write_text('{"inputs": [{"name": "a.txt", "bytes": 5}], "tokens": 7}')
    # A manifest of somebody else's text is not ours.
    (run / "config.json").write_text(json.dumps(config("wechsel") | {"data": {"validation": [str(run / "others")]}}))
    assert read_run(run).data == {"train": {"inputs": [{"name": "a.txt", "bytes": 5}], "tokens": 7}}


@pytest.mark.parametrize(
    ("config", "told"),
    [
        ({"model": 3}, "model is 3; expected an object"),
        ({"data": {"train": "a.txt"}}, "data.train is 'a.txt'; expected a list"),
        ({"optimizer": []}, "optimizer is .* expected an object"),
        ({"phases": [3]}, r"phases\.0 is 3; expected an object"),
        ({"soft_targets": 5}, "soft_targets is 5; expected an object"),
    ],
)
def test_damaged_settings_of_a_run_are_named(tmp_path, config, told):
    (tmp_path / "metrics.jsonl").touch()
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(UserError, match=rf"config\.json: field {told} of a run's settings"):
        require_settings(read_run(tmp_path))


def test_steps_that_are_too_many_for_a_number_have_no_phases(tmp_path):
    (tmp_path / "metrics.jsonl").touch()
    (tmp_path / "config.json").write_text(json.dumps({"steps": 10**400, "phases": [{"steps": 3}]}))
    assert read_run(tmp_path).phases == ()


def test_a_comparison_that_has_not_ended_is_told_what_to_do(tmp_path):
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(UserError, match=r"comparison\.json: no such file; .* at its end; run the comparison's command again"):
        ComparisonRecord.read(tmp_path)
