"""The result in sentences, computed from the curves."""

import math
from collections.abc import Sequence

from wechsel_jax.report.curves import baseline, best_at, common_steps, head_start, incomparable, perplexity_at, steps_needed
from wechsel_jax.report.display import duration, number, percent, plural
from wechsel_jax.report.records import RunRecord
from wechsel_jax.report.state import RUNNING, STOPPED

# A sentence is text with runs in it, so that a page can give their names a colour.
Sentence = tuple[str | RunRecord, ...]


def plain(sentence: Sentence) -> str:
    """Returns a sentence as text."""
    return "".join(part if isinstance(part, str) else part.label for part in sentence)


def headline(runs: Sequence[RunRecord]) -> Sentence:
    """Says in one sentence which run is best and by how much; of a single run, how far it came."""
    evaluated = [run for run in runs if run.curve]
    if not evaluated:
        return _origins(runs)
    if len(evaluated) == 1 or incomparable(evaluated):
        return _progress(evaluated)
    step = decisive_step(evaluated)
    if step is None:
        return ("No step has an evaluation of all runs, so none can be called best.",)
    best = best_at(evaluated, step)
    if len(best) != 1:
        return (*_listed(best), f" are level at perplexity {number(perplexity_at(best[0], step))}.")
    value = perplexity_at(best[0], step)
    others = sorted((run for run in evaluated if run is not best[0]), key=lambda run: perplexity_at(run, step))
    where = "ends at" if _at_end(evaluated, step) else f"stands after {plural(step, 'step')} at"
    sentence: list[str | RunRecord] = [best[0], f" {where} perplexity {number(value)}, "]
    shown = others[:3]
    for i, run in enumerate(shown):
        other = perplexity_at(run, step)
        sentence += [f"{_joint(i, len(shown))}{_lower(value, other)}", run, f" ({number(other)})"]
    return (*sentence, ".")


def evidence(runs: Sequence[RunRecord]) -> list[Sentence]:
    """Returns the sentences under the headline: the head start over training from scratch, the lead, and what is open."""
    evaluated = [run for run in runs if run.curve]
    sentences: list[Sentence] = []
    reason = incomparable(evaluated)
    if reason:
        sentences.append((reason,))
    elif len(evaluated) > 1:
        sentences += _head_start(evaluated) + _lead(evaluated)
    for run in runs:
        sentences += _progress_of(run)
        if any(not math.isfinite(point.perplexity) for point in run.evaluations):
            sentences.append((run, " has evaluations whose perplexity is not finite; its curve leaves them out."))
    return sentences


def decisive_step(evaluated: Sequence[RunRecord]) -> int | None:
    """Returns the last step at which all runs have a finite perplexity."""
    finite = [step for step in common_steps(evaluated) if all(math.isfinite(perplexity_at(run, step)) for run in evaluated)]
    return finite[-1] if finite else None


def leader(runs: Sequence[RunRecord]) -> RunRecord | None:
    """Returns the run with the lowest perplexity at the last step that all share; None where none can be called best."""
    evaluated = [run for run in runs if run.curve]
    if len(evaluated) == 1:
        return evaluated[0]
    step = decisive_step(evaluated) if evaluated and not incomparable(evaluated) else None
    best = best_at(evaluated, step) if step is not None else []
    return best[0] if len(best) == 1 else None


def _progress_of(run: RunRecord) -> list[Sentence]:
    """Where a run stands that has not come to its last step, and that a finished one stopped early."""
    where = f"step {run.last_step:,} of {run.planned_steps:,}" if run.last_step is not None and run.planned_steps else ""
    if run.state.kind == RUNNING:
        left = "" if run.state.seconds_left is None else f", about {duration(run.state.seconds_left)} left"
        return [(run, f" is running: {where}{left}.")]
    if run.state.kind == STOPPED:
        return [(run, f" stopped at {where}; the same command goes on from its newest checkpoint.")]
    stops = run.of_kind("stop")
    if stops and where:
        best = "" if run.best is None else f"; its lowest perplexity is {number(run.best[1])}, at step {run.best[0]:,}"
        return [(run, f" ended early, at {where}, since it got no better{best}.")]
    return []


def _head_start(runs: Sequence[RunRecord]) -> list[Sentence]:
    best, scratch = leader(runs), baseline(runs)
    if best is None or scratch is None or best is scratch:
        return []
    step, value = best.curve[-1]
    needed = steps_needed(scratch.curve, [(step, value)])[0]
    if needed is not None:
        return [(scratch, f" needs {plural(needed, 'step')} to reach the {number(value)} that ", best, f" has after {step:,}.")]
    sentences: list[Sentence] = [
        (scratch, f" does not reach {number(value)} within its {plural(scratch.curve[-1][0], 'step')}.")
    ]
    sooner = head_start(best, scratch)
    if sooner:
        reached, last, end = sooner
        times = f": {number(last / reached, 2)} times fewer" if reached > 0 else ""
        after = f"after {plural(reached, 'step')}" if reached > 0 else "before any training,"
        when = f" ({number(end)}) {after} instead of {last:,}{times}."
        sentences.append((best, " reaches the last value of ", scratch, when))
    return sentences


def _lead(runs: Sequence[RunRecord]) -> list[Sentence]:
    best, steps = leader(runs), common_steps(runs)
    if best is None or len(steps) < 2:
        return []
    ahead = [step for step in steps if best_at(runs, step) == [best]]
    if len(ahead) == len(steps):
        start = ", before training included" if steps[0] == 0 else ""
        return [(best, f" has the lowest perplexity at all {len(steps)} evaluations{start}.")]
    return [(best, f" has the lowest perplexity at {len(ahead)} of {len(steps)} evaluations.")]


def _progress(evaluated: Sequence[RunRecord]) -> Sentence:
    sentence: list[str | RunRecord] = []
    for i, run in enumerate(evaluated[:3]):
        (first, start), (last, end) = run.curve[0], run.curve[-1]
        came = f" goes from perplexity {number(start)} to {number(end)} in {plural(last - first, 'step')}"
        sentence += [
            "; " if i else "",
            run,
            came if last > first else f" has perplexity {number(end)} after {plural(last, 'step')}",
        ]
    return (*sentence, ".")


def _origins(runs: Sequence[RunRecord]) -> Sentence:
    made = [run for run in runs if run.transfer and run.transfer.counts]
    if not made:
        return ("Nothing has been evaluated yet.",)
    counts = made[0].transfer.counts
    total = sum(counts.values())
    known = counts["copied"] + counts["mixed"]
    return (made[0], f" makes {known:,} of {total:,} tokens from tokens of the source model; no evaluation is recorded yet.")


def _lower(value: float, other: float) -> str:
    share = 1 - value / other
    return "level with " if share == 0 else f"{percent(share)} lower than "


def _at_end(runs: Sequence[RunRecord], step: int) -> bool:
    return all(run.curve[-1][0] == step and not run.unfinished for run in runs)


def _listed(runs: Sequence[RunRecord]) -> list[str | RunRecord]:
    parts: list[str | RunRecord] = []
    for i, run in enumerate(runs):
        parts += [_joint(i, len(runs)), run]
    return parts


def _joint(index: int, count: int) -> str:
    return "" if index == 0 else " and " if index == count - 1 else ", "
