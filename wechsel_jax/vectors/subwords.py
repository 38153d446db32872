"""Subword vectors in the space of word vectors: of the token itself, of its n-grams, or of the words that it occurs in."""

import logging
from collections.abc import Sequence
from itertools import chain

import numpy as np
from tokenizers import Tokenizer

from wechsel_jax.errors import UserError
from wechsel_jax.tokens.encoding import plain_backend
from wechsel_jax.vectors.word_vectors import WordVectors

_WORDS_PER_BLOCK = 4096
# Pairs of a word and a token whose vectors are in memory at once.
_PAIRS_AT_ONCE = 1 << 15
_ESCAPE = "\u241b"
# What fastText 0.9 reads as the end of a word; U+2400 is where Unicode's pictures of control characters start.
_ESCAPES = {_ESCAPE: 2 * _ESCAPE, **{character: _ESCAPE + chr(0x2400 + ord(character)) for character in " \n\r\t\v\f\0"}}
_ESCAPES = str.maketrans(_ESCAPES)
_log = logging.getLogger(__name__)


def ngram_vectors(keys: Sequence[str | None], vectors: WordVectors) -> np.ndarray:
    """Looks every token up as though it were a word (Minixhofer et al., 2022, section 3.1, equation 1).

    A token that is no word gets the mean of its n-grams where the vectors have n-grams (fastText `.bin`). The paper writes a
    sum; fastText divides by the number of n-grams, which the cosine similarity does not see.

    Args:
      keys: V texts, one a token; None for a token without a text of its own.
      vectors: word vectors of the language, m dimensions.

    Returns:
      (V, m) float32; a row of zeros where nothing is known about a token.
    """
    return vectors.lookup(keys)


def native_vectors(strings: Sequence[str], words: WordVectors) -> np.ndarray:
    """Looks every token up by the very string that its tokenizer spells it with (FOCUS, Dobler and de Melo, 2023, section 3.1).

    For vectors that were trained on tokenised text (`train_vectors` with a tokenizer), where "Ġhaus" and "haus" are two words.
    A token that is too rare to be a word there has no vector, though its n-grams might make one: that is the paper's filter.

    Args:
      strings: V tokens as the tokenizer spells them.
      words: vectors of tokens, m dimensions.

    Returns:
      (V, m) float32; a row of zeros for tokens that are not among the words.
    """
    return words.rows(words.ids([native_word(string) if string else None for string in strings]))


def native_word(string: str) -> str:
    """Spells a token so that fastText takes it for one word; distinct tokens stay distinct.

    fastText cuts at seven ASCII characters, which SentencePiece vocabularies may hold (a token that is a tab). Each becomes
    "␛" and its picture ("␉"), and "␛" itself becomes "␛␛". No other token is changed.
    """
    return string.translate(_ESCAPES)


def tfr_vectors(tokenizer, words: WordVectors, *, max_words: int | None = None) -> np.ndarray:
    """Averages, for every token, the vectors of the words that it occurs in (tokenize, flatten, reduce).

    u_x = sum_w c_xw f_w v_w / sum_w c_xw f_w (first version of Minixhofer et al., 2022, section 3.1), where c_xw
    in {0, 1, 2} says in how many of the two spellings w and " " + w the token x occurs, f_w is how frequent the word is, and
    v_w its vector. Where the file of vectors has no counts, f_w = 1 / rank (see `word_frequencies`).

    Args:
      tokenizer: a fast tokenizer of transformers (anything with `backend_tokenizer`), or a `tokenizers.Tokenizer`.
      words: vectors of W words, m dimensions, most frequent first.
      max_words: use only this many of the most frequent words.

    Returns:
      (V, m) float32 with V = 1 + the highest token id; a row of zeros for tokens that no word holds.

    Raises:
      UserError: max_words is not positive.
    """
    if max_words is not None and max_words < 1:
        raise UserError(f"max_words is {max_words}; expected at least 1")
    backend = plain_backend(tokenizer)
    size = 1 + max(backend.get_vocab(with_added_tokens=True).values())
    frequency = word_frequencies(words)[0]
    total = np.zeros((size, words.dim), np.float64)
    weight = np.zeros(size, np.float64)
    count = len(words.words) if max_words is None else min(max_words, len(words.words))
    for first in range(0, count, _WORDS_PER_BLOCK):
        ids = np.arange(first, min(first + _WORDS_PER_BLOCK, count))
        word, token, times = _occurrences(backend, [words.words[i] for i in ids], size)
        if len(token) == 0:
            continue
        factor = times * frequency[ids[word]]
        vectors = words.rows(ids)
        for begin in range(0, len(token), _PAIRS_AT_ONCE):
            some = slice(begin, begin + _PAIRS_AT_ONCE)
            present, start = np.unique(token[some], return_index=True)
            total[present] += np.add.reduceat(vectors[word[some]] * factor[some, None], start, axis=0)
        weight += np.bincount(token, factor, size)
    return (total / np.where(weight > 0, weight, 1)[:, None]).astype(np.float32)


def word_frequencies(words: WordVectors) -> tuple[np.ndarray, str]:
    """Returns f (W,) float64 and where it comes from.

    Args:
      words: the vectors; their `counts` where they are known.

    Returns:
      The frequencies and "counts"; or 1 / rank (Zipf, 1935) and "zipf" where the file has no counts, with a warning in the log.
    """
    if words.counts is not None:
        return words.counts.astype(np.float64), "counts"
    _log.warning("the word vectors come without counts: frequencies are taken as 1 / rank, the first word the most frequent")
    return 1.0 / np.arange(1, len(words.words) + 1), "zipf"


def _occurrences(backend: Tokenizer, words: list[str], size: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Returns (word, token, c) of all tokens in the words, sorted by token; c, 1 or 2: in how many spellings it occurs."""
    spelled = [text for word in words for text in (word, " " + word)]
    encodings = [encoding.ids for encoding in backend.encode_batch(spelled, add_special_tokens=False)]
    spelling = np.repeat(np.arange(len(spelled)), [len(ids) for ids in encodings])
    token = np.fromiter(chain.from_iterable(encodings), np.int64, len(spelling))
    # A token counts once in a spelling, however often it stands in it.
    distinct = np.unique(token * len(spelled) + spelling)
    token, word = distinct // len(spelled), distinct % len(spelled) // 2
    keys, times = np.unique(token * len(words) + word, return_counts=True)
    return keys % len(words), keys // len(words), times
