"""Text files that may be compressed, line by line, with errors that name the line."""

import bz2
import contextlib
import gzip
import io
import lzma
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any

from wechsel_jax.errors import UserError, from_extra, parsing
from wechsel_jax.files import require_file

# Bytes of the longest line, or document, that is read unless a setting says otherwise. A book has one to ten megabytes; what is
# longer is rather a corpus without newlines, or a small compressed file that unpacks to more than there is memory.
LONGEST_DOCUMENT = 1 << 24

BYTE_ORDER_MARK = b"\xef\xbb\xbf"
UTF16_MARKS = (b"\xff\xfe", b"\xfe\xff")
IS_UTF16 = "the text is UTF-16; expected UTF-8: convert it with `iconv -f UTF-16 -t UTF-8`"
# A file may begin with a frame that holds no text, as pzstd's do.
ZSTD_MAGICS = (b"(\xb5/\xfd", *(bytes([first]) + b"*M\x18" for first in range(0x50, 0x60)))
_LARGEST_ZSTD_WINDOW = 1 << 31
# Read from a zstd file at once: text that repeats itself may become thirty thousand times as much.
_PACKED_BYTES = 1 << 10
_BUFFER = 1 << 16
# Read at once where a document may be long.
_CHUNK = 1 << 20


@contextlib.contextmanager
def open_binary(path: str | os.PathLike, what: str) -> Iterator[IO[bytes]]:
    """Opens a file for reading bytes; gzip, xz, bzip2 and zstd are recognised by their first bytes and undone.

    Args:
      path: the file.
      what: what was expected, for the message where there is no such file.

    Raises:
      UserError: the file is missing, empty or its compression is damaged (also while the block reads from it), or it is
        compressed with zstd and the package for that is not installed.
    """
    with open_counted(path, what) as (handle, _):
        yield handle


@contextlib.contextmanager
def open_counted(path: str | os.PathLike, what: str) -> Iterator[tuple[IO[bytes], Callable[[], int]]]:
    """As `open_binary`, with a function that says how many bytes of the file itself have been read."""
    path = require_file(path, what)
    with open(path, "rb") as handle:
        opener = _opener(handle.peek(8), path)
        if opener is None:
            yield handle, handle.tell
        else:
            with opener(handle) as unpacked:
                whole = "a whole compressed file; this one is damaged or cut short: fetch it again"
                yield guarded(unpacked, path, whole, lzma.LZMAError), handle.tell


def is_compressed(path: str | os.PathLike) -> bool:
    """Whether the file is one that `open_binary` would unpack."""
    with open(path, "rb") as handle:
        start = handle.read(8)
    return start.startswith((*_OPENERS, *ZSTD_MAGICS))


def guarded(unpacked: IO[bytes], path: str | os.PathLike, expected: str, *others: type[Exception]) -> IO[bytes]:
    """The bytes of a file that some library unpacks; whatever it raises at damage names the file, as `parsing` does."""
    return io.BufferedReader(_Guarded(unpacked, path, expected, *others), _BUFFER)


class _Guarded(io.RawIOBase):
    """See `guarded`."""

    def __init__(self, unpacked: IO[bytes], *described: Any):
        self._unpacked, self._described = unpacked, described

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: memoryview) -> int:
        with parsing(*self._described):
            # As far as it comes: what stands before the damage is read first.
            return self._unpacked.readinto1(buffer)


class _ZstdReader(io.RawIOBase):
    """The bytes of a file of zstd frames; the library's own reader takes a file cut short for its end."""

    def __init__(self, handle: IO[bytes], path: Path):
        with from_extra("train", f"to read {path}, which is compressed with zstd", "or `pip install zstandard`"):
            import zstandard
        self._handle, self._error = handle, zstandard.ZstdError
        self._frames = zstandard.ZstdDecompressor(max_window_size=_LARGEST_ZSTD_WINDOW)
        self._frame, self._packed, self._plain = None, b"", memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: memoryview) -> int:
        while not self._plain:
            if not self._packed and not (packed := self._handle.read(_PACKED_BYTES)):
                if self._frame is not None:
                    raise EOFError("the last zstd frame is not complete")
                return 0
            self._plain = memoryview(self._unpack(self._packed or packed))
        size = min(len(buffer), len(self._plain))
        buffer[:size], self._plain = self._plain[:size], self._plain[size:]
        return size

    def _unpack(self, packed: bytes) -> bytes:
        frame = self._frame or self._frames.decompressobj()
        try:
            plain = frame.decompress(packed)
        except self._error as error:
            raise EOFError(str(error)) from None
        self._frame, self._packed = (None, frame.unused_data) if frame.eof else (frame, b"")
        return plain


# How a Parquet file begins.
PARQUET = b"PAR1"
_OPENERS = {b"\x1f\x8b": gzip.open, b"\xfd7zXZ\0": lzma.open, b"BZh": bz2.open}


def _opener(start: bytes, path: Path) -> Callable[[IO[bytes]], IO[bytes]] | None:
    if start.startswith(ZSTD_MAGICS):
        return lambda handle: io.BufferedReader(_ZstdReader(handle, path))
    return next((opener for magic, opener in _OPENERS.items() if start.startswith(magic)), None)


def read_lines(
    path: str | os.PathLike, what: str, longest: int = LONGEST_DOCUMENT, *, raised: bool = False
) -> Iterator[tuple[int, str]]:
    """Yields (line number from 1, line without its end) of a UTF-8 text file, compressed or not.

    Args:
      path: the file.
      what: what was expected, for messages.
      longest: bytes of a line.
      raised: whether a user can say more, with max_document_bytes.

    Raises:
      UserError: as `open_binary`, and where a line is not UTF-8 or has more than `longest` bytes; no more of it is read.
    """
    with open_binary(path, what) as handle:
        yield from numbered_lines(handle, path, longest, raised=raised)


def numbered_lines(
    handle: IO[bytes], path: str | os.PathLike, longest: int, *, raised: bool = False
) -> Iterator[tuple[int, str]]:
    """As `read_lines`, of a file that is open."""
    number = 0
    while line := handle.readline(longest + 1):
        number += 1
        if len(line.removesuffix(b"\n")) > longest:
            shorter = "expected shorter lines; break or shorten it"
            told = too_long(longest) if raised else f"longer than {longest:,} bytes; {shorter}"
            raise UserError(f"{path}: line {number}: {told}")
        yield number, decode_line(line, path, number).rstrip("\r\n")


def read_all(handle: IO[bytes], longest: int) -> bytes:
    """What is left of a file; where that is more than `longest` bytes, one more than that."""
    chunks, size = [], 0
    while size <= longest and (chunk := handle.read(min(_CHUNK, longest + 1 - size))):
        chunks.append(chunk)
        size += len(chunk)
    return b"".join(chunks)


def too_long(longest: int) -> str:
    """What is said, behind its place, of a line, row or document of more bytes than the setting `longest` allows."""
    return (
        f"longer than {longest:,} bytes; expected shorter documents; cut them at newlines, or raise max_document_bytes where "
        "that is a setting"
    )


def decode_line(line: bytes, path: str | os.PathLike, number: int) -> str:
    """Decodes one line of UTF-8; a byte order mark at the start of the file is dropped.

    Raises:
      UserError: the line is not UTF-8.
    """
    try:
        return decode(line, number == 1)
    except BadLine as bad:
        raise UserError(f"{path}: line {number}: {bad.reason}") from None


class BadLine(Exception):
    """A line, counted from 0 in what was read at once, that is not what it should be."""

    def __init__(self, line: int, reason: str):
        super().__init__(line, reason)
        self.line, self.reason = line, reason


def decode(raw: bytes, first: bool, line: int | None = None) -> str:
    """Decodes UTF-8.

    Args:
      raw: one line or several.
      first: whether the file begins with it; a byte order mark is dropped then.
      line: the number that a mistake is reported with; None: that of the line in `raw`.

    Raises:
      BadLine: it is not UTF-8.
    """
    if first:
        if raw.startswith(UTF16_MARKS):
            raise BadLine(0, IS_UTF16)
        raw = raw.removeprefix(BYTE_ORDER_MARK)
        # A page's header follows, whose first byte no text has.
        if raw.startswith(PARQUET + b"\x15"):
            raise BadLine(0, "a Parquet file that was compressed once more; expected text, or Parquet as it is: decompress it")
        # UTF-16 without a mark has a zero in every space and line feed; of scripts below U+8000, such as Devanagari and Thai,
        # all its bytes are valid UTF-8.
        if raw.count(0) > max(3, len(raw) // 256, (raw.count(b" ") + raw.count(b"\n")) // 2):
            raise BadLine(0, "has as many zero bytes as UTF-16, or a binary file; expected UTF-8: convert it with `iconv`")
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError as error:
        position = error.start - raw.rfind(b"\n", 0, error.start)
        shown = f"byte 0x{raw[error.start]:02x} at position {position}"
        reason = f"not UTF-8 ({shown}); convert the file to UTF-8, e.g. with iconv"
        raise BadLine(raw.count(b"\n", 0, error.start) if line is None else line, reason) from None
