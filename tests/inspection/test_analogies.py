"""Word analogies, question by question those of gensim's `evaluate_word_analogies`; and Table 4's steps."""

import gzip
import math

import numpy as np
import pytest
from gensim.models import KeyedVectors
from gensim.test.utils import datapath

from wechsel_jax import demo, load_vectors
from wechsel_jax.errors import UserError
from wechsel_jax.initializers.transforms import absorption, shuffle, sinusoidal_positions, standardize
from wechsel_jax.inspection.analogies import VARIANTS, answer, counted, read_questions, with_steps

FILE = datapath("questions-words.txt")


@pytest.fixture(scope="module")
def questions():
    return read_questions(FILE)


@pytest.fixture(scope="module")
def vectors():
    """Frequent English words of the bundled vectors."""
    found = load_vectors(demo.path("english.vectors.npz"))
    return tuple(found.words[:3000]), found.rows(np.arange(3000))


def gensims(words, table, file=FILE):
    keyed = KeyedVectors(table.shape[1])
    keyed.add_vectors(list(words), table.astype(np.float32))
    sections = keyed.evaluate_word_analogies(file, restrict_vocab=len(words))[1]
    return {one["section"]: one for one in sections}


def assert_is_gensims(answers, theirs):
    for section, one in theirs.items():
        mine = [found for found in answers if section in (found.question.section, "Total accuracy")]
        for side, right in (("correct", True), ("incorrect", False)):
            words = [tuple(map(str.upper, found.question.words)) for found in mine if found.correct == right]
            assert words == one[side], (section, side)


def test_every_answer_is_gensims(vectors, questions):
    words, table = vectors
    answers = answer(words, table, questions)
    theirs = gensims(words, table)
    assert_is_gensims(answers, theirs)
    total = counted(answers, len(questions))
    assert total.correct == len(theirs["Total accuracy"]["correct"]) > 10 and total.asked == 19544
    assert total.total == total.correct + len(theirs["Total accuracy"]["incorrect"]) > 200
    assert {name: one[0] for name, one in total.sections.items()} == {
        name: len(one["correct"]) for name, one in theirs.items() if name in total.sections
    }


@pytest.mark.parametrize("steps", VARIANTS[1:], ids=" ".join)
def test_every_answer_after_every_step_is_gensims(vectors, questions, steps):
    words, table = vectors
    changed = with_steps(table, steps, seed=3)
    assert changed.dtype == np.float32
    assert_is_gensims(answer(words, changed, questions), gensims(words, changed))


def test_spellings_of_a_questions_words_are_no_answers(tmp_path):
    """Two spellings of one word lie next to each other, and in front of the answer."""
    generator = np.random.default_rng(0)
    words = ["King", "man", "woman", "Queen", "king", "KING", "Man", "queen", "other"]
    table = generator.standard_normal((9, 12)).astype(np.float32)
    table[3] = table[0] - table[1] + table[2] + 0.3 * generator.standard_normal(12)
    table[[4, 5]] = table[3] + 0.01 * generator.standard_normal((2, 12))  # nearer than the answer's own spelling may be
    table[6], table[7] = table[3] + 0.02, table[3] + 0.05
    file = tmp_path / "questions.txt"
    file.write_text(": family\nman king woman queen\nKING queen MAN woman\nman king woman unknown\n", encoding="utf-8")
    answers = answer(words, table, read_questions(file))
    assert_is_gensims(answers, gensims(words, table, str(file)))
    assert len(answers) == 2 and answers[0].correct and answers[0].word in ("Queen", "queen")
    assert answer(["a"], table[:1], read_questions(file)) == []


def test_a_vocabulary_of_the_question_alone_has_no_answer(tmp_path):
    file = tmp_path / "questions.txt"
    file.write_text(": one\na b c a\n", encoding="utf-8")
    (only,) = answer(["a", "b", "c"], np.eye(3, dtype=np.float32), read_questions(file))
    assert only.word is None and not only.correct


def test_steps_are_those_of_table_4(vectors):
    table = vectors[1][:500]
    size, dimension = table.shape
    added = with_steps(table, ("positions",), length=30, seed=1) - table
    rows = sinusoidal_positions(30, dimension)
    # Each word has one row of P, each row about as many words.
    places = np.abs(added[:, None] - rows).sum(axis=2).argmin(axis=1)
    np.testing.assert_allclose(added, rows[places], atol=2e-6)
    assert np.bincount(places, minlength=30).min() > 3
    stretched = with_steps(table, ("stretched_positions",), length=30, seed=1) - table
    factor = table.astype(float).std(ddof=1) / math.sqrt(2 / (size + dimension))
    np.testing.assert_allclose(stretched, factor * rows[places], rtol=1e-5, atol=1e-5 * factor)
    np.testing.assert_array_equal(with_steps(table, ("elements",), seed=2), shuffle(table, "elements", seed=2))
    both = with_steps(table, ("pretrained_xavier", "scaled"))
    np.testing.assert_allclose(both, standardize(table, "pretrained_xavier") * math.sqrt(dimension), rtol=1e-6)
    assert absorption(both)["sd"] == pytest.approx(math.sqrt(2 * dimension / (size + dimension)), rel=1e-4)
    with pytest.raises(ValueError, match="unknown step"):
        with_steps(table, ("turned",))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a b c d\n", "line 1: has no section above it"),
        (": one\na b c d\na b c\n", "line 3: holds 3 words, not four"),
        (": one\n", "holds no question"),
    ],
)
def test_what_is_no_question_is_one_line(tmp_path, text, message):
    file = tmp_path / "questions.txt.gz"
    file.write_bytes(gzip.compress(text.encode()))
    with pytest.raises(UserError, match=f"^{file}: {message}.*; expected a file of analogies"):
        read_questions(file)
