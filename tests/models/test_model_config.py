"""`config.json` -> ModelConfig: every field that matters is read, what is not implemented is refused."""

import pytest

from wechsel_jax.errors import UserError
from wechsel_jax.models import family
from wechsel_jax.models.registry import FAMILIES
from wechsel_jax.models.rotary import Rope
from wechsel_jax.models.trilayer import PREFIX


def test_published_gpt2_and_roberta_base():
    """The fields that the published config.json files hold."""
    gpt2 = family("gpt2").config({"model_type": "gpt2", "vocab_size": 50257, "n_ctx": 1024, "n_positions": 1024})
    assert (gpt2.hidden_size, gpt2.layers, gpt2.heads, gpt2.inner_size, gpt2.max_length) == (768, 12, 12, 3072, 1024)
    assert gpt2.tied and gpt2.activation == "gelu_new" and gpt2.norm_epsilon == 1e-5
    fields = {"vocab_size": 50265, "max_position_embeddings": 514, "type_vocab_size": 1, "layer_norm_eps": 1e-5}
    roberta = family("roberta").config(fields | {"pad_token_id": 1})
    assert (roberta.max_length, roberta.pad_token_id, roberta.type_vocabulary_size) == (512, 1, 1)
    assert roberta.tied and roberta.activation == "gelu" and roberta.norm_epsilon == 1e-5


# transformers has none of TreLM's.
@pytest.mark.parametrize("name", [name for name in FAMILIES if not name.startswith(PREFIX)])
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
        ("gpt2", "initializer_range", "initializer_range", 0.1),
        ("roberta", "hidden_act", "activation", "relu"),
        ("roberta", "attention_probs_dropout_prob", "attention_dropout", 0.3),
        ("roberta", "intermediate_size", "inner_size", 100),
        ("roberta", "tie_word_embeddings", "tied", False),
        ("roberta", "max_position_embeddings", "max_length", 40),
        ("bert", "hidden_act", "head_activation", "relu"),
        ("bert", "pad_token_id", "pad_token_id", None),
        ("llama", "num_key_value_heads", "key_value_heads", 4),
        ("llama", "head_dim", "head_size", 96),
        ("llama", "attention_bias", "qkv_bias", True),
        ("llama", "attention_bias", "output_bias", True),
        ("llama", "mlp_bias", "mlp_bias", True),
        ("llama", "attention_dropout", "attention_dropout", 0.3),
        ("llama", "rms_norm_eps", "norm_epsilon", 1e-3),
        ("mistral", "sliding_window", "window", 7),
        ("gemma", "hidden_act", "activation", "silu"),
        ("gemma2", "attn_logit_softcapping", "score_cap", 3.0),
        ("gemma2", "final_logit_softcapping", "logit_cap", None),
        ("xglm", "activation_dropout", "inner_dropout", 0.2),
        ("xglm", "hidden_size", "hidden_size", 64),
    ],
)
def test_a_field_is_read(name, hf, ours, value):
    expected = value - 2 if hf == "max_position_embeddings" else value
    assert getattr(family(name).config({"vocab_size": 50, hf: value}), ours) == expected
    assert getattr(family(name).config({"vocab_size": 50}), ours) != expected


@pytest.mark.parametrize(
    ("name", "hf", "ours", "value"),
    [
        ("gpt2", {"scale_attn_weights": False}, "query_scale", 1.0),
        ("llama", {"rope_theta": 5e5}, "rope", Rope(5e5)),
        ("llama", {"rope_scaling": {"type": "linear", "factor": 2.0}}, "rope", Rope(1e4, "linear", 2.0)),
        ("qwen2", {"use_sliding_window": True}, "windowed", (False,) * 28 + (True,) * 4),
        ("qwen2", {"use_sliding_window": True, "max_window_layers": 40}, "windowed", ()),
        ("gemma", {"hidden_act": "gelu"}, "activation", "gelu_pytorch_tanh"),
        ("gemma2", {"query_pre_attn_scalar": 144}, "query_scale", 1 / 12),
        ("gemma3_text", {"rope_local_base_freq": 77.0}, "window_rope", Rope(77.0)),
        ("gemma3_text", {"rope_scaling": {"rope_type": "linear", "factor": 2.0}}, "rope", Rope(1e6, "linear", 2.0)),
        ("gemma3_text", {"sliding_window_pattern": 2}, "windowed", (True, False) * 13),
        ("xglm", {"scale_embedding": False}, "embedding_scale", 1.0),
        ("llama", {"pad_token_id": -1}, "pad_token_id", 49),
    ],
)
def test_fields_that_become_something_else(name, hf, ours, value):
    assert getattr(family(name).config({"vocab_size": 50, **hf}), ours) == value


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
        ("gpt2", "vocab_size", float("nan")),
        ("gpt2", "n_layer", float("inf")),
        ("gpt2", "n_positions", 10**400),
        ("gpt2", "layer_norm_epsilon", float("nan")),
        ("gpt2", "layer_norm_epsilon", float("inf")),
        ("gpt2", "layer_norm_epsilon", 10**400),
        ("llama", "rope_scaling", {"rope_type": "linear", "factor": float("inf")}),
        ("roberta", "is_decoder", True),
        ("roberta", "add_cross_attention", True),
        ("roberta", "position_embedding_type", "relative_key"),
        ("roberta", "pad_token_id", None),
        ("roberta", "pad_token_id", 50),
        ("roberta", "max_position_embeddings", 2),
        ("roberta", "type_vocab_size", 0),
        ("roberta", "pruned_heads", {"0": [1]}),
        ("bert", "is_decoder", True),
        ("bert", "position_embedding_type", "relative_key_query"),
        ("bert", "pad_token_id", 50),
        ("llama", "rope_scaling", {"type": "dynamic", "factor": 2.0}),
        ("llama", "rope_scaling", {"rope_type": "yarn", "factor": 2.0}),
        ("llama", "rope_parameters", {"rope_type": "longrope", "short_factor": [1.0], "long_factor": [1.0]}),
        ("llama", "rope_scaling", {"rope_type": "llama3", "factor": 8.0}),
        ("llama", "rope_scaling", {"rope_type": "linear"}),
        ("llama", "rope_scaling", {"rope_type": "linear", "factor": 0}),
        ("llama", "rope_scaling", {"rope_type": "default", "mrope_section": [1, 1]}),
        ("llama", "rope_parameters", {"full_attention": {"rope_type": "default"}}),
        ("llama", "rope_parameters", {"partial_rotary_factor": 0.5}),
        ("llama", "partial_rotary_factor", 0.5),
        ("llama", "sliding_window", 128),
        ("llama", "pretraining_tp", 2),
        ("llama", "attention_sink", True),
        ("llama", "quantization_config", {"quant_method": "gptq"}),
        ("gpt2", "quantization_config", {"quant_method": "gptq"}),
        ("llama", "rope_interleaved", True),
        ("llama", "hidden_act", "xielu"),
        ("llama", "num_key_value_heads", 5),
        ("llama", "head_dim", 3),
        ("llama", "attention_bias", "yes"),
        ("llama", "pad_token_id", 50),
        ("mistral", "attention_bias", True),
        ("mistral", "layer_types", ["full_attention"] * 32),
        ("mistral", "sliding_window", 0),
        ("qwen2", "use_mrope", True),
        ("qwen2", "layer_types", ["sliding_attention"] * 32),
        ("gemma", "hidden_activation", "relu"),
        ("gemma", "use_bidirectional_attention", True),
        ("gemma2", "layer_types", ["full_attention"] * 3),
        ("gemma2", "layer_types", ["chunked_attention"] * 26),
        ("gemma2", "layer_types", 5),
        ("gemma2", "layer_types", [["full_attention"]] * 26),
        ("gemma2", "sliding_window", None),
        ("gemma2", "query_pre_attn_scalar", 0),
        ("gemma2", "attn_logit_softcapping", -1.0),
        ("gemma2", "hidden_act", "relu"),
        ("gemma3_text", "use_bidirectional_attention", True),
        ("gemma3_text", "attn_logit_softcapping", 50.0),
        ("gemma3_text", "rope_parameters", {"rope_theta": 1e4}),
        ("gemma3_text", "rope_scaling", 5),
        ("llama", "rope_scaling", {"rope_type": ["linear"], "factor": 2.0}),
        ("xglm", "add_cross_attention", True),
        ("xglm", "layerdrop", 0.1),
        ("xglm", "d_model", 2),
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
    with pytest.raises(UserError, match="text model alone, as gemma3_text"):
        family("gemma3")


def test_overrides():
    config = family("gpt2").config({"vocab_size": 50}, dropout=0.0, remat="full", scan_layers=None)
    assert (config.embedding_dropout, config.attention_dropout, config.residual_dropout) == (0.0, 0.0, 0.0)
    assert config.remat == "full" and config.scan_layers
    assert hash(config) == hash(family("gpt2").config({"vocab_size": 50}, dropout=0.0, remat="full"))
    with pytest.raises(UserError, match="drop_out"):
        family("gpt2").config({"vocab_size": 50}, drop_out=0.1)


def test_dropout_overrides_the_inner_rate_where_there_is_one():
    assert family("xglm").config({"vocab_size": 50, "activation_dropout": 0.2}, dropout=0.0).inner_dropout == 0.0
    assert family("xglm").config({"vocab_size": 50}, dropout=0.1).inner_dropout == 0.0


def test_an_unknown_remat_is_refused():
    with pytest.raises(UserError, match="remat"):
        family("llama").config({"vocab_size": 50}, remat="some")
