"""Tuned coefficients: steps, losses and tables against transformers and torch; what moves and what stays; mistakes."""

import re
from functools import partial

import jax
import numpy as np
import pytest
import torch
import transformers

from tests.models.helpers import dot_flops
from wechsel_jax.checkpoint import Checkpoint
from wechsel_jax.errors import UserError
from wechsel_jax.initializers import TransferPlan
from wechsel_jax.tokens import load_tokenizer
from wechsel_jax.tokens.text import read_token_ids
from wechsel_jax.transfers import coefficients
from wechsel_jax.transfers.job import transfer

LENGTH, BATCH, STEPS, SEED = 12, 8, 5, 4
QUIET = {"log": lambda line: None}


@pytest.fixture(autouse=True)
def small(monkeypatch):
    monkeypatch.setattr(coefficients, "_LENGTH", LENGTH)
    monkeypatch.setattr(coefficients, "_BATCH", BATCH)
    monkeypatch.setattr(coefficients, "_MOST_HELD_OUT", 16)


@pytest.fixture
def products(monkeypatch):
    """Gets for each step that is made the FLOPs of the products in it."""
    made, step = [], coefficients._step

    def counted(optimizer, objective, *arguments):
        made.append(dot_flops(jax.make_jaxpr(partial(step.__wrapped__, optimizer, objective))(*arguments).jaxpr))
        return step(optimizer, objective, *arguments)

    monkeypatch.setattr(coefficients, "_step", counted)
    return made


def note_of(record: dict) -> str:
    return next(note for note in record["notes"] if note.startswith("Rows were moved along"))


def pair(world, source, place, method="fvt", style="gpt2", **options):
    """The same transfer without tuning and with it: both checkpoints, and the record of the latter."""
    arguments, text = (source, world.tokenizer("german", style)), world.root / "german.txt"
    options |= {"method": method, "seed": SEED, **QUIET}
    transfer(*arguments, place / "plain", **options)
    tuned = {"tune_coefficients": STEPS, "text_bytes": 4000, "target_text": text}
    record = transfer(*arguments, place / "tuned", **{**options, **tuned})
    return Checkpoint.open(place / "plain"), Checkpoint.open(place / "tuned"), record


@pytest.mark.parametrize("tied", [True, False])
def test_the_tables_are_torchs_after_the_same_steps(world, save_source, tmp_path, products, tied):
    source = save_source("gpt2", tied=tied)[0]
    before, after, record = pair(world, source, tmp_path)
    plan = TransferPlan.load(tmp_path / "tuned" / "transfer_plan.npz")
    new = load_tokenizer(tmp_path / "tuned")
    ids = read_token_ids(new, world.root / "german.txt", 4000)
    ids = np.where(ids == -1, new.eos_token_id, ids)
    rows = ids[: len(ids) // LENGTH * LENGTH].reshape(-1, LENGTH)
    generator = np.random.default_rng(SEED)
    order = generator.permutation(len(rows))
    held = min(-(-len(rows) // 10), 16)
    fitted = rows[order[held:]]
    fitted = fitted[generator.permutation(len(fitted))]
    assert len(fitted) > STEPS * BATCH
    batches = [fitted[i * BATCH : (i + 1) * BATCH] for i in range(STEPS)]

    model = transformers.GPT2LMHeadModel.from_pretrained(tmp_path / "plain").eval()
    assert model.config.tie_word_embeddings == tied
    tables = {"wte": model.transformer.wte.weight.detach().double()}
    if not tied:
        tables["lm_head"] = model.lm_head.weight.detach().double()
    x = np.where(plan.copy[:, None] < 0, tables["wte"].numpy(), 0)
    left, values, right = np.linalg.svd(x, full_matrices=False)
    assert (values > 1e-2 * values[0]).all()
    # The nearest matrix with orthonormal columns, so that rows that are not zero are of length 1 in the mean square.
    x = torch.tensor(left @ right * np.sqrt(x.any(axis=1).sum() / x.shape[1]))
    size = float(tables["wte"].square().mean().sqrt())
    k = {name: torch.zeros_like(x.T @ table, requires_grad=True) for name, table in tables.items()}
    optimizer = torch.optim.Adam(list(k.values()), lr=1.0)
    model = model.double()

    def loss(batch):
        weights = {name: tables[name] + x @ k[name] for name in tables}
        head = weights.get("lm_head", weights["wte"])
        tokens = torch.tensor(np.asarray(batch, np.int64))
        hidden = model.transformer(inputs_embeds=weights["wte"][tokens]).last_hidden_state
        return torch.nn.functional.cross_entropy((hidden @ head.T)[:, :-1].flatten(0, 1), tokens[:, 1:].flatten())

    judged = rows[order[:held]]
    assert held % BATCH
    losses = [loss(judged).item()]
    for step, batch in enumerate(batches):
        # A tenth of five steps is none: there is no warm-up.
        for group in optimizer.param_groups:
            group["lr"] = 0.05 * size * 0.5 * (1 + np.cos(np.pi * step / STEPS))
        optimizer.zero_grad()
        loss(batch).backward()
        optimizer.step()
    losses.append(loss(judged).item())
    assert losses[1] < losses[0] - 0.01

    names = {"wte": before.table, "lm_head": "lm_head.weight"}
    for name in tables:
        start, made = (np.array(one.read(names[name]), np.float64) for one in (before, after))
        step = (x @ k[name]).detach().numpy()
        assert np.abs(step).max() > 0.01 * size
        np.testing.assert_allclose(made - start, step, atol=2e-2 * np.abs(step).max())
    numbers = re.search(r"from ([\d.]+) to ([\d.]+) nats\.$", note_of(record)).groups()
    np.testing.assert_allclose([float(number) for number in numbers], losses, rtol=2e-3)
    # Causality hides half of the scores, which are made all the same.
    hidden = STEPS * BATCH * 3 * model.config.n_layer * 4 * model.config.n_embd * LENGTH**2 / 2
    assert len(products) == STEPS and f"({sum(products) - hidden:.3g} FLOPs)" in note_of(record)
    untouched = set(before.names()) - set(names.values())
    assert untouched and all((before.read(name) == after.read(name)).all() for name in untouched)


def test_copied_rows_stay_and_a_masked_models_bias_moves(world, save_source, tmp_path, products):
    source = save_source("roberta")[0]
    before, after, record = pair(world, source, tmp_path, method="mean", style="roberta")
    copied = TransferPlan.load(tmp_path / "tuned" / "transfer_plan.npz").copy >= 0
    start, made = (one.read(one.table) for one in (before, after))
    assert copied.any() and (start[copied] == made[copied]).all()
    assert note_of(record).startswith("Rows were moved along 16 coordinates by 5 steps on 480 tokens")
    # This method's rows are all one row, so they are alike in all coordinates and move alike.
    moves = (made - start)[~copied]
    assert moves[0].any() and np.abs(moves - moves[0]).max() < 1e-5 * np.abs(moves).max()
    assert any("and have coordinates were moved along them by 5 training steps" in rule for rule in record["behaviour"])
    # 15 % of the tokens are predicted, in two slots a row: of the head's matrices one is tuned, the other one is not.
    rows, size = before.read(before.table).shape
    of_slot = 2 * size * (3 * rows + 2 * size)
    assert f"({sum(products) - STEPS * BATCH * (2 - 0.15 * LENGTH) * of_slot:.3g} FLOPs)" in note_of(record)
    bias = next(name for name in before.names() if name.endswith("lm_head.bias"))
    assert (before.read(bias)[~copied] != after.read(bias)[~copied]).all()
    assert (before.read(bias)[copied] == after.read(bias)[copied]).all()


def test_coordinates_are_the_methods_where_it_has_some(world, source, tmp_path):
    texts = {"source_text": world.root / "english.txt", "target_text": world.root / "german.txt", "dimensions": 8}
    record = transfer(
        *(source, world.tokenizer("german", "gpt2"), tmp_path / "out"),
        **{"method": "anker", "tune_coefficients": 2, "text_bytes": 1 << 16, **texts, **QUIET},
    )
    rank = TransferPlan.load(tmp_path / "out" / "transfer_plan.npz").coordinates.shape[1]
    assert note_of(record).startswith(f"Rows were moved along {rank} coordinates by 2 steps")


def test_rows_that_do_not_get_better_stay(world, source, tmp_path, monkeypatch):
    monkeypatch.setattr(coefficients, "_RATE", 100.0)
    before, after, record = pair(world, source, tmp_path)
    assert "so they were left as they were" in note_of(record)
    assert (before.read(before.table) == after.read(after.table)).all()


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"target_text": None}, "tune_coefficients 3: no target_text; expected text in the target language to read"),
        ({"parity": True}, "tune_coefficients 3: no reference implementation has it"),
        ({"method": "full_rand"}, "tune_coefficients 3: full_rand keeps nothing of the source model"),
        ({"shuffle": "elements"}, "tune_coefficients 3: rows are fitted to the source's own tables"),
        ({"target_text": "short.txt"}, r"short\.txt: 1 rows of 12 tokens; expected at least 2 to tune coefficients on"),
    ],
)
def test_mistakes_are_named(world, source, tmp_path, given, message):
    (tmp_path / "short.txt").write_text("Das ist ein kurzer Satz.\n")
    options = {"method": "fvt", "tune_coefficients": 3, "target_text": world.root / "german.txt", **QUIET, **given}
    options["target_text"] = tmp_path / "short.txt" if given.get("target_text") == "short.txt" else options["target_text"]
    if options["target_text"] is None:
        del options["target_text"]
    with pytest.raises(UserError, match=message):
        transfer(source, world.tokenizer("german", "gpt2"), tmp_path / "out", **options)
    assert not (tmp_path / "out").exists()


def test_a_vocabulary_of_copies_has_nothing_to_tune(world, source, tmp_path):
    options = {"method": "fvt", "tune_coefficients": 3, "target_text": world.root / "german.txt", **QUIET}
    with pytest.raises(UserError, match="tune_coefficients: every token is copied"):
        transfer(source, source, tmp_path / "out", **options)
