"""JSON from files that others wrote: what is read here has its bounds, and can be written again."""

import json
import os
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from wechsel_jax.errors import UserError, parsing
from wechsel_jax.files import new_file, require_file

# Above all that describes a model (the largest tokenizer.json are some 30 MB): as Python's objects it takes many times as much.
_MOST_BYTES = 1 << 28
# Far above what files of models hold, and below what a recursive function can walk through.
_MOST_LEVELS = 100
_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")


def read_json(path: str | os.PathLike, what: str, advice: str = "copy the file again") -> dict[str, Any]:
    """Reads a JSON object.

    Args:
      path: the file.
      what: what it should be, for the message.
      advice: what to do where it is something else.

    Raises:
      UserError: no such file, no JSON, another kind of value than an object, or more than `parse_json` takes.
    """
    path = require_file(path, what)
    if path.stat().st_size > _MOST_BYTES:
        raise UserError(f"{path}: more than {_MOST_BYTES >> 20} MiB; expected {what}; {advice}")
    with parsing(path, f"{what}; {advice}"):
        return parse_json(path.read_bytes())


def parse_json(text: bytes) -> dict[str, Any]:
    """Parses a JSON object; NaN and Infinity pass, as some config.json have them.

    Raises:
      ValueError: it is no UTF-8, no JSON or no object, is nested deeper than 100 levels, or holds half a character, which no
        file could hold again.
      RecursionError: it is nested far deeper.
    """
    try:
        content = json.loads(text.decode("utf-8"))
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"not JSON: {error}") from None
    except ValueError:
        # Python's own words advise a call of Python.
        raise ValueError("holds a number of thousands of digits") from None
    if not isinstance(content, dict):
        raise ValueError("holds no JSON object")
    level: list[Any] = [content]
    for _ in range(_MOST_LEVELS):
        inside = (item for part in level for item in (part.values() if isinstance(part, dict) else part))
        level = [item for item in inside if isinstance(item, dict | list)]
        if not level:
            break
    if level:
        raise ValueError("nested too deep")
    if _SURROGATE.search(text):
        try:
            json.dumps(content, ensure_ascii=False).encode("utf-8")
        except UnicodeEncodeError as error:
            raise ValueError(f"holds half a character, \\u{ord(error.object[error.start]):x}") from None
    return content


def is_number(value: Any) -> bool:
    """Whether a value from JSON is a finite number."""
    # An integer may be too large for a float.
    largest = sys.float_info.max
    return isinstance(value, int | float) and not isinstance(value, bool) and -largest <= value <= largest


TEXT, WHOLE, NUMBER, ANY = "text", "a whole number", "a number", "anything"
_IS = {
    TEXT: lambda value: isinstance(value, str),
    WHOLE: lambda value: isinstance(value, int) and is_number(value),
    NUMBER: is_number,
    ANY: lambda value: True,
}


def mismatch(value: Any, expected: Any, field: str = "") -> str | None:
    """Names the first field of a value from JSON that is not as expected; None where all are.

    Args:
      value: what was read.
      expected: `TEXT`, `WHOLE`, `NUMBER` or `ANY`; a dict of fields, of which "name?" may be missing or null, "*" stands for
        every field, and others may be there too; a list of one item, for any number of such; a tuple, for a list of as many.
      field: the name of `value`.
    """
    parts: list[tuple[Any, Any, Any]] = []
    if isinstance(expected, dict) and isinstance(value, dict):
        for name, kind in expected.items():
            plain = name.removesuffix("?")
            if name == "*":
                parts += [(name, item, kind) for name, item in value.items()]
            elif plain == name and kind == ANY and name not in value:
                return f"field {ascii(f'{field}.{name}' if field else name)[1:-1]} is missing; expected {ANY}"
            elif plain == name or value.get(plain) is not None:
                parts.append((plain, value.get(plain), kind))
    elif isinstance(expected, list) and isinstance(value, list):
        parts = [(place, item, expected[0]) for place, item in enumerate(value)]
    elif isinstance(expected, tuple) and isinstance(value, list) and len(value) == len(expected):
        parts = [(place, item, kind) for place, (item, kind) in enumerate(zip(value, expected, strict=True))]
    elif not isinstance(expected, str) or not _IS[expected](value):
        kinds = {dict: "an object", list: "a list", tuple: f"a list of {len(expected)}"}
        found = "is missing" if value is None else f"is {ascii(value)[:40]}"
        return f"field {ascii(field)[1:-1]} {found}; expected {kinds.get(type(expected), expected)}"
    problems = (mismatch(item, kind, f"{field}.{name}" if field else str(name)) for name, item, kind in parts)
    return next((problem for problem in problems if problem), None)


def record_json(path: str | os.PathLike, content: Mapping[str, Any]) -> None:
    """Writes a JSON object that is read by this package alone: whole or not at all, a field on each line."""
    with new_file(path, "w") as handle:
        json.dump(content, handle, indent=1)
        handle.write("\n")


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    """Writes a JSON object as transformers does: indented, non-ASCII characters as they are."""
    path.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
