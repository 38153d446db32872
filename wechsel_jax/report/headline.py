"""The result in sentences, computed from the curves."""

import math
from collections.abc import Sequence

from wechsel_jax.records import RUNNING, STOPPED, RunRecord, best_evaluation
from wechsel_jax.report import curves
from wechsel_jax.report.display import duration, number, percent, plural
from wechsel_jax.report.runs import Report
from wechsel_jax.report.section import Text, joined

# As many runs as a sentence can hold.
_MOST_NAMED = 3


def headline(report: Report) -> Text:
    """Says in one sentence which run is best and by how much; of a single run, how far it came."""
    evaluated, measure = report.drawn, report.measure
    labelled = [run for run in report.runs if curves.scored(run)]
    if not evaluated and labelled:
        told = []
        for run in labelled[:_MOST_NAMED]:
            best = best_evaluation(curves.scored(run)) or curves.scored(run)[-1]
            told.append((report.name(run), f" reaches {best.metric.replace('_', ' ')} {best.score:.3f} at step {best.step:,}"))
        return (*joined(told, "; "), ".")
    if not evaluated:
        made = next((run for run in report.transferred if run.transfer.counts), None)
        if made is None:
            return "Nothing has been evaluated yet."
        counts = made.transfer.counts
        of = f"{counts['copied'] + counts['mixed']:,} of {sum(counts.values()):,} tokens from tokens of the source model"
        return (report.name(made), f" makes {of}; no evaluation is recorded yet.")
    if len(evaluated) == 1 or curves.incomparable(evaluated, measure):
        return (*joined([_progress(report, run) for run in evaluated[:_MOST_NAMED]], "; "), ".")
    step = curves.decisive_step(evaluated, measure)
    if step is None:
        return "No step has an evaluation of all runs, so none can be called best."
    best = curves.best_at(evaluated, step, measure)
    value = measure.at(best[0], step)
    if len(best) != 1:
        return (*report.names(best), f" are level at {measure.told(value)}.")
    others = sorted((run for run in evaluated if run is not best[0]), key=lambda run: measure.at(run, step))
    at_end = all(measure.curve(run)[-1][0] == step and not run.unfinished for run in evaluated)
    where = "ends at" if at_end else f"stands after {plural(step, 'step')} at"
    rivals = []
    for run in others[:_MOST_NAMED]:
        other = measure.at(run, step)
        lower = "level with " if other == value else f"{percent(1 - value / other)} lower than "
        rivals.append((lower, report.name(run), f" ({measure.number(other)})"))
    told = f"{measure.told(value)}{_beside(best[0], step, measure)}"
    return (report.name(best[0]), f" {where} {told}, ", *joined(rivals, last=" and "), ".")


def evidence(report: Report) -> list[Text]:
    """Returns the sentences under the headline: the head start over training from scratch, the lead, and what is open."""
    evaluated, measure = report.drawn, report.measure
    best = curves.leader(evaluated, measure)
    comparable = len(evaluated) > 1 and best is not None and not curves.incomparable(evaluated, measure)
    sentences = [*_head_start(report, best), *_lead(report, best, evaluated)] if comparable else []
    if comparable and curves.differ_in_tokenizer(evaluated):
        sentences.append("The runs have different tokenizers: bits per byte compare them, perplexities do not.")
    # Among runs of as many steps, so it need not be the one that leads here.
    if chosen := next((run for run in report.runs if run.name == report.comparison.chosen), None):
        sentences.append(("The probe chose ", report.name(chosen), "."))
    if curves.differ_in_text(evaluated, "train"):
        sentences.append("The runs were trained on different text, so more than what they began with differs.")
    for run in report.runs:
        name = report.name(run)
        where = f"step {run.last_step:,} of {run.planned_steps:,}" if run.last_step is not None and run.planned_steps else ""
        if run.state.kind == RUNNING:
            left = "" if run.state.seconds_left is None else f", about {duration(run.state.seconds_left)} left"
            sentences.append((name, f" is running: {where}{left}."))
        elif run.state.kind == STOPPED:
            sentences.append((name, f" stopped at {where}; the same command goes on from its newest checkpoint."))
        elif run.of_kind("stop") and where:
            told = f" ended early, at {where}, since it got no better"
            if (lowest := measure.lowest(run)) is not None:
                told += f"; its lowest was {measure.told(lowest[1])}, at step {lowest[0]:,}"
            sentences.append((name, f"{told}."))
        if not curves.scored(run) and len(measure.curve(run)) < len(run.evaluations):
            sentences.append((name, f" has evaluations whose {measure.name} is not finite; its curve leaves them out."))
    return sentences


def _progress(report: Report, run: RunRecord) -> Text:
    curve = report.measure.curve(run)
    (first, start), (last, end) = curve[0], curve[-1]
    beside = _beside(run, last, report.measure)
    if last > first:
        told = f" goes from {report.measure.told(start, end)} in {plural(last - first, 'step')}{beside}"
    else:
        told = f" has {report.measure.told(end)}{beside} after {plural(last, 'step')}"
    return (report.name(run), told)


def _beside(run: RunRecord, step: int, measure: curves.Measure) -> str:
    """The other measure, in brackets, where there is one."""
    other = curves.PERPLEXITY if measure is curves.BITS else curves.BITS
    value = other.at(run, step)
    return f" ({other.told(value)})" if value is not None and math.isfinite(value) else ""


def _head_start(report: Report, best: RunRecord) -> list[Text]:
    scratch, measure = curves.baseline(report.runs), report.measure
    if scratch is None or best is scratch:
        return []
    name, other = report.name(best), report.name(scratch)
    step, value = measure.curve(best)[-1]
    needed = curves.steps_needed(measure.curve(scratch), [(step, value)], measure.linear)[0]
    if needed is not None:
        told = f" needs {plural(needed, 'step')} to reach the {measure.number(value)} that "
        return [(other, told, name, f" has after {step:,}.")]
    within = plural(measure.curve(scratch)[-1][0], "step")
    sentences: list[Text] = [(other, f" does not reach {measure.number(value)} within its {within}.")]
    sooner = curves.head_start(best, scratch, measure)
    if sooner:
        reached, last, end = sooner
        times = f": {number(last / reached, 2)} times fewer" if reached > 0 else ""
        after = f"after {plural(reached, 'step')}" if reached > 0 else "before any training,"
        when = f" ({measure.number(end)}) {after} instead of {last:,}{times}."
        sentences.append((name, " reaches the last value of ", other, when))
    return sentences


def _lead(report: Report, best: RunRecord, evaluated: Sequence[RunRecord]) -> list[Text]:
    steps = curves.common_steps(evaluated)
    if len(steps) < 2:
        return []
    ahead = [step for step in steps if curves.best_at(evaluated, step, report.measure) == [best]]
    lowest = f" has the lowest {report.measure.name} at"
    if len(ahead) < len(steps):
        return [(report.name(best), f"{lowest} {len(ahead)} of {len(steps)} evaluations.")]
    start = ", before training included" if steps[0] == 0 else ""
    return [(report.name(best), f"{lowest} all {len(steps)} evaluations{start}.")]
