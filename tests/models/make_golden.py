"""Tiny models with weights from a formula, and what `transformers` (torch) answers for them.

`PYTHONPATH=. python tests/models/make_golden.py` writes tests/models/golden.npz again.
"""

from pathlib import Path

import numpy as np

GOLDEN = Path(__file__).with_name("golden.npz")

_ROBERTA = {
    "model_type": "roberta",
    "vocab_size": 31,
    "hidden_size": 12,
    "num_hidden_layers": 2,
    "num_attention_heads": 3,
    "intermediate_size": 20,
    "max_position_embeddings": 18,
    "type_vocab_size": 1,
    "layer_norm_eps": 1e-5,
    "pad_token_id": 1,
    "bos_token_id": 0,
    "eos_token_id": 2,
}
_GPT2 = {
    "model_type": "gpt2",
    "vocab_size": 31,
    "n_positions": 16,
    "n_embd": 12,
    "n_layer": 2,
    "n_head": 3,
    "bos_token_id": 0,
    "eos_token_id": 0,
}
_LLAMA = {
    "model_type": "llama",
    "vocab_size": 31,
    "hidden_size": 12,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 6,
    "intermediate_size": 20,
    "max_position_embeddings": 16,
}
_XGLM = {
    "model_type": "xglm",
    "vocab_size": 31,
    "d_model": 12,
    "num_layers": 2,
    "attention_heads": 3,
    "ffn_dim": 20,
    "max_position_embeddings": 16,
}
CONFIGS = {
    "gpt2": _GPT2,
    "gpt2_untied": _GPT2 | {"tie_word_embeddings": False, "activation_function": "gelu", "n_inner": 20},
    "roberta": _ROBERTA,
    "roberta_untied": _ROBERTA | {"tie_word_embeddings": False, "pad_token_id": 3},
    "bert": _ROBERTA | {"model_type": "bert", "hidden_act": "gelu_new", "type_vocab_size": 2, "pad_token_id": 0},
    "llama": _LLAMA | {"attention_bias": True, "mlp_bias": True},
    "qwen2_tied": _LLAMA
    | {"model_type": "qwen2", "tie_word_embeddings": True}
    | {"use_sliding_window": True, "sliding_window": 3, "max_window_layers": 1},
    "gemma2": _LLAMA
    | {"model_type": "gemma2", "sliding_window": 3, "attn_logit_softcapping": 2.0, "final_logit_softcapping": 8.0},
    "gemma3": _LLAMA
    | {"model_type": "gemma3_text", "sliding_window": 3, "layer_types": ["sliding_attention", "full_attention"]},
    "xglm": _XGLM,
}


def fill(name: str, shape: tuple[int, ...]) -> np.ndarray:
    """A tensor that depends on its name and shape only; scales of layer norms lie around 1."""
    start = sum(name.encode()) % 97
    wave = np.sin(start + 1.7 * np.arange(np.prod(shape)) + 0.013 * np.arange(np.prod(shape)) ** 2)
    scale = 1.0 if name.endswith("weight") and len(shape) == 1 else 0.0
    return (scale + 0.4 * wave).reshape(shape).astype(np.float32)


def inputs(padding: int) -> tuple[np.ndarray, np.ndarray]:
    """Token ids (2, 11) and their mask: one whole row, one padded on the right."""
    tokens = 4 + (np.arange(22).reshape(2, 11) * 7) % 27
    mask = np.ones((2, 11), bool)
    mask[1, 7:] = False
    return np.where(mask, tokens, padding).astype(np.int32), mask


def main() -> None:
    import torch
    import transformers

    answers = {}
    for name, fields in CONFIGS.items():
        auto = transformers.AutoModelForMaskedLM if "bert" in name else transformers.AutoModelForCausalLM
        model = auto.from_config(transformers.AutoConfig.for_model(**fields), attn_implementation="eager").eval()
        with torch.no_grad():
            for key, value in model.state_dict().items():
                # A tied head shares the table's storage and the untied bias is scored through the decoder.
                if not model.config.tie_word_embeddings or not (key == "lm_head.weight" or ".decoder." in key):
                    value.copy_(torch.from_numpy(fill(key, tuple(value.shape))))
            tokens, mask = inputs(fields.get("pad_token_id", 0))
            logits = model(torch.from_numpy(tokens).long(), attention_mask=torch.from_numpy(mask).long()).logits
        answers[name] = logits.numpy()[mask]
    np.savez_compressed(GOLDEN, **answers)


if __name__ == "__main__":
    main()
