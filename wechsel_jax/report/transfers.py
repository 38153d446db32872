"""What a transfer recorded about itself, checked: transfer.json and the plan beside it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from wechsel_jax.errors import UserError
from wechsel_jax.files import require_file
from wechsel_jax.inspection import Finding, score
from wechsel_jax.inspection.records import read_record

ORIGINS = ("copied", "mixed", "random")


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
    record = read_record(file)
    names = ("settings", "source", "target", "versions", "timings", "coverage")
    parts: dict[str, Any] = {name: record.get(name) or {} for name in names}
    parts |= {name: record.get(name) for name in ("method", "counts", "alignment", "similarity", "norms")}
    parts["parity"] = bool(record.get("parity"))
    parts["examples"] = tuple(_example(file, i, value) for i, value in enumerate(record.get("examples") or ()))
    for name in ("behaviour", "notes"):
        parts[name] = tuple(record.get(name) or ())
    _add_score(directory, parts)
    return TransferRecord(file=file, **parts)


def same_source(records: Sequence[TransferRecord]) -> bool:
    """Whether the rows of all records' source tables have the same lengths: whether it was one table."""
    return len({tuple(record.norms["source"][key] for key in ("mean", "std")) for record in records}) == 1


def _example(file: Path, place: int, value: Mapping[str, Any]) -> Example:
    if value["how"] not in ORIGINS:
        raise UserError(f"{file}: field examples.{place}.how is {value['how'][:40]!r}; expected one of {', '.join(ORIGINS)}")
    return Example(value["target"], value["how"], tuple((token, float(weight)) for token, weight in value["sources"]))


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
