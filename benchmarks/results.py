"""Files of results that are gathered from runs, and what the command lines that make them have in common."""

import json
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from absl import flags

from wechsel_jax.errors import UserError
from wechsel_jax.files import new_file
from wechsel_jax.files.json import read_json


def read_results(file: Path) -> dict[str, Any]:
    """Returns what was gathered before; empty where there is nothing."""
    return read_json(file, "results that were gathered before", "put it back from git") if file.exists() else {}


def write_results(file: str | os.PathLike, results: Mapping[str, Any]) -> None:
    with new_file(file, "w") as handle:
        handle.write(json.dumps(results, indent=1) + "\n")


def with_tables(text: str, tables: Mapping[str, str]) -> str:
    """Returns a document's text with other tables between `<!-- NAME -->` and `<!-- /NAME -->`.

    Raises:
      UserError: the document has no place for one of them.
    """
    for name, table in tables.items():
        pattern = re.compile(rf"(<!-- {name} -->\n).*?(<!-- /{name} -->)", re.DOTALL)
        text, places = pattern.subn(lambda match, table=table: match[1] + table + "\n" + match[2], text)
        if not places:
            raise UserError(f"no place for the table {name!r}; expected <!-- {name} --> and <!-- /{name} --> in the document")
    return text


def named_places(arguments: Sequence[str], *, last: bool = False) -> list[tuple[str, Path]]:
    """Parses arguments such as `de=runs/arena-de-0`.

    Args:
      arguments: of the command line.
      last: the last "=" parts a name from its place, so that a name may hold others.

    Raises:
      UserError: an argument is no such pair, or its place is not there.
    """
    pairs = []
    for argument in arguments:
        name, _, place = argument.rpartition("=") if last else argument.partition("=")
        if not name or not place:
            raise UserError(f"{argument}: expected NAME=PLACE, such as de=runs/de")
        if not os.path.exists(place):
            raise UserError(f"{argument}: {place} is not there; expected what `train.compare` wrote")
        pairs.append((name, Path(place)))
    return pairs


def read_flags(values: flags.FlagValues, about: str, arguments: Sequence[str]) -> None:
    """Parses the flags of a benchmark; --help prints `about` and all of them, and ends the program.

    Raises:
      UserError: a flag is unknown or has a value that it does not take, or something is no flag.
    """
    if "--help" in arguments:
        print(about, values.get_help(), sep="\n")
        raise SystemExit(0)
    try:
        _, *others = values(["", *arguments])
    except flags.Error as error:
        raise UserError(f"{error}; expected a flag that --help shows") from None
    if others:
        raise UserError(f"{others[0]!r}: expected flags, each with =; --help shows them")
