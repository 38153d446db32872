"""Training with fastText: all the text arrives, nothing is half-written, and mistakes are named."""

import gzip
import lzma
import re
import sys

import fasttext
import pytest
from hypothesis import given
from hypothesis import strategies as st

from wechsel_jax.errors import UserError
from wechsel_jax.vectors import load_vectors, train_vectors
from wechsel_jax.vectors.training import words_of

SETTINGS = {"dim": 8, "epochs": 1, "buckets": 500, "min_count": 1, "subsampling": 1.0}


def test_every_word_of_every_file_is_counted(tmp_path):
    text = "Das Haus, das's war.\nletztes\n"
    (tmp_path / "a.txt").write_text(text * 40, encoding="utf-8")
    (tmp_path / "b.gz").write_bytes(gzip.compress((text * 40).encode()))
    (tmp_path / "c.xz").write_bytes(lzma.compress((text * 40 + "Schluß").encode()))
    output = tmp_path / "new" / "v.bin"
    summary = train_vectors([tmp_path / "a.txt", tmp_path / "b.gz", tmp_path / "c.xz"], output, **SETTINGS)
    vectors = load_vectors(output)
    counts = dict(zip(vectors.words, vectors.counts.tolist(), strict=True))
    # The last word of the last file is the one that an unflushed buffer would lose.
    assert counts == {
        "Das": 120,
        "Haus": 120,
        ",": 120,
        "das's": 120,
        "war": 120,
        ".": 120,
        "letztes": 120,
        "Schluß": 1,
        "</s>": 241,
    }
    assert summary == {"words": 9, "tokens": 841, "dim": 8}
    assert sorted(path.name for path in output.parent.iterdir()) == ["v.bin"]


def test_settings_reach_fasttext(tmp_path):
    (tmp_path / "a.txt").write_text("eins zwei drei\n" * 200)
    output = tmp_path / "v.bin"
    train_vectors(tmp_path / "a.txt", output, model="cbow", smallest_ngram=2, largest_ngram=4, **SETTINGS)
    arguments = fasttext.load_model(str(output)).f.getArgs()
    assert (arguments.dim, arguments.minn, arguments.maxn, arguments.bucket, arguments.minCount) == (8, 2, 4, 500, 1)
    assert arguments.model.name == "cbow"
    assert arguments.neg == 10


@given(st.text(st.characters(exclude_categories=["M", "Cs"], exclude_characters="\u200c\u200d")))
def test_words_follow_the_pattern(line):
    assert words_of(line) == re.findall(r"\w+(?:['’]\w+)*|[^\w\s]", line)


def test_marks_stay_in_their_words():
    assert words_of("हिन्दी भाषा, (नमस्ते!)") == ["हिन्दी", "भाषा", ",", "(", "नमस्ते", "!", ")"]
    assert words_of("u\u0308ber don't l’eau") == ["u\u0308ber", "don't", "l’eau"]


@pytest.mark.parametrize(
    ("content", "settings", "message"),
    [
        ("ein wort\n", {"min_count": 5}, r"a\.txt: 2 running words are too few: none of its words occurs 5 times"),
        ("\n\n", {}, r"a\.txt: no word in the text"),
        ("", {}, r"a\.txt: the file is empty"),
        ("hä\n".encode("latin-1"), {}, r"a\.txt: line 1: not UTF-8"),
        ("a b\n", {"model": "bow"}, "model 'bow'"),
        ("a b\n", {"dim": 0}, "dim 0"),
        ("a b\n", {"smallest_ngram": 6}, "n-grams of 6 to 5"),
    ],
)
def test_mistakes_leave_nothing_behind(tmp_path, content, settings, message):
    (tmp_path / "a.txt").write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(UserError, match=message):
        train_vectors(tmp_path / "a.txt", tmp_path / "v.bin", **{**SETTINGS, **settings})
    assert [path.name for path in tmp_path.iterdir()] == ["a.txt"]


def test_no_fasttext_names_the_extra(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "fasttext", None)
    (tmp_path / "a.txt").write_text("a b\n")
    with pytest.raises(UserError, match=r"pip install \"wechsel-jax\[train\]\""):
        train_vectors(tmp_path / "a.txt", tmp_path / "v.bin")
