"""Attention influence modelling: segments against a loop over the text, attention and steps against transformers and torch."""

import json
import re
import sys

import jax
import numpy as np
import pytest
import tokenizers
import torch
import transformers

from tests.transfers.conftest import D
from wechsel_jax.checkpoint import Checkpoint
from wechsel_jax.errors import UserError
from wechsel_jax.initializers import TransferPlan
from wechsel_jax.models.registry import FAMILIES
from wechsel_jax.tokens import Vocabulary, load_tokenizer
from wechsel_jax.tokens.text import read_texts
from wechsel_jax.transfers import attention_matching
from wechsel_jax.transfers.attention_matching import Rows, Tokens, cut_rows, distance, segments, tokens_in_text
from wechsel_jax.transfers.job import transfer

LENGTH = 16


def cut_at_random(generator, characters, share):
    """Tokens of a text, of which some leave characters out at their beginning, and some share a character."""
    edges = np.flatnonzero(generator.random(characters + 1) < share)
    edges = np.unique([0, *edges, characters])
    start, stop = edges[:-1].copy(), edges[1:].copy()
    start[(generator.random(len(start)) < 0.1) & (stop - start > 1)] += 1
    twice = generator.random(len(start)) < 0.1
    order = np.sort(np.concatenate([np.arange(len(start)), np.flatnonzero(twice)]))
    return Tokens(generator.integers(1, 40, len(order)).astype(np.int32), start[order], stop[order])


def test_segments_end_where_both_tokenizations_do():
    generator = np.random.default_rng(0)
    old, new = cut_at_random(generator, 2000, 0.5), cut_at_random(generator, 2000, 0.3)
    of_old, of_new = segments(old, new)
    # The slow way: two characters are of one stretch where a token of either side has both.
    joined = np.zeros(2001, bool)
    covered = np.zeros((2, 2000), bool)
    for side, tokens in enumerate((old, new)):
        for start, stop in zip(tokens.start, tokens.stop, strict=True):
            joined[start + 1 : stop] = True
            covered[side, start:stop] = True
    number, numbers = -1, np.full(2000, -1)
    for place in range(2000):
        if covered[:, place].any():
            number += not (joined[place] and place)
            numbers[place] = number
    # What one side alone has belongs to the next stretch of both.
    matched = sorted(set(numbers[covered[0]]) & set(numbers[covered[1]]) - {-1})
    assert 100 < len(matched) <= number
    for found, tokens in ((of_old, old), (of_new, new)):
        expected = np.searchsorted(matched, numbers[tokens.start])
        np.testing.assert_array_equal(found, np.minimum(expected, len(matched) - 1))
        assert set(found) == {*range(len(matched))}


@pytest.mark.parametrize("trims", [False, True])
def test_a_tokenizer_agrees_with_itself(world, trims):
    """Also one that leaves spaces out of the stretches of its tokens, as RoBERTa's does by default."""
    tokenizer = load_tokenizer(world.tokenizer("english", "gpt2"))
    tokenizer.backend_tokenizer.post_processor = tokenizers.processors.ByteLevel(trim_offsets=trims)
    documents = ["a 东 b", "a  b", " x", "y "]
    both = [tokens_in_text(tokenizer, documents, 0) for _ in range(2)]
    one, other = segments(*both)
    np.testing.assert_array_equal(one, other)
    plain = tokens_in_text(load_tokenizer(world.tokenizer("german", "gpt2")), documents, 0)
    of_old, of_new = segments(both[0], plain)
    assert set(of_old) == set(of_new) == {*range(of_old.max() + 1)} and of_old.max() > 8


def test_rows_hold_whole_segments_of_real_tokenizers(world):
    """Byte-level tokens that share a character, spaces that belong to a token or to none, and the end of a document."""
    documents = ["Der Größenwahn, 东京!", "x" * 40, "das alte Haus am See", "ja"]
    old = world.tokenizer("english", "gpt2")
    new = world.tokenizer("german", "roberta")
    ends = [Vocabulary.from_tokenizer(load_tokenizer(place)).id_with_role("eos") for place in (old, new)]
    both = [tokens_in_text(load_tokenizer(place), documents, end) for place, end in zip((old, new), ends, strict=True)]
    rows = cut_rows(*both, LENGTH, ([7], [8, 9]))
    assert len(rows.old) > 3 and rows.old.shape == (len(rows.old), LENGTH)
    texts = []
    for place, ids, segment, last, special in (
        (old, rows.old, rows.old_segment, rows.old_last, [7]),
        (new, rows.new, rows.new_segment, rows.new_last, [8, 9]),
    ):
        backend = load_tokenizer(place)
        found = []
        for i in range(len(ids)):
            assert ids[i, : len(special)].tolist() == special and (segment[i, : len(special)] == -1).all()
            for number in range(segment[i].max() + 1):
                places = np.flatnonzero(segment[i] == number)
                assert places[-1] == last[i, number] and (np.diff(places) == 1).all()
                found.append(backend.decode(ids[i, places]).strip())
            assert (last[i, segment[i].max() + 1 :] == -1).all()
        texts.append(found)
    named = {load_tokenizer(place).convert_ids_to_tokens(end) for place, end in zip((old, new), ends, strict=True)}
    assert [text for text in texts[0] if text not in named] == [text for text in texts[1] if text not in named]
    # Forty letters are more than a row holds only where they are one segment.
    assert "".join(text for text in texts[0] if text not in named) == "".join("".join(documents).split())


def test_a_segment_longer_than_a_row_is_left_out():
    nothing = Tokens(*(np.zeros(0, kind) for kind in (np.int32, np.int64, np.int64)))
    short = Tokens(np.array([1, 2, 3], np.int32), np.array([0, 1, 11]), np.array([1, 11, 12]))
    long = Tokens(np.arange(12, dtype=np.int32), np.arange(12), np.arange(1, 13))
    rows = cut_rows(short, long, 6, ([], []))
    assert [row[row > 0].tolist() for row in rows.old] == [[1], [3]]
    assert rows.new_last[:, :2].tolist() == [[0, -1], [0, -1]]
    assert len(cut_rows(short, nothing, 6, ([], [])).old) == len(cut_rows(nothing, nothing, 6, ([], [])).old) == 0


def torch_states(model, vectors, segment, last, layers):
    """What each segment adds behind each later one in every head, in a loop: (pairs, c)."""
    cache = transformers.DynamicCache()
    attentions = model(inputs_embeds=vectors[None], output_attentions=True, use_cache=True, past_key_values=cache).attentions
    shares, values = attentions[layers - 1][0], cache.layers[layers - 1].values[0]
    values = values.repeat_interleave(len(shares) // len(values), dim=0)
    return torch.stack([
        (head[last[i], segment == j, None] * value[segment == j]).sum(dim=0)
        for head, value in zip(shares, values, strict=True)
        for i in range(len(last))
        for j in range(i + 1)
    ])  # fmt: skip


def torch_distance(model, rows, table, place, text, layers):
    old_table, states = model.get_input_embeddings().weight, []
    for old, new, old_segment, new_segment, old_last, new_last in zip(*text, strict=True):
        vectors = torch.stack([rows[place[token]] if place[token] >= 0 else table[token] for token in new])
        old_side = (old_segment, old_last[old_last >= 0])
        wanted = torch_states(model, old_table[torch.tensor(old.astype(np.int64))], *map(torch.tensor, old_side), layers)
        new_side = (new_segment, new_last[new_last >= 0])
        states.append((wanted.detach(), torch_states(model, vectors, *map(torch.tensor, new_side), layers)))
    wanted, made = (torch.cat(part) for part in zip(*states, strict=True))
    return torch.nn.functional.mse_loss(made, wanted)


@pytest.fixture
def text():
    generator = np.random.default_rng(1)
    old, new = cut_at_random(generator, 120, 0.6), cut_at_random(generator, 120, 0.5)
    rows = cut_rows(old, new, LENGTH, ([3], []))
    assert len(rows.old) >= 5
    return rows.take(np.arange(5))


@pytest.mark.parametrize("name", ["llama", "gpt2", "gemma3_text"])
def test_the_distance_and_its_gradient_are_torchs(text, name):
    sizes = {"hidden_size": D, "num_attention_heads": 4, "num_hidden_layers": 3, "intermediate_size": 24}
    made = {
        "llama": lambda: transformers.LlamaForCausalLM(transformers.LlamaConfig(vocab_size=40, num_key_value_heads=2, **sizes)),
        "gpt2": lambda: transformers.GPT2LMHeadModel(transformers.GPT2Config(vocab_size=40, n_embd=D, n_head=4, n_layer=3)),
        # Layers with a window, and scores of another scale.
        "gemma3_text": lambda: transformers.Gemma3ForCausalLM(
            transformers.Gemma3TextConfig(
                vocab_size=40, num_key_value_heads=1, head_dim=8, sliding_window=4, sliding_window_pattern=2, **sizes
            )
        ),
    }[name]
    torch.manual_seed(0)
    model = made().eval()
    model.set_attn_implementation("eager")
    scale = getattr(model.get_input_embeddings(), "embed_scale", None)
    if scale is not None:
        # Rows that are given stand for what the table holds.
        model.register_forward_pre_hook(
            lambda _, given, named: (given, named | {"inputs_embeds": named["inputs_embeds"] * scale}), with_kwargs=True
        )
    family = FAMILIES[name]
    config = family.config(model.config.to_dict(), dropout=0.0)
    tensors = {name: tensor.numpy() for name, tensor in model.state_dict().items()}
    parameters = family.from_hugging_face(tensors, config)
    generator = np.random.default_rng(2)
    table = generator.standard_normal((40, D)).astype(np.float32) * 0.3
    place = np.where(np.arange(40) % 3 == 0, np.arange(40) // 3, -1).astype(np.int32)
    rows = torch.tensor(table[::3] + 0.1, requires_grad=True)
    expected = torch_distance(model, rows, torch.tensor(table), place, text, 2)
    expected.backward()
    differentiated = jax.jit(jax.value_and_grad(distance), static_argnums=(1, 2, 3))
    value, gradient = differentiated(rows.detach().numpy(), family, config, 2, parameters, table, place, text)
    np.testing.assert_allclose(value, expected.item(), rtol=1e-4)
    np.testing.assert_allclose(gradient, rows.grad.numpy(), atol=1e-4 * float(rows.grad.abs().max()), rtol=1e-3)


def test_a_text_in_the_sources_own_tokens_is_no_distance_away(text):
    family = FAMILIES["llama"]
    fields = {"hidden_size": D, "num_attention_heads": 2, "num_hidden_layers": 2, "intermediate_size": 24, "vocab_size": 40}
    config = family.config(fields, dropout=0.0)
    parameters = family.init(config, jax.random.key(0))
    same = Rows(text.old, text.old, text.old_segment, text.old_segment, text.old_last, text.old_last)
    table = parameters["token_embedding"]["embedding"]
    place = np.where(np.arange(40) < 20, np.arange(40), -1).astype(np.int32)
    assert abs(float(distance(table[:20], family, config, 1, parameters, table, place, same))) < 1e-9
    assert float(distance(table[:20] + 0.1, family, config, 1, parameters, table, place, same)) > 1e-7


def test_rows_of_the_written_model_are_torchs_after_the_same_steps(world, source, tmp_path, monkeypatch):
    """The whole job: rows of real text, Adam, and the table that is left, with a tenth held out."""
    monkeypatch.setattr(attention_matching, "_LENGTH", LENGTH)
    monkeypatch.setattr(attention_matching, "_BATCH", 4)
    monkeypatch.setattr(attention_matching, "_MOST_HELD_OUT", 8)
    file = world.root / "german.txt"
    tokenizer, quiet = world.tokenizer("german", "gpt2"), {"log": lambda line: None}
    plain, fitted = tmp_path / "plain", tmp_path / "fitted"
    transfer(source, tokenizer, plain, method="fvt", seed=4, **quiet)
    options = {"method": "fvt", "text_bytes": 1500, "target_text": file, "match_attention": 6}
    record = transfer(source, tokenizer, fitted, seed=4, **options, **quiet)
    before, after = (Checkpoint.open(place) for place in (plain, fitted))
    start, made = (np.array(one.read(one.table), np.float32) for one in (before, after))

    both = load_tokenizer(source), load_tokenizer(fitted)
    documents = [document for part in read_texts(str(file), 1500, "text", 1 << 20) for document in part]
    ends = [Vocabulary.from_tokenizer(one).id_with_role("eos") for one in both]
    texts = cut_rows(*(tokens_in_text(one, documents, end) for one, end in zip(both, ends, strict=True)), LENGTH, ([], []))
    generator = np.random.default_rng(4)
    order = generator.permutation(len(texts.new))
    held = min(-(-len(order) // 10), 8)
    judged, train = np.resize(order[:held], (-(-held // 4), 4)), order[held:]
    shown = np.unique(texts.new[train][texts.new_segment[train] >= 0])
    moved = shown[TransferPlan.load(fitted / "transfer_plan.npz").copy[shown] < 0]
    assert len(moved) > 20
    place = np.full(len(start), -1)
    place[moved] = np.arange(len(moved))
    model = transformers.AutoModelForCausalLM.from_pretrained(source, attn_implementation="eager").eval()
    layers = -(-model.config.num_hidden_layers // 3)
    rows, table = torch.tensor(start[moved], requires_grad=True), torch.tensor(start)
    rate = 0.01 * float(model.get_input_embeddings().weight.double().square().mean().sqrt())
    optimizer = torch.optim.Adam([rows], lr=rate)

    def loss():
        return np.mean([torch_distance(model, rows, table, place, texts.take(part), layers).item() for part in judged])

    losses, shuffled = [loss()], generator.permutation(train)
    assert len(shuffled) >= 6 * 4
    for step in range(6):
        optimizer.zero_grad()
        torch_distance(model, rows, table, place, texts.take(shuffled[4 * step : 4 * step + 4]), layers).backward()
        optimizer.step()
    losses.append(loss())
    np.testing.assert_array_equal(np.delete(made, moved, axis=0), np.delete(start, moved, axis=0))
    # Adam's first steps have one length: a gradient that is nearly zero may go either way.
    assert np.abs(made[moved] - rows.detach().numpy()).mean() < 0.05 * np.abs(made[moved] - start[moved]).mean()
    note = next(note for note in record["notes"] if "fitted to the attention" in note)
    numbers = [float(number) for number in re.findall(r"from ([\d.e-]+) to ([\d.e-]+)\.$", note)[0]]
    np.testing.assert_allclose(numbers, losses, rtol=0.01)
    fitted_tokens = np.flatnonzero((made != start).any(axis=1))
    assert 20 < len(fitted_tokens) < len(moved)
    read = sum((texts.new_segment[places] >= 0).sum() for places in shuffled[: 6 * 4])
    assert (
        f"on {read:,} tokens" in note
        and losses[1] < losses[0]
        # Of what the text shows, the steps read a part.
        and f"of {len(fitted_tokens)} tokens" in note
        and f"layer {layers} by 6 steps" in note
    )
    assert any("attention influence modelling" in rule for rule in record["behaviour"])
    assert json.loads((fitted / "transfer.json").read_text())["settings"]["match_attention"] == 6


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({}, "match_attention 3: no target_text; expected text in the target language to read"),
        ({"target_text": "german.txt", "parity": True}, "match_attention 3: no reference implementation has it"),
        ({"target_text": "german.txt", "method": "full_rand"}, "match_attention 3: full_rand keeps nothing of the source"),
        ({"target_text": "german.txt", "shuffle": "elements"}, "match_attention 3: rows are fitted to the source's own tables"),
        ({"target_text": "short.txt"}, r"short\.txt: 1 rows of \d+ tokens; expected at least 2 to match attention on"),
    ],
)
def test_mistakes_are_named(world, source, tmp_path, given, message):
    (tmp_path / "short.txt").write_text("q\n")
    places = {"german.txt": world.root / "german.txt", "short.txt": tmp_path / "short.txt"}
    given = given | ({"target_text": places[given["target_text"]]} if "target_text" in given else {})
    with pytest.raises(UserError, match=message):
        transfer(
            *(source, world.tokenizer("german", "gpt2"), tmp_path / "out"),
            **({"method": "fvt", "match_attention": 3, "log": lambda line: None} | given),
        )
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("setting", ["tune_coefficients", "distill", "match_attention"])
def test_a_missing_package_is_named_before_any_work(world, source, tmp_path, monkeypatch, setting):
    monkeypatch.setitem(sys.modules, "optax", None)
    told = []
    given = {"method": "fvt", "target_text": world.root / "german.txt", setting: 1, "log": told.append}
    with pytest.raises(UserError, match=rf"optax: not installed; expected it for {setting}; run .*wechsel-jax\[train\]"):
        transfer(source, world.tokenizer("german", "gpt2"), tmp_path / "out", **given)
    assert not any("making" in line for line in told) and not (tmp_path / "out").exists()


def test_a_tokenizer_without_tokens_of_its_own_has_no_rows_to_move(world, source, tmp_path):
    given = {"method": "fvt", "match_attention": 3, "target_text": world.root / "german.txt", "log": lambda line: None}
    with pytest.raises(UserError, match=r"german\.txt: shows no token whose row may move"):
        transfer(source, source, tmp_path / "out", **given)


def test_a_model_that_predicts_no_next_token_is_refused(world, save_source, tmp_path):
    options = {"method": "fvt", "match_attention": 2, "target_text": world.root / "german.txt", "log": lambda line: None}
    with pytest.raises(UserError, match="match_attention: a roberta model does not predict the next token"):
        transfer(save_source("roberta")[0], world.tokenizer("german", "roberta"), tmp_path / "out", **options)
