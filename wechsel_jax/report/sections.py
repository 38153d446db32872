"""The page's sections about training: headline, key figures, learning curves and the table of perplexities."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from html import escape

from wechsel_jax.report.curves import all_steps, baseline, best_at, chosen_steps, head_start, incomparable, perplexity_at
from wechsel_jax.report.display import enumeration, number, percent, plural
from wechsel_jax.report.drawing import learning_curves, phase_switches
from wechsel_jax.report.headline import Sentence, evidence, headline, leader
from wechsel_jax.report.palette import slots
from wechsel_jax.report.records import RunRecord
from wechsel_jax.report.table import MOST_STEPS, needed_column, needed_text, ranked, sideways

_MOST_ROWS = 25


@dataclass(frozen=True)
class Report:
    """What all sections share: the runs in their order, a colour for each, and what the comparison as a whole recorded."""

    runs: list[RunRecord]
    comparison: dict

    @cached_property
    def slots(self) -> list[int]:
        """Colour and marker of each run."""
        return slots(self.runs)

    @property
    def evaluated(self) -> list[RunRecord]:
        """The runs with evaluations."""
        return [run for run in self.runs if run.evaluations]

    @property
    def transferred(self) -> list[RunRecord]:
        """The runs whose transfer was recorded."""
        return [run for run in self.runs if run.transfer]

    def slot(self, run: RunRecord) -> int:
        """Colour and marker of one run."""
        return self.slots[[other.label for other in self.runs].index(run.label)]

    def name(self, run: RunRecord) -> str:
        """The run's label in its colour."""
        return f'<span class="run s{self.slot(run)}">{escape(run.label)}</span>'

    def html(self, sentence: Sentence) -> str:
        """A sentence with its runs in their colours."""
        return "".join(escape(part) if isinstance(part, str) else self.name(part) for part in sentence)

    def names(self, runs: Sequence[RunRecord]) -> str:
        """ "A, B and C", in their colours."""
        return enumeration([self.name(run) for run in runs])


def top(report: Report, title: str) -> str:
    """The headline, what backs it, warnings, and the key figures."""
    sentences = evidence(report.runs)
    reason = incomparable([run for run in report.runs if run.curve])
    warnings = [f'<p class="warning" role="note">{escape(reason)}</p>'] if reason else []
    for run in report.transferred:
        warnings += [f'<p class="warning" role="note">{report.name(run)}: {escape(note)}</p>' for note in run.transfer.notes]
    lines = "".join(f"<li>{report.html(sentence)}</li>" for sentence in sentences if sentence != (reason,))
    return (
        f'<header><h1 class="eyebrow">{escape(title)}</h1>'
        f'<p class="headline">{report.html(headline(report.runs))}</p>'
        + (f'<ul class="evidence">{lines}</ul>' if lines else "")
        + "".join(warnings)
        + _tiles(report)
        + "</header>"
    )


def curves(report: Report) -> str:
    """The learning curves, once for wide and once for narrow screens."""
    if not any(run.curve for run in report.runs):
        return ""
    drawings = [
        learning_curves(report.runs, report.slots, width=width, height=height, name=name)
        for width, height, name in ((1000, 470, "curves-wide"), (344, 380, "curves-narrow"))
    ]
    notes = [
        f"{report.names([run for run, _ in switching])} trains {escape(switching[0][1])} from step {step:,} on."
        for step, switching in phase_switches([run for run in report.runs if run.curve]).items()
    ]
    best, scratch = leader(report.runs), baseline(report.runs)
    sooner = head_start(best, scratch) if best and scratch else None
    if sooner:
        notes.append(
            f"The dotted line runs from where {report.name(best)} is as low as {report.name(scratch)} at its end, "
            f"step {sooner[0]:,.0f}, to that end, step {sooner[1]:,}."
        )
    return _section(
        "Learning curves",
        "Perplexity on held-out text: how many tokens the model hesitates between at each place, on average. Lower is better.",
        f"<figure>{''.join(drawings)}</figure>" + (f'<p class="caption">{" ".join(notes)}</p>' if notes else ""),
    )


def perplexities(report: Report) -> str:
    """Perplexity of every run at every evaluation."""
    runs = report.evaluated
    if not runs:
        planned = [run for run in report.runs if run.config or run.training]
        text = "No evaluation is recorded yet." if planned else "These models have not been trained further."
        return _section("Perplexity", text, "")
    steps = all_steps(runs)
    tokens = {point.tokens for run in runs for point in run.evaluations} - {None}
    counted = f" over {plural(tokens.pop(), 'token')}" if len(tokens) == 1 else ""
    lede = f"On held-out text{counted}, before training and along the way."
    body = _by_run(report, runs, steps) if sideways(runs) else _by_step(report, runs, steps)
    return _section("Perplexity at each evaluation", lede, body)


def _by_run(report: Report, runs: Sequence[RunRecord], steps: Sequence[int]) -> str:
    """A row for each of many runs, the best first."""
    shown = chosen_steps(steps, MOST_STEPS)
    comparable = incomparable(runs) is None
    best = {step: best_at(runs, step) if comparable else [] for step in shown}
    head = "".join(f'<th scope="col">{step:,}</th>' for step in shown)
    rows = "".join(
        f'<tr><th scope="row">{report.name(run)}</th>'
        + "".join(_perplexity(report, run, step, run in best[step]) for step in shown)
        + "</tr>"
        for run in ranked(runs)
    )
    about = ["Bold, with a dot: the lowest of its column; the lowest last value is first."] if comparable else []
    if len(shown) < len(steps):
        about.append(f"{len(shown)} of {len(steps)} evaluations are shown; metrics.jsonl has all.")
    return _scrolled(f'<th scope="col">Step</th>{head}', rows, about)


def _by_step(report: Report, runs: Sequence[RunRecord], steps: Sequence[int]) -> str:
    """A row for each evaluation."""
    shown = chosen_steps(steps, _MOST_ROWS)
    alone = runs[0] if len(runs) == 1 and runs[0].best else None
    if alone:
        shown = sorted({*shown, alone.best[0]})
    column = needed_column(runs)
    comparable = incomparable(runs) is None
    head = "".join(f'<th scope="col">{report.name(run)}</th>' for run in runs)
    if column:
        head += f'<th scope="col">{report.name(column[1])} needs<span class="quiet aside"> (steps)</span></th>'
    rows = []
    for step in shown:
        best = best_at(runs, step) if comparable else []
        best = [alone] if alone and step == alone.best[0] else best
        cells = "".join(_perplexity(report, run, step, run in best) for run in runs)
        if column:
            text = needed_text(column[2], step, column[1])
            cells += f'<td class="quiet">{text}</td>'
        name = '0 <span class="quiet aside">before training</span>' if step == 0 else f"{step:,}"
        kind = "end" if step == shown[-1] else ""
        rows.append(f'<tr class="{kind}"><th scope="row">{name}</th>{cells}</tr>')
    about = ["Bold, with a dot: the lowest of its row."] if comparable and len(runs) > 1 else []
    if alone:
        about.append(f"Bold, with a dot: the lowest after training began, {number(alone.best[1])} at step {alone.best[0]:,}.")
    if column:
        about.append(
            f"Last column: after how many steps {report.name(column[1])} is where {report.name(column[0])} is in this row, "
            "interpolated between evaluations."
        )
    if len(shown) < len(steps):
        about.append(f"{len(shown)} of {len(steps)} evaluations are shown; metrics.jsonl has all.")
    return _scrolled(f'<th scope="col">Step</th>{head}', "".join(rows), about)


def _scrolled(head: str, rows: str, about: Sequence[str]) -> str:
    table = (
        '<div class="scroll" tabindex="0" role="region" aria-label="Table of perplexities"><table class="evaluations"><thead>'
        f"<tr>{head}</tr></thead><tbody>{rows}</tbody></table></div>"
    )
    return table + (f'<p class="caption">{" ".join(about)}</p>' if about else "")


def _perplexity(report: Report, run: RunRecord, step: int, best: bool) -> str:
    value = perplexity_at(run, step)
    if not best:
        return f"<td>{number(value)}</td>"
    return f'<td class="best s{report.slot(run)}">{number(value)}<span class="hidden"> (lowest)</span></td>'


def _tiles(report: Report) -> str:
    best, scratch = leader(report.runs), baseline(report.runs)
    tiles = []
    if best:
        step, value = best.curve[-1]
        tiles.append((number(value), f"perplexity of {report.name(best)} after {plural(step, 'step')}"))
        sooner = head_start(best, scratch) if scratch and not incomparable(report.evaluated) else None
        if sooner and sooner[0] > 0:
            times = f"{number(sooner[1] / sooner[0], 2)} ×"
            tiles.append((times, f"fewer steps than {report.name(scratch)} for the perplexity that it ends with"))
    chosen = next((run for run in report.transferred if run is best), report.transferred[0] if report.transferred else None)
    if chosen and chosen.transfer.counts and sum(chosen.transfer.counts.values()):
        counts = chosen.transfer.counts
        total = sum(counts.values())
        share = percent((counts["copied"] + counts["mixed"]) / total)
        tiles.append((share, f"of {total:,} tokens start from tokens of the source model ({report.name(chosen)})"))
    alignment = next((run.transfer.alignment for run in report.transferred if run.transfer.alignment), {})
    if isinstance(alignment.get("precision_at_1"), float):
        found = percent(alignment["precision_at_1"])
        compared = "contexts" if "anchors" in alignment else "word vectors"
        tiles.append((found, f"of held-out words find their translation first among {compared}"))
    if not tiles:
        return ""
    items = "".join(f'<li class="tile"><b>{value}</b><span>{what}</span></li>' for value, what in tiles)
    return f'<ul class="tiles">{items}</ul>'


def _section(title: str, lede: str, body: str) -> str:
    return f"<section><h2>{title}</h2><p>{lede}</p>{body}</section>"
