"""What `configs/anker.py` compares and `benchmarks/anker.py` makes of it."""

import json
import shutil
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from benchmarks import anker
from tests.records.runs import record as transfer_record
from tests.test_configs import load
from wechsel_jax import demo
from wechsel_jax.comparison.settings import transfer_settings
from wechsel_jax.errors import UserError
from wechsel_jax.training.config import phases
from wechsel_jax.transfers.settings import described_settings

ANKER = [[0, 800.0], [50, 400.0], [100, 200.0]]
WECHSEL = [[0, 3200.0], [50, 800.0], [100, 400.0], [150, 100.0]]


def write_run(
    folder: Path, curves: dict[str, list], steps: int = 200, objective: str = "clm", warmup=0.3, rate=1.5e-3, seed=0
) -> None:
    for name, curve in curves.items():
        record = transfer_record("wechsel") | {
            "alignment": {"precision_at_1": 0.25, "rounds": [{"anchors": 7}, {"anchors": 9}]} if name == "anker" else None,
            "timings": {"a": 1.0, "b": 2.0},
            "settings": {"rounds": 2, "seed": 0},
        }
        (folder / name / "transfer").mkdir(parents=True)
        (folder / name / "transfer" / "transfer.json").write_text(json.dumps(record))
        lines = [{"kind": "eval", "step": step, "perplexity": perplexity} for step, perplexity in curve]
        (folder / name / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    training = {"steps": steps, "batch_size": 16, "block_length": 128, "objective": objective}
    training |= {"phases": [{"warmup": warmup}], "optimizer": {"peak_learning_rate": rate}}
    (folder / "comparison.json").write_text(json.dumps({"methods": {name: {} for name in curves}, "machine": "a machine"}))
    # A method that has not begun is left out.
    settings = {"seed": seed, "training": training, "methods": [*curves, "full_rand"]}
    (folder / "config.json").write_text(json.dumps(settings))


@pytest.fixture
def result(tmp_path) -> dict:
    write_run(tmp_path / "sw-0", {"anker": ANKER})
    write_run(tmp_path / "sw-0-more", {"wechsel": WECHSEL})
    write_run(tmp_path / "sw-1", {"anker": [[0, 400.0], [50, 300.0], [100, 200.0]], "wechsel": WECHSEL}, seed=1)
    write_run(tmp_path / "sw-0-variants", {"anker_shuffled": [[0, 900.0], [1, 700.0]]}, steps=1)
    write_run(tmp_path / "sw-0-long", {"anker": [[0, 800.0], [1000, 50.0]], "wechsel": [[0, 3200.0], [1000, 60.0]]}, steps=1000)
    write_run(tmp_path / "sw-0-masked", {"anker": ANKER, "wechsel": WECHSEL}, objective="mlm")
    write_run(tmp_path / "sw-0-soon", {"anker": ANKER, "wechsel": WECHSEL}, warmup=0.1)
    write_run(tmp_path / "sw-0-cool", {"anker": ANKER, "wechsel": WECHSEL}, rate=7.5e-5)
    return json.loads(json.dumps(anker.gather(tmp_path)))


def test_saved_steps_are_found_on_the_curves(result):
    """Seed 0: 800 is anker's start, 400 its step 50; 100 it never reaches. Seed 1 starts at 400 already."""
    saved = result["saved"]["sw"]["wechsel"]
    assert [entry["step"] for entry in saved] == [0, 50, 100, 150]
    assert [entry["needed"] for entry in saved] == [[0.0, 0.0], [0.0, 0.0], [50.0, 0.0], [None, None]]
    assert [entry["factor"] for entry in saved] == [None, None, 4.0, None]
    assert [entry["tokens"] for entry in saved] == [0, 50 * 2048, 75 * 2048, None]


def test_a_seed_that_never_gets_there_counts_as_never(result):
    """Seed 1 reaches 100, seed 0 does not: no mean of those that do."""
    seeds = result["languages"]["sw"]
    seeds["1"]["anker"]["evaluations"].append([150, 90.0])
    last = anker._saved(seeds, 2048)["wechsel"][-1]
    assert last["needed"][0] is None and last["needed"][1] is not None
    assert last["factor"] is None and last["tokens"] is None and anker._needed_cell(last) == "never in 1 of 2 seeds"


def test_gathered_runs_keep_languages_seeds_and_variants_apart(result):
    assert set(result["languages"]) == {"sw", "sw-1000", "sw-roberta", "sw-warmup0.1", "sw-rate0.000075"}
    assert set(result["step_zero"]) == {"sw", "sw-roberta"}
    assert set(result["languages"]["sw"]) == {"0", "1"} and "anker_shuffled" not in result["languages"]["sw"]["0"]
    assert set(result["step_zero"]["sw"]["0"]) == {"anker", "wechsel", "anker_shuffled"}
    assert result["languages"]["sw"]["0"]["anker"]["anchors"] == [7, 9]
    assert result["step_zero"]["sw"]["0"]["anker"]["perplexity"] == 800.0
    assert result["languages"]["sw"]["0"]["wechsel"]["transfer_seconds"] == 3.0
    assert result["languages"]["sw"]["0"]["anker"]["settings"] == {"rounds": 2}


def test_gathered_again_other_runs_stay(result, tmp_path):
    """One run again, with another result: it is replaced, and what is saved follows; the rest is as it was."""
    write_run(tmp_path / "again" / "sw-1", {"anker": [[0, 300.0], [50, 200.0], [100, 100.0]]}, seed=1)
    merged = json.loads(json.dumps(anker.gather(tmp_path / "again", json.loads(json.dumps(result)))))
    assert merged["languages"]["sw"]["1"]["anker"]["evaluations"][0] == [0, 300.0]
    assert merged["step_zero"]["sw"]["1"]["anker"]["perplexity"] == 300.0
    assert [entry["needed"] for entry in merged["saved"]["sw"]["wechsel"]] == [
        [0.0, 0.0],
        [0.0, 0.0],
        [50.0, 0.0],
        [None, 100.0],
    ]
    assert merged["languages"]["sw"]["1"]["wechsel"] == result["languages"]["sw"]["1"]["wechsel"]
    for name in ("sw-1000", "sw-roberta"):
        assert merged["languages"][name] == result["languages"][name]
    assert merged["machines"] == result["machines"] and merged["training"] == result["training"]


def test_a_run_that_has_not_ended_is_left_out(tmp_path):
    write_run(tmp_path / "sw-0", {"anker": ANKER, "wechsel": WECHSEL})
    write_run(tmp_path / "sw-1", {"anker": ANKER, "wechsel": WECHSEL[:2]}, seed=1)
    for name in ("anker", "wechsel"):
        # WECHSEL is to be trained for more than there is.
        (tmp_path / "sw-1" / name / "config.json").write_text(json.dumps({"steps": 100}))
    result = anker.gather(tmp_path)
    assert {*result["languages"]["sw"]["1"]} == {"anker"} == {*result["step_zero"]["sw"]["1"]}
    assert [len(entry["needed"]) for entry in result["saved"]["sw"]["wechsel"]] == [1] * 4


def test_a_seed_is_that_of_the_settings_and_has_one_run(tmp_path):
    write_run(tmp_path / "sw-0", {"anker": ANKER}, seed=7)
    assert {*anker.gather(tmp_path)["languages"]["sw"]} == {"7"}
    write_run(tmp_path / "sw-7", {"anker": ANKER}, seed=7)
    with pytest.raises(UserError, match=r"sw-7: has anker of sw with seed 7, and \S+sw-0 too; expected each once"):
        anker.gather(tmp_path)


def test_seeds_that_were_evaluated_at_other_steps_are_refused(tmp_path):
    write_run(tmp_path / "sw-0", {"anker": ANKER})
    write_run(tmp_path / "sw-1", {"anker": ANKER[:2]}, seed=1)
    with pytest.raises(UserError, match=r"anker of sw: was evaluated at steps \[0, 50\] with seed 1; expected \[0, 50, 100\]"):
        anker.gather(tmp_path)


def test_a_folder_without_workdirs_is_refused(tmp_path):
    with pytest.raises(UserError, match="nowhere: no such directory"):
        anker.gather(tmp_path / "nowhere")
    with pytest.raises(UserError, match="holds no workdirs"):
        anker.gather(tmp_path)
    write_run(tmp_path / "swahili-0", {"anker": ANKER})
    with pytest.raises(UserError, match="its folder names no known language"):
        anker.gather(tmp_path)


def test_tables_say_mean_spread_and_what_is_never_reached(result):
    assert "| Swahili | `anker` | 2 | 600 ± 283 |" in anker.curves_table(result)
    short, long = anker.saved_table(result).split("\n\n")
    assert short.splitlines()[2].startswith("| Swahili | `wechsel`, centred | 0 | 0 | 25 (4.00 x) |")
    assert short.splitlines()[3].startswith("| Swahili, rate 0.000075 | `wechsel`, centred | 0 |")
    assert short.splitlines()[4].startswith("| Swahili, RoBERTa | `wechsel`, centred | 0 |")
    assert short.splitlines()[5].startswith("| Swahili, warm-up of 10% | `wechsel`, centred | 0 |")
    assert long.splitlines()[0] == "| language | method | its step 0 | its step 1,000 |"
    assert long.splitlines()[2].startswith("| Swahili, 1,000 steps | `wechsel`, centred | 0 |")
    assert "| Swahili | `anker` | 800 | 7 to 9 | 0.250 |" in anker.zero_table(result).splitlines()
    assert "| Swahili | `anker_shuffled` | 900 |  |  |" in anker.zero_table(result).splitlines()


def test_ends_are_shown_by_length_at_the_best_rate(result):
    """anker: 80 after 200 steps, 20 after 800, so 40 at their geometric mean, 400. FullRand was run once and is left out."""
    languages = result["languages"]
    for setting, name, end in (
        ("sw-rate0.000075", "anker", 80.0),
        ("sw-rate0.000075", "wechsel", 90.0),
        ("sw-rate0.000075", "full_rand", 90.0),
        ("sw-800", "anker", 20.0),
        ("sw-800", "wechsel", 40.0),
    ):
        method = {**languages["sw"]["0"]["anker"], "evaluations": [[0, 800.0], [50, end]]}
        languages.setdefault(setting, {"0": {}})["0"][name] = method
    del languages["sw-1000"]
    assert anker.lengths_table(result).splitlines() == [
        "| language | method | 200 steps | 800 steps |",
        "|---|---|---:|---:|",
        "| Swahili | `anker` | 80 (7.5e-05 of 2) | 20 (0.0015 of 1) |",
        "| Swahili | `wechsel`, centred | 90 (7.5e-05 of 2) | 40 (0.0015 of 1); anker 400, 2.00 x |",
    ]


def test_picture_has_a_panel_a_language(result, tmp_path):
    from matplotlib import image

    def size(panels):
        anker.draw(list(panels), tmp_path / "drawn.png")
        return image.imread(tmp_path / "drawn.png").shape

    languages = result["languages"]
    one = size(anker.panels_of(languages))
    # Another model, another length, another warm-up and another rate.
    four = size(anker.more_panels_of(languages))
    # Anker alone has none.
    languages["sw-100"] = {"0": {"anker": languages["sw"]["0"]["anker"]}}
    # Parts and controls, and less text, have panels of their own.
    for name in ("anker_shuffled", "anker_text_1"):
        languages["sw"]["0"][name] = languages["sw"]["0"]["anker"]
    six = size(anker.more_panels_of(languages))
    del languages["sw-1000"], languages["sw-roberta"], languages["sw-warmup0.1"]
    three = size(anker.more_panels_of(languages))
    assert six[1] == three[1] == 3 * one[1] and four[1] == 2 * one[1]
    assert four[0] == six[0] == 2 * three[0] == 2 * one[0]
    # A variant that was run without anker beside it is drawn alone.
    languages = {"sw-2": {"0": {"anker_text_1": languages["sw"]["0"]["anker_text_1"]}}}
    assert [names for _, _, names in anker.more_panels_of(languages)] == [["anker_text_1"]]
    assert size(anker.more_panels_of(languages))[0] == one[0]


def test_smaller_dictionaries_are_of_the_most_frequent_words(monkeypatch):
    monkeypatch.setattr(anker, "SIZES", (2,))
    pairs = [("rare", "selten"), ("The", "der"), ("of", "von"), ("The", "der"), ("the", "die")]
    made = anker.smaller_dictionaries(pairs, Counter({"the": 9, "of": 5}))
    assert made["2"] == [("The", "der"), ("the", "die")]
    shuffled = made["shuffled"]
    assert [source for source, _ in shuffled] == ["rare", "The", "of", "the"]
    assert sorted(target for _, target in shuffled) == ["der", "die", "selten", "von"] and shuffled != pairs[:3] + pairs[4:]


def test_both_matrices_train_every_method_alike():
    reduced, full = load("anker"), load("anker", "matrix=full,lang=vi,seed=2")
    assert reduced.methods == ("anker", "wechsel", "focus", "full_rand") and reduced.training.steps == 200
    assert set(full.methods) == {"anker", "wechsel", "wechsel_tfr", "focus", "ofa", "trans_inner", "full_rand"}
    assert (full.seed, full.text.train, full.training.steps) == (2, ("data/vi.train.txt",), 2000)
    # What may differ from method to method is the schedule, and only the two baselines' own.
    assert set(reduced.overrides) == {"full_rand"} and set(full.overrides) == {"trans_inner", "full_rand"}
    assert all(set(value) == {"phases"} for value in full.overrides.values())
    (phase,) = phases(reduced.training)
    assert (phase.warmup_steps, phase.decay, phase.peak) == (60, "linear", 1.5e-3)


def test_another_warm_up_is_for_all_methods():
    config = load("anker", "lang=sw,methods=anker+wechsel,warmup=0.1")
    assert phases(config.training)[0].warmup_steps == 20 and not config.overrides
    with pytest.raises(UserError, match=r"'warmup=soon' behind the colon; expected warmup to be a number"):
        load("anker", "lang=sw,warmup=soon")


def test_another_rate_is_for_all_methods():
    config = load("anker", "lang=sw,methods=anker+full_rand,rate=0.003")
    assert phases(config.training)[0].peak == 3e-3 and set(config.overrides["full_rand"]) == {"phases"}
    with pytest.raises(UserError, match=r"'rate=fast' behind the colon; expected rate to be a number"):
        load("anker", "lang=sw,rate=fast")


def test_variants_change_what_their_names_say():
    config = load("anker", "variants=1,data=d,lang=sw")
    assert set(config.variants) < set(config.methods) and config.training.steps == 1
    inputs = {"dictionary": config.dictionary, "source_text": ("s",), "target_text": ("t",)}
    settings = {
        name: transfer_settings(config, name, inputs) for name in config.methods if config.variants.get(name, {}).get("method")
    }
    assert settings["anker_dictionary_500"]["dictionary"] == "d/dictionaries/sw.500.tsv"
    assert settings["anker_no_learning"]["dictionary"] == "d/wechsel_wiktionary/swahili.tsv"
    assert settings["anker_dictionary_0"]["dictionary"] == "identical"
    assert settings["anker_text_4"]["text_bytes"] == 4 << 20
    assert settings["wechsel_calibrated"]["target_text"] == ("t",)
    assert all(set(value) <= set(described_settings()) for value in settings.values())


def test_a_masked_source_is_trained_masked():
    config = load("anker", "model=roberta,source=english-roberta,lang=ug")
    assert (config.source, config.training.objective, config.tokenizer.style) == ("english-roberta", "mlm", "roberta")
    assert load("anker").training.objective == "clm" and config.dictionary == "data/wechsel_wiktionary/uyghur.tsv"


def test_text_of_another_domain_is_counted_and_not_trained_on():
    config = load("anker", "domain=other,data=d,lang=zh")
    settings = transfer_settings(config, "anker_other_domain", {"source_text": ("s",), "target_text": ("t",)})
    assert [*settings["source_text"], *settings["target_text"]] == ["d/en_other.train.txt", "d/zh_other.train.txt"]
    assert config.text.train == ("d/zh.train.txt",) and config.methods[-1] == "anker_other_domain"
    with pytest.raises(UserError, match="domain=other: no such text of fr; expected lang to be de, sw, zh"):
        load("anker", "domain=other,lang=fr")


def test_trained_rows_come_with_the_body_of_before(tmp_path):
    run = tmp_path / "anker"
    for name in ("transfer", "export"):
        shutil.copytree(demo.path("english-gpt2"), run / name)
    before = load_file(run / "transfer" / "model.safetensors")
    (table,) = (name for name in before if name.endswith("wte.weight"))
    trained = {name: (values + 1).astype(np.float32) for name, values in before.items()}
    save_file(trained, run / "export" / "model.safetensors", {"format": "pt"})
    anker.main(["trained_rows", str(run), str(tmp_path / "made")])
    made = load_file(tmp_path / "made" / "model.safetensors")
    for name, values in before.items():
        np.testing.assert_array_equal(made[name], trained[name].astype(values.dtype) if name == table else values)
    config = load("anker", f"methods=trained_rows,source={tmp_path / 'made'}")
    assert config.variants.trained_rows.method == "mean" and "trained_rows" not in load("anker", "variants=1").methods
