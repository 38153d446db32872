"""Rates that a comparison tunes; the training is stood in for by a formula, so that the best rate is known."""

import json
import math
import shutil
from pathlib import Path

import numpy as np
import pytest
from ml_collections import ConfigDict
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from wechsel_jax.comparison import default_config, run
from wechsel_jax.comparison import tuning as module
from wechsel_jax.comparison.inputs import seconds_spent, timed
from wechsel_jax.comparison.tuning import tune, with_rates
from wechsel_jax.data import prepare, prepare_split
from wechsel_jax.errors import UserError
from wechsel_jax.training import default_config as default_training
from wechsel_jax.training.groups import RECIPES

STARTS = {"anker": "anker", "full_rand": "full_rand", "longer": "full_rand"}


@pytest.fixture
def workdir(tmp_path):
    """What a comparison has made when its tuning begins: a tokenizer and the records of its transfers."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    backend = Tokenizer(models.BPE({token: i for i, token in enumerate(["<|endoftext|>", *alphabet])}, []))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.add_special_tokens(["<|endoftext|>"])
    PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="<|endoftext|>").save_pretrained(tmp_path / "tokenizer")
    for name, method in STARTS.items():
        (tmp_path / name / "transfer").mkdir(parents=True)
        (tmp_path / name / "transfer" / "transfer.json").write_text(json.dumps({"method": method}))
    (tmp_path / "train.txt").write_text("".join(f"Zeile {i}\n" for i in range(400)))
    return tmp_path


@pytest.fixture
def trained(monkeypatch):
    """The runs that were trained, in their order; the loss is least at 1e-3 for `anker` and at 4e-3 for FullRand's body."""
    runs = []

    def train(config, workdir):
        runs.append((workdir.name, config.copy_and_resolve_references()))
        rate, groups = config.optimizer.peak_learning_rate, config.optimizer.groups
        best = 1e-3 if workdir.name.startswith("anker") else 4e-3
        loss = 5 + abs(math.log(rate / best)) - 0.1 * bool(groups)
        line = {"kind": "eval", "step": config.steps, "loss": loss if rate < 1 else None, "perplexity": None}
        (workdir / "checkpoints").mkdir(parents=True, exist_ok=True)
        (workdir / "metrics.jsonl").write_text(json.dumps({**line, "step": 0}) + "\n" + json.dumps(line) + "\n")

    for place in (module, run):
        monkeypatch.setattr(place, "train", train)
    return runs


def test_the_seconds_of_what_failed_do_not_hide_why(tmp_path):
    with pytest.raises(UserError, match="the reason"), timed(tmp_path, "data"):
        raise UserError("the reason")
    assert seconds_spent(tmp_path).keys() == {"data"}
    (tmp_path / "seconds.json").write_text("{")
    with pytest.raises(UserError, match="the reason"), timed(tmp_path, "data"):
        raise UserError("the reason")
    with pytest.raises(UserError, match=r"seconds\.json: cannot be read"), timed(tmp_path, "data"):
        pass


def tuning(workdir: Path, rates=(1e-3, 2e-3, 4e-3), tables=(1.0, 2.5)):
    config = default_config()
    config.methods, config.variants.longer = tuple(STARTS), {"method": "full_rand"}
    config.text.train = (str(workdir / "train.txt"),)
    config.tuning.update({"rates": rates, "tables": tables, "steps": 7, "held_out": 0.25})
    return config


def test_every_start_tries_the_same_rates_on_text_of_its_own(workdir, trained):
    found = tune(tuning(workdir), workdir)
    pairs = [[rate, tables] for rate in (1e-3, 2e-3, 4e-3) for tables in (1.0, 2.5)]
    assert {name: [tried[:2] for tried in values] for name, values in found.items()} == dict.fromkeys(STARTS, pairs)
    best = {name: min(values, key=lambda tried: tried[-1])[:2] for name, values in found.items()}
    assert best == {"anker": [1e-3, 2.5], "full_rand": [4e-3, 2.5], "longer": [4e-3, 2.5]}
    # Runs that begin alike are tuned once.
    assert len(trained) == 12 and not any(name.startswith("longer") for name, _ in trained)
    assert {(config.steps, config.data.train, config.data.validation) for _, config in trained} == {
        (7, *((str(workdir / "data" / "tuning" / side),) for side in ("train", "validation")))
    }
    sides = [np.fromfile(workdir / "data" / "tuning" / side / "tokens.bin", "<u2") for side in ("train", "validation")]
    lines = [{tuple(line) for line in np.split(side, np.flatnonzero(side == 0) + 1)[:-1]} for side in sides]
    assert not lines[0] & lines[1] and len(lines[0] | lines[1]) == 400 and 60 < len(lines[1]) < 140


@pytest.mark.parametrize(("fraction", "most"), [(0.1, 0), (0.4, 0), (0.1, 2000), (0.0, 2000)])
def test_rates_are_tuned_on_nothing_but_the_text_that_is_trained_on(workdir, trained, fraction, most):
    config = tuning(workdir, (1e-3,), (1.0,))
    config.training.data.validation_fraction, config.training.data.max_bytes = fraction, most
    data = workdir / "data"
    if fraction:
        prepare_split(config.text.train, workdir / "tokenizer", data, validation_fraction=fraction, max_bytes=most)
    else:
        prepare(config.text.train, workdir / "tokenizer", data / "train", max_bytes=most)
    tune(config, workdir)
    documents = {}
    for side in ("train", "tuning/train", "tuning/validation"):
        tokens = np.fromfile(data / side / "tokens.bin", "<u2")
        documents[side] = {tuple(line) for line in np.split(tokens, np.flatnonzero(tokens == 0) + 1)[:-1]}
    train, fitted, held_out = documents.values()
    assert fitted | held_out == train and not fitted & held_out
    assert 0.15 < len(held_out) / len(train) < 0.35


def test_too_little_to_tune_on_names_the_setting(workdir, trained):
    config = tuning(workdir)
    config.tuning.held_out = 1e-6
    with pytest.raises(UserError, match=r"tuning\.held_out=1e-06, of what is trained on: "):
        tune(config, workdir)


def test_runs_that_train_in_other_ways_have_rates_of_their_own(workdir, trained):
    config = tuning(workdir, (1e-3, 2e-3), (1.0,))
    config.overrides = ConfigDict({"longer": {"steps": 900, "eval_every": 450}})
    tune(config, workdir)
    assert len(trained) == 4
    config.overrides.longer.optimizer = {**config.training.optimizer, "groups": RECIPES["muon"]}
    tune(config, workdir)
    assert [name for name, _ in trained[4:]] == ["longer-0.001-1", "longer-0.002-1"]


def test_what_has_been_tried_is_not_trained_again_and_keeps_no_weights(workdir, trained):
    first = tune(tuning(workdir), workdir)
    assert not list(workdir.glob("tuning/*/checkpoints"))
    (name, _), *_ = trained
    shutil.rmtree(workdir / "tuning" / name)
    trained.clear()
    # A run that was killed before its last evaluation.
    cut = workdir / "tuning" / "full_rand-0.002-1" / "metrics.jsonl"
    cut.write_text(cut.read_text().splitlines()[0] + "\n")
    # And one that was killed behind it, in its export.
    (workdir / "tuning" / "anker-0.004-1" / ".export.01234567.partial").mkdir()
    assert tune(tuning(workdir), workdir) == first
    assert not list(workdir.glob("tuning/*/.export*"))
    assert [run for run, _ in trained] == [name, "full_rand-0.002-1"]


def test_rates_that_lead_nowhere_are_left_out_and_refused_where_all_do(workdir, trained):
    assert [tried[0] for tried in tune(tuning(workdir, (1e-3, 2.0), (1.0,)), workdir)["anker"]] == [1e-3]
    with pytest.raises(UserError, match="anker has no finite loss after 7 steps; expected lower ones"):
        tune(tuning(workdir, (3.0,), (1.0,)), workdir)


def test_runs_that_differ_in_their_training_alone_share_a_transfer(workdir, trained, monkeypatch):
    made = []

    def transfer(source, tokenizer, output, *, method, **settings):
        made.append((method, settings))
        output.mkdir(parents=True)
        (output / "transfer.json").write_text(json.dumps({"method": method, "number": len(made)}))

    monkeypatch.setattr(run, "transfer", transfer)
    monkeypatch.setattr(run, "_write_results", lambda *_: {})
    config = tuning(workdir)
    config.text.validation = config.text.train
    config.variants.other = {"method": "full_rand", "overlap": "exact"}
    config.methods, config.tuning.rates = ("full_rand", "longer", "other"), ()
    for name in STARTS:
        shutil.rmtree(workdir / name)
    run._compare(config, workdir)
    assert [(method, settings.get("overlap")) for method, settings in made] == [("full_rand", None), ("full_rand", "exact")]
    records = [json.loads((workdir / name / "transfer" / "transfer.json").read_text())["number"] for name in config.methods]
    assert records == [1, 1, 2] and [name for name, _ in trained] == [*config.methods]


def test_tables_that_do_not_train_get_no_rate(workdir, trained):
    config = tuning(workdir)
    config.training.optimizer.groups = ({"match": "embeddings", "kind": "frozen"},)
    # Nor is any factor of theirs tried but one.
    found = tune(config, workdir)
    assert all([tried[:2] for tried in values] == [[rate, 1.0] for rate in (1e-3, 2e-3, 4e-3)] for values in found.values())
    assert found.keys() == STARTS.keys() and len(trained) == 6
    training = default_training()
    training.optimizer.groups = ({"match": "embeddings", "kind": "frozen"},)
    (group,) = with_rates(training, 1e-3, 4.0).optimizer.groups
    assert dict(group) == {"match": "embeddings", "kind": "frozen"}


def test_rates_change_nothing_else_of_a_recipe():
    training = default_config().training
    for recipe in RECIPES:
        training.optimizer.groups = RECIPES[recipe]
        groups = [dict(group) for group in with_rates(training, 2e-3, 2.5).optimizer.groups]
        assert groups[0]["match"] == "embeddings" and groups[0]["rate"] == 2.5
        others = [{name: value for name, value in group.items() if name != "rate"} for group in groups]
        plain = [{name: value for name, value in group.items() if name != "rate"} for group in RECIPES[recipe]]
        assert others[-len(plain) :] == plain if plain else others == [{"match": "embeddings"}]
    training.optimizer.groups = ({"match": "tokens", "coordinates": "transfer"},)
    (group,) = with_rates(training, 2e-3, 2.5).optimizer.groups
    assert dict(group) == {"match": "tokens", "coordinates": "transfer", "rate": 2.5}
    training.optimizer.groups = ()
    assert with_rates(training, 1e-3, 1.0).optimizer.groups == () and training.optimizer.peak_learning_rate == 1e-3
