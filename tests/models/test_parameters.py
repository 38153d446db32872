"""Parameters: initialisation against Hugging Face's, shapes, the regexes over paths, and sharding on three axes."""

import dataclasses
import re
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.models.helpers import small_model
from tests.models.make_golden import CONFIGS
from wechsel_jax.models import family
from wechsel_jax.models.registry import FAMILIES
from wechsel_jax.models.weights import flatten, unflatten
from wechsel_jax.training import sharding

_LLAMA = {
    "vocab_size": 401,
    "hidden_size": 64,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 128,
    "max_position_embeddings": 128,
}
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
    "bert": {
        "vocab_size": 401,
        "hidden_size": 64,
        "num_hidden_layers": 3,
        "num_attention_heads": 2,
        "intermediate_size": 128,
        "max_position_embeddings": 130,
    },
    "llama": _LLAMA | {"pad_token_id": 2, "attention_bias": True, "initializer_range": 0.1},
    "gemma3_text": _LLAMA | {"head_dim": 32, "sliding_window": 4},
    "xglm": {"vocab_size": 401, "d_model": 64, "num_layers": 3, "attention_heads": 2, "ffn_dim": 128, "init_std": 0.05},
}
_SMALL = {"vocab_size": 48, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
_SMALL_LLAMA = _SMALL | {"num_key_value_heads": 2, "intermediate_size": 64}
MESH_FIELDS = {
    "gpt2": _SMALL | {"n_inner": 64},
    "roberta": _SMALL | {"intermediate_size": 64},
    "xlm-roberta": _SMALL | {"intermediate_size": 64},
    "bert": _SMALL | {"intermediate_size": 64},
    **{f"tri-{name}": _SMALL | {"intermediate_size": 64} for name in ("bert", "roberta", "xlm-roberta")},
    "llama": _SMALL_LLAMA,
    "mistral": _SMALL_LLAMA | {"sliding_window": 5},
    "qwen2": _SMALL_LLAMA | {"num_attention_heads": 6, "num_key_value_heads": 3, "head_dim": 4, "vocab_size": 49},
    "gemma": _SMALL_LLAMA | {"head_dim": 8},
    "gemma2": _SMALL_LLAMA | {"head_dim": 8, "sliding_window": 5},
    "gemma3_text": _SMALL_LLAMA
    | {
        "num_key_value_heads": 1,
        "head_dim": 6,
        "sliding_window": 5,
        "layer_types": ["sliding_attention", "full_attention"],
        "attention_bias": True,
        "tie_word_embeddings": False,
    },
    "xglm": _SMALL | {"ffn_dim": 64},
}
# Each axis alone, two of them, all three.
MESHES = [(8, 1, 1), (1, 8, 1), (1, 1, 8), (4, 2, 1), (2, 1, 4), (1, 4, 2), (2, 2, 2)]


@pytest.mark.slow
@pytest.mark.parametrize("name", SIZES)
def test_initialisation_is_that_of_hugging_face(name):
    """Standard deviations, zero rows, zeros and ones, tensor by tensor, against a fresh torch model's."""
    transformers = pytest.importorskip("transformers")
    pytest.importorskip("torch")
    fields = SIZES[name] | {"tie_word_embeddings": False, "bos_token_id": 0, "eos_token_id": 2}
    record = family(name)
    auto = transformers.AutoModelForCausalLM if record.causal else transformers.AutoModelForMaskedLM
    reference = auto.from_config(transformers.AutoConfig.for_model(name, **fields))
    config = record.config(reference.config.to_dict())
    params = jax.device_get(record.init(config, jax.random.key(0)))
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


def sharded_model(name):
    """(family, config, params) of a model whose 4 heads and their few features 8 devices do not divide."""
    record = family(name)
    config = record.config(MESH_FIELDS[name], dropout=0.0)
    rng = np.random.default_rng(0)
    flat = {path: 0.2 * rng.normal(size=shape) for path, shape in record.shapes(config).items()}
    for path, value in flat.items():
        value += (1 - config.norm_offset) * path.endswith("scale")
    return record, config, unflatten({path: value.astype(np.float32) for path, value in flat.items()})


def on_mesh(shape, record, config, function, params, *batch):
    """What `function` of params and batch gives on a mesh, with gradients laid out as the parameters are."""
    mesh = sharding.make_mesh(dict(zip(sharding.AXES, shape, strict=True)))
    where, _ = sharding.parameter_shardings(mesh, record.sharding_rules, record.shapes(config))
    rows = sharding.batch_sharding(mesh)
    with jax.set_mesh(mesh):
        places = (sharding.replicated(mesh), where)
        step = jax.jit(function, out_shardings=places)
        return step(jax.device_put(params, where), *(jax.device_put(part, rows) for part in batch))


def check_on_meshes(name, shapes):
    record, config, params = sharded_model(name)
    rng = np.random.default_rng(0)
    tokens, mask = rng.integers(4, 48, (8, 16)).astype(np.int32), np.ones((8, 16), bool)
    mask[3, 10:] = False

    @jax.value_and_grad
    def loss(params, tokens, mask):
        scores = record.logits(params, config, record.hidden(params, config, tokens, mask))
        return -jnp.sum(mask * jnp.take_along_axis(jax.nn.log_softmax(scores), tokens[..., None], axis=-1)[..., 0])

    value, gradient = jax.jit(loss)(params, tokens, mask)
    scale = max(float(np.abs(leaf).max()) for leaf in jax.tree.leaves(gradient))
    for shape in shapes:
        sharded_value, sharded = on_mesh(shape, record, config, loss, params, tokens, mask)
        assert float(sharded_value) == pytest.approx(float(value), rel=1e-5), shape
        jax.tree.map(partial(np.testing.assert_allclose, rtol=1e-4, atol=1e-5 * scale), sharded, gradient)


def _program(name):
    """What a family computes, whatever it is called."""
    record = family(name)
    return record.module, record.sharding_rules, dataclasses.replace(record.config(MESH_FIELDS[name]), model_type="")


@pytest.mark.slow
@pytest.mark.parametrize("name", {_program(name): name for name in reversed(FAMILIES)}.values())
def test_every_mesh_gives_the_same_loss_and_gradients(name):
    """XLA's partitioner once computed RoBERTa's head wrongly on three axes.

    An encoder, and a decoder of either kind of rules, see every mesh; gemma3_text has one head of keys and values under 4.
    """
    check_on_meshes(name, MESHES if name in ("gpt2", "bert", "gemma3_text") else [(2, 2, 2)])


def test_checkpoints_of_earlier_runs_find_their_parameters():
    """GPT-2 was written with these paths and shapes before it shared the decoder with Llama; Orbax restores by path."""
    record, config, _ = small_model("gpt2")
    d, n, inner = config.hidden_size, config.layers, config.inner_size
    assert record.shapes(config) == {
        "token_embedding/embedding": (config.vocabulary_size, d),
        "position_embedding/embedding": (config.max_length, d),
        "layers/attention_norm/scale": (n, d),
        "layers/attention_norm/bias": (n, d),
        "layers/attention/qkv/kernel": (n, d, 3, d),
        "layers/attention/qkv/bias": (n, 3, d),
        "layers/attention/output/kernel": (n, d, d),
        "layers/attention/output/bias": (n, d),
        "layers/mlp_norm/scale": (n, d),
        "layers/mlp_norm/bias": (n, d),
        "layers/mlp/up/kernel": (n, d, inner),
        "layers/mlp/up/bias": (n, inner),
        "layers/mlp/down/kernel": (n, inner, d),
        "layers/mlp/down/bias": (n, d),
        "final_norm/scale": (d,),
        "final_norm/bias": (d,),
    }
