"""Parameters: initialisation against Hugging Face's, shapes, the regexes over paths, and sharding on three axes."""

import re
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from tests.models.helpers import small_model
from tests.models.make_golden import CONFIGS
from wechsel_jax.models import family
from wechsel_jax.models.registry import FAMILIES
from wechsel_jax.models.weights import flatten, unflatten

SIZES = {
    "gpt2": {"vocab_size": 401, "n_embd": 64, "n_layer": 3, "n_head": 2, "n_positions": 128},
    "roberta": {
        "vocab_size": 401,
        "hidden_size": 64,
        "num_hidden_layers": 3,
        "num_attention_heads": 2,
        "intermediate_size": 128,
        "max_position_embeddings": 130,
    },
}


@pytest.mark.parametrize("name", SIZES)
def test_initialisation_is_that_of_hugging_face(name):
    """Standard deviations, zero rows, zeros and ones, tensor by tensor, against a fresh torch model's."""
    transformers = pytest.importorskip("transformers")
    pytest.importorskip("torch")
    fields = SIZES[name] | {"tie_word_embeddings": False, "bos_token_id": 0, "eos_token_id": 2}
    auto = transformers.AutoModelForCausalLM if name == "gpt2" else transformers.AutoModelForMaskedLM
    reference = auto.from_config(transformers.AutoConfig.for_model(name, **fields))
    record = family(name)
    config = record.config(reference.config.to_dict())
    params = record.init(config, jax.random.key(0))
    ours = record.to_hugging_face(params, config)
    theirs = {key: value.detach().numpy() for key, value in reference.named_parameters()}
    assert ours.keys() == theirs.keys()
    for key, value in theirs.items():
        if value.ndim == 1:
            np.testing.assert_array_equal(ours[key], value, err_msg=key)
        elif value.shape[0] > 2:
            # The ratio of two standard deviations of n draws each deviates by sqrt(1 / n).
            assert abs(ours[key].std() / value.std() - 1) < 5 / np.sqrt(value.size), key
            assert abs(ours[key].mean()) < 5 * value.std() / np.sqrt(value.size), key
            zero_rows = np.flatnonzero(np.all(value == 0, axis=1))
            np.testing.assert_array_equal(np.flatnonzero(np.all(ours[key] == 0, axis=1)), zero_rows, err_msg=key)
    up = params["layers"]["mlp"]["up"]["kernel"]
    assert np.abs(up[0] - up[1]).max() > 0
    assert np.array_equal(up, record.init(config, jax.random.key(0))["layers"]["mlp"]["up"]["kernel"])
    assert not np.array_equal(up, record.init(config, jax.random.key(1))["layers"]["mlp"]["up"]["kernel"])
    assert record.shapes(config) == {path: leaf.shape for path, leaf in flatten(params).items()}
    assert all(leaf.dtype == jnp.float32 for leaf in jax.tree.leaves(params))


@pytest.mark.parametrize("name", CONFIGS)
def test_exactly_one_sharding_rule_matches_each_parameter(name):
    record, config, _ = small_model(name)
    for path, shape in record.shapes(config).items():
        matching = [spec for pattern, spec in record.sharding_rules if re.search(pattern, path)]
        assert len(matching) == 1, path
        assert len(matching[0]) <= len(shape), path
        if path.endswith(("kernel", "embedding")):
            assert "fsdp" in matching[0], path
        if path.startswith("layers/"):
            assert not matching[0] or matching[0][0] is None, path


@pytest.mark.parametrize("name", CONFIGS)
def test_token_and_embedding_parameters(name):
    record, config, _ = small_model(name)
    shapes = record.shapes(config)
    with_vocabulary = {path for path, shape in shapes.items() if config.vocabulary_size in shape}
    assert {path for path in shapes if re.search(record.token_parameters, path)} == with_vocabulary
    tables = {path for path in shapes if path.endswith("/embedding")}
    assert {path for path in shapes if re.search(record.embedding_parameters, path)} == tables | with_vocabulary


@pytest.mark.slow
@pytest.mark.parametrize("name", FAMILIES)
def test_a_sharded_model_gives_the_same_gradients(name):
    """All three axes of the mesh at once: XLA's partitioner once computed RoBERTa's head wrongly there."""
    record = family(name)
    fields = {"vocab_size": 48, "hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 4, "intermediate_size": 64}
    config = record.config(fields, embedding_dropout=0.0, attention_dropout=0.0)
    rng = np.random.default_rng(0)
    params = unflatten({p: 0.2 * rng.normal(size=s).astype(np.float32) for p, s in record.shapes(config).items()})
    tokens = rng.integers(4, 48, (8, 16)).astype(np.int32)

    def loss(params, tokens):
        scores = record.logits(params, config, record.hidden(params, config, tokens, dropout_key=jax.random.key(1)))
        return -jnp.sum(jnp.take_along_axis(jax.nn.log_softmax(scores), tokens[..., None], axis=-1))

    value, gradient = jax.jit(jax.value_and_grad(loss))(params, tokens)
    mesh = jax.make_mesh((2, 2, 2), ("data", "fsdp", "tensor"), axis_types=(AxisType.Auto,) * 3)
    specs = {path: next(s for p, s in record.sharding_rules if re.search(p, path)) for path in flatten(params)}
    shardings = unflatten({path: NamedSharding(mesh, spec) for path, spec in specs.items()})
    rows = NamedSharding(mesh, PartitionSpec(("data", "fsdp")))
    with jax.set_mesh(mesh):
        step = jax.jit(jax.value_and_grad(loss), out_shardings=(NamedSharding(mesh, PartitionSpec()), shardings))
        sharded_value, sharded = step(jax.device_put(params, shardings), jax.device_put(tokens, rows))
    assert float(sharded_value) == pytest.approx(float(value), rel=1e-6)
    scale = max(float(np.abs(leaf).max()) for leaf in jax.tree.leaves(gradient))
    jax.tree.map(partial(np.testing.assert_allclose, rtol=1e-4, atol=1e-6 * scale), sharded, gradient)
