"""Real models, where WECHSEL_JAX_REAL_MODELS names a folder of them; and the measure that the benchmark takes of them."""

import json
import math
import os
from pathlib import Path

import jax
import numpy as np
import pytest
import torch
import transformers

from benchmarks import real_models
from wechsel_jax import Checkpoint, TransferPlan, Vocabulary, load_tokenizer, transfer
from wechsel_jax.models import family

FOLDER = Path(os.environ.get("WECHSEL_JAX_REAL_MODELS", ""))
MODELS = sorted(path.parent.name for path in FOLDER.glob("*/config.json")) if "WECHSEL_JAX_REAL_MODELS" in os.environ else []
TEXT = "Der Mond ist aufgegangen, die goldnen Sternlein prangen.\nÜber allen Gipfeln ist Ruh.\n"
ENGLISH = "The old keeper climbed the stairs every evening, lit the lamp, and wrote down how many ships had passed."
real = pytest.mark.skipif(not MODELS, reason="WECHSEL_JAX_REAL_MODELS names no folder of models")


@pytest.fixture(scope="module", params=MODELS or [""])
def causal(request) -> Path:
    """A real causal language model."""
    directory = FOLDER / request.param
    if not any("CausalLM" in name for name in Checkpoint.open(directory).config.get("architectures", [])):
        pytest.skip(f"{request.param} is no causal language model")
    return directory


@pytest.fixture(scope="module")
def transferred(causal, data_directory, tmp_path_factory) -> tuple[Path, Path]:
    """The model and what became of it with a German tokenizer."""
    output = tmp_path_factory.mktemp("real") / "german"
    transfer(causal, data_directory / real_models.TARGETS["de"].tokenizer, output, method="fvt", log=lambda line: None)
    return causal, output


@real
def test_source_understands_english(causal, data_directory):
    text = real_models.read_text(data_directory / real_models.ENGLISH, 6000)
    assert 5 < real_models.perplexity(causal, text, 512)["perplexity"] < 60


@real
def test_the_trainer_computes_what_transformers_does(causal):
    """On a real sentence: every tensor there and back bit for bit, and logits as close to float64 as torch's own float32 is.

    Logits of real models reach 36, where float32 itself is only good to about 5e-5, so an absolute 2e-5 is not to be had.
    """
    checkpoint = Checkpoint.open(causal)
    record = family(checkpoint.architecture)
    config = record.config(checkpoint.config)
    tensors = {name: checkpoint.read(name) for name in checkpoint.names()}
    params = record.from_hugging_face(tensors, config)
    back = record.to_hugging_face(params, config)
    assert back.keys() == tensors.keys()
    assert all(np.array_equal(back[name], tensor.astype(np.float32)) for name, tensor in tensors.items())
    ids = np.array([load_tokenizer(causal)(ENGLISH)["input_ids"]], np.int32)
    ours = jax.jit(lambda params: record.logits(params, config, record.hidden(params, config, ids)))(params)
    model = transformers.AutoModelForCausalLM.from_pretrained(causal, dtype=torch.float32, attn_implementation="eager").eval()
    with torch.inference_mode():
        single = model(torch.tensor(ids).long()).logits.numpy()
        exact = model.double()(torch.tensor(ids).long()).logits.numpy()
    assert np.abs(ours - single).max() < 2e-5 * np.abs(single).max()
    assert np.abs(ours - exact).max() < 3 * np.abs(single - exact).max()


@real
def test_what_a_transfer_promises(transferred):
    source, target = transferred
    checks = real_models.check(source, target)
    assert real_models.passed(checks)
    assert checks["copied_rows"] > 5000
    assert checks["other_tensors"] == len(Checkpoint.open(source).names()) - 1
    assert checks["logit_difference"] < 1e-3


@real
def test_special_tokens_keep_their_roles(transferred):
    target = transferred[1]
    plan = TransferPlan.load(target / "transfer_plan.npz")
    old, new = (Vocabulary.from_tokenizer(load_tokenizer(directory)) for directory in transferred)
    config = json.loads((target / "config.json").read_text(encoding="utf-8"))
    for role in ("bos", "eos", "unk"):
        token = new.id_with_role(role)
        assert role in old.roles[plan.copy[token]]
        assert role == "unk" or config[f"{role}_token_id"] == token


@real
def test_pieces_beat_noise_on_real_text(transferred, data_directory, tmp_path):
    source, target = transferred
    german = real_models.TARGETS["de"]
    text = real_models.read_text(data_directory / german.text, 3000)
    transfer(source, data_directory / german.tokenizer, tmp_path / "noise", method="trans_inner", log=lambda line: None)
    first = real_models.starts_with(source)
    pieces, noise = (real_models.perplexity(place, text, 256, first) for place in (target, tmp_path / "noise"))
    assert pieces["bits_per_byte"] + 3 * pieces["standard_error"] < noise["bits_per_byte"]


@real
@pytest.mark.parametrize("name", MODELS)
def test_tokenizers_keep_every_byte(name, data_directory):
    tokenizer = load_tokenizer(FOLDER / name)
    vocabulary = Vocabulary.from_tokenizer(tokenizer)
    if vocabulary.kind == "wordpiece":
        pytest.skip("WordPiece does not keep spaces")
    for place in sorted((data_directory / "text").glob("*.wikipedia_*.txt.xz")):
        text = real_models.read_text(place, 20_000)
        assert vocabulary.join(tokenizer(text, add_special_tokens=False)["input_ids"]) == text.encode(), place.name


@pytest.fixture(scope="module")
def equal_logits(save_source) -> Path:
    """A GPT-2 for which all tokens are equally likely."""
    directory, model = save_source("gpt2")
    with torch.no_grad():
        model.transformer.wte.weight.zero_()
    model.save_pretrained(directory)
    return directory


@pytest.mark.parametrize("first", ["", "bos"])
def test_uniform_model_has_uniform_bits(equal_logits, first):
    found = real_models.perplexity(equal_logits, TEXT, 16, first)
    size = len(load_tokenizer(equal_logits))
    assert found["perplexity"] == pytest.approx(size, rel=1e-5)
    assert found["bits_per_byte"] == pytest.approx(found["uniform"], rel=1e-5)
    assert found["bits_per_byte"] * found["bytes"] == pytest.approx(math.log2(size) * found["tokens"], rel=1e-5)
    # A start token lets every token of the text be scored; without one the first of each window is only read.
    assert (found["bytes"] == len(TEXT.encode())) == (first == "bos")


def test_perplexity_is_that_of_transformers(source):
    tokenizer = load_tokenizer(source)
    ids = torch.tensor([tokenizer(TEXT)["input_ids"]])[:, :32]
    model = transformers.AutoModelForCausalLM.from_pretrained(source)
    text = tokenizer.decode(ids[0], clean_up_tokenization_spaces=False)
    assert tokenizer(text)["input_ids"] == ids[0].tolist()
    with torch.inference_mode():
        expected = model(ids, labels=ids).loss.item()
    found = real_models.perplexity(source, text, 32)
    assert math.log(found["perplexity"]) == pytest.approx(expected, rel=1e-5)
    assert found["tokens"] == ids.shape[1] - 1


def test_check_sees_what_went_wrong(source, world, tmp_path):
    from safetensors.torch import load_file, save_file

    target = tmp_path / "target"
    transfer(source, world.tokenizer("german", "gpt2"), target, method="trans_inner", log=lambda line: None)
    assert real_models.passed(real_models.check(source, target))
    tensors = load_file(target / "model.safetensors")
    copy = TransferPlan.load(target / "transfer_plan.npz").copy
    token = int(np.flatnonzero(copy >= 0)[0])
    for name, key in (("transformer.wte.weight", "copied_rows_equal"), ("transformer.wpe.weight", "other_tensors_equal")):
        changed = tensors[name].clone()
        changed[token] += 1e-6
        save_file(tensors | {name: changed}, target / "model.safetensors", {"format": "pt"})
        checks = real_models.check(source, target)
        assert not checks[key]
        assert not real_models.passed(checks)
