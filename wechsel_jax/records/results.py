"""Files of results with one on each line, so that they can be compared by eye and by git."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from wechsel_jax.errors import UserError
from wechsel_jax.files import new_file
from wechsel_jax.files.json import mismatch, read_json

ADVICE = "measure them again"
# What the number of the format promises: fields may be added, which earlier versions do not read; none changes its meaning.
_FORMAT = 1


@dataclass(frozen=True)
class ResultsFile:
    """A kind of such files.

    Attributes:
      mark: its first field, by which it is known; it holds the number of the format.
      name: the field that holds the results.
      schema: of a result, see `files.json.mismatch`.
      what: what such a file is, for messages.
    """

    mark: str
    name: str
    schema: Mapping[str, Any]
    what: str

    def begins(self, path: str | Path) -> bool:
        """Whether a file begins as `write` begins one."""
        start = f'{{"{self.mark}": '.encode()
        with open(path, "rb") as handle:
            return handle.read(len(start)) == start

    def read(self, file: str | Path) -> list[dict[str, Any]]:
        """Returns the results.

        Raises:
          UserError: the file is missing, of a newer format, or holds something else; the message names it and the field.
        """
        content = read_json(file, self.what, ADVICE)
        number = content.get(self.mark)
        if isinstance(number, int) and number > _FORMAT:
            raise UserError(f"{file}: is of format {number}; expected {_FORMAT} at most; update wechsel-jax")
        problem = mismatch(content, {self.name: [self.schema]}) if number == _FORMAT else f"has no {self.mark}"
        if problem:
            raise UserError(f"{file}: {problem}; expected {self.what}; {ADVICE}")
        return content[self.name]

    def write(self, file: str | Path, results: Iterable[Mapping[str, Any]]) -> None:
        """Writes the file, whole or not at all."""
        lines = (json.dumps(result, ensure_ascii=False, allow_nan=False) for result in results)
        with new_file(file, "w") as handle:
            handle.write(f'{{"{self.mark}": {_FORMAT}, "{self.name}": [\n' + ",\n".join(lines) + "\n]}\n")
