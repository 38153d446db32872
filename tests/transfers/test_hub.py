"""The model card of a transfer and of a training run; uploads go to a hub on this machine."""

import json
import shutil

import pytest
import yaml
from huggingface_hub import ModelCard, constants

from tests.hub.stub import StubHub
from wechsel_jax.errors import UserError
from wechsel_jax.hub import push
from wechsel_jax.initializers import METHODS
from wechsel_jax.records import TransferRecord, read_run
from wechsel_jax.report.card import bibtex, model_card
from wechsel_jax.transfers.job import transfer


@pytest.fixture(scope="module")
def model(world, source, tmp_path_factory):
    """A transferred model in a directory of its own."""
    output = tmp_path_factory.mktemp("hub") / "transfer"
    transfer(source, world.tokenizer("german", "gpt2"), output, method="trans_inner", log=lambda line: None)
    return output


@pytest.fixture
def hub(monkeypatch):
    """An empty hub on this machine."""
    stub = StubHub("token")
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    yield stub
    stub.close()


def push_to(hub, directory, **options):
    push(directory, "me/german", token="token", endpoint=hub.endpoint, say=lambda line: None, **options)
    return hub.files("me/german")


def test_a_transfer_is_uploaded_whole(model, hub):
    files = push_to(hub, model, private=True)
    assert (
        files.keys() == {path.name for path in model.iterdir() if not path.name.startswith(".")}
        and hub.repos["me/german"]["private"]
    )
    card = files["README.md"].decode()
    assert 'from_pretrained("me/german")' in card and "path/to/this/directory" not in card
    assert {name for name, content in files.items() if content != (model / name).read_bytes()} == {"README.md"}


def test_an_export_without_a_card_gets_one_from_the_run(model, hub, tmp_path):
    run = tmp_path / "run"
    shutil.copytree(model, run / "transfer")
    shutil.copytree(model, run / "export", ignore=shutil.ignore_patterns("README.md", "transfer*"))
    lines = [
        {"kind": "train", "step": 1, "loss": 3.0},
        {"kind": "eval", "step": 1200, "perplexity": 321.98, "loss": 5.7, "tokens": 9},
    ]
    (run / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    card = push_to(hub, run / "export", license="mit", language=["de"])["README.md"].decode()
    assert "| 1,200 | 322.0 |" in card and 'from_pretrained("me/german")' in card and "not been trained" not in card
    front = yaml.safe_load(card.split("---")[1])
    assert front["license"] == "mit" and front["language"] == ["de"] and front["pipeline_tag"] == "text-generation"
    assert not (run / "export" / "README.md").exists()


def test_the_card_of_a_run_holds_its_transfer_and_its_training(model, tmp_path):
    """The hub's own reader understands the front matter, scores included."""
    run = tmp_path / "german"
    (run / "model").mkdir(parents=True)
    shutil.copy(model / "transfer.json", run / "model")
    settings = {"objective": "clm", "steps": 400, "batch_size": 32, "block_length": 128, "seed": 0, "dtype": "bfloat16"}
    settings |= {"model": {"checkpoint": str(model)}, "data": {"train": ["/secret/german.txt"], "validation": []}}
    settings["optimizer"] = {"peak_learning_rate": 1.5e-3, "b1": 0.9}
    settings["phases"] = [{"name": "all", "fraction": 1.0, "warmup": 0.1, "decay": "linear", "trainable": "all"}]
    (run / "config.json").write_text(json.dumps(settings))
    lines = []
    for step, perplexity in ((0, 900.0), (100, 310.0), (200, 290.5), (300, 300.0)):
        train = {"kind": "train", "step": step, "seconds": step * 36.0, "tokens_per_second": 2e5, "mfu": 0.31}
        lines += [
            train,
            {"kind": "eval", "step": step, "perplexity": perplexity, "tokens": 98304},
            {"kind": "new", "step": step},
        ]
    text = "".join(json.dumps(line) + "\n" for line in lines)
    (run / "metrics.jsonl").write_text(text + '{"kind": "eval", "step": 400, "perp')
    starts = [
        {"seconds": 0.0, "devices": 8, "device_kind": "TPU v3"},
        {"seconds": 3600.0, "devices": 16, "device_kind": "TPU v3"},
    ]
    (run / "machine.json").write_text(json.dumps({"starts": starts}))
    read = read_run(run)
    card = model_card(read.transfer, read, 200, model={"architectures": ["GPT2LMHeadModel"]}, language=["de"])
    (result,) = ModelCard(card).data.eval_results
    assert (result.metric_type, result.metric_value) == ("perplexity", 290.5)
    for row in (
        "| 200 | 290.5 | the best |",
        "These weights are those of step 200.",
        "| steps | 200 of 400 planned |",
        "| batch | 32 x 128 = 4,096 tokens |",
        "| optimizer | AdamW: b1 0.9 |",
        "| train | `german.txt` |  | not recorded |",
        "| devices | 8 x TPU v3, then 16 x TPU v3 |",
        "| hours | 2 |",
        "| device hours | 24.0 |",
        "| tokens per second (median) | 200,000 |",
        "| model FLOPs utilisation (median) | 31.0% |",
        "@inproceedings{de-vries-nissim-2021-good,",
        "## Where the tokens came from",
    ):
        assert row in card, row
    assert "300" not in card.split("```python")[0].split("held-out perplexity")[1] and "/secret" not in card
    assert str(tmp_path) not in card


@pytest.mark.parametrize("method", METHODS)
def test_every_method_has_a_paper_to_cite(method):
    entries = bibtex(method, "0.1.0")
    # anker has no paper yet: it is cited with WECHSEL's, whose rows it mixes.
    assert entries.count("@") == 2 + (METHODS[method].paper == "this project") and entries.count("{") == entries.count("}")
    if METHODS[method].paper == "this project":
        assert "Minixhofer" in entries
        return
    first = METHODS[method].paper.split(",")[0].split(" et al")[0].split(" and ")[0]
    assert first.split()[-1] in entries and METHODS[method].paper.split(":")[0].split(",")[-1].strip()[:4] in entries


def test_a_card_has_front_matter_and_the_counts(model):
    record = json.loads((model / "transfer.json").read_text(encoding="utf-8"))
    record["source"]["model"] = "someone/english-gpt2"
    record["examples"] = [{"target": "a|b`", "how": "mixed", "sources": [["x", 0.75], ["y", 0.25]]}]
    card = model_card(TransferRecord.parse(record))
    front = yaml.safe_load(card.split("---")[1])
    assert front["base_model"] == "someone/english-gpt2" and front["library_name"] == "transformers"
    assert front["tags"] == ["wechsel-jax", "trans-inner"]
    assert f"| random | {record['counts']['random']:,} |" in card and "| `` a\\|b` `` | mixed | `x` (0.75) `y` (0.25) |" in card
    assert "not been trained in the new language yet" in card


def test_a_card_loads_the_class_that_the_config_names(model):
    record = json.loads((model / "transfer.json").read_text(encoding="utf-8"))
    assert record["source"]["class"] == "GPT2LMHeadModel"
    for name, loader in (("T5ForConditionalGeneration", "T5ForConditionalGeneration"), (None, "AutoModel")):
        record["source"]["class"] = name
        card = model_card(TransferRecord.parse(record))
        assert f"from transformers import {loader}, AutoTokenizer" in card and f"model = {loader}.from_pretrained(" in card


def test_a_card_shows_what_each_rule_matched(model):
    record = json.loads((model / "transfer.json").read_text(encoding="utf-8"))
    lines = model_card(TransferRecord.parse(record)).splitlines()
    assert r"| special | 1 | under 1 % | 1 | 0 | 0 | `<\|endoftext\|>` |" in lines
    assert sum(line.startswith("| none | 599 | over 99 % | 0 | 0 | 599 | `") for line in lines) == 1
    assert not any(line.startswith("| fuzzy |") for line in lines)
    del record["coverage"]
    assert "| Rule |" not in model_card(TransferRecord.parse(record))


def test_a_card_names_files_without_their_folders(model, tmp_path):
    record = json.loads((model / "transfer.json").read_text(encoding="utf-8"))
    places = {"helper": str(tmp_path / "gbert"), "target_vectors": str(tmp_path / "de.vec"), "source_vectors": "some/hub-id"}
    record["settings"] |= places
    record["notes"] = [f"The helper {places['helper']} lacks 3.", f"{places['target_vectors']} has whole words only."]
    card = model_card(TransferRecord.parse(record))
    assert str(tmp_path) not in card and "- The helper gbert lacks 3." in card and "- de.vec has whole words only." in card
    assert "| helper | `gbert` |" in card and "| source_vectors | `some/hub-id` |" in card


def test_a_local_model_is_no_base_model(model):
    card = model_card(TransferRecord.read(model))
    assert "base_model" not in yaml.safe_load(card.split("---")[1])


def test_nor_is_one_whose_place_looks_like_a_model_of_the_hub(world, source, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    shutil.copytree(source, "models/english-gpt2")
    transfer(
        "models/english-gpt2", world.tokenizer("german", "gpt2"), tmp_path / "out", method="trans_inner", log=lambda line: None
    )
    shutil.rmtree("models")
    card = model_card(TransferRecord.read(tmp_path / "out"))
    assert "base_model" not in yaml.safe_load(card.split("---")[1]) and "made from `english-gpt2`" in card


def test_what_cannot_be_pushed_is_one_line(model, tmp_path):
    for directory, repo, message in [
        (tmp_path / "no", "a/b", "no such directory"),
        (tmp_path, "a/b", r"config\.json: no such file"),
        (model, "german", "not the name of a repository; expected user/name"),
        (model, "a/b", "the hub did not take the upload .*offline"),
    ]:
        with pytest.raises(UserError, match=message) as caught:
            push(directory, repo, token="token", say=lambda line: None)
        assert "\n" not in str(caught.value)


def test_a_damaged_record_is_named(model, tmp_path):
    copy = tmp_path / "copy"
    shutil.copytree(model, copy, ignore=shutil.ignore_patterns("README.md"))
    for contents, told in (("[]", "holds no JSON object"), ('{"method": 3}', "field method is 3; expected text")):
        (copy / "transfer.json").write_text(contents)
        with pytest.raises(UserError, match=rf"transfer\.json: .*{told}"):
            push(copy, "a/b", token="token", say=lambda line: None)
