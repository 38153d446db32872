"""The words and rows of a vector file, a block at a time: text lines (.vec, word2vec, GloVe) and word2vec's binary records."""

import os
import warnings
from collections.abc import Iterator, Sequence
from typing import IO, NamedTuple

import numpy as np

from wechsel_jax.errors import UserError
from wechsel_jax.text.files import BYTE_ORDER_MARK, decode_line

# Numbers of a row, and bytes of a word and of a line: far above those of real vectors, so that a file of something else is
# refused before it fills the memory.
LONGEST_DIMENSION, LONGEST_WORD, _LONGEST_LINE = 1 << 14, 1 << 16, 1 << 21
_BLOCK_BYTES = 1 << 23


class Records(NamedTuple):
    """n words with their rows (n, m) float32; `places` are the numbers of their lines, or of the words in a binary file."""

    places: Sequence[int]
    words: list[str]
    rows: np.ndarray


def text_records(handle: IO[bytes], header: tuple[int, int] | None, path: os.PathLike) -> Iterator[Records]:
    """Reads lines of a word and its numbers.

    Args:
      handle: the file, at its start.
      header: (words, dimension) where the first line says so; it is skipped then.
      path: for messages.

    Yields:
      Blocks of records.

    Raises:
      UserError: a line has another number of numbers than the others, something that is no number, or is not UTF-8.
    """
    dim = header[1] if header else None
    number, rest = 1, b""
    while block := handle.read(_BLOCK_BYTES):
        complete, newline, rest = (rest + block).rpartition(b"\n")
        if not newline:
            if len(rest) > _LONGEST_LINE:
                raise UserError(f"{path}: line {number}: longer than {_LONGEST_LINE} bytes; expected a word and its numbers")
            continue
        lines = complete.split(b"\n")
        dim = dim or _dimension(lines[0], path)
        yield _parse_lines(lines, number, dim, header is not None, path)
        number += len(lines)
    if rest:
        yield _parse_lines([rest], number, dim or _dimension(rest, path), header is not None, path)


def _parse_lines(lines: list[bytes], number: int, dim: int, has_header: bool, path: os.PathLike) -> Records:
    if number == 1:
        lines[0] = lines[0].removeprefix(BYTE_ORDER_MARK)
        if has_header:
            lines, number = lines[1:], 2
    parts = [line.partition(b" ") for line in lines]
    numbers = [part[2].strip() for part in parts]
    # The fast way needs m numbers with one space between them in every line; anything else is looked at line by line.
    if all(text.count(b" ") == dim - 1 for text in numbers):
        flat = _parse_numbers(b" ".join(numbers))
        if flat is not None and len(flat) == dim * len(lines):
            places = range(number, number + len(lines))
            words = [_word(part[0], path, place) for part, place in zip(parts, places, strict=True)]
            return Records(places, words, flat.reshape(len(lines), dim))
    kept = [(number + i, line) for i, line in enumerate(lines) if line.strip()]
    parsed = [_parse_line(line, place, dim, path) for place, line in kept]
    rows = np.array([row for _, row in parsed], np.float32).reshape(len(parsed), dim)
    return Records([place for place, _ in kept], [word for word, _ in parsed], rows)


def _parse_line(line: bytes, place: int, dim: int, path: os.PathLike) -> tuple[str, np.ndarray]:
    """Reads one line with care: tabs, several spaces, and words with spaces in them (GloVe 840B has such) are fine."""
    word, *numbers = line.rsplit(None, dim)
    _refuse_long(word, path, place)
    # Numbers left over beside the word mean a longer row, not a word such as ". . ."
    surplus = sum(_parse_numbers(field) is not None for field in word.split()[1:])
    found = len(numbers) + (surplus if surplus == len(word.split()) - 1 else 0)
    if line[:1] in b" \t" or found != dim:
        raise UserError(f"{path}: line {place}: {found} numbers after the word; expected {dim}, as the first line says")
    row = _parse_numbers(b" ".join(numbers))
    if row is None or len(row) != dim:
        wrong = next((field for field in numbers if _parse_numbers(field) is None), b"").decode("utf-8", "replace")
        raise UserError(f"{path}: line {place}: {wrong[:40]!r} is no number; expected a word and {dim} numbers")
    return _word(word, path, place), row


def _parse_numbers(text: bytes) -> np.ndarray | None:
    """Returns the numbers of a text as float32, or None where something in it is no number."""
    with warnings.catch_warnings():
        # Older numpy releases warn about what newer ones refuse.
        warnings.simplefilter("error", DeprecationWarning)
        try:
            return np.fromstring(text, np.float32, sep=" ")
        except (ValueError, DeprecationWarning):
            return None


def _word(text: bytes, path: os.PathLike, place: int) -> str:
    _refuse_long(text, path, place)
    word = decode_line(text, path, place)
    if not word:
        raise UserError(f"{path}: line {place}: no word before the numbers; expected a word and its numbers")
    return word


def _refuse_long(text: bytes, path: os.PathLike, place: int) -> None:
    if len(text) > LONGEST_WORD:
        raise UserError(f"{path}: line {place}: a word of {len(text)} bytes; expected {LONGEST_WORD} at most, then numbers")


def _dimension(line: bytes, path: os.PathLike) -> int:
    """Returns how many numbers follow the word in the first line of a file without a header."""
    decode_line(line, path, 1)
    dim = len(line.split()) - 1
    numbers = _parse_numbers(b" ".join(line.split()[1:]))
    if not 2 <= dim <= LONGEST_DIMENSION or numbers is None:
        raise UserError(f"{path}: line 1: expected a word and its numbers, or the header 'words dimension'")
    return dim


def binary_records(handle: IO[bytes], header: tuple[int, int], path: os.PathLike) -> Iterator[Records]:
    """Reads word2vec's binary records: a word, a space, m little-endian float32, and perhaps a line feed.

    Args:
      handle: the file, at its start.
      header: (words, dimension) from the first line.
      path: for messages.

    Yields:
      Blocks of records.

    Raises:
      UserError: the file ends within a record, or a word is not UTF-8.
    """
    count, dim = header
    handle.readline()
    buffer, done = b"", 0
    while done < count:
        block = handle.read(_BLOCK_BYTES)
        buffer += block
        words, rows, position = [], [], 0
        while done + len(words) < count:
            space = buffer.find(b" ", position, position + LONGEST_WORD)
            end = space + 1 + 4 * dim
            if space < 0 and len(buffer) - position >= LONGEST_WORD:
                raise UserError(
                    f"{path}: word {done + len(words) + 1}: longer than any word; the file is damaged: fetch it again"
                )
            if space < 0 or end > len(buffer):
                break
            words.append(_binary_word(buffer[position:space].lstrip(b"\n"), path, done + len(words) + 1))
            rows.append(buffer[space + 1 : end])
            position = end
        buffer = buffer[position:]
        if words:
            matrix = np.frombuffer(b"".join(rows), "<f4").reshape(len(words), dim)
            yield Records(range(done + 1, done + 1 + len(words)), words, matrix)
        done += len(words)
        if not block and done < count:
            raise UserError(f"{path}: word {done + 1} of {count}: the file ends within it; fetch it again")
    if buffer.strip() or handle.read(1).strip():
        raise UserError(f"{path}: the first line promises {count} words, but more follows; fetch it again")


def _binary_word(text: bytes, path: os.PathLike, place: int) -> str:
    try:
        return text.decode("utf-8")
    except UnicodeDecodeError:
        raise UserError(f"{path}: word {place}: {text[:40]!r} is not UTF-8; expected a UTF-8 file") from None
