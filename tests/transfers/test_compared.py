"""A comparison gives each method what it reads: its transfers, with the training left out."""

import json

import numpy as np
import pytest
from ml_collections import ConfigDict
from transformers import AutoTokenizer

from wechsel_jax.checkpoint import Checkpoint
from wechsel_jax.comparison import compare, default_config, inputs, run, scoring, tuning
from wechsel_jax.errors import UserError
from wechsel_jax.initializers import TransferPlan
from wechsel_jax.records import TransferRecord
from wechsel_jax.records.scores import ScoresRecord
from wechsel_jax.report import write_report


class Training(Exception):
    pass


@pytest.fixture
def config(world, source, helper):
    config = default_config()
    config.source, config.dictionary = str(source), str(world.dictionary)
    config.text.train = config.text.validation = (str(world.root / "german.txt"),)
    config.text.source = (str(world.root / "english.txt"),)
    config.tokenizer.directory = str(world.tokenizer("german", "gpt2"))
    config.training.block_length = 32
    config.vectors.source, config.vectors.target = (str(world.vectors(language)) for language in ("english", "german"))
    config.helper.checkpoint = str(helper)
    # Pairs of words are parallel text too.
    config.parallel = (str(world.dictionary),)
    config.variants = {
        "regressed": {"method": "wechsel_tfr", "regression": True},
        "translated": {"method": "trans_tokenization", "least_count": 1},
    }
    return config


# Four transfers, of which one trains vectors: the only test that follows what a comparison gives each method.
def test_variants_and_methods_get_what_they_read(config, source, tmp_path, monkeypatch):
    def train(*arguments, **options):
        raise Training

    monkeypatch.setattr(run, "train", train)
    config.methods = ("regressed", "translated", "sava", "tokalign")
    with pytest.raises(Training):
        compare(config, tmp_path / "run")
    places = {name: tmp_path / "run" / name / "transfer" for name in config.methods}
    # What the comparison made itself can be copied from nowhere.
    for file in (places["sava"] / "model.safetensors", tmp_path / "run" / "tokenizer" / "tokenizer.json"):
        whole = file.read_bytes()
        file.write_bytes(whole[:100])
        with pytest.raises(UserError, match=f"or remove {file.parent}: the same command makes it again"):
            compare(config, tmp_path / "run")
        file.write_bytes(whole)
    records = {name: TransferRecord.read(place) for name, place in places.items()}
    plans = {name: TransferPlan.load(place / "transfer_plan.npz") for name, place in places.items()}
    assert not [note for record in records.values() for note in record.notes if "was given" in note or "frequencies" in note]
    assert [record.method for record in records.values()] == ["wechsel_tfr", "trans_tokenization", "sava", "tokalign"]
    assert records["regressed"].settings["regression"] is True and plans["regressed"].basis is not None
    assert records["translated"].settings["parallel"] == [config.parallel[0]] and records["translated"].counts["mixed"] > 100
    assert plans["sava"].basis is not None and records["sava"].counts["random"] == 0
    # Each new row is that of one source token.
    plan, old = plans["tokalign"], Checkpoint.open(source)
    rows, made = old.read(old.table), Checkpoint.open(places["tokalign"])
    mixed, copied = plan.is_mixed, plan.copy >= 0
    table = made.read(made.table)
    np.testing.assert_array_equal(table[mixed], rows[plan.neighbors[mixed, 0]])
    np.testing.assert_array_equal(table[copied], rows[plan.copy[copied]])
    assert mixed.sum() > 10 < copied.sum() and 0 < records["tokalign"].similarity["mean_top1"] <= 1
    card = (places["tokalign"] / "README.md").read_text(encoding="utf-8")
    assert "tokenizers cut the same text" in card and "at most 300 shared tokens" in card and "rotation" not in card
    page = write_report([places["tokalign"]], tmp_path / "page.html").read_text(encoding="utf-8")
    assert "described by how similar it is to the shared ones" in page and "One rotation" not in page


def test_what_a_variant_brings_itself_is_neither_asked_for_nor_made(config, world, helper, tmp_path, monkeypatch):
    config.vectors.source = config.vectors.target = config.dictionary = config.helper.checkpoint = ""
    english, german = (str(world.vectors(language)) for language in ("english", "german"))
    both = {"source_vectors": english, "target_vectors": german}
    config.variants = {
        "own": {"method": "wechsel_tfr", "dictionary": str(world.dictionary), **both},
        "helped": {"method": "sava", "helper": str(helper)},
        # Vectors of words, where it would else have those of tokens.
        "focused": {"method": "focus", "target_vectors": german},
    }
    config.methods = ("own", "helped", "focused")

    def transfer(source, tokenizer, place, **given):
        seen[place.parent.name] = given
        place.mkdir(parents=True)

    def train(*arguments, **options):
        raise Training

    seen: dict[str, dict] = {}
    monkeypatch.setattr(run, "transfer", transfer)
    monkeypatch.setattr(run, "train", train)
    with pytest.raises(Training):
        compare(config, tmp_path / "run")
    assert {name: seen["own"][name] for name in both} == both and seen["own"]["dictionary"] == str(world.dictionary)
    assert seen["helped"]["helper"] == str(helper) and seen["focused"]["target_vectors"] == german
    assert not (tmp_path / "run" / "vectors").exists() and not (tmp_path / "run" / "helper").exists()


def test_one_setting_says_how_all_text_is_read(config, tmp_path, monkeypatch):
    """What is stood in for are trainings, of models and of vectors; the oracle is the text that is in the tokens."""
    lines = [f"Das ist Zeile {i}.\nUnd noch eine." for i in range(60)]
    for language in ("german", "english"):
        held = "".join(json.dumps({"body": line}) + "\n" for line in (*lines, *lines[:20]))
        (tmp_path / f"{language}.jsonl").write_text(held)
    (tmp_path / "held.txt").write_text("Ein Satz.\nNoch einer.\n\nDer letzte.\n")
    vectors, transfers = {}, {}

    def train_vectors(text, output, **options):
        vectors[output.stem] = options
        output.parent.mkdir(exist_ok=True)
        output.write_bytes(b"")

    def transfer(_source, _tokenizer, output, *, method, **settings):
        transfers[output.parent.name] = settings
        output.mkdir(parents=True)
        (output / "transfer.json").write_text(json.dumps({"method": method, "name": output.parent.name}))

    def train(*arguments):
        raise Training

    for place, stand_in in ((run, train), (run, transfer), (inputs, train_vectors), (tuning, train)):
        monkeypatch.setattr(place, stand_in.__name__, stand_in)
    config.text.train = (str(tmp_path / "german.jsonl"),)
    config.text.source, config.text.validation = (str(tmp_path / "english.jsonl"),), (str(tmp_path / "held.txt"),)
    config.tokenizer = {"directory": "", "vocabulary_size": 300, "algorithm": "byte_bpe", "style": "gpt2"}
    config.vectors.train_here = True
    config.variants.sampled = {"method": "focus", "target_vectors": "sample", "token_vectors": "tfr"}
    config.variants.own = {"method": "tokalign", "text_field": "other", "max_document_bytes": 999}
    config.methods = ("wechsel", "focus", "tokalign", "sampled", "own", "full_rand")
    config.training.data.update(text_field="body", documents="paragraphs", deduplicate=True, max_document_bytes=300)
    config.training.data.max_bytes = 10_000
    config.tuning.rates, config.tuning.held_out = (1e-3,), 0.5
    with pytest.raises(Training):
        compare(config, tmp_path / "run")
    alike = {"text_field": "body", "max_document_bytes": 300}
    assert sorted(vectors) == ["native", "sample", "source", "target"]
    assert all(alike.items() <= vectors[name].items() for name in ("native", "source", "target"))
    # What is written for them here has a field of its own.
    assert "text_field" not in vectors["sample"]
    assert alike.items() <= transfers["tokalign"].items()
    assert {"text_field": "other", "max_document_bytes": 999}.items() <= transfers["own"].items()
    # To a method that reads no text nothing is said, so that no note is made of it.
    assert transfers["full_rand"]["text_field"] == "text"
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "run" / "tokenizer")
    assert len(tokenizer.tokenize(" Zeile")) == 1 and len(tokenizer.tokenize(" body")) > 1

    def documents(side):
        ids = np.fromfile(tmp_path / "run" / "data" / side / "tokens.bin", "<u2")
        return tokenizer.decode(ids).split("<|endoftext|>")[:-1]

    assert documents("train") == lines and documents("validation") == ["Ein Satz.\nNoch einer.", "Der letzte."]
    sides = [documents(f"tuning/{side}") for side in ("train", "validation")]
    assert sorted(sides[0] + sides[1]) == sorted(lines) and all(sides)


def test_tasks_that_cannot_be_asked_are_found_before_any_training(config, tmp_path, monkeypatch):
    def train(*arguments, **options):
        raise Training

    monkeypatch.setattr(run, "train", train)
    (tmp_path / "text.txt").write_text("Ein Satz.\n")
    item = {"context": "Was ist alt?", "choices": [" Haus" * 40, " Meer"], "answer": 0}
    (tmp_path / "questions.jsonl").write_text(json.dumps(item) + "\n")
    config.methods, config.evaluation.before = ("full_rand",), True
    config.evaluation.tasks = ConfigDict({"text": {"form": "text", "file": str(tmp_path / "text.txt")}})
    with pytest.raises(Training):
        compare(config, tmp_path / "run")
    scores = ScoresRecord.read(tmp_path / "run" / "scores.json").scores
    assert [(score.model, score.task) for score in scores] == [("source", "text"), ("full_rand untrained", "text")]
    config.evaluation.tasks.questions = ConfigDict({"form": "choice", "file": str(tmp_path / "questions.jsonl")})
    with pytest.raises(UserError, match=r"questions: .*questions\.jsonl: line 1: .* expected at most the 32 that .* can read"):
        compare(config, tmp_path / "run")


def test_a_method_without_its_parallel_text_is_refused(config, tmp_path):
    config.parallel, config.methods = (), ("translated",)
    with pytest.raises(UserError, match="parallel: no file given, which trans_tokenization reads; expected parallel text"):
        compare(config, tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"transfer": {"keep_source": True}}, "keep_source: regressed would have other tokens than the text"),
        ({"variants": {"regressed": {"keep_source": True}}}, "keep_source: regressed would have other tokens than the text"),
        (
            {"training": {"objective": "mlm_nsp"}},
            r"training\.objective: is 'mlm_nsp', which reads more than text; expected clm",
        ),
        ({"training": {"data": {"validation_fraction": 0.1}}}, r"validation_fraction: text\.validation names files already"),
        # What does not fit the source, and what methods read, before the first of them is made.
        ({"training": {"objective": "mlm"}}, r"training\.objective: mlm of regressed does not fit .*, a gpt2; expected clm"),
        # Which of the trainings it is.
        ({"training": {"batch_size": 0}}, r"training, of regressed: batch_size: is 0; expected"),
        ({"training": {"block_length": 4096}}, r"training\.block_length: 4096 of regressed is more than the \d+ positions of"),
        ({"methods": ("translated",), "parallel": ("nowhere.tsv",)}, r"nowhere\.tsv: no such file"),
        ({"methods": ("sava",), "helper": {"checkpoint": ""}}, r"helper\.training, of a helper for sava: model: neither"),
        (
            {"methods": ("trelm",), "vectors": {"train_here": True}},
            r"vectors\.dimensions: is 100, and .* has rows of \d+; expected as many for trelm",
        ),
        (
            {
                **{"methods": ("sampled",), "variants": {"sampled": {"method": "wechsel", "target_vectors": "sample"}}},
                **{"text": {"words": (__file__,)}},
            },
            r"variants\.sampled\.target_vectors: sample is of the text that is trained on, whose words text\.words tells apart",
        ),
        # What is refused must not be found after the transfers, or not at all.
        ({"training": {"seeds": 3}}, r"training\.seeds: is 3 for regressed, whose runs begin with its transfer"),
        ({"training": {"fork": "run/checkpoints/5"}}, r"training\.fork: is 'run/checkpoints/5' for regressed"),
        ({"training": {"seed": 5}}, r"training\.seed: is 5; expected it as `seed`, 0"),
        ({"training": {"model": {"checkpoint": "gpt2"}}}, r"training\.model\.checkpoint: is 'gpt2'; expected none: each run"),
        ({"training": {"data": {"train": ("a.txt",)}}}, r"training\.data\.train: is \['a\.txt'\]; expected none: each run"),
        ({"methods": "anker"}, r"methods: is 'anker'; expected a tuple of names"),
        *(
            ({"methods": (name,), "variants": {name: {"method": "fvt"}}}, f"methods: '{name}' cannot name a run's folder")
            for name in ("data", "tokenizer", "compiled", "a/b", "keep")
        ),
        ({"source": ""}, "source: is empty; expected the directory or the hub id"),
        (
            {"tokenizer": {"vocabulary_size": None}},
            r"tokenizer\.vocabulary_size: is None; expected a whole number of",
        ),
        (
            {"tokenizer": {"directory": "", "algorithm": "bogus"}},
            "tokenizer: bogus: unknown algorithm for a tokenizer; expected one of",
        ),
        ({"tokenizer": {"directory": "/nowhere"}}, "tokenizer: /nowhere: no such file or directory"),
        ({"vectors": {"epochs": -1}}, r"vectors\.epochs: is -1; expected a whole number of at least 1"),
        ({"transfer": {"map": (5,)}}, r"transfer\.map \(5,\): expected names"),
        ({"transfer": {"center": "yes"}}, r"transfer\.center 'yes': expected True or False"),
        ({"methods": ("translated",), "parallel": ("a.tsv::",)}, r"a\.tsv::: expected a file, or two as FIRST::SECOND"),
        ({"dictionary": ""}, "dictionary: no file given, which regressed reads; expected a dictionary of word pairs"),
        ({"vectors": {"target": ""}}, r"vectors\.target: no file given, which regressed reads; expected word vectors"),
        ({"variants": {"regressed": {"source_vectors": "nowhere.bin"}}}, r"nowhere\.bin: no such file; expected word vectors"),
        ({"variants": {"x": 3}}, r"variants\.x: is 3; expected a ConfigDict of settings"),
        ({"overrides": {"regressed": 3}}, r"overrides\.regressed: is 3; expected a ConfigDict of settings"),
        ({"evaluation": {"during": 0.5}}, r"evaluation\.during: is 0\.5; expected a tuple of numbers"),
        ({"evaluation": {"during": ("0.5",)}}, r"evaluation\.during: is \('0\.5',\); expected a tuple of numbers"),
        (
            {"evaluation": {"during": (0.5,)}, "training": {"steps": 8, "keep_every": 3}},
            r"evaluation\.during: 0\.5 of 8 steps has no checkpoint of regressed that stays; .* training\.keep_every=3",
        ),
        # One method's settings are its own.
        (
            {
                **{"evaluation": {"during": (0.5,)}, "training": {"steps": 8, "keep_every": 4}},
                **{"overrides": {"regressed": {"keep_every": 0}}},
            },
            r"has no checkpoint of regressed that stays; .* training\.keep_every=0",
        ),
        ({"tuning": {"rates": ("a",)}}, r"tuning\.rates: is \['a'\]; expected a tuple of numbers"),
        ({"tuning": {"rates": 1e-3}}, r"tuning\.rates: is 0\.001; expected a tuple of numbers"),
        ({"tuning": {"rates": (1e-3,), "tables": ()}}, r"tuning\.tables: is \[\]; expected a tuple of numbers"),
        ({"tuning": {"rates": (1e-3,), "held_out": "all"}}, r"tuning\.held_out: is 'all'; expected a share of the text"),
    ],
)
def test_settings_that_cannot_be_compared_or_tuned_are_refused_before_any_work(config, tmp_path, changes, message):
    config.methods = ("regressed",)
    with config.ignore_type(), config.unlocked():
        config.update(changes)
    with pytest.raises(UserError, match=message):
        compare(config, tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_what_a_variant_from_scratch_needs_is_told_and_starts_are_told_by_their_place(tmp_path, monkeypatch):
    """Whatever a variant is called: the run from scratch is known by its method, a start by where it lies."""
    config = default_config()
    config.variants = ConfigDict({"scratch": {"method": "full_rand"}, "a untrained": {"method": "mean"}})
    config.methods, config.evaluation.before = ("scratch", "a untrained"), True
    for method, name, values in (("full_rand", "scratch", (100, 10)), ("mean", "a untrained", (50, 5))):
        (tmp_path / name / "transfer").mkdir(parents=True)
        TransferRecord(method=method).write(tmp_path / name / "transfer")
        lines = ({"kind": "eval", "step": step, "perplexity": value} for step, value in zip((0, 10), values, strict=True))
        (tmp_path / name / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    found = run._write_results(config, tmp_path, {})
    assert {*found["steps_needed"]} == {"a untrained"} and 0 < found["steps_needed"]["a untrained"][0] < 10
    scored = []
    monkeypatch.setattr(scoring, "evaluate", lambda models, tasks, **options: scored.extend(models))
    scoring.score_starts(config, tmp_path)
    assert scored == ["source", "scratch untrained", "a untrained untrained"]
