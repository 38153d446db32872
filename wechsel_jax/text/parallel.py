"""Parallel text: sentences and their translations, from two columns, from two files line by line, or from OPUS's archives."""

import collections
import dataclasses
import itertools
import os
import re
import unicodedata
import zipfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from wechsel_jax.errors import UserError, parsing
from wechsel_jax.files import require_file
from wechsel_jax.text.documents import is_blank
from wechsel_jax.text.files import LONGEST_DOCUMENT, guarded, numbered_lines, read_lines

# Between the names of two files of which line i of one is the translation of line i of the other.
BESIDE = "::"
PARALLEL = (
    f"parallel text: two columns with a tab or ' ||| ' between them, two files line by line (FIRST{BESIDE}SECOND), or an "
    "archive of OPUS (.zip, in the format of Moses)"
)
_BARS = re.compile(r"(?:^|\s)\|\|\|(?:\s|$)")
# Pairs that are looked at to see which language a side is in.
_LOOKED_AT = 2000
# How the names of a script's characters begin, for languages that share theirs with few others.
_SCRIPTS = {
    **dict.fromkeys(("zh", "yue", "wuu"), ("CJK UNIFIED",)),
    "ja": ("HIRAGANA", "KATAKANA", "CJK UNIFIED"),
    "ko": ("HANGUL",),
    **dict.fromkeys(("ar", "fa", "ur", "ug", "ps"), ("ARABIC",)),
    **dict.fromkeys(("hi", "mr", "ne", "sa"), ("DEVANAGARI",)),
    **dict.fromkeys(("ru", "uk", "bg", "be", "kk", "mn", "sr", "mk"), ("CYRILLIC",)),
    **{"th": ("THAI",), "el": ("GREEK",), "he": ("HEBREW",), "ka": ("GEORGIAN",), "hy": ("ARMENIAN",), "am": ("ETHIOPIC",)},
    **{"bn": ("BENGALI",), "ta": ("TAMIL",), "te": ("TELUGU",), "km": ("KHMER",), "my": ("MYANMAR",), "lo": ("LAO",)},
}
# A fifth to a third of the words of English text, and hardly any of other languages' in Latin script.
_ENGLISH = frozenset(("the", "and", "of", "to", "is", "that", "you", "for", "with", "was", "have", "this", "are"))
_LANGUAGES = re.compile(r"(?:^|[._])([a-z]{2,3})-([a-z]{2,3})(?=[._]|$)")
# Of a language's own marks, the other side must have so much more than the side that is said to be in it.
_TIMES, _MORE = 3, 0.02


@dataclasses.dataclass(frozen=True)
class Pairs:
    """n sentences and their translations.

    Attributes:
      first: of one language.
      second: of the other.
      lines: for each pair, the number of its line, counted from 0 over all that was read.
      read: how many lines that was.
      blank: how many lines had nothing on either side.
      one_sided: how many had nothing on one side only, and were left out.
      files: the names of what was read, with how many lines were read before each.
    """

    first: list[str]
    second: list[str]
    lines: list[int]
    read: int
    blank: int
    one_sided: int
    files: list[tuple[str, int]]

    def place(self, pair: int) -> str:
        """The file and the line of a pair."""
        name, before = next(file for file in reversed(self.files) if file[1] <= self.lines[pair])
        return f"{name}: line {self.lines[pair] - before + 1}"


def require_parallel(names: Iterable[str]) -> None:
    """Raises `UserError` where a file is missing; a name may be of two, FIRST::SECOND."""
    for file in (file for name in names for file in _files(name)):
        require_file(file, PARALLEL)


def _files(name: str) -> list[str]:
    """The file that a name is of, or the two of FIRST::SECOND."""
    files = name.split(BESIDE)
    if len(files) > 2 or not all(files):
        raise UserError(f"{name}: expected a file, or two as FIRST{BESIDE}SECOND")
    return files


def read_pairs(
    texts: Sequence[str | os.PathLike],
    languages: tuple[str, str] | None = None,
    *,
    drop_empty: bool | None = None,
    longest: int | None = None,
) -> Pairs:
    """Reads parallel text into memory; lines without anything on either side are passed over.

    Args:
      texts: files, plain or compressed: the two sentences of a pair on a line, with a tab or " ||| " between them;
        "FIRST::SECOND", two files with a sentence a line; or a .zip of OPUS with one such file for each language, named by its
        code.
      languages: codes of the two, which name the files of an archive; and for English and languages with a script of their own
        it is seen that the sides are not swapped. None: those that each name says, "source" and "target" where it does not.
      drop_empty: leave out pairs of which one side is blank; otherwise they are refused, with False by a line that names
        `--drop_empty`, with None, where there is no such flag, without.
      longest: the setting max_document_bytes, above which a line is refused; None: as long as can be read without one.

    Raises:
      UserError: a file is missing, damaged or not UTF-8, the sides have different numbers of lines, a line has not two columns
        or nothing on one side (file and line are named), the languages are swapped, or there is no pair.
    """
    first: list[str] = []
    second: list[str] = []
    lines: list[int] = []
    files: list[tuple[str, int]] = []
    read = blank = one_sided = 0
    for name in map(os.fspath, texts):
        begin, codes = len(first), languages or language_codes((), [name], default=("source", "target"))
        files.append((name, read))
        for number, one, two in _read(name, codes, longest):
            read += 1
            empty = is_blank(one) + is_blank(two)
            blank += empty == 2
            one_sided += empty == 1
            if empty == 1 and not drop_empty:
                missing = 0 if is_blank(one) else 1
                advice = "leave the pair out" if drop_empty is None else "leave out such pairs with --drop_empty"
                raise UserError(
                    f"{name}: line {number}: nothing in {codes[missing]}, and a sentence in {codes[1 - missing]}; "
                    f"expected a translation; mend the line, or {advice}"
                )
            if not empty:
                first.append(one)
                second.append(two)
                lines.append(read - 1)
        _refuse_swapped(name, first[begin : begin + _LOOKED_AT], second[begin : begin + _LOOKED_AT], codes)
    if not first:
        raise UserError(f"{', '.join(map(str, texts))}: holds no pair of sentences; expected {PARALLEL}")
    return Pairs(first, second, lines, read, blank, one_sided, files)


def _read(name: str, languages: tuple[str, str], longest: int | None) -> Iterator[tuple[int, str, str]]:
    """Yields (number of the line, first, second)."""
    limit = {"longest": LONGEST_DOCUMENT if longest is None else longest, "raised": longest is not None}
    if len(names := _files(name)) == 2:
        return _side_by_side((names[0], names[1]), *(read_lines(one, PARALLEL, **limit) for one in names))
    require_file(name, PARALLEL)
    return _archive(name, languages, limit) if zipfile.is_zipfile(name) else _columns(read_lines(name, PARALLEL, **limit), name)


def _columns(lines: Iterator[tuple[int, str]], name: str) -> Iterator[tuple[int, str, str]]:
    for number, line in lines:
        fields = line.split("\t") if "\t" in line else _BARS.split(line)
        if len(fields) != 2:
            if is_blank(line):
                yield number, "", ""
                continue
            raise UserError(
                f"{name}: line {number}: has {len(fields)} columns; expected a sentence, a tab and its translation; mend the "
                f"line, or name two files as FIRST{BESIDE}SECOND"
            )
        yield number, fields[0].strip(), fields[1].strip()


def _archive(name: str, languages: tuple[str, str], limit: Mapping[str, Any]) -> Iterator[tuple[int, str, str]]:
    with parsing(name, PARALLEL, OSError):
        archive = zipfile.ZipFile(name)
    with archive:
        members = []
        for language in languages:
            fitting = [member for member in archive.namelist() if member.endswith(f".{language}")]
            if len(fitting) != 1:
                held = ", ".join(archive.namelist()[:5]) or "nothing"
                raise UserError(
                    f"{name}: has {len(fitting)} files whose names end in .{language}, of {held}; expected one, as in OPUS's "
                    "archives in the format of Moses; name it like en-de.txt.zip, after the ends of their names"
                )
            members += fitting

        def lines(member: str) -> Iterator[tuple[int, str]]:
            place, whole = f"{name}/{member}", "a whole archive; fetch it again"
            with parsing(place, whole, OSError):
                handle = archive.open(member)
            with handle:
                yield from numbered_lines(guarded(handle, place, whole, OSError), place, **limit)

        yield from _side_by_side(tuple(f"{name}/{member}" for member in members), *map(lines, members))


def _side_by_side(
    names: tuple[str, str], first: Iterable[tuple[int, str]], second: Iterable[tuple[int, str]]
) -> Iterator[tuple[int, str, str]]:
    number = 0
    for one, two in itertools.zip_longest(first, second):
        if one is None or two is None:
            short, long = names if one is None else names[::-1]
            # What is left is counted, so that the message says by how much the files differ.
            more = 1 + sum(1 for _ in (first if two is None else second))
            raise UserError(
                f"{short}: has {number} lines, and {long} has {number + more}; expected as many, each the translation of the "
                f"other's; line {number + 1} is the first without one"
            )
        number = one[0]
        yield number, one[1].strip(), two[1].strip()


def _refuse_swapped(name: str, first: Sequence[str], second: Sequence[str], languages: tuple[str, str]) -> None:
    """Raises `UserError` where one side has far more of the marks of the other's language."""
    as_said, swapped = (
        sum(_share(side, language) or 0.0 for side, language in zip(sides, languages, strict=True))
        for sides in ((first, second), (second, first))
    )
    # Serbian and Kazakh are written in two scripts: in Latin letters beside Russian, neither order fits better.
    if swapped <= as_said:
        return
    for side, language in enumerate(languages):
        here, there = (_share(text, language) for text in ((first, second) if side == 0 else (second, first)))
        if here is not None and there is not None and there > _TIMES * here + _MORE:
            marks = "letters" if _base(language) in _SCRIPTS else "words"
            raise UserError(
                f"{name}: the languages look swapped: {there:.0%} of the {marks} of {languages[1 - side]} are those "
                f"of {language}, and {here:.0%} of its own; expected {languages[0]} first; swap the columns, the files, or "
                "the languages"
            )


def _base(language: str) -> str:
    return re.split(r"[-_]", language.lower())[0]


def _share(sentences: Sequence[str], language: str) -> float | None:
    """Which share of the letters is in the language's script, or of the words English; None where nothing can be said."""
    code = _base(language)
    if code == "en":
        words = [word for sentence in sentences for word in sentence.lower().split()]
        return sum(word in _ENGLISH for word in words) / len(words) if words else None
    if code not in _SCRIPTS:
        return None
    letters = collections.Counter(character for sentence in sentences for character in sentence if character.isalpha())
    own = sum(count for letter, count in letters.items() if unicodedata.name(letter, "").startswith(_SCRIPTS[code]))
    return own / letters.total() if letters else None


def language_codes(
    given: Sequence[str], names: Sequence[str | os.PathLike], default: tuple[str, str] | None = None
) -> tuple[str, str]:
    """The two languages: those given, or what names like "en-de.tsv" or "de-en.en::de-en.de" say, or else the default.

    Raises:
      UserError: two are expected and others are given, or the names do not say.
    """
    if given:
        if len(given) != 2 or given[0] == given[1] or not all(given):
            raise UserError(f"--languages: {','.join(given)}; expected two different codes, the first sentences' first: en,de")
        return given[0], given[1]
    pairs = set()
    for name in names:
        files = [Path(part).name for part in os.fspath(name).split(BESIDE)]
        for pair in _LANGUAGES.findall(files[0]):
            # OPUS names both files after the pair in the order of the alphabet, and each after its language at the end.
            ends = tuple(next((end for end in reversed(file.split(".")) if end in pair), "") for file in files)
            pairs.add(ends if {*ends} == {*pair} else pair)
    if len(pairs) == 1:
        return next(iter(pairs))
    if default:
        return default
    raise UserError(f"{', '.join(map(str, names))}: does not say which languages; expected --languages=en,de")
