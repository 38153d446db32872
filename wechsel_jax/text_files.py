"""Text files that may be compressed, line by line, with errors that name the line."""

import bz2
import contextlib
import gzip
import lzma
import os
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from wechsel_jax.errors import UserError
from wechsel_jax.files import require_file

BYTE_ORDER_MARK = b"\xef\xbb\xbf"
UTF16_MARKS = (b"\xff\xfe", b"\xfe\xff")
_OPENERS = ((b"\x1f\x8b", gzip.open), (b"\xfd7zXZ\0", lzma.open), (b"BZh", bz2.open))
_DAMAGED = (EOFError, zlib.error, lzma.LZMAError, gzip.BadGzipFile)


@contextlib.contextmanager
def open_binary(path: str | os.PathLike, what: str) -> Iterator[IO[bytes]]:
    """Opens a file for reading bytes; gzip, xz and bzip2 are recognised by their first bytes and undone.

    Args:
      path: the file.
      what: what was expected, for the message where there is no such file.

    Raises:
      UserError: the file is missing, empty or its compression is damaged (also while the block reads from it).
    """
    path = require_file(path, what)
    with open(path, "rb") as handle:
        opener = next((opener for magic, opener in _OPENERS if handle.peek(8).startswith(magic)), None)
        try:
            if opener is None:
                yield handle
            else:
                with opener(handle) as unpacked:
                    yield unpacked
        except _DAMAGED as error:
            raise UserError(f"{path}: the compressed file is damaged or cut short ({error}); fetch it again") from None


def is_compressed(path: Path) -> bool:
    """Whether the file is one that `open_binary` would unpack."""
    with open(path, "rb") as handle:
        start = handle.read(8)
    return any(start.startswith(magic) for magic, _ in _OPENERS)


def read_lines(path: str | os.PathLike, what: str) -> Iterator[tuple[int, str]]:
    """Yields (line number from 1, line without its end) of a UTF-8 text file, compressed or not.

    Raises:
      UserError: as `open_binary`, and where a line is not UTF-8.
    """
    with open_binary(path, what) as handle:
        for number, line in enumerate(handle, 1):
            yield number, decode_line(line, path, number).rstrip("\r\n")


def decode_line(line: bytes, path: str | os.PathLike, number: int) -> str:
    """Decodes one line of UTF-8; a byte order mark at the start of the file is dropped.

    Raises:
      UserError: the line is not UTF-8.
    """
    if number == 1:
        if line.startswith(UTF16_MARKS):
            raise UserError(f"{path}: line 1: the text is UTF-16; expected UTF-8: convert it with `iconv -f UTF-16 -t UTF-8`")
        line = line.removeprefix(BYTE_ORDER_MARK)
    try:
        return line.decode("utf-8")
    except UnicodeDecodeError as error:
        shown = f"byte 0x{line[error.start]:02x} at position {error.start + 1}"
        raise UserError(f"{path}: line {number}: not UTF-8 ({shown}); convert the file to UTF-8, e.g. with iconv") from None
