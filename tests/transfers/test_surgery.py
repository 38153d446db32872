"""What surgery is asked to do besides following the plan: padding, transforms, other noise, special ids, little memory."""

import dataclasses
import json

import numpy as np
import pytest
import safetensors.numpy
import torch
import transformers as hf

from wechsel_jax.checkpoint import Checkpoint, write_checkpoint
from wechsel_jax.checkpoint import surgery as module
from wechsel_jax.checkpoint.architectures import ARCHITECTURES, padding_shift, position_shift
from wechsel_jax.checkpoint.surgery import Surgery, write_target
from wechsel_jax.errors import UserError
from wechsel_jax.initializers import METHODS, TransferPlan, draw_noise
from wechsel_jax.tokens import Vocabulary, load_tokenizer

V_S, V_T, D = 90, 61, 24
TABLE, HEAD, BIAS = "shared.weight", "lm_head.weight", "final_logits_bias"


def vocabulary(size: int, roles: dict[int, str], kind: str = "x") -> Vocabulary:
    """Tokens x0, x1, ...; `roles`: id -> role, or the string of a special token without one."""
    known = ("bos", "eos", "pad", "unk", "mask", "cls", "sep")
    strings = tuple(roles[i] if i in roles and roles[i] not in known else f"{kind}{i}" for i in range(size))
    special = tuple(frozenset({roles[i] if roles[i] in known else "special"} if i in roles else ()) for i in range(size))
    return Vocabulary(strings, tuple(s.encode() for s in strings), np.zeros(size, bool), special, "byte_bpe")


def plan(seed: int = 0) -> TransferPlan:
    random = np.random.default_rng(seed)
    kind = np.arange(V_T) % 3
    mixed = TransferPlan.mixed(random.integers(0, V_S, (V_T, 4)), random.standard_normal((V_T, 4)))
    copies = random.permutation(V_S)[:V_T]
    copies[:3] = (0, 1, 2)
    return mixed.with_noise(kind == 2).with_copies(np.where((kind == 1) | (np.arange(V_T) < 3), copies, -1))


TARGET = vocabulary(V_T, {0: "bos", 1: "pad", 2: "eos"})
SOURCE = vocabulary(V_S, {0: "bos", 1: "pad", 2: "eos"}, "s")


def arrays(rows: int = V_S, dtype: type = np.float32) -> dict[str, np.ndarray]:
    random = np.random.default_rng(7)
    tensors = {
        TABLE: random.standard_normal((rows, D)) + 1,
        HEAD: random.standard_normal((rows, D)) - 1,
        BIAS: random.standard_normal((1, rows)) - 3,
        "encoder.layers.0.fc1.weight": random.standard_normal((5, D)),
    }
    return {name: array.astype(dtype) for name, array in tensors.items()}


@pytest.fixture
def source(tmp_path):
    """An untied encoder-decoder of which nothing but the vocabulary matters."""
    (tmp_path / "source").mkdir()
    config = {"model_type": "bart", "vocab_size": V_S, "tie_word_embeddings": False, "pad_token_id": 1}
    write_checkpoint(tmp_path / "source", config, arrays(), None)
    return Checkpoint.open(tmp_path / "source")


def written(source: Checkpoint, monkeypatch, **options) -> tuple[dict[str, np.ndarray], dict, dict]:
    """Runs the surgery without a tokenizer; returns the tensors, the config and the norms."""
    output = source.directory.parent / f"out{len(list(source.directory.parent.iterdir()))}"
    output.mkdir()
    monkeypatch.setattr(module, "write_checkpoint", lambda d, c, t, _, g, s: write_checkpoint(d, c, t, None, g, s))
    operation = Surgery(
        source, options.pop("plan", plan()), METHODS["wechsel"], SOURCE, options.pop("target", TARGET), **options
    )
    write_target(operation, output, None)
    found = Checkpoint.open(output)
    norms = np.linalg.norm(found.read(found.table)[:V_T], axis=1)
    return {name: np.array(found.read(name)) for name in found.names()}, found.config, norms


def test_padding_is_the_mean_row_with_the_lowest_bias(source, monkeypatch):
    plain, _, plain_norms = written(source, monkeypatch)
    padded, config, norms = written(source, monkeypatch, pad_to=32)
    assert config["vocab_size"] == 64 and np.array_equal(norms, plain_norms)
    for name in (TABLE, HEAD):
        assert padded[name].shape == (64, D) and padded[name][:V_T].tobytes() == plain[name].tobytes()
        np.testing.assert_allclose(padded[name][V_T:], np.tile(plain[name].astype(np.float64).mean(0), (3, 1)), atol=1e-6)
    assert padded[BIAS].shape == (1, 64) and (padded[BIAS][0, V_T:] == plain[BIAS].min()).all()
    assert padded[BIAS][0, :V_T].tobytes() == plain[BIAS].tobytes()
    for exact in (V_T, 1, 0):
        assert written(source, monkeypatch, pad_to=exact)[0][TABLE].tobytes() == plain[TABLE].tobytes()


def test_padding_never_wins(source, monkeypatch):
    """Rows of zeros have logit 0: the highest there is, where a model's logits are all negative."""
    copies = TransferPlan.copied(np.random.default_rng(0).permutation(V_S)[:V_T])
    padded, _, _ = written(source, monkeypatch, pad_to=128, plan=copies)
    hidden = np.random.default_rng(0).standard_normal((200, D)) + 3
    scores = hidden @ padded[HEAD].astype(np.float64).T + padded[BIAS]
    assert (scores < 0).all(axis=1).any() and (scores.argmax(axis=1) < V_T).all()


def test_padding_loads_and_computes_the_same(world, save_source, tmp_path):
    directory, model = save_source("gpt2")
    target = load_tokenizer(world.tokenizer("german", "gpt2"))
    moved = TransferPlan.copied(np.random.default_rng(0).permutation(700)[:600])
    tmp_path.joinpath("out").mkdir()
    surgery = Surgery(
        Checkpoint.open(directory),
        moved,
        METHODS["trans_inner"],
        vocabulary(700, {}),
        Vocabulary.from_tokenizer(target),
        pad_to=128,
    )
    write_target(surgery, tmp_path / "out", target)
    new, info = hf.GPT2LMHeadModel.from_pretrained(tmp_path / "out", output_loading_info=True)
    assert not any(info[key] for key in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    assert new.config.vocab_size == new.lm_head.weight.shape[0] == 640 and new.lm_head.weight is new.transformer.wte.weight
    ids = torch.arange(3, 30)[None]
    with torch.no_grad():
        old_logits, new_logits = model(torch.from_numpy(moved.copy).long()[ids]).logits, new.eval()(ids).logits
    torch.testing.assert_close(new_logits[..., :600], old_logits[..., torch.from_numpy(moved.copy).long()])
    assert any("40 rows of padding" in note for note in surgery.notes)


def test_transforms_see_every_finished_table_before_padding(source, monkeypatch):
    seen = []

    def double(table: np.ndarray, role: str) -> np.ndarray:
        seen.append((role, table.shape))
        return table * 2

    plain, _, _ = written(source, monkeypatch)
    doubled, _, norms = written(source, monkeypatch, transform=double, pad_to=64)
    assert sorted(seen) == [("head", (V_T, D)), ("input", (V_T, D))]
    assert np.array_equal(doubled[TABLE][:V_T], plain[TABLE] * 2) and np.array_equal(doubled[BIAS][:, :V_T], plain[BIAS])
    np.testing.assert_allclose(doubled[HEAD][V_T:], np.tile(2 * plain[HEAD].mean(0), (3, 1)), atol=1e-5)
    np.testing.assert_allclose(norms, np.linalg.norm(doubled[TABLE][:V_T], axis=1))


def test_factorised_tables_are_those_of_ofa(source, monkeypatch):
    plain, _, _ = written(source, monkeypatch)
    notes: list[str] = []
    low, _, _ = written(source, monkeypatch, latent_dimension=5, factorised=True, notes=notes)
    assert not any("padding" in note for note in notes)
    written(source, monkeypatch, latent_dimension=5, factorised=True, pad_to=64, notes=notes)
    assert "The factors are of the tokens' rows, without the rows of padding." in notes
    place = min(source.directory.parent.glob("out*/factors-shared.weight.safetensors"))
    for name in (TABLE, HEAD):
        factors = safetensors.numpy.load_file(place.with_name(f"factors-{name}.safetensors"))
        assert factors["coordinates"].shape == (V_T, 5) and np.linalg.matrix_rank(low[name]) == 5
        np.testing.assert_allclose(factors["coordinates"] @ factors["projection"], low[name], atol=1e-5)
        # The best approximation of rank 5 comes from numpy's decomposition; the plan is linear in it but for the noise.
        left, values, right = np.linalg.svd(arrays()[name].astype(np.float64), full_matrices=False)
        best, known = (left[:, :5] * values[:5]) @ right[:5], ~plan().random
        expected = plan().apply(best.astype(np.float32), np.zeros((V_T, D)))
        np.testing.assert_allclose(low[name][known], expected[known], atol=1e-4)
        assert not np.array_equal(low[name], plain[name])
    assert np.array_equal(low[BIAS], plain[BIAS])


@pytest.mark.parametrize("kind", ["source_sample", "mean", "xavier", "initializer_range"])
def test_noise_of_another_kind(source, monkeypatch, kind):
    found, _, _ = written(source, monkeypatch, noise=kind, seed=5)
    matrix, random = arrays()[TABLE], plan().random
    expected = draw_noise(matrix, V_T, kind=kind, seed=5, name="input", where=random)
    assert np.array_equal(found[TABLE][random], expected[random])
    assert not np.array_equal(found[TABLE][random], written(source, monkeypatch, seed=5)[0][TABLE][random])


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["source", "multivariate", "mean", "xavier", "initializer_range"])
@pytest.mark.parametrize("limit", [1, 2000, 5000])
def test_a_table_made_in_parts_has_the_same_bytes(source, monkeypatch, kind, limit):
    whole, _, _ = written(source, monkeypatch, noise=kind)
    monkeypatch.setattr(module, "_BLOCK_BYTES", limit)
    parts, _, _ = written(source, monkeypatch, noise=kind)
    assert all(whole[name].tobytes() == parts[name].tobytes() for name in whole)


@pytest.mark.parametrize("parity", [True, False])
def test_parity_noise_in_parts_has_the_same_bytes(source, monkeypatch, parity):
    whole, _, _ = written(source, monkeypatch, parity=parity)
    monkeypatch.setattr(module, "_BLOCK_BYTES", 2000)
    assert written(source, monkeypatch, parity=parity)[0][TABLE].tobytes() == whole[TABLE].tobytes()


def test_a_bias_of_zeros(source, monkeypatch):
    found, _, _ = written(source, monkeypatch, head_bias="zeros", pad_to=64)
    assert found[BIAS].shape == (1, 64) and not found[BIAS].any()


def config_of(source: Checkpoint, monkeypatch, generation: dict | None = None, **fields) -> tuple[dict, dict, list[str]]:
    """The new config and generation config of a model whose config has these fields, and the notes."""
    (source.directory / "config.json").write_text(json.dumps(source.config | fields))
    if generation is not None:
        (source.directory / "generation_config.json").write_text(json.dumps(generation))
    notes: list[str] = []
    codes = {0: "bos", 1: "pad", 2: "eos", 5: "<|eot|>", 6: "de_DE", 7: "fr_FR"}
    copy = np.full(V_T, -1)
    copy[[0, 1, 2, 5, 6, 9]] = (10, 11, 12, 15, 16, 17)  # 9 is no special token: its copy says nothing of a role
    used = TransferPlan.mixed(np.zeros((V_T, 1)), np.ones((V_T, 1))).with_copies(copy)
    _, config, _ = written(
        Checkpoint.open(source.directory), monkeypatch, plan=used, target=vocabulary(V_T, codes), notes=notes
    )
    outputs = sorted(source.directory.parent.glob("out*"))
    file = outputs[-1] / "generation_config.json"
    return config, json.loads(file.read_text()) if file.exists() else {}, notes


def test_special_ids_follow_their_role_or_the_row_they_came_from(source, monkeypatch):
    fields = {"bos_token_id": 10, "pad_token_id": 11, "eos_token_id": 12, "decoder_start_token_id": 12}
    fields |= {"forced_bos_token_id": 16, "decoder_vocab_size": V_S}
    generation = {
        "eos_token_id": [12, 15],
        "forced_bos_token_id": 17,
        "bad_words_ids": [[11], [15]],
        "suppress_tokens": [11, 17],
    }
    config, generated, notes = config_of(source, monkeypatch, generation, **fields)
    wanted = {"bos_token_id": 0, "pad_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 2, "forced_bos_token_id": 6}
    assert {key: config[key] for key in wanted} == wanted and config["decoder_vocab_size"] == V_T
    assert generated["eos_token_id"] == [2, 5] and generated["bad_words_ids"] == [[1], [5]]
    assert generated["forced_bos_token_id"] is None and "suppress_tokens" not in generated
    assert [note.split(" was ")[0] for note in notes] == [
        "generation_config.json: forced_bos_token_id", "generation_config.json: suppress_tokens",
    ]  # fmt: skip


def test_lists_of_ends(source, monkeypatch):
    for listed, expected, noted in (
        ([15, 12], [5, 2], 0),
        ([15], [2, 5], 0),  # the tokenizer's own end is always one
        ([12], 2, 0),
        ([12, 17], 2, 1),
        ([], 2, 0),
    ):
        config, _, notes = config_of(source, monkeypatch, eos_token_id=listed, bos_token_id=10)
        assert (config["eos_token_id"], len(notes)) == (expected, noted), listed


def test_a_pad_token_that_was_the_end_stays_the_end(source, monkeypatch):
    target = vocabulary(V_T, {2: "eos"})
    (source.directory / "config.json").write_text(
        json.dumps(source.config | {"eos_token_id": 12, "pad_token_id": 12, "model_type": "bart"})
    )
    copy = np.full(V_T, -1)
    copy[2] = 12
    used = TransferPlan.all_random(V_T).with_copies(copy)
    _, config, _ = written(Checkpoint.open(source.directory), monkeypatch, plan=used, target=target)
    assert (config["eos_token_id"], config["pad_token_id"]) == (2, 2)


def test_positions_that_the_model_computes_from_the_pad_id():
    record = ARCHITECTURES["xglm"]
    assert record.computed_positions and ARCHITECTURES["m2m_100"].computed_positions
    near, far = vocabulary(V_T, {3: "pad"}), vocabulary(V_T, {40: "pad"})
    assert position_shift(record, {"pad_token_id": 1}, near, "t") == 0 and padding_shift(record, {"pad_token_id": 1}, near) == 2
    with pytest.raises(UserError, match=r"t: its pad token has id 40, the model's 1; .*every position would be another by 39"):
        position_shift(record, {"pad_token_id": 1}, far, "t")
    assert position_shift(ARCHITECTURES["roberta"], {"pad_token_id": 1}, near, "t") == 2
    assert position_shift(ARCHITECTURES["opt"], {"pad_token_id": 1}, far, "t") == 0


def test_every_record_finds_its_own_tensors_and_no_other():
    for name, record in ARCHITECTURES.items():
        assert dataclasses.is_dataclass(record) and record.base and record.roles, name
        for other in ("transformer.h.0.attn.bias", "model.layers.0.mlp.up_proj.weight", "encoder.final_layer_norm.weight"):
            assert record.role(other) is None, (name, other)
