"""Files of whole words: gensim as the oracle, every format told by its content, every mistake named with its line."""

import bz2
import gzip
import lzma
import struct

import fasttext
import numpy as np
import pytest
from gensim.models import KeyedVectors
from hypothesis import given, settings
from hypothesis import strategies as st

from wechsel_jax.errors import UserError
from wechsel_jax.vectors import load_vectors, save_vectors, word_records
from wechsel_jax.vectors.word_vectors import PlainVectors

WORDS = ["the", "Straße", "中国", "दुनिया", "a_b", "l'eau", "3,5", "😀"]


@pytest.fixture(scope="module")
def keyed():
    vectors = KeyedVectors(vector_size=7)
    rows = np.random.default_rng(0).normal(size=(len(WORDS), 7)).astype(np.float32)
    vectors.add_vectors(WORDS, rows)
    return vectors


def write_text(path, keyed, header=True):
    keyed.save_word2vec_format(str(path), binary=False, write_header=header)
    return path


@pytest.mark.parametrize("kind", ["text", "binary", "glove", "text.gz", "binary.gz", "text.xz", "text.bz2"])
def test_gensims_files_of_any_kind(tmp_path, keyed, kind):
    # The name says nothing: the content must tell.
    path = tmp_path / "vectors.dat"
    if kind.startswith("binary"):
        keyed.save_word2vec_format(str(path), binary=True)
    else:
        write_text(path, keyed, header=not kind.startswith("glove"))
    packer = {"gz": gzip.compress, "xz": lzma.compress, "bz2": bz2.compress}.get(kind.partition(".")[2])
    if packer:
        path.write_bytes(packer(path.read_bytes()))
    vectors = load_vectors(path)
    assert list(vectors.words) == WORDS
    assert (vectors.dim, vectors.counts, vectors.has_subwords) == (7, None, False)
    np.testing.assert_allclose(vectors.rows(np.arange(len(WORDS))), keyed.vectors, rtol=1e-6, atol=0)
    np.testing.assert_array_equal(vectors.ids(["中国", None, "The", "the"]), [2, -1, -1, 0])
    assert not vectors.lookup([None, "unknown", ""]).any()
    few = load_vectors(path, max_words=3)
    assert list(few.words) == WORDS[:3]
    assert few.rows(np.array([2])).shape == (1, 7)


def test_word2vecs_own_binary_has_line_feeds(tmp_path, keyed):
    path = tmp_path / "google.bin"
    records = b"".join(word.encode() + b" " + keyed[word].tobytes() + b"\n" for word in WORDS)
    path.write_bytes(b"%d 7\n" % len(WORDS) + records)
    np.testing.assert_array_equal(load_vectors(path).lookup(WORDS), keyed.vectors)
    assert list(load_vectors(path).words) == WORDS


def test_fasttexts_text_vectors_hold_its_words(tmp_path, bin_path):
    model = fasttext.load_model(str(bin_path))
    lines = [f"{len(model.words)} 12", *(f"{w} " + " ".join(f"{x:.5g}" for x in model[w]) + " " for w in model.words)]
    path = tmp_path / "vectors.vec"
    path.write_text("\n".join(lines) + "\n\n", encoding="utf-8")
    vectors = load_vectors(path)
    assert list(vectors.words) == model.words
    np.testing.assert_allclose(vectors.lookup(model.words), load_vectors(bin_path).lookup(model.words), rtol=1e-4, atol=1e-5)


def test_blocks_meet_within_a_line(tmp_path, keyed, monkeypatch):
    monkeypatch.setattr(word_records, "_BLOCK_BYTES", 37)
    text, binary = write_text(tmp_path / "a", keyed), tmp_path / "b"
    keyed.save_word2vec_format(str(binary), binary=True)
    np.testing.assert_allclose(load_vectors(text).lookup(WORDS), keyed.vectors, rtol=1e-6)
    np.testing.assert_array_equal(load_vectors(binary).lookup(WORDS), keyed.vectors)


def test_lines_written_by_hand(tmp_path):
    path = tmp_path / "hand.txt"
    path.write_bytes("\ufeff2 3\r\nein wort\t1 2  3\r\n. . . 4 5e-1 -6 \r\n".encode())
    vectors = load_vectors(path)
    assert list(vectors.words) == ["ein wort", ". . ."]
    np.testing.assert_array_equal(vectors.rows(np.array([0, 1])), [[1, 2, 3], [4, 0.5, -6]])


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"3 2\na 1 2\nb 1 2 3\nc 1 2\n", "line 3: 3 numbers after the word; expected 2"),
        (b"3 2\na 1 2\nb 1\nc 1 2\n", "line 3: 1 numbers after the word; expected 2"),
        # Two mistakes that make up for one another.
        (b"2 2\na 1 2 3\nb 1\n", "line 2: 3 numbers"),
        (b"a 1 2\nb 1 2\nc 1 2 3\n", "line 3: 3 numbers"),
        (b"2 2\na 1 2\nb 1 x\n", "line 3: 'x' is no number"),
        (b"2 2\na 1 2\nb 1 nan\n", "line 3: NaN or infinity"),
        (b"a 1 2\nb 1 1e40\n", "line 2: NaN or infinity"),
        (b"3 2\na 1 2\na 3 4\n", "promises 3 words, but 2 follow"),
        (b"2 2\na 1 2\nh\xe4user 3 4\n", "line 3: not UTF-8 .byte 0xe4 at position 2"),
        (b"3 2\na 1 2\nb 1 2\n", "promises 3 words, but 2 follow"),
        (b"1 2\na 1 2\nb 1 2\n", "promises 1 words, but 2 follow"),
        (b"2 2\n 1 2\nb 1 2\n", "line 2: "),
        # No machine has the memory for a table of so many rows.
        (b"99999999 16384\nw" + b" 1" * 16384 + b"\n", "promises 99999999 words, but 1 follow"),
        (b"0 5\n", "line 1: 0 words"),
        (b"7 99999999\n", "line 1: 7 words of 99999999"),
        (b"hello world, this is prose\n", "line 1: expected a word and its numbers"),
        ("a 1 2\n".encode("utf-16"), "UTF-16"),
        (b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR" * 9, "unknown binary format"),
        (b"PK\3\4 no archive", "cannot be read"),
        (b"4 2\n", "promises 4 words, but 0 follow"),
    ],
)
def test_mistakes_are_named(tmp_path, content, message):
    path = tmp_path / "wrong.vec"
    path.write_bytes(content)
    with pytest.raises(UserError, match=rf"^\S*wrong\.vec: {message}|^\S*wrong\.vec: .*{message}"):
        load_vectors(path)


@pytest.mark.parametrize("binary", [False, True])
def test_the_first_of_a_repeated_word_is_kept(tmp_path, binary, caplog):
    """As gensim does, whose matrix and list of words stay as long as the file says."""
    words, rows = ["a", "b", "a", "c", "a", "b"], np.arange(12, dtype="<f4").reshape(6, 2)
    if binary:
        records = [word.encode() + b" " + row.tobytes() + b"\n" for word, row in zip(words, rows, strict=True)]
    else:
        records = [f"{word} {row[0]} {row[1]}\n".encode() for word, row in zip(words, rows, strict=True)]
    path = tmp_path / "repeated.vec"
    path.write_bytes(b"6 2\n" + b"".join(records))
    vectors = load_vectors(path)
    known = KeyedVectors.load_word2vec_format(str(path), binary=binary)
    assert list(vectors.words) == known.index_to_key[:3] == ["a", "b", "c"]
    np.testing.assert_array_equal(vectors.rows(np.arange(3)), known.vectors[:3])
    unit, place = ("word", 3) if binary else ("line", 4)
    assert [record.getMessage() for record in caplog.records if record.name.startswith("wechsel_jax")] == [
        f"{path}: words that occur again: 3, first {unit} {place}: 'a'; the first of each is kept"
    ]
    assert list(load_vectors(path, max_words=2).words) == ["a", "b"]


def test_damaged_binary_and_compressed_files(tmp_path, keyed):
    path = tmp_path / "b.bin"
    keyed.save_word2vec_format(str(path), binary=True)
    content = path.read_bytes()
    path.write_bytes(content[:-5])
    with pytest.raises(UserError, match="word 8 of 8: the file ends within it"):
        load_vectors(path)
    path.write_bytes(content + b"abc")
    with pytest.raises(UserError, match="promises 8 words, but more follows"):
        load_vectors(path)
    nan = content.replace(keyed["中国"].tobytes(), struct.pack("<f", float("inf")) + keyed["中国"].tobytes()[4:])
    path.write_bytes(nan)
    with pytest.raises(UserError, match="word 3: NaN or infinity"):
        load_vectors(path)
    path.write_bytes(content.replace("Straße".encode(), "Straße!".encode("latin-1")))
    with pytest.raises(UserError, match=r"word 2: .* is not UTF-8"):
        load_vectors(path)
    path.write_bytes(gzip.compress(content)[:-9])
    with pytest.raises(UserError, match=r"b\.bin: .*this one is damaged or cut short"):
        load_vectors(path)


def test_a_compressed_fasttext_model_is_refused(tmp_path, bin_path):
    path = tmp_path / "cc.bin.gz"
    path.write_bytes(gzip.compress(bin_path.read_bytes(), 1))
    with pytest.raises(UserError, match="decompress it first"):
        load_vectors(path)


@settings(max_examples=50, deadline=None)
@given(
    words=st.lists(st.text(st.characters(codec="utf-8"), max_size=9), min_size=1, max_size=9, unique=True),
    half=st.booleans(),
    counted=st.booleans(),
)
def test_archives_give_back_what_was_saved(tmp_path_factory, words, half, counted):
    path = tmp_path_factory.mktemp("npz") / "v.npz"
    vectors = np.random.default_rng(len(words)).normal(size=(len(words), 3)).astype(np.float16 if half else np.float32)
    counts = np.arange(len(words), 0, -1) * 70_000 if counted else None
    save_vectors(path, words, vectors, counts)
    loaded = load_vectors(path)
    assert list(loaded.words) == words
    np.testing.assert_array_equal(loaded.lookup(words), vectors.astype(np.float32))
    assert loaded.lookup(words).dtype == np.float32
    if counted:
        np.testing.assert_array_equal(loaded.counts, counts)
        assert loaded.counts.dtype == np.int64
    else:
        assert loaded.counts is None
    assert list(load_vectors(path, max_words=1).words) == words[:1]


def test_archives_are_compact_and_without_pickle(tmp_path):
    rng = np.random.default_rng(0)
    words = [f"wort{i}" for i in range(5000)]
    save_vectors(tmp_path / "v.npz", words, rng.normal(size=(5000, 100)), np.arange(5000, 0, -1), dtype="float16")
    assert (tmp_path / "v.npz").stat().st_size < 1.02 * 5000 * 100 * 2
    with np.load(tmp_path / "v.npz", allow_pickle=False) as archive:
        assert archive["vectors"].dtype == np.float16
        assert archive["lengths"].dtype == np.uint8


def test_archive_mistakes(tmp_path):
    path = tmp_path / "v.npz"
    with pytest.raises(UserError, match=r"'b' \(word 2\) is not finite in float16"):
        save_vectors(path, ["a", "b"], np.array([[1.0], [1e6]]), dtype="float16")
    assert not path.exists()
    with pytest.raises(ValueError, match="twice"):
        save_vectors(path, ["a", "a"], np.zeros((2, 1)))
    np.savez(path, vectors=np.zeros((2, 2)))
    with pytest.raises(UserError, match="'format' is missing"):
        load_vectors(path)
    good = {
        "format": np.uint8(1),
        "words": np.frombuffer(b"ab", np.uint8),
        "lengths": np.uint8([1, 1]),
        "vectors": np.ones((2, 2), "f4"),
    }
    cases = [
        ({"lengths": np.uint8([1, 2])}, "do not belong together"),
        ({"vectors": np.ones((3, 2), np.float32)}, "do not belong together"),
        ({"vectors": np.ones((2, 2), np.int32)}, "do not belong together"),
        ({"vectors": np.array([[1, 2], [np.nan, 1]], np.float32)}, r"word 2 \('b'\): NaN"),
        ({"words": np.frombuffer(b"aa", np.uint8)}, "occurs twice"),
        ({"words": np.frombuffer(b"a\xff", np.uint8)}, "not UTF-8"),
        ({"format": np.uint8(9)}, "format 9"),
        ({"words": np.array(["a", "b"], object)}, "cannot be read"),
    ]
    for change, message in cases:
        np.savez(path, **{**good, **change})
        with pytest.raises(UserError, match=message):
            load_vectors(path)
    np.savez(path, **good)
    assert list(load_vectors(path).words) == ["a", "b"]
    path.write_bytes(path.read_bytes()[:-40])
    with pytest.raises(UserError, match="cannot be read"):
        load_vectors(path)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (b"a 1 2\n" + b"w" * 70_000 + b" 1 2\n", "line 2: a word of 70000 bytes; expected 65536 at most"),
        (b"a 1 2\n" + b"w " * 50_000 + b"1 2\n", "line 2: a word of 99999 bytes"),
        (b"2 2\na 1 2\n" + b"w" * 70_000, "line 3: a word of 70000 bytes"),
        (b"w" * (9 << 20), "line 1: longer than 2097152 bytes"),
    ],
)
def test_a_word_that_is_none_is_named_by_its_line(tmp_path, text, told):
    (tmp_path / "v.vec").write_bytes(text)
    with pytest.raises(UserError, match=rf"v\.vec: {told}") as caught:
        load_vectors(tmp_path / "v.vec")
    assert len(str(caught.value)) < 500


def test_max_words_must_be_positive(tmp_path, keyed):
    with pytest.raises(UserError, match="max_words is 0"):
        load_vectors(write_text(tmp_path / "t", keyed), max_words=0)


def test_plain_vectors_refuse_what_does_not_fit():
    with pytest.raises(ValueError, match="belong together"):
        PlainVectors(["a"], np.zeros((2, 3), np.float32))
