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


def nearest(given: str, known: Sequence[str]) -> str:
    """Returns ", did you mean NAME" for the name that looks most like `given`, or "" where none does."""
    close = difflib.get_close_matches(given, known, 1)
    return f", did you mean {close[0]}" if close else ""


class _Choice(flags.EnumParser):
    def parse(self, argument: str) -> str:
        if argument in self.enum_values:
            return argument
        raise ValueError(f"unknown{nearest(argument, self.enum_values)}; expected one of {', '.join(self.enum_values)}")
