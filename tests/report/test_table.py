import json

import pytest

from tests.records.runs import make_run, metrics
from wechsel_jax.records import ComparisonRecord
from wechsel_jax.report import comparison_table
from wechsel_jax.report.headline import evidence, headline
from wechsel_jax.report.runs import Report, read_runs
from wechsel_jax.report.section import plain


def test_the_table_of_the_measured_runs(runs):
    lines = comparison_table(runs).splitlines()
    cells = [line.split() for line in lines]
    assert lines[2] == "On held-out text over 98,304 tokens, along the way; step 0 is before training."
    assert cells[4] == ["Step", "WECHSEL", "TransInner", "FullRand", "FullRand", "needs"]
    assert cells[6] == ["0", "5,806*", "8,203", "8,587", "8"]
    assert cells[14] == ["200", "296*", "349", "576", ">", "200"]
    assert "WECHSEL ends at perplexity 296, 15 % lower than TransInner (349) and 49 % lower than FullRand (576)." in lines
    assert "- FullRand does not reach 296 within its 200 steps." in lines
    assert "- WECHSEL reaches the last value of FullRand (576) after 62 steps instead of 200: 3.2 times fewer." in lines
    assert "- WECHSEL has the lowest perplexity at all 9 evaluations, before training included." in lines


def test_the_numbers_of_a_column_end_below_each_other(runs):
    rows = comparison_table(runs).splitlines()[6:15]
    assert len({row.index("*") for row in rows}) == 1


def test_a_baseline_that_wins_is_said_to_win(tmp_path):
    weak = make_run(tmp_path, "wechsel")
    (weak / "metrics.jsonl").write_text(metrics("full_rand"))
    strong = make_run(tmp_path, "full_rand")
    (strong / "metrics.jsonl").write_text(metrics("wechsel"))
    text = comparison_table([weak, strong])
    assert "FullRand ends at perplexity 296, 49 % lower than WECHSEL (576)." in text
    assert "needs" not in text and "times fewer" not in text


def test_a_baseline_that_gets_there_has_its_steps_told(tmp_path, runs):
    scratch = make_run(tmp_path, "full_rand")
    later = {"kind": "eval", "step": 400, "loss": 5.0, "perplexity": 200.0, "tokens": 98304.0}
    (scratch / "metrics.jsonl").write_text(metrics("full_rand") + json.dumps(later) + "\n")
    assert "FullRand needs 326 steps to reach the 296 that WECHSEL has after 200." in comparison_table([runs[0], scratch])


def test_runs_of_different_length_are_compared_where_both_are(tmp_path, runs):
    going = make_run(tmp_path, "full_rand", last=100)
    text = comparison_table([runs[0], going])
    assert "WECHSEL stands after 100 steps at perplexity 421, 53 % lower than FullRand (905)." in text
    assert "FullRand is running: step 100 of 200, about 1 min 10 s left." in text


def test_what_a_probe_chose_is_said(tmp_path, runs):
    scratch = make_run(tmp_path, "full_rand")
    report = Report(read_runs([runs[0], scratch]), ComparisonRecord(chosen=scratch.name))
    assert "The probe chose FullRand." in [plain(sentence) for sentence in evidence(report)]


def test_a_tie_has_no_winner(tmp_path):
    same = [make_run(tmp_path, "wechsel", name=name, seed=i) for i, name in enumerate("ab")]
    assert plain(headline(Report(read_runs(same)))) == "WECHSEL, seed 0 and WECHSEL, seed 1 are level at perplexity 296."


@pytest.mark.parametrize(
    ("name", "old", "new", "told"),
    [
        ("metrics.jsonl", "98304.0", "5000.0", "another tokenizer or text"),
        ("config.json", "clm", "mlm", "different objectives"),
    ],
)
def test_what_cannot_be_compared_is_not(tmp_path, runs, name, old, new, told):
    other = make_run(tmp_path, "full_rand")
    (other / name).write_text((other / name).read_text().replace(old, new))
    text = comparison_table([runs[0], other])
    assert told in text and "*" not in text and "lower than" not in text and "needs" not in text


def test_one_run_tells_how_far_it_came(runs):
    report = Report(read_runs(runs[:1]))
    assert plain(headline(report)) == "WECHSEL goes from perplexity 5,806 to 296 in 200 steps."
    assert evidence(report) == []


def test_runs_without_a_common_evaluation_have_no_winner(tmp_path, runs):
    odd = make_run(tmp_path, "full_rand")
    (odd / "metrics.jsonl").write_text('{"kind": "eval", "step": 33, "loss": 6, "perplexity": 500, "tokens": 98304}\n')
    assert "none can be called best" in comparison_table([runs[0], odd])
