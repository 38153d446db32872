"""Every tokenizer's tokens, joined, are the text; roles, holes and matches are what the tokenizer's own files say."""

import json
import lzma
import re
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, models, pre_tokenizers
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from tests.tiny_tokenizers import LINES, REAL, byte_bpe, edited, every_kind, real_tokenizer, wrap
from wechsel_jax.errors import UserError
from wechsel_jax.tokens import Vocabulary, byte_level_string, load_tokenizer, parity_words, readable
from wechsel_jax.tokens.files import rowless_tokens
from wechsel_jax.tokens.overlap import match

PARAMETERS = settings(max_examples=500, deadline=None, suppress_health_check=[HealthCheck.filter_too_much])

# Words, whitespace of every sort and scripts that the vocabularies know and do not know, beside arbitrary Unicode.
SPACES = [" ", "  ", "\n", "\t", "\u00a0", "\u3000"]
SNIPPETS = [*SPACES, "ß", "Haus", "dog", "e\u0301", "日本", "😀", "و", "'s", "<0x41>", "#"]
# The name of a special token in a text is that token, which stands for no text.
SPECIAL = re.compile(r"</?s>|<pad>|<unk>|<mask>|<\|end\w*\|>|\[[A-Z]+\]")
TEXT = (st.text() | st.lists(st.sampled_from(SNIPPETS)).map("".join)).filter(lambda text: not SPECIAL.search(text))


@pytest.fixture(scope="module")
def tiny() -> dict[str, tuple[PreTrainedTokenizerFast, Vocabulary]]:
    return {name: (tokenizer, Vocabulary.from_tokenizer(tokenizer)) for name, tokenizer in every_kind().items()}


@pytest.fixture(scope="module")
def real(data_directory) -> dict[str, tuple[PreTrainedTokenizerFast, Vocabulary]]:
    return {name: real_tokenizer(data_directory, name) for name in REAL}


def encode(tokenizer: PreTrainedTokenizerFast, text: str) -> list[int]:
    return tokenizer(text, add_special_tokens=False).input_ids


@PARAMETERS
@given(text=TEXT)
def test_tokens_of_byte_level_bpe_joined_are_the_text(tiny, text):
    tokenizer, vocabulary = tiny["byte"]
    assert vocabulary.join(encode(tokenizer, text)) == text.encode()
    tokenizer, vocabulary = tiny["byte-prefix"]
    assert vocabulary.join(encode(tokenizer, text)) == text.encode().removeprefix(b" ")


@PARAMETERS
@given(text=TEXT)
def test_tokens_of_sentencepiece_joined_are_the_text(tiny, text):
    # SentencePiece cannot tell the character ▁ from a space.
    plain = text.replace("▁", " ").encode()
    for name in ("llama", "gemma"):
        tokenizer, vocabulary = tiny[name]
        assert vocabulary.join(encode(tokenizer, text)) == plain
    for name in ("metaspace", "unigram"):
        tokenizer, vocabulary = tiny[name]
        assert vocabulary.join(encode(tokenizer, text)) == plain.removeprefix(b" ")


@PARAMETERS
@given(text=st.lists(st.sampled_from([*sorted({*"".join(LINES)}), "  ", "\n", "(", "H", "Hund", "dog"])).map("".join))
def test_tokens_of_wordpiece_joined_are_the_words_with_single_spaces(tiny, text):
    tokenizer, vocabulary = tiny["wordpiece"]
    ids = encode(tokenizer, text)
    assume(tokenizer.unk_token_id not in ids)
    backend = tokenizer.backend_tokenizer
    words = [word for word, _ in backend.pre_tokenizer.pre_tokenize_str(backend.normalizer.normalize_str(text))]
    assert vocabulary.join(ids) == " ".join(words).encode()


@pytest.mark.slow
@PARAMETERS
@given(text=TEXT)
def test_tokens_of_real_byte_level_bpe_joined_are_the_text(real, text):
    for name in ("gpt2", "roberta"):
        tokenizer, vocabulary = real[name]
        assert vocabulary.join(encode(tokenizer, text)) == text.encode()
    for name in ("de/bpe-50k", "ar/bpe-50k", "sw/bpe-50k"):
        tokenizer, vocabulary = real[name]
        assert vocabulary.join(encode(tokenizer, text)) == text.encode().removeprefix(b" ")


UNIGRAM_TEXT = st.lists(st.sampled_from([*"abcdefghijklmnopqrstuvwxyzABZ0189.,!?", *SPACES, "ﬁ", "Ａ", "²", "Haus"]))


@PARAMETERS
@given(text=UNIGRAM_TEXT.map("".join))
def test_tokens_of_real_unigram_joined_are_the_normalised_words(real, text):
    for language in ("de", "sw"):
        tokenizer, vocabulary = real[f"{language}/xlmr-unigram-50k"]
        ids = encode(tokenizer, text)
        if tokenizer.unk_token_id not in ids:
            normalised = tokenizer.backend_tokenizer.normalizer.normalize_str(text)
            assert vocabulary.join(ids) == " ".join(normalised.split()).encode()


def test_real_unigram_keeps_running_text(real, data_directory):
    with lzma.open(data_directory / "text" / "de.wikipedia_mlqa_xquad.txt.xz", "rt", encoding="utf-8") as handle:
        lines = [next(handle) for _ in range(200)]
    tokenizer, vocabulary = real["de/xlmr-unigram-50k"]
    kept = 0
    for line in lines:
        ids = encode(tokenizer, line)
        if tokenizer.unk_token_id not in ids:
            kept += 1
            normalised = tokenizer.backend_tokenizer.normalizer.normalize_str(line)
            assert vocabulary.join(ids) == " ".join(normalised.split()).encode()
    assert kept > 150


def test_bytes_agree_with_the_tokenizers_own_decoder(tiny, real):
    for name in ("gpt2", "de/bpe-50k", "ar/bpe-50k"):
        tokenizer, vocabulary = real[name]
        decoded = tokenizer.backend_tokenizer.decode_batch([[i] for i in range(len(vocabulary))], skip_special_tokens=False)
        assert [raw.decode(errors="replace") for raw in vocabulary.bytes] == decoded
    # Other decoders drop the first token's space, so a token is decoded behind another one.
    pairs = {"ar/xlmr-unigram-50k": "a", "llama": "a", "metaspace": "a", "gemma": "a", "unigram": "a", "wordpiece": "a"}
    for name, anchor in pairs.items():
        tokenizer, vocabulary = (real | tiny)[name]
        before = tokenizer.convert_tokens_to_ids(anchor)
        ordinary = np.flatnonzero(~vocabulary.special)
        decoded = tokenizer.backend_tokenizer.decode_batch([[before, i] for i in ordinary], skip_special_tokens=False)
        for token_id, text in zip(ordinary, decoded, strict=True):
            raw = vocabulary.bytes[token_id]
            partial = len(raw) == 1 and raw[0] > 127
            assert partial or text.removeprefix(anchor) == raw.decode(errors="replace"), vocabulary.strings[token_id]


def test_the_kind_comes_from_the_steps_and_not_from_the_class_name(tiny, real):
    kinds = {name: (vocabulary.kind, vocabulary.prefix_space) for name, (_, vocabulary) in (tiny | real).items()}
    # All six tokenizers of the real languages call themselves XLMRobertaTokenizer.
    assert kinds["de/bpe-50k"] == ("byte_bpe", True)
    assert kinds["de/xlmr-unigram-50k"] == ("sentencepiece", True)
    assert kinds["gpt2"] == kinds["roberta"] == kinds["byte"] == ("byte_bpe", False)
    assert kinds["byte-prefix"] == ("byte_bpe", True)
    assert kinds["llama"] == kinds["metaspace"] == kinds["unigram"] == ("sentencepiece", True)
    assert kinds["gemma"] == ("sentencepiece", False)
    assert kinds["wordpiece"] == ("wordpiece", True)


def test_other_kinds_are_refused():
    clip = Tokenizer(models.BPE(vocab={"a": 0, "a</w>": 1}, merges=[], end_of_word_suffix="</w>"))
    clip.pre_tokenizer = pre_tokenizers.ByteLevel()
    words = Tokenizer(models.WordLevel({"a": 0, "[UNK]": 1}, unk_token="[UNK]"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    for backend in (clip, words):
        with pytest.raises(UserError, match="which bytes"):
            Vocabulary.from_tokenizer(wrap(backend))


def test_partial_characters_have_bytes_but_no_word(tiny):
    for name, string, raw in (("byte", "Ĩ", b"\x86"), ("llama", "<0xE6>", b"\xe6"), ("unigram", "<0x86>", b"\x86")):
        tokenizer, vocabulary = tiny[name]
        token_id = tokenizer.convert_tokens_to_ids(string)
        assert vocabulary.bytes[token_id] == raw
        assert vocabulary.words()[token_id] is None
        assert not vocabulary.word_start[token_id]


def test_a_token_is_shown_as_far_as_it_can_be_read():
    raw = (" für".encode(), "ไทย".encode() + b"\xe0", b"\xe0", "क्\u200d".encode(), b"\n", b"\t\n")
    strings = tuple(map(byte_level_string, raw))
    vocabulary = Vocabulary(strings, raw, np.zeros(6, bool), (frozenset(),) * 6, "byte_bpe", False)
    assert [readable(vocabulary, i) for i in range(6)] == ["Ġfür", r"ไทย\xe0", r"\xe0", r"क्\u200d", "Ċ", "ĉĊ"]


def test_words_are_the_stripped_text(tiny):
    cases = {"byte": ("Ġdog", "dog"), "llama": ("▁dog", "dog"), "wordpiece": ("dog", "dog")}
    for name, (string, word) in cases.items():
        tokenizer, vocabulary = tiny[name]
        token_id = tokenizer.convert_tokens_to_ids(string)
        assert vocabulary.words()[token_id] == word and vocabulary.word_start[token_id]
        assert vocabulary.bytes[token_id] == b" dog"
    tokenizer, vocabulary = tiny["wordpiece"]
    inside = next(i for i, string in enumerate(vocabulary.strings) if string.startswith("##"))
    assert vocabulary.words()[inside] == vocabulary.strings[inside][2:] and not vocabulary.word_start[inside]
    assert vocabulary.words()[tokenizer.unk_token_id] is None
    blank = tiny["byte"][0].convert_tokens_to_ids("Ġ")
    assert tiny["byte"][1].words()[blank] is None


@pytest.mark.slow
def test_a_decodable_token_has_the_word_that_wechsel_uses(real):
    for tokenizer, vocabulary in real.values():
        parity = parity_words(tokenizer)
        assert len(parity) == len(vocabulary)
        assert all(word is None or word == other for word, other in zip(vocabulary.words(), parity, strict=True))


def test_parity_words_are_wechsels(real):
    for name in ("gpt2", "sw/xlmr-unigram-50k"):
        tokenizer, _ = real[name]
        words = parity_words(tokenizer)
        for token_id in range(0, len(words), 97):
            assert words[token_id] == tokenizer.decode(token_id).strip()


def test_added_tokens_are_literal_text(tiny):
    for name in ("byte", "llama", "gemma", "metaspace"):
        tokenizer = wrap(Tokenizer.from_str(tiny[name][0].backend_tokenizer.to_str()), eos_token="</s>")
        tokenizer.add_tokens([AddedToken("Grüße ▁", normalized=False), AddedToken("   ", normalized=False)])
        vocabulary = Vocabulary.from_tokenizer(tokenizer)
        greeting, spaces = (tokenizer.convert_tokens_to_ids(text) for text in ("Grüße ▁", "   "))
        assert vocabulary.bytes[greeting] == "Grüße ▁".encode() and not vocabulary.word_start[greeting]
        assert vocabulary.bytes[spaces] == b"   " and vocabulary.word_start[spaces]
        assert not vocabulary.special[greeting] and not vocabulary.special[spaces]
        text = "Grüße ▁x   Hund"
        if name in ("byte", "gemma"):
            assert vocabulary.join(encode(tokenizer, text)) == text.encode()


def test_an_added_token_that_the_model_knows_keeps_the_models_spelling(tiny):
    tokenizer = wrap(Tokenizer.from_str(tiny["gemma"][0].backend_tokenizer.to_str()))
    tokenizer.add_tokens([AddedToken("▁▁", normalized=False)])
    vocabulary = Vocabulary.from_tokenizer(tokenizer)
    assert vocabulary.bytes[tokenizer.convert_tokens_to_ids("▁▁")] == b"  "


def test_holes_have_no_bytes_and_match_nothing(tiny):
    def move(state):
        vocabulary = state["model"]["vocab"]
        last = max(vocabulary, key=vocabulary.get)
        vocabulary[last] += 7

    tokenizer = wrap(edited(tiny["byte"][0].backend_tokenizer, move), eos_token="<|end|>")
    vocabulary, whole = Vocabulary.from_tokenizer(tokenizer), tiny["byte"][1]
    holes = slice(len(whole) - 1, len(whole) + 6)
    assert len(vocabulary) == len(whole) + 7
    assert set(vocabulary.strings[holes]) == {""} and set(vocabulary.bytes[holes]) == {b""}
    assert vocabulary.strings[-1] == whole.strings[-1]
    assert set(vocabulary.words()[holes]) == {None} and not vocabulary.special[holes].any()
    # Nor are they, or rows of a padded table, what a masked language model draws in place of a token.
    without = [*np.flatnonzero(whole.special).tolist(), *range(len(whole) - 1, len(whole) + 6), *range(len(vocabulary), 1024)]
    assert vocabulary.without_text(1024) == without
    found = match(vocabulary, vocabulary)
    assert (found[holes] == -1).all() and found[-1] == len(vocabulary) - 1
    assert len(parity_words(tokenizer)) == len(vocabulary)


def roles_by_string(vocabulary: Vocabulary) -> dict[str, set[str]]:
    return {string: set(roles) for string, roles in zip(vocabulary.strings, vocabulary.roles, strict=True) if roles}


ROBERTA = {"<s>": {"bos", "cls"}, "<pad>": {"pad"}, "</s>": {"eos", "sep"}, "<unk>": {"unk"}, "<mask>": {"mask"}}


def test_roles_of_real_tokenizers(real):
    # gpt2 and roberta are bare tokenizer.json files: their roles come from the tokens' well-known names.
    assert roles_by_string(real["gpt2"][1]) == {"<|endoftext|>": {"bos", "eos", "unk"}}
    for name in set(real) - {"gpt2"}:
        assert roles_by_string(real[name][1]) == ROBERTA
    assert real["gpt2"][0].eos_token_id == 50256 and real["roberta"][0].mask_token_id == 50264


def test_several_roles_special_tokens_without_a_role_and_stand_ins(tiny):
    backend = Tokenizer.from_str(tiny["byte"][0].backend_tokenizer.to_str())
    backend.add_special_tokens(["<|im_start|>", "[SEP]"])
    vocabulary = Vocabulary.from_tokenizer(wrap(backend, eos_token="<|end|>", pad_token="<|end|>", sep_token="[SEP]"))
    assert roles_by_string(vocabulary) == {"<|end|>": {"eos", "pad"}, "[SEP]": {"sep"}, "<|im_start|>": {"special"}}
    assert vocabulary.id_with_role("eos") == 0 and vocabulary.strings[vocabulary.id_with_role("sep")] == "[SEP]"
    assert vocabulary.id_with_role("mask") is None and vocabulary.id_with_role("bos") is None
    bert = tiny["wordpiece"][1]
    assert bert.strings[bert.id_with_role("bos")] == "[CLS]" and bert.strings[bert.id_with_role("eos")] == "[SEP]"
    # The unigram model's own unknown token has its role although nothing else names it.
    assert roles_by_string(tiny["unigram"][1]) == {"<unk>": {"unk"}}


@pytest.mark.parametrize(("language", "twins", "partial"), [("de", 23.8, 168), ("sw", 19.6, 182), ("ar", 17.0, 227)])
def test_twins_and_partial_characters_are_those_measured_with_wechsel(real, language, twins, partial):
    tokenizer, vocabulary = real[f"{language}/bpe-50k"]
    words = parity_words(tokenizer)
    count = Counter(words)
    assert round(100 * sum(count[word] > 1 for word in words) / len(words), 1) == twins
    assert sum("\ufffd" in word for word in words) == partial
    undecodable = sum(word is None and "\ufffd" in other for word, other in zip(vocabulary.words(), words, strict=True))
    assert undecodable == partial


def test_lengths_must_agree():
    with pytest.raises(ValueError, match="differ in length"):
        Vocabulary(("a",), (b"a", b"b"), np.zeros(1, bool), (frozenset(),), "byte_bpe")


def test_special_tokens_without_a_row_are_left_out(tmp_path):
    """As of a text model that shares a tokenizer with a larger one for images."""
    tokenizer = byte_bpe(False)
    size, ids = len(tokenizer), tokenizer("der Hund").input_ids
    tokenizer.add_special_tokens({"extra_special_tokens": ["<image_soft_token>"]})
    tokenizer.save_pretrained(tmp_path)
    described = json.loads((tmp_path / "tokenizer_config.json").read_text())
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(described | {"image_token": "<image_soft_token>"}))
    for config, kept in (({}, size + 1), ({"vocab_size": size + 1}, size + 1), ({"text_config": {"vocab_size": size}}, size)):
        (tmp_path / "config.json").write_text(json.dumps(config))
        loaded = load_tokenizer(tmp_path)
        assert len(loaded) == kept and loaded("der Hund").input_ids == ids
        assert rowless_tokens(loaded) == (() if kept > size else ("<image_soft_token>",))
    loaded.save_pretrained(tmp_path / "again")
    assert len(load_tokenizer(tmp_path / "again")) == size and "image" not in (tmp_path / "again/tokenizer.json").read_text()
    # An ordinary token is no oversight: the tokenizer is of another model, which is told where they meet.
    tokenizer.add_tokens(["Fuchs"])
    tokenizer.save_pretrained(tmp_path)
    assert len(load_tokenizer(tmp_path)) == size + 2


def test_vocab_and_merges_alone_are_the_same_tokenizer(real, data_directory, tmp_path):
    for name in ("gpt2", "roberta"):
        for file in ("vocab.json", "merges.txt"):
            shutil.copy(data_directory / "tokenizers" / name / file, tmp_path / file)
        tokenizer, vocabulary = real[name]
        other = load_tokenizer(tmp_path)
        text = "Hello world,  <mask> größer\n\nthan 日本!"
        assert encode(other, text) == encode(tokenizer, text)
        assert other(text).input_ids == tokenizer(text).input_ids
        again = Vocabulary.from_tokenizer(other)
        assert again.strings == vocabulary.strings and again.bytes == vocabulary.bytes and again.roles == vocabulary.roles


# What a folder with vocab.json and merges.txt says beside them: tokens at the end of vocab.json, and files.
CLASSES = {
    "added tokens": (
        (),
        {
            "config.json": {"model_type": "gpt2"},
            "added_tokens.json": {"<|user|>": 0, "<|bot|>": 1, "<pad>": 2},
            "special_tokens_map.json": {"pad_token": "<pad>", "additional_special_tokens": ["<|user|>"]},
        },
    ),
    "opt": (
        ("<s>", "<pad>", "</s>", "<unk>"),
        {
            "config.json": {"model_type": "opt"},
            "tokenizer_config.json": {
                **{"tokenizer_class": "GPT2Tokenizer", "add_bos_token": True, "pad_token": "<pad>"},
                **dict.fromkeys(("bos_token", "eos_token", "unk_token"), "</s>"),
            },
        },
    ),
    "roberta": (("<s>", "<pad>", "</s>", "<unk>", "<mask>"), {"config.json": {"model_type": "roberta"}}),
    "qwen2": (("<|endoftext|>",), {"tokenizer_config.json": {"tokenizer_class": "Qwen2Tokenizer"}}),
}


def merges_only(tokenizer: PreTrainedTokenizerFast, path: Path, more: tuple[str, ...], files: dict[str, dict]) -> int:
    """Writes vocab.json, merges.txt and other files; ids of added tokens are counted from the end, which is returned."""
    model = json.loads(tokenizer.backend_tokenizer.to_str())["model"]
    vocabulary = model["vocab"] | {name: len(model["vocab"]) + i for i, name in enumerate(more)}
    (path / "vocab.json").write_text(json.dumps(vocabulary))
    (path / "merges.txt").write_text("#version: 0.2\n" + "\n".join(" ".join(pair) for pair in model["merges"]))
    for name, content in files.items():
        shifted = {token: len(vocabulary) + i for token, i in content.items()} if name == "added_tokens.json" else content
        (path / name).write_text(json.dumps(shifted))
    return len(vocabulary)


@pytest.mark.parametrize("name", CLASSES)
def test_vocab_and_merges_of_a_class_are_what_transformers_makes_of_them(tiny, tmp_path, name):
    merges_only(tiny["byte"][0], tmp_path, *CLASSES[name])
    ours, theirs = load_tokenizer(tmp_path), AutoTokenizer.from_pretrained(tmp_path)
    text = "<|user|>Der Hund 12345<|bot|> ran<pad>"
    assert ours.get_vocab() == theirs.get_vocab() and ours(text).input_ids == theirs(text).input_ids
    assert ours.special_tokens_map == theirs.special_tokens_map
    assert Vocabulary.from_tokenizer(ours).roles == Vocabulary.from_tokenizer(theirs).roles


def test_added_tokens_beside_vocab_and_merges_alone(tiny, tmp_path):
    size = merges_only(tiny["byte"][0], tmp_path, (), {"added_tokens.json": {"<|bot|>": 1, "<|user|>": 0}})
    tokenizer = load_tokenizer(tmp_path)
    assert tokenizer("ab<|bot|>", add_special_tokens=False).input_ids[-1] == size + 1 and len(tokenizer) == size + 2
    merges_only(tiny["byte"][0], tmp_path, (), {"added_tokens.json": {"<|bot|>": 1, "<|user|>": 3}})
    with pytest.raises(UserError, match=rf"added_tokens\.json: token '<.bot.>' has the id {size + 1}, and {size} behind"):
        load_tokenizer(tmp_path)
    merges_only(tiny["byte"][0], tmp_path, (), {"added_tokens.json": {}, "config.json": {"model_type": "xglm"}})
    with pytest.raises(UserError, match=r"vocab\.json and merges\.txt do not suit the model of config\.json"):
        load_tokenizer(tmp_path)


def save(tokenizer: PreTrainedTokenizerFast, path: Path) -> None:
    tokenizer.backend_tokenizer.save(str(path))


def test_a_bare_file_takes_its_roles_from_the_files_beside_it_or_from_names(tiny, tmp_path):
    tokenizer, _ = tiny["wordpiece"]
    save(tokenizer, tmp_path / "tokenizer.json")
    roles = {"[PAD]": {"pad"}, "[UNK]": {"unk"}, "[CLS]": {"cls"}, "[SEP]": {"sep"}, "[MASK]": {"mask"}}
    for path in (tmp_path, tmp_path / "tokenizer.json"):
        assert roles_by_string(Vocabulary.from_tokenizer(load_tokenizer(path))) == roles
    save(tokenizer, tmp_path / "other.json")
    assert roles_by_string(Vocabulary.from_tokenizer(load_tokenizer(tmp_path / "other.json"))) == roles
    (tmp_path / "special_tokens_map.json").write_text('{"bos_token": "[CLS]", "unk_token": {"content": "[UNK]"}}')
    named = roles_by_string(Vocabulary.from_tokenizer(load_tokenizer(tmp_path / "tokenizer.json")))
    special = {"special"}
    assert named == {"[PAD]": special, "[UNK]": {"unk"}, "[CLS]": {"bos"}, "[SEP]": special, "[MASK]": special}


def test_a_truncation_in_the_file_does_not_cut_texts(tiny, tmp_path):
    backend = Tokenizer.from_str(tiny["byte"][0].backend_tokenizer.to_str())
    backend.enable_truncation(4)
    backend.enable_padding(length=4)
    backend.save(str(tmp_path / "tokenizer.json"))
    tokenizer = load_tokenizer(tmp_path)
    assert len(tokenizer.backend_tokenizer.encode("the dog " * 20).ids) > 20
    assert len(tokenizer.backend_tokenizer.encode("a").ids) == 1


def test_code_in_a_directory_is_never_run(tiny, tmp_path):
    save(tiny["byte"][0], tmp_path / "tokenizer.json")
    (tmp_path / "evil.py").write_text("raise SystemExit('ran')\n")
    config = {"auto_map": {"AutoTokenizer": ["evil.Evil", "evil.Evil"]}, "tokenizer_class": "Evil"}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    assert len(load_tokenizer(tmp_path)) == len(tiny["byte"][1])
    (tmp_path / "tokenizer.json").rename(tmp_path / "vocab.txt")
    with pytest.raises(UserError, match="cannot load"):
        load_tokenizer(tmp_path)


def damaged(kind: str, whole: str, directory: Path) -> Path:
    path = directory / "tokenizer.json"
    contents = {
        "empty": b"",
        "truncated": whole.encode()[: len(whole) // 2],
        "binary": b"\xff\xfe\x00\x01",
        "a list": b"[1, 2]",
        "no tokenizer": b'{"model_type": "gpt2"}',
        "unknown model": json.dumps(json.loads(whole) | {"model": {"type": "Magic", "vocab": {}}}).encode(),
    }
    path.write_bytes(contents[kind])
    return path


@pytest.mark.parametrize("kind", ["empty", "truncated", "binary", "a list", "no tokenizer", "unknown model"])
def test_a_damaged_file_is_named(tiny, tmp_path, kind):
    path = damaged(kind, tiny["byte"][0].backend_tokenizer.to_str(), tmp_path)
    for place in (path, tmp_path):
        with pytest.raises(UserError) as error:
            load_tokenizer(place)
        assert str(tmp_path) in str(error.value) and "\n" not in str(error.value)


def test_an_added_token_that_the_library_gives_the_id_of_another_is_refused(tiny, tmp_path):
    """It counts tokens to number it: with a hole among the model's ids the number of its last token."""
    state = json.loads(tiny["byte"][0].backend_tokenizer.to_str())
    vocab = state["model"]["vocab"]
    hole, last = len(vocab) // 2, max(vocab, key=vocab.get)
    state["model"]["vocab"] = {token: number + (number >= hole) for token, number in vocab.items()}
    state["added_tokens"].append({**state["added_tokens"][0], "id": hole, "content": "<mid>"})
    (tmp_path / "tokenizer.json").write_text(json.dumps(state))
    named = f"the added token '<mid>' gets the id {len(vocab)} of {last!r} from"
    with pytest.raises(UserError, match=re.escape(named)):
        load_tokenizer(tmp_path)
    # As the library numbers it, it may stay.
    state["model"]["vocab"]["<mid>"] = hole
    (tmp_path / "tokenizer.json").write_text(json.dumps(state))
    assert load_tokenizer(tmp_path).convert_tokens_to_ids(["<mid>", last]) == [hole, len(vocab)]


BAD_IDS = {
    "an empty vocabulary": (lambda vocab: vocab.clear(), "its vocabulary is empty"),
    "an id far above": (lambda vocab: vocab.update(far=10**8), "token 'far' has the id '100000000'; expected whole numbers"),
    "an id beyond 32 bits": (lambda vocab: vocab.update(far=2**32 - 1), "token 'far' has the id '4294967295'"),
    "an id below zero": (lambda vocab: vocab.update(far=-1), "token 'far' has the id '-1'"),
    "half an id": (lambda vocab: vocab.update(far=2.5), "token 'far' has the id '2.5'"),
    "one id twice": (lambda vocab: vocab.update(far=7), "tokens .* and 'far' have the same id 7"),
}


@pytest.mark.parametrize("kind", BAD_IDS)
@pytest.mark.parametrize("name", ["tokenizer.json", "vocab.json"])
def test_ids_that_no_table_has_are_refused_before_a_library_sees_them(tiny, tmp_path, monkeypatch, kind, name):
    def never(*_, **__):
        raise AssertionError("a library was asked")

    change, message = BAD_IDS[kind]
    state = json.loads(tiny["byte"][0].backend_tokenizer.to_str())
    change(state["model"]["vocab"])
    (tmp_path / name).write_text(json.dumps(state if name == "tokenizer.json" else state["model"]["vocab"]))
    (tmp_path / "merges.txt").write_text("#version: 0.2\n")
    monkeypatch.setattr("wechsel_jax.tokens.files.fast_tokenizer_class", never)
    with pytest.raises(UserError, match=f"{name}: {message}"):
        load_tokenizer(tmp_path)


def test_what_the_library_would_not_survive_is_refused(tiny, tmp_path):
    path, whole = tmp_path / "tokenizer.json", tiny["byte"][0].backend_tokenizer.to_str()
    state = json.loads(whole)
    state["added_tokens"].append({"id": 2**31, "content": "<far>", "special": True})
    unigram = json.loads(whole) | {"model": {"type": "Unigram", "unk_id": None, "vocab": []}}
    prefixed = json.loads(whole)
    prefixed["model"]["continuing_subword_prefix"] = "xyz"
    deep = '{"model": {"vocab": ' + "[" * 100_000 + "]" * 100_000 + "}}"
    half = json.dumps(json.loads(whole) | {"padding": "\ud800"})
    for content, message in (
        (json.dumps(state), "token '<far>' has the id '2147483648'"),
        (json.dumps(unigram), "its vocabulary is empty"),
        (json.dumps(prefixed), "merge .* does not continue with 'xyz', its continuing_subword_prefix"),
        (deep, "nested too deep"),
        (half, "half a character"),
    ):
        path.write_text(content)
        for place in (path, tmp_path):
            with pytest.raises(UserError, match=rf"tokenizer\.json: .*{message}"):
                load_tokenizer(place)


@pytest.mark.parametrize("content", ['{"eos_token": 5}', '{"eos_token": {"content": ["a"]}}', '{"eos_token": {}}x', "[]"])
def test_a_strange_name_of_a_special_token_is_named(tiny, tmp_path, content):
    model = json.loads(tiny["byte"][0].backend_tokenizer.to_str())["model"]
    (tmp_path / "vocab.json").write_text(json.dumps(model["vocab"]))
    (tmp_path / "merges.txt").write_text("\n".join(" ".join(pair) for pair in model["merges"]))
    load_tokenizer(tmp_path)
    (tmp_path / "special_tokens_map.json").write_text(content)
    with pytest.raises(UserError, match=r"special_tokens_map\.json: "):
        load_tokenizer(tmp_path)


def test_a_broken_configuration_beside_the_tokenizer_is_named(tiny, tmp_path):
    save(tiny["byte"][0], tmp_path / "tokenizer.json")
    (tmp_path / "tokenizer_config.json").write_text('{"eos_token": ')
    with pytest.raises(UserError, match=r"tokenizer_config\.json: .*not JSON: .*line 1 "):
        load_tokenizer(tmp_path)


def test_places_without_a_tokenizer_are_refused(tmp_path):
    with pytest.raises(UserError, match="no such file or directory"):
        load_tokenizer(tmp_path / "nothing")
    with pytest.raises(UserError, match="holds no tokenizer"):
        load_tokenizer(tmp_path)
    (tmp_path / "spiece.model").write_bytes(b"x")
    with pytest.raises(UserError, match=r"not a tokenizer\.json"):
        load_tokenizer(tmp_path / "spiece.model")
    # tests/conftest.py forbids the hub.
    with pytest.raises(UserError, match="not to be had from the hub"):
        load_tokenizer("nobody/no-such-model")
    (tmp_path / "vocab.json").write_text('{"a": 0, "b</w>": 1}')
    (tmp_path / "merges.txt").write_text("#version: 0.2\n")
    with pytest.raises(UserError, match="not the vocabulary of a byte-level BPE"):
        load_tokenizer(tmp_path)


def test_importing_tokens_stays_light():
    heavy = "{'transformers', 'tokenizers', 'jax', 'torch', 'huggingface_hub'}"
    code = f"import sys, wechsel_jax.tokens, wechsel_jax.tokens.training; print(sorted({heavy} & set(sys.modules)))"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"
