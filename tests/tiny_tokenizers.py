"""Small tokenizers of every kind that the package reads, trained on three lines, and the real ones, read once."""

import functools
import json
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from wechsel_jax.tokens import Vocabulary, load_tokenizer

LINES = [
    "Der schnelle braune Fuchs springt über den faulen Hund, und der Hund schläft weiter.",
    "The quick brown fox jumps over the lazy dog; the dog doesn't mind (much).",
    "Быстрая лиса прыгает через ленивую собаку. 日本語の文章 中国人民银行 😀 é",
] * 3
BYTE_PIECES = [f"<0x{byte:02X}>" for byte in range(256)]


def wrap(backend: Tokenizer, **roles: str) -> PreTrainedTokenizerFast:
    return PreTrainedTokenizerFast(tokenizer_object=backend, **roles)


def edited(backend: Tokenizer, change) -> Tokenizer:
    state = json.loads(backend.to_str())
    change(state)
    return Tokenizer.from_str(json.dumps(state))


def byte_bpe(add_prefix_space: bool) -> PreTrainedTokenizerFast:
    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=add_prefix_space)
    backend.decoder = decoders.ByteLevel()
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    trainer = trainers.BpeTrainer(vocab_size=420, initial_alphabet=alphabet, special_tokens=["<|end|>"], show_progress=False)
    backend.train_from_iterator(LINES, trainer)
    return wrap(backend, eos_token="<|end|>", bos_token="<|end|>")


def sentencepiece_bpe(style: str) -> PreTrainedTokenizerFast:
    backend = Tokenizer(models.BPE(byte_fallback=True, fuse_unk=True, unk_token="<unk>"))
    tail = [decoders.ByteFallback(), decoders.Fuse()]
    if style == "metaspace":
        backend.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first")
    else:
        backend.pre_tokenizer = pre_tokenizers.Split("▁", "merged_with_next")
        spaces = [normalizers.Prepend("▁")] if style == "llama" else []
        backend.normalizer = normalizers.Sequence([*spaces, normalizers.Replace(" ", "▁")])
    strip = [] if style == "gemma" else [decoders.Strip(" ", 1, 0)]
    backend.decoder = decoders.Sequence([decoders.Replace("▁", " "), *tail, *strip])
    special = ["<unk>", "<s>", "</s>"]
    pieces = [*special, *BYTE_PIECES, "▁▁"]
    trainer = trainers.BpeTrainer(vocab_size=460, special_tokens=pieces, show_progress=False)
    backend.train_from_iterator(LINES, trainer)

    def forget_added(state):
        state["added_tokens"] = [token for token in state["added_tokens"] if token["content"] in special]

    return wrap(edited(backend, forget_added), bos_token="<s>", eos_token="</s>", unk_token="<unk>")


def unigram() -> PreTrainedTokenizerFast:
    backend = Tokenizer(models.Unigram())
    backend.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always")
    backend.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Metaspace(prepend_scheme="always")])
    trainer = trainers.UnigramTrainer(
        vocab_size=150, special_tokens=["<unk>"], unk_token="<unk>", initial_alphabet=list("<0x41>"), show_progress=False
    )
    backend.train_from_iterator(LINES, trainer)

    def add_bytes(state):
        # The trainer's order changes from run to run; the unknown token stays the first.
        first, *pieces = state["model"]["vocab"]
        state["model"]["vocab"] = [first, *sorted(pieces, key=lambda one: (-round(one[1], 6), one[0]))]
        state["model"]["vocab"] += [[piece, -1000.0] for piece in BYTE_PIECES]
        state["model"]["byte_fallback"] = True

    return wrap(edited(backend, add_bytes))


def wordpiece() -> PreTrainedTokenizerFast:
    backend = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    backend.normalizer = normalizers.BertNormalizer(lowercase=True)
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    backend.decoder = decoders.WordPiece(cleanup=False)
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    # The trainer breaks ties by number, and numbers "##x" in an order that changes from run to run.
    inside = sorted({f"##{letter}" for letter in backend.normalizer.normalize_str("".join(LINES)) if letter.isalpha()})
    trainer = trainers.WordPieceTrainer(vocab_size=260, special_tokens=special + inside, show_progress=False)
    backend.train_from_iterator(LINES, trainer)

    def forget_added(state):
        state["added_tokens"] = [token for token in state["added_tokens"] if token["content"] in special]

    backend = edited(backend, forget_added)
    return wrap(backend, pad_token="[PAD]", unk_token="[UNK]", cls_token="[CLS]", sep_token="[SEP]", mask_token="[MASK]")


def every_kind() -> dict[str, PreTrainedTokenizerFast]:
    return {
        "byte": byte_bpe(False),
        "byte-prefix": byte_bpe(True),
        "llama": sentencepiece_bpe("llama"),
        "gemma": sentencepiece_bpe("gemma"),
        "metaspace": sentencepiece_bpe("metaspace"),
        "unigram": unigram(),
        "wordpiece": wordpiece(),
    }


Read = tuple[PreTrainedTokenizerFast, Vocabulary]
REAL = (
    "gpt2",
    "roberta",
    *(f"{language}/{kind}" for language in ("de", "ar", "sw") for kind in ("bpe-50k", "xlmr-unigram-50k")),
)


@functools.cache
def real_tokenizer(directory: Path, name: str) -> Read:
    tokenizer = load_tokenizer(directory / "tokenizers" / name)
    return tokenizer, Vocabulary.from_tokenizer(tokenizer)
