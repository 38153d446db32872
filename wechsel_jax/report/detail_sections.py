"""The page's last sections: how long things took, and what would be needed to do it again."""

import json
import statistics
from collections.abc import Mapping
from html import escape
from typing import Any

from wechsel_jax.files.json import is_number
from wechsel_jax.report.display import NO_VALUE, duration, number
from wechsel_jax.report.records import RunRecord
from wechsel_jax.report.sections import Report


def timings(report: Report) -> str:
    """Seconds of every step of the transfer and of the training, speed, and the machine where it was recorded."""
    columns = [_timings(run) for run in report.runs]
    # In the order of the run that has most steps, so that a step that only one run has keeps its place.
    names = list(max(columns, key=len))
    names += [name for name in dict.fromkeys(name for column in columns for name in column) if name not in names]
    if not names:
        return ""
    rows = [(name, [column.get(name, NO_VALUE) for column in columns]) for name in names]
    known = {f"{run.path.name} {what}" for run in report.runs for what in ("transfer", "training")}
    shared = {name: value for name, value in report.comparison.get("seconds", {}).items() if name not in known and value}
    told = ", ".join(f"{escape(name)} {duration(value)}" for name, value in shared.items())
    notes = [f"Shared by all runs: {told}."] if told else []
    if isinstance(report.comparison.get("machine"), str):
        notes.append(f"Machine: {escape(report.comparison['machine'])}.")
    caption = f'<p class="caption">{" ".join(notes)}</p>' if notes else ""
    lede = "Wall-clock time. Training includes compilation, evaluations and checkpoints; tokens a second do not."
    return f"<section><h2>How long it took</h2><p>{lede}</p>{_table(report, 'Step', rows, 'timings')}{caption}</section>"


def settings(report: Report) -> str:
    """Settings, versions and rules, collapsed."""
    parts = [_differences(report), _common(report), _rules(report), _versions(report)]
    body = "".join(part for part in parts if part)
    return f"<section><h2>Settings and versions</h2>{body}</section>" if body else ""


def _timings(run: RunRecord) -> dict[str, str]:
    found = {}
    if run.transfer and run.transfer.timings:
        found |= {name: duration(seconds) for name, seconds in run.transfer.timings.items()}
        found["transfer, all steps"] = duration(sum(run.transfer.timings.values()))
    lasted = [line["seconds"] for line in run.training if is_number(line.get("seconds"))]
    if lasted:
        found["training"] = duration(lasted[-1])
    # The first lines of a run are short stretches behind a compilation; the median does not mind.
    speeds = [line["tokens_per_second"] for line in run.training if is_number(line.get("tokens_per_second"))]
    if speeds:
        found["tokens a second"] = number(statistics.median(speeds))
    used = [line["mfu"] for line in run.training if is_number(line.get("mfu"))]
    if used:
        found["model FLOP utilisation"] = f"{100 * statistics.median(used):.1f} %"
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


def _split(report: Report) -> tuple[list[str], list[str], list[dict[str, str]]]:
    columns = [_all_settings(run) for run in report.runs]
    names = list(dict.fromkeys(name for column in columns for name in column))
    differing = [name for name in names if len({column.get(name) for column in columns}) > 1]
    return differing, [name for name in names if name not in set(differing)], columns


def _differences(report: Report) -> str:
    differing, _, columns = _split(report)
    if not differing:
        return ""
    rows = [(name, [_code(column.get(name)) for column in columns]) for name in differing]
    table = _table(report, "Setting", rows, "settings that differ", text=True)
    return f"<details><summary>What differs between the runs ({len(rows)})</summary>{table}</details>"


def _common(report: Report) -> str:
    _, common, columns = _split(report)
    if not common:
        return ""
    rows = "".join(
        f'<tr><th scope="row"><code>{escape(name)}</code></th><td class="text">{_code(columns[0][name])}</td></tr>'
        for name in common
    )
    what = "Settings" if len(report.runs) == 1 else "What all runs share"
    return (
        f'<details><summary>{what} ({len(common)})</summary><div class="scroll"><table><thead><tr><th scope="col">Setting</th>'
        f'<th scope="col" class="text">Value</th></tr></thead><tbody>{rows}</tbody></table></div></details>'
    )


def _rules(report: Report) -> str:
    found: dict[str, list[RunRecord]] = {}
    for run in report.transferred:
        for rule in run.transfer.behaviour:
            found.setdefault(rule, []).append(run)
    if not found:
        return ""
    everyone = len(report.transferred)
    lines = "".join(
        f"<li>{escape(rule)}{'' if len(runs) == everyone else f' ({report.names(runs)})'}</li>" for rule, runs in found.items()
    )
    return f"<details><summary>Rules that the transfer followed ({len(found)})</summary><ul>{lines}</ul></details>"


def _versions(report: Report) -> str:
    columns = [dict(run.transfer.versions) if run.transfer else {} for run in report.runs]
    names = list(dict.fromkeys(name for column in columns for name in column))
    if not names:
        return ""
    known = [column for column in columns if column]
    if all(column == known[0] for column in known):
        rows = "".join(
            f'<tr><th scope="row">{escape(name)}</th><td class="text">{_code(str(known[0][name]))}</td></tr>' for name in names
        )
        head = '<th scope="col">Package</th><th scope="col" class="text">Version</th>'
        table = f'<div class="scroll"><table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table></div>'
    else:
        cells = [(name, [_code(column.get(name)) for column in columns]) for name in names]
        table = _table(report, "Package", cells, "versions", text=True)
    return f"<details><summary>Versions</summary>{table}</details>"


def _code(value: Any) -> str:
    return f'<span class="quiet">{NO_VALUE}</span>' if value is None else f"<code>{escape(str(value))}</code>"


def _table(report: Report, corner: str, rows: list[tuple[str, list[str]]], what: str, text: bool = False) -> str:
    """A table with a column a run; the names of rows are escaped here, the cells are HTML."""
    kind = ' class="text"' if text else ""
    # On a narrow screen a row's name stands over its values, while those are few.
    stacked = f' class="stacked" style="--columns:{len(report.runs)}"' if len(report.runs) <= 4 else ""
    heads = "".join(f'<th scope="col"{kind}>{report.name(run)}</th>' for run in report.runs)
    body = "".join(
        f'<tr><th scope="row">{f"<code>{escape(name)}</code>" if text else escape(name)}</th>'
        + "".join(f"<td{kind}>{cell}</td>" for cell in cells)
        + "</tr>"
        for name, cells in rows
    )
    return (
        f'<div class="scroll" tabindex="0" role="region" aria-label="Table of {what}"><table{stacked}><thead><tr>'
        f'<th scope="col">{corner}</th>{heads}</tr></thead><tbody>{body}</tbody></table></div>'
    )
