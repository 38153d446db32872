import dataclasses
import json
import shutil

import numpy as np
import pytest
import torch
import transformers

from tests.transfers.conftest import make_model
from wechsel_jax import TransferPlan, UserError, transfer
from wechsel_jax.checkpoint import Checkpoint
from wechsel_jax.evaluation.step_zero import perplexity_at_zero
from wechsel_jax.inspection import completed, measure, score, score_vectors
from wechsel_jax.records import TransferRecord
from wechsel_jax.tokens import Vocabulary, load_tokenizer


@pytest.fixture(scope="module")
def text(world, tmp_path_factory):
    path = tmp_path_factory.mktemp("text") / "german.txt"
    path.write_text((world.root / "german.txt").read_text(encoding="utf-8")[:20_000], encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def facts(transferred, text):
    return score(transferred, text, tokens_limit=300, samples=5)


@pytest.mark.slow
def test_a_score_is_what_the_transfer_recorded_and_what_its_tables_hold(facts, transferred, source):
    record = json.loads((transferred / "transfer.json").read_text(encoding="utf-8"))
    for name in ("method", "counts", "alignment", "similarity"):
        assert facts[name] == record[name]
    (table,) = facts["tables"]
    for side, place in (("target", transferred), ("source", source)):
        rows = Checkpoint.open(place).read("transformer.wte.weight").astype(np.float64)
        assert table[side]["norm_mean"] == pytest.approx(record["norms"][side]["mean"])
        assert table[side]["std"] == pytest.approx(rows.std())
    assert table["ratios"]["std"] == pytest.approx(table["target"]["std"] / table["source"]["std"])
    assert sum(facts["shares"].values()) == pytest.approx(1) and facts["vocabulary_size"] == 600
    assert json.loads(json.dumps(facts, allow_nan=False)) == facts


def test_what_was_measured_at_the_transfer_tells_what_its_files_tell(transferred, source, tmp_path):
    """So a report needs neither the model nor its tables."""
    record, plan = TransferRecord.read(transferred), TransferPlan.load(transferred / "transfer_plan.npz")
    target = Vocabulary.from_tokenizer(load_tokenizer(transferred))
    found = measure(plan, Checkpoint.open(transferred), Checkpoint.open(source), target, record.source["vocabulary_size"])
    dataclasses.replace(record, measures=found).write(tmp_path)
    recorded, looked_up = completed(TransferRecord.read(tmp_path)), completed(dataclasses.replace(record, measures=None))
    assert recorded.findings == looked_up.findings and len(recorded.findings) > 5
    assert recorded.tables == looked_up.tables != () and recorded.mixture == looked_up.mixture is not None
    table, norms = recorded.tables[0], record.norms
    assert [table[side]["norm_mean"] for side in norms] == [pytest.approx(norms[side]["mean"]) for side in norms]


def test_samples_are_drawn_by_the_seed(facts, transferred):
    assert len(facts["samples"]) == 5 and all(sample["how"] in ("copied", "mixed", "random") for sample in facts["samples"])
    assert score(transferred, samples=5)["samples"] == facts["samples"]
    assert score(transferred, samples=5, seed=1)["samples"] != facts["samples"]


def test_a_source_that_is_gone_leaves_the_recorded_norms_and_examples(transferred, tmp_path, source):
    moved = shutil.copytree(transferred, tmp_path / "moved")
    record = json.loads((moved / "transfer.json").read_text(encoding="utf-8"))
    record["source"]["model"] = "some/model-on-the-hub"
    (moved / "transfer.json").write_text(json.dumps(record), encoding="utf-8")
    found = score(moved, samples=3)
    assert found["samples"] == record["examples"][:3]
    assert set(found["tables"][0]["ratios"]) == {"norm_mean", "norm_std"}
    assert "dimension_std_median" in score(moved, source=source)["tables"][0]["ratios"]


def test_what_the_findings_say_of_a_table_that_was_spoiled(transferred, tmp_path):
    from safetensors.numpy import load_file, save_file

    spoiled = shutil.copytree(transferred, tmp_path / "spoiled")
    tensors = load_file(spoiled / "model.safetensors")
    tensors["transformer.wte.weight"] = tensors["transformer.wte.weight"] * 5
    tensors["transformer.wte.weight"][3, 0] = np.nan
    save_file(tensors, spoiled / "model.safetensors", {"format": "pt"})
    wrong = {finding["about"] for finding in score(spoiled)["findings"] if finding["severity"] == "wrong"}
    assert {"NaN", "mean length (input)", "spread (input)"} <= wrong


def test_a_plan_alone(transferred, facts):
    found = score(transferred / "transfer_plan.npz")
    for name in ("counts", "mixture", "duplicates", "shares"):
        assert found[name] == facts[name]
    with pytest.raises(UserError, match="is a plan, which cannot read"):
        score(transferred / "transfer_plan.npz", "text.txt")


def test_a_plan_of_other_tokens_is_refused(transferred, tmp_path):
    TransferPlan.all_random(5).save(tmp_path / "plan.npz")
    with pytest.raises(UserError, match="the plan is for 5 tokens, the tokenizer has 600"):
        score(transferred, plan=tmp_path / "plan.npz")


def test_a_record_without_anything_else(tmp_path):
    record = {"method": "wechsel", "counts": {"copied": 1, "mixed": 1, "random": 8}, "similarity": {"mean_top1": 0.1}}
    (tmp_path / "transfer.json").write_text(json.dumps(record))
    found = score(tmp_path)
    assert {finding["about"] for finding in found["findings"]} == {"random rows", "similarity"} and found["coverage"] is None
    (tmp_path / "transfer.json").write_text(json.dumps(record | {"method": "mean", "settings": {"noise": "mean"}}))
    (text,) = [finding["text"] for finding in score(tmp_path)["findings"] if finding["about"] == "random rows"]
    assert text.startswith("80 % of the rows are the mean row")
    (tmp_path / "transfer.json").write_text(json.dumps({"method": "wechsel", "counts": [1]}))
    with pytest.raises(UserError, match=r"transfer\.json: field counts is .*; expected an object"):
        score(tmp_path)


def test_perplexity_is_that_of_transformers(transferred, text):
    found = perplexity_at_zero(Checkpoint.open(transferred), text, tokens_limit=61)
    tokenizer = transformers.AutoTokenizer.from_pretrained(transferred)
    model = transformers.GPT2LMHeadModel.from_pretrained(transferred).eval()
    ids = [i for line in text.read_text(encoding="utf-8").split("\n") if line.strip() for i in [*tokenizer.encode(line), 0]]
    # Windows of the model's 32 positions overlap by one token; 61 tokens are predicted.
    losses = []
    for start in (0, 31):
        window = torch.tensor([ids[start : start + 32]])
        with torch.no_grad():
            logits = model(window).logits[0, :-1]
        losses += torch.nn.functional.cross_entropy(logits, window[0, 1:], reduction="none").tolist()
    assert found["tokens"] == 61 and found["uniform"] == 600 and not found["masked"] and found["unknown"] == 0
    assert found["loss"] == pytest.approx(np.mean(losses[:61]), rel=1e-5)


@pytest.mark.slow
def test_a_model_that_knows_nothing_guesses_uniformly_and_masks_are_those_of_the_seed(world, text, tmp_path):
    tokenizer = transformers.AutoTokenizer.from_pretrained(world.tokenizer("german", "roberta"))
    model = make_model("roberta", rows=len(tokenizer))
    model.save_pretrained(tmp_path / "model")
    tokenizer.save_pretrained(tmp_path / "model")
    checkpoint = Checkpoint.open(tmp_path / "model")
    first, again, other = (perplexity_at_zero(checkpoint, text, tokens_limit=500, seed=seed) for seed in (0, 0, 1))
    assert first["masked"] and 30 < first["tokens"] < 120
    assert first["loss"] == again["loss"] != other["loss"]
    with torch.no_grad():
        model.roberta.embeddings.word_embeddings.weight.zero_()
        model.lm_head.bias.zero_()
    model.save_pretrained(tmp_path / "model")
    found = score(tmp_path / "model", text, tokens_limit=500)
    assert found["perplexity"]["perplexity"] == pytest.approx(len(tokenizer), rel=1e-5)


def test_documents_of_several_lines_are_scored_as_they_are(transferred, tmp_path):
    """With their line breaks, and one end each."""
    documents = ["Ein Hund\n\nspringt über\nden Zaun.", "Der Fuchs\nschläft."]
    (tmp_path / "text.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in documents))
    tokenizer = load_tokenizer(transferred)
    found = perplexity_at_zero(Checkpoint.open(transferred), tmp_path / "text.jsonl")
    assert found["bytes"] == sum(len(text.encode()) for text in documents) - len(tokenizer.decode(tokenizer.encode("Ein")[:1]))
    assert found["tokens"] == sum(len(tokenizer.encode(text)) + 1 for text in documents) - 1


def test_an_architecture_without_a_model_here_says_so(transferred, text, tmp_path):
    other = shutil.copytree(transferred, tmp_path / "other")
    config = json.loads((other / "config.json").read_text())
    (other / "config.json").write_text(json.dumps(config | {"activation_function": "relu6"}))
    assert "reason" in score(other, text, tokens_limit=50)["perplexity"]
    checkpoint = Checkpoint(other, config | {"model_type": "mamba"}, Checkpoint.open(other).tensors)
    assert perplexity_at_zero(checkpoint, text)["reason"].startswith("no mamba model is implemented here")


@pytest.mark.parametrize(
    ("content", "limit", "told"), [(" \n\n", 50, "nothing but white space"), ("a\n", 1, "at least 2 tokens")]
)
def test_texts_that_cannot_be_measured(transferred, tmp_path, content, limit, told):
    (tmp_path / "text").write_text(content)
    with pytest.raises(UserError, match=told):
        score(transferred, tmp_path / "text", tokens_limit=limit)
    with pytest.raises(UserError, match="no such file"):
        score(transferred, tmp_path / "none")


def test_vectors_are_scored_before_a_transfer(world):
    found = score_vectors(world.vectors("english"), world.vectors("german"), world.dictionary, samples=4)
    assert {"pairs", "precision_at_1", "residual"} <= found["alignment"].keys() and 0 < found["similarity"]["mean_top1"] <= 1
    assert [len(sample["sources"]) for sample in found["samples"]] == [3] * 4
    assert {"dictionary pairs", "alignment", "similarity"} == {finding["about"] for finding in found["findings"]}


def test_a_dictionary_without_a_pair_of_the_vectors_is_named(world, tmp_path):
    (tmp_path / "d.tsv").write_text("q\tx\n")
    with pytest.raises(UserError, match=r"d\.tsv: none of the 1 word pairs has vectors on both sides"):
        score_vectors(world.vectors("english"), world.vectors("german"), tmp_path / "d.tsv")


def test_a_baseline_is_scored_too(world, source, tmp_path):
    output = tmp_path / "out"
    transfer(source, world.tokenizer("german", "gpt2"), output, method="full_rand", log=lambda line: None)
    found = score(output)
    assert found["mixture"] is None and found["special_tokens"]["random"] == found["special_tokens"]["named"] != []
    off = {finding["about"]: finding["severity"] for finding in found["findings"] if finding["severity"] != "ok"}
    # The whole model is new, so its tables need not have the source's scale.
    assert off == {"random rows": "look"} and not 0.5 < found["tables"][0]["ratios"]["std"] < 2
