"""The verbs of the command line, one module each; importing one imports nothing heavy.

A verb's module has a docstring (its help), `define(flags)`, `run(flags, arguments)`, and where they apply `REQUIRED` (names of
flags), `ARGUMENTS` (what stands without a flag; "..." at the end: any number of them) and `INSTEAD` (names of flags, any one of
which makes up for a missing argument).
"""

import difflib
from collections.abc import Sequence

from absl import flags


def choice(values: flags.FlagValues, name: str, default: str | None, known: Sequence[str], summary: str) -> None:
    """Defines a flag with a fixed set of values; a mistake is answered with the nearest of them."""
    flags.DEFINE(_Choice(known), name, default, f"{summary}: {', '.join(known)}.", flag_values=values)


def sources(values: flags.FlagValues, name: str, what: str = "What to read") -> None:
    """Defines a flag of texts that `data.sources.find_sources` knows; each time it is given, any number with commas between."""
    summary = (
        f"{what}, with commas between: text, JSON lines (.jsonl) or Parquet, plain or .gz, .xz, .bz2, .zst; patterns "
        "of such files, in quotes; datasets:DIR[:SPLIT] (saved with save_to_disk); hf://NAME[@REVISION][:SPLIT][#CONFIG] (hub)"
    )
    flags.DEFINE_flag(_Lists(flags.ListParser(), None, name, [], summary), flag_values=values)


def nearest(given: str, known: Sequence[str]) -> str:
    """Returns ", did you mean NAME" for the name that looks most like `given`, or "" where none does."""
    close = difflib.get_close_matches(given, known, 1)
    return f", did you mean {close[0]}" if close else ""


class _Lists(flags.MultiFlag):
    """Joins the lists of all times that the flag was given."""

    def _parse(self, arguments: str | Sequence[str]) -> list[str]:
        return [item for items in super()._parse(arguments) for item in items]


class _Choice(flags.EnumParser):
    def parse(self, argument: str) -> str:
        if argument in self.enum_values:
            return argument
        raise ValueError(f"unknown{nearest(argument, self.enum_values)}; expected one of {', '.join(self.enum_values)}")
