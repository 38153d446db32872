"""A source in parts of some megabytes, each of whole documents."""

import dataclasses
import os
from collections.abc import Iterable, Iterator
from typing import IO, TYPE_CHECKING

import numpy as np

from wechsel_jax.errors import UserError, one_line
from wechsel_jax.text.documents import check_kind, json_documents, listed, packed_documents, text_documents
from wechsel_jax.text.files import LONGEST_DOCUMENT, BadLine, is_compressed, open_counted, read_all, too_long
from wechsel_jax.text.sources import SOURCE_FILE, Source, find_sources, import_datasets

if TYPE_CHECKING:
    import pyarrow as pa

# Small enough that memory stays small; where a part ends changes no token.
PART_BYTES = 1 << 21
# Rows of a table that are in memory at once: each may be the longest document. And those that are looked for at once.
_ROWS, _MAPPED_ROWS = 16, 512


@dataclasses.dataclass(frozen=True)
class Part:
    """Text of one source, from one end of a document to another.

    Attributes:
      name: of the source, for messages.
      kind: "lines", "paragraphs" or "files" (text), "json" (lines) or "packed" (documents one after the other).
      field: of JSON lines.
      progress: bytes of the source on disk that were read for this part.
      start: where it begins in the source: a byte of the file, or of the text that was compressed.
      path: the file whose `size` bytes from `start` are the text; "" where `raw` is it.
      size: see path.
      lines_before: how many lines, or rows, the source has before `raw`.
      longest: bytes that a line or document has at most.
      raw: the text.
      sizes: (n,) int64, bytes of each document in raw, where it is packed.
    """

    name: str
    kind: str
    progress: int
    field: str = ""
    start: int = 0
    path: str = ""
    size: int = 0
    lines_before: int = 0
    longest: int = LONGEST_DOCUMENT
    raw: bytes = dataclasses.field(default=b"", repr=False)
    sizes: np.ndarray | None = dataclasses.field(default=None, repr=False)

    @property
    def bytes(self) -> int:
        """Of the text."""
        return self.size or len(self.raw)

    def documents(self) -> tuple[list[str], int]:
        """Returns the documents, and how many records held nothing but white space.

        Raises:
          UserError: a line is not what it should be; the message names file and line.
        """
        raw = self.raw
        if self.path:
            with open(self.path, "rb") as handle:
                handle.seek(self.start)
                raw = handle.read(self.size)
            if len(raw) != self.size:
                raise UserError(f"{self.path}: became shorter while it was being read; run the command again")
        try:
            if self.kind == "packed":
                return packed_documents(raw, self.sizes)
            if self.kind == "json":
                return json_documents(raw, self.field, self.start == 0, self.longest)
            return text_documents(raw, self.kind, self.start == 0, self.longest), 0
        except BadLine as bad:
            unit = "row" if self.kind == "packed" else "line"
            before = _newlines(self.path, self.start) if self.path else self.lines_before
            raise UserError(f"{self.name}: {unit} {before + bad.line + 1}: {bad.reason}") from None


def read_parts(source: Source, kind: str, part_bytes: int = PART_BYTES) -> Iterator[Part]:
    """Yields a source in parts, in order; the same ones each time.

    Of plain text and JSON lines only the places where parts begin and end are read here.

    Args:
      source: of `find_sources`.
      kind: what a document of a text file is: "lines", "paragraphs" or "files".
      part_bytes: about how many bytes of text a part holds; a longer document stays whole.

    Raises:
      UserError: the source is damaged, a document is longer than `source.longest`, or a table has no such column of text.
    """
    if source.kind in ("text", "json"):
        kind = "json" if source.kind == "json" else kind
        return (_packed_lines if is_compressed(source.place) else _ranges)(source, kind, part_bytes)
    return _tables(source, part_bytes)


def read_documents(source: Source | str | os.PathLike, kind: str = "lines") -> Iterator[str]:
    """Yields the documents of one source.

    Nothing is stripped, replaced or normalised. What ends a document, its last newline ("\\n" or "\\r\\n"), is not part of it;
    a byte order mark is dropped. What holds nothing but white space is no document; blank lines separate paragraphs.

    Args:
      source: of `find_sources`, or what names some there.
      kind: of a text file, "lines" (each line is a document), "paragraphs" (blocks of lines with blank lines between them) or
        "files" (the whole file is one).

    Raises:
      UserError: as `read_parts`, and where text is not UTF-8 or a line is not JSON (file and line are named), or there is no
        such kind.
    """
    check_kind(kind)
    found = [source] if isinstance(source, Source) else find_sources([source])
    return (document for one in found for part in read_parts(one, kind) for document in part.documents()[0])


def source_lines(source: Source) -> Iterator[str]:
    """Yields the lines of a source's documents, which may have several in JSON lines and tables; see `read_documents`."""
    return (line.rstrip("\r") for document in read_documents(source) for line in document.split("\n"))


def _ranges(source: Source, kind: str, part_bytes: int) -> Iterator[Part]:
    longest = source.longest
    with open_counted(source.place, SOURCE_FILE) as (handle, _):
        length, start = os.fstat(handle.fileno()).st_size, 0
        if kind == "files" and length > longest:
            raise UserError(f"{source.name}: {too_long(longest)}")
        while start < length:
            middle, rest = min(start + part_bytes, length), b""
            if kind == "files":
                middle = length
            elif middle < length:
                handle.seek(middle - 1)
                rest, whole = _rest(handle, kind, longest, after=handle.read(1))
            size = middle + len(rest) - start
            yield Part(source.name, kind, size, source.field, start, source.place, size, longest=longest)
            if rest and not whole:
                raise UserError(f"{source.name}: line {_newlines(source.place, middle) + 1}: {too_long(longest)}")
            start += size


def _packed_lines(source: Source, kind: str, part_bytes: int) -> Iterator[Part]:
    longest = source.longest
    with open_counted(source.place, SOURCE_FILE) as (handle, tell):
        start = lines = reported = 0
        while begun := read_all(handle, longest) if kind == "files" else handle.read(part_bytes):
            if kind == "files" and len(begun) > longest:
                raise UserError(f"{source.name}: {too_long(longest)}")
            rest, whole = _rest(handle, kind, longest, after=begun)
            raw = begun + rest
            # The reader may hold what it has read ahead, so the file is only known to be read at its end.
            read = tell()
            before = {"lines_before": lines, "longest": longest}
            yield Part(source.name, kind, read - reported, source.field, start, **before, raw=raw)
            if not whole:
                line = lines + begun.count(b"\n") + 1
                raise UserError(f"{source.name}: line {line}: {too_long(longest)}")
            start, lines, reported = start + len(raw), lines + raw.count(b"\n"), read


def _rest(handle: IO[bytes], kind: str, longest: int, after: bytes) -> tuple[bytes, bool]:
    """What is left of the line that the handle is in, and of a paragraph the lines up to a blank one; `after` came before it.

    Returns:
      The text, and whether it is all; no more is read than a document may have. Where it is not, it has too much for one, and
      whoever makes documents of it names the first mistake.
    """
    lines = [handle.readline(longest + 1)]
    size = len(lines[0])
    # A line end behind half a line is no blank line.
    blank = after.endswith(b"\n") and lines[0].decode("utf-8", "replace").isspace()
    # The line end behind a document does not belong to it.
    while kind == "paragraphs" and not blank and size - lines[-1].endswith(b"\n") <= longest:
        line = handle.readline(longest + 1)
        if not line:
            break
        lines.append(line)
        blank = line.decode("utf-8", "replace").isspace()
        size += 0 if blank else len(line)
    return b"".join(lines), size - lines[-1].endswith(b"\n") <= longest


def _newlines(path: str, size: int) -> int:
    """How many there are in the first `size` bytes of a file."""
    count = 0
    with open(path, "rb") as handle:
        while size and (chunk := handle.read(min(size, PART_BYTES))):
            count, size = count + chunk.count(b"\n"), size - len(chunk)
    return count


def _tables(source: Source, part_bytes: int) -> Iterator[Part]:
    """Collects rows until there are enough."""
    total, reported, start, rows, done = source.size, 0, 0, 0, 0
    raw: list[bytes] = []
    sizes: list[np.ndarray] = []

    def part(read: int) -> Part:
        packed = {"raw": b"".join(raw), "sizes": np.concatenate(sizes)}
        return Part(source.name, "packed", read - reported, source.field, start, lines_before=rows, **packed)

    held = 0
    for column, share in {"hub": _hub_rows, "parquet": _parquet_rows, "saved": _saved_rows}[source.kind](source):
        text, lengths = _strings(source, column, done)
        raw.append(text)
        sizes.append(lengths)
        held, done = held + len(text), done + len(lengths)
        if held >= part_bytes:
            yield part(read := int(total * share))
            start, rows, held, reported = start + held, done, 0, read
            raw.clear()
            sizes.clear()
    if sizes:
        yield part(total)


def _parquet_rows(source: Source) -> Iterator[tuple["pa.Array", float]]:
    """Yields (a few rows, share of the source that has been read)."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with pq.ParquetFile(source.place) as file:
            _check_column(source, file.schema_arrow.names)
            done = 0
            for batch in file.iter_batches(_ROWS, columns=[source.field]):
                done += batch.num_rows
                yield batch.column(0), done / max(1, file.metadata.num_rows)
    except (pa.ArrowException, OSError) as error:
        damage = f"the Parquet file is damaged or cut short ({one_line(error)})"
        raise UserError(f"{source.name}: {damage}; fetch it again") from None


def _saved_rows(source: Source) -> Iterator[tuple["pa.Array", float]]:
    dataset = source.open_saved()
    _check_column(source, dataset.column_names)
    arrow, done = dataset.select_columns([source.field]).with_format("arrow"), 0
    # These are mapped, not read.
    for table in arrow.iter(_MAPPED_ROWS):
        for chunk in table.column(0).chunks:
            for start in range(0, len(chunk), _ROWS):
                some = chunk.slice(start, _ROWS)
                done += len(some)
                yield some, done / max(1, dataset.num_rows)


def _hub_rows(source: Source) -> Iterator[tuple["pa.Array", float]]:
    import_datasets(source.name)
    import pyarrow as pa

    for columns in source.streamed(source.open_hub().iter(_ROWS)):
        _check_column(source, columns)
        try:
            strings = pa.array(columns[source.field], pa.large_string())
        except (pa.ArrowException, TypeError):
            raise UserError(
                f"{source.name}: field {source.field!r} holds something else than text; name another field"
            ) from None
        yield strings, 0.0


def _check_column(source: Source, names: Iterable[str]) -> None:
    if source.field not in names:
        raise UserError(
            f"{source.name}: has no field {source.field!r}; expected one of {listed(names)}: name it with text_field"
        )


def _strings(source: Source, column: "pa.Array", done: int) -> tuple[bytes, np.ndarray]:
    """The UTF-8 of a column one after the other, and the sizes of its rows; null is text of no length.

    Args:
      source: for messages.
      column: of text.
      done: how many rows the source has before it.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    # Of type null is a column in which every row is.
    kinds = (pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view, pa.types.is_null)
    if not any(is_kind(column.type) for is_kind in kinds):
        raise UserError(f"{source.name}: field {source.field!r} is {column.type}; expected text; name another with text_field")
    column = pc.fill_null(column.cast(pa.large_string()), "")
    if not len(column):
        return b"", np.zeros(0, np.int64)
    _, offsets, text = column.buffers()
    places = np.frombuffer(offsets, np.int64)[column.offset : column.offset + len(column) + 1]
    sizes = np.diff(places)
    long = sizes > source.longest
    if long.any():
        raise UserError(f"{source.name}: row {done + int(long.argmax()) + 1}: {too_long(source.longest)}")
    raw = b"" if text is None else text.slice(int(places[0]), int(places[-1] - places[0])).to_pybytes()
    return raw, sizes
