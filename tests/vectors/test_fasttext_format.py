"""The memory-mapped reader against the fasttext package, and what it does with damaged files."""

import os
import resource
import struct

import fasttext
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from wechsel_jax.errors import UserError
from wechsel_jax.vectors import load_vectors
from wechsel_jax.vectors.fasttext_format import FastTextVectors, ngram_buckets

UNKNOWN = [
    "",
    "a",
    "zz",
    "zzzz",
    "größten",
    "中国人民银行",
    "приве́т",
    "नमस्कार",
    "😀😀",
    "a b",
    "<>",
    "<",
    ">",
    "\n",
    "\x00",
    "�",
]


def fasttext_vectors(model, words):
    return np.stack([model.get_word_vector(word) for word in words])


def test_words_counts_and_ids_are_fasttexts(model):
    path, oracle = model
    vectors = load_vectors(path)
    words, counts = oracle.get_words(include_freq=True)
    assert vectors.words == words
    np.testing.assert_array_equal(vectors.counts, counts)
    assert vectors.counts.dtype == np.int64
    assert vectors.dim == oracle.get_dimension()
    np.testing.assert_array_equal(vectors.ids([*words, "never seen", None]), [*range(len(words)), -1, -1])


def test_vectors_are_fasttexts(model):
    path, oracle = model
    vectors = load_vectors(path)
    words = [*vectors.words, "</s>", "__label__haus", *UNKNOWN]
    np.testing.assert_allclose(vectors.lookup(words), fasttext_vectors(oracle, words), rtol=0, atol=1e-6)
    np.testing.assert_array_equal(vectors.rows(np.arange(len(vectors.words))), vectors.lookup(vectors.words))


def test_long_words_are_as_exact_as_single_precision_allows(bin_path):
    oracle = fasttext.load_model(str(bin_path))
    word = "x" * 300
    rows = oracle.get_input_matrix()[oracle.get_subwords(word)[1]].astype(np.float64)
    np.testing.assert_allclose(load_vectors(bin_path).lookup([word])[0], rows.mean(axis=0), rtol=1e-5, atol=1e-6)


def test_end_of_sentence_has_its_own_row_only(bin_path):
    oracle = fasttext.load_model(str(bin_path))
    vectors = load_vectors(bin_path)
    assert "</s>" in vectors.words
    expected = oracle.get_input_vector(oracle.get_word_id("</s>"))
    np.testing.assert_allclose(vectors.lookup(["</s>"])[0], expected, rtol=0, atol=1e-6)


def test_none_and_what_is_too_short_are_rows_of_zeros(bin_path):
    oracle = fasttext.load_model(str(bin_path))
    out = load_vectors(bin_path).lookup([None, "", "q", "qqqq"])
    # "<q>" has three characters, so "q" is made of one n-gram; "<>" has two, so "" is made of none.
    assert not out[:2].any()
    assert out[2].any()
    np.testing.assert_allclose(out[2:], fasttext_vectors(oracle, ["q", "qqqq"]), rtol=0, atol=1e-6)
    assert load_vectors(bin_path).rows(np.array([-1])).tolist() == [[0.0] * 12]


def test_any_string_is_looked_up_as_fasttext_does(model):
    path, oracle = model
    vectors = load_vectors(path)

    @settings(max_examples=60, deadline=None)
    @given(st.lists(st.text(st.characters(codec="utf-8"), max_size=12), min_size=1, max_size=5))
    def check(words):
        np.testing.assert_allclose(vectors.lookup(words), fasttext_vectors(oracle, words), rtol=0, atol=1e-6)

    check()


def test_many_words_span_blocks(bin_path):
    vectors = load_vectors(bin_path)
    words = [f"wort{i}" for i in range(5000)]
    some = [0, 2047, 2048, 4999]
    np.testing.assert_array_equal(vectors.lookup(words)[some], np.stack([vectors.lookup([words[i]])[0] for i in some]))


def test_malformed_utf8_is_cut_like_fasttext(tmp_path):
    corpus = tmp_path / "latin1.txt"
    # "\xe4" is a start byte without continuation, "\x80\x81" continuation bytes without a start.
    corpus.write_bytes(b"h\xe4user \x80\x81rest haus\x80 haus\n" * 30)
    path = tmp_path / "latin1.bin"
    trained = fasttext.train_unsupervised(
        str(corpus), dim=8, minn=1, maxn=4, bucket=1000, minCount=1, epoch=1, t=1, thread=11, verbose=0
    )
    trained.save_model(str(path))
    vectors = load_vectors(path)
    words = trained.get_words(on_unicode_error="ignore")
    assert vectors.words == words
    spelled = b"h\xe4user"
    assert vectors._spelling(words.index("huser")) == spelled
    rows = [words.index("huser"), *(len(words) + _slow_buckets(b"<" + spelled + b">", 1, 4, 1000))]
    found = vectors.rows(np.array([words.index("huser")]))[0]
    np.testing.assert_allclose(found, trained.get_input_matrix()[rows].mean(axis=0), rtol=0, atol=1e-6)


def _slow_buckets(word: bytes, smallest: int, largest: int, buckets: int) -> np.ndarray:
    """One byte after the other, as fastText's source does it."""
    found = []
    starts = [i for i in range(len(word)) if word[i] & 0xC0 != 0x80]
    for at, start in enumerate(starts):
        for n in range(1, largest + 1):
            end = starts[at + n] if at + n < len(starts) else len(word)
            if at + n > len(starts) or n < smallest or (n == 1 and (start == 0 or end == len(word))):
                continue
            value = 2166136261
            for byte in word[start:end]:
                value = (value ^ (byte if byte < 128 else byte | 0xFFFFFF00)) * 16777619 % 2**32
            found.append(value % buckets)
    return np.array(found)


@settings(max_examples=200, deadline=None)
@given(
    st.lists(st.binary(max_size=10).filter(lambda word: b"\0" not in word), max_size=4), st.integers(1, 4), st.integers(0, 3)
)
def test_buckets_of_any_bytes(words, smallest, more):
    index, bucket = ngram_buckets(words, smallest, smallest + more, 997)
    for i, word in enumerate(words):
        expected = _slow_buckets(b"<" + word + b">", smallest, smallest + more, 997)
        assert sorted(bucket[index == i].tolist()) == sorted(expected.tolist())


def test_max_words_makes_the_others_unknown(bin_path):
    full, few = load_vectors(bin_path), load_vectors(bin_path, max_words=3)
    assert few.words == full.words[:3]
    assert len(few.counts) == 3
    dropped = full.words[5]
    assert few.ids([full.words[1], dropped]).tolist() == [1, -1]
    np.testing.assert_array_equal(few.lookup(full.words[:3]), full.lookup(full.words[:3]))
    # An unknown word keeps its n-grams: the mean without the word's own row.
    _, buckets = ngram_buckets([dropped.encode()], 3, 5, 3000)
    rows = full._rows[len(full.words) + buckets].view("<f4")
    np.testing.assert_allclose(few.lookup([dropped])[0], rows.mean(axis=0), rtol=0, atol=1e-6)


def test_supervised_and_quantised_models_are_refused(tmp_path):
    text = tmp_path / "labels.txt"
    text.write_text("".join(f"__label__{i % 2} wort{i % 2} haus baum katze hund\n" for i in range(300)))
    classifier = fasttext.train_supervised(str(text), dim=8, epoch=1, t=1, thread=11, verbose=0, minn=2, maxn=3, bucket=5000)
    classifier.save_model(str(tmp_path / "classifier.bin"))
    with pytest.raises(UserError, match=r"classifier\.bin: a supervised"):
        load_vectors(tmp_path / "classifier.bin")
    classifier.quantize(input=str(text), cutoff=300, retrain=False, qnorm=True, verbose=0)
    classifier.save_model(str(tmp_path / "small.ftz"))
    with pytest.raises(UserError, match=r"small\.ftz: .*\.ftz"):
        load_vectors(tmp_path / "small.ftz")


def _field(name: str) -> int:
    return {"version": 4, "dim": 8, "bucket": 40}[name]


@pytest.mark.parametrize(
    ("offset", "value", "message"),
    [
        (_field("version"), 13, "file version 13"),
        (_field("version"), 5, "file version 5"),
        (_field("dim"), 0, "header is damaged"),
        (_field("dim"), 11, "input matrix is"),
        (_field("bucket"), 2999, "input matrix is"),
        (_field("bucket"), -7, "header is damaged"),
        (64, 1 << 30, "header is damaged"),
    ],
)
def test_damaged_headers_are_named(bin_path, tmp_path, offset, value, message):
    damaged = bytearray(bin_path.read_bytes())
    damaged[offset : offset + 4] = struct.pack("<i", value)
    path = tmp_path / "damaged.bin"
    path.write_bytes(damaged)
    with pytest.raises(UserError, match=rf"damaged\.bin: .*{message}"):
        load_vectors(path)


def test_quantised_and_pruned_marks_are_refused(bin_path, tmp_path):
    content = bin_path.read_bytes()
    vectors = FastTextVectors(bin_path)
    dictionary_end = int(vectors._ends[-1]) + 10
    path = tmp_path / "marked.bin"
    path.write_bytes(content[:dictionary_end] + b"\1" + content[dictionary_end + 1 :])
    with pytest.raises(UserError, match="quantised"):
        load_vectors(path)
    path.write_bytes(content[:84] + struct.pack("<q", 5) + content[92:])
    with pytest.raises(UserError, match="pruned"):
        load_vectors(path)


def test_every_truncation_is_refused(bin_path, tmp_path):
    content = bin_path.read_bytes()
    path = tmp_path / "short.bin"
    for size in [4, 30, 63, 80, 92, 100, 300, 5000, len(content) // 2, len(content) - 1]:
        path.write_bytes(content[:size])
        with pytest.raises(UserError, match=rf"short\.bin: .*(truncated|damaged).*{'' if size < 92 else 'again'}"):
            load_vectors(path)


def test_wrong_magic_empty_and_missing(bin_path, tmp_path):
    path = tmp_path / "x.bin"
    with pytest.raises(UserError, match="no such file"):
        load_vectors(path)
    path.write_bytes(b"")
    with pytest.raises(UserError, match="empty"):
        load_vectors(path)
    # A model from before file versions existed starts with its settings.
    path.write_bytes(bin_path.read_bytes()[8:])
    with pytest.raises(UserError, match="unknown binary format"):
        load_vectors(path)
    with pytest.raises(UserError, match="not a fastText model"):
        FastTextVectors(path)
    with pytest.raises(UserError, match="directory"):
        load_vectors(tmp_path)


def test_nan_is_found_in_what_is_read_and_only_there(bin_path, tmp_path):
    vectors = FastTextVectors(bin_path)
    word = vectors.words[4]
    content = bytearray(bin_path.read_bytes())
    first = len(content) - _output_bytes(content, vectors) - vectors._rows.size + 4 * 12 * 4
    content[first + 8 : first + 12] = struct.pack("<f", float("nan"))
    path = tmp_path / "nan.bin"
    path.write_bytes(content)
    broken = FastTextVectors(path)
    np.testing.assert_array_equal(broken.lookup(["</s>"]), vectors.lookup(["</s>"]))
    with pytest.raises(UserError, match=rf"nan\.bin: the vector of {word!r} holds NaN"):
        broken.lookup(["</s>", word])


def _output_bytes(content: bytes, vectors: FastTextVectors) -> int:
    return 17 + 4 * 12 * len(vectors.words)


def test_a_model_of_eight_gigabytes_opens_without_being_read(tmp_path):
    path = tmp_path / "huge.bin"
    dim, buckets = 100, 20_000_000
    word = b"haus"
    header = struct.pack("<ii12id", 793712314, 12, dim, 5, 1, 1, 5, 1, 2, 2, buckets, 5, 5, 100, 1e-4)
    entry = struct.pack("<iiiqq", 1, 1, 0, 9, -1) + word + b"\0" + struct.pack("<qb", 9, 0)
    with open(path, "wb") as handle:
        handle.write(header + entry + struct.pack("<?qq", False, 1 + buckets, dim))
        first = handle.tell()
        handle.write(np.arange(dim, dtype="<f4").tobytes())
        end = first + 4 * (1 + buckets) * dim
        try:
            handle.truncate(end + 17 + 4 * dim)
        except OSError:
            pytest.skip("the file system holds no sparse file of 8 GB")
        handle.seek(end)
        handle.write(struct.pack("<?qq", False, 1, dim))
    if os.stat(path).st_blocks * 512 > 1 << 26:
        pytest.skip("the file system holds no sparse files")
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    vectors = load_vectors(path)
    # "<haus>" has the 5-grams "<haus" and "haus>", both in the hole of zeros.
    np.testing.assert_allclose(vectors.lookup(["haus"])[0], np.arange(dim) / 3, rtol=1e-6)
    assert not vectors.lookup([f"wort{i}" for i in range(20)]).any()
    grown_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert grown_kib < 400_000
