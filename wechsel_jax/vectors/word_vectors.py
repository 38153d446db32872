"""What every source of word vectors offers, and the plain one: a list of words beside a matrix."""

from collections.abc import Iterable, Sequence
from functools import cached_property
from typing import Protocol

import numpy as np

ENCODING_ERRORS = "surrogatepass"


class WordVectors(Protocol):
    """W words, most frequent first, with vectors of m dimensions.

    Attributes:
      words: the W words; the id of a word is its index.
      counts: (W,) int64, how often each word occurred in the training text; None where the file does not say.
      dim: m.
      has_subwords: whether words outside `words` have vectors too, made of character n-grams.
    """

    words: Sequence[str]
    counts: np.ndarray | None
    dim: int
    has_subwords: bool

    def ids(self, words: Iterable[str | None]) -> np.ndarray:
        """Returns (n,) int64: the id of each word, -1 for None and for unknown words."""

    def rows(self, ids: np.ndarray) -> np.ndarray:
        """Returns (n, m) float32: the vectors of the words with these ids; a row of zeros for -1."""

    def lookup(self, words: Iterable[str | None]) -> np.ndarray:
        """Returns (n, m) float32: the vector of each word; a row of zeros for None and where nothing is known."""


class PlainVectors:
    """Words beside a matrix held in memory; words outside the list have no vector. See `WordVectors`."""

    has_subwords = False

    def __init__(self, words: Sequence[str], vectors: np.ndarray, counts: np.ndarray | None = None):
        """Keeps what it is given, without a copy.

        Args:
          words: W distinct words, most frequent first.
          vectors: (W, m), float16 or float32.
          counts: (W,) occurrences, or None.
        """
        if vectors.ndim != 2 or len(words) != len(vectors) or (counts is not None and len(counts) != len(words)):
            raise ValueError(f"{len(words)} words, vectors of shape {vectors.shape} and counts do not belong together")
        self.words = words
        self.counts = None if counts is None else np.asarray(counts, np.int64)
        self.dim = vectors.shape[1]
        self._vectors = vectors

    @cached_property
    def _index(self) -> dict[str, int]:
        return {word: i for i, word in enumerate(self.words)}

    def ids(self, words: Iterable[str | None]) -> np.ndarray:
        return np.array([self._index.get(word, -1) for word in words], np.int64)

    def rows(self, ids: np.ndarray) -> np.ndarray:
        return take_rows(self._vectors, np.asarray(ids, np.int64))

    def lookup(self, words: Iterable[str | None]) -> np.ndarray:
        return self.rows(self.ids(words))


def take_rows(matrix: np.ndarray, ids: np.ndarray) -> np.ndarray:
    """Returns (n, m) float32: rows `ids` of `matrix` (W, m), zeros where an id is -1."""
    out = np.zeros((len(ids), matrix.shape[1]), np.float32)
    known = ids >= 0
    out[known] = matrix[ids[known]]
    return out
