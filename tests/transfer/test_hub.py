"""The model card and the upload; the hub itself is a recording stand-in, or out of reach."""

import json
import shutil

import pytest
import yaml

from wechsel_jax.errors import UserError
from wechsel_jax.hub import model_card, push
from wechsel_jax.transfer_job import transfer


@pytest.fixture(scope="module")
def model(world, source, tmp_path_factory):
    """A transferred model in a directory of its own."""
    output = tmp_path_factory.mktemp("hub") / "transfer"
    transfer(source, world.tokenizer("german", "gpt2"), output, method="trans_inner", log=lambda line: None)
    return output


@pytest.fixture
def hub(monkeypatch):
    """Records what an upload asks of the hub."""
    calls = []

    class Api:
        endpoint = "https://hub.example"

        def __init__(self, token=None):
            calls.append(("token", token))

        def __getattr__(self, name):
            return lambda *arguments, **options: calls.append((name, arguments, options))

    monkeypatch.setattr("huggingface_hub.HfApi", Api)
    return calls


def test_push_makes_the_repository_and_uploads_the_directory(model, hub):
    assert push(model, "me/german", private=True, token="secret") == "https://hub.example/me/german"
    assert hub[0] == ("token", "secret")
    (create, arguments, options), (upload, _, folder) = hub[1:]
    assert create == "create_repo" and arguments == ("me/german",) and options == {"private": True, "exist_ok": True}
    assert upload == "upload_folder" and folder["folder_path"] == model and folder["repo_id"] == "me/german"


def test_an_export_without_a_card_gets_one_from_the_run(model, hub, tmp_path):
    run = tmp_path / "run"
    shutil.copytree(model, run / "transfer")
    shutil.copytree(model, run / "export", ignore=shutil.ignore_patterns("README.md", "transfer*"))
    lines = [
        {"kind": "train", "step": 1, "loss": 3.0},
        {"kind": "eval", "step": 1200, "perplexity": 321.98, "loss": 5.7, "tokens": 9},
    ]
    (run / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    push(run / "export", "me/german")
    uploads = {options.get("path_in_repo"): options for name, _, options in (call for call in hub if len(call) == 3)}
    card = uploads["README.md"]["path_or_fileobj"].decode()
    assert "| 1,200 | 322.0 |" in card and 'from_pretrained("me/german")' in card and "not been trained" not in card


def test_a_card_has_front_matter_and_the_counts(model):
    record = json.loads((model / "transfer.json").read_text(encoding="utf-8"))
    record["source"]["model"] = "someone/english-gpt2"
    record["examples"] = [{"target": "a|b`", "how": "mixed", "sources": [["x", 0.75], ["y", 0.25]]}]
    card = model_card(record)
    front = yaml.safe_load(card.split("---")[1])
    assert front["base_model"] == "someone/english-gpt2" and front["library_name"] == "transformers"
    assert front["tags"] == ["wechsel-jax", "trans-inner"]
    assert (
        f"| random | {record['counts']['random']:,} |" in card and "| `` a\\|b` `` | mixed | `x` (0.75), `y` (0.25) |" in card
    )
    assert "not been trained in the new language yet" in card


def test_a_card_loads_the_class_that_the_config_names(model):
    record = json.loads((model / "transfer.json").read_text(encoding="utf-8"))
    assert record["source"]["class"] == "GPT2LMHeadModel"
    for name, loader in (("T5ForConditionalGeneration", "T5ForConditionalGeneration"), (None, "AutoModel")):
        record["source"]["class"] = name
        card = model_card(record)
        assert f"from transformers import {loader}, AutoTokenizer" in card and f"model = {loader}.from_pretrained(" in card


def test_a_card_shows_what_each_rule_matched(model):
    record = json.loads((model / "transfer.json").read_text(encoding="utf-8"))
    lines = model_card(record).splitlines()
    assert r"| special | 1 | 1 | 0 | 0 | `<\|endoftext\|>` from `<\|endoftext\|>` |" in lines
    assert sum(line.startswith("| none | 599 | 0 | 0 | 599 | `") for line in lines) == 1
    assert not any(line.startswith("| fuzzy |") for line in lines)
    del record["coverage"]
    assert "shared by rule" not in model_card(record)


def test_a_card_names_files_without_their_folders(model, tmp_path):
    record = json.loads((model / "transfer.json").read_text(encoding="utf-8"))
    places = {"helper": str(tmp_path / "gbert"), "target_vectors": str(tmp_path / "de.vec"), "source_vectors": "some/hub-id"}
    record["settings"] |= places
    record["notes"] = [f"The helper {places['helper']} lacks 3.", f"{places['target_vectors']} has whole words only."]
    card = model_card(record)
    assert str(tmp_path) not in card and "- The helper gbert lacks 3." in card and "- de.vec has whole words only." in card
    assert "| helper | `gbert` |" in card and "| source_vectors | `some/hub-id` |" in card


def test_a_local_model_is_no_base_model(model):
    card = model_card(json.loads((model / "transfer.json").read_text(encoding="utf-8")))
    assert "base_model" not in yaml.safe_load(card.split("---")[1])


def test_what_cannot_be_pushed_is_one_line(model, tmp_path):
    for directory, repo, message in [
        (tmp_path / "no", "a/b", "no such directory"),
        (tmp_path, "a/b", r"config\.json: no such file"),
        (model, "german", "not the name of a repository; expected user/name"),
        (model, "a/b", "the hub did not take the upload"),
    ]:
        with pytest.raises(UserError, match=message) as caught:
            push(directory, repo)
        assert "\n" not in str(caught.value)


def test_a_refusal_of_the_hub_is_one_line(model, monkeypatch, hub):
    def refuse(*_arguments, **_options):
        raise PermissionError("401 Client Error\nUnauthorized")

    monkeypatch.setattr("huggingface_hub.HfApi", lambda token=None: type("Api", (), {"create_repo": staticmethod(refuse)})())
    with pytest.raises(UserError, match="401 Client Error Unauthorized"):
        push(model, "a/b")


def test_a_damaged_record_is_named(model, hub, tmp_path):
    copy = tmp_path / "copy"
    shutil.copytree(model, copy, ignore=shutil.ignore_patterns("README.md"))
    (copy / "transfer.json").write_text("[]")
    with pytest.raises(UserError, match=r"transfer\.json: not a record of a transfer"):
        push(copy, "a/b")
