"""What `benchmarks/trelm.py` holds out, and the table that it makes."""

import json
import random

import pytest

from benchmarks import trelm
from wechsel_jax.errors import UserError
from wechsel_jax.records.scores import Score, ScoresRecord


def test_no_sentence_of_the_held_out_pairs_is_trained_on():
    generator = random.Random(3)
    pairs = [(f"e{generator.randrange(150)}", f"d{generator.randrange(150)}") for _ in range(300)]
    kept, held_out = trelm.split([*pairs, *pairs[:9]])
    assert len({one for one, _ in held_out}) == round(0.04 * len({one for one, _ in pairs})) > 3
    assert {*held_out, *kept} <= {*pairs}
    for side in (0, 1):
        assert not {pair[side] for pair in kept} & {pair[side] for pair in held_out}
    # What is missing shares its German sentence with a pair that is held out.
    assert all(two in {other for _, other in held_out} for _, two in {*pairs} - {*kept} - {*held_out})
    assert sum(map(len, trelm.split(pairs, 20))) <= 20


def test_the_table_has_the_means_of_the_seeds():
    def run(byte, first):
        stage = {"bits_per_byte": byte, "bits_per_token": 2 * byte}
        ways = {way: {"precisions": [first, 2.0, 0.0, 0.0]} for way in trelm.WAYS}
        before = {"commonality": {name: value + 1 for name, value in stage.items()}}
        return {**before, **ways, "end": stage, "parsing": {"uas": first / 50, "las": first / 100}}

    plain = {"end": {"bits_per_byte": 3.0, "bits_per_token": 6.0}}
    result = {"runs": {"mlm": {"0": plain}, "trelm": {"0": run(1.0, 10.0), "1": run(2.0, 20.0)}}, "steps": 280}
    lines = trelm.table(result | {"machine": {"description": "a machine"}}).splitlines()
    cells = [[cell.strip() for cell in line.split("|")[3:-1]] for line in lines[2:4]]
    ways = "15.0 / 2.0 / 0.0 / 0.0"
    assert cells == [
        ["2", "1.500 ± 0.707", "3.000 ± 1.414", "4.000 ± 1.414", ways, ways, "30.0 ± 14.1", "15.0 ± 7.1"],
        ["1", "3.000", "6.000", "", "", "", "", ""],
    ]
    assert "after 280 steps" in lines[-1]
    # Table 5 is of the first phase alone.
    first = {"runs": {"trelm": {"3": {"commonality": {"bits_per_byte": 2.5, "bits_per_token": 10.0}}}}, "steps": 280}
    assert trelm.table(first | {"machine": {"description": "a machine"}}).splitlines()[:3] == [
        "| training | rows at the start | seeds | after phase 1 |",
        "|---|---|---:|---:|",
        "| TreLM | fastText, mapped by shared tokens | 1 | 10.000 |",
    ]


def test_parsers_of_a_seed_are_measured_against_each_other():
    def score(name, right):
        return Score(
            f"parsing-{name}", "trees", "labels", "las", {}, right, [4.0, 6.0], [], {}, {"weights": "", "tokenizer": ""}
        )

    runs = {"trelm-1": [3.0, 4.0], "tlm_plain-1": [2.0, 3.0], "tlm-2": [4.0, 6.0], "tlm_plain-2": [0.0, 0.0]}
    found = trelm.parsers(ScoresRecord(tuple(score(name, right) for name, right in runs.items())))
    assert found["1"] == {"trelm - tlm_plain": {"value": 0.2, "low": pytest.approx(1 / 6, abs=1e-4), "high": 0.25}}
    assert found["2"] == {"tlm - tlm_plain": {"value": 1.0, "low": 1.0, "high": 1.0}}
    with pytest.raises(UserError, match="parsing-tlm: expected parsing-RUN-SEED"):
        trelm.parsers(ScoresRecord((score("tlm", [1.0, 1.0]),)))


def test_fewer_pairs_are_other_settings(tmp_path):
    given = ["trelm", "--source=s", f"--data={tmp_path}", f"--workdir={tmp_path / 'w'}", f"--output={tmp_path / 'o.json'}"]
    command = "python -m benchmarks.trelm --source=DIR --data=DIR --workdir=DIR --steps=0.002"
    (tmp_path / "o.json").write_text(json.dumps({"command": command, "runs": {}}))
    trelm.VALUES([*given, "--pairs=20"])
    try:
        with pytest.raises(UserError, match="is of other settings"):
            trelm.main()
    finally:
        trelm.VALUES([*given, "--pairs=0", f"--output={trelm.OUTPUT}"])


def test_every_start_is_used_and_every_run_has_one():
    assert {rows for _, rows, _ in trelm.RUNS.values()} == {*trelm.STARTS}


def test_the_first_phase_alone_is_of_runs_that_have_one(tmp_path):
    given = ["trelm", "--source=s", "--data=d", f"--workdir={tmp_path}"]
    trelm.VALUES([*given, "--first_phase", "--runs=trelm,mlm"])
    with pytest.raises(UserError, match="--first_phase: mlm has no phases"):
        trelm.main()
    alone = trelm._steps()
    trelm.VALUES([*given, "--nofirst_phase"])
    assert (alone, trelm._steps()) == (40, 280) and not [*tmp_path.iterdir()]
