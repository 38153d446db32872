"""Padded tables: the same losses and gradients, rows of exactly nothing, and the same weights after stripping."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from wechsel_jax.models import family
from wechsel_jax.models.weights import flatten, unflatten
from wechsel_jax.objectives import make_objective
from wechsel_jax.training.run_spec import pad, padded, strip

FIELDS = {
    "gpt2": {"vocab_size": 61, "n_positions": 24, "n_embd": 16, "n_layer": 1, "n_head": 2, "tie_word_embeddings": False},
    "roberta": {
        **{"vocab_size": 61, "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32},
        **{"max_position_embeddings": 26, "type_vocab_size": 1},
    },
}
TOKENS = np.random.default_rng(0).integers(4, 61, (3, 20)).astype(np.int32)


@functools.cache
def small(name):
    record = family(name)
    config = record.config(FIELDS[name], dropout=0.0)
    rng = np.random.default_rng(0)
    flat = {path: 0.3 * rng.normal(size=shape) for path, shape in record.shapes(config).items()}
    return record, config, unflatten({path: value.astype(np.float32) for path, value in flat.items()})


@functools.cache
def loss_and_gradient(name, multiple):
    record, config, params = small(name)
    wide, wide_config = pad(params, record, config, multiple)
    mask = {} if record.causal else {"mask_token_id": 60, "special_ids": range(4)}
    objective = make_objective(
        "clm" if record.causal else "mlm", record, wide_config, chunk=8, vocabulary_size=config.vocabulary_size, **mask
    )
    run = jax.jit(jax.value_and_grad(lambda p: objective(p, {"tokens": TOKENS}, jax.random.key(1), train=True)[0]))
    loss, gradient = run(wide)
    return float(loss), jax.device_get(gradient)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["gpt2", "roberta"])
def test_losses_and_gradients_are_those_of_the_model_without_padding(name):
    record, config, _ = small(name)
    loss, gradient = loss_and_gradient(name, 1)
    wide_loss, wide_gradient = loss_and_gradient(name, 64)
    assert wide_loss == pytest.approx(loss, rel=1e-6)
    for path, value in flatten(strip(wide_gradient, record, config)).items():
        expected = flatten(gradient)[path]
        np.testing.assert_allclose(value, expected, rtol=1e-4, atol=2e-6 * float(np.abs(expected).max()), err_msg=path)


@pytest.mark.parametrize("name", ["gpt2", "roberta"])
def test_rows_behind_the_vocabulary_get_no_gradient(name):
    gradient = flatten(loss_and_gradient(name, 64)[1])
    tables = [path for path, value in gradient.items() if value.shape[0] == 64]
    assert len(tables) == 2
    for path in tables:
        assert np.all(gradient[path][61:] == 0), path
        assert np.any(gradient[path][:61] != 0), path


def test_padding_adds_zeros_and_stripping_takes_them_away():
    for name in FIELDS:
        record, config, params = small(name)
        for module, given in ((np, params), (jnp, jax.tree.map(jnp.asarray, params))):
            wide, wide_config = pad(given, record, config, 128)
            assert wide_config.vocabulary_size == 128
            assert {path: x.shape for path, x in flatten(wide).items()} == record.shapes(wide_config)
            table = wide["token_embedding"]["embedding"]
            assert isinstance(table, np.ndarray) == (module is np)
            assert np.all(np.asarray(table[61:]) == 0)
            for path, value in flatten(strip(wide, record, config)).items():
                np.testing.assert_array_equal(value, flatten(params)[path])
    assert padded(config, 1) == config and padded(config, 61) == config


def test_padding_works_where_parameters_are_drawn():
    record, config, _ = small("gpt2")
    plain = record.init(config, jax.random.key(0))
    wide = jax.jit(lambda key: pad(record.init(config, key), record, config, 64)[0])(jax.random.key(0))
    for path, value in flatten(strip(wide, record, config)).items():
        np.testing.assert_array_equal(value, flatten(plain)[path])
