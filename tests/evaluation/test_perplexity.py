import dataclasses
import math
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from wechsel_jax.data import TokenBlocks, evaluation_batches
from wechsel_jax.errors import UserError
from wechsel_jax.evaluation import perplexity
from wechsel_jax.models import family
from wechsel_jax.objectives import make_objective

V = 31
STREAM = np.random.default_rng(0).integers(4, V, 150).astype(np.uint16)


def make_blocks(length, stream=STREAM):
    return TokenBlocks(Path("stream"), length, stream, V, "")


def bigram(params, batch, key, *, train):
    """A model that knows the probability of a token after another: params (V, V) logits."""
    assert train is False
    logits = jax.nn.log_softmax(params)[batch["tokens"][:, :-1]]
    loss = -jnp.take_along_axis(logits, batch["tokens"][:, 1:, None], axis=-1)[..., 0]
    weights = batch["weights"][:, 1:]
    return jnp.sum(loss * weights), jnp.sum(weights), {}


@pytest.mark.parametrize(("length", "rows"), [(2, 1), (7, 4), (16, 3), (150, 2), (149, 1)])
def test_a_bigram_model_scores_the_whole_stream(length, rows):
    params = np.random.default_rng(1).normal(size=(V, V)).astype(np.float32)
    result = perplexity(bigram, params, evaluation_batches(make_blocks(length), rows, causal=True))
    exact = params.astype(np.float64)
    logits = exact - np.log(np.exp(exact).sum(axis=1, keepdims=True))
    expected = -logits[STREAM[:-1], STREAM[1:]].mean()
    assert result["tokens"] == len(STREAM) - 1
    assert result["loss"] == pytest.approx(expected, rel=1e-6)
    assert result["perplexity"] == pytest.approx(math.exp(expected), rel=1e-5)


def test_a_uniform_model_has_the_perplexity_of_its_vocabulary():
    result = perplexity(bigram, np.zeros((V, V), np.float32), evaluation_batches(make_blocks(9), 4, causal=True))
    assert result["perplexity"] == pytest.approx(V, rel=1e-6)


@pytest.fixture(scope="module")
def torch_gpt2():
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    torch.manual_seed(0)
    config = transformers.GPT2Config(
        vocab_size=V, n_positions=16, n_embd=12, n_layer=2, n_head=3, bos_token_id=0, eos_token_id=0, initializer_range=0.4
    )
    return transformers.GPT2LMHeadModel(config).eval()


@pytest.fixture(scope="module")
def gpt2(torch_gpt2):
    record = family("gpt2")
    config = record.config(torch_gpt2.config.to_dict())
    tensors = {name: tensor.numpy() for name, tensor in torch_gpt2.state_dict().items() if name != "lm_head.weight"}
    return make_objective("clm", record, config), record.from_hugging_face(tensors, config)


def torch_nats(model, length):
    """Of every token but the stream's first, window after window, from the ones before it in its window."""
    import torch

    nats = []
    for start in range(0, len(STREAM) - 1, length - 1):
        window = torch.as_tensor(STREAM[start : start + length].astype(np.int64))
        with torch.no_grad():
            logits = model(window[None]).logits[0, :-1].double()
        nats += torch.nn.functional.cross_entropy(logits, window[1:], reduction="none").tolist()
    return np.asarray(nats)


@pytest.mark.parametrize(("length", "rows"), [(16, 4), (11, 1)])
def test_gpt2_agrees_with_torch(torch_gpt2, gpt2, length, rows):
    objective, params = gpt2
    result = perplexity(objective, params, evaluation_batches(make_blocks(length), rows, causal=True))
    expected = torch_nats(torch_gpt2, length)
    assert result["tokens"] == len(expected) == len(STREAM) - 1
    assert result["loss"] == pytest.approx(expected.mean(), rel=2e-6)
    # A loss near log V would not show whether the model had been asked at all.
    assert abs(result["loss"] - math.log(V)) > 0.05


@pytest.mark.parametrize("chunk", [0, 5])
def test_bits_per_byte_are_those_of_the_tokens_that_stand_for_text(torch_gpt2, gpt2, chunk):
    objective, params = gpt2
    # Tokens of no bytes are special ones: counted in the perplexity, not in the bits.
    lengths = np.random.default_rng(2).integers(0, 5, V)
    batches = evaluation_batches(make_blocks(16), 4, causal=True, byte_lengths=lengths)
    result = perplexity(dataclasses.replace(objective, chunk=chunk), params, batches)
    nats, counted = torch_nats(torch_gpt2, 16), lengths[STREAM[1:]]
    assert 0 < (counted == 0).sum() < len(counted)
    assert result["bytes"] == counted.sum()
    assert result["bits_per_byte"] == pytest.approx(nats[counted > 0].sum() / math.log(2) / counted.sum(), rel=2e-6)
    assert result["tokens"] == len(nats) and result["loss"] == pytest.approx(nats.mean(), rel=2e-6)


def test_neither_sharding_nor_batch_size_changes_the_result(gpt2):
    objective, params = gpt2
    expected = perplexity(objective, params, evaluation_batches(make_blocks(16), 3, causal=True))
    mesh = jax.make_mesh((4, 2), ("data", "tensor"), axis_types=(AxisType.Auto,) * 2)

    def place(x):
        axes = ["tensor" if size % 2 == 0 else None for size in x.shape]
        spec = [axis if axis not in axes[:i] else None for i, axis in enumerate(axes)]
        return jax.device_put(x, NamedSharding(mesh, PartitionSpec(*spec)))

    sharded = jax.tree.map(place, params)
    rows = NamedSharding(mesh, PartitionSpec("data"))
    batches = (jax.device_put(batch, rows) for batch in evaluation_batches(make_blocks(16), 8, causal=True))
    result = perplexity(objective, sharded, batches)
    assert result["tokens"] == expected["tokens"]
    assert result["loss"] == pytest.approx(expected["loss"], rel=2e-6)


class Recorder:
    """An objective that records, through its sums, which tokens it was asked for."""

    def __init__(self):
        self.traces = 0

    def __call__(self, params, batch, key, *, train):
        self.traces += 1
        chosen = (jax.random.uniform(key, batch["tokens"].shape) < 0.3) & (batch["weights"] > 0)
        places = jnp.arange(chosen.size).reshape(chosen.shape)
        return jnp.sum(chosen * params[places]), jnp.sum(chosen.astype(jnp.float32)), {}


def test_the_same_tokens_are_asked_for_every_time():
    objective, blocks, values = Recorder(), make_blocks(10), np.random.default_rng(3).random(40).astype(np.float32)

    def evaluate(key=None):
        return perplexity(objective, values, evaluation_batches(blocks, 4, causal=False), key)

    first = evaluate()
    assert evaluate() == first == evaluate(jax.random.key(0))
    assert evaluate(jax.random.key(1))["loss"] != first["loss"]
    # One compilation for four evaluations of four batches.
    assert objective.traces == 1


def of_batch(params, batch, key, *, train):
    """The batch is the sums."""
    return *batch, {}


def test_batches_are_masked_differently():
    def draw(params, batch, key, *, train):
        return jax.random.uniform(key), jnp.float32(1), {}

    result = perplexity(draw, None, evaluation_batches(make_blocks(10), 4, causal=False), jax.random.key(5))
    drawn = [float(jax.random.uniform(jax.random.fold_in(jax.random.key(5), i))) for i in range(4)]
    assert len(set(drawn)) == 4 and result["tokens"] == 4
    assert result["loss"] == pytest.approx(np.mean(drawn), rel=1e-6)
    assert all(type(value) in (int, float) for value in result.values())


@pytest.mark.slow
def test_a_masked_model_is_scored_on_all_its_text():
    record = family("roberta")
    config = record.config(
        {
            "model_type": "roberta", "vocab_size": V, "hidden_size": 12, "num_hidden_layers": 1, "num_attention_heads": 3,
            "intermediate_size": 20, "max_position_embeddings": 18, "pad_token_id": 1,
        }
    )  # fmt: skip
    params = jax.jit(record.init, static_argnums=0)(config, jax.random.key(0))
    objective = make_objective("mlm", record, config, mask_token_id=3, special_ids=(0, 1, 2, 3))
    first = perplexity(objective, params, evaluation_batches(make_blocks(16), 4, causal=False))
    # Nine windows of 16 tokens and one of 6, without a special token; round(.15 * 16) = 2 and round(.15 * 6) = 1 of them.
    assert first["tokens"] == 9 * 2 + 1
    assert first["loss"] == pytest.approx(math.log(V), abs=0.1)
    assert perplexity(objective, params, evaluation_batches(make_blocks(16), 4, causal=False)) == first
    lengths = np.where(np.arange(V) < 20, 3, 0)
    batches = evaluation_batches(make_blocks(16), 4, causal=False, byte_lengths=lengths)
    counted = perplexity(objective, params, batches)
    # The untrained model is nearly uniform, so each of the tokens that have bytes costs log V.
    assert 0 < counted["bytes"] < 3 * first["tokens"] and counted["bytes"] % 3 == 0
    assert counted["loss"] == pytest.approx(first["loss"], rel=1e-6)
    assert counted["bits_per_byte"] == pytest.approx(math.log2(V) / 3, rel=0.1)


def test_small_terms_are_not_lost_in_a_large_sum():
    sums = [(np.float32(2**24), np.float32(2**24))] + [(np.float32(1), np.float32(1))] * 3
    assert perplexity(of_batch, None, sums)["tokens"] == 2**24 + 3


@pytest.mark.parametrize(("loss", "expected"), [(1e4, math.inf), (math.inf, math.inf), (700.0, math.exp(700.0))])
def test_a_hopeless_model_overflows_quietly(loss, expected):
    assert perplexity(of_batch, None, [(np.float32(loss), np.float32(1))])["perplexity"] == expected


def test_a_loss_that_is_no_number_stays_one():
    result = perplexity(of_batch, None, [(np.float32(np.nan), np.float32(1))])
    assert math.isnan(result["loss"]) and math.isnan(result["perplexity"])


@pytest.mark.parametrize("batches", [[], [(np.float32(0), np.float32(0))]])
def test_nothing_to_predict_is_a_mistake(batches):
    with pytest.raises(UserError, match="no token was predicted"):
        perplexity(of_batch, None, batches)
