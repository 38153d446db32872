"""Token Distillation: snippets against a loop over the text, hidden states and steps against transformers and torch."""

import json
import re

import jax
import numpy as np
import pytest
import torch
import transformers

from tests.transfers.conftest import D
from wechsel_jax.checkpoint import Checkpoint
from wechsel_jax.errors import UserError
from wechsel_jax.initializers import TransferPlan
from wechsel_jax.models.registry import FAMILIES
from wechsel_jax.tokens import Vocabulary, load_tokenizer
from wechsel_jax.tokens.pieces import source_pieces
from wechsel_jax.tokens.text import read_token_ids
from wechsel_jax.transfers import distillation
from wechsel_jax.transfers.distillation import Snippets, distance, find_snippets
from wechsel_jax.transfers.job import transfer

LENGTH = 12


def test_snippets_are_those_of_a_loop():
    generator = np.random.default_rng(0)
    ids = generator.integers(0, 4, 3000).astype(np.int32)
    ids[generator.integers(0, 3000, 40)] = -1
    ids[-1] = -1
    phrases = {7: np.array([1, 2]), 3: np.array([0, 0, 0]), 9: np.array([2, 3, 1, 0, 2]), 5: np.array([3]), 8: np.array([6, 6])}
    phrases[11] = np.arange(LENGTH)
    found = find_snippets(ids, phrases, 1 << 20, LENGTH, 99)
    expected, begin = [], 0
    for end in np.flatnonzero(ids == -1):
        document = ids[begin:end].tolist()
        for token in (7, 3, 9):
            phrase = phrases[token].tolist()
            for place in range(len(document) - len(phrase) + 1):
                if document[place : place + len(phrase)] == phrase:
                    left = max(0, min(place - (LENGTH - len(phrase)) // 2, len(document) - LENGTH))
                    text = [99, *document[left : left + LENGTH]]
                    expected.append((token, begin + place, text, place - left + 1, len(phrase)))
        begin = end + 1
    expected.sort(key=lambda one: one[:2])
    assert len(expected) == len(found.token) > 100
    for i, (token, _, text, start, size) in enumerate(expected):
        assert (found.token[i], found.start[i], found.size[i], found.length[i]) == (token, start, size, len(text))
        assert found.tokens[i].tolist() == text + [0] * (LENGTH + 1 - len(text))
    few = find_snippets(ids, phrases, 5, LENGTH)
    assert np.bincount(few.token, minlength=12).tolist() == [0, 0, 0, 5, 0, 0, 0, 5, 0, min((found.token == 9).sum(), 5), 0, 0]
    # Evenly chosen: one of each fifth of the places.
    every = np.flatnonzero(found.token == 7)
    chosen = [
        next(i for i in every if (found.tokens[i, 1:] == few.tokens[j]).all() and found.start[i] == few.start[j] + 1)
        for j in np.flatnonzero(few.token == 7)
    ]
    assert len(set(chosen)) == 5 and chosen == sorted(chosen)


def torch_distance(model, rows, batch: Snippets):
    """One snippet after the other, the new token's row put in the place of the phrase's."""
    table, total, count = model.get_input_embeddings().weight, 0, 0
    for tokens, length, start, size, token in zip(*batch, strict=True):
        old = torch.tensor(tokens[:length].astype(np.int64))
        wanted = model(inputs_embeds=table[old][None], output_hidden_states=True).hidden_states[-1][0].detach()
        vectors = torch.cat([table[old[:start]], rows[token][None], table[old[start + size :]]])
        made = model(inputs_embeds=vectors[None], output_hidden_states=True).hidden_states[-1][0]
        total = total + ((made[start:] - wanted[start + size - 1 :]) ** 2).mean(dim=-1).sum()
        count += len(made) - start
    return total / count


@pytest.fixture
def batch():
    generator = np.random.default_rng(1)
    start, size = generator.integers(1, 6, 5), generator.integers(2, 5, 5)
    length = np.array([LENGTH, LENGTH, LENGTH, 10, 9])
    tokens = np.where(np.arange(LENGTH) < length[:, None], generator.integers(0, 40, (5, LENGTH)), 0)
    return Snippets(*(values.astype(np.int32) for values in (tokens, length, start, size, np.array([0, 2, 1, 2, 0]))))


def test_the_distance_and_its_gradient_are_torchs(batch):
    settings = {"hidden_size": D, "num_attention_heads": 2, "num_hidden_layers": 2, "intermediate_size": 24}
    torch.manual_seed(0)
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(vocab_size=40, **settings)).eval()
    family = FAMILIES["llama"]
    config = family.config(model.config.to_dict(), dropout=0.0)
    parameters = family.from_hugging_face({name: tensor.numpy() for name, tensor in model.state_dict().items()}, config)
    rows = torch.tensor(np.random.default_rng(2).standard_normal((3, D)).astype(np.float32) * 0.3, requires_grad=True)
    expected = torch_distance(model, rows, batch)
    expected.backward()
    differentiated = jax.jit(jax.value_and_grad(distance), static_argnums=(1, 2))
    value, gradient = differentiated(rows.detach().numpy(), family, config, parameters, *batch)
    np.testing.assert_allclose(value, expected.item(), rtol=1e-5)
    np.testing.assert_allclose(gradient, rows.grad.numpy(), atol=1e-6 * float(rows.grad.abs().max()) + 1e-7, rtol=1e-4)


def test_rows_of_the_written_model_are_torchs_after_the_same_steps(world, source, tmp_path, monkeypatch):
    """The whole job: the snippets of real text, Adam, and the table that is left, with a tenth held out."""
    monkeypatch.setattr(distillation, "_LENGTH", LENGTH)
    monkeypatch.setattr(distillation, "_BATCH", 8)
    monkeypatch.setattr(distillation, "_MOST_HELD_OUT", 16)
    text, options = world.root / "german.txt", {"method": "fvt", "text_bytes": 4000, "target_text": world.root / "german.txt"}
    tokenizer, quiet = world.tokenizer("german", "gpt2"), {"log": lambda line: None}
    plain, fitted = tmp_path / "plain", tmp_path / "fitted"
    transfer(source, tokenizer, plain, method="fvt", seed=4, **quiet)
    record = transfer(source, tokenizer, fitted, distill=2, seed=4, **options, **quiet)
    before, after = (Checkpoint.open(place) for place in (plain, fitted))
    start, made = (np.array(one.read(one.table), np.float32) for one in (before, after))

    old, new = load_tokenizer(source), load_tokenizer(fitted)
    vocabulary, plan = Vocabulary.from_tokenizer(old), TransferPlan.load(fitted / "transfer_plan.npz")
    pieces = source_pieces(old, vocabulary, Vocabulary.from_tokenizer(new))
    phrases = {i: piece for i, piece in enumerate(pieces) if len(piece) > 1 and plan.copy[i] < 0}
    found = find_snippets(read_token_ids(old, text, 4000), phrases, 2, LENGTH, vocabulary.id_with_role("bos"))
    moved = np.unique(found.token)
    assert 50 < len(moved) < len(phrases)
    index = np.searchsorted(moved, found.token)
    order = np.random.default_rng(4).permutation(len(index))
    model = transformers.AutoModelForCausalLM.from_pretrained(source).eval()
    for parameter in model.parameters():
        parameter.requires_grad_(False)
    rows = torch.tensor(start[moved], requires_grad=True)
    rate = 0.01 * float(model.get_input_embeddings().weight.double().square().mean().sqrt())
    optimizer, held = torch.optim.Adam([rows], lr=rate), min(-(-len(order) // 10), 16)
    judged, train = (np.resize(part, (-(-len(part) // 8), 8)) for part in (order[:held], order[held:]))

    def loss():
        return np.mean([torch_distance(model, rows, _cut(found, index, places)).item() for places in judged])

    fitted_tokens = np.unique(moved[index[train]])
    np.testing.assert_array_equal(np.flatnonzero((made != start).any(axis=1)), fitted_tokens)
    losses = [loss()]
    for places in train:
        optimizer.zero_grad()
        torch_distance(model, rows, _cut(found, index, places)).backward()
        optimizer.step()
    losses.append(loss())
    # Adam's first steps have one length: a gradient that is nearly zero may go either way.
    assert np.abs(made[moved] - rows.detach().numpy()).mean() < 0.02 * np.abs(made[moved] - start[moved]).mean()
    note = next(note for note in record["notes"] if "were fitted to the source model" in note)
    # At least three times the products of the layers' matrices, and of attention's not much more.
    kernels = sum(tensor.numel() for name, tensor in model.named_parameters() if name.endswith("weight") and ".h." in name)
    read = train.size * found.tokens.shape[1]
    assert 6 * kernels * read < float(re.search(r"\(([\d.e+]+) FLOPs\)", note)[1]) < 12 * kernels * read
    numbers = [float(number) for number in re.findall(r"from ([\d.e-]+) to ([\d.e-]+)\.$", note)[0]]
    np.testing.assert_allclose(numbers, losses, rtol=0.02)
    assert losses[1] < losses[0] and note.startswith(f"{len(fitted_tokens):,} tokens were")
    assert any("at most 2 snippets of target_text each" in rule for rule in record["behaviour"])
    assert json.loads((fitted / "transfer.json").read_text())["settings"]["distill"] == 2


def _cut(found: Snippets, index: np.ndarray, places: np.ndarray) -> Snippets:
    return Snippets(found.tokens[places], found.length[places], found.start[places], found.size[places], index[places])


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({}, "distill 3: no target_text; expected text in the target language to find new tokens in"),
        ({"target_text": "german.txt", "parity": True}, "distill 3: no reference implementation has it"),
        ({"target_text": "german.txt", "method": "full_rand"}, "distill 3: full_rand keeps nothing of the source model"),
        ({"target_text": "german.txt", "shuffle": "elements"}, "distill 3: rows are fitted to the source's own tables"),
        (
            {"target_text": "german.txt", "latent_dimension": 4, "factorised": True},
            "distill 3: changes tables that are written",
        ),
        (
            {"target_text": "short.txt"},
            r"short\.txt: hardly any of the \d+ tokens .* stands in it; expected text of the target",
        ),
    ],
)
def test_mistakes_are_named(world, source, tmp_path, given, message):
    (tmp_path / "short.txt").write_text("q\n")
    places = {"target_text": world.root / "german.txt"} if given.get("target_text") == "german.txt" else {}
    places |= {"target_text": tmp_path / "short.txt"} if given.get("target_text") == "short.txt" else {}
    with pytest.raises(UserError, match=message):
        transfer(
            *(source, world.tokenizer("german", "gpt2"), tmp_path / "out"),
            **({"method": "fvt", "distill": 3, "log": lambda line: None} | given | places),
        )
    assert not (tmp_path / "out").exists()


def test_a_tokenizer_without_tokens_of_its_own_has_nothing_to_distil(world, source, tmp_path):
    given = {"method": "fvt", "distill": 3, "target_text": world.root / "german.txt", "log": lambda line: None}
    with pytest.raises(UserError, match="distill: the source writes each new token with one of its own"):
        transfer(source, source, tmp_path / "out", **given)


def test_a_model_that_predicts_no_next_token_is_refused(world, save_source, tmp_path):
    directory = save_source("roberta")[0]
    options = {"method": "fvt", "distill": 2, "target_text": world.root / "german.txt", "log": lambda line: None}
    with pytest.raises(UserError, match="distill: a roberta model does not predict the next token; expected one that does"):
        transfer(directory, world.tokenizer("german", "roberta"), tmp_path / "out", **options)
