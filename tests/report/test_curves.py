import dataclasses
import json
import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.records.runs import CURVES, STEPS
from wechsel_jax.errors import UserError
from wechsel_jax.records import Evaluation, RunRecord, read_run
from wechsel_jax.report import steps_needed
from wechsel_jax.report.curves import BITS, PERPLEXITY, best_at, chosen_steps, head_start, incomparable, leader, measure
from wechsel_jax.report.headline import evidence
from wechsel_jax.report.runs import Report, read_runs

CURVE = {method: list(zip(STEPS, values, strict=True)) for method, values in CURVES.items()}
positive = st.floats(1.5, 1e6)


def test_steps_needed_is_linear_in_the_logarithm():
    curve = [(0, 1000.0), (100, 10.0)]
    assert steps_needed(curve, [(0, 2000.0), (1, 1000.0), (2, 100.0), (3, 10.0), (4, 9.99)]) == pytest.approx(
        [0.0, 0.0, 50.0, 100.0, None], abs=1e-9
    )


def test_steps_needed_of_bits_is_linear_in_them():
    curve = [(0, 3.0), (100, 2.0)]
    assert steps_needed(curve, [(0, 3.5), (1, 2.25), (2, 1.9)], BITS.linear) == pytest.approx([0.0, 75.0, None])


def test_steps_needed_takes_the_first_crossing_and_skips_values_that_are_not_finite():
    curve = [(0, 1000.0), (10, None), (20, 100.0), (30, 500.0), (40, math.inf), (50, 50.0)]
    assert steps_needed(curve, [(0, 100.0), (5, 400.0), (9, None), (9, math.inf)]) == pytest.approx(
        [20.0, 20 * math.log(2.5) / math.log(10), None, None]
    )
    assert steps_needed([], [(0, 5.0)]) == [None]


@given(st.lists(positive, min_size=2, max_size=12, unique=True), positive)
def test_steps_needed_agrees_with_numpy_on_falling_curves(values, wanted):
    values = sorted(values, reverse=True)
    curve = [(10 * i, value) for i, value in enumerate(values)]
    found = steps_needed(curve, [(0, wanted)])[0]
    if wanted < values[-1]:
        assert found is None
    else:
        logs = np.log(values)[::-1]
        assert found == pytest.approx(np.interp(math.log(wanted), logs, [step for step, _ in curve][::-1]), abs=1e-5)


def test_head_start_of_the_measured_run(runs):
    wechsel, _, scratch = map(read_run, runs)
    reached, last, value = head_start(wechsel, scratch, PERPLEXITY)
    assert (last, value) == (200, 576)
    assert reached == pytest.approx(50 + 25 * math.log(655 / 576) / math.log(655 / 500))
    assert head_start(scratch, wechsel, PERPLEXITY) is None


def test_best_needs_a_rival_and_knows_ties(runs):
    wechsel, inner, scratch = map(read_run, runs)
    assert best_at([wechsel, inner, scratch], 25, PERPLEXITY) == [wechsel]
    assert best_at([inner, scratch], 25, PERPLEXITY) == [scratch]
    assert best_at([wechsel], 25, PERPLEXITY) == []
    assert best_at([wechsel, wechsel], 25, PERPLEXITY) == [wechsel, wechsel]


def test_runs_on_other_text_or_of_another_tokenizer_have_no_leader(runs):
    def read(text: str, tokenizer: str, run: str = runs[0]):
        return dataclasses.replace(read_run(run), data={"validation": {"sha256": text, "tokenizer": {"sha256": tokenizer}}})

    one, alike = read("a", "t"), read("a", "t", runs[1])
    assert incomparable([one, alike], PERPLEXITY) is None and leader([one, alike], PERPLEXITY) == one
    for other, what in ((read("b", "t", runs[1]), "held-out text"), (read("b", "u", runs[1]), "tokenizers")):
        assert (
            incomparable([one, other], PERPLEXITY) == f"The runs have different {what}; their perplexities cannot be compared."
        )
        assert leader([one, other], PERPLEXITY) is None
    # The first runs left no manifest, and one may have null for what it does not tell.
    assert incomparable([one, read_run(runs[1])], PERPLEXITY) is None
    untold = dataclasses.replace(one, data={"validation": {"sha256": "b", "tokenizer": None}})
    assert "different held-out text" in incomparable([one, untold], PERPLEXITY)
    files = [dataclasses.replace(one, data={"validation": {"inputs": [{"name": None, "sha256": text}]}}) for text in "ab"]
    with pytest.raises(UserError, match="was scored on other held-out text"):
        read_runs([files[0], dataclasses.replace(files[1], path=runs[1])])
    # Text that was prepared elsewhere has none here, but the run says which it was.
    (runs[1] / "data").mkdir()
    (runs[1] / "data" / "fingerprints.json").write_text(json.dumps({"validation": "b", "tokenizer": "t", "versions": {}}))
    assert "different held-out text" in incomparable([one, read_run(runs[1])], PERPLEXITY)


def made(name, points=(), inputs=(), **config) -> RunRecord:
    manifest = {"sha256": name, "inputs": [{"sha256": one} for one in inputs]} if inputs else {}
    return RunRecord(Path(name), name, config=config, evaluations=tuple(points), data={"validation": manifest})


def test_runs_on_other_training_text_are_told(runs):
    def read(run: Path, side: str, *texts: str) -> RunRecord:
        return dataclasses.replace(read_run(run), data={side: {"inputs": [{"sha256": text} for text in texts]}})

    told = "The runs were trained on different text, so more than what they began with differs."
    for texts, differ in ((("a", "b"), True), (("a", "a"), False)):
        both = [read(run, "train", text) for run, text in zip(runs[:2], texts, strict=True)]
        assert (told in evidence(Report(both))) == differ


@pytest.mark.parametrize(
    ("objective", "name", "values", "told"),
    [
        ("clm", "block_length", (32, 512), "read other lengths of held-out text at once (block_length 32, 512)"),
        ("mlm", "block_length", (512, 32), "read other lengths of held-out text at once (block_length 32, 512)"),
        ("mlm", "mask_rate", (0.15, 0.4), "mask other shares of the held-out text (mask_rate 0.15, 0.4)"),
        ("clm", "mask_rate", (0.15, 0.4), None),
        ("translation", "block_length", (32, 512), None),
        ("clm", "block_length", (32, None), None),
    ],
)
def test_runs_whose_evaluations_ask_something_else_are_not_compared(objective, name, values, told):
    counted = [1000.0 * value for value in (0.15, 0.4)] if told and name == "mask_rate" else [1000.0] * 2
    runs = [
        made(str(value), (Evaluation(10, 50.0, tokens),), objective=objective, **{name: value})
        for value, tokens in zip(values, counted, strict=True)
    ]
    assert incomparable(runs, PERPLEXITY) == (told and f"The runs {told}; their perplexities cannot be compared.")


def test_scores_of_other_examples_are_not_compared():
    def scored(name, inputs, objective="tagging"):
        points = [Evaluation(10, math.inf, loss=0.5, score=0.5, metric="f1")]
        return made(name, points, inputs, objective=objective, block_length=len(name))

    with pytest.raises(UserError, match="b: was scored on other held-out text"):
        read_runs([scored("a", "x"), scored("b", "y")])
    # With another tokenizer and other lengths of rows they are the same examples.
    alike = read_runs([scored("a", "xy"), scored("longer", "yx")])
    assert incomparable(alike, PERPLEXITY) is None
    assert incomparable([scored("a", "x"), scored("b", "x", "parsing")], PERPLEXITY).endswith(
        "their scores cannot be compared."
    )


def test_runs_are_measured_in_what_all_of_them_recorded():
    bits = [Evaluation(0, 50.0, loss=4.0, bits_per_byte=2.0), Evaluation(5, math.inf, loss=900.0, bits_per_byte=325.0)]
    lost = Evaluation(9, math.inf)
    one, other = made("a", [*bits, lost]), made("b", [Evaluation(0, 50.0, loss=4.0)])
    labelled = made("c", [Evaluation(0, math.inf, loss=1.0, score=0.5)])
    assert measure([one]) is measure([one, labelled]) is BITS and measure([one, other]) is measure([]) is PERPLEXITY
    # What overflows as a perplexity has its place in bits, what is not finite has none.
    assert BITS.curve(one) == [(0, 2.0), (5, 325.0)] and PERPLEXITY.curve(one) == [(0, 50.0)]
    assert [BITS.at(one, step) for step in (5, 9, 10)] == [325.0, math.inf, None]
    assert [BITS.number(value) for value in (2.0, math.inf, None)] == ["2.000", "∞", "–"]


def test_an_evaluation_is_looked_up():
    """Tables ask for every step of every run."""

    class Counted(tuple):
        read = 0

        def __iter__(self):
            Counted.read += 1
            return super().__iter__()

    run = dataclasses.replace(made("a"), evaluations=Counted(Evaluation(i, 50.0 + i, bits_per_byte=1.0) for i in range(50)))
    Counted.read = 0
    assert [PERPLEXITY.at(run, i) for i in range(51)] == [*(50.0 + i for i in range(50)), None]
    assert [BITS.at(run, i) for i in (0, 49, 50)] == [1.0, 1.0, None]
    assert Counted.read == 1


def test_chosen_steps_keep_both_ends():
    assert chosen_steps(range(5), 9) == [0, 1, 2, 3, 4]
    chosen = chosen_steps(range(1001), 25)
    assert len(chosen) == 25 and chosen[0] == 0 and chosen[-1] == 1000 and chosen == sorted(set(chosen))
