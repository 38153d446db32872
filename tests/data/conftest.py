"""Tokenizers without merges: every byte is a token, so that expected ids can be worked out by hand."""

from pathlib import Path

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

SPECIAL = {"gpt2": ["<|endoftext|>"], "roberta": ["<s>", "<pad>", "</s>", "<unk>", "<mask>"], "endless": []}


def make_tokenizer(directory: Path, style: str) -> Path:
    """Writes a byte-level tokenizer of a style to `directory / style`."""
    special = SPECIAL[style]
    vocabulary = {token: i for i, token in enumerate(special + sorted(pre_tokenizers.ByteLevel.alphabet()))}
    backend = Tokenizer(models.BPE(vocabulary, []))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens(special)
    named = {}
    if style == "gpt2":
        named = {"eos_token": "<|endoftext|>", "bos_token": "<|endoftext|>"}
    if style == "roberta":
        backend.post_processor = processors.TemplateProcessing("<s> $A </s>", special_tokens=[("<s>", 0), ("</s>", 2)])
        named = {"bos_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>", "unk_token": "<unk>", "mask_token": "<mask>"}
    PreTrainedTokenizerFast(tokenizer_object=backend, **named).save_pretrained(directory / style)
    return directory / style


@pytest.fixture(scope="session")
def tokenizers(tmp_path_factory) -> dict[str, Path]:
    """Directories of a "gpt2" and a "roberta" tokenizer, and of an "endless" one without any special token."""
    directory = tmp_path_factory.mktemp("tokenizers")
    return {style: make_tokenizer(directory, style) for style in SPECIAL}
