"""What every family must do: respect causality and padding, drop out, compute in the right precision, count FLOPs."""

from collections import Counter
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.models.helpers import ALL, TOKENS, dot_flops, logits, small_model
from tests.models.make_golden import CONFIGS
from wechsel_jax.errors import UserError
from wechsel_jax.models import attention, family
from wechsel_jax.models.layers import Attention
from wechsel_jax.models.weights import unflatten

TOLERANCE = 2e-5


@pytest.fixture(scope="module", params=CONFIGS)
def model(request):
    return small_model(request.param)


def primitives(jaxpr, found=None):
    """Every (primitive name, dtype of the first output, if any), loops and calls looked into once."""
    found = Counter() if found is None else found
    for equation in jaxpr.eqns:
        found[equation.primitive.name, *(str(variable.aval.dtype) for variable in equation.outvars[:1])] += 1
        for value in equation.params.values():
            inner = getattr(value, "jaxpr", value)
            if hasattr(inner, "eqns"):
                primitives(inner, found)
    return found


@pytest.mark.slow
def test_a_later_token_changes_no_earlier_logits(model):
    record, config, params = model
    changed = TOKENS.copy()
    changed[:, 7] = 4 + (changed[:, 7] - 3) % 27
    before, after = (np.asarray(logits(record, config, params, tokens, ALL)) for tokens in (TOKENS, changed))
    difference = np.abs(before - after).max(axis=-1)
    assert np.all(difference[:, 7:] > 0)
    assert np.all((difference[:, :7] == 0) == record.causal)


def test_what_lies_under_the_padding_mask_is_not_seen(model):
    record, config, params = model
    mask = ALL.copy()
    mask[:, 8:] = False
    padding = config.pad_token_id if config.pad_token_id is not None else 0
    padded = np.where(mask, TOKENS, padding)
    right = logits(record, config, params, padded, mask)
    np.testing.assert_array_equal(logits(record, config, params, np.where(mask, TOKENS, 9), mask)[:, :8], right[:, :8])
    if not record.causal:
        assert np.abs(logits(record, config, params, padded, ALL)[:, :8] - right[:, :8]).max() > 1e-3


def test_no_row_is_nan_where_nothing_is_visible(model):
    record, config, params = model
    assert np.all(np.isfinite(logits(record, config, params, TOKENS, ~ALL)))


@pytest.mark.parametrize("name", ["gpt2", "roberta"])
def test_a_mistake_would_show(name):
    """The tolerance of the parity tests is small enough: the wrong gelu differs by far more."""
    record, config, params = small_model(name)
    other = {"gelu": "gelu_new", "gelu_new": "gelu"}[config.activation]
    wrong = logits(record, config.override(activation=other), params, TOKENS, ALL)
    assert np.abs(wrong - logits(record, config, params, TOKENS, ALL)).max() > 10 * TOLERANCE


@pytest.mark.parametrize("name", ["gpt2", "roberta", "llama"])
def test_dropout_is_where_the_rates_say_and_nowhere_in_evaluation(name):
    """Counts the keys that are taken for random bits: the body of the loop over layers counts once."""
    record, config, params = small_model(name)

    def draws(key, **rates):
        settings = config.override(dropout=0.0).override(**rates)
        jaxpr = jax.make_jaxpr(lambda p: record.hidden(p, settings, TOKENS, dropout_key=key))(params)
        return sum(count for (name, *_), count in primitives(jaxpr.jaxpr).items() if name == "random_unwrap")

    key = jax.random.key(0)
    assert draws(key) == 0
    assert draws(key, inner_dropout=0.1) == 1
    assert draws(key, embedding_dropout=0.1) == 1
    assert draws(key, attention_dropout=0.1) == 1
    assert draws(key, residual_dropout=0.1) == 2
    assert draws(None, dropout=0.1) == 0


def test_attention_dropout_drops_probabilities():
    """With equal scores and identity values the output is the matrix of probabilities after dropout."""
    size, rate = 64, 0.3
    fields = {"vocab_size": 5, "n_embd": size, "n_head": 1, "n_positions": size, "attn_pdrop": rate}
    config = family("gpt2").config(fields)
    kernel = np.zeros((size, 3, size), np.float32)
    kernel[:, 2] = np.eye(size)
    params = {
        "qkv": {"kernel": kernel, "bias": np.zeros((3, size), np.float32)},
        "output": {"kernel": np.eye(size, dtype=np.float32), "bias": np.zeros(size, np.float32)},
    }
    module = Attention(config, jnp.float32, False, causal=False)
    x = np.broadcast_to(np.eye(size, dtype=np.float32), (4, size, size))
    apply = jax.jit(lambda p, key: module.apply({"params": p}, x, None, rngs={"dropout": key})[0])
    probabilities = np.asarray(apply(params, jax.random.key(0)))
    dropped = probabilities == 0
    # 16,384 independent draws: five standard deviations are 0.018.
    assert abs(dropped.mean() - rate) < 0.018
    np.testing.assert_allclose(probabilities[~dropped], 1 / size / (1 - rate), rtol=1e-5)


def test_layers_do_not_share_their_dropout_and_follow_the_key():
    """Two layers that add only a dropped constant: with one mask for both, a row would hold two values, not three."""
    record = family("gpt2")
    fields = {"vocab_size": 5, "n_embd": 32, "n_head": 1, "n_positions": 32, "n_layer": 2, "resid_pdrop": 0.5}
    config = record.config(fields | {"embd_pdrop": 0.0, "attn_pdrop": 0.0})
    params = unflatten({path: np.zeros(shape, np.float32) for path, shape in record.shapes(config).items()})
    params["layers"]["mlp"]["down"]["bias"] += 1.0
    params["final_norm"]["scale"] += 1.0
    tokens = np.zeros((2, 32), np.int32)
    run = jax.jit(lambda p, key: record.hidden(p, config, tokens, dropout_key=key))
    first, again, other = (np.asarray(run(params, jax.random.key(i))) for i in (1, 1, 2))
    assert all(len(np.unique(np.round(row, 3))) == 3 for row in first.reshape(-1, 32))
    np.testing.assert_array_equal(first, again)
    assert np.abs(first - other).max() > 0.1


@pytest.mark.slow
@pytest.mark.parametrize("name", ["gpt2", "roberta", "gemma3"])
def test_bfloat16_stays_close_and_keeps_softmax_and_norms_in_float32(name):
    record, config, params = small_model(name)

    def low(params):
        hidden = record.hidden(params, config, TOKENS, ALL, dtype="bfloat16")
        return record.logits(params, config, hidden, dtype="bfloat16")

    scores, right = jax.jit(low)(params), logits(record, config, params, TOKENS, ALL)
    assert scores.dtype == jnp.float32
    assert np.abs(scores - right).max() < 0.05 * np.abs(right).max()
    found = primitives(jax.make_jaxpr(low)(params).jaxpr)
    for primitive in ("exp", "rsqrt", "reduce_sum", "reduce_max", *(("cos", "sin") if config.rope else ())):
        assert found[primitive, "float32"] and not found[primitive, "bfloat16"], primitive
    assert found["dot_general", "bfloat16"]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["gpt2", "gemma3"])
def test_remat_changes_nothing(name):
    """The backward pass draws the dropout of the forward pass again."""
    record, config, params = small_model(name)
    config = config.override(dropout=0.0).override(residual_dropout=0.3)

    @partial(jax.jit, static_argnums=0)
    def gradient_of(config, params):
        return jax.grad(lambda p: jnp.sum(jnp.sin(record.hidden(p, config, TOKENS, dropout_key=jax.random.key(3)))))(params)

    gradient, other = (gradient_of(c, params) for c in (config, config.override(remat="full")))
    jax.tree.map(partial(np.testing.assert_allclose, rtol=1e-4, atol=1e-5), gradient, other)


def test_too_long_a_block_is_refused(model):
    record, config, params = model
    with pytest.raises(UserError, match=f"at most {config.max_length}"):
        record.hidden(params, config, jnp.zeros((1, config.max_length + 1), jnp.int32))


def test_head_is_what_logits_reads(model):
    record, config, params = model
    hidden = jnp.ones((2, config.hidden_size))
    whole, head = (jax.make_jaxpr(lambda p: record.logits(p, config, hidden))(p) for p in (params, record.head(params)))
    assert len(head.eqns) == len(whole.eqns)
    assert len(head.jaxpr.invars) < len(whole.jaxpr.invars)


def test_flops_are_those_of_the_matrix_products(model):
    """What runs computes all L x L scores; what is counted leaves out those that causality and windows hide."""
    record, config, params = model

    def whole(params):
        return record.logits(params, config, record.hidden(params, config, TOKENS, ALL))

    length = TOKENS.shape[1]
    run = dot_flops(jax.make_jaxpr(whole)(params).jaxpr) / TOKENS.size
    of_scores = 4 * config.heads * config.head_features * length
    hidden = 0.0
    for window in config.windowed or (False,) * config.layers:
        seen = min(config.window, length) if window else length
        pairs = seen * length - seen**2 / 2 if record.causal else length**2
        hidden += of_scores * (1 - pairs / length**2)
    assert record.flops_per_token(config, length) == pytest.approx(3 * (run - hidden), rel=1e-9)


def test_layers_with_a_window_see_no_further():
    """Two layers, the first with a window of 3: what is 3 tokens back reaches a position through the second layer only."""
    record, config, params = small_model("gemma3")
    both = config.override(windowed=(True, True))
    changed = TOKENS.copy()
    changed[:, 2] = 4 + (changed[:, 2] - 3) % 27

    def difference(config):
        before, after = (np.asarray(logits(record, config, params, tokens, ALL)) for tokens in (TOKENS, changed))
        return np.abs(before - after).max(axis=(0, 2))

    assert np.all(difference(config)[2:] > 0)
    # Two windows of 3 reach 4 tokens back.
    assert np.array_equal(np.flatnonzero(difference(both)), np.arange(2, 7))


def test_flops_of_the_base_models():
    """Three times (forward, and twice that backward) two FLOPs a multiplication of every matrix product."""
    gpt2 = family("gpt2")
    assert gpt2.flops_per_token(gpt2.config({"vocab_size": 50257}), 512) == pytest.approx(769.5e6, rel=1e-3)
    roberta = family("roberta")
    config = roberta.config({"vocab_size": 50265, "max_position_embeddings": 514})
    assert roberta.flops_per_token(config, 512) == pytest.approx(801.3e6, rel=1e-3)
    assert roberta.flops_per_token(config, 512, head_fraction=0.15) == pytest.approx(601.4e6, rel=1e-3)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["llama", "gemma3"])
def test_fused_attention_sees_the_same(name, monkeypatch):
    """The path for GPUs, with JAX's plain implementation in the place of cuDNN's: grouped heads, windows and padding."""
    record, config, params = small_model(name)
    real = jax.nn.dot_product_attention
    called = []

    def plain(*arguments, implementation, **options):
        called.append(implementation)
        return real(*arguments, **options)

    monkeypatch.setattr(jax.nn, "dot_product_attention", plain)
    monkeypatch.setattr(attention, "fits_flash_attention", lambda query, dropout: True)
    mask = ALL.copy()
    mask[1, 8:] = False
    for real_tokens in (None, mask):
        fused = jax.jit(lambda p, m=real_tokens: record.logits(p, config, record.hidden(p, config, TOKENS, m)))(params)
        shown = ALL if real_tokens is None else mask
        expected = logits(record, config, params, TOKENS, shown)
        np.testing.assert_allclose(np.asarray(fused)[shown], np.asarray(expected)[shown], atol=TOLERANCE)
    assert set(called) == {"cudnn"}


@pytest.mark.parametrize("name", ["gpt2", "gemma3"])
def test_unrolled_layers_compute_the_same(name):
    record, config, params = small_model(name)
    unrolled = logits(record, config.override(scan_layers=False), params, TOKENS, ALL)
    np.testing.assert_allclose(unrolled, logits(record, config, params, TOKENS, ALL), atol=1e-5)
