"""Masked objective: the statistics of the masking, torch's loss, what is never masked, and determinism."""

import functools
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from wechsel_jax.errors import UserError
from wechsel_jax.models import family
from wechsel_jax.models.weights import unflatten
from wechsel_jax.objectives import make_objective
from wechsel_jax.objectives.mlm import mask_slots, mask_tokens

FIELDS = {
    "vocab_size": 61,
    "hidden_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 3,
    "intermediate_size": 40,
    "max_position_embeddings": 66,
    "type_vocab_size": 1,
    "layer_norm_eps": 1e-5,
}
ROBERTA = family("roberta")
CONFIG = ROBERTA.config(FIELDS)
SPECIAL, MASK = (0, 1, 2, 3, 60), 60
LENGTH, ROWS = 40, 6


def rows():
    """Tokens (6, 40): <s> ... </s>, some padded, some special tokens inside; and the mask of real tokens."""
    tokens = np.random.default_rng(0).integers(4, 60, (ROWS, LENGTH)).astype(np.int32)
    tokens[:, 0], tokens[:, -1], tokens[2, 11] = 0, 2, 3
    mask = np.ones(tokens.shape, bool)
    mask[1, 30:] = False
    mask[5, 2:] = False
    return np.where(mask, tokens, 1), mask


TOKENS, MASK_OF_REAL = rows()
ELIGIBLE = ~np.isin(TOKENS, SPECIAL)


@pytest.fixture(scope="module")
def params():
    """Weights large enough for losses to differ between tokens."""
    rng = np.random.default_rng(0)
    flat = {path: 0.3 * rng.normal(size=shape) for path, shape in ROBERTA.shapes(CONFIG).items()}
    return unflatten({path: value.astype(np.float32) for path, value in flat.items()})


def objective(config=CONFIG, **settings):
    return make_objective("mlm", ROBERTA, config, mask_token_id=MASK, special_ids=SPECIAL, **settings)


@functools.cache
def compiled(train=False, config=CONFIG, gradient=False):
    run = objective(config)
    if gradient:
        return jax.jit(jax.value_and_grad(lambda p, b, k: run(p, b, k, train=train)[0]))
    return jax.jit(lambda p, b, k: run(p, b, k, train=train))


@pytest.fixture(scope="module")
def drawn():
    """Masked with a leading axis of 3000 keys."""
    replacements = jnp.arange(4, 60)
    draw = partial(mask_tokens, tokens=TOKENS, eligible=ELIGIBLE, replacements=replacements, mask_token_id=MASK, rate=0.15)
    masked = jax.jit(jax.vmap(lambda key: draw(key)))(jax.random.split(jax.random.key(0), 3000))
    return jax.tree.map(np.asarray, masked)


def test_the_number_of_masked_tokens_is_exact(drawn):
    expected = np.round(0.15 * ELIGIBLE.sum(axis=1))
    assert expected.tolist() == [6, 4, 6, 6, 6, 0]
    assert np.all(drawn.chosen.sum(axis=-1) == expected)
    assert drawn.positions.shape[-1] == 6


def test_every_eligible_token_is_chosen_equally_often_and_no_other(drawn):
    keys = drawn.tokens.shape[0]
    counts = np.zeros((ROWS, LENGTH))
    for row in range(ROWS):
        np.add.at(counts[row], drawn.positions[:, row][drawn.chosen[:, row]], 1)
    assert np.all(counts[~ELIGIBLE] == 0)
    for row in range(ROWS - 1):
        share = np.round(0.15 * ELIGIBLE[row].sum()) / ELIGIBLE[row].sum()
        deviation = 5 * np.sqrt(share * (1 - share) / keys)
        assert np.all(np.abs(counts[row][ELIGIBLE[row]] / keys - share) < deviation)


def test_positions_of_a_row_are_distinct_and_targets_are_the_originals(drawn):
    ordered = np.sort(drawn.positions, axis=-1)
    assert np.all(np.diff(ordered, axis=-1) > 0)
    original = np.broadcast_to(TOKENS, drawn.tokens.shape)
    np.testing.assert_array_equal(drawn.targets, np.take_along_axis(original, drawn.positions, axis=-1))


def test_only_chosen_tokens_change(drawn):
    changed = drawn.tokens != TOKENS
    at_slots = np.take_along_axis(changed, drawn.positions, axis=-1)
    assert changed.sum() == at_slots.sum()
    assert not np.any(at_slots & ~drawn.chosen)


def test_80_10_10(drawn):
    seen = np.take_along_axis(drawn.tokens, drawn.positions, axis=-1)[drawn.chosen]
    targets = drawn.targets[drawn.chosen]
    n = len(seen)
    assert n == 3000 * 28
    kept = 0.1 + 0.1 / 56
    for share, expected in ((np.mean(seen == MASK), 0.8), (np.mean(seen == targets), kept)):
        assert abs(share - expected) < 5 * np.sqrt(expected * (1 - expected) / n)
    replaced = seen[(seen != MASK) & (seen != targets)]
    assert abs(len(replaced) / n - 0.1 * 55 / 56) < 5 * np.sqrt(0.09 / n)
    assert not np.any(np.isin(replaced, SPECIAL))
    frequency = np.bincount(replaced, minlength=61)[4:60] / len(replaced)
    assert np.all(np.abs(frequency - 1 / 56) < 5 * np.sqrt(1 / 56 / len(replaced)))


jitted_mask_tokens = jax.jit(mask_tokens, static_argnums=(4, 5))


@pytest.mark.slow
@settings(max_examples=40, deadline=None)
@given(length=st.sampled_from([1, 7, 20]), rate=st.sampled_from([0.15, 1.0]), seed=st.integers(0, 10**6))
def test_masking_properties(length, rate, seed):
    rng = np.random.default_rng(seed)
    tokens = rng.integers(0, 9, (2, length)).astype(np.int32)
    eligible = tokens >= 3
    masked = jitted_mask_tokens(jax.random.key(seed), tokens, eligible, jnp.arange(3, 8), 8, rate)
    assert masked.positions.shape == (2, mask_slots(length, rate))
    np.testing.assert_array_equal(masked.chosen.sum(axis=1), np.round(np.float32(rate) * eligible.sum(axis=1)))
    assert np.all(np.take_along_axis(eligible, np.asarray(masked.positions), axis=1) | ~np.asarray(masked.chosen))


@pytest.mark.slow
def test_equals_the_loss_of_transformers(params):
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    reference = transformers.RobertaForMaskedLM(transformers.RobertaConfig(**FIELDS)).eval()
    tensors = {name: torch.tensor(value) for name, value in ROBERTA.to_hugging_face(params, CONFIG).items()}
    reference.load_state_dict(tensors, strict=False)
    mask_key, _ = jax.random.split(jax.random.key(7))
    masked = jitted_mask_tokens(mask_key, TOKENS, ELIGIBLE, jnp.arange(4, 60), MASK, 0.15)
    labels = np.full(TOKENS.shape, -100)
    for row in range(ROWS):
        at = np.asarray(masked.positions[row])[np.asarray(masked.chosen[row])]
        labels[row, at] = TOKENS[row, at]
    with torch.no_grad():
        expected = reference(
            torch.tensor(np.asarray(masked.tokens)).long(),
            attention_mask=torch.tensor(MASK_OF_REAL).long(),
            labels=torch.tensor(labels),
        ).loss.item()
    loss, weight, _ = compiled()(params, {"tokens": TOKENS, "mask": MASK_OF_REAL}, jax.random.key(7))
    assert weight == 28
    assert float(loss / weight) == pytest.approx(expected, rel=2e-6)


def test_weights_scale_and_exclude(params):
    batch = {"tokens": TOKENS, "mask": MASK_OF_REAL}
    weights = np.ones(TOKENS.shape, np.float32)
    run = partial(compiled(), params)
    plain = run(batch, jax.random.key(1))
    assert run(batch | {"weights": weights}, jax.random.key(1)) == plain
    doubled = run(batch | {"weights": 2 * weights}, jax.random.key(1))
    assert float(doubled[0]) == pytest.approx(2 * float(plain[0]), rel=1e-6) and doubled[1] == 2 * plain[1]
    weights[1:] = 0.0
    assert run(batch | {"weights": weights}, jax.random.key(1))[1] == 6


@pytest.mark.slow
def test_no_ordinary_token_gives_zero_and_finite_gradients(params):
    batch = {"tokens": np.full((2, 16), 2, np.int32)}
    loss, gradient = compiled(train=True, gradient=True)(params, batch, jax.random.key(0))
    assert loss == 0
    assert all(np.all(np.asarray(leaf) == 0) for leaf in jax.tree.leaves(gradient))


@pytest.mark.slow
def test_the_key_drives_masking_and_dropout(params):
    batch = {"tokens": TOKENS, "mask": MASK_OF_REAL}

    def loss(key, train, config=CONFIG):
        return float(compiled(train, config)(params, batch, jax.random.key(key))[0])

    assert loss(0, False) == loss(0, False) != loss(1, False)
    only_attention = CONFIG.override(dropout=0.0).override(attention_dropout=0.4)
    assert loss(0, True, only_attention) == loss(0, True, only_attention) != loss(1, True, only_attention)
    # Training and evaluation draw the same masks from the same key, so dropout alone makes the difference.
    assert loss(0, True, only_attention) != pytest.approx(loss(0, False), rel=1e-5)


def test_a_row_is_masked_alike_whatever_the_other_rows_hold():
    """What a row's tokens are decides nothing about the positions of another row."""
    other = TOKENS.copy()
    other[3] = 7
    first, second = (
        jitted_mask_tokens(jax.random.key(3), tokens, ELIGIBLE, jnp.arange(4, 60), MASK, 0.15) for tokens in (TOKENS, other)
    )
    np.testing.assert_array_equal(first.positions, second.positions)
    keep = [0, 1, 2, 4, 5]
    np.testing.assert_array_equal(first.tokens[jnp.array(keep)], second.tokens[jnp.array(keep)])


def test_the_head_sees_the_masked_positions_only(params):
    """No array of scores has more than 6 positions a row."""
    jaxpr = jax.make_jaxpr(lambda p: objective()(p, {"tokens": TOKENS}, jax.random.key(0), train=False))(params)
    shapes = {out.aval.shape for out in _outputs(jaxpr.jaxpr) if out.aval.ndim == 3 and out.aval.shape[-1] == 61}
    assert (ROWS, 6, 61) in shapes
    assert max(shape[1] for shape in shapes) == 6
    assert objective().head_fraction == 0.15


def _outputs(jaxpr):
    for equation in jaxpr.eqns:
        yield from equation.outvars
        for value in equation.params.values():
            inner = getattr(value, "jaxpr", value)
            if hasattr(inner, "eqns"):
                yield from _outputs(inner)


def test_bad_settings_are_refused():
    for settings_, message in (
        ({"mask_token_id": None}, "mask token"),
        ({"mask_token_id": 61}, "61 tokens"),
        ({"mask_token_id": 4, "special_ids": (-1,)}, "special ids"),
        ({"mask_token_id": 4, "special_ids": range(61)}, "all 61"),
        ({"mask_token_id": 4, "mask_rate": 0.0}, "mask_rate"),
    ):
        with pytest.raises(UserError, match=message):
            make_objective("mlm", ROBERTA, CONFIG, **settings_)
