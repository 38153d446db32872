"""Word vectors in one compact `.npz` file: no pickle, half or single precision.

Arrays: `format` (the number 1), `words` uint8 (the UTF-8 bytes of all words, one after the other), `lengths` unsigned (W,)
(bytes of each word), `vectors` float16 or float32 (W, m), and `counts` unsigned (W,) where they are known.
"""

import os
from collections.abc import Sequence

import numpy as np

from wechsel_jax.errors import UserError
from wechsel_jax.files import new_file
from wechsel_jax.files.npz import read_arrays
from wechsel_jax.vectors.word_records import LONGEST_WORD
from wechsel_jax.vectors.word_vectors import PlainVectors

_FORMAT = 1
_EXPECTED = "word vectors written by save_vectors (.npz): write or fetch it again"
_REQUIRED = ("format", "words", "lengths", "vectors")
# Numbers of trained vectors hardly shrink; words become many times as large where they are read.
_MOST_TIMES = 16


def save_vectors(
    path: str | os.PathLike,
    words: Sequence[str],
    vectors: np.ndarray,
    counts: np.ndarray | None = None,
    *,
    dtype: str | None = None,
) -> None:
    """Writes words and vectors to one `.npz` file, whole or not at all.

    Args:
      path: the file to write, replaced where it exists.
      words: W distinct words, most frequent first.
      vectors: (W, m) floats.
      counts: (W,) occurrences, or None where they are unknown.
      dtype: "float16" or "float32"; by default float16 stays float16 and everything else becomes float32.

    Raises:
      UserError: a vector is not finite in that precision.
      ValueError: the lengths differ, words repeat, a count is negative or the dtype is another one.
    """
    vectors = np.asarray(vectors)
    dtype = dtype or ("float16" if vectors.dtype == np.float16 else "float32")
    if dtype not in ("float16", "float32"):
        raise ValueError(f"dtype {dtype!r}; expected 'float16' or 'float32'")
    if vectors.ndim != 2 or len(vectors) != len(words) or (counts is not None and len(counts) != len(words)):
        raise ValueError(f"{len(words)} words, vectors of shape {vectors.shape} and counts do not belong together")
    if len(set(words)) != len(words):
        raise ValueError("a word occurs twice")
    with np.errstate(over="ignore"):
        stored = vectors.astype(dtype)
    if not np.isfinite(stored).all():
        row = int(np.flatnonzero(~np.isfinite(stored).all(axis=1))[0])
        raise UserError(f"{path}: the vector of {words[row]!r} (word {row + 1}) is not finite in {dtype}; try float32")
    spelled = [word.encode("utf-8") for word in words]
    arrays = {
        "format": np.uint8(_FORMAT),
        "words": np.frombuffer(b"".join(spelled), np.uint8),
        "lengths": _smallest_unsigned(np.array([len(word) for word in spelled], np.int64)),
        "vectors": stored,
    }
    if counts is not None:
        arrays["counts"] = _smallest_unsigned(np.asarray(counts, np.int64))
    with new_file(path) as handle:
        np.savez_compressed(handle, **arrays)


def load_archive(path: str | os.PathLike, max_words: int | None = None) -> PlainVectors:
    """Reads what `save_vectors` wrote.

    Args:
      path: the `.npz` file.
      max_words: keep only this many words from the start.

    Returns:
      The vectors in the precision of the file.

    Raises:
      UserError: the file is damaged or holds something else.
    """
    arrays = read_arrays(path, _EXPECTED, (*_REQUIRED, "counts"), _MOST_TIMES)
    missing = [name for name in _REQUIRED if name not in arrays]
    if missing:
        raise UserError(f"{path}: the array {missing[0]!r} is missing; expected {_EXPECTED}")
    if arrays["format"].shape != () or arrays["format"] != _FORMAT:
        raise UserError(f"{path}: format {arrays['format']}; expected {_FORMAT}: install a newer version of this package")
    vectors, counts = arrays["vectors"], arrays.get("counts")
    _check_arrays(arrays, path)
    words = _split_words(arrays["words"], arrays["lengths"], path)
    kept = slice(None if max_words is None else max_words)
    bad = np.flatnonzero(~np.isfinite(vectors[kept]).all(axis=1))
    if len(bad):
        place = f"word {bad[0] + 1} ({words[bad[0]][:40]!r})"
        raise UserError(f"{path}: {place}: NaN or infinity in the vector; write the file again")
    return PlainVectors(words[kept], vectors[kept], None if counts is None else counts[kept].astype(np.int64))


def _check_arrays(arrays: dict[str, np.ndarray], path: os.PathLike) -> None:
    vectors, lengths, blob = arrays["vectors"], arrays["lengths"], arrays["words"]
    counts = arrays.get("counts", lengths)
    sound = (
        vectors.ndim == 2
        and vectors.dtype in (np.float16, np.float32)
        and lengths.dtype.kind == counts.dtype.kind == "u"
        and blob.dtype == np.uint8
        and lengths.shape == counts.shape == vectors.shape[:1]
        and blob.shape == (int(lengths.sum(dtype=np.int64)),)
        and vectors.size > 0
        and lengths.max() <= LONGEST_WORD
    )
    if not sound:
        shapes = ", ".join(f"{name} {array.dtype}{list(array.shape)}" for name, array in arrays.items())
        raise UserError(f"{path}: the arrays do not belong together ({shapes}); expected {_EXPECTED}")


def _split_words(blob: np.ndarray, lengths: np.ndarray, path: os.PathLike) -> list[str]:
    text, ends = blob.tobytes(), np.cumsum(lengths, dtype=np.int64).tolist()
    try:
        words = [text[start:end].decode("utf-8") for start, end in zip([0, *ends], ends, strict=False)]
    except UnicodeDecodeError:
        raise UserError(f"{path}: a word is not UTF-8; expected {_EXPECTED}") from None
    if len(set(words)) != len(words):
        raise UserError(f"{path}: a word occurs twice; expected {_EXPECTED}")
    return words


def _smallest_unsigned(values: np.ndarray) -> np.ndarray:
    if len(values) and values.min() < 0:
        raise ValueError("a count is negative")
    return values.astype(np.min_scalar_type(int(values.max(initial=0))))
