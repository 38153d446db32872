"""`config.json` -> ModelConfig: every field that matters is read, what is not implemented is refused."""

import pytest

from wechsel_jax.errors import UserError
from wechsel_jax.models import family


def test_published_gpt2_and_roberta_base():
    """The fields that the published config.json files hold."""
    gpt2 = family("gpt2").config({"model_type": "gpt2", "vocab_size": 50257, "n_ctx": 1024, "n_positions": 1024})
    assert (gpt2.hidden_size, gpt2.layers, gpt2.heads, gpt2.inner_size, gpt2.max_length) == (768, 12, 12, 3072, 1024)
    assert gpt2.tied and gpt2.activation == "gelu_new" and gpt2.norm_epsilon == 1e-5
    fields = {"vocab_size": 50265, "max_position_embeddings": 514, "type_vocab_size": 1, "layer_norm_eps": 1e-5}
    roberta = family("roberta").config(fields | {"pad_token_id": 1})
    assert (roberta.max_length, roberta.pad_token_id, roberta.type_vocabulary_size) == (512, 1, 1)
    assert roberta.tied and roberta.activation == "gelu" and roberta.norm_epsilon == 1e-5


@pytest.mark.parametrize("name", ["gpt2", "roberta"])
def test_defaults_are_those_of_transformers(name):
    transformers = pytest.importorskip("transformers")
    defaults = transformers.AutoConfig.for_model(name).to_dict()
    fields = {"vocab_size": defaults["vocab_size"]}
    assert family(name).config(fields) == family(name).config(defaults)


@pytest.mark.parametrize(
    ("name", "hf", "ours", "value"),
    [
        ("gpt2", "n_inner", "inner_size", 100),
        ("gpt2", "hidden_size", "hidden_size", 24),
        ("gpt2", "attn_pdrop", "attention_dropout", 0.3),
        ("gpt2", "embd_pdrop", "embedding_dropout", 0.3),
        ("gpt2", "resid_pdrop", "residual_dropout", 0.3),
        ("gpt2", "tie_word_embeddings", "tied", False),
        ("gpt2", "scale_attn_weights", "scale_attention", False),
        ("gpt2", "initializer_range", "initializer_range", 0.1),
        ("roberta", "hidden_act", "activation", "relu"),
        ("roberta", "attention_probs_dropout_prob", "attention_dropout", 0.3),
        ("roberta", "intermediate_size", "inner_size", 100),
        ("roberta", "tie_word_embeddings", "tied", False),
        ("roberta", "max_position_embeddings", "max_length", 40),
    ],
)
def test_a_field_is_read(name, hf, ours, value):
    expected = value - 2 if hf == "max_position_embeddings" else value
    assert getattr(family(name).config({"vocab_size": 50, hf: value}), ours) == expected


@pytest.mark.parametrize(
    ("name", "field", "value"),
    [
        ("gpt2", "scale_attn_by_inverse_layer_idx", True),
        ("gpt2", "reorder_and_upcast_attn", True),
        ("gpt2", "add_cross_attention", True),
        ("gpt2", "activation_function", "mish"),
        ("gpt2", "n_head", 7),
        ("gpt2", "n_layer", 0),
        ("gpt2", "n_layer", "many"),
        ("gpt2", "attn_pdrop", 1.0),
        ("gpt2", "vocab_size", 0),
        ("roberta", "is_decoder", True),
        ("roberta", "add_cross_attention", True),
        ("roberta", "position_embedding_type", "relative_key"),
        ("roberta", "pad_token_id", None),
        ("roberta", "pad_token_id", 50),
        ("roberta", "max_position_embeddings", 2),
        ("roberta", "type_vocab_size", 0),
        ("roberta", "pruned_heads", {"0": [1]}),
    ],
)
def test_what_is_not_implemented_is_refused(name, field, value):
    with pytest.raises(UserError, match=r"config\.json"):
        family(name).config({"vocab_size": 50, field: value})


def test_missing_vocabulary_size_and_unknown_family():
    with pytest.raises(UserError, match="vocab_size"):
        family("gpt2").config({})
    with pytest.raises(UserError, match=r"mamba.*gpt2"):
        family("mamba")


def test_overrides():
    config = family("gpt2").config({"vocab_size": 50}, dropout=0.0, remat=True, unroll=None)
    assert (config.embedding_dropout, config.attention_dropout, config.residual_dropout) == (0.0, 0.0, 0.0)
    assert config.remat and config.unroll == 1
    assert hash(config) == hash(family("gpt2").config({"vocab_size": 50}, dropout=0.0, remat=True))
    with pytest.raises(UserError, match="drop_out"):
        family("gpt2").config({"vocab_size": 50}, drop_out=0.1)
