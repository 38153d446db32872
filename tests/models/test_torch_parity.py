"""Logits against `transformers` with torch, float32, from the same random weights: the oracle of the models."""

import warnings

import numpy as np
import pytest

from tests.models.helpers import logits
from wechsel_jax.models import family

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

TOLERANCE = 2e-5
_GPT2 = {"vocab_size": 61, "n_positions": 40, "n_embd": 24, "n_layer": 2, "n_head": 3, "bos_token_id": 0, "eos_token_id": 0}
_ROBERTA = {
    "vocab_size": 61,
    "hidden_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 3,
    "intermediate_size": 40,
    "max_position_embeddings": 42,
    "type_vocab_size": 1,
    "layer_norm_eps": 1e-5,
}
_LLAMA = {
    "vocab_size": 61,
    "hidden_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 40,
    "max_position_embeddings": 40,
}
_GEMMA = _LLAMA | {"head_dim": 8}
_XGLM = {"vocab_size": 61, "d_model": 24, "num_layers": 2, "attention_heads": 3, "ffn_dim": 40, "max_position_embeddings": 40}
_LLAMA3 = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 32}
CASES = {
    "gpt2": ("gpt2", _GPT2),
    "gpt2 odd sizes": ("gpt2", _GPT2 | {"vocab_size": 67, "n_embd": 15, "n_head": 5, "n_layer": 3, "n_inner": 17}),
    "gpt2 untied exact gelu": ("gpt2", _GPT2 | {"tie_word_embeddings": False, "activation_function": "gelu"}),
    "gpt2 relu eps 1e-3 unscaled": (
        "gpt2",
        _GPT2 | {"activation_function": "relu", "layer_norm_epsilon": 1e-3, "scale_attn_weights": False},
    ),
    "roberta": ("roberta", _ROBERTA),
    "roberta odd sizes pad 3": (
        "roberta",
        _ROBERTA | {"vocab_size": 67, "hidden_size": 15, "num_attention_heads": 5, "num_hidden_layers": 3, "pad_token_id": 3},
    ),
    "roberta untied tanh gelu two types": (
        "roberta",
        _ROBERTA | {"tie_word_embeddings": False, "hidden_act": "gelu_new", "type_vocab_size": 2, "layer_norm_eps": 1e-12},
    ),
    "roberta pad 0": ("roberta", _ROBERTA | {"pad_token_id": 0, "bos_token_id": 1}),
    "xlm-roberta": ("xlm-roberta", _ROBERTA),
    "bert two types": ("bert", _ROBERTA | {"type_vocab_size": 2, "pad_token_id": 0}),
    "bert untied tanh gelu no padding": (
        "bert",
        _ROBERTA | {"tie_word_embeddings": False, "hidden_act": "gelu_new", "pad_token_id": None},
    ),
    "llama": ("llama", _LLAMA),
    "llama 3, one key head, tied, biases": (
        "llama",
        _LLAMA
        | {"rope_parameters": {"rope_type": "llama3", "rope_theta": 100.0, **_LLAMA3}, "num_key_value_heads": 1}
        | {"tie_word_embeddings": True, "attention_bias": True, "mlp_bias": True},
    ),
    "llama linear rope, wide heads, gelu": (
        "llama",
        _LLAMA
        | {"rope_parameters": {"rope_type": "linear", "rope_theta": 100.0, "factor": 2.0}}
        | {"head_dim": 10, "hidden_act": "gelu", "num_key_value_heads": 4, "rms_norm_eps": 1e-3},
    ),
    "mistral window": ("mistral", _LLAMA | {"sliding_window": 5, "num_hidden_layers": 3}),
    "mistral no window, narrow heads": ("mistral", _LLAMA | {"sliding_window": None, "head_dim": 4}),
    "qwen2": ("qwen2", _LLAMA),
    "qwen2 late window, tied": (
        "qwen2",
        _LLAMA | {"use_sliding_window": True, "sliding_window": 4, "max_window_layers": 1, "tie_word_embeddings": True},
    ),
    "gemma, one key head": ("gemma", _GEMMA | {"hidden_act": "gelu", "num_key_value_heads": 1}),
    "gemma untied": ("gemma", _GEMMA | {"tie_word_embeddings": False, "attention_bias": True}),
    "gemma2 small caps": (
        "gemma2",
        _GEMMA
        | {"sliding_window": 5, "query_pre_attn_scalar": 12, "attn_logit_softcapping": 1.5, "final_logit_softcapping": 3.0},
    ),
    "gemma2 no caps, untied": (
        "gemma2",
        _GEMMA
        | {"sliding_window": 5, "final_logit_softcapping": None, "attn_logit_softcapping": None}
        | {"attention_bias": True, "tie_word_embeddings": False, "num_hidden_layers": 3},
    ),
    "gemma3 seven layers": ("gemma3_text", _GEMMA | {"sliding_window": 5, "query_pre_attn_scalar": 12, "num_hidden_layers": 7}),
    "gemma3 linear rope, cap, other layers": (
        "gemma3_text",
        _GEMMA
        | {"sliding_window": 4, "final_logit_softcapping": 3.0, "num_hidden_layers": 3, "num_key_value_heads": 4}
        | {"layer_types": ["full_attention", "sliding_attention", "full_attention"]}
        | {
            "rope_parameters": {
                "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1000.0},
                "sliding_attention": {"rope_type": "default", "rope_theta": 100.0},
            }
        },
    ),
    "xglm": ("xglm", _XGLM),
    "xglm odd size, padding among positions, untied": (
        "xglm",
        _XGLM
        | {"d_model": 25, "attention_heads": 5, "pad_token_id": 6, "scale_embedding": False}
        | {"tie_word_embeddings": False, "activation_function": "relu"},
    ),
}


def torch_model(model_type, fields):
    """A torch model with weights large enough for mistakes to show in the logits."""
    auto = transformers.AutoModelForCausalLM if family(model_type).causal else transformers.AutoModelForMaskedLM
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        config = transformers.AutoConfig.for_model(model_type, **fields)
        model = auto.from_config(config, attn_implementation="eager").eval()
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            is_norm_scale = parameter.ndim == 1 and name.endswith("weight")
            # Gemma adds 1 itself.
            one = 0 if "gemma" in model_type else 1
            parameter.copy_(one + 0.2 * noise if is_norm_scale else 0.25 * noise)
        if not family(model_type).causal and fields.get("tie_word_embeddings") is False:
            head = model.cls.predictions if model_type == "bert" else model.lm_head
            head.bias.copy_(head.decoder.bias)
    return model


def state(model):
    return {name: value.numpy().copy() for name, value in model.state_dict().items()}


def tokens_and_masks(vocabulary_size, padding, rows=3, length=19):
    """Rows without padding, padded on the right and padded on the left."""
    tokens = np.random.default_rng(1).integers(7, vocabulary_size, (rows, length))
    mask = np.ones((rows, length), bool)
    mask[1, 13:] = False
    mask[2, :6] = False
    return np.where(mask, tokens, padding).astype(np.int32), mask


@pytest.fixture(scope="module", params=CASES)
def case(request):
    model_type, fields = CASES[request.param]
    reference = torch_model(model_type, fields)
    model = family(model_type)
    config = model.config(reference.config.to_dict())
    assert config == model.config(fields)
    return reference, model, config, model.from_hugging_face(state(reference), config)


@pytest.mark.slow
def test_logits_with_padding_masks(case):
    reference, model, config, params = case
    tokens, mask = tokens_and_masks(config.vocabulary_size, config.pad_token_id or 0)
    with torch.no_grad():
        expected = reference(torch.tensor(tokens).long(), attention_mask=torch.tensor(mask).long()).logits.numpy()
    difference = np.abs(logits(model, config, params, tokens, mask) - expected)[mask]
    assert np.abs(expected).max() > 1.0
    assert difference.max() < TOLERANCE


def test_export_loads_in_transformers(case, tmp_path):
    """What `to_hugging_face` writes is what the class expects: nothing missing, nothing unexpected, the same bits."""
    reference, model, config, params = case
    tensors = model.to_hugging_face(params, config)
    fresh = type(reference)(reference.config).eval()
    missing, unexpected = fresh.load_state_dict({name: torch.tensor(value) for name, value in tensors.items()}, strict=False)
    head = "cls.predictions.decoder" if model.name == "bert" else "lm_head.decoder"
    tied = {"lm_head.weight"} if model.causal else {f"{head}.weight", f"{head}.bias"}
    assert set(missing) == (tied if config.tied else set())
    assert not unexpected
    original = state(reference)
    for name, value in tensors.items():
        assert value.dtype == np.float32 and value.flags.c_contiguous
        np.testing.assert_array_equal(value, original[name], err_msg=name)
    if config.tied and not model.causal:
        assert not any("decoder" in name for name in tensors)
