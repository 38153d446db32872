"""metrics.jsonl: one JSON object a line, in the order of the steps, exact across interruptions."""

import json
import math
import os
from pathlib import Path
from typing import Any

from wechsel_jax.errors import UserError
from wechsel_jax.files import new_file


class MetricsFile:
    """Appends lines and remembers them.

    Args:
      path: the file; created where it is missing.
      restored_step: the step that training goes on from; lines of later steps belong to updates that are made again and are
        dropped, and so is a last line that was cut off. None drops everything.
      write: false in all processes but one, which then only remember.

    Attributes:
      lines: what the file holds.
    """

    def __init__(self, path: str | Path, restored_step: int | None, write: bool = True):
        self.path = Path(path)
        old = read_metrics(self.path) if restored_step is not None else []
        self.lines = [line for line in old if line["step"] <= restored_step]
        self._handle = None
        if write:
            with new_file(self.path, "w") as handle:
                handle.writelines(_encode(line) for line in self.lines)
            self._handle = self.path.open("a", encoding="utf-8")

    def write(self, line: dict[str, Any]) -> None:
        """Appends one line; it is in the file when this returns."""
        self.lines.append(line)
        if self._handle is not None:
            self._handle.write(_encode(line))
            self._handle.flush()

    def evaluated(self, step: int) -> bool:
        """Whether there is an evaluation of `step`."""
        return any(line["kind"] == "eval" and line["step"] == step for line in self.lines)

    def sync(self) -> None:
        """Makes the lines survive a power cut: before a checkpoint says that they are there."""
        if self._handle is not None:
            os.fsync(self._handle.fileno())

    def close(self) -> None:
        if self._handle is not None:
            self._handle.close()


def read_metrics(path: str | Path) -> list[dict[str, Any]]:
    """Reads the lines of a metrics file; a last line that was cut off is left out, a missing file is empty.

    Raises:
      UserError: another line is damaged.
    """
    path = Path(path)
    if not path.exists():
        return []
    lines, raw = [], path.read_bytes().split(b"\n")
    for number, text in enumerate(raw, 1):
        if number == len(raw):
            # Nothing, or what a kill left of a line: a whole line ends with a newline.
            break
        try:
            line = json.loads(text)
            if not isinstance(line, dict) or "kind" not in line or not isinstance(line.get("step"), int):
                raise ValueError("no kind and step")
        except ValueError as error:
            raise UserError(
                f"{path}: line {number}: not a line of metrics ({error}); expected a JSON object; remove it"
            ) from error
        lines.append(line)
    return lines


def final_metrics(path: str | Path, steps: int) -> dict[str, Any] | None:
    """Returns the evaluation after the last step, None where the run has not got there."""
    found = [line for line in read_metrics(path) if line["kind"] == "eval" and line["step"] == steps]
    return found[-1] if found else None


def _encode(line: dict[str, Any]) -> str:
    # JSON has no infinity; an overflowing perplexity becomes null.
    finite = {name: None if isinstance(value, float) and not math.isfinite(value) else value for name, value in line.items()}
    return json.dumps(finite) + "\n"
