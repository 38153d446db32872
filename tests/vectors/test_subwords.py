"""Subword vectors against the wechsel package, in both of its modes."""

import logging

import fasttext
import numpy as np
import pytest
from tokenizers import Tokenizer, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from wechsel_jax.errors import UserError
from wechsel_jax.vectors import PlainVectors, load_vectors, ngram_vectors, subwords, tfr_vectors

wechsel = pytest.importorskip("wechsel")


@pytest.fixture(scope="module")
def tokenizer(corpus):
    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = trainers.BpeTrainer(
        vocab_size=400,
        special_tokens=["<s>", "</s>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    backend.train([str(corpus)], trainer)
    return PreTrainedTokenizerFast(tokenizer_object=backend, bos_token="<s>", eos_token="</s>")


@pytest.fixture(scope="module")
def opened(bin_path):
    return wechsel.WordEmbedding(fasttext.load_model(str(bin_path))), load_vectors(bin_path)


@pytest.mark.parametrize("max_words", [None, 25])
def test_tfr_is_the_packages(tokenizer, opened, max_words):
    model, vectors = opened
    expected, _ = wechsel.get_subword_embeddings_in_word_embedding_space(
        tokenizer, model, max_n_word_vectors=max_words, use_subword_info=False, verbose=False
    )
    found = tfr_vectors(tokenizer, vectors, max_words=max_words)
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-5)
    np.testing.assert_array_equal(found.any(axis=1), expected.any(axis=1))
    assert 0 < (~found.any(axis=1)).sum() < len(found)


def test_tfr_is_the_packages_with_a_real_tokenizer(data_directory, opened):
    tokenizer = PreTrainedTokenizerFast.from_pretrained(str(data_directory / "tokenizers" / "gpt2"))
    model, vectors = opened
    expected, _ = wechsel.get_subword_embeddings_in_word_embedding_space(
        tokenizer, model, use_subword_info=False, verbose=False
    )
    np.testing.assert_allclose(tfr_vectors(tokenizer, vectors), expected, rtol=0, atol=1e-5)


def test_ngrams_are_the_packages(tokenizer, opened):
    model, vectors = opened
    expected, _ = wechsel.get_subword_embeddings_in_word_embedding_space(tokenizer, model)
    keys = [tokenizer.decode(i).strip() for i in range(len(tokenizer))]
    np.testing.assert_allclose(ngram_vectors(keys, vectors), expected, rtol=0, atol=1e-6)
    assert not ngram_vectors([None], vectors).any()


def test_tfr_by_hand():
    """Words "ab" (frequency 3) and "b" (frequency 1): tokens a, b and the space."""
    backend = Tokenizer(models.BPE(vocab={"a": 0, "b": 1, " ": 2, "unused": 5}, merges=[]))
    words = PlainVectors(["ab", "bb"], np.array([[1, 0], [0, 1]], np.float32), np.array([3, 1]))
    found = tfr_vectors(backend, words)
    # "a" is in "ab" and " ab"; "b" is in both spellings of both words, and counts once where it occurs twice; " " once a word.
    expected = [[1, 0], [6 / 8, 2 / 8], [3 / 4, 1 / 4], [0, 0], [0, 0], [0, 0]]
    np.testing.assert_allclose(found, expected, atol=1e-7)
    np.testing.assert_allclose(tfr_vectors(backend, words, max_words=1)[:3], [[1, 0]] * 3, atol=1e-7)


def test_blocks_do_not_change_the_result(tokenizer, opened, monkeypatch):
    whole = tfr_vectors(tokenizer, opened[1])
    monkeypatch.setattr(subwords, "_WORDS_PER_BLOCK", 7)
    monkeypatch.setattr(subwords, "_PAIRS_AT_ONCE", 5)
    np.testing.assert_allclose(tfr_vectors(tokenizer, opened[1]), whole, rtol=0, atol=1e-6)


def test_words_without_counts_follow_zipf(tokenizer, opened, caplog):
    vectors = opened[1]
    matrix = vectors.rows(np.arange(len(vectors.words)))
    zipf = 27720 // np.arange(1, len(matrix) + 1)
    with caplog.at_level(logging.WARNING):
        found = tfr_vectors(tokenizer, PlainVectors(vectors.words, matrix))
    assert "1 / rank" in caplog.text
    np.testing.assert_allclose(found, tfr_vectors(tokenizer, PlainVectors(vectors.words, matrix, zipf)), atol=1e-2)
    assert subwords.word_frequencies(PlainVectors(vectors.words, matrix))[1] == "zipf"
    assert subwords.word_frequencies(vectors)[1] == "counts"


def test_the_callers_tokenizer_keeps_its_settings(tokenizer, opened):
    plain = tfr_vectors(tokenizer, opened[1])
    backend = tokenizer.backend_tokenizer
    backend.enable_padding(length=9)
    backend.enable_truncation(1)
    try:
        np.testing.assert_array_equal(tfr_vectors(tokenizer, opened[1]), plain)
        assert backend.padding["length"] == 9
        assert backend.truncation["max_length"] == 1
    finally:
        backend.no_padding()
        backend.no_truncation()


def test_max_words_must_be_positive(tokenizer, opened):
    with pytest.raises(UserError, match="max_words is 0"):
        tfr_vectors(tokenizer, opened[1], max_words=0)
