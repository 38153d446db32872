"""fastText's binary models, read through a memory map: only the rows that are asked for leave the disk.

Layout of a `.bin` (fastText 0.9.x, file version 12; all little-endian): a magic number and the version; twelve int32 settings
and one double; the dictionary (sizes, then per word its bytes, a zero byte, an int64 count and a type byte); then, each after
one byte that says whether it is quantised, the input matrix (words, then hashed n-grams) and the output matrix, as int64
shape and float32 rows.
"""

import mmap
import os
import struct
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np

from wechsel_jax.errors import UserError
from wechsel_jax.files import require_file
from wechsel_jax.vectors.word_records import LONGEST_WORD
from wechsel_jax.vectors.word_vectors import ENCODING_ERRORS

MAGIC = struct.pack("<i", 793712314)
_END_OF_SENTENCE = b"</s>"
_SUPERVISED = 3
_WORDS_PER_BLOCK = 2048
_HEADER = struct.Struct("<ii12id")
_SIZES = struct.Struct("<iiiqq")
_SHAPE = struct.Struct("<?qq")
_EXPECTED = "an unsupervised fastText model (.bin) of skipgram or cbow"
_AGAIN = "fetch or train it again"


@dataclass(frozen=True)
class _Header:
    dim: int
    smallest: int
    largest: int
    buckets: int
    entries: int
    words: int
    pruned: int


class FastTextVectors:
    """Vectors of any word from a fastText model. See `WordVectors`.

    A word's vector is the mean of its own row, where the word is known, and of the rows that the n-grams of "<word>" hash to
    (Bojanowski et al., 2017, section 3.2, as fastText 0.9.3 computes it).
    """

    def __init__(self, path: str | os.PathLike, max_words: int | None = None):
        """Opens a model; nothing but the settings and the words is read.

        Args:
          path: a `.bin` file.
          max_words: keep only this many of the most frequent words; the others count as unknown: only their n-grams are used.

        Raises:
          UserError: the file is no unsupervised, unquantised fastText model, or it is damaged.
        """
        self.path = require_file(path, _EXPECTED)
        with open(self.path, "rb") as handle:
            self._map = mmap.mmap(handle.fileno(), 0, access=mmap.ACCESS_READ)
        header = _read_header(self._map, self.path)
        starts, ends, position = _read_entries(self._map, header, self.path)
        self._header, self._starts, self._ends = header, starts, ends
        self._rows = _open_matrix(self._map, position, header, self.path)
        kept = header.words if max_words is None else min(max_words, header.words)
        self._unknown = range(kept, header.words)
        self.dim = header.dim
        self.has_subwords = header.largest > 0 and header.buckets > 0 and header.pruned != 0
        self.counts = _counts(self._map, ends[:kept])

    @cached_property
    def words(self) -> list[str]:
        return [self._spelling(i).decode("utf-8", "ignore") for i in range(len(self.counts))]

    @cached_property
    def _index(self) -> dict[bytes, int]:
        # Labels ("__label__x" in the training text) are entries after the words; their rows count in a lookup as fastText's do.
        entries = range(self._header.entries)
        return {self._spelling(i): i for i in entries if i not in self._unknown}

    def _spelling(self, i: int) -> bytes:
        return self._map[self._starts[i] : self._ends[i]]

    def ids(self, words: Iterable[str | None]) -> np.ndarray:
        found = (-1 if word is None else self._index.get(_encode(word), -1) for word in words)
        return np.array([i if i < self._header.words else -1 for i in found], np.int64)

    def rows(self, ids: np.ndarray) -> np.ndarray:
        ids = np.asarray(ids, np.int64)
        return self._vectors([None if i < 0 else self._spelling(i) for i in ids], ids)

    def lookup(self, words: Iterable[str | None]) -> np.ndarray:
        spelled = [None if word is None else _encode(word) for word in words]
        return self._vectors(spelled, np.array([self._index.get(word, -1) for word in spelled], np.int64))

    def _vectors(self, words: list[bytes | None], ids: np.ndarray) -> np.ndarray:
        out = np.zeros((len(words), self.dim), np.float32)
        for first in range(0, len(words), _WORDS_PER_BLOCK):
            block = slice(first, first + _WORDS_PER_BLOCK)
            out[block] = self._block(words[block], ids[block])
        return out

    def _block(self, words: list[bytes | None], ids: np.ndarray) -> np.ndarray:
        owner, row = np.flatnonzero(ids >= 0), ids[ids >= 0]
        if self.has_subwords:
            with_ngrams = [i for i, word in enumerate(words) if word is not None and word != _END_OF_SENTENCE]
            header = self._header
            index, bucket = ngram_buckets([words[i] for i in with_ngrams], header.smallest, header.largest, header.buckets)
            owner = np.concatenate([owner, np.array(with_ngrams, np.int64)[index]])
            row = np.concatenate([row, header.words + bucket])
        out = np.zeros((len(words), self.dim), np.float32)
        if len(row) == 0:
            return out
        order = np.argsort(owner, kind="stable")
        owner, row = owner[order], row[order]
        present, first, parts = np.unique(owner, return_index=True, return_counts=True)
        sums = np.add.reduceat(self._rows[row].view("<f4"), first, axis=0)
        out[present] = sums / parts[:, None].astype(np.float32)
        bad = ~np.isfinite(sums).all(axis=1)
        if bad.any():
            word = words[present[bad.argmax()]].decode("utf-8", "replace")
            raise UserError(f"{self.path}: the vector of {word!r} holds NaN or infinity; {_AGAIN}")
        return out


def ngram_buckets(words: list[bytes], smallest: int, largest: int, buckets: int) -> tuple[np.ndarray, np.ndarray]:
    """Hashes the character n-grams of "<word>" as fastText does.

    An n-gram counts Unicode characters, "<" and ">" included; the single characters "<" and ">" are left out. The hash is
    32-bit FNV-1a over bytes that are sign-extended first, a slip in fastText that its models depend on.

    Args:
      words: n words in UTF-8 (malformed UTF-8 is cut where fastText cuts it).
      smallest: fewest characters of an n-gram.
      largest: most characters of an n-gram.
      buckets: how many buckets the hash is reduced to.

    Returns:
      Two int64 arrays of one length: which word an n-gram belongs to, and its bucket.
    """
    if not words:
        return np.zeros(0, np.int64), np.zeros(0, np.int64)
    spelled = [b"<" + word + b">" for word in words]
    text = np.frombuffer(b"".join(spelled), np.uint8)
    # A character is a byte and the continuation bytes after it.
    start = np.flatnonzero((text & 0xC0) != 0x80)
    end = np.append(start[1:], len(text))
    owner = np.repeat(np.arange(len(words)), [len(word) for word in spelled])[start]
    signed = text.view(np.int8).astype(np.int32).view(np.uint32)
    edge = np.append(True, owner[1:] != owner[:-1]) | np.append(owner[1:] != owner[:-1], True)

    hashes = np.full(len(start), 2166136261, np.uint32)
    alive = np.arange(len(start))
    owners, found = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)]
    for length in range(1, largest + 1):
        alive = alive[alive + length - 1 < len(start)]
        alive = alive[owner[alive + length - 1] == owner[alive]]
        if len(alive) == 0:
            break
        byte, stop = start[alive + length - 1], end[alive + length - 1]
        for offset in range((stop - byte).max()):
            more = byte + offset < stop
            hashes[alive[more]] = (hashes[alive[more]] ^ signed[byte[more] + offset]) * np.uint32(16777619)
        if length >= smallest:
            kept = alive[~edge[alive]] if length == 1 else alive
            owners.append(owner[kept])
            found.append((hashes[kept] % np.uint32(buckets)).astype(np.int64))
    return np.concatenate(owners), np.concatenate(found)


def _encode(word: str) -> bytes:
    return word.encode("utf-8", ENCODING_ERRORS)


def _read_header(file: mmap.mmap, path: Path) -> _Header:
    if file[:4] != MAGIC:
        raise UserError(f"{path}: this is not a fastText model of file version 11 or 12; expected {_EXPECTED}")
    if len(file) < _HEADER.size + _SIZES.size:
        raise UserError(f"{path}: the file is truncated within its header ({len(file)} bytes); {_AGAIN}")
    _, version, *settings, _ = _HEADER.unpack_from(file)
    if version not in (11, 12):
        raise UserError(f"{path}: fastText file version {version}; expected 11 or 12: save the model again with fastText 0.9")
    dim, _, _, _, _, _, _, model, buckets, smallest, largest, _ = settings
    if model == _SUPERVISED:
        raise UserError(f"{path}: a supervised fastText classifier (or an .ftz made from one); expected {_EXPECTED}")
    size, words, labels, _, pruned = _SIZES.unpack_from(file, _HEADER.size)
    sound = 0 < dim <= 1 << 16 and buckets >= 0 and words >= 0 and labels >= 0 and size == words + labels and size > 0
    if not sound or not 0 <= smallest <= 1 << 16 or not 0 <= largest <= 1 << 16:
        shown = f"dimension {dim}, {words} words, {labels} labels, {buckets} buckets, n-grams {smallest}-{largest}"
        raise UserError(f"{path}: the header is damaged ({shown}); {_AGAIN}")
    return _Header(dim, smallest, largest, buckets, size, words, pruned)


def _read_entries(file: mmap.mmap, header: _Header, path: Path) -> tuple[np.ndarray, np.ndarray, int]:
    """Returns where the bytes of each entry start and end (both int64), and where the dictionary ends."""
    if header.pruned > 0:
        raise UserError(f"{path}: a pruned fastText model (.ftz); expected the full .bin it was made from")
    starts, ends = np.zeros(header.entries, np.int64), np.zeros(header.entries, np.int64)
    position = _HEADER.size + _SIZES.size
    for i in range(header.entries):
        end = file.find(b"\0", position, position + LONGEST_WORD)
        if end < 0 or end + 10 > len(file):
            raise UserError(f"{path}: truncated or damaged at word {i + 1} of {header.entries} (byte {position}); {_AGAIN}")
        starts[i], ends[i] = position, end
        position = end + 10
    return starts, ends, position


def _counts(file: mmap.mmap, ends: np.ndarray) -> np.ndarray:
    # Byte by byte: the counts lie between the words, so no array of int64 can be laid over them.
    text, counts = np.frombuffer(file, np.uint8), np.zeros(len(ends), np.int64)
    for i in range(8):
        counts |= text[ends + 1 + i].astype(np.int64) << 8 * i
    return counts


def _open_matrix(file: mmap.mmap, position: int, header: _Header, path: Path) -> np.ndarray:
    """Returns the input matrix as bytes, (words + buckets, 4 m) uint8, still on disk."""
    for name in ("input", "output"):
        if position + _SHAPE.size > len(file):
            raise UserError(f"{path}: the file is truncated before its {name} matrix ({len(file)} bytes); {_AGAIN}")
        quantised, rows, columns = _SHAPE.unpack_from(file, position)
        if quantised:
            raise UserError(f"{path}: a quantised fastText model (.ftz); expected the full .bin it was made from")
        if columns != header.dim or rows < 0 or (name == "input" and rows != header.words + header.buckets):
            stated = f"{header.words} words, {header.buckets} buckets and {header.dim} dimensions"
            raise UserError(f"{path}: the {name} matrix is {rows} x {columns}, but the header states {stated}; {_AGAIN}")
        position += _SHAPE.size
        if name == "input":
            first = position
        position += 4 * rows * columns
        if position > len(file):
            raise UserError(f"{path}: truncated: {len(file)} bytes, but its {name} matrix ends at byte {position}; {_AGAIN}")
    size = 4 * header.dim
    rows = header.words + header.buckets
    return np.frombuffer(file, np.uint8, rows * size, first).reshape(rows, size)
