"""Causal objective: against torch's loss, chunking, weights, memory, and determinism."""

import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec

from wechsel_jax.errors import UserError
from wechsel_jax.models import family
from wechsel_jax.models.weights import unflatten
from wechsel_jax.objectives import make_objective
from wechsel_jax.objectives.loss import chunked_loss, fitting_chunk
from wechsel_jax.training.sharding import make_mesh

FIELDS = {"vocab_size": 61, "n_positions": 48, "n_embd": 24, "n_layer": 2, "n_head": 3}
GPT2 = family("gpt2")
CONFIG = GPT2.config(FIELDS)
TOKENS = np.random.default_rng(0).integers(0, 61, (3, 19)).astype(np.int32)


@pytest.fixture(scope="module")
def params():
    """Weights large enough for losses to differ between tokens."""
    rng = np.random.default_rng(0)
    flat = {path: 0.3 * rng.normal(size=shape) for path, shape in GPT2.shapes(CONFIG).items()}
    return unflatten({path: value.astype(np.float32) for path, value in flat.items()})


@functools.cache
def compiled(chunk, train, config, dtype, gradient=False):
    objective = make_objective("clm", GPT2, config, chunk=chunk, dtype=dtype)
    if gradient:
        return jax.jit(jax.grad(lambda p, b, k: objective(p, b, k, train=train)[0]))
    return jax.jit(lambda p, b, k: objective(p, b, k, train=train))


def with_weights(tokens):
    return {"tokens": tokens, "weights": np.ones(tokens.shape, np.float32)}


def evaluate(params, batch, chunk=32, train=False, key=0, config=CONFIG, dtype="float32"):
    return compiled(chunk, train, config, dtype)(params, batch, jax.random.key(key))


@jax.jit
def all_logits(params, tokens):
    return GPT2.logits(params, CONFIG, GPT2.hidden(params, CONFIG, tokens))


def unchunked(params, tokens, weights):
    """The definition in plain numpy, float64."""
    logits = np.asarray(all_logits(params, tokens), np.float64)[:, :-1]
    top = logits.max(axis=-1)
    normaliser = top + np.log(np.exp(logits - top[..., None]).sum(axis=-1))
    score = np.take_along_axis(logits, tokens[:, 1:, None], axis=-1)[..., 0]
    return float(np.sum((normaliser - score) * weights[:, 1:])), float(np.sum((score >= top) * weights[:, 1:]))


def test_equals_the_loss_of_transformers(params):
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    reference = transformers.GPT2LMHeadModel(transformers.GPT2Config(**FIELDS, bos_token_id=0, eos_token_id=0)).eval()
    tensors = {name: torch.tensor(value) for name, value in GPT2.to_hugging_face(params, CONFIG).items()}
    reference.load_state_dict(tensors | {"lm_head.weight": tensors["transformer.wte.weight"]})
    with torch.no_grad():
        expected = reference(torch.tensor(TOKENS).long(), labels=torch.tensor(TOKENS).long()).loss.item()
    loss, weight, _ = evaluate(params, with_weights(TOKENS), chunk=7)
    assert weight == 3 * 18
    assert float(loss / weight) == pytest.approx(expected, rel=2e-6)


@pytest.mark.parametrize("chunk", [1, 7, 100])
def test_chunks_change_nothing(params, chunk):
    weights = np.random.default_rng(1).random(TOKENS.shape).astype(np.float32)
    loss, weight, metrics = evaluate(params, {"tokens": TOKENS, "weights": weights}, chunk=chunk)
    expected, correct = unchunked(params, TOKENS, weights)
    assert float(loss) == pytest.approx(expected, rel=1e-6)
    assert float(weight) == pytest.approx(weights[:, 1:].sum(), rel=1e-6)
    assert float(metrics["correct"]) == pytest.approx(correct, rel=1e-6)


@pytest.mark.parametrize("rows", [1, 3, 8, 600])
@pytest.mark.parametrize("length", [2, 100, 256, 1000])
def test_a_fitting_chunk_keeps_a_device_busy(rows, length):
    """As few chunks as hold 512 tokens at most, all of nearly one length; split over devices, each has that many."""
    chunk = fitting_chunk(rows, length)
    count = -(-length // chunk)
    assert 1 <= chunk <= length and count * chunk - length < count
    assert chunk == 1 or rows * chunk <= 512 + rows
    assert rows * length <= 512 or 2 * rows * chunk >= 512 or chunk == length
    with jax.set_mesh(make_mesh({"data": 2, "fsdp": 2, "tensor": 2})):
        assert fitting_chunk(4 * rows, length) == chunk


@pytest.mark.slow
def test_gradients_equal_those_without_chunks(params):
    batch = {"tokens": TOKENS, "weights": np.ones(TOKENS.shape, np.float32)}
    whole, chunked = (compiled(n, True, CONFIG, "float32", True)(params, batch, jax.random.key(5)) for n in (19, 5))
    for left, right in zip(jax.tree.leaves(whole), jax.tree.leaves(chunked), strict=True):
        np.testing.assert_allclose(right, left, rtol=1e-4, atol=1e-5 * float(np.abs(left).max()))


@functools.cache
def gradients_of(chunk, scale):
    objective = make_objective("clm", GPT2, CONFIG, chunk=chunk)
    return jax.jit(jax.grad(lambda p, b: scale * objective(p, b, jax.random.key(0), train=False)[0]))


@pytest.mark.slow
def test_gradients_equal_those_of_the_definition(params):
    """The loss brings its own derivative; JAX differentiates the definition here."""
    weights = np.random.default_rng(1).random(TOKENS.shape).astype(np.float32)

    def definition(params):
        logits = GPT2.logits(params, CONFIG, GPT2.hidden(params, CONFIG, TOKENS))[:, :-1]
        score = jnp.take_along_axis(jax.nn.log_softmax(logits), TOKENS[:, 1:, None], axis=-1)[..., 0]
        return -3.0 * jnp.sum(score * weights[:, 1:])

    expected = jax.jit(jax.grad(definition))(params)
    for chunk in (5, 19):
        found = gradients_of(chunk, 3.0)(params, {"tokens": TOKENS, "weights": weights})
        for left, right in zip(jax.tree.leaves(expected), jax.tree.leaves(found), strict=True):
            np.testing.assert_allclose(right, left, rtol=1e-4, atol=1e-5 * float(np.abs(left).max()))


def soft_batch(seed=3, count=4):
    generator = np.random.default_rng(seed)
    shares = generator.random((*TOKENS.shape, count)).astype(np.float32) / (2 * count)
    # Tokens of which some occur twice, some are the target itself.
    return {"soft_tokens": generator.integers(0, 9, shares.shape).astype(np.int32), "soft_weights": shares}


@pytest.mark.parametrize("chunk", [5, 19])
def test_soft_targets_have_the_gradients_of_their_cross_entropy(params, chunk):
    soft, weights = soft_batch(), np.random.default_rng(1).random(TOKENS.shape).astype(np.float32)
    without_dropout = GPT2.config(FIELDS, dropout=0.0)

    def definition(params):
        scores = jax.nn.log_softmax(GPT2.logits(params, CONFIG, GPT2.hidden(params, CONFIG, TOKENS))[:, :-1])
        shares = soft["soft_weights"][:, :-1]
        target = jax.nn.one_hot(TOKENS[:, 1:], 61) * (1 - shares.sum(-1, keepdims=True))
        target += (jax.nn.one_hot(soft["soft_tokens"][:, :-1], 61) * shares[..., None]).sum(-2)
        return -jnp.sum((target * scores).sum(-1) * weights[:, 1:])

    batch = {"tokens": TOKENS, "weights": weights}
    found = compiled(chunk, True, without_dropout, "float32", True)(params, batch | soft, jax.random.key(0))
    plain = compiled(chunk, True, without_dropout, "float32", True)(params, batch, jax.random.key(0))
    for left, right, other in zip(*map(jax.tree.leaves, (jax.jit(jax.grad(definition))(params), found, plain)), strict=True):
        np.testing.assert_allclose(right, left, rtol=1e-4, atol=1e-5 * float(np.abs(left).max()))
        assert not np.allclose(right, other, rtol=1e-2, atol=1e-3 * float(np.abs(left).max()))


@pytest.mark.parametrize("train", [True, False])
def test_soft_targets_leave_the_loss_comparable(params, train):
    """What is shown stays the cross-entropy of the text, and an evaluation does not read them."""
    batch = with_weights(TOKENS)
    plain, soft = (evaluate(params, given, chunk=5, train=train) for given in (batch, batch | soft_batch()))
    assert jax.tree.all(jax.tree.map(np.array_equal, plain, soft))


def test_a_mesh_leaves_soft_targets_where_their_rows_are():
    """A scatter into rows that are counted through would gather those of all devices on each."""
    mesh = make_mesh({"data": 4, "fsdp": 2, "tensor": 1})
    rows = NamedSharding(mesh, PartitionSpec(("data", "fsdp")))
    generator = np.random.default_rng(0)
    hidden = generator.normal(size=(8, 12, 16)).astype(np.float32)
    tokens, weights = generator.integers(0, 61, (8, 12), np.int32), np.ones((8, 12), np.float32)
    soft = generator.integers(0, 61, (8, 12, 5), np.int32), np.full((8, 12, 5), 0.1, np.float32)
    table = generator.normal(size=(61, 16)).astype(np.float32)

    def loss(table, hidden, soft, chunk):
        return chunked_loss(lambda head, x: x @ head["table"].T, {"table": table}, hidden, tokens, weights, chunk, soft)[0]

    for chunk in (4, 12):
        gradient = jax.jit(jax.grad(loss, (0, 1)), static_argnums=3, in_shardings=(None, rows, rows))
        with jax.set_mesh(mesh):
            placed = table, jax.device_put(hidden, rows), jax.device_put(soft, rows)
            text = gradient.lower(*placed, chunk).compile().as_text()
        assert not re.search(r"= [sf]32\[[\d,]*5\]\S* all-gather", text)
        for one, other in zip(gradient(*placed, chunk), jax.grad(loss, (0, 1))(table, hidden, soft, chunk), strict=True):
            np.testing.assert_allclose(one, other, atol=1e-5)


def products_with_the_vocabulary(function, *arguments):
    """Shapes of the results of all matrix products that read or write an axis of 61 tokens."""

    def equations(jaxpr):
        for equation in jaxpr.eqns:
            yield equation
            for value in equation.params.values():
                for inner in value if isinstance(value, (list, tuple)) else [value]:
                    inner = getattr(inner, "jaxpr", inner)
                    if hasattr(inner, "eqns"):
                        yield from equations(inner)

    products = [e for e in equations(jax.make_jaxpr(function)(*arguments).jaxpr) if e.primitive.name == "dot_general"]
    return [e.outvars[0].aval.shape for e in products if any(61 in v.aval.shape for v in (*e.invars, *e.outvars))]


def test_no_logits_are_computed_twice_and_no_gradient_of_a_frozen_head(params):
    objective = make_objective("clm", GPT2, CONFIG, chunk=5)

    def loss(head, rest):
        return objective({**rest, **head}, {"tokens": TOKENS}, jax.random.key(0), train=True)[0]

    head = {"token_embedding": params["token_embedding"]}
    rest = {name: value for name, value in params.items() if name != "token_embedding"}
    scores, of_hidden = (3, 5, 61), (3, 5, 24)
    everything = products_with_the_vocabulary(jax.grad(loss, argnums=(0, 1)), head, rest)
    assert everything.count(scores) == 1 and everything.count(of_hidden) == 1 and len(everything) == 3
    assert sorted(products_with_the_vocabulary(jax.grad(loss, argnums=1), head, rest)) == [of_hidden, scores]
    assert products_with_the_vocabulary(loss, head, rest) == [scores]


def test_weights_and_padding(params):
    """Weight 0 takes a token out; padding after a row changes nothing; the first token is never predicted."""
    weights = np.ones(TOKENS.shape, np.float32)
    weights[:, :1] = 100.0
    plain = evaluate(params, {"tokens": TOKENS})
    for given, expected in zip(evaluate(params, {"tokens": TOKENS, "weights": weights})[:2], plain[:2], strict=True):
        assert given == expected
    weights[1] = 0.0
    other = np.where(np.arange(3)[:, None] == 1, 5, TOKENS)
    expected, _ = unchunked(params, TOKENS, weights)
    for tokens in (TOKENS, other):
        loss, weight, _ = evaluate(params, {"tokens": tokens, "weights": weights})
        assert float(loss) == pytest.approx(expected, rel=1e-6) and weight == 36

    padded = np.pad(TOKENS, ((0, 0), (0, 5)))
    mask = np.pad(np.ones(TOKENS.shape, bool), ((0, 0), (0, 5)))
    loss, weight, _ = evaluate(params, {"tokens": padded, "mask": mask})
    assert weight == plain[1]
    assert float(loss) == pytest.approx(float(plain[0]), rel=1e-6)
    # A first real token after padding on the left has nothing real to be predicted from.
    left = np.pad(np.ones(TOKENS.shape, bool), ((0, 0), (5, 0)))
    assert evaluate(params, {"tokens": np.pad(TOKENS, ((0, 0), (5, 0))), "mask": left})[1] == plain[1]


def test_all_weights_zero_is_zero_and_finite(params):
    batch = {"tokens": TOKENS, "weights": np.zeros(TOKENS.shape, np.float32)}
    gradient = compiled(5, True, CONFIG, "float32", True)(params, batch, jax.random.key(0))
    assert evaluate(params, batch)[:2] == (0.0, 0.0)
    assert all(np.all(np.asarray(leaf) == 0) for leaf in jax.tree.leaves(gradient))


def test_the_key_drives_dropout_in_training_only(params):
    batch = with_weights(TOKENS)
    quiet = float(evaluate(params, batch, key=0)[0])
    assert quiet == float(evaluate(params, batch, key=1)[0])
    only_attention = CONFIG.override(dropout=0.0).override(attention_dropout=0.4)
    trained = [float(evaluate(params, batch, train=True, key=key, config=only_attention)[0]) for key in (0, 0, 1)]
    assert trained[0] == trained[1] != trained[2]
    assert trained[0] != pytest.approx(quiet, rel=1e-5)


def test_sums_are_float32_in_bfloat16(params):
    low = evaluate(params, with_weights(TOKENS), dtype="bfloat16")
    assert low[0].dtype == low[1].dtype == jnp.float32
    assert float(low[0]) == pytest.approx(float(evaluate(params, with_weights(TOKENS))[0]), rel=0.02)


@pytest.mark.slow
def test_chunks_need_less_memory():
    """8 x 128 tokens, V = 4096: the logits of all positions are 16 MiB, and training keeps several such arrays."""
    config = GPT2.config(FIELDS | {"vocab_size": 4096, "n_positions": 128}, dropout=0.0)
    params = jax.eval_shape(lambda: GPT2.init(config, jax.random.key(0)))
    batch = {"tokens": jax.ShapeDtypeStruct((8, 128), jnp.int32)}
    logits = 8 * 128 * 4096 * 4

    def memory(chunk):
        objective = make_objective("clm", GPT2, config, chunk=chunk)
        gradient = jax.jit(jax.grad(lambda p, b: objective(p, b, jax.random.key(0), train=True)[0]))
        return gradient.lower(params, batch).compile().memory_analysis().temp_size_in_bytes

    whole, chunked = memory(128), memory(16)
    assert whole > 2 * logits
    assert whole - chunked > logits


def test_bad_settings_are_refused():
    with pytest.raises(UserError, match="expected clm, mlm, mlm_nsp, cdlm, tlm or brlm"):
        make_objective("electra", GPT2, CONFIG)
    with pytest.raises(UserError, match="expected clm"):
        make_objective("mlm", GPT2, CONFIG, mask_token_id=4)
    with pytest.raises(UserError, match="expected mlm"):
        make_objective("clm", family("roberta"), family("roberta").config({"vocab_size": 9}))
    with pytest.raises(UserError, match="chunk"):
        make_objective("clm", GPT2, CONFIG, chunk=-1)
    for tokens in (0, 62):
        with pytest.raises(UserError, match=f"{tokens} tokens"):
            make_objective("clm", GPT2, CONFIG, vocabulary_size=tokens)
    with pytest.raises(UserError, match="bfloat16"):
        make_objective("clm", GPT2, CONFIG, dtype="half")
