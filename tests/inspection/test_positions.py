"""What is left of positions, against every word at every position, scikit-learn, and transformers' own positions."""

import math
import sys

import numpy as np
import pytest
from sklearn.linear_model import LinearRegression

from wechsel_jax.checkpoint import Checkpoint
from wechsel_jax.errors import UserError
from wechsel_jax.inspection.distribution import TableRows, moments_of
from wechsel_jax.inspection.positions import Positions, absorption, of_checkpoint, probe, sinusoidal

LENGTH, DIMENSION, SIZE = 12, 10, 150


def table(size=SIZE) -> np.ndarray:
    generator = np.random.default_rng(1)
    return generator.standard_normal((size, DIMENSION)) @ generator.standard_normal((DIMENSION, DIMENSION)) + 0.5


def every_input(rows: np.ndarray, positions: Positions, scale: float) -> np.ndarray:
    """(L, N, D), each word at each position."""
    import torch
    from transformers.models.llama.modeling_llama import apply_rotary_pos_emb

    met = np.repeat(scale * rows[None], LENGTH, axis=0)
    if positions.table is not None:
        return met + positions.table[:LENGTH, None]
    angle = np.arange(LENGTH)[:, None] * positions.theta ** (-np.arange(0, DIMENSION, 2) / DIMENSION)
    angle = torch.tensor(np.concatenate([angle, angle], axis=1))[None]
    words = torch.tensor(met).transpose(0, 1)[:, None]
    turned, _ = apply_rotary_pos_emb(words, words, angle.cos(), angle.sin())
    return turned[:, 0].transpose(0, 1).numpy()


@pytest.mark.parametrize("scale", [0.05, 1.0, math.sqrt(DIMENSION), 1e4])
@pytest.mark.parametrize("kind", ["sinusoidal", "paired", "halves", "learned", "rotary"])
def test_share_and_linear_reader_are_those_of_every_word_at_every_position(kind, scale):
    made = {
        "learned": Positions("learned", np.random.default_rng(2).standard_normal((LENGTH, DIMENSION)) + 3),
        "rotary": Positions("rotary", theta=500.0),
    }
    positions = made.get(kind) or sinusoidal(kind, LENGTH, DIMENSION)
    rows = table()
    share, linear = absorption(*moments_of(TableRows.of(rows, "t")), positions, LENGTH, scale)
    met = every_input(rows, positions, scale)
    # The law of total variance: of each dimension, the variance of the positions' means is what positions explain.
    assert share == pytest.approx(met.mean(axis=1).var(axis=0).sum() / met.reshape(-1, DIMENSION).var(axis=0).sum(), rel=1e-9)
    flat, number = met.reshape(-1, DIMENSION), np.repeat(np.arange(LENGTH), SIZE)
    assert linear == pytest.approx(LinearRegression().fit(flat, number).score(flat, number), abs=1e-7)


def test_a_turn_does_not_care_for_the_scale_and_relative_positions_are_not_in_the_input():
    moments = moments_of(TableRows.of(table(), "t"))
    assert absorption(*moments, Positions("rotary"), LENGTH, 1000.0) == pytest.approx(
        absorption(*moments, Positions("rotary"), LENGTH)
    )
    assert absorption(*moments, Positions("relative"), LENGTH) == (0.0, 0.0)


def test_a_probe_finds_what_is_there_for_words_that_it_has_not_seen():
    rows = TableRows.of(table(3000), "t")
    added = sinusoidal("paired", LENGTH, DIMENSION)
    clear, faint, gone = (probe(rows, added, LENGTH, scale) for scale in (1e-4, 0.2, 1e5))
    assert clear.r2 == pytest.approx(1, abs=1e-3) and clear.accuracy > 0.999
    assert gone.r2 < 0.02 and gone.accuracy == pytest.approx(1 / LENGTH, abs=0.03)
    # In between, what the best linear reader of the whole vocabulary finds, but for the sample.
    _, linear = absorption(*moments_of(rows), added, LENGTH, 0.2)
    assert 0.2 < linear < 0.98 and faint.r2 == pytest.approx(linear, abs=0.05)
    assert gone.accuracy < faint.accuracy < clear.accuracy
    assert probe(rows, added, LENGTH, 0.2) == faint != probe(rows, added, LENGTH, 0.2, seed=1)


def test_a_probe_needs_rows_and_scikit_learn(monkeypatch):
    with pytest.raises(UserError, match="t: 20 rows are too few for a probe"):
        probe(TableRows.of(table(20), "t"), sinusoidal("paired", LENGTH, DIMENSION), LENGTH)
    with pytest.raises(UserError, match="t: 30 rows are too few to tell 1,000,000 positions apart; expected a smaller length"):
        probe(TableRows.of(table(30), "t"), Positions("rotary", None), 1_000_000)
    monkeypatch.setitem(sys.modules, "sklearn.linear_model", None)
    with pytest.raises(UserError, match=r"sklearn: not installed; .* for --probe; .*'wechsel-jax\[eval\]'"):
        probe(TableRows.of(table(), "t"), sinusoidal("paired", LENGTH, DIMENSION), LENGTH)


@pytest.mark.parametrize("dimension", [16, 17])
def test_halves_are_fairseqs(dimension):
    from transformers.models.xglm.modeling_xglm import XGLMSinusoidalPositionalEmbedding

    theirs = XGLMSinusoidalPositionalEmbedding.get_embedding(9, dimension).numpy()
    np.testing.assert_allclose(sinusoidal("halves", 9, dimension).table, theirs, atol=1e-6)


SMALL = {"vocab_size": 40, "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 24}
BART = {
    **{"vocab_size": 40, "d_model": 16, "encoder_layers": 1, "decoder_layers": 1, "encoder_attention_heads": 2},
    **{"decoder_attention_heads": 2, "encoder_ffn_dim": 24, "decoder_ffn_dim": 24, "pad_token_id": 1},
}
T5 = {"vocab_size": 40, "d_model": 16, "d_kv": 8, "d_ff": 24, "num_layers": 1, "num_heads": 2}
FAMILIES = {
    "gpt2": ("learned", {"vocab_size": 40, "n_embd": 16, "n_layer": 1, "n_head": 2}),
    "bert": ("learned", SMALL),
    "roberta": ("learned", SMALL | {"pad_token_id": 1}),
    "opt": ("learned", {"vocab_size": 40, "hidden_size": 16, "ffn_dim": 24, "num_hidden_layers": 1, "num_attention_heads": 2,
            "word_embed_proj_dim": 16}),
    "bart": ("learned", BART | {"scale_embedding": True}),
    "xglm": ("halves", {"vocab_size": 40, "d_model": 16, "ffn_dim": 24, "num_layers": 1, "attention_heads": 2}),
    "m2m_100": ("halves", BART | {"scale_embedding": True}),
    "marian": ("halves", BART | {"decoder_start_token_id": 1}),
    "pegasus": ("halves", BART),
    "t5": ("relative", T5),
    "llama": ("rotary", SMALL | {"num_key_value_heads": 2, "rope_theta": 500.0}),
    "gemma3_text": ("rotary", SMALL | {"num_key_value_heads": 1, "head_dim": 8}),
    "gpt_neox": ("rotary", SMALL),
}  # fmt: skip


@pytest.mark.parametrize("family", FAMILIES)
def test_positions_of_a_checkpoint_are_those_that_transformers_adds(family, tmp_path):
    import torch
    import transformers

    torch.manual_seed(0)
    kind, fields = FAMILIES[family]
    config = transformers.AutoConfig.for_model(family, **fields)
    # With a head, these do not store the positions, which are computed.
    kinds = {"marian": transformers.MarianMTModel, "pegasus": transformers.PegasusForConditionalGeneration}
    model = (kinds[family](config) if family in kinds else transformers.AutoModel.from_config(config)).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if kind != "halves" or "embed_positions" not in name:
                parameter.copy_(torch.randn(parameter.shape))
    model.save_pretrained(tmp_path)
    found = of_checkpoint(Checkpoint.open(tmp_path), 7)
    assert found.kind == kind
    part = model.get_encoder() if model.config.is_encoder_decoder else model
    seen = {}
    for name, module in part.named_modules():
        if name.endswith(("wpe", "position_embeddings", "embed_positions")):
            module.register_forward_hook(lambda module, inputs, output: seen.update(positions=output))
        if name.endswith(("layers.0", "layer.0", "h.0", "block.0")):
            module.register_forward_pre_hook(
                lambda module, inputs, named: seen.update(input=inputs[0] if inputs else named["hidden_states"]),
                with_kwargs=True,
            )
    ids = torch.arange(5, 12)[None]
    with torch.no_grad():
        words = part.get_input_embeddings().weight[ids][0].numpy()
        part(input_ids=ids)
    if found.table is None:
        np.testing.assert_allclose(seen["input"][0], found.scale * words, rtol=1e-5, atol=1e-5)
    else:
        added = seen["positions"].reshape(-1, 16)[-7:].numpy()
        np.testing.assert_allclose(found.table, added, rtol=1e-5, atol=1e-5)
        if family in ("gpt2", "xglm"):  # the others normalise before their first layer
            np.testing.assert_allclose(seen["input"][0], found.scale * words + added, rtol=1e-4, atol=1e-5)
