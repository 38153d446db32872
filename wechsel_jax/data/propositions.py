"""Semantic roles in columns, as CoNLL 2005, 2009 and 2012 have them: a word a line, a column of roles for each predicate."""

import os
import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from wechsel_jax.errors import UserError
from wechsel_jax.text.files import read_lines

COLUMNS = ("word", "predicate", "roles")
# What begins at the word, the word, and whether it ends there.
_CELL = re.compile(r"(?:\(([^()*\s]+))?\*(\)?)")
# In the column of predicates, of a word that is none.
_NONE = ("-", "_")
# Of the predicate itself.
_VERB = "V"


class Proposition(NamedTuple):
    """A predicate in its sentence.

    Attributes:
      line: of the predicate.
      words: of the sentence.
      predicate: its place, from 0 on.
      labels: of each word: "B-A0" where the role A0 begins, "I-A0" where it goes on, "O" elsewhere; "A0" where the file has it
        at one word, the argument's head.
    """

    line: int
    words: tuple[str, ...]
    predicate: int
    labels: tuple[str, ...]


def read_propositions(path: str | os.PathLike, name: str, columns: Sequence[str] = ()) -> Iterator[Proposition]:
    """Yields the propositions of a file, sentence by sentence; a sentence without a predicate has none.

    Args:
      path: of text with white space or tabs between columns and a blank line between sentences, compressed or not. Roles are in
        brackets: "(A0*" begins one, "*" goes on, "*)" ends it, "(V*)" does all at once. Or, in a column without a bracket, a
        word has "A0" or "_".
      name: of the file, for messages.
      columns: names of the columns, "word", "predicate" ("-" where the word is none) and "roles" among them, by default these
        three. "roles" stands for as many columns as the sentence has predicates, in their order.

    Raises:
      UserError: the file is missing or damaged, or a sentence is not what it should be; it names the line.
    """
    columns = tuple(columns) or COLUMNS
    if any(columns.count(wanted) != 1 for wanted in COLUMNS):
        raise UserError(f"task.columns: is {', '.join(columns)}; expected {', '.join(COLUMNS)} among them, each once")
    rows: list[tuple[int, list[str]]] = []
    # Many tools leave out the empty line behind the last sentence.
    for number, line in (*read_lines(path, "columns of words, predicates and roles"), (0, "")):
        # CoNLL 2012's only comments; "#" alone is a word of CoNLL 2005.
        if line.startswith(("#begin document", "#end document")):
            continue
        if line.strip():
            fields = line.split("\t") if "\t" in line else line.split()
            wanted = len(rows[0][1]) if rows else max(len(fields), len(columns) - 1)
            if len(fields) != wanted:
                expected = f"{wanted}, as the line before" if rows else f"at least {wanted}: {', '.join(columns)}"
                raise UserError(
                    f"{name}: line {number}: has {len(fields)} columns; expected {expected}; mend the line, or name all "
                    "columns with task.columns"
                )
            rows.append((number, fields))
        elif rows:
            yield from _sentence(rows, name, columns)
            rows = []


def _sentence(rows: list[tuple[int, list[str]]], name: str, columns: tuple[str, ...]) -> Iterator[Proposition]:
    first, count = columns.index("roles"), len(rows[0][1]) - len(columns) + 1

    def column(wanted: str) -> list[str]:
        place = columns.index(wanted)
        return [fields[place if place < first else place + count - 1].strip() for _, fields in rows]

    words, predicates = tuple(column("word")), [i for i, cell in enumerate(column("predicate")) if cell not in _NONE]
    if len(predicates) != count:
        raise UserError(
            f"{name}: line {rows[0][0]}: the sentence has {len(predicates)} predicates and {count} columns of roles; expected "
            "a column for each; mend the sentence, or name all columns with task.columns"
        )
    for number, predicate in enumerate(predicates):
        cells = [fields[first + number].strip() for _, fields in rows]
        if not any(mark in cell for cell in cells for mark in "(*)"):
            yield Proposition(rows[predicate][0], words, predicate, tuple("O" if cell in _NONE else cell for cell in cells))
            continue
        labels: list[str] = []
        open_role, opened = "", 0
        for (line, _), cell in zip(rows, cells, strict=True):
            place = f"{name}: line {line}"
            found = _CELL.fullmatch(cell)
            if not found:
                raise UserError(f"{place}: its role is {cell!r}; expected (ROLE*, *, *) or (ROLE*); mend the line")
            begins, ends = found.groups()
            if (begins and open_role) or (ends and not (begins or open_role)):
                what = f"begins in {open_role} of line {opened}" if begins else "ends, and none has begun"
                raise UserError(
                    f"{place}: column {first + number + 1}: a role {what}; expected one to end before the next begins; mend "
                    "the line"
                )
            if begins:
                open_role, opened = begins, line
            labels.append(f"{'B' if begins else 'I'}-{open_role}" if open_role else "O")
            open_role = "" if ends else open_role
        if open_role:
            raise UserError(
                f"{name}: line {opened}: column {first + number + 1}: {open_role} begins and never ends; expected *) in the "
                "sentence; mend it"
            )
        line = rows[predicate][0]
        if f"B-{_VERB}" in labels and labels[predicate] not in (f"B-{_VERB}", f"I-{_VERB}"):
            raise UserError(
                f"{name}: line {line}: is predicate {number + 1} of the sentence, and {_VERB} of column {first + number + 1} "
                "is another word; expected the columns in the order of the predicates; mend the sentence"
            )
        yield Proposition(line, words, predicate, tuple(labels))
