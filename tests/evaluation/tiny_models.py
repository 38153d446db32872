"""Directories of tiny models with random weights, as transformers saves them."""

from pathlib import Path

import torch
import transformers
from tokenizers import processors

from tests.tiny_tokenizers import byte_bpe, sentencepiece_bpe, wordpiece

LENGTH = 48


def save(directory: Path, name: str, length: int = LENGTH) -> Path:
    """ "gpt2" with a byte-level tokenizer that adds nothing, "llama" with one that adds <s>, "bert" with [CLS] and [SEP]."""
    torch.manual_seed(0)
    shared = {"initializer_range": 0.4, "tie_word_embeddings": name != "llama"}
    encoder = {"num_hidden_layers": 2, "num_attention_heads": 2, "hidden_size": 16, "intermediate_size": 24}
    if name == "gpt2":
        tokenizer = byte_bpe(False)
        sizes = {"n_positions": length, "n_embd": 16, "n_layer": 2, "n_head": 2}
        config = transformers.GPT2Config(vocab_size=len(tokenizer), bos_token_id=0, eos_token_id=0, **sizes, **shared)
        model = transformers.GPT2LMHeadModel(config)
    elif name == "llama":
        tokenizer = sentencepiece_bpe("llama")
        special = [("<s>", tokenizer.bos_token_id)]
        tokenizer.backend_tokenizer.post_processor = processors.TemplateProcessing("<s> $A", "<s> $A $B", special)
        config = transformers.LlamaConfig(
            vocab_size=len(tokenizer), max_position_embeddings=length, num_key_value_heads=1, **encoder, **shared
        )
        model = transformers.LlamaForCausalLM(config)
    else:
        tokenizer = wordpiece()
        ids = [(token, tokenizer.convert_tokens_to_ids(token)) for token in ("[CLS]", "[SEP]")]
        tokenizer.backend_tokenizer.post_processor = processors.TemplateProcessing("[CLS] $A [SEP]", None, ids)
        config = transformers.BertConfig(vocab_size=len(tokenizer), max_position_embeddings=length, **encoder, **shared)
        model = transformers.BertForMaskedLM(config)
    model.save_pretrained(directory)
    tokenizer.save_pretrained(directory)
    return directory
