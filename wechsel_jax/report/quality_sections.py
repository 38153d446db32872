"""The page's sections that judge a vocabulary before training: the verdict, and which rule matched how many tokens."""

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from wechsel_jax.files.json import is_number
from wechsel_jax.inspection import Finding, summary
from wechsel_jax.report.display import NO_VALUE, percent, plural, token_html
from wechsel_jax.report.records import RunRecord
from wechsel_jax.report.sections import Report

_EXAMPLES = 4
_COUNTS = ("with_vector", "copied", "mixed", "noise")
_REST = {"without_vector": "Not shared and without a vector", "noise": "Not shared and random"}


def verdicts(report: Report) -> str:
    """What looks off in the transfers, worst first, in plain words."""
    runs = [run for run in report.transferred if run.transfer.findings]
    if not runs:
        return ""
    alike: dict[tuple[Finding, ...], list[RunRecord]] = {}
    for run in runs:
        alike.setdefault(tuple(finding for finding in run.transfer.findings if finding.severity != "ok"), []).append(run)
    # What is worst comes first; runs that are all right, last.
    order = sorted(alike, key=lambda off: (not off, off[0].severity != "wrong" if off else True))
    parts = [f"<h3>{report.names(alike[off])}: {_summary(off)}</h3>{_findings(off)}" for off in order]
    passed = "".join(
        f"<h3>{report.name(run)}</h3>{_findings([finding for finding in run.transfer.findings if finding.severity == 'ok'])}"
        for run in runs
    )
    return (
        "<section><h2>Before training: does anything look off?</h2><p>Every transfer is measured against what is known to go "
        "wrong. “Wrong” costs training steps, or all of them; “look” may be as it should be, but a person has to see it.</p>"
        f'<div class="verdict">{"".join(parts)}'
        f"<details><summary>All that was checked and found in order</summary>{passed}</details></div></section>"
    )


def coverage(report: Report) -> str:
    """Which rule matched how many of the new tokens with tokens of the source vocabulary, with examples."""
    found: dict[str, list[RunRecord]] = {}
    for run in report.transferred:
        if run.transfer.coverage.get("rows"):
            found.setdefault(_table(run.transfer.coverage), []).append(run)
    if not found:
        return ""
    several = len(found) > 1 or len(found) < len(report.transferred)
    body = "".join((f"<h3>{report.names(runs)}</h3>" if several else "") + table for table, runs in found.items())
    return (
        "<section><h2>What the two vocabularies share</h2><p>Tokens that both vocabularies have, by the tightest rule that "
        f"finds them; the rest must be made of others.</p>{body}</section>"
    )


def _summary(off: tuple[Finding, ...]) -> str:
    return escape(summary(off)) if off else "nothing looks off."


def _findings(findings: Sequence[Finding]) -> str:
    items = "".join(f'<li class="{f.severity}"><b>{f.severity}</b>{escape(f.text)}</li>' for f in findings)
    return f"<ul>{items}</ul>" if items else ""


def _table(found: Mapping[str, Any]) -> str:
    rows = [row for row in found["rows"] if row["tokens"]]
    counts = [name for name in _COUNTS if any(is_number(row.get(name)) for row in rows)]
    heads = "".join(f'<th scope="col">{name.replace("_", " ")}</th>' for name in ("tokens", "share", *counts))
    body = "".join(
        f'<tr><th scope="row">{escape(row["rule"])}</th><td>{row["tokens"]:,}</td>'
        f"<td>{percent(row['share']) if is_number(row.get('share')) else NO_VALUE}</td>"
        + "".join(f"<td>{f'{row[name]:,}' if is_number(row.get(name)) else NO_VALUE}</td>" for name in counts)
        + f'<td class="text">{_examples(row.get("examples"))}</td></tr>'
        for row in rows
    )
    rest = "".join(f'<p class="caption">{what}: {_some(found.get(key))}.</p>' for key, what in _REST.items() if found.get(key))
    return (
        '<div class="scroll" tabindex="0" role="region" aria-label="Table of shared tokens"><table><thead><tr>'
        f'<th scope="col">Rule</th>{heads}<th scope="col" class="text">examples</th></tr></thead>'
        f"<tbody>{body}</tbody></table></div>{rest}"
    )


def _some(group: Any) -> str:
    count = group.get("tokens") if isinstance(group, Mapping) else None
    if not is_number(count):
        return NO_VALUE
    return plural(count, "token") + (f", such as {_examples(group.get('examples'))}" if count else "")


def _examples(examples: Any) -> str:
    shown = []
    for example in (examples if isinstance(examples, list) else [])[:_EXAMPLES]:
        target, source = (*example, None)[:2] if isinstance(example, list) and example else (example, None)
        same = source is None or source == target
        shown.append(token_html(str(target)) if same else f"{token_html(str(target))} = {token_html(str(source))}")
    return ", ".join(shown) or NO_VALUE
