import json
import math
import shutil

import pytest

from tests.report.conftest import config, make_run, metrics, record
from wechsel_jax.errors import UserError
from wechsel_jax.report import read_run
from wechsel_jax.report.records import read_comparison, read_runs

EXAMPLE = '{"method": "wechsel", "examples": [{"target": "a", %s}]}'


def test_a_run_is_read_whole(runs):
    run = read_run(runs[1])
    assert run.label == "TransInner" and run.method == "trans_inner" and not run.unfinished
    assert run.curve[0] == (0, 8203) and run.curve[-1] == (200, 349) and len(run.curve) == 9
    assert [(phase.start, phase.trainable) for phase in run.phases] == [(0, "tokens"), (20, "all")]
    assert run.transfer.counts == {"copied": 3, "mixed": 0, "random": 97} and run.transfer.mixture is None


def test_a_mixture_counts_the_neighbors_that_matter(runs):
    mixture = read_run(runs[0]).transfer.mixture
    assert mixture.effective_neighbors == pytest.approx(2 * math.sqrt(2)) and mixture.source_tokens == 50


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


def test_the_output_of_a_transfer_is_a_run_without_training(tmp_path, runs):
    shutil.copytree(runs[0] / "transfer", tmp_path / "german")
    (tmp_path / "german" / "config.json").write_text('{"model_type": "gpt2"}')
    run = read_run(tmp_path / "german")
    assert run.label == "WECHSEL" and run.curve == [] and run.config == {} and run.transfer.counts["mixed"] == 91


def test_a_comparison_stands_for_its_runs(comparison, runs):
    found = read_runs([comparison])
    assert [run.path for run in found] == runs
    assert read_comparison(found)["machine"] == "x86_64, 1 x cpu"


def test_a_plan_of_another_transfer_is_noted(tmp_path):
    run = make_run(tmp_path, "wechsel")
    changed = record("wechsel")
    changed["counts"]["mixed"] = 92
    (run / "transfer" / "transfer.json").write_text(json.dumps(changed))
    changed["counts"]["mixed"] = 91
    assert "not of one transfer" in read_run(run).transfer.notes[0]


def test_labels_differ(tmp_path, runs):
    seeds = [make_run(tmp_path / "a", "wechsel", name=f"seed{seed}", seed=seed) for seed in (1, 2)]
    copy = make_run(tmp_path / "b", "full_rand")
    labels = [run.label for run in read_runs([*seeds, runs[2], copy])]
    assert labels == ["WECHSEL, seed 1", "WECHSEL, seed 2", "FullRand (demo/full_rand)", "FullRand (b/full_rand)"]


@pytest.mark.parametrize(
    ("name", "contents", "told"),
    [
        ("metrics.jsonl", '{"kind": "eval", "step": 0, "perplexity": 5}\nnonsense\n', "line 2"),
        ("metrics.jsonl", '{"kind": "eval", "step": 0, "perplexity": "low"}\n', "line 1"),
        ("metrics.jsonl", '{"kind": "eval", "step": 0, "perplexity": NaN}\n', "line 1"),
        ("metrics.jsonl", "[1]\n", "line 1"),
        ("metrics.jsonl", "[" * 100000 + "\n", "line 1"),
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
        ("transfer/transfer_plan.npz", "no archive", "transfer_plan.npz"),
    ],
)
def test_damaged_files_are_named(tmp_path, name, contents, told):
    run = make_run(tmp_path, "wechsel")
    (run / name).write_text(contents, errors="surrogateescape")
    with pytest.raises(UserError) as caught:
        read_run(run)
    assert str(run / name) in str(caught.value) and told in str(caught.value) and "expected" in str(caught.value)


def test_what_is_no_run_is_refused(tmp_path, runs):
    with pytest.raises(UserError, match="no such directory"):
        read_run(tmp_path / "nothing")
    with pytest.raises(UserError, match=r"no metrics\.jsonl and no transfer\.json"):
        read_run(tmp_path)
    with pytest.raises(UserError, match="no run given"):
        read_runs([])
    with pytest.raises(UserError, match="given twice"):
        read_runs([runs[0], runs[0]])


@pytest.mark.parametrize("contents", ["{", '{"methods": {}}', '{"methods": {"wechsel": {}}, "seconds": {"a": "b"}}'])
def test_a_damaged_comparison_is_named(tmp_path, contents):
    make_run(tmp_path, "wechsel")
    (tmp_path / "comparison.json").write_text(contents)
    with pytest.raises(UserError, match=r"comparison\.json"):
        read_comparison(read_runs([tmp_path]))


def test_settings_without_their_types_do_no_harm(tmp_path):
    run = make_run(tmp_path, "wechsel")
    for strange in ({"phases": 3, "steps": "many"}, {"phases": [{}], "steps": 5}, {"phases": [None], "steps": 5}):
        (run / "config.json").write_text(json.dumps({**config("wechsel"), **strange}))
        assert len(read_run(run).phases) == 1
