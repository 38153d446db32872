"""What would be needed to do a run again: how long it took, its settings, versions and rules."""

import json
from collections.abc import Mapping
from typing import Any

from wechsel_jax.records import RunRecord
from wechsel_jax.records.compute import compute
from wechsel_jax.report.display import NO_VALUE, duration, number
from wechsel_jax.report.runs import Report
from wechsel_jax.report.section import Code, Items, Note, Section, Table, Text


def timings(report: Report) -> list[Section]:
    """Seconds of every step of the transfer and of the training, speed, and the machine where it was recorded."""
    columns = [_timings(run) for run in report.runs]
    # In the order of the run that has most steps, so that a step that only one run has keeps its place.
    names = _names([max(columns, key=len), *columns])
    if not names:
        return []
    rows = tuple((name, *(column.get(name, NO_VALUE) for column in columns)) for name in names)
    known = {f"{run.name} {what}" for run in report.runs for what in ("transfer", "training")}
    shared = {name: value for name, value in report.comparison.seconds.items() if name not in known and value}
    told = ", ".join(f"{name} {duration(value)}" for name, value in shared.items())
    notes = [f"Shared by all runs: {told}."] if told else []
    notes += [f"Machine: {report.comparison.machine}."] if report.comparison.machine else []
    about = "Wall-clock time. Training includes compilation, evaluations and checkpoints; tokens per second do not."
    table = Table(("Step", *map(report.name, report.runs)), rows, "timings")
    return [Section("How long it took", (about, table, *([Note(" ".join(notes))] if notes else [])))]


def settings(report: Report) -> list[Section]:
    """Settings, versions and rules, folded."""
    found = [_all_settings(run) for run in report.runs]
    names = _names(found)
    differing = [name for name in names if len({column.get(name) for column in found}) > 1]
    common = [name for name in names if name not in set(differing)]
    parts = []
    if differing:
        heading = f"What differs between the runs ({len(differing)})"
        parts.append(Section(heading, (_table(report, "Setting", differing, found, "settings that differ"),), folded=True))
    if common:
        what = "Settings" if len(report.runs) == 1 else "What all runs share"
        rows = tuple((Code(name), _code(found[0][name])) for name in common)
        parts.append(Section(f"{what} ({len(common)})", (Table(("Setting", "Value"), rows, "settings", (0, 1)),), folded=True))
    rules: dict[str, list[RunRecord]] = {}
    for run in report.transferred:
        for rule in run.transfer.behaviour:
            rules.setdefault(rule, []).append(run)
    if rules:
        everyone = len(report.transferred)
        items = tuple((rule, *((" (", *report.names(r), ")") if len(r) < everyone else ())) for rule, r in rules.items())
        parts.append(Section(f"Rules that the transfer followed ({len(rules)})", (Items(items),), folded=True))
    versions = [dict(run.transfer.versions) if run.transfer else {} for run in report.runs]
    known = [column for column in versions if column]
    if known and all(column == known[0] for column in known):
        rows = tuple((name, _code(version)) for name, version in known[0].items())
        parts.append(Section("Versions", (Table(("Package", "Version"), rows, "versions", (0, 1)),), folded=True))
    elif known:
        parts.append(Section("Versions", (_table(report, "Package", _names(versions), versions, "versions"),), folded=True))
    return [Section("Settings and versions", tuple(parts))] if parts else []


def _table(report: Report, corner: str, names: list[str], columns: list[dict[str, str]], what: str) -> Table:
    """A column for each run, of what is shown letter by letter."""
    rows = tuple((Code(name), *(_code(column.get(name)) for column in columns)) for name in names)
    return Table((corner, *map(report.name, report.runs)), rows, what, tuple(range(len(columns) + 1)))


def _code(value: str | None) -> Text:
    return NO_VALUE if value is None else Code(value)


def _names(columns: list[dict[str, str]]) -> list[str]:
    return list(dict.fromkeys(name for column in columns for name in column))


def _timings(run: RunRecord) -> dict[str, str]:
    found = {}
    if run.transfer and run.transfer.timings:
        found |= {name: duration(seconds) for name, seconds in run.transfer.timings.items()}
        found["transfer, all steps"] = duration(sum(run.transfer.timings.values()))
    if (used := compute(run)) is None:
        return found
    found["training"] = duration(used.seconds)
    if run.tokens:
        found["tokens trained on"] = number(run.tokens)
    if used.flops:
        found["FLOPs of the model"] = f"{used.flops:.3g}"
    if used.tokens_per_second is not None:
        found["tokens per second"] = number(used.tokens_per_second)
    if used.utilisation is not None:
        found["model FLOP utilisation"] = f"{100 * used.utilisation:.1f} %"
    return found


def _all_settings(run: RunRecord) -> dict[str, str]:
    found = {}
    if run.transfer:
        record = run.transfer
        values = {"method": record.method, "parity": record.parity, "source": record.source, "target": record.target}
        found |= {f"transfer.{name}": value for name, value in _flat({**values, **record.settings}).items()}
    return found | {f"training.{name}": value for name, value in _flat(run.config).items()}


def _flat(values: Mapping[str, Any], prefix: str = "") -> dict[str, str]:
    found: dict[str, str] = {}
    for name, value in values.items():
        if isinstance(value, Mapping) and value:
            found |= _flat(value, f"{prefix}{name}.")
        else:
            found[f"{prefix}{name}"] = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return found
