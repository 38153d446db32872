"""A probe of several starts: short runs, the choice, and its record."""

import json
import shutil
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import transformers
from absl import flags

from wechsel_jax import cli
from wechsel_jax.commands import probe as verb
from wechsel_jax.errors import UserError
from wechsel_jax.records import ComparisonRecord, read_run
from wechsel_jax.tokens.training import train_tokenizer
from wechsel_jax.training import probe as module
from wechsel_jax.training.groups import DEFAULT, RECIPES
from wechsel_jax.training.probe import probe

MODEL = {"model_type": "gpt2", "n_embd": 16, "n_layer": 1, "n_head": 2, "n_positions": 16}


@pytest.fixture(scope="module")
def starts(texts, tmp_path_factory):
    """A model with torch's random weights, and one that is sure of the wrong tokens."""
    place = tmp_path_factory.mktemp("starts")
    tokenizer = transformers.PreTrainedTokenizerFast.from_pretrained(texts / "tokenizer")
    torch.manual_seed(0)
    config = transformers.GPT2Config(**MODEL, vocab_size=len(tokenizer), bos_token_id=0, eos_token_id=0)
    model = transformers.GPT2LMHeadModel(config)
    for name in ("new", "wrong"):
        model.save_pretrained(place / name)
        tokenizer.save_pretrained(place / name)
        model.transformer.wte.weight.data *= 20.0
    return place


@pytest.fixture
def trained(monkeypatch):
    """(name, settings) of every run, with the training left out; each ends at 2 bits per byte."""
    runs = []
    end = SimpleNamespace(step=50, loss=3.0, bits_per_byte=2.0)
    monkeypatch.setattr(module, "train", lambda config, workdir: runs.append((workdir.name, config)))
    monkeypatch.setattr(module, "read_run", lambda place: SimpleNamespace(evaluations=[end], curve=[(50, 20.0)]))
    monkeypatch.setattr(module, "comparison_table", str)
    return runs


# Each of four runs is compiled, trained and exported.
@pytest.mark.slow
def test_the_start_that_learns_best_is_chosen(starts, texts, tmp_path, capsys):
    arguments = ["probe", str(starts / "new"), f"bad={starts / 'wrong'}", f"--text={texts / 'train.txt'}"]
    arguments += [f"--validation={texts / 'validation.txt'}", "--rates=1e-4,1e30", "--steps=4", "--batch_size=8"]
    arguments += ["--block_length=128", "--recipes=muon", f"--workdir={tmp_path / 'probe'}"]
    cli.main(arguments)
    output = capsys.readouterr().out
    assert "chosen: new-muon-0.0001" in output and "bits per byte after 4 steps" in output
    record = ComparisonRecord.read(tmp_path / "probe")
    assert record.chosen == "new-muon-0.0001"
    assert set(record.methods) == {f"{label}-muon-{rate}" for label in ("new", "bad") for rate in ("0.0001", "1e+30")}
    # Both have one tokenizer, and so the same tokens.
    assert [place.name for place in (tmp_path / "probe" / "data").iterdir()] == ["new"]
    ends = {name: read_run(tmp_path / "probe" / name).evaluations[-1] for name in record.methods}
    assert ends["new-muon-0.0001"].bits_per_byte < 0.9 * ends["bad-muon-0.0001"].bits_per_byte
    compared = record.methods["bad-muon-0.0001"]
    assert compared["start"] == "bad" and compared["bits_per_byte"][-1] == [4, ends["bad-muon-0.0001"].bits_per_byte]
    # A model of 16 positions cannot read rows of 128.
    settings = json.loads((tmp_path / "probe" / "new-muon-0.0001" / "config.json").read_text())
    assert settings["block_length"] == 16 and settings["optimizer"]["groups"][1]["kind"] == "muon"
    cli.main(arguments)
    assert capsys.readouterr().out.count("chosen: ") == 1
    with pytest.raises(UserError, match="steps was 4, now 5"):
        given = {"rates": [1e-4], "recipes": ["muon"], "batch_size": 8, "steps": 5}
        given["validation"] = [str(texts / "validation.txt")]
        probe({"new": starts / "new"}, [str(texts / "train.txt")], tmp_path / "probe", **given)
    cli.main(["report", str(tmp_path / "probe"), f"--output={tmp_path / 'report.html'}"])
    assert "new-muon-0.0001" in (tmp_path / "report.html").read_text()


@pytest.mark.parametrize(
    ("changed", "named"),
    [
        ("--rates=fast", "--rates=fast: expected learning rates"),
        ("--rates=-1", "--rates=-1: expected learning rates above 0"),
        ("--rates=1e-3,nan", "--rates=1e-3,nan: expected learning rates above 0"),
        ("--recipes=adam", "unknown recipe 'adam'; expected some of adamw, two_rates, muon"),
        ("--text=nowhere.txt", "nowhere.txt"),
        ("--validation=nowhere.txt", "nowhere.txt"),
        ("--rates=", "rates: is empty; expected at least one"),
        ("--rates=0.001234561,0.001234562", "new-muon_soap-0.00123456: stands for two runs; expected"),
        ("--recipes=", "recipes: is empty; expected at least one"),
    ],
)
def test_mistakes_are_named_before_anything_is_written(starts, texts, tmp_path, capsys, changed, named):
    with pytest.raises(SystemExit) as left:
        cli.main(["probe", str(starts / "new"), f"--text={texts / 'train.txt'}", f"--workdir={tmp_path / 'probe'}", changed])
    assert left.value.code == 2
    assert named in capsys.readouterr().err and not (tmp_path / "probe").exists()


def test_the_recipe_is_the_one_that_came_out_ahead(starts, texts, tmp_path, trained):
    probe({"new": starts / "new"}, [texts / "train.txt"], tmp_path / "probe")
    assert [name for name, _ in trained] == [f"new-{DEFAULT}-0.001", f"new-{DEFAULT}-0.003"]
    assert [dict(group) for group in trained[0][1].optimizer.groups] == [*RECIPES[DEFAULT]]
    verb.define(values := flags.FlagValues())
    assert values["recipes"].default == [DEFAULT] and [float(rate) for rate in values["rates"].default] == [*module.RATES]


def test_a_recipe_may_be_the_settings_of_an_optimizer(starts, texts, tmp_path, trained):
    own = {"groups": [{"match": "embeddings", "rate": 7.0}], "weight_decay": 0.5, "clip_norm": None, "peak_learning_rate": 9.0}
    probe({"new": starts / "new"}, [texts / "train.txt"], tmp_path / "probe", rates=(5e-4,), recipes={"own": own})
    ((name, config),) = trained
    assert name == "new-own-0.0005" and dict(config.optimizer.groups[0]) == own["groups"][0]
    optimizer = config.optimizer
    assert (optimizer.peak_learning_rate, optimizer.weight_decay, optimizer.clip_norm) == (5e-4, 0.5, None)


@pytest.mark.parametrize("validation", [True, False])
def test_starts_of_several_tokenizers_are_scored_on_the_same_text(starts, texts, tmp_path, trained, validation):
    shutil.copytree(starts / "new", tmp_path / "bytes")
    train_tokenizer([texts / "train.txt"], 258, tmp_path / "tokenizer")
    shutil.copy(tmp_path / "tokenizer" / "tokenizer.json", tmp_path / "bytes" / "tokenizer.json")
    given = {"new": starts / "new", "bytes": tmp_path / "bytes"}
    held_out = [str(texts / "validation.txt")] if validation else []
    probe(given, [texts / "train.txt"], tmp_path / "probe", validation=held_out, eval_bytes=300, rates=(1e-3,))
    scored, sizes = {}, {}
    for (label, place), (name, config) in zip(given.items(), trained, strict=True):
        # All of it is read.
        assert name.startswith(f"{label}-") and config.eval_batches is None
        tokenizer = transformers.PreTrainedTokenizerFast.from_pretrained(place)
        for side in ("train", "validation"):
            ids = np.fromfile(f"{config.data[side][0]}/tokens.bin", "<u2")
            scored[label, side] = tokenizer.decode(ids).split("<|endoftext|>")[:-1]
        sizes[label] = ids.size
    assert sizes["bytes"] > 1.5 * sizes["new"]
    assert all(scored["new", side] == scored["bytes", side] for side in ("train", "validation"))
    # Whole documents, but for the last.
    assert sum(map(len, found := scored["new", "validation"])) == 300
    whole = (texts / ("validation.txt" if validation else "train.txt")).read_text().splitlines()
    assert {*found[:-1]} <= {*whole} and not {*found[:-1]} & {*scored["new", "train"]}
    assert len(scored["new", "train"]) == 360 if validation else 340 < len(scored["new", "train"]) < 360


def test_held_out_text_is_looked_at_before_any_run(starts, texts, tmp_path, trained, capsys):
    lines = (texts / "train.txt").read_text().splitlines()
    (tmp_path / "three.txt").write_text("alpha beta\n" * 3)
    (tmp_path / "short.txt").write_text("alpha\n")
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps({"body": line}) + "\n" for line in lines))
    command = ["probe", str(starts / "new"), f"--workdir={tmp_path / 'probe'}", f"--text={tmp_path / 'three.txt'}"]
    held_out = f"--validation={texts / 'validation.txt'}"
    for changed, named in (
        ([], "three.txt: 2% of its documents leave none to score on; expected more of them, or held-out text of"),
        ([f"--validation={tmp_path / 'short.txt'}"], "tokens; expected at least one block of 16; give more text or a smaller"),
        ([f"--text={tmp_path / 'rows.jsonl'}", held_out], "rows.jsonl: line 1: has no field 'text' but 'body'"),
    ):
        with pytest.raises(SystemExit) as left:
            cli.main([*command, *changed])
        assert left.value.code == 2 and named in capsys.readouterr().err
        # Nothing was tokenised that the corrected command would find.
        assert not trained and not [path.name for path in (tmp_path / "probe").glob("*/new/train")]
    (tmp_path / "held.jsonl").write_text((tmp_path / "rows.jsonl").read_text())
    command[-1] = f"--text={tmp_path / 'rows.jsonl'}"
    cli.main([*command, f"--validation={tmp_path / 'held.jsonl'}", "--text_field=body"])
    assert len(trained) == 2


def test_other_held_out_text_leaves_a_finished_probe_as_it_is(starts, texts, tmp_path, trained):
    given = {"starts": {"new": starts / "new"}, "text": [texts / "train.txt"], "workdir": tmp_path / "probe", "rates": (1e-3,)}
    probe(**given, eval_bytes=300)
    ((name, _),) = trained
    (tmp_path / "probe" / name).mkdir()
    # As a run that has begun has it.
    (tmp_path / "probe" / name / "config.json").write_text("{}")
    before = (tmp_path / "probe" / "held-out.jsonl").read_bytes()
    for changed in ({"eval_bytes": 200}, {"eval_bytes": 300, "validation": [texts / "validation.txt"]}):
        with pytest.raises(UserError, match=r"probe: holds a probe that is scored on other text; .*choose another --workdir"):
            probe(**given, **changed)
        assert (tmp_path / "probe" / "held-out.jsonl").read_bytes() == before
    probe(**given, eval_bytes=300)


def test_starts_whose_texts_end_otherwise_have_tokens_of_their_own(starts, texts, tmp_path, trained):
    """As of a base model and one for chats, which differ in tokenizer_config.json alone."""
    other = shutil.copytree(starts / "new", tmp_path / "other")
    settings = json.loads((other / "tokenizer_config.json").read_text())
    (other / "tokenizer_config.json").write_text(json.dumps(settings | {"eos_token": "a"}))
    assert (other / "tokenizer.json").read_bytes() == (starts / "new" / "tokenizer.json").read_bytes()
    given = {"new": starts / "new", "other": other}
    probe(given, [texts / "train.txt"], tmp_path / "probe", rates=(1e-3,))
    ends = [
        json.loads((tmp_path / "probe" / "data" / name / "train" / "manifest.json").read_text())["end_token"] for name in given
    ]
    assert ends == [transformers.PreTrainedTokenizerFast.from_pretrained(place).eos_token_id for place in given.values()]
    assert ends[0] != ends[1] and [config.data.train[0].split("/")[-2] for _, config in trained] == ["new", "other"]


def test_what_earlier_calls_found_stays(starts, texts, tmp_path, trained, monkeypatch):
    values = {"new": 2.0, "wrong": 1.5}

    def train(config, workdir):
        workdir.mkdir(exist_ok=True)
        trained.append((workdir.name, config))

    def read(place):
        end = SimpleNamespace(step=50, loss=3.0, bits_per_byte=values[place.name.split("-")[0]])
        return SimpleNamespace(evaluations=[end], curve=[(50, 20.0)])

    monkeypatch.setattr(module, "train", train)
    monkeypatch.setattr(module, "read_run", read)
    given = {"text": [texts / "train.txt"], "workdir": tmp_path / "probe", "rates": (1e-3,)}
    probe({name: starts / name for name in ("new", "wrong")}, **given)
    # The second start alone finds the tokens that were made for both, and an earlier run may still be the best.
    probe({"wrong": starts / "wrong"}, **given)
    assert trained[2][1].to_json() == trained[1][1].to_json()
    record = probe({"new": starts / "new"}, **given, recipes=("adamw",))
    assert ComparisonRecord.read(tmp_path / "probe") == record and record.chosen == f"wrong-{DEFAULT}-0.001"
    assert [*record.methods] == [f"new-{DEFAULT}-0.001", f"wrong-{DEFAULT}-0.001", "new-adamw-0.001"]
    assert [place.name for place in (tmp_path / "probe" / "data").iterdir()] == ["new"]
    with pytest.raises(UserError, match="holds a probe with seed 0; expected the same"):
        probe({"new": starts / "new"}, **given, seed=1)


@pytest.mark.parametrize("label", ["", ".", "..", "a/b"])
def test_a_label_is_the_name_of_a_folder(starts, texts, tmp_path, label):
    with pytest.raises(UserError, match="is no name of a folder; expected one such as anker"):
        probe({label: starts / "new"}, [texts / "train.txt"], tmp_path / "probe")
    assert not (tmp_path / "probe").exists()


def test_one_directory_may_be_two_starts(starts, texts, tmp_path, trained):
    record = probe({label: starts / "new" for label in "ab"}, [texts / "train.txt"], tmp_path / "probe", rates=(1e-3,))
    assert {name: one["start"] for name, one in record.methods.items()} == {f"{label}-{DEFAULT}-0.001": label for label in "ab"}
