"""Word vectors from whatever file they come in: fastText, word2vec (text and binary), GloVe or our own `.npz`.

The format is told by the content, never by the extension; gzip, xz and bzip2 are undone on the way.
"""

import logging
import os
import re
from pathlib import Path

import numpy as np
from tqdm import tqdm

from wechsel_jax.errors import UserError
from wechsel_jax.files import require_file
from wechsel_jax.text.files import IS_UTF16, UTF16_MARKS, is_compressed, open_binary
from wechsel_jax.vectors import fasttext_format
from wechsel_jax.vectors.archive import load_archive
from wechsel_jax.vectors.fasttext_format import FastTextVectors
from wechsel_jax.vectors.word_records import LONGEST_DIMENSION, binary_records, text_records
from wechsel_jax.vectors.word_vectors import PlainVectors, WordVectors

_EXPECTED = "word vectors: a fastText .bin or .vec, word2vec text or binary, GloVe, or an .npz from save_vectors"
_DETECTION_BYTES = 1 << 16
_PROGRESS_FROM_BYTES = 100 << 20
_MOST_ROWS_ON_TRUST = 1 << 24

_log = logging.getLogger(__name__)


def load_vectors(path: str | os.PathLike, max_words: int | None = None) -> WordVectors:
    """Opens word vectors of any known format.

    A fastText `.bin` is memory-mapped and has vectors for words that it never saw; all other formats are read into memory as
    they are, and hold their own words only. Of a word that occurs again, as in some published files, the first and so most
    frequent one is kept, and a warning is logged.

    Args:
      path: the file, compressed or not (a compressed fastText `.bin` cannot be mapped and is refused).
      max_words: keep only this many of the first (most frequent) words.

    Returns:
      The vectors.

    Raises:
      UserError: no such file, another format, or a damaged file; the message names the line or word.

    >>> from wechsel_jax import demo
    >>> words = load_vectors(demo.path("english.vectors.npz"))
    >>> words.words[:3], words.dim
    ([',', '.', 'the'], 100)
    """
    if max_words is not None and max_words < 1:
        raise UserError(f"max_words is {max_words}; expected at least 1")
    path = require_file(path, _EXPECTED)
    with open_binary(path, _EXPECTED) as handle:
        start = handle.read(_DETECTION_BYTES)
    if start.startswith(fasttext_format.MAGIC):
        if is_compressed(path):
            raise UserError(f"{path}: a compressed fastText model; decompress it first (e.g. gunzip), so that it can be mapped")
        return FastTextVectors(path, max_words)
    if start.startswith(b"PK"):
        return load_archive(path, max_words)
    if start.startswith(UTF16_MARKS):
        raise UserError(f"{path}: {IS_UTF16}")
    header = _header(start, path)
    if header is None and b"\0" in start:
        raise UserError(f"{path}: an unknown binary format (or a fastText model from before 2017); expected {_EXPECTED}")
    binary = header is not None and not _is_text(start, header[1])
    return _collect(path, header, binary, max_words)


def _header(start: bytes, path: Path) -> tuple[int, int] | None:
    """Returns (words, dimension) where the first line is word2vec's."""
    match = re.match(rb"(?:\xef\xbb\xbf)?[ \t]*(\d{1,18})[ \t]+(\d{1,18})[ \t]*(?:\r?\n|$)", start)
    if match is None:
        return None
    words, dim = int(match[1]), int(match[2])
    if words == 0 or not 1 <= dim <= LONGEST_DIMENSION:
        raise UserError(f"{path}: line 1: {words} words of {dim} dimensions; expected 1 or more of 1 to {LONGEST_DIMENSION}")
    return words, dim


def _is_text(start: bytes, dim: int) -> bool:
    """Whether the rows after the header are text; a text with a mistake in it is still text."""
    body = start.partition(b"\n")[2]
    numbers = body.partition(b"\n")[0].split()[1:]
    if len(numbers) == dim and all(re.fullmatch(rb"[-+0-9.eE]+|[-+]?(?:nan|inf)", number) for number in numbers):
        return True
    return re.search(rb"[\x00-\x08\x0e-\x1f]", body) is None


def _collect(path: Path, header: tuple[int, int] | None, binary: bool, max_words: int | None) -> PlainVectors:
    """Puts the records of a file into one matrix, and refuses what no vectors should hold."""
    promised = header[0] if header else None
    unit = "word" if binary else "line"
    words: dict[str, None] = {}
    repeated, first_repeated = 0, ""
    matrix = None
    size = path.stat().st_size
    with open_binary(path, _EXPECTED) as handle:
        records = binary_records(handle, header, path) if binary else text_records(handle, header, path)
        with tqdm(total=promised, unit=" words", desc=path.name, disable=size < _PROGRESS_FROM_BYTES) as bar:
            for places, block, rows in records:
                bad = np.flatnonzero(~np.isfinite(rows).all(axis=1))
                if len(bad):
                    raise UserError(f"{path}: {unit} {places[bad[0]]}: NaN or infinity in the vector; expected finite numbers")
                new = []
                for i, word in enumerate(block):
                    if word in words:
                        repeated += 1
                        first_repeated = first_repeated or f"{unit} {places[i]}: {word[:40]!r}"
                    else:
                        new.append(i)
                        words[word] = None
                bar.update(len(rows))
                rows = rows if len(new) == len(rows) else rows[new]
                if matrix is None:
                    # A number takes two bytes at least, and compressed text hardly less than a quarter of one.
                    room = 4 * size // rows.shape[1]
                    hint = min(promised or len(rows), max_words or _MOST_ROWS_ON_TRUST, _MOST_ROWS_ON_TRUST, room)
                    matrix = np.empty((max(hint, len(rows)), rows.shape[1]), np.float32)
                matrix = _with_room(matrix, len(words))
                matrix[len(words) - len(rows) : len(words)] = rows
                if max_words is not None and len(words) >= max_words:
                    break
    read = len(words) + repeated
    if promised is not None and read != promised and len(words) < (max_words or read + 1):
        raise UserError(f"{path}: the first line promises {promised} words, but {read} follow; fetch the file again")
    if repeated:
        _log.warning("%s: words that occur again: %d, first %s; the first of each is kept", path, repeated, first_repeated)
    return PlainVectors(list(words)[:max_words], matrix[: len(words)][:max_words])


def _with_room(matrix: np.ndarray, rows: int) -> np.ndarray:
    if rows <= len(matrix):
        return matrix
    larger = np.empty((max(rows, len(matrix) * 3 // 2), matrix.shape[1]), np.float32)
    larger[: len(matrix)] = matrix
    return larger
