"""Documents of text files: the text between two ends of a document, character by character as it stands."""

import os
from collections.abc import Callable, Iterator

from wechsel_jax.errors import UserError
from wechsel_jax.files import require_file
from wechsel_jax.text_files import decode_line, is_compressed, open_binary

KINDS = ("lines", "paragraphs", "files")
TEXT_FILE = "a text file in UTF-8 (plain, .gz, .xz or .bz2)"
Progress = Callable[[int], None]


def read_documents(path: str | os.PathLike, kind: str, progress: Progress = lambda size: None) -> Iterator[str]:
    """Yields the documents of one file.

    Nothing is stripped, replaced or normalised. What ends a document, its last newline ("\\n" or "\\r\\n"), is not part of it;
    a byte order mark is dropped. Lines of nothing but white space are no documents: they separate paragraphs.

    Args:
      path: a UTF-8 text file, compressed or not.
      kind: "lines" (each line is a document), "paragraphs" (blocks of lines with blank lines between them) or "files" (the
        whole file is one).
      progress: told how many more bytes of the file have been read; of a compressed one, all of them at its end.

    Raises:
      UserError: the file is missing, empty, damaged or not UTF-8 (the line is named), or `kind` is unknown.
    """
    if kind not in KINDS:
        raise UserError(f"documents: {kind!r} is not known; expected lines, paragraphs or files")
    lines = _lines(path, progress)
    if kind == "lines":
        return (_without_newline(line) for line in lines if not _blank(line))
    return _paragraphs(lines) if kind == "paragraphs" else _whole(lines)


def _paragraphs(lines: Iterator[str]) -> Iterator[str]:
    block: list[str] = []
    for line in lines:
        if not _blank(line):
            block.append(line)
        elif block:
            yield _without_newline("".join(block))
            block = []
    if block:
        yield _without_newline("".join(block))


def _whole(lines: Iterator[str]) -> Iterator[str]:
    text = "".join(lines)
    if not _blank(text):
        yield _without_newline(text)


def _lines(path: str | os.PathLike, progress: Progress) -> Iterator[str]:
    path = require_file(path, TEXT_FILE)
    compressed = is_compressed(path)
    with open_binary(path, TEXT_FILE) as handle:
        for number, line in enumerate(handle, 1):
            yield decode_line(line, path, number)
            if not compressed:
                progress(len(line))
    if compressed:
        progress(path.stat().st_size)


def _blank(text: str) -> bool:
    return not text or text.isspace()


def _without_newline(text: str) -> str:
    return text[:-2] if text.endswith("\r\n") else text.removesuffix("\n")
