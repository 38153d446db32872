"""Bilingual dictionaries as pairs of words: tab-separated, MUSE's space-separated, and FreeDict's dictd files."""

import os
import re
from collections.abc import Iterator
from functools import reduce
from pathlib import Path

from wechsel_jax.errors import UserError
from wechsel_jax.files import require_file
from wechsel_jax.text.files import open_binary, read_all, read_lines

_EXPECTED = "a dictionary: lines 'source word TAB target word' (or MUSE's 'source target'), or dictd's .dict with its .index"
_BASE64 = {c: i for i, c in enumerate("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/")}
# Bytes of a .dict, unpacked: some times as many as the largest dictionaries have.
_LARGEST = 1 << 28
# Of all pairs together in memory, and of one besides its characters: some six million pairs, where MUSE's have 100,000.
_MOST_BYTES, _PAIR_BYTES = 1 << 30, 160
# dictd's own entries: notes about the database, not words.
_DATABASE_ENTRY = ("00-database", "00database")
# FreeDict breaks its lines here at the latest.
_WIDTH = 75
# The numbers of a sense and of the first sense within it.
_NUMBER = re.compile(r"\s*(\d+\.\s+)+")
# Lines that are no translation: references, notes, examples.
_APART = re.compile(r'[^{}:]*:\s*\{|(Note|Entry edited by|Def)\.?:|"')
# Grammar, usage, hints, genders, and pronunciation, which has slashes around it.
_REMARK = re.compile(r"\s*(?:<[^<>]*>|\[[^][]*\]|\([^()]*\)|\{[^{}]*\}|(?<!\S)/[^/\s][^/]*/(?!\S))")


def read_dictionary(path: str | os.PathLike, *, alternatives: bool = True) -> list[tuple[str, str]]:
    """Reads a bilingual dictionary.

    A line holds a source word and a target word with a tab between them; a line without a tab holds exactly two words with
    space between them. A line whose translation is empty is skipped (FreeDict has headwords without one). Of a dictd file
    (`NAME.dict` or `NAME.dict.dz`, with `NAME.index` beside it) every sense of an entry is a translation; remarks, references,
    definitions and examples are left out.

    Args:
      path: the dictionary, UTF-8, plain or compressed.
      alternatives: make "worship, revere; adore" three translations. The wechsel package keeps such a line as one phrase, which
        no word vectors hold; pass False for the same list of pairs as it has.

    Returns:
      (source word, target word) pairs in the order of the file, repetitions included.

    Raises:
      UserError: the file is missing, empty, not UTF-8, has a malformed line, holds no pair, or more than fit into 1 GiB.

    >>> from wechsel_jax import demo
    >>> read_dictionary(demo.path("english-german.tsv.xz"))[:2]
    [('free', 'frei'), ('free', 'gratis')]
    """
    path = require_file(path, _EXPECTED)
    entries = _dictd_entries(path) if re.search(r"\.dict(\.dz)?$", path.name) else _lines(path)
    pairs, held = [], 0
    for source, text in entries:
        for target in _targets(text, alternatives):
            pairs.append((source, target))
            held += _PAIR_BYTES + len(source) + len(target)
        if held > _MOST_BYTES:
            raise UserError(f"{path}: more than {len(pairs):,} pairs; expected a dictionary of words; take the frequent ones")
    if not pairs:
        raise UserError(f"{path}: no usable pair of words in it; expected {_EXPECTED}")
    return pairs


def _targets(text: str, alternatives: bool) -> list[str]:
    candidates = re.split(r"[,;]\s+|[،;；、]\s*", text) if alternatives else [text]
    return [target for candidate in candidates if (target := candidate.strip(" \t,;"))] or ([text] if text else [])


def _lines(path: Path) -> Iterator[tuple[str, str]]:
    for number, line in read_lines(path, _EXPECTED):
        if not line.strip():
            continue
        if "\0" in line:
            raise UserError(f"{path}: line {number}: a binary file; expected {_EXPECTED}")
        fields = [field.strip() for field in (line.split("\t") if "\t" in line else line.split())]
        if len(fields) != 2 or not fields[0]:
            shown = line if len(line) <= 60 else line[:60] + "..."
            raise UserError(f"{path}: line {number}: {shown!r}; expected 'source word TAB target word'")
        yield fields[0], fields[1]


def _dictd_entries(path: Path) -> Iterator[tuple[str, str]]:
    """Yields (headword, one translation with its alternatives), as many for a headword as its entry has senses."""
    index = path.with_name(re.sub(r"\.dict(\.dz)?$", ".index", path.name))
    with open_binary(path, _EXPECTED) as handle:
        text = read_all(handle, _LARGEST)
    if len(text) > _LARGEST:
        raise UserError(f"{path}: larger than {_LARGEST:,} bytes; expected {_EXPECTED}; split it")
    for number, line in read_lines(index, f"the index of {path.name}, which dictd puts beside it"):
        # A fourth column has the headword as it is written, where the first is made for searching.
        word, *place = line.split("\t")[:3]
        if len(place) != 2 or not all(set(digits) <= _BASE64.keys() and digits for digits in place):
            raise UserError(f"{index}: line {number}: {line[:60]!r}; expected dictd's 'word TAB offset TAB length'")
        first, length = (reduce(lambda value, digit: value * 64 + _BASE64[digit], digits, 0) for digits in place)
        if first + length > len(text):
            raise UserError(f"{index}: line {number}: points beyond the {len(text)} bytes of {path.name}; fetch both again")
        if word.startswith(_DATABASE_ENTRY):
            continue
        try:
            head, *body = text[first : first + length].decode("utf-8").split("\n")
        except UnicodeDecodeError:
            raise UserError(f"{path}: the entry {word!r} is not UTF-8; fetch a UTF-8 edition of the dictionary") from None
        # The index may have lost the capitals.
        word = head[: len(word)] if head[: len(word)].lower() == word.lower() else word
        for sense in _senses(body):
            yield word.strip(), sense


def _senses(body: list[str]) -> list[str]:
    """The translations in an entry's lines, as FreeDict's stylesheet tei2c5.xsl lays them out.

    Several senses are numbered. One is not, and then its line, and others that begin in the same column, are translations. What
    begins in another column is a definition or a note, and so are references ("Synonym: {word}"), notes ("Note: ...") and
    examples in quotation marks. A line that had no room for the next word goes on in the following one.
    """
    numbered = any(_NUMBER.match(line) for line in body)
    senses: list[str] = []
    column, before, taken = None, "", False
    for line in body:
        text = line.strip()
        indent = len(line) - len(line.lstrip())
        number = _NUMBER.match(line)
        if not text:
            before = ""
            continue
        if not number and before and len(before) + 1 + len(text.split()[0]) > _WIDTH:
            if taken:
                senses[-1] += " " + text
        elif taken := bool(number) or (not numbered and not _APART.match(text) and column in (None, indent)):
            column = indent
            senses.append(line[number.end() :] if number else text)
        before = line.rstrip()
    for i, sense in enumerate(senses):
        # From the inside out: one remark may hold another.
        while (shorter := _REMARK.sub("", sense)) != sense:
            sense = shorter
        senses[i] = sense.strip()
    return senses
