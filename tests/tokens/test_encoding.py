"""Long texts are tokenised in pieces, and no token changes."""

import random

import pytest
from tokenizers import AddedToken, Regex, Tokenizer, models, normalizers, pre_tokenizers, processors, trainers

from wechsel_jax.errors import UserError
from wechsel_jax.tokens import encoding

FRAGMENTS = [
    *("ab", "a", "Hund", " ", "  ", "   ", "\n", "\n\n", "\t", ".", ",", "!!", "…", "½", "1234", "ü", "u\u0308", "\u0308"),
    *("的", "一是", "🙂", "<s>", "</s>", "<mask>", "foo bar", "foo ", "'s", "x" * 30, "\u00a0", "\u200b", "\x00", "ﬁ", "\r\n"),
    *("-", "▁"),
]
LLAMA = r"[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
SPLIT = pre_tokenizers.Split(Regex(LLAMA), "isolated")
BYTES = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
STRIPPED = normalizers.Sequence([normalizers.Strip(), normalizers.NFKC(), normalizers.Lowercase()])
# (normalizer, pre-tokenizer) as well-known families have them, and some that cannot be cut everywhere, or nowhere.
KINDS = {
    "gpt2": (None, pre_tokenizers.ByteLevel(add_prefix_space=False)),
    "roberta": (None, pre_tokenizers.ByteLevel(add_prefix_space=True)),
    "bert": (normalizers.BertNormalizer(), pre_tokenizers.BertPreTokenizer()),
    "llama": (None, pre_tokenizers.Sequence([SPLIT, BYTES])),
    "xlmr": (normalizers.NFKC(), pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace()])),
    "first": (None, pre_tokenizers.Metaspace(prepend_scheme="first")),
    "never": (normalizers.NFC(), pre_tokenizers.Metaspace(prepend_scheme="never")),
    "stripped": (STRIPPED, pre_tokenizers.Metaspace()),
    "joined": (normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]), None),
}
UNCUT = ("joined",)


def made(kind: str) -> Tokenizer:
    backend = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True))
    backend.normalizer, pre_tokenizer = KINDS[kind]
    if pre_tokenizer:
        backend.pre_tokenizer = pre_tokenizer
    special = ["<unk>", "<s>", "</s>"]
    trainer = trainers.BpeTrainer(vocab_size=400, special_tokens=special, show_progress=False)
    draw = random.Random(1)
    backend.train_from_iterator(("".join(draw.choices(FRAGMENTS[:20], k=40)) for _ in range(50)), trainer)
    backend.add_special_tokens([AddedToken("<mask>", lstrip=True, rstrip=True)])
    backend.add_tokens([AddedToken("foo bar", normalized=True), AddedToken("ab", single_word=True)])
    backend.post_processor = processors.TemplateProcessing("<s> $A </s>", special_tokens=[("<s>", 1), ("</s>", 2)])
    return backend


def test_no_merge_is_left_out_by_chance():
    backend = Tokenizer(models.BPE(vocab={"a": 0, "aa": 1}, merges=[("a", "a")], dropout=0.5))
    ids = encoding.plain_backend(backend).encode("aa" * 50).ids
    assert set(ids) == {1} and backend.model.dropout == 0.5


def test_special_tokens_are_found_where_a_latin_letter_has_no_token():
    backend = Tokenizer(models.BPE(vocab={"<s>": 0, "</s>": 1, "ก": 2, "ข": 3}, merges=[]))
    backend.add_special_tokens(["<s>", "</s>"])
    backend.post_processor = processors.TemplateProcessing("<s> $A </s>", special_tokens=[("<s>", 0), ("</s>", 1)])
    assert backend.encode("a").ids == [0, 1]
    assert encoding.around(backend) == ([0], [1])
    with pytest.raises(UserError, match="no token of any text"):
        encoding.around(Tokenizer(models.BPE(vocab={}, merges=[])))


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_pieces_change_no_token(monkeypatch, kind):
    backend, draw = made(kind), random.Random(0)
    cuts = []
    real = encoding._tokens_before
    monkeypatch.setattr(encoding, "_tokens_before", lambda *given: cuts.append(real(*given)) or cuts[-1])
    for _ in range(60):
        monkeypatch.setattr(encoding, "_PIECE", draw.choice([8, 20, 50, 200]))
        monkeypatch.setattr(encoding, "_AHEAD", draw.choice([16, 40, 100]))
        monkeypatch.setattr(encoding, "_GROUP_CHARACTERS", draw.choice([1, 500]))
        few = draw.sample(FRAGMENTS, draw.randint(2, len(FRAGMENTS)))
        texts = ["".join(draw.choices(few, k=draw.randint(0, 200))) for _ in range(3)]
        for special in (True, False):
            expected = [backend.encode(text, add_special_tokens=special).ids for text in texts]
            assert [list(ids) for ids in encoding.encode(backend, texts, special)] == expected
    assert any(cuts) == (kind not in UNCUT)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["gpt2", "xlmr", "bert"])
def test_the_tokenizer_never_gets_a_long_text_of_words(monkeypatch, kind):
    backend, given = made(kind), []
    real = encoding._encode
    monkeypatch.setattr(encoding, "_encode", lambda backend, text: given.append(len(text)) or real(backend, text))
    text = "der Hund, 1234 ab foo bar. " * 40_000
    (ids,) = encoding.encode(backend, [text], True)
    assert max(given) <= encoding._PIECE + encoding._AHEAD < len(text) // 3
    assert list(ids) == backend.encode(text).ids
