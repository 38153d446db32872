"""Combining marks stay on their letters, everywhere a tokenizer goes; all other text is cut as GPT-2 cuts it."""

import itertools
import json
import lzma
import unicodedata
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Regex, Tokenizer, models, pre_tokenizers, trainers
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from tests.tiny_tokenizers import byte_bpe, unigram, wordpiece
from wechsel_jax.errors import UserError
from wechsel_jax.tokens import Vocabulary, load_tokenizer
from wechsel_jax.tokens.extension import extend_tokenizer
from wechsel_jax.tokens.files import reloads_alike
from wechsel_jax.tokens.splitting import PATTERNS, byte_level_splitter, cuts_at_marks, keep_marks
from wechsel_jax.tokens.text import BOUNDARY, read_token_ids
from wechsel_jax.tokens.training import train_tokenizer

# A sentence of each script whose words GPT-2's pattern cuts, with how many words it has. Thai has no spaces within a phrase.
SENTENCES = {
    "Hindi": ("हिन्दी में किताबें पढ़ना अच्छा है", 6),
    "Thai": ("ภาษาไทยเป็นภาษาที่มีระดับเสียง", 1),
    "vocalised Arabic": ("كِتَابٌ جَمِيلٌ جِدًّا", 3),
    "pointed Hebrew": ("בְּרֵאשִׁית בָּרָא אֱלֹהִים", 3),
    "Bengali": ("আমি বাংলায় কথা বলি", 4),
    "Tamil": ("தமிழ் மொழி இனிமையானது", 3),
    "Burmese": ("မြန်မာဘာသာ စကားပြောတယ်", 2),
    "decomposed Vietnamese": (unicodedata.normalize("NFD", "tiếng Việt rất đẹp"), 4),
    "Persian": ("می\u200cخواهم کتاب\u200cها", 2),
    "Malayalam": ("മലയാളം ഭാഷ അവന്\u200d", 3),
}
JOINERS = "\u200c\u200d"
TEXT = "\n".join(sentence for sentence, _ in SENTENCES.values()) + "\n"
# Llama 3's, with digits three at a time and a word's first character free.
LLAMA3 = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"


def words(splitter, text: str) -> list[str]:
    return [text[start:end] for _, (start, end) in splitter.pre_tokenize_str(text)]


def is_mark(character: str) -> bool:
    return character in JOINERS or unicodedata.category(character).startswith("M")


def severed(pieces: list[str]) -> list[str]:
    """Pieces that begin with marks of the letter before."""
    found = []
    for before, after in itertools.pairwise(pieces):
        base = before.rstrip("".join(filter(is_mark, before)))[-1:]
        if is_mark(after[0]) and base and unicodedata.category(base).startswith("L"):
            found.append(after)
    return found


@pytest.mark.parametrize("name", SENTENCES)
def test_every_word_is_one_piece(name):
    sentence, count = SENTENCES[name]
    assert [word.strip() for word in words(byte_level_splitter("marks"), sentence)] == sentence.split()
    assert len(sentence.split()) == count
    assert len(words(byte_level_splitter("gpt2"), sentence)) > count


marked = st.lists(st.sampled_from([*TEXT, *"ab's 't19.(\u0308\u0301\ufe0f❤1😀\u200b\t"]), max_size=30).map("".join)


@settings(max_examples=500, deadline=None)
@given(text=marked)
def test_no_letter_loses_its_mark(text):
    pieces = words(byte_level_splitter("marks"), text)
    assert "".join(pieces) == text and not severed(pieces)


# Characters that Python's Unicode does not know may be marks to a newer one.
unmarked = st.text(st.characters(exclude_categories=["Mn", "Mc", "Me", "Cn", "Cs", "Co"], exclude_characters=JOINERS))


@settings(max_examples=500, deadline=None)
@given(text=unmarked | st.lists(st.sampled_from(["'s", "'ll", "'", "x", " ", "  ", "\n", "12", "ü", "日", "?!"])).map("".join))
def test_text_without_marks_is_cut_as_before(text):
    assert words(byte_level_splitter("marks"), text) == words(byte_level_splitter("gpt2"), text)
    llama = {"type": "Split", "pattern": {"Regex": LLAMA3}, "behavior": "Isolated", "invert": False}
    llama, kept = (pre_tokenizers.Split(Regex(step["pattern"]["Regex"]), "isolated") for step in (llama, keep_marks(llama)))
    assert words(llama, text) == words(kept, text)


def test_known_patterns_learn_to_keep_marks_and_others_stay():
    def loaded(state: dict) -> pre_tokenizers.PreTokenizer:
        tokenizer = json.loads(byte_bpe(False).backend_tokenizer.to_str()) | {"pre_tokenizer": state}
        return Tokenizer.from_str(json.dumps(tokenizer)).pre_tokenizer

    split = {"type": "Split", "pattern": {"Regex": LLAMA3}, "behavior": "Isolated", "invert": False}
    spelled = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True}
    sequence = {"type": "Sequence", "pretokenizers": [split, spelled | {"use_regex": False}]}
    for state in (sequence, spelled | {"use_regex": True}, spelled):
        assert cuts_at_marks(loaded(state)) and not cuts_at_marks(loaded(keep_marks(state)))
        assert loaded(keep_marks(state)).pre_tokenize_str("हिन्दी में") == byte_level_splitter("marks").pre_tokenize_str("हिन्दी में")
    # A space before each word would follow from the last of these.
    for state in (keep_marks(sequence), {"type": "Metaspace"}, spelled | {"add_prefix_space": True}):
        assert keep_marks(state) == state


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    root = tmp_path_factory.mktemp("trained")
    (root / "text.txt").write_text(TEXT * 3, encoding="utf-8")
    made = {}
    for style, pattern in itertools.product(("gpt2", "roberta"), ("marks", "gpt2")):
        place = root / f"{style}-{pattern}"
        # As many tokens as either can learn from this text.
        size = {"marks": 575, "gpt2": 473}[pattern] + (style == "roberta") * 4
        made[style, pattern] = train_tokenizer(root / "text.txt", size, place, style=style, pattern=pattern), place
    return made


def test_the_pattern_changes_nothing_but_where_words_end(trained):
    for style in ("gpt2", "roberta"):
        (new, _), (old, _) = trained[style, "marks"], trained[style, "gpt2"]
        assert new.special_tokens_map == old.special_tokens_map
        assert len(new(TEXT).input_ids) < 0.5 * len(old(TEXT).input_ids)
        states = [json.loads(tokenizer.backend_tokenizer.to_str()) for tokenizer in (new, old)]
        for state in states:
            # <mask> is the last token, however many there are.
            del state["pre_tokenizer"], state["model"], state["added_tokens"][-1]["id"]
        assert states[0] == states[1]


def test_text_without_marks_gives_the_same_vocabulary(tmp_path):
    (tmp_path / "a.txt").write_text("the cat's 12 mats, läuft über Straßen!\n" * 9, encoding="utf-8")
    models = []
    for pattern in ("marks", "gpt2"):
        tokenizer = train_tokenizer(tmp_path / "a.txt", 280, tmp_path / pattern, pattern=pattern)
        models.append(json.loads(tokenizer.backend_tokenizer.to_str())["model"])
    assert models[0] == models[1]


@settings(max_examples=300, deadline=None)
@given(text=st.text() | marked)
def test_every_text_comes_back_byte_for_byte(trained, text):
    tokenizer, _ = trained["gpt2", "marks"]
    if "<|endoftext|>" not in text:
        ids = tokenizer(text).input_ids
        assert Vocabulary.from_tokenizer(tokenizer).join(ids) == text.encode()
        assert tokenizer.decode(ids, clean_up_tokenization_spaces=False) == text


@pytest.mark.parametrize("model_type", ["", "gpt2", "roberta", "llama", "gpt_neox"])
def test_whoever_loads_it_has_the_same_tokenizer(trained, tmp_path, model_type):
    for (style, pattern), (tokenizer, place) in trained.items():
        folder = tmp_path / f"{style}-{pattern}"
        folder.mkdir()
        for file in ("tokenizer.json", "tokenizer_config.json"):
            (folder / file).write_bytes((place / file).read_bytes())
        if model_type:
            (folder / "config.json").write_text(json.dumps({"model_type": model_type}))
        expected = tokenizer(TEXT, add_special_tokens=False).input_ids
        loaded = AutoTokenizer.from_pretrained(folder), load_tokenizer(folder), load_tokenizer(folder / "tokenizer.json")
        for other in loaded:
            assert other(TEXT, add_special_tokens=False).input_ids == expected
            other.save_pretrained(folder / "again")
        for file in (folder / "tokenizer.json", folder / "again" / "tokenizer.json"):
            assert Tokenizer.from_file(str(file)).encode(TEXT, add_special_tokens=False).ids == expected


def test_tokens_know_their_bytes_and_where_words_start(trained):
    vocabulary = Vocabulary.from_tokenizer(trained["gpt2", "marks"][0])
    assert (vocabulary.kind, vocabulary.prefix_space) == ("byte_bpe", False)
    known = dict(zip(vocabulary.bytes, vocabulary.word_start.tolist(), strict=True))
    assert known[" में".encode()] and "हिन्दी" in vocabulary.words()
    assert all(starts == raw.startswith(b" ") for raw, starts in known.items())


def test_ids_in_memory_are_the_tokenizers_own(trained, tmp_path):
    tokenizer, _ = trained["gpt2", "marks"]
    lines = [sentence for sentence, _ in SENTENCES.values()]
    (tmp_path / "a.txt").write_text("\n".join(lines), encoding="utf-8")
    expected = [token for line in lines for token in (*tokenizer(line).input_ids, BOUNDARY)]
    assert read_token_ids(tokenizer, tmp_path / "a.txt").tolist() == expected


@pytest.mark.parametrize("splitter", ["gpt2", "llama3"])
def test_an_extended_source_reaches_the_words_of_its_target(trained, tmp_path, splitter):
    source, (target, _) = byte_bpe(False), trained["gpt2", "marks"]
    if splitter == "llama3":
        source.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
            [pre_tokenizers.Split(Regex(LLAMA3), "isolated"), pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
        )
    extended = extend_tokenizer(source, target)
    assert len(extended("हिन्दी में").input_ids) == len(target("हिन्दी में").input_ids) == 2
    for text in ("The quick brown fox's 1234 jumps", "Быстрая лиса, 日本語\n\n 😀"):
        assert extended(text).input_ids == source(text).input_ids
    vocabulary = Vocabulary.from_tokenizer(extended)
    assert vocabulary.join(extended(TEXT).input_ids) == TEXT.encode()
    extended.save_pretrained(tmp_path)
    assert load_tokenizer(tmp_path)(TEXT).input_ids == AutoTokenizer.from_pretrained(tmp_path)(TEXT).input_ids
    assert load_tokenizer(tmp_path)(TEXT).input_ids == extended(TEXT).input_ids


def test_an_extended_source_keeps_its_pattern_where_the_target_has_the_same(trained):
    source, (target, _) = byte_bpe(False), trained["gpt2", "gpt2"]
    extended = extend_tokenizer(source, target)
    states = [json.loads(tokenizer.backend_tokenizer.to_str()) for tokenizer in (source, extended)]
    assert states[0]["pre_tokenizer"] == states[1]["pre_tokenizer"]


def test_other_kinds_do_not_cut_at_marks():
    assert cuts_at_marks(byte_bpe(True).backend_tokenizer.pre_tokenizer) and not cuts_at_marks(None)
    for tokenizer in (unigram(), wordpiece()):
        assert not cuts_at_marks(tokenizer.backend_tokenizer.pre_tokenizer)


def test_an_unknown_pattern(tmp_path):
    with pytest.raises(UserError, match="llama3: unknown pattern for a tokenizer; expected one of marks, gpt2"):
        train_tokenizer(tmp_path / "a.txt", 300, tmp_path / "out", pattern="llama3")


@pytest.mark.slow
@pytest.mark.parametrize(("file", "size", "least"), [("hi.stories_bhaav", 1500, 1.6), ("th.ud_tud_pud", 5000, 1.6)])
def test_real_text_takes_about_as_many_tokens_as_need_be(data_directory: Path, tmp_path, file, size, least):
    """The oracle is byte-level BPE whose words end at white space only; GPT-2's pattern takes `least` times as many tokens."""
    with lzma.open(data_directory / "text" / f"{file}.txt.xz", "rt", encoding="utf-8") as handle:
        lines = [line.strip() for line in itertools.islice(handle, 4500)]
    given, held_out = lines[300:], lines[:300]
    (tmp_path / "text.txt").write_text("\n".join(given), encoding="utf-8")
    oracle = Tokenizer(models.BPE())
    spelled = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    oracle.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Split(" ", "merged_with_next"), spelled])
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    oracle.train_from_iterator(given, trainers.BpeTrainer(vocab_size=size, initial_alphabet=alphabet, show_progress=False))
    trained = {
        pattern: train_tokenizer(tmp_path / "text.txt", size, tmp_path / pattern, pattern=pattern) for pattern in PATTERNS
    }
    kinds = {"oracle": oracle} | {pattern: tokenizer.backend_tokenizer for pattern, tokenizer in trained.items()}
    encoded = {kind: [encoding.ids for encoding in kinds[kind].encode_batch(held_out)] for kind in kinds}
    counts = {kind: sum(map(len, ids)) for kind, ids in encoded.items()}
    assert counts["marks"] < 1.05 * counts["oracle"]
    assert counts["gpt2"] > least * counts["marks"]
    vocabulary = Vocabulary.from_tokenizer(trained["marks"])
    assert [vocabulary.join(ids) for ids in encoded["marks"]] == [line.encode() for line in held_out]
    cut = {pattern: sum(len(severed(words(byte_level_splitter(pattern), line))) for line in lines) for pattern in PATTERNS}
    assert cut["marks"] == 0 and cut["gpt2"] > 50_000


def test_a_tokenizer_that_transformers_would_make_anew_is_found(tmp_path):
    from wechsel_jax import demo

    tokenizer = load_tokenizer(demo.path("english-gpt2"))
    tokenizer.save_pretrained(tmp_path)
    for kind, alike in (("llama", True), ("qwen2", False)):
        (tmp_path / "config.json").write_text(json.dumps({"model_type": kind}))
        assert reloads_alike(tmp_path, tokenizer) == alike


def test_two_that_know_no_character_of_the_probe_are_alike(tmp_path):
    """A unigram model has no unknown token unless it is told one, and then raises for what it does not know."""
    backend = Tokenizer(models.Unigram([("a", -1.0), ("b", -2.0)]))
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend)
    tokenizer.save_pretrained(tmp_path)
    assert reloads_alike(tmp_path, tokenizer)
