"""What a transfer recorded about itself, checked: transfer.json and the plan beside it."""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from wechsel_jax.errors import UserError
from wechsel_jax.files import require_file
from wechsel_jax.inspection import Finding, score

FORMAT = 1
ORIGINS = ("copied", "mixed", "random")
_EXPECTED = "expected a record that `wechsel-jax transfer` wrote; run the transfer again"


@dataclass(frozen=True)
class Example:
    """One target token: how its row was made ("copied", "mixed", "random") and its source tokens with their weights."""

    target: str
    how: str
    sources: tuple[tuple[str, float], ...]


@dataclass(frozen=True)
class Mixture:
    """What the weights of a plan's mixed rows look like.

    Attributes:
      effective_neighbors: mean over the rows of exp(entropy of |weights|): how many source tokens a row really leans on.
      source_tokens: how many different source tokens are used at all.
    """

    effective_neighbors: float
    source_tokens: int


@dataclass(frozen=True)
class TransferRecord:
    """The parts of transfer.json; what an older or shortened record lacks is empty or None.

    `mixture`, `tables` (statistics of the new tables beside the source's) and `findings` (the verdict) are made of the plan and
    the model beside the record, see `inspection.score`.
    """

    file: Path
    method: str
    parity: bool = False
    settings: Mapping[str, Any] = field(default_factory=dict)
    source: Mapping[str, Any] = field(default_factory=dict)
    target: Mapping[str, Any] = field(default_factory=dict)
    counts: Mapping[str, int] | None = None
    alignment: Mapping[str, Any] | None = None
    similarity: Mapping[str, float] | None = None
    norms: Mapping[str, Mapping[str, float]] | None = None
    examples: tuple[Example, ...] = ()
    behaviour: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    versions: Mapping[str, str] = field(default_factory=dict)
    timings: Mapping[str, float] = field(default_factory=dict)
    coverage: Mapping[str, Any] = field(default_factory=dict)
    mixture: Mixture | None = None
    tables: tuple[Mapping[str, Any], ...] = ()
    findings: tuple[Finding, ...] = ()


def read_transfer(directory: Path) -> TransferRecord:
    """Reads `transfer.json` and, where it is there, `transfer_plan.npz` of a directory.

    Raises:
      UserError: a file is damaged; the message names it and the field.
    """
    file = require_file(directory / "transfer.json", "the record of a transfer")
    record = read_json(file, _EXPECTED)
    try:
        parts = _parts(record)
    except ValueError as error:
        raise UserError(f"{file}: {error}; {_EXPECTED}") from error
    _add_score(directory, parts)
    return TransferRecord(file=file, **parts)


def read_json(file: Path, expected: str) -> dict[str, Any]:
    """Reads a JSON object.

    Raises:
      UserError: the file holds something else; `expected` ends the message.
    """
    try:
        value = json.loads(file.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise UserError(f"{file}: not JSON ({error}); {expected}") from error
    if not isinstance(value, dict):
        raise UserError(f"{file}: holds no JSON object; {expected}")
    return value


def same_source(records: Sequence[TransferRecord]) -> bool:
    """Whether the rows of all records' source tables have the same lengths: whether it was one table."""
    return len({tuple(record.norms["source"][key] for key in ("mean", "std")) for record in records}) == 1


def is_number(value: Any) -> bool:
    """Whether a value from JSON is a finite number."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def _parts(record: dict[str, Any]) -> dict[str, Any]:
    if record.get("format", FORMAT) != FORMAT:
        raise ValueError(f"format {record['format']!r} is not {FORMAT}, the one that this version reads")
    if not isinstance(record.get("method"), str):
        raise ValueError("has no field method")
    parts: dict[str, Any] = {"method": record["method"], "parity": bool(record.get("parity"))}
    for name in ("settings", "source", "target", "versions"):
        parts[name] = _mapping(record, name) or {}
    parts["counts"] = _numbers(record, "counts", ORIGINS)
    parts["timings"] = _numbers(record, "timings") or {}
    parts["similarity"] = _numbers(record, "similarity")
    parts["alignment"] = _mapping(record, "alignment")
    norms = _mapping(record, "norms")
    parts["norms"] = None if norms is None else {side: _numbers(norms, side, ("mean", "std")) for side in ("source", "target")}
    if norms is not None and None in parts["norms"].values():
        raise ValueError("norms lacks source or target")
    parts["examples"] = tuple(_example(i, value) for i, value in enumerate(_items(record, "examples")))
    parts["coverage"] = _coverage(record.get("coverage"))
    for name in ("behaviour", "notes"):
        parts[name] = tuple(str(line) for line in _items(record, name))
    return parts


def _mapping(record: Mapping[str, Any], name: str) -> dict[str, Any] | None:
    value = record.get(name)
    if value is not None and not isinstance(value, dict):
        raise ValueError(f"field {name} is no object")
    return value


def _numbers(record: Mapping[str, Any], name: str, needed: tuple[str, ...] = ()) -> dict[str, float] | None:
    value = _mapping(record, name)
    if value is None:
        return None
    missing = [key for key in needed if key not in value]
    if missing:
        raise ValueError(f"field {name} lacks {', '.join(missing)}")
    wrong = [key for key, number in value.items() if not is_number(number)]
    if wrong:
        raise ValueError(f"{name}.{wrong[0]} is {value[wrong[0]]!r}, no number")
    return value


def _items(record: Mapping[str, Any], name: str) -> list[Any]:
    value = record.get(name) or []
    if not isinstance(value, list):
        raise ValueError(f"field {name} is no list")
    return value


def _coverage(value: Any) -> dict[str, Any]:
    found = {"rows": value} if isinstance(value, list) else value or {}
    rows = found.get("rows")
    for row in rows or ():
        if not isinstance(row, dict) or not isinstance(row.get("rule"), str) or not is_number(row.get("tokens")):
            raise ValueError("field coverage has a row that is no rule with its number of tokens")
    return found


def _example(index: int, value: Any) -> Example:
    try:
        target, how, sources = value["target"], value["how"], [(token, weight) for token, weight in value["sources"]]
        right = isinstance(target, str) and how in ORIGINS
        right = right and all(isinstance(token, str) and is_number(weight) for token, weight in sources)
    except (TypeError, KeyError, ValueError):
        right = False
    if not right:
        raise ValueError(f"examples[{index}] is no token with how it was made and its source tokens")
    return Example(target, how, tuple((token, float(weight)) for token, weight in sources))


def _add_score(directory: Path, parts: dict[str, Any]) -> None:
    """Adds what the plan and the model beside the record tell."""
    facts = score(directory, samples=0)
    parts["tables"] = tuple(facts.get("tables") or ())
    parts["findings"] = tuple(Finding(**finding) for finding in facts["findings"])
    if facts.get("mixture"):
        parts["mixture"] = Mixture(facts["mixture"]["effective_neighbors"], facts["mixture"]["source_tokens"])
    told, found = parts["counts"], facts["counts"]
    parts["counts"] = told or found
    if told and dict(told) != found:
        told, found = (", ".join(f"{counts[how]} {how}" for how in ORIGINS) for counts in (told, found))
        parts["notes"] += (f"transfer.json and transfer_plan.npz are not of one transfer: {told}, but {found} in the plan.",)
