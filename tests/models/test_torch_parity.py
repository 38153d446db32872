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
CASES = {
    "gpt2": ("gpt2", {}),
    "gpt2 odd sizes": ("gpt2", {"vocab_size": 67, "n_embd": 15, "n_head": 5, "n_layer": 3, "n_inner": 17}),
    "gpt2 untied exact gelu": ("gpt2", {"tie_word_embeddings": False, "activation_function": "gelu"}),
    "gpt2 relu eps 1e-3 unscaled": (
        "gpt2",
        {"activation_function": "relu", "layer_norm_epsilon": 1e-3, "scale_attn_weights": False},
    ),
    "roberta": ("roberta", {}),
    "roberta odd sizes pad 3": (
        "roberta",
        {"vocab_size": 67, "hidden_size": 15, "num_attention_heads": 5, "num_hidden_layers": 3, "pad_token_id": 3},
    ),
    "roberta untied tanh gelu two types": (
        "roberta",
        {"tie_word_embeddings": False, "hidden_act": "gelu_new", "type_vocab_size": 2, "layer_norm_eps": 1e-12},
    ),
    "roberta pad 0": ("roberta", {"pad_token_id": 0, "bos_token_id": 1}),
}
CLASSES = {"gpt2": ("GPT2Config", "GPT2LMHeadModel"), "roberta": ("RobertaConfig", "RobertaForMaskedLM")}


def torch_model(model_type, fields):
    """A torch model with weights large enough for mistakes to show in the logits."""
    config_class, model_class = (getattr(transformers, name) for name in CLASSES[model_type])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = model_class(config_class(**fields)).eval()
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            is_norm_scale = parameter.ndim == 1 and name.endswith("weight")
            parameter.copy_(1 + 0.2 * noise if is_norm_scale else 0.25 * noise)
        if model_type == "roberta" and fields.get("tie_word_embeddings") is False:
            model.lm_head.bias.copy_(model.lm_head.decoder.bias)
    return model


def state(model):
    return {name: value.numpy().copy() for name, value in model.state_dict().items()}


def tokens_and_masks(vocabulary_size, padding, rows=3, length=19):
    """Rows without padding, padded on the right and padded on the left."""
    tokens = np.random.default_rng(1).integers(4, vocabulary_size, (rows, length))
    mask = np.ones((rows, length), bool)
    mask[1, 13:] = False
    mask[2, :6] = False
    return np.where(mask, tokens, padding).astype(np.int32), mask


@pytest.fixture(scope="module", params=CASES)
def case(request):
    model_type, extra = CASES[request.param]
    fields = (_GPT2 if model_type == "gpt2" else _ROBERTA) | extra
    reference = torch_model(model_type, fields)
    model = family(model_type)
    config = model.config(reference.config.to_dict())
    return reference, model, config, model.from_hugging_face(state(reference), config)


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
    tied = {"lm_head.weight"} if model.causal else {"lm_head.decoder.weight", "lm_head.decoder.bias"}
    assert set(missing) == (tied if config.tied else set())
    assert not unexpected
    original = state(reference)
    for name, value in tensors.items():
        assert value.dtype == np.float32 and value.flags.c_contiguous
        np.testing.assert_array_equal(value, original[name], err_msg=name)
    if config.tied and not model.causal:
        assert not any("decoder" in name for name in tensors)
