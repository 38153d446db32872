"""Calibration through the whole job: what it writes, what torch predicts with it, and that it never does harm."""

import json
import lzma

import numpy as np
import pytest
import torch
import transformers

from wechsel_jax import cli, demo
from wechsel_jax.checkpoint import Checkpoint
from wechsel_jax.checkpoint.tensors import read_header
from wechsel_jax.errors import UserError
from wechsel_jax.tokens import Vocabulary, load_tokenizer
from wechsel_jax.tokens.text import read_token_ids
from wechsel_jax.transfers import calibration as transfer_calibration
from wechsel_jax.transfers.calibration import require_family
from wechsel_jax.transfers.job import transfer
from wechsel_jax.transfers.samples import split_text

BIASES = {"lm_head.bias", "lm_head.decoder.bias"}


@pytest.fixture(scope="module")
def german(tmp_path_factory):
    place = tmp_path_factory.mktemp("text") / "de.txt"
    with lzma.open(demo.path("german.train.txt.xz"), "rt", encoding="utf-8") as handle:
        place.write_text("".join(line for line, _ in zip(handle, range(700), strict=False)), encoding="utf-8")
    return place


def save_llama(world, directory, tied: bool):
    tokenizer = transformers.AutoTokenizer.from_pretrained(world.tokenizer("english", "gpt2"))
    torch.manual_seed(1)
    config = transformers.LlamaConfig(
        vocab_size=len(tokenizer), hidden_size=16, intermediate_size=24, num_hidden_layers=2, num_attention_heads=2,
        max_position_embeddings=64, tie_word_embeddings=tied, bos_token_id=0, eos_token_id=0,
    )  # fmt: skip
    model = transformers.LlamaForCausalLM(config)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn(parameter.shape) * 0.3 + (parameter.dim() == 1))
    model.save_pretrained(directory)
    tokenizer.save_pretrained(directory)
    return directory


@pytest.fixture
def make(world, save_source, tmp_path, german):
    """Returns a function: (kind, tied) -> directories with and without calibration, and the record of the first."""

    def made(kind: str, tied: bool = True, dtype: torch.dtype = torch.float32, **options):
        style = "roberta" if kind == "roberta" else "gpt2"
        source = (
            save_llama(world, tmp_path / "llama", tied) if kind == "llama" else save_source(kind, tied=tied, dtype=dtype)[0]
        )
        inputs = world.inputs() | options
        places = [tmp_path / "calibrated", tmp_path / "plain"]
        for place, calibration in zip(places, ({"calibrate": "unigram", "target_text": german}, {}), strict=True):
            record = transfer(source, world.tokenizer("german", style), place, log=lambda line: None, **inputs, **calibration)
            if calibration:
                kept = record
        return *places, kept

    return made


def predictions(directory, german, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """torch's average prediction where the offsets were fitted, and the frequencies (V,)."""
    checkpoint, tokenizer = Checkpoint.open(directory), load_tokenizer(directory)
    vocabulary = Vocabulary.from_tokenizer(tokenizer)
    family, config = require_family(checkpoint)
    ids = read_token_ids(tokenizer, german)
    fitted, _, counts = split_text(ids, tokenizer, vocabulary, family.causal, config.max_length, seed, "")
    auto = transformers.AutoModelForCausalLM if family.causal else transformers.AutoModelForMaskedLM
    model = auto.from_pretrained(directory).float().eval()
    with torch.no_grad():
        logits = model(torch.from_numpy(fitted.tokens).long()).logits.double().numpy()
    logits = np.take_along_axis(logits, fitted.positions[:, :, None], axis=1).reshape(-1, logits.shape[-1])
    shares = np.exp(logits - logits.max(axis=1, keepdims=True))
    return (shares / shares.sum(axis=1, keepdims=True)).mean(axis=0), counts / counts.sum()


def divergence(average, wanted):
    known = wanted > 0
    return float(wanted[known] @ np.log(wanted[known] / average[known]))


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "tied", "form", "changes"), [
    ("gpt2", True, "tied rows", {"transformer.wte.weight"}),
    ("llama", False, "head rows", {"lm_head.weight"}),
    ("roberta", False, "bias", BIASES),
])  # fmt: skip
def test_torch_predicts_the_frequencies(make, german, kind, tied, form, changes):
    calibrated, plain, record = make(kind, tied)
    found = record["calibration"]
    assert found["form"] == form and record["settings"]["calibrate"] == "unigram"
    # The head reads the hidden states of each position that was fitted on more than once.
    more = record["cost"]["flops"] - json.loads((plain / "transfer.json").read_text())["cost"]["flops"]
    assert more > 4 * found["positions"] * 16 * record["target"]["vocabulary_size"]
    assert found["loss"][1] < found["loss"][0] and np.allclose(np.exp(found["loss"]), found["perplexity"])
    before, wanted = predictions(plain, german)
    after, _ = predictions(calibrated, german)
    np.testing.assert_allclose([divergence(before, wanted), divergence(after, wanted)], found["divergence"], atol=2e-3)
    assert divergence(after, wanted) < 0.3 * divergence(before, wanted)
    if form == "bias":
        np.testing.assert_allclose(after, wanted, atol=2e-3)
        assert divergence(after, wanted) < 0.01
    old, new = (read_header(place / "model.safetensors") for place in (plain, calibrated))
    different = {name for name in old if old[name].read().tobytes() != new[name].read().tobytes()}
    assert different <= changes and different, different
    stored = Checkpoint.open(calibrated)
    lengths = np.linalg.norm(stored.read(stored.table).astype(np.float64), axis=1)
    np.testing.assert_allclose(record["norms"]["target"]["mean"], lengths.mean(), rtol=1e-5)
    assert "frequencies of tokens in target text" in " ".join(record["behaviour"])


@pytest.mark.slow
def test_ordinary_rows_and_those_of_padding_move_along_one_direction(make, german):
    calibrated, plain, _ = make("gpt2", pad_to=64)
    old, new = (np.array(Checkpoint.open(place).read("transformer.wte.weight"), np.float64) for place in (plain, calibrated))
    change = new - old
    assert len(new) == 640 and (np.abs(change).max(axis=1) > 0).sum() > 590
    values = np.linalg.svd(change, compute_uv=False)
    assert values[1] < 1e-5 * values[0]
    # Padding is hardly guessed any more, and its rows are no longer than those of rare tokens.
    before, after = (predictions(place, german)[0][600:].sum() for place in (plain, calibrated))
    assert after < 0.2 * before
    lengths = np.linalg.norm(new, axis=1)
    assert lengths[600:].max() < lengths[:600].max()


def test_a_bfloat16_model_is_judged_as_it_is_stored(make):
    calibrated, _, record = make("gpt2", dtype=torch.bfloat16)
    assert Checkpoint.open(calibrated).tensors["transformer.wte.weight"].code == "BF16"
    again = transfer_calibration.calibrate(
        calibrated, load_tokenizer(calibrated), Vocabulary.from_tokenizer(load_tokenizer(calibrated)),
        tuple(record["settings"]["target_text"]),
    )  # fmt: skip
    np.testing.assert_allclose(again["loss"][0], record["calibration"]["loss"][1], rtol=1e-6)


def test_what_does_not_help_is_left_out(make, monkeypatch):
    real = transfer_calibration.fit_offsets

    def harmful(*arguments, steps, **options):
        fit = real(*arguments, steps=min(steps, 1), **options)
        return fit if steps == 0 else type(fit)(-10 * fit.offsets, fit.objective, fit.average)

    monkeypatch.setattr(transfer_calibration, "fit_offsets", harmful)
    calibrated, plain, record = make("gpt2")
    assert (calibrated / "model.safetensors").read_bytes() == (plain / "model.safetensors").read_bytes()
    found = record["calibration"]
    assert found["loss"][0] == found["loss"][1] and found["offsets"]["largest"] == 0 and len(found["rounds"]) == 3
    assert any("Calibration was left out" in note for note in record["notes"])


@pytest.mark.slow
def test_the_same_bytes_again_and_by_the_command_line(world, make, german, save_source, tmp_path):
    calibrated, plain, _ = make("roberta", seed=3)
    files = [f"--{name}={value}" for name, value in world.inputs().items()]
    source = save_source("roberta")[0]
    cli.main([
        "transfer", f"--source={source}", f"--target_tokenizer={world.tokenizer('german', 'roberta')}",
        f"--output={tmp_path / 'again'}", "--seed=3", "--calibrate=unigram", f"--target_text={german}", *files,
    ])  # fmt: skip
    again = (tmp_path / "again" / "model.safetensors").read_bytes()
    assert again == (calibrated / "model.safetensors").read_bytes() != (plain / "model.safetensors").read_bytes()


def test_held_out_text_is_not_counted(world, german):
    tokenizer = load_tokenizer(world.tokenizer("german", "gpt2"))
    vocabulary = Vocabulary.from_tokenizer(tokenizer)
    ids = read_token_ids(tokenizer, german)
    fitted, held_out, counts = split_text(ids, tokenizer, vocabulary, True, 32, 0, "")
    assert fitted.tokens.shape == (64, 32) and held_out.tokens.shape == (32, 32) and counts.sum() == len(ids) - 32 * 33
    stream = np.where(ids < 0, vocabulary.id_with_role("eos"), ids)
    for sample in (fitted, held_out):
        rows = np.concatenate([sample.tokens, sample.targets.reshape(-1, 32)[:, -1:]], axis=1)
        windows = {tuple(stream[i : i + 33]) for i in range(0, len(stream) - 32, 33)}
        assert {tuple(row) for row in rows} <= windows
        np.testing.assert_array_equal(sample.targets.reshape(-1, 32)[:, :-1], sample.tokens[:, 1:])


def test_masked_rows_have_their_special_tokens(world, german):
    tokenizer = load_tokenizer(world.tokenizer("german", "roberta"))
    vocabulary = Vocabulary.from_tokenizer(tokenizer)
    fitted, _, _ = split_text(read_token_ids(tokenizer, german), tokenizer, vocabulary, False, 32, 0, "")
    assert (fitted.tokens[:, 0] == tokenizer.bos_token_id).all() and (fitted.tokens[:, -1] == tokenizer.eos_token_id).all()
    masked = np.take_along_axis(fitted.tokens, fitted.positions, axis=1)
    assert (masked == tokenizer.mask_token_id).all() and (fitted.tokens == tokenizer.mask_token_id).sum() == masked.size
    assert tokenizer.mask_token_id not in fitted.targets and fitted.positions.shape[1] == 4


def test_an_architecture_that_cannot_be_run_is_refused_at_once(world, german, tmp_path):
    tokenizer = transformers.AutoTokenizer.from_pretrained(world.tokenizer("english", "gpt2"))
    config = transformers.GPTNeoXConfig(
        vocab_size=len(tokenizer), hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16,
        max_position_embeddings=64, bos_token_id=0, eos_token_id=0,
    )  # fmt: skip
    transformers.GPTNeoXForCausalLM(config).save_pretrained(tmp_path / "neox")
    tokenizer.save_pretrained(tmp_path / "neox")
    with pytest.raises(UserError, match=r"calibrate: no gpt_neox model is implemented here.*expected one of bert, gemma"):
        transfer(
            tmp_path / "neox", world.tokenizer("german", "gpt2"), tmp_path / "out", method="trans_inner", calibrate="unigram",
            target_text=german, log=lambda line: None,
        )  # fmt: skip
    assert not (tmp_path / "out").exists()
