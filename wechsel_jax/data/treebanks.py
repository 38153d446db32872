"""Dependency trees of a treebank in CoNLL-U, as Universal Dependencies has them."""

import os
import re
from collections.abc import Iterator
from typing import NamedTuple

from wechsel_jax.errors import UserError
from wechsel_jax.text.files import read_lines

# A range of words that are written as one, and a word that is not written.
_NO_WORD = re.compile(r"\d+-\d+|\d+\.\d+")
_HEAD = re.compile(r"[0-9]{1,9}")


class Tree(NamedTuple):
    """A sentence of n words.

    Attributes:
      line: of its first word.
      words: as Universal Dependencies counts them: the two words "de" and "le" of French "du", no word that is not written.
      heads: of each word the number of another one, from 1 on, or 0 for the root.
      relations: to the heads, without what a treebank says more about them ("nsubj:pass" is "nsubj"), which the rules of CoNLL
        2018 do not compare and which another treebank may not have.
    """

    line: int
    words: tuple[str, ...]
    heads: tuple[int, ...]
    relations: tuple[str, ...]


def read_trees(path: str | os.PathLike, name: str) -> Iterator[Tree]:
    """Yields the sentences of a file.

    Args:
      path: of CoNLL-U, compressed or not.
      name: of the file, for messages.

    Raises:
      UserError: the file is missing or damaged, or a sentence is no tree with one word at its root; it names the line.
    """
    rows: list[tuple[int, list[str]]] = []
    # Many tools leave out the empty line behind the last sentence.
    for number, line in (*read_lines(path, "a treebank in CoNLL-U"), (0, "")):
        place = f"{name}: line {number}"
        if line.startswith("#") and not rows:
            continue
        if line.strip():
            fields = line.split("\t")
            if len(fields) != 10:
                raise UserError(f"{place}: has {len(fields)} columns; expected the 10 of CoNLL-U; mend the line")
            if _NO_WORD.fullmatch(fields[0]):
                continue
            if fields[0] != str(len(rows) + 1):
                raise UserError(
                    f"{place}: its number is {fields[0]!r}; expected {len(rows) + 1}: words are numbered from 1 on, and an "
                    "empty line ends a sentence; mend the line"
                )
            if not fields[1].strip() or fields[7] in ("", "_"):
                raise UserError(f"{place}: has no {'relation' if fields[1].strip() else 'word'}; expected one; mend the line")
            rows.append((number, fields))
        elif rows:
            yield _tree(rows, name)
            rows = []


def _tree(rows: list[tuple[int, list[str]]], name: str) -> Tree:
    heads: list[int] = []
    for number, fields in rows:
        head = int(fields[6]) if _HEAD.fullmatch(fields[6]) else -1
        if not 0 <= head <= len(rows):
            raise UserError(
                f"{name}: line {number}: its head is {fields[6]!r}; expected a word of the sentence, 1 to {len(rows)}, or the "
                "root, 0; mend the line"
            )
        if not head and 0 in heads:
            raise UserError(f"{name}: line {number}: is the second word with head 0; expected one in a sentence; mend the line")
        heads.append(head)
    for number, head in zip((number for number, _ in rows), heads, strict=True):
        passed = 0
        while head and passed <= len(rows):
            head, passed = heads[head - 1], passed + 1
        if head:
            raise UserError(
                f"{name}: line {number}: its heads lead into a cycle; expected them to lead to the root, 0; mend a line of it"
            )
    words, relations = (tuple(fields[column] for _, fields in rows) for column in (1, 7))
    return Tree(rows[0][0], words, tuple(heads), tuple(relation.split(":")[0] for relation in relations))
