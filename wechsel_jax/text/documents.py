"""Documents: the text between two ends of a document, character by character as it stands."""

import itertools
import json
from collections.abc import Iterable
from typing import Any

import numpy as np

from wechsel_jax.errors import UserError, one_line
from wechsel_jax.text.files import BadLine, decode, too_long

KINDS = ("lines", "paragraphs", "files")
# Of a record's fields that a message names: characters of each, and how many.
_NAME, _NAMES = 40, 10


def check_kind(kind: str) -> None:
    """Raises `UserError` where there is no such kind of document."""
    if kind not in KINDS:
        raise UserError(f"documents: {kind!r} is not known; expected {', '.join(KINDS[:-1])} or {KINDS[-1]}")


def is_blank(text: str) -> bool:
    """Whether there is nothing but white space."""
    return not text or text.isspace()


def text_documents(raw: bytes, kind: str, first: bool, longest: int) -> list[str]:
    """The documents of whole lines of a text file.

    Args:
      raw: the lines, as they stand in the file.
      kind: one of `KINDS`; what is raw holds whole documents.
      first: whether these are the first lines of the file.
      longest: bytes that a document has at most.

    Raises:
      BadLine: a line is not UTF-8, or a document is longer.
    """
    _refuse_long(raw, longest)
    # Every line but the last had a newline; there is no last line where the text ended with one.
    *lines, last = decode(raw, first).split("\n")
    if kind == "lines":
        return [line for line in (*(line.removesuffix("\r") for line in lines), last) if not is_blank(line)]
    groups: list[list[str]] = [[]]
    starts = [0]
    for number, line in enumerate((*(line + "\n" for line in lines), last), 1):
        if kind == "paragraphs" and is_blank(line):
            groups.append([])
            starts.append(number)
        else:
            groups[-1].append(line)
    documents = ["".join(group) for group in groups]
    documents = [text[:-2] if text.endswith("\r\n") else text.removesuffix("\n") for text in documents]
    for start, document in zip(starts, documents, strict=True):
        if len(raw) > longest and len(document.encode()) > longest:
            raise BadLine(start, too_long(longest))
    return [document for document in documents if not is_blank(document)]


def json_documents(raw: bytes, field: str, first: bool, longest: int) -> tuple[list[str], int]:
    """The documents of JSON lines, and how many more were blank.

    Args:
      raw: whole lines, each a JSON object; blank lines are passed over.
      field: which holds the text.
      first: whether these are the first lines of the file.
      longest: bytes that a line has at most.

    Raises:
      BadLine: a line is longer or no JSON object, or has no such field, or something else than text in it.
    """
    _refuse_long(raw, longest)
    documents, blank = [], 0
    for number, line in enumerate(decode(raw, first).split("\n")):
        if is_blank(line):
            continue
        try:
            document = field_of(json.loads(line), field)
            # Half a surrogate pair, "\ud800", is JSON but no text.
            document.encode()
        except (ValueError, RecursionError) as error:
            reason = "nested too deep" if isinstance(error, RecursionError) else one_line(error)
            if isinstance(error, json.JSONDecodeError):
                reason = f"not JSON ({error.msg} at character {error.pos + 1})"
            raise BadLine(number, f"{reason}; expected one JSON object a line, with the text in {field!r}") from None
        if is_blank(document):
            blank += 1
        else:
            documents.append(document)
    return documents, blank


def field_of(record: Any, field: str) -> str:
    """The text of a record; "" where it is null.

    Raises:
      ValueError: the record is no mapping, or has no such field, or something else than text in it.
    """
    if not isinstance(record, dict):
        raise ValueError(f"is {type(record).__name__}, no JSON object")
    if field not in record:
        raise ValueError(f"has no field {field!r} but {listed(record)}: name it with text_field")
    text = record[field]
    if text is not None and not isinstance(text, str):
        raise ValueError(f"field {field!r} holds {type(text).__name__}, no text")
    return text or ""


def listed(fields: Iterable[str]) -> str:
    """Names of fields for a message, of bounded length."""
    shown = ", ".join(f"{name!r}" if len(name) < _NAME else f"{name[:_NAME]!r}..." for name in itertools.islice(fields, _NAMES))
    return shown or "none at all"


def packed_documents(raw: bytes, sizes: np.ndarray) -> tuple[list[str], int]:
    """The texts of raw, sizes (n,) bytes of UTF-8 each, and how many more were blank.

    Raises:
      BadLine: a text is not UTF-8.
    """
    ends = np.cumsum(sizes).tolist()
    texts = [decode(raw[start:end], False, row) for row, (start, end) in enumerate(zip([0, *ends], ends, strict=False))]
    documents = [text for text in texts if not is_blank(text)]
    return documents, len(texts) - len(documents)


def _refuse_long(raw: bytes, longest: int) -> None:
    if len(raw) > longest:
        for number, line in enumerate(raw.split(b"\n")):
            if len(line) > longest:
                raise BadLine(number, too_long(longest))
