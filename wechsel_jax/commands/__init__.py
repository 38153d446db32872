"""The verbs of the command line, one module each; importing one imports nothing heavy.

A verb's module has a docstring (its help), `define(flags)`, `run(flags, arguments)`, and where they apply `REQUIRED` (names of
flags), `ARGUMENTS` (what stands without a flag; "..." at the end: any number of them) and `INSTEAD` (names of flags, any one of
which makes up for a missing argument).
"""

import difflib
import math
import re
from collections.abc import Sequence
from typing import Any

from absl import flags

_LARGEST_SIZE = 1 << 62


def choice(values: flags.FlagValues, name: str, default: str | None, known: Sequence[str], summary: str) -> None:
    """Defines a flag with a fixed set of values; a mistake is answered with the nearest of them."""
    flags.DEFINE(_Choice(known), name, default, f"{summary}: {', '.join(known)}.", flag_values=values)


def sources(values: flags.FlagValues, name: str, what: str = "What to read") -> None:
    """Defines a flag of texts that `text.sources.find_sources` knows; each time it is given, any number with commas between."""
    summary = (
        f"{what}, with commas between: text or JSON lines (.jsonl), plain or .gz, .xz, .bz2, .zst; Parquet; patterns "
        "of such files, in quotes; datasets:DIR[:SPLIT] (saved with save_to_disk); hf://NAME[@REVISION][:SPLIT][#CONFIG] (hub)"
    )
    flags.DEFINE_flag(_Lists(flags.ListParser(), None, name, [], summary), flag_values=values)


def number(values: flags.FlagValues, name: str, default: float | None, summary: str, lowest: float, highest: float) -> None:
    """Defines a flag of a number from `lowest` to `highest`."""
    flags.DEFINE(_Number(lowest, highest), name, default, summary, flag_values=values)


def size(values: flags.FlagValues, name: str, default: str, summary: str) -> None:
    """Defines a flag of a number of bytes, given as 1000000, 16MiB or 4GB."""
    flags.DEFINE(_Size(), name, default, summary, flag_values=values)


def text_field(values: flags.FlagValues) -> None:
    """Defines the flag of what reads text from records."""
    summary = "Of JSON lines, Parquet and data sets, the field that holds the text."
    flags.DEFINE_string("text_field", "text", summary, flag_values=values)


def longest_document(values: flags.FlagValues) -> None:
    """Defines the flag of what reads text that bounds its memory."""
    summary = "Refuse text with a longer line, row or document, e.g. 64MiB; in the worst case memory is 150 times as large."
    size(values, "max_document_bytes", "16MiB", summary)


def picked(values: flags.FlagValues, *names: str) -> dict[str, Any]:
    """The values of some flags, as arguments of the same names."""
    return {name: values[name].value for name in names}


def nearest(given: str, known: Sequence[str]) -> str:
    """Returns ", did you mean NAME" for the name that looks most like `given`, or "" where none does."""
    close = difflib.get_close_matches(given, known, 1)
    return f", did you mean {close[0]}" if close else ""


class _Lists(flags.MultiFlag):
    """Joins the lists of all times that the flag was given."""

    def _parse(self, arguments: str | Sequence[str]) -> list[str]:
        return [item for items in super()._parse(arguments) for item in items]


class _Size(flags.ArgumentParser):
    def parse(self, argument: str) -> int:
        match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([KMG]?)(I?)B?", argument.strip(), re.IGNORECASE | re.ASCII)
        base = 1024 if match and match[3] else 1000
        bytes_ = float(match[1]) * base ** " KMG".index(match[2].upper() or " ") if match else math.inf
        if bytes_ > _LARGEST_SIZE:
            raise ValueError("expected a size such as 1000000, 16MiB or 4GiB")
        return int(bytes_)


class _Number(flags.FloatParser):
    """absl's own lets NaN through."""

    def is_outside_bounds(self, value: float) -> bool:
        return not self.lower_bound <= value <= self.upper_bound


class _Choice(flags.EnumParser):
    def parse(self, argument: str) -> str:
        if argument in self.enum_values:
            return argument
        raise ValueError(f"unknown{nearest(argument, self.enum_values)}; expected one of {', '.join(self.enum_values)}")
