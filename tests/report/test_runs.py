import json
import math
import shutil

import pytest

from tests.records.runs import make_run, record
from wechsel_jax.errors import UserError
from wechsel_jax.inspection import facts
from wechsel_jax.records import read_run
from wechsel_jax.report.curves import baseline
from wechsel_jax.report.runs import read_runs


def test_a_mixture_counts_the_neighbors_that_matter(runs):
    mixture, none = (run.transfer.mixture for run in read_runs(runs[:2], measured=True))
    assert mixture.effective_neighbors == pytest.approx(2 * math.sqrt(2)) and mixture.source_tokens == 50 and none is None


def test_a_plan_of_another_transfer_is_noted(tmp_path):
    run = make_run(tmp_path, "wechsel")
    changed = record("wechsel")
    changed["counts"]["mixed"] = 92
    (run / "transfer" / "transfer.json").write_text(json.dumps(changed))
    changed["counts"]["mixed"] = 91
    (read,) = read_runs([run], measured=True)
    assert "not of one transfer" in read.transfer.notes[0]


def test_a_damaged_plan_is_named(tmp_path):
    run = make_run(tmp_path, "wechsel")
    (run / "transfer" / "transfer_plan.npz").write_text("no archive")
    with pytest.raises(UserError, match=r"transfer_plan\.npz: .*expected"):
        read_runs([run], measured=True)


def test_tables_are_measured_once(tmp_path, monkeypatch):
    """A report that is written again reads no plan and no table, as long as they are what they were."""
    run, calls = make_run(tmp_path, "wechsel"), []
    monkeypatch.setattr(
        facts, "score", lambda *given, measured=facts.score, **options: calls.append(given) or measured(*given, **options)
    )
    first, again = (read_runs([run], measured=True)[0] for _ in range(2))
    assert first == again and len(calls) == 1
    plan = run / "transfer" / "transfer_plan.npz"
    make_run(tmp_path, "trans_inner", name="other")
    plan.write_bytes((tmp_path / "other" / "transfer" / "transfer_plan.npz").read_bytes())
    assert read_runs([run], measured=True)[0].transfer.mixture is None and len(calls) == 2


def test_what_a_transfer_measured_itself_is_read_and_not_measured_again(tmp_path, monkeypatch):
    run = make_run(tmp_path, "wechsel")
    mixture = {"effective_neighbors": 2.5, "source_tokens": 7}
    tables = [{"name": "wte", "role": "input", "target": {"not_finite_rows": 0}, "source": None, "ratios": {"std": 9.0}}]
    content = record("wechsel") | {"measures": {"mixture": mixture, "tables": tables}}
    (run / "transfer" / "transfer.json").write_text(json.dumps(content))
    monkeypatch.delattr(facts, "score")
    (read,) = read_runs([run], measured=True)
    assert read.transfer.mixture.source_tokens == 7 and read.transfer.tables == tuple(tables)
    assert "spread (input)" in [finding.about for finding in read.transfer.findings if finding.severity == "wrong"]


def test_labels_differ(tmp_path, runs):
    seeds = [make_run(tmp_path / "a", "wechsel", name=f"seed{seed}", seed=seed) for seed in (1, 2)]
    copy = make_run(tmp_path / "b", "full_rand")
    labels = [run.label for run in read_runs([*seeds, runs[2], copy])]
    assert labels == ["WECHSEL, seed 1", "WECHSEL, seed 2", "FullRand (demo/full_rand)", "FullRand (b/full_rand)"]


def test_a_run_is_named_by_its_folder_where_it_is_given_as_this_one(tmp_path, monkeypatch):
    """Its colour, whether it is the one from scratch, and whether a probe chose it, follow from the name."""
    monkeypatch.chdir(make_run(tmp_path, "full_rand"))
    shutil.rmtree("transfer")
    run = read_run(".")
    assert (run.method, run.label) == ("full_rand",) * 2 and baseline([run]) is run


def test_runs_are_given_and_given_once(runs):
    with pytest.raises(UserError, match="no run given"):
        read_runs([])
    with pytest.raises(UserError, match="given twice"):
        read_runs([runs[0], runs[0]])
