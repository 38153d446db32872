"""The main job end to end: torch says what the written model computes."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers

from wechsel_jax.checkpoint import Checkpoint
from wechsel_jax.checkpoint.tensors import read_header, write_tensors
from wechsel_jax.errors import UserError
from wechsel_jax.initializers import METHODS, TransferPlan, draw_noise
from wechsel_jax.tokens import Vocabulary, load_tokenizer, readable
from wechsel_jax.transfers.job import transfer


def quiet(_line: str) -> None:
    """Progress that no test reads."""


def run(source, tokenizer, output, **options) -> dict:
    return transfer(source, tokenizer, output, log=quiet, **options)


def load(kind: str, directory):
    """Loads with transformers and asserts that every tensor was expected and none is missing."""
    loader = transformers.AutoModelForCausalLM if kind == "gpt2" else transformers.AutoModelForMaskedLM
    model, info = loader.from_pretrained(directory, output_loading_info=True)
    assert not any(info[key] for key in ("missing_keys", "unexpected_keys", "mismatched_keys")), info
    return model.eval()


def renamed_ids(world, tmp_path, swap: tuple[str, int]) -> Path:
    """The German RoBERTa tokenizer with one token moved to another id (the token that was there takes its place)."""
    token, token_id = swap
    directory = tmp_path / "renamed"
    shutil.copytree(world.tokenizer("german", "roberta"), directory)
    state = json.loads((directory / "tokenizer.json").read_text(encoding="utf-8"))
    vocabulary = state["model"]["vocab"]
    other = next(string for string, i in vocabulary.items() if i == token_id)
    vocabulary[other], vocabulary[token] = vocabulary[token], token_id
    for added in state["added_tokens"]:
        added["id"] = vocabulary.get(added["content"], added["id"])
    for name, special in state["post_processor"]["special_tokens"].items():
        special["ids"] = [vocabulary[name]]
    state["added_tokens"].sort(key=lambda added: added["id"])
    (directory / "tokenizer.json").write_text(json.dumps(state), encoding="utf-8")
    return directory


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
@pytest.mark.parametrize("tied", [True, False], ids=["tied", "untied"])
@pytest.mark.parametrize("kind", ["gpt2", "roberta"])
def test_copied_tokens_compute_what_they_computed(world, save_source, tmp_path, kind, tied, dtype):
    directory, model = save_source(kind, tied=tied, padding=5, dtype=dtype)
    record = run(directory, world.tokenizer("german", kind), tmp_path / "out", method="trans_inner_shuffle")
    plan = TransferPlan.load(tmp_path / "out" / "transfer_plan.npz")
    copied = load(kind, tmp_path / "out")
    assert record["counts"] == {"copied": 600, "mixed": 0, "random": 0} and next(copied.parameters()).dtype == dtype
    tokens = torch.from_numpy(np.random.default_rng(0).integers(5, 600, (3, 20)))
    with torch.no_grad():
        new = copied(tokens).logits
        old = model(torch.from_numpy(plan.copy[tokens.numpy()].astype(np.int64))).logits[
            ..., torch.from_numpy(plan.copy).long()
        ]
    torch.testing.assert_close(new, old)
    stored = Checkpoint.open(tmp_path / "out").read(Checkpoint.open(directory).table)
    assert stored.tobytes() == Checkpoint.open(directory).read(Checkpoint.open(directory).table)[plan.copy].tobytes()
    config = copied.config
    assert config.vocab_size == 600 and config.tie_word_embeddings is tied
    tokenizer = load_tokenizer(world.tokenizer("german", kind))
    assert (config.bos_token_id, config.eos_token_id) == (tokenizer.bos_token_id, tokenizer.eos_token_id)
    assert config.pad_token_id == tokenizer.pad_token_id
    loaded = transformers.AutoTokenizer.from_pretrained(tmp_path / "out")
    assert loaded("Die Käuferin ging fort.").input_ids == tokenizer("Die Käuferin ging fort.").input_ids


@pytest.mark.slow
@pytest.mark.parametrize("prefix", [True, False], ids=["head", "bare"])
@pytest.mark.parametrize("kind", ["gpt2", "roberta"])
def test_tensors_without_a_vocabulary_axis_keep_their_bytes(world, save_source, tmp_path, kind, prefix):
    directory, _ = save_source(kind, prefix=prefix)
    record = run(directory, world.tokenizer("german", kind), tmp_path / "out", **world.inputs())
    old, new = (read_header(place / "model.safetensors") for place in (directory, tmp_path / "out"))
    changed = {tensor["name"] for tensor in record["tensors"]}
    assert old.keys() == new.keys() and len(changed) in (1, 2)
    for name in old.keys() - changed:
        assert (old[name].code, old[name].shape) == (new[name].code, new[name].shape)
        assert old[name].read().tobytes() == new[name].read().tobytes(), name
    for tensor in record["tensors"]:
        assert list(new[tensor["name"]].shape) == tensor["shape"] and tensor["shape"][0] == 600


def test_head_and_bias_are_made_with_the_weights_of_the_table(world, save_source, tmp_path):
    directory, model = save_source("roberta", tied=False)
    run(directory, world.tokenizer("german", "roberta"), tmp_path / "out", **world.inputs())
    plan = TransferPlan.load(tmp_path / "out" / "transfer_plan.npz")
    mixed = np.flatnonzero(plan.is_mixed)
    assert len(mixed) > 300
    new = load("roberta", tmp_path / "out").state_dict()
    for name in ("roberta.embeddings.word_embeddings.weight", "lm_head.decoder.weight", "lm_head.bias", "lm_head.decoder.bias"):
        matrix = model.state_dict()[name].numpy().astype(np.float64)
        expected = np.einsum("tk,tk...->t...", plan.weights[mixed], matrix[plan.neighbors[mixed]])
        np.testing.assert_allclose(new[name].numpy()[mixed], expected, atol=2e-6)


def test_the_bias_can_be_zero(world, save_source, tmp_path):
    directory, model = save_source("roberta")
    assert model.lm_head.bias.abs().max() > 0.1
    made = run(directory, world.tokenizer("german", "roberta"), tmp_path / "out", head_bias="zeros", **world.inputs())
    assert not load("roberta", tmp_path / "out").lm_head.bias.any()
    nothing = "The model's head has no bias: --head_bias changes nothing."
    assert nothing not in made["notes"]
    directory, _ = save_source("gpt2")
    made = run(directory, world.tokenizer("german", "gpt2"), tmp_path / "none", method="trans_inner", head_bias="zeros")
    assert nothing in made["notes"]


def test_a_saved_plan_makes_the_same_matrices(world, save_source, tmp_path):
    directory, _ = save_source("roberta", tied=False, padding=2)
    run(directory, world.tokenizer("german", "roberta"), tmp_path / "out", seed=3, **world.inputs())
    plan = TransferPlan.load(tmp_path / "out" / "transfer_plan.npz")
    assert plan.counts()["random"] > 10
    old, new = Checkpoint.open(directory), Checkpoint.open(tmp_path / "out")
    for tensor in old.vocabulary_tensors():
        matrix = old.read(tensor.name)[:700]
        again = plan.apply(matrix, draw_noise(matrix, 600, kind="source", seed=3, name=tensor.role))
        assert again.tobytes() == new.read(tensor.name).tobytes(), tensor.name


def test_the_seed_decides_and_nothing_else(world, source, tmp_path):
    files = {}
    for name, seed in (("a", 1), ("b", 1), ("c", 2)):
        run(source, world.tokenizer("german", "gpt2"), tmp_path / name, seed=seed, **world.inputs())
        files[name] = [(tmp_path / name / file).read_bytes() for file in ("model.safetensors", "transfer_plan.npz")]
    assert files["a"] == files["b"] and files["a"][0] != files["c"][0]


def test_full_rand_keeps_nothing_but_the_shape(world, save_source, tmp_path):
    directory, model = save_source("gpt2")
    run(directory, world.tokenizer("german", "gpt2"), tmp_path / "out", method="full_rand")
    fresh, old = load("gpt2", tmp_path / "out").state_dict(), model.state_dict()
    for name, tensor in fresh.items():
        if name.endswith("ln_1.weight"):
            assert (tensor == 1).all()
        elif name.endswith("bias"):
            assert not tensor.any() and ("ln" in name or old[name].any())
        elif "ln" not in name:
            assert tensor.std() < 0.025 and old[name].std() > 0.2, name


def test_full_rand_has_zeros_for_robertas_pad_token(world, save_source, tmp_path):
    directory, _ = save_source("roberta")
    run(directory, world.tokenizer("german", "roberta"), tmp_path / "out", method="full_rand")
    table = load("roberta", tmp_path / "out").get_input_embeddings().weight
    assert [int(i) for i in (table == 0).all(dim=1).nonzero()] == [1]


def test_positions_that_a_config_leaves_to_the_class_are_written_where_they_move(world, save_source, tmp_path):
    """And a text is cut where the model ends, wherever the new language's tokenizer would."""
    directory, _ = save_source("roberta", max_position_embeddings=transformers.RobertaConfig().max_position_embeddings)
    config = json.loads((directory / "config.json").read_text())
    del config["max_position_embeddings"]
    (directory / "config.json").write_text(json.dumps(config))
    settings = json.loads((directory / "tokenizer_config.json").read_text()) | {"model_max_length": 510}
    (directory / "tokenizer_config.json").write_text(json.dumps(settings))
    run(directory, renamed_ids(world, tmp_path, ("<pad>", 0)), tmp_path / "out", method="trans_inner_shuffle")
    model = load("roberta", tmp_path / "out")
    assert model.config.max_position_embeddings == 511
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "out")
    with torch.no_grad():
        model(**tokenizer("a " * 2000, truncation=True, return_tensors="pt"))


@pytest.mark.parametrize("pad_id", [0, 40], ids=["dropped", "added"])
def test_roberta_positions_follow_the_pad_token(world, save_source, tmp_path, pad_id):
    directory, model = save_source("roberta")
    tokenizer = renamed_ids(world, tmp_path, ("<pad>", pad_id))
    record = run(directory, tokenizer, tmp_path / "out", method="trans_inner_shuffle")
    copied = load("roberta", tmp_path / "out")
    plan = TransferPlan.load(tmp_path / "out" / "transfer_plan.npz")
    assert copied.config.pad_token_id == pad_id and plan.copy[pad_id] == model.config.pad_token_id == 1
    assert copied.config.max_position_embeddings == 34 + pad_id - 1
    assert any(note.startswith(f"The pad token's id moved by {pad_id - 1}") for note in record["notes"])
    tokens = torch.from_numpy(np.random.default_rng(0).integers(50, 600, (2, 32)))
    tokens[1, 25:] = pad_id
    with torch.no_grad():
        new = copied(tokens, attention_mask=tokens != pad_id).logits
        translated = torch.from_numpy(plan.copy.astype(np.int64))
        old = model(translated[tokens], attention_mask=tokens != pad_id).logits[..., translated]
    torch.testing.assert_close(new[tokens != pad_id], old[tokens != pad_id], atol=1e-6, rtol=0)


def test_a_padding_id_far_away_is_refused(world, save_source, tmp_path, monkeypatch):
    monkeypatch.setattr("wechsel_jax.checkpoint.architectures._MOST_PADDING_SHIFT", 100)
    directory, _ = save_source("roberta")
    with pytest.raises(UserError, match="pad token has id 500"):
        run(directory, renamed_ids(world, tmp_path, ("<pad>", 500)), tmp_path / "out", method="trans_inner")


def test_a_head_that_contradicts_the_config_stays_a_head(world, save_source, tmp_path):
    directory, _ = save_source("gpt2", tied=False)
    config = json.loads((directory / "config.json").read_text()) | {"tie_word_embeddings": True}
    (directory / "config.json").write_text(json.dumps(config))
    record = run(directory, world.tokenizer("german", "gpt2"), tmp_path / "out", method="trans_inner_shuffle")
    model = load("gpt2", tmp_path / "out")
    assert not torch.equal(model.lm_head.weight, model.transformer.wte.weight) and not record["source"]["tied"]
    assert model.config.tie_word_embeddings is False and any("untied" in note for note in record["notes"])


def test_a_copy_of_the_tied_table_is_left_out(world, save_source, tmp_path):
    directory, _ = save_source("gpt2")
    stored = {name: np.array(tensor.read()) for name, tensor in read_header(directory / "model.safetensors").items()}
    write_tensors(directory / "model.safetensors", stored | {"lm_head.weight": stored["transformer.wte.weight"]})
    run(directory, world.tokenizer("german", "gpt2"), tmp_path / "out", method="trans_inner_shuffle")
    assert "lm_head.weight" not in read_header(tmp_path / "out" / "model.safetensors")
    model = load("gpt2", tmp_path / "out")
    assert model.lm_head.weight is model.transformer.wte.weight


def test_a_dictionary_of_few_pairs_is_told_at_once(world, source, tmp_path):
    """As `inspect` tells it later: the rows are as good as the rotation that so few pairs give."""
    lines, few = [], tmp_path / "few.tsv"
    few.write_text("".join(world.dictionary.read_text(encoding="utf-8").splitlines(keepends=True)[:40]), encoding="utf-8")
    inputs = world.inputs() | {"dictionary": few}
    transfer(source, world.tokenizer("german", "gpt2"), tmp_path / "out", log=lines.append, **inputs)
    assert any(line.startswith("look: The rotation rests on ") for line in lines)


def test_the_record_says_what_was_done(world, source, tmp_path):
    lines = []
    record = transfer(source, world.tokenizer("german", "gpt2"), tmp_path / "out", log=lines.append, **world.inputs())
    assert json.loads((tmp_path / "out" / "transfer.json").read_text(encoding="utf-8")) == record
    assert record["format"] == 1 and record["method"] == "wechsel" and record["parity"] is False
    assert record["settings"]["neighbors"] == 10 and record["settings"]["weighting"] == "unique"
    assert record["source"] == {
        "model": str(source), "architecture": "gpt2", "class": "GPT2LMHeadModel", "vocabulary_size": 700,
        "hidden_size": 16, "tied": True,
    }  # fmt: skip
    plan = TransferPlan.load(tmp_path / "out" / "transfer_plan.npz")
    assert record["counts"] == plan.counts() and sum(record["counts"].values()) == 600
    assert record["alignment"]["pairs"] > 500 and 0 < record["similarity"]["median_top1"] <= 1
    table = Checkpoint.open(tmp_path / "out").read("transformer.wte.weight")
    assert record["norms"]["target"]["mean"] == pytest.approx(np.linalg.norm(table, axis=1).mean(), rel=1e-5)
    assert len(record["examples"]) == 30
    tokenizer = load_tokenizer(tmp_path / "out")
    for example in record["examples"]:
        if example["how"] == "mixed":
            assert sum(weight for _, weight in example["sources"]) == pytest.approx(1, abs=1e-3)
            assert [weight for _, weight in example["sources"]] == sorted((w for _, w in example["sources"]), reverse=True)
    ascii_examples = [e["target"] for e in record["examples"] if e["target"].replace("Ġ", "").isascii()]
    target = Vocabulary.from_tokenizer(tokenizer)
    shown = {readable(target, i) for i in range(len(target))}
    # Half a character is shown as its byte, "\\xc3"; all others as the tokenizer spells them.
    assert len(ascii_examples) > 10 and shown.issuperset(ascii_examples)
    assert all(token in tokenizer.get_vocab() for token in ascii_examples if "\\x" not in token)
    assert {"reading the word vectors", "making the plan", "writing the model"} <= record["timings"].keys()
    assert any(line.startswith("making the plan") for line in lines)
    card = (tmp_path / "out" / "README.md").read_text(encoding="utf-8")
    assert (
        "GPT2LMHeadModel" in card
        and "| special | 1 | under 1 % |" in card
        and str(world.root) not in card.split("How the vocabulary was replaced")[1]
    )
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out"]


# TreLM's start needs vectors of the table's dimensions, see test_trelm.
@pytest.mark.slow
@pytest.mark.parametrize("method", [name for name in METHODS if name != "trelm"])
def test_every_method_makes_a_model_and_says_which_rules(world, source, helper, tmp_path, method):
    texts = {"source_text": world.root / "english.txt", "target_text": world.root / "german.txt", "parallel": world.dictionary}
    options = {name: value for name, value in {**world.inputs(), **texts}.items() if name in METHODS[method].needs}
    options |= {"helper": helper} if METHODS[method].helper else {}
    # FOCUS's default are vectors of tokens, and these are vectors of words.
    options |= {"token_vectors": "ngram"} if method == "focus" else {}
    record = run(source, world.tokenizer("german", "gpt2"), tmp_path / "out", method=method, **options)
    load("gpt2", tmp_path / "out")
    # FullRand's is soon told: everything is drawn.
    fewest = 2 if method == "full_rand" else 3
    assert (
        all(rule.endswith(".") and "parity" not in rule for rule in record["behaviour"]) and len(record["behaviour"]) >= fewest
    )
    assert not any("does not use it" in note for note in record["notes"])


def test_vectors_that_are_not_needed_are_mentioned(world, source, tmp_path):
    record = run(source, world.tokenizer("german", "gpt2"), tmp_path / "out", method="trans_inner", **world.inputs())
    unused = [f"{name} was given, but trans_inner does not use it." for name in world.inputs()]
    assert set(unused) <= set(record["notes"]) and record["alignment"] is None
