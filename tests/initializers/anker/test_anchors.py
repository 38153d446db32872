"""Which pairs of tokens become anchors."""

import itertools

import numpy as np

from wechsel_jax.initializers.anker.anchors import RULES, Anchors, Candidates, choose_anchors, find_candidates
from wechsel_jax.tokens import Vocabulary


def vocabulary(*tokens: str) -> Vocabulary:
    """The first is special; "Ġ" stands for a space."""
    raw = tuple(token.replace("Ġ", " ").encode() for token in tokens)
    roles = tuple(frozenset({"eos"} if i == 0 else ()) for i in range(len(tokens)))
    return Vocabulary(tokens, raw, np.array([token.startswith("Ġ") for token in tokens]), roles, "byte_bpe")


SOURCE = vocabulary("<end>", "Ġhouse", "house", "ĠHouse", "Ġwas", "Ġdie", ",", "7", "Ġred", "ĠRed")
TARGET = vocabulary("<end>", "ĠHaus", "haus", "Ġwar", "Ġdie", ",", "7", "Ġrot", "ĠRot", "Haus")


def names(found) -> dict:
    rules = [RULES[rule] for rule in found.rule]
    pairs = [(SOURCE.strings[s], TARGET.strings[t]) for s, t in zip(found.source, found.target, strict=True)]
    return dict(zip(pairs, rules, strict=True))


def test_a_dictionary_is_spelled_in_both_cases_with_and_without_word_start():
    found = names(find_candidates(SOURCE, TARGET, [("house", "Haus"), ("red", "rot"), ("was", "war"), ("die", "sterben")]))
    assert found == {
        ("Ġhouse", "ĠHaus"): "dictionary",
        ("house", "Haus"): "dictionary",
        ("house", "haus"): "dictionary",
        ("ĠHouse", "ĠHaus"): "dictionary",
        ("Ġwas", "Ġwar"): "dictionary",
        ("Ġred", "Ġrot"): "dictionary",
        ("ĠRed", "ĠRot"): "dictionary",
        ("Ġdie", "Ġdie"): "equal",
        (",", ","): "equal",
        ("7", "7"): "equal",
    }


def test_a_byte_that_stands_in_for_a_character_is_no_anchor_of_one_that_is_there():
    """Llama's tokenizers have <0x2C> before ",", which alone is what a text is cut into."""
    strings = ("</s>", "<0x2C>", "<0x41>", ",", "▁a")
    raw = (b"", b",", b"A", b",", b" a")
    roles = tuple(frozenset({"eos"} if i == 0 else ()) for i in range(len(strings)))
    fallback = Vocabulary(strings, raw, np.array([False, False, False, False, True]), roles, "sentencepiece_bpe")
    found = find_candidates(fallback, vocabulary("<end>", ",", "A"), [])
    assert {fallback.strings[i]: j for i, j in zip(found.source, found.target.tolist(), strict=True)} == {"<0x41>": 2, ",": 1}


def test_wordpieces_marks_are_those_that_no_space_is_before():
    """Its "," stands for both, and texts mostly have one without a space; letters and digits begin words."""
    strings = ("[CLS]", ",", "7", "##,", "##7", "a")
    raw = tuple(b"" if i == 0 else s[2:].encode() if s.startswith("##") else f" {s}".encode() for i, s in enumerate(strings))
    roles = tuple(frozenset({"cls"} if i == 0 else ()) for i in range(len(strings)))
    target = Vocabulary(strings, raw, np.array([one.startswith(b" ") for one in raw]), roles, "wordpiece")
    source = vocabulary("<end>", ",", "Ġ,", "7", "Ġ7", "Ġa")
    found = find_candidates(source, target, [])
    named = {(source.strings[i], strings[j]) for i, j in zip(found.source, found.target, strict=True)}
    assert named == {(",", ","), ("7", "##7"), ("Ġ7", "7"), ("Ġa", "a")}


def test_where_no_spaces_are_written_a_token_translates_the_start_of_a_word():
    characters = [chr(0x4E00 + number) for number in range(20)]
    unspaced = vocabulary("<end>", *characters, f"Ġ{characters[2]}")
    entries = [*zip(("house", "red", "was"), characters, strict=False), *(("unknown", one) for one in characters[3:])]

    def pairs(source, target, dictionary, turned=False):
        found = find_candidates(source, target, dictionary)
        named = zip(found.source, found.target, strict=True)
        return {(source.strings[s], target.strings[t])[:: -1 if turned else 1] for s, t in named}

    house, red, was = characters[:3]
    expected = {
        ("Ġhouse", house),
        ("house", house),
        ("ĠHouse", house),
        ("Ġred", red),
        ("ĠRed", red),
        ("Ġwas", was),
        ("Ġwas", f"Ġ{was}"),
    }
    assert pairs(SOURCE, unspaced, entries) == expected
    assert pairs(unspaced, SOURCE, [entry[::-1] for entry in entries], turned=True) == expected
    # A few words are no language, nor are as many at starts as inside; of two that write no spaces neither has starts.
    assert pairs(SOURCE, unspaced, entries[:3]) == {("house", house), ("Ġwas", f"Ġ{was}")}
    spaced = vocabulary("<end>", *characters, *(f"Ġ{one}" for one in characters[:10]))
    assert ("Ġhouse", house) not in pairs(SOURCE, spaced, entries)
    both = pairs(unspaced, unspaced, [*itertools.pairwise(characters)])
    assert (house, red) in both and (f"Ġ{was}", characters[3]) not in both


def test_without_a_dictionary_equal_bytes_remain_and_special_tokens_never_do():
    found = find_candidates(SOURCE, TARGET, [])
    assert set(names(found)) == {("Ġdie", "Ġdie"), (",", ","), ("7", "7")}
    assert set(found.group.tolist()) == {-1}


def test_spellings_of_one_word_are_one_group():
    found = find_candidates(SOURCE, TARGET, [("red", "rot"), ("Red", "Rot"), ("house", "Haus")])
    groups = dict(zip(names(found), found.group.tolist(), strict=True))
    assert groups["Ġred", "Ġrot"] == groups["ĠRed", "ĠRot"] != groups["Ġhouse", "ĠHaus"]


def candidates(*pairs: tuple[int, int]) -> Candidates:
    source, target = np.array(pairs, np.int64).T
    return Candidates(source, target, np.zeros(len(pairs), np.int8), np.arange(len(pairs)))


def test_pairs_of_like_rank_come_first_and_no_token_twice():
    counts = np.array([1000, 500, 100, 10, 0])
    chosen = choose_anchors(candidates((0, 1), (0, 0), (1, 1), (2, 3), (2, 0), (3, 3)), counts, counts)
    assert list(zip(chosen.source.tolist(), chosen.target.tolist(), strict=True)) == [(0, 0), (1, 1), (3, 3)]


def test_what_does_not_occur_is_no_anchor_and_the_frequent_ones_are_kept():
    counts = np.array([1000, 500, 100, 10, 0])
    pairs = candidates((4, 4), (3, 3), (2, 2), (0, 0))
    assert choose_anchors(pairs, counts, counts).source.tolist() == [0, 2, 3]
    assert choose_anchors(pairs, counts, counts, least_count=11).source.tolist() == [0, 2]
    assert choose_anchors(pairs, counts, counts, most=1).source.tolist() == [0]


def test_joined_anchors_leave_out_tokens_that_have_a_pair():
    first = Anchors(*(np.array(x, np.int32) for x in ([1, 2], [5, 6], [0, 1])))
    more = Anchors(*(np.array(x, np.int32) for x in ([2, 3, 4], [7, 6, 8], [2, 2, 2])))
    both = first.joined(more)
    assert (both.source.tolist(), both.target.tolist()) == ([1, 2, 4], [5, 6, 8])
    assert both.counts() == {"dictionary": 1, "equal": 1, "learned": 1}
