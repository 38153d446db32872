"""Training with fastText: all the text arrives, nothing is half-written, and mistakes are named."""

import gzip
import json
import lzma
import re
import sys
from collections import Counter
from pathlib import Path

import fasttext
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from tests.full_disk import no_file_above
from wechsel_jax.cli import main
from wechsel_jax.errors import UserError
from wechsel_jax.files import remove_leftovers, remove_unfinished
from wechsel_jax.tokens import encoding, load_tokenizer
from wechsel_jax.vectors import load_vectors, train_vectors
from wechsel_jax.vectors.subwords import native_vectors, native_word
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


def test_json_lines_tables_and_patterns_are_read(tmp_path):
    record = {"url": "http://a", "body": "Das Haus.\nEin Haus"}
    (tmp_path / "a.jsonl").write_text(f"{json.dumps(record)}\n" * 40)
    pq.write_table(pa.table({"body": ["Das Meer"] * 40}), tmp_path / "b.parquet")
    (tmp_path / "c.txt").write_text("Haus\n" * 40)
    files = [tmp_path / "*.jsonl", tmp_path / "b.parquet", tmp_path / "c.*"]
    summary = train_vectors(files, tmp_path / "v.bin", text_field="body", **SETTINGS)
    vectors = load_vectors(tmp_path / "v.bin")
    counts = dict(zip(vectors.words, vectors.counts.tolist(), strict=True))
    assert counts == {"Das": 80, "Haus": 120, ".": 40, "Ein": 40, "Meer": 40, "</s>": 160} and summary["tokens"] == 320


def test_what_a_killed_process_leaves_is_removed(tmp_path, monkeypatch):
    (tmp_path / "a.txt").write_text("a b\n")

    def killed(corpus, **_):
        (left,) = tmp_path.glob(".v.bin.*")
        remove_leftovers(tmp_path / "v.bin")
        assert left.exists() and Path(corpus).exists()  # while the process that makes it lives
        remove_unfinished()
        assert not left.exists()
        raise KeyboardInterrupt

    monkeypatch.setattr(fasttext, "train_unsupervised", killed)
    with pytest.raises(KeyboardInterrupt):
        train_vectors(tmp_path / "a.txt", tmp_path / "v.bin", **SETTINGS)


def test_what_somebody_writes_there_meanwhile_stays(tmp_path, monkeypatch):
    (tmp_path / "a.txt").write_text("a b\n" * 20)
    output, train = tmp_path / "v.bin", fasttext.train_unsupervised

    def slowly(*arguments, **options):
        output.write_text("mine")
        return train(*arguments, **options)

    monkeypatch.setattr(fasttext, "train_unsupervised", slowly)
    with pytest.raises(SystemExit):
        main(["vectors", "train", f"--input={tmp_path / 'a.txt'}", f"--output={output}", "--dim=2", "--min_count=1"])
    assert output.read_text() == "mine" and len(list(tmp_path.iterdir())) == 2


def test_a_full_disk_is_named_and_leaves_nothing(tmp_path):
    (tmp_path / "a.txt").write_text("a b\n")
    with no_file_above(4096), pytest.raises(UserError, match=r"v\.bin: cannot be written whole; free some space"):
        train_vectors(tmp_path / "a.txt", tmp_path / "v.bin", **SETTINGS)
    assert [path.name for path in tmp_path.iterdir()] == ["a.txt"]


def test_too_little_memory_is_one_line(tmp_path, monkeypatch):
    def full(*_, **__):
        raise MemoryError("std::bad_alloc")

    (tmp_path / "a.txt").write_text("a b\n")
    monkeypatch.setattr(fasttext, "train_unsupervised", full)
    with pytest.raises(UserError, match="no memory for the words and 500 buckets, 8 numbers each; ask for fewer"):
        train_vectors(tmp_path / "a.txt", tmp_path / "v.bin", **SETTINGS)
    assert [path.name for path in tmp_path.iterdir()] == ["a.txt"]


def test_text_without_spaces_is_said(tmp_path, capfd):
    """Rather than that its sentences become the words."""
    for name, line in (("cut", "ภาษา ไทย เขียน ติด กัน\n"), ("whole", "ภาษาไทยเขียนติดกันไม่มีช่องว่าง\n")):
        (tmp_path / name).write_text(line * 40, encoding="utf-8")
        train_vectors(tmp_path / name, tmp_path / f"{name}.bin", dim=4, epochs=1, buckets=100, verbose=1)
        assert ("between two spaces" in capfd.readouterr().err) == (name == "whole")


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
        ("a b\n", {"dim": 10_000_000}, "dim 10000000, threads as many as processors; expected at most 10000 and 1024"),
        ("a b\n", {"threads": 1_000_000}, "threads 1000000; expected at most"),
        ("a b\n", {"buckets": 2**31}, "2147483648 buckets; expected at most 2147483647 each"),
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
    with pytest.raises(UserError, match=r"fasttext: not installed; .* `pip install 'wechsel-jax\[vectors\]'`"):
        train_vectors(tmp_path / "a.txt", tmp_path / "v.bin")


TEXT = [
    " Ein Haus am Meer, und  ein Schiff!",
    "",
    "Mwalimu alisema: habari za asubuhi 😀",
    "größer\u0085naïve\u00a0x",
    "ab" * 40,
] * 30


@pytest.mark.slow
@pytest.mark.parametrize("name", ["roberta", "de/xlmr-unigram-50k", "sw/bpe-50k"])
def test_tokens_are_counted_as_deepfocus_writes_them(data_directory, tmp_path, monkeypatch, name):
    """deepfocus 1.0.1 trains on " ".join(tokenizer.tokenize(line)), and takes no token that is not in the model."""
    directory = data_directory / "tokenizers" / name
    tokenizer = load_tokenizer(directory)
    (tmp_path / "a.txt").write_text("\n".join(TEXT), encoding="utf-8")
    monkeypatch.setattr(encoding, "_GROUP_CHARACTERS", 100)
    monkeypatch.setattr(encoding, "GROUP_TEXTS", 7)
    settings = {**SETTINGS, "min_count": 2, "smallest_ngram": 3, "largest_ngram": 6}
    summary = train_vectors(tmp_path / "a.txt", tmp_path / "v.bin", tokenizer=directory, **settings)
    expected = Counter(token for line in TEXT for token in tokenizer.tokenize(line))
    vectors = load_vectors(tmp_path / "v.bin")
    counts = dict(zip(vectors.words, vectors.counts.tolist(), strict=True))
    assert counts.pop("</s>") == 120
    # What the tokenizer does not know is written as the text has it there, as its name here.
    unknown = {token for token in expected if tokenizer.convert_tokens_to_ids(token) == tokenizer.unk_token_id}
    assert counts.pop(tokenizer.unk_token, 0) == sum(expected[token] for token in unknown)
    assert counts == {token: count for token, count in expected.items() if count >= 2 and token not in unknown}
    assert summary["tokens"] == sum(expected.values())
    model = fasttext.load_model(str(tmp_path / "v.bin"))
    strings = tokenizer.convert_ids_to_tokens(range(len(tokenizer)))
    found = native_vectors(strings, vectors)
    known = np.array([string in counts for string in strings])
    known |= np.array([string in ("</s>", tokenizer.unk_token) and string in model for string in strings])
    np.testing.assert_array_equal(found.any(axis=1), known)
    wanted = np.stack([model[strings[i]] for i in np.flatnonzero(known)])
    np.testing.assert_allclose(found[known], wanted, rtol=0, atol=1e-6)


def test_tokens_that_fasttext_would_cut_are_one_word(tmp_path):
    """A vocabulary with tokens for blanks, for their escapes and for strange spaces."""
    strings = ["\t", " ", "\u241b", "\u241b\u2409", "\u0085", "\u00a0", "\u3000", "a", "b", "\x00", "\x0b\x0c"]
    backend = Tokenizer(models.BPE(vocab={"\t": 0, "a": 1, "b": 2, " ": 3, "\u0085": 4}, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.Split("a", "isolated")
    (tmp_path / "a.txt").write_text("a\tb b\u0085a\n" * 50)
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend)
    assert train_vectors(tmp_path / "a.txt", tmp_path / "v.bin", tokenizer=tokenizer, **SETTINGS)["tokens"] == 350
    vectors = load_vectors(tmp_path / "v.bin")
    counts = dict(zip(vectors.words, vectors.counts.tolist(), strict=True))
    assert {string: counts[native_word(string)] for string in ("\t", " ", "a", "b", "\u0085")} == {
        "\t": 50,
        " ": 50,
        "a": 100,
        "b": 100,
        "\u0085": 50,
    }
    assert len(counts) == 6 and native_vectors(["\t", "", "x"], vectors).any(axis=1).tolist() == [True, False, False]
    words = [native_word(string) for string in strings]
    assert len(set(words)) == len(strings) and not any(re.search(r"[ \n\r\t\v\f\0]", word) for word in words)


@given(st.text("a\t \u241b\u2409\u2420", max_size=4), st.text("a\t \u241b\u2409\u2420", max_size=4))
def test_words_of_different_tokens_differ(one, other):
    assert (native_word(one) == native_word(other)) == (one == other)


def test_a_tokenizer_that_is_not_there_is_named(tmp_path):
    (tmp_path / "a.txt").write_text("a b\n")
    with pytest.raises(UserError, match="nowhere: no such file or directory"):
        train_vectors(tmp_path / "a.txt", tmp_path / "v.bin", tokenizer=tmp_path / "nowhere")
    assert [path.name for path in tmp_path.iterdir()] == ["a.txt"]
