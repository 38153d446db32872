"""Trans-Tokenization: the authors' package's rows, the loops of fast_align, and plain loops over text."""

import dataclasses
import itertools
import json
from pathlib import Path

import numpy as np
import pytest
from tokenizers import Tokenizer

from tests.tiny_tokenizers import LINES, every_kind, wrap
from wechsel_jax.aligner import DiagonalSettings, align_diagonal
from wechsel_jax.errors import UserError
from wechsel_jax.initializers import Side
from wechsel_jax.initializers import trans_tokenization as module
from wechsel_jax.initializers.trans_tokenization import Translations, find_translations, trans_tokenization
from wechsel_jax.records import work
from wechsel_jax.tokens import Vocabulary
from wechsel_jax.tokens.overlap import find_overlap
from wechsel_jax.tokens.pieces import source_pieces

# What trans-tokenizers 0.1.4 makes of a table of words, see make_trans_tokenization.
PACKAGE = json.loads(Path(__file__).with_name("trans_tokenization.json").read_text(encoding="utf-8"))
SOURCE = ["das haus ist klein", "das haus", "das buch ist das buch", "ein buch", "klein ist ein haus nicht"]
TARGET = ["the house is small", "the house", "the book is the book", "a book", "a house is not that small"]


@dataclasses.dataclass(frozen=True)
class Pair:
    """The package's two tokenizers and what the method takes of them."""

    source: Side
    target: Side
    options: dict
    words: Translations


@pytest.fixture(scope="module")
def pair() -> Pair:
    roles = {"unk_token": "<unk>", "bos_token": "<s>", "eos_token": "</s>"}
    old, new = (wrap(Tokenizer.from_str(json.dumps(PACKAGE[name])), **roles) for name in ("old", "new"))
    source, target = Vocabulary.from_tokenizer(old), Vocabulary.from_tokenizer(new)
    words = [
        [tuple(tokenizer.convert_tokens_to_ids(row[side].split("—"))) for row in PACKAGE["table"]]
        for side, tokenizer in enumerate((old, new))
    ]
    counts = np.array([row[2] for row in PACKAGE["table"]]) + 0.7
    options = {"overlap": find_overlap(source, target, "special"), "pieces": source_pieces(old, source, target)}
    return Pair(Side(source), Side(target), options, Translations(*words, counts))


def named(pair: Pair, plan) -> dict[str, dict[str, float]]:
    """The weights of each mixed row by the tokens' spellings."""
    strings, rows = pair.source.vocabulary.strings, {}
    for row in np.flatnonzero(plan.is_mixed):
        used = plan.weights[row] > 0
        named = zip(plan.neighbors[row][used], plan.weights[row][used], strict=True)
        rows[pair.target.vocabulary.strings[row]] = {strings[i]: float(weight) for i, weight in named}
    return rows


def test_the_rows_are_the_packages(pair):
    plan = trans_tokenization(pair.source, pair.target, translations=pair.words, **pair.options)
    plan.validate(len(pair.source.vocabulary))
    rows = named(pair, plan)
    assert rows.keys() == PACKAGE["rows"].keys() and len(rows) > 40
    assert sum(len(weights) > 2 for weights in rows.values()) > 10
    for token, weights in PACKAGE["rows"].items():
        assert rows[token] == pytest.approx(weights, abs=1e-6), token
    assert (np.diff(plan.weights, axis=1) <= 0).all()
    assert plan.counts()["copied"] == 3


def test_words_that_were_aligned_seldom_say_nothing(pair):
    told = []
    many = trans_tokenization(pair.source, pair.target, translations=pair.words, **pair.options, notes=told.append)
    few = trans_tokenization(pair.source, pair.target, translations=pair.words, **pair.options, least_count=58)
    assert told[0].startswith("21 pairs of words were aligned 10 times or more.")
    row = pair.target.vocabulary.strings.index("▁der")
    assert many.weights[row].any() and named(pair, few) != named(pair, many)
    with pytest.raises(UserError, match="no pair of words was aligned 101 times; expected more parallel text, or a smaller"):
        trans_tokenization(pair.source, pair.target, translations=pair.words, **pair.options, least_count=101)


def test_wide_rows_keep_the_most_probable(pair, monkeypatch):
    whole = named(pair, trans_tokenization(pair.source, pair.target, translations=pair.words, **pair.options))
    monkeypatch.setattr(module, "_MOST", 2)
    cut = named(pair, trans_tokenization(pair.source, pair.target, translations=pair.words, **pair.options))
    assert max(map(len, whole.values())) > 2 == max(map(len, cut.values()))
    for token, weights in cut.items():
        largest = sorted(whole[token].values())[-2:]
        assert sorted(weights.values()) == pytest.approx([each / sum(largest) for each in largest], abs=1e-6)


def by_hand(source: list[list], target: list[list]) -> dict[tuple, tuple[float, float]]:
    """fast_align -I 7 -p, as its loops have it: {(source word, target word): (count, probability)}, without the empty word."""
    table, counts = {}, {}
    for _ in range(6):
        counts = {}
        for one, other in zip(source, target, strict=True):
            for word in other:
                scores = {}
                for place, known in enumerate([None, *one]):
                    scores[place, known] = table.get((known, word), 1e-9) / (len(one) + 1)
                for (_, known), score in scores.items():
                    counts[known, word] = counts.get((known, word), 0.0) + score / sum(scores.values())
        totals = {}
        for (known, _), count in counts.items():
            totals[known] = totals.get(known, 0.0) + count
        table = {key: count / totals[key[0]] for key, count in counts.items()}
    return {key: (count, table[key]) for key, count in counts.items() if key[0] is not None}


def test_the_counts_are_those_of_fast_aligns_first_model():
    source, target = ([line.split() for line in lines] for lines in (SOURCE, TARGET))
    expected = by_hand(source, target)
    spelled, flat = [], []
    for side in (source, target):
        numbers = {}
        flat += [[numbers.setdefault(word, len(numbers)) for line in side for word in line], np.cumsum([0, *map(len, side)])]
        spelled.append(list(numbers))
    model = DiagonalSettings(iterations=6, null=None, tension=0.0, fit_tension=False, alpha=0.0)
    found = align_diagonal(*(np.asarray(each) for each in flat), model)
    counts = {
        (spelled[0][i], spelled[1][j]): count for (i, j), count in zip(found.entries, found.counts, strict=True) if i >= 0
    }
    assert counts == pytest.approx({key: count for key, (count, _) in expected.items()}, rel=1e-9)
    # What the empty word has taken is not there, and all of it together are the target words.
    assert found.counts.sum() == pytest.approx(sum(map(len, target))) and (found.entries[:, 0] == -1).any()


@pytest.fixture(scope="module")
def kinds():
    return every_kind()


@pytest.mark.parametrize("kind", ["byte", "llama", "gemma", "unigram", "wordpiece"])
def test_translations_of_text_are_those_of_its_words(kinds, kind):
    """Words are runs of letters here, whatever the tokens; so the model of words, by hand, gives the same numbers."""
    tokenizer = kinds[kind]
    with work.counted() as told:
        found = find_translations(tokenizer, tokenizer, SOURCE, TARGET)
    assert told.text_bytes == sum(len(text.encode()) for text in (*SOURCE, *TARGET))
    spelled = [[tokenizer.decode(list(word)).strip() for word in side] for side in found[:2]]
    cut = [
        [[tuple(word) for word in words] for words in map(list, module._words(tokenizer, lines))] for lines in (SOURCE, TARGET)
    ]
    # A space may be a token, and is a word of its own then.
    texts = [[text for word in words if (text := tokenizer.decode(list(word)).strip())] for words in cut[0]]
    assert texts == [line.split() for line in SOURCE]
    expected = by_hand(*cut)
    best = {}
    for (one, _), (_, probability) in expected.items():
        best[one] = max(best.get(one, 0), probability)
    kept = {key: count for key, (count, probability) in expected.items() if probability >= best[key[0]] ** 4 * (1 - 1e-9)}
    made = dict(zip(zip(*found[:2], strict=True), found.counts, strict=True))
    assert made == pytest.approx(kept, rel=1e-6) and 0 < len(kept) < len(expected)
    assert "haus" in spelled[0]


def test_a_word_is_a_run_of_letters(kinds):
    text = "Häuser (much); 日本語 हिन्दी 12ab don't"
    for kind in ("byte", "llama", "wordpiece"):
        (words,) = module._words(kinds[kind], [text])
        assert [token for word in words for token in word] == kinds[kind].encode(text, add_special_tokens=False)
    joined = [
        tuple(kinds["byte"].decode(list(word)).strip() for word in words) for words in module._words(kinds["byte"], [text])
    ]
    assert {"Häuser", "much", "日本語", "हिन्दी", "1", "2", "ab", "don", "'t"} <= {*joined[0]}


def test_every_token_of_a_text_is_in_one_word(kinds):
    for tokenizer, line in itertools.product(kinds.values(), LINES[:3]):
        (words,) = module._words(tokenizer, [line])
        assert [token for word in words for token in word] == tokenizer.encode(line, add_special_tokens=False)
