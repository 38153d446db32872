"""Weight maps: names with and without prefixes, duplicates, buffers, low precision, and what a broken checkpoint says."""

import re

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.models.helpers import small_model
from tests.models.make_golden import CONFIGS
from wechsel_jax.errors import UserError
from wechsel_jax.models.weights import Weight, flatten

OLD = {"weight": "gamma", "bias": "beta"}


@pytest.fixture(scope="module", params=CONFIGS)
def checkpoint(request):
    """(family, config, params, tensors) of a small model with random weights, biases included."""
    model, config, params = small_model(request.param)
    return model, config, params, model.to_hugging_face(params, config)


def tied_tensors(model):
    """(name of a copy of the tied head, name of the token table) in a checkpoint."""
    if model.causal:
        return "lm_head.weight", model.tensors.prefix + ("wte.weight" if model.name == "gpt2" else "embed_tokens.weight")
    head = "cls.predictions" if model.name == "bert" else "lm_head"
    return f"{head}.decoder.weight", f"{model.tensors.prefix}embeddings.word_embeddings.weight"


def assert_same(left, right):
    left, right = flatten(left), flatten(right)
    assert left.keys() == right.keys()
    for path, value in left.items():
        assert right[path].dtype == np.float32
        np.testing.assert_array_equal(value, right[path], err_msg=path)


def test_round_trip_is_exact(checkpoint):
    model, config, params, tensors = checkpoint
    assert_same(params, model.from_hugging_face(tensors, config))


def test_names_without_the_prefix(checkpoint):
    model, config, params, tensors = checkpoint
    bare = {name.removeprefix(model.tensors.prefix): value for name, value in tensors.items()}
    assert bare.keys() != tensors.keys()
    assert_same(params, model.from_hugging_face(bare, config))


def test_buffers_and_copies_of_a_tied_head_are_ignored(checkpoint):
    model, config, params, tensors = checkpoint
    zeros = np.zeros((2, 2), np.float32)
    extra = {
        "transformer.": {
            "transformer.h.0.attn.bias": np.ones((1, 1, 4, 4), np.uint8),
            "transformer.h.1.attn.masked_bias": np.float32(-1e4),
        },
        "model.": {
            "model.layers.1.self_attn.rotary_emb.inv_freq": np.ones(3, np.float32),
            "model.rotary_emb.inv_freq": np.ones(3, np.float32),
            "model.embed_positions.weights": zeros,
            "score.weight": zeros,
        },
        "roberta.": {"roberta.embeddings.position_ids": np.arange(4)[None], "roberta.pooler.dense.weight": zeros},
        "bert.": {
            "bert.embeddings.position_ids": np.arange(4)[None],
            "bert.pooler.dense.weight": zeros,
            "cls.seq_relationship.weight": zeros,
        },
    }[model.tensors.prefix]
    if config.tied:
        copy, table = tied_tensors(model)
        extra[copy] = tensors[table]
    if config.tied and not model.causal:
        extra[copy.replace("weight", "bias")] = tensors[copy.replace("decoder.weight", "bias")]
    assert_same(params, model.from_hugging_face(tensors | extra, config))


def test_a_head_that_contradicts_the_tie_is_refused(checkpoint):
    model, config, _, tensors = checkpoint
    if not config.tied:
        pytest.skip("the head is not tied")
    name, table = tied_tensors(model)
    with pytest.raises(UserError, match=f"{name}.*tie_word_embeddings"):
        model.from_hugging_face(tensors | {name: tensors[table] + 1}, config)


def test_a_missing_tensor_is_named(checkpoint):
    model, config, _, tensors = checkpoint
    copies = {copy for weight in model.tensors.weights(config) for copy in (*weight.copies, *weight.names) if weight.copies}
    for name in set(tensors) - copies:
        with pytest.raises(UserError, match=re.escape(name)):
            model.from_hugging_face({key: value for key, value in tensors.items() if key != name}, config)


def test_a_wrong_shape_is_named(checkpoint):
    model, config, _, tensors = checkpoint
    for name, value in tensors.items():
        if model.name == "roberta" and not config.tied and name == "lm_head.bias":
            continue
        with pytest.raises(UserError, match=f"{re.escape(name)}.*shape"):
            model.from_hugging_face(tensors | {name: np.zeros((*value.shape, 1), np.float32)}, config)


def test_whole_numbers_are_no_weights(checkpoint):
    """Quantized ones mean nothing without their scales."""
    model, config, _, tensors = checkpoint
    name = next(name for name, value in tensors.items() if value.ndim == 2)
    with pytest.raises(UserError, match=f"{re.escape(name)}: the tensor holds int8, as quantized weights do; expected floats"):
        model.from_hugging_face(tensors | {name: tensors[name].astype(np.int8)}, config)


def test_a_tensor_of_another_architecture_is_refused(checkpoint):
    model, config, _, tensors = checkpoint
    deeper = {name.replace(".1.", ".2."): value for name, value in tensors.items() if ".1." in name}
    with pytest.raises(UserError, match=r"\.2\..*number of layers"):
        model.from_hugging_face(tensors | deeper, config)


@pytest.mark.parametrize("dtype", [ml_dtypes.bfloat16, np.float16, np.float64])
def test_other_float_types_become_float32(checkpoint, dtype):
    model, config, _, tensors = checkpoint
    params = model.from_hugging_face({name: value.astype(dtype) for name, value in tensors.items()}, config)
    rounded = {name: value.astype(dtype).astype(np.float32) for name, value in tensors.items()}
    assert_same(params, model.from_hugging_face(rounded, config))


def test_untied_roberta_without_the_decoder_bias_uses_the_other_name():
    """transformers 4 saved one of the two names only."""
    model, config, params = small_model("roberta_untied")
    tensors = model.to_hugging_face(params, config)
    bias = np.arange(31, dtype=np.float32)
    tensors |= {"lm_head.bias": bias}
    del tensors["lm_head.decoder.bias"]
    np.testing.assert_array_equal(model.from_hugging_face(tensors, config)["head"]["bias"], bias)


def test_norms_under_the_names_of_tensorflow():
    """bert-base-uncased keeps gamma and beta; what is written has today's names."""
    model, config, params = small_model("bert")
    tensors = model.to_hugging_face(params, config)
    names = {name: re.sub(r"LayerNorm\.(weight|bias)$", lambda m: f"LayerNorm.{OLD[m[1]]}", name) for name in tensors}
    old = {names[name]: value for name, value in tensors.items()}
    assert sum("gamma" in name for name in old) == 2 * config.layers + 2
    read = model.from_hugging_face(old, config)
    assert_same(params, read)
    assert model.to_hugging_face(read, config).keys() == tensors.keys()


@settings(max_examples=80, deadline=None)
@given(
    kind=st.sampled_from(["plain", "linear", "fused", "split", "to_heads", "from_heads", "split_to_heads"]),
    rows=st.integers(1, 5),
    columns=st.integers(1, 5),
    heads=st.integers(1, 3),
)
def test_every_kind_of_weight_is_a_bijection(kind, rows, columns, heads):
    shapes = {
        "fused": (rows, 3, columns),
        "split": (rows, 3, columns),
        "to_heads": (rows, heads, columns),
        "from_heads": (heads, columns, rows),
        "split_to_heads": (rows, 3, heads, columns),
    }
    shape = shapes.get(kind, (rows, columns))
    value = np.arange(np.prod(shape), dtype=np.float32).reshape(shape)
    weight = Weight("x", ("a", "b", "c") if kind.startswith("split") else ("a",), kind)
    parts = weight.separate(value)
    assert all(part.shape == weight.stored_shape(shape) for part in parts)
    np.testing.assert_array_equal(weight.combine(parts, shape), value)
