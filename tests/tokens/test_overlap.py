"""The overlap of two vocabularies against a full search and against other tools; mappings, coverage and source pieces."""

import json
import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken

from tests.tiny_tokenizers import Read, every_kind, real_tokenizer, wordpiece
from wechsel_jax.errors import UserError
from wechsel_jax.initializers.plan import TransferPlan
from wechsel_jax.tokens import Vocabulary
from wechsel_jax.tokens.mapping import parse_mapping
from wechsel_jax.tokens.overlap import RULES, find_overlap, match, match_special
from wechsel_jax.tokens.pieces import source_pieces
from wechsel_jax.transfers.coverage import coverage


@pytest.fixture
def real(data_directory):
    def read(name: str) -> Read:
        return real_tokenizer(data_directory, name)

    return read


def test_special_tokens_match_by_string_then_by_role(real):
    gpt2, roberta, german = (real(name)[1] for name in ("gpt2", "roberta", "de/bpe-50k"))
    bert = Vocabulary.from_tokenizer(wordpiece())
    assert match_special(roberta, german)[:6].tolist() == [0, 1, 2, 3, 50264, -1]
    assert (match_special(roberta, german)[5:] == -1).all()
    assert match_special(gpt2, german)[:5].tolist() == [50256, -1, 50256, 50256, -1]
    assert [german.strings[i] for i in match_special(german, bert)[:5]] == ["<pad>", "<unk>", "<s>", "</s>", "<mask>"]
    assert german.strings[match_special(german, gpt2)[50256]] == "</s>"

    def chat(number):
        strings = ("<|im_end|>", f"<|{number}|>", "a")
        roles = (frozenset({"special"}), frozenset({"special"}), frozenset())
        return Vocabulary(strings, (b"", b"", b"a"), np.zeros(3, bool), roles, "byte_bpe")

    assert match_special(chat(1), chat(2)).tolist() == [0, -1, -1]


def test_an_end_of_text_is_no_turn_although_a_chat_model_calls_a_turn_its_bos():
    """As in SmolLM2 Instruct, whose <|endoftext|> has the role of the unknown token alone."""
    names = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")

    def vocabulary(strings, *roles):
        roles = tuple(frozenset({"special", *found}) for found in roles)
        return Vocabulary(strings, (b"",) * len(strings), np.zeros(len(strings), bool), roles, "byte_bpe")

    source = vocabulary(names, {"unk"}, {"bos"}, {"eos", "pad"})
    assert match_special(source, vocabulary(names[:1], {"bos", "eos"})).tolist() == [0]
    assert match_special(source, vocabulary(("<s>", "<pad>"), {"bos"}, {"pad"})).tolist() == [1, 2]


def synthetic(*tokens: str, kind: str = "sentencepiece", special: tuple[int, ...] = ()) -> Vocabulary:
    raw = tuple(bytes([int(t[3:5], 16)]) if t.startswith("<0x") else t.replace("▁", " ").encode() for t in tokens)
    roles = tuple(frozenset({"special"} if i in special else ()) for i in range(len(tokens)))
    return Vocabulary(tokens, raw, np.array([r.startswith(b" ") for r in raw], bool), roles, kind)


def test_match_prefers_what_is_alike():
    source = synthetic("<0x61>", "HAUS", "▁Haus", "haus", "▁haus", "a", "▁A", "<0xC3>")
    target = synthetic("haus", "▁haus", "Haus", "▁HAUS", "a", "<0x61>", "A", "<0xC3>", "z")
    assert match(source, target, "exact").tolist() == [3, 4, -1, -1, 5, 0, -1, 7, -1]
    assert match(source, target, "nospace").tolist() == [3, 4, 2, 1, 5, 0, 6, 7, -1]
    assert match(source, target, "fuzzy").tolist() == [3, 4, 1, 2, 5, 0, 5, 7, -1]
    with pytest.raises(UserError, match="unknown rule"):
        match(source, target, "loose")


PIECE = st.sampled_from(["a", "A", "▁a", "▁A", "▁", "▁▁", "▁▁a", "ä", "Ä", "▁Ä", "<0x61>", "<0xC3>", "b"])
PIECES = st.lists(PIECE, min_size=1, max_size=12)


@settings(max_examples=200, deadline=None)
@given(source=PIECES, target=PIECES, data=st.data())
def test_match_is_the_best_candidate_of_a_full_search(source, target, data):
    source = synthetic(*source, special=tuple(data.draw(st.sets(st.integers(0, len(source) - 1), max_size=2))))
    target = synthetic(*target)

    def bare(vocabulary, i):
        return vocabulary.bytes[i][int(vocabulary.word_start[i]) :]

    def lower(raw):
        try:
            return raw.decode().lower()
        except UnicodeDecodeError:
            return raw

    def same(rule, s, t):
        if rule == "fuzzy":
            return lower(bare(source, s)) == lower(bare(target, t))
        return bare(source, s) == bare(target, t) and (rule == "nospace" or source.word_start[s] == target.word_start[t])

    def order(s, t):
        byte = source.strings[s].startswith("<0x") != target.strings[t].startswith("<0x")
        return byte, source.word_start[s] != target.word_start[t], bare(source, s) != bare(target, t), s

    for rule in ("exact", "nospace", "fuzzy"):
        found = match(source, target, rule)
        assert found.dtype == np.int32 and found.shape == (len(target),)
        for t in range(len(target)):
            best = [s for s in range(len(source)) if not source.special[s] and same(rule, s, t)]
            assert found[t] == min(best, key=lambda s, t=t: order(s, t), default=-1)


# Measured once with FOCUS's canonical forms, which count the five special tokens, spelled alike, as matches; here these are
# matched by role, apart.
OVERLAP = {"de": (21403, 26299, 28285), "ar": (23487, 30556, 30688), "sw": (25243, 31478, 33544)}


@pytest.mark.slow
@pytest.mark.parametrize("language", OVERLAP)
def test_overlap_counts_are_those_measured_with_canonical_forms(real, language):
    source, target = real(f"{language}/bpe-50k")[1], real(f"{language}/xlmr-unigram-50k")[1]
    special = int((match_special(source, target) >= 0).sum())
    assert special == 5
    counts = [int((match(source, target, rule) >= 0).sum()) + special for rule in ("exact", "nospace", "fuzzy")]
    assert tuple(counts) == OVERLAP[language]


def test_a_vocabulary_matches_itself(real):
    for name in ("gpt2", "ar/xlmr-unigram-50k"):
        vocabulary = real(name)[1]
        ordinary = ~vocabulary.special
        assert (match(vocabulary, vocabulary)[ordinary] == np.flatnonzero(ordinary)).all()


EVERYTHING = [("exact", False), ("fuzzy", True), ("special", True)]
PAIRS = [("gpt2", "de/bpe-50k", EVERYTHING), ("roberta", "ar/xlmr-unigram-50k", [("fuzzy", False)])]


@pytest.mark.slow
@pytest.mark.parametrize(("source", "target", "asked"), PAIRS)
def test_parity_finds_what_deepfocus_finds(real, source, target, asked):
    focus = pytest.importorskip("deepfocus.focus")
    (source_tokenizer, known), (target_tokenizer, wanted) = real(source), real(target)
    for overlap, symbols in asked:
        options = symbols, overlap != "special", overlap == "fuzzy"
        shared, _ = focus.get_overlapping_tokens(target_tokenizer, source_tokenizer, *options)
        expected = np.full(len(wanted), -1)
        for token in shared.values():
            expected[token.target.id] = token.source[0].id
        found = find_overlap(known, wanted, overlap, symbols=symbols, parity="deepfocus")
        assert (expected >= 0).sum() > 500
        np.testing.assert_array_equal(found.source, expected)


def test_parity_finds_what_deepfocus_finds_for_wordpiece(real):
    focus = pytest.importorskip("deepfocus.focus")
    bert = wordpiece()
    added = [f"##{a}{b}" for a in "abcdefghijklm" for b in "nopqrstuvwxyz"]
    bert.add_tokens(added)
    german, vocabulary = real("de/bpe-50k")
    shared, _ = focus.get_overlapping_tokens(bert, german, False, True, False)
    known = Vocabulary.from_tokenizer(bert)
    found = find_overlap(vocabulary, known, parity="deepfocus").source
    assert {token.target.id: token.source[0].id for token in shared.values()} == {
        int(i): int(found[i]) for i in np.flatnonzero(found >= 0)
    }


def ofa_reference(source: list[str], target: list[str]) -> dict[int, int]:
    """METHODS' description of OFA's rule, written as a search."""
    last = {form: max(i for i, other in enumerate(source) if other == form) for form in source}
    found = {}
    for t, form in enumerate(target):
        if form in target[t + 1 :]:
            continue
        same = max((other for other in last if other.lower() == form.lower()), default=None)
        if form in last:
            found[t] = last[form]
        elif same is not None and last[same] != 0:
            found[t] = last[same]
    return found


FORMS = st.lists(st.sampled_from(["Ġa", "ĠA", "a", "A", "b", "Ã", "Ä", "é", "Ġ", "ĠĠ"]), min_size=1, max_size=8)


@settings(max_examples=200, deadline=None)
@given(source=FORMS, target=FORMS)
def test_ofa_keeps_the_last_duplicate_and_never_finds_token_zero(source, target):
    raw = [[token.replace("Ġ", " ").encode("latin-1") for token in side] for side in (source, target)]
    sides = [
        Vocabulary(tuple(s), tuple(r), np.array([x[:1] == b" " for x in r]), (frozenset(),) * len(s), "byte_bpe")
        for s, r in zip((source, target), raw, strict=True)
    ]
    decoded = [[text.decode(errors="replace") for text in side] for side in raw]
    found = find_overlap(*sides, "fuzzy", parity="ofa").source
    assert {i: int(s) for i, s in enumerate(found) if s >= 0} == ofa_reference(*decoded)


def test_every_token_names_the_tightest_rule_that_found_it():
    source = synthetic("<s>", "▁Haus", "haus", "▁12", "x", "hund", special=(0,))
    target = synthetic("▁Haus", "Haus", "HUND", "12", "y", "<s>", special=(5,))

    def rules(**options):
        found = find_overlap(source, target, **options)
        assert (found.shared == (found.rule != 0)).all()
        return [RULES[i] for i in found.rule], found.source.tolist()

    assert rules(overlap="special") == (["none"] * 5 + ["special"], [-1] * 5 + [0])
    assert rules() == (["exact", "none", "none", "none", "none", "special"], [1, -1, -1, -1, -1, 0])
    assert rules(symbols=True) == (["exact", "none", "none", "symbols", "none", "special"], [1, -1, -1, 3, -1, 0])
    assert rules(overlap="nospace")[0] == ["exact", "nospace", "none", "nospace", "none", "special"]
    assert rules(overlap="fuzzy") == (["exact", "nospace", "fuzzy", "nospace", "none", "special"], [1, 1, 5, 3, -1, 0])
    mapped = rules(mapping=[("x", "y"), ("hund", "<s>")])
    assert mapped == (["exact", "none", "none", "none", "mapped", "mapped"], [1, -1, -1, -1, 4, 5])
    assert find_overlap(source, target, mapping=[("x", "y")]).special.tolist() == [-1, -1, -1, -1, 4, 0]


def test_symbols_are_numbers_punctuation_signs_and_blanks():
    symbols = ["7", "½", "...", "€", "„", "▁", "▁▁", "\n", "▁(", "३"]
    words = ["a1", "ä", "▁x", "1a", "<0xC3>"]
    vocabulary = synthetic(*symbols, *words)
    found = find_overlap(vocabulary, vocabulary, "special", symbols=True)
    assert found.source.tolist() == [*range(len(symbols)), *[-1] * len(words)]


def test_an_extended_vocabulary_keeps_every_id():
    source = synthetic("<s>", "▁▁", "a", "▁▁", "b", special=(0,))
    target = synthetic("<s>", "▁▁", "a", "▁▁", "b", "c", special=(0,))
    assert find_overlap(source, target).source.tolist() == [0, 1, 2, 1, 4, -1]
    assert find_overlap(source, target).keeping(source).source.tolist() == [0, 1, 2, 3, 4, -1]
    mapped = find_overlap(source, target, mapping=[("b", "a"), ("b", "c")]).keeping(source)
    assert mapped.source.tolist() == [0, 1, 4, 3, 4, 4]
    assert [RULES[i] for i in mapped.rule] == ["special", "exact", "mapped", "exact", "exact", "mapped"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"overlap": "loose"}, "unknown; expected one of special"),
        ({"parity": "other"}, "unknown for the overlap"),
        ({"overlap": "nospace", "parity": "deepfocus"}, "no such rule"),
        ({"parity": "ofa", "symbols": True}, "no rule for symbols"),
        ({"mapping": [("a", "z")]}, "target tokenizer has no token 'z'"),
    ],
)
def test_what_cannot_be_asked_is_refused(options, message):
    vocabulary = synthetic("a", "")
    with pytest.raises(UserError, match=message):
        find_overlap(vocabulary, vocabulary, **options)


def byte_level(*tokens: str) -> Vocabulary:
    raw = tuple(token.encode() for token in tokens)
    strings = tuple(token.replace(" ", "Ġ").replace("ü", "Ã¼") for token in tokens)
    return Vocabulary(strings, raw, np.array([r[:1] == b" " for r in raw]), (frozenset(),) * len(raw), "byte_bpe")


def test_a_mapping_is_read_however_tokens_are_spelled():
    source = byte_level("a", ":", "::", ",", " für", "b:c", "x")
    target = synthetic("▁für", ":", "a:b", "c", ",", "y", "x:y")

    def parsed(*values):
        return parse_mapping(values, source, target)

    assert parsed() == []
    assert parsed("a:y") == [("a", "y")]
    assert parsed("a:y,x:c", "a:,") == [("a", "y"), ("x", "c"), ("a", ",")]
    assert parsed("Ġfür:▁für") == parsed("ĠfÃ¼r:▁für") == [("ĠfÃ¼r", "▁für")]
    assert parsed(":::") == [(":", ":")]
    assert parsed("b:c:a:b") == [("b:c", "a:b")]
    assert parsed(",:,") == [(",", ",")]
    assert parsed("x:x:y") == [("x", "x:y")]
    assert find_overlap(source, target, mapping=[("Ġfür", "▁für")]).source[0] == 4


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("a", "has no colon"),
        ("a:q", "the target tokenizer has no token 'q'"),
        ("q:a", "the source tokenizer has no token 'q'"),
        ("a:q:z", "no split at a colon"),
        ("::::", "can be read as"),
        ("a:y,x:y", "is mapped to 'a' already"),
    ],
)
def test_a_mapping_that_cannot_be_read_is_explained(value, message):
    source, target = synthetic("a", "x", ":", "::"), synthetic("y", "a:b", ":", "::")
    with pytest.raises(UserError, match=message) as error:
        parse_mapping([value], source, target)
    assert "\n" not in str(error.value)


def test_coverage_counts_every_token_once():
    source = synthetic("<s>", "▁Haus", "haus", "x", special=(0,))
    target = synthetic("<s>", "▁Haus", "Haus", "y", "z", "w", "", special=(0,))
    overlap = find_overlap(source, target, "nospace")
    has_vector = np.array([False, True, True, True, False, True, False])
    plan = TransferPlan.mixed(np.array([[3, 1]] * 7), np.array([[0.25, -0.75]] * 7))
    plan = plan.with_noise(~has_vector).with_copies(overlap.special)
    table = coverage(overlap, plan, source, target, has_vector)
    assert json.loads(json.dumps(table)) == table
    rows = {row["rule"]: row for row in table["rows"]}
    assert [row["rule"] for row in table["rows"]] == [*RULES[1:], "none"]
    assert table["tokens"] == 6 == sum(row["tokens"] for row in table["rows"])
    assert table["shared"] == 3 and sum(row["share"] for row in table["rows"]) == pytest.approx(1, abs=1e-5)
    assert rows["special"] | {"share": 0} == {
        "rule": "special", "tokens": 1, "share": 0, "with_vector": 0, "copied": 1, "mixed": 0, "noise": 0,
        "examples": [["<s>", "<s>"]],
    }  # fmt: skip
    assert rows["exact"]["examples"] == [["▁Haus", "▁Haus"]] and rows["exact"]["mixed"] == 1
    assert rows["nospace"]["examples"] == [["Haus", "▁Haus"]]
    assert [rows["none"][key] for key in ("tokens", "with_vector", "copied", "mixed", "noise")] == [3, 2, 0, 2, 1]
    assert rows["none"]["examples"] == [["y", "▁Haus"], ["z", None], ["w", "▁Haus"]]
    assert table["without_vector"] == table["noise"] == {"tokens": 1, "examples": ["z"]}
    bare = coverage(overlap, plan, source, target)
    assert bare["without_vector"] is None and bare["rows"][0]["with_vector"] is None
    few = [coverage(overlap, plan, source, target, examples=1, seed=seed)["rows"][-1]["examples"] for seed in range(9)]
    assert {len(drawn) for drawn in few} == {1} and len({str(drawn) for drawn in few}) > 1


def joined(vocabulary: Vocabulary, ids: np.ndarray) -> bytes:
    return b"".join(vocabulary.bytes[i] for i in ids)


@pytest.mark.slow
@pytest.mark.parametrize("source", ["gpt2", "de/bpe-50k", "sw/xlmr-unigram-50k"])
def test_pieces_of_real_tokens_are_their_text(real, source):
    tokenizer, known = real(source)
    for target in ("ar/bpe-50k", "de/xlmr-unigram-50k"):
        wanted = real(target)[1]
        pieces = source_pieces(tokenizer, known, wanted)
        assert len(pieces) == len(wanted) and all(ids.dtype == np.int32 for ids in pieces[:10])
        same = np.array([joined(known, ids) == raw for ids, raw in zip(pieces, wanted.bytes, strict=True)])
        text = np.array([word is not None for word in wanted.words()])
        empty = np.array([not len(ids) for ids in pieces])
        assert empty[wanted.special].all()
        if known.kind == "byte_bpe":
            # Also of tokens with half a character at an end.
            assert same[text].all() and same[~wanted.special].all() and not empty[text].any()
        else:
            # NFKC changes a few; the Swahili pieces lack the characters of others.
            assert same[text & ~empty].mean() > 0.99 and same.mean() > 0.8


@pytest.mark.slow
def test_a_token_that_the_source_has_is_one_piece(real):
    tokenizer, known = real("de/xlmr-unigram-50k")
    pieces = source_pieces(tokenizer, known, known)
    # Unigram writes the most probable pieces, which may be several; mostly it is the token itself.
    own = [ids.tolist() == [i] for i, ids in enumerate(pieces) if not known.special[i]]
    assert np.mean(own) > 0.95


@pytest.mark.parametrize("name", ["byte", "llama", "unigram", "wordpiece"])
def test_added_tokens_behind_special_ones_are_their_own_pieces(name):
    """As in Qwen's tokenizers, whose special tokens are not in the model's vocabulary."""
    tokenizer = wordpiece() if name == "wordpiece" else every_kind()[name]
    tokenizer.add_special_tokens({"extra_special_tokens": ["<first>", "<second>"]})
    tokenizer.add_tokens([AddedToken(text, normalized=False) for text in ("<a>", "zusatz", "für")])
    known = Vocabulary.from_tokenizer(tokenizer)
    pieces = source_pieces(tokenizer, known, known)
    for text in ("<a>", "zusatz", "für"):
        token_id = tokenizer.convert_tokens_to_ids(text)
        assert pieces[token_id].tolist() == [token_id], text
    assert not len(pieces[tokenizer.convert_tokens_to_ids("<first>")])


@pytest.mark.parametrize("name", ["byte", "byte-prefix", "llama", "gemma", "metaspace", "unigram"])
def test_pieces_keep_a_words_start_whatever_the_tokenizer_puts_before_a_text(name):
    tokenizer = every_kind()[name]
    known = Vocabulary.from_tokenizer(tokenizer)
    target = synthetic("▁Hund", "Hund", "und", "▁dog", "dog", "▁", "s", "<0xC3>", "<s>", "", "▁der▁Hund", special=(8,))
    pieces = source_pieces(tokenizer, known, target)
    texts = [joined(known, ids) for ids in pieces]
    half = b"\xc3" if known.kind == "byte_bpe" else b""
    assert texts == [b" Hund", b"Hund", b"und", b" dog", b"dog", b" ", b"s", half, b"", b"", b" der Hund"]


def test_names_of_special_tokens_are_text():
    tokenizer = every_kind()["byte"]
    known = Vocabulary.from_tokenizer(tokenizer)
    (ids,) = source_pieces(tokenizer, known, synthetic("<|end|>"))
    assert joined(known, ids) == b"<|end|>" and not known.special[ids].any()


def test_wordpiece_writes_the_inside_of_words_with_its_marks():
    tokenizer = wordpiece()
    known = Vocabulary.from_tokenizer(tokenizer)
    target = synthetic("▁hund", "und", "▁u", ";", "ж", "▁")
    pieces = [[known.strings[i] for i in ids] for ids in source_pieces(tokenizer, known, target)]
    assert "".join(pieces[0]).replace("##", "") == "hund" and not pieces[0][0].startswith("##")
    assert all(piece.startswith("##") for piece in pieces[1]) and "".join(pieces[1]).replace("##", "") == "und"
    assert pieces[2] == ["u"] and pieces[3] == [";"] and pieces[5] == []
    assert all(piece.startswith("##") for piece in pieces[4])


@pytest.mark.slow
def test_a_large_vocabulary_takes_seconds():
    generator = np.random.default_rng(0)
    letters = np.array(list("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOP▁"))

    def large(size):
        return synthetic(*("".join(row) for row in letters[generator.integers(0, len(letters), (size, 4))]))

    source, target = large(128_000), large(32_000)
    start = time.process_time()
    find_overlap(source, target, "fuzzy", symbols=True)
    assert time.process_time() - start < 5
