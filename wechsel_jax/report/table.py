"""The comparison as a table for the terminal."""

import math
from collections.abc import Sequence
from pathlib import Path

from wechsel_jax.report.curves import all_steps, baseline, best_at, chosen_steps, incomparable, perplexity_at, steps_needed
from wechsel_jax.report.display import NO_VALUE, number
from wechsel_jax.report.headline import decisive_step, evidence, headline, leader, plain
from wechsel_jax.report.records import RunRecord, read_runs

_MOST_COLUMNS = 6
# As many evaluations as fit beside the names of runs.
MOST_STEPS = 9


def comparison_table(runs: Sequence[str | Path | RunRecord]) -> str:
    """Returns held-out perplexities, a line an evaluation and a column a run, with the sentences that sum them up.

    The lowest value of an evaluation has a star. Where one run was trained from scratch, a last column says how many steps it
    needs for what the best run has by then. Of more than six runs each is a line, the best first; an evaluation is a column.

    Args:
      runs: directories as in `read_run`, or runs that were read.

    Raises:
      UserError: a run cannot be read.
    """
    records = read_runs(runs)
    evaluated = [run for run in records if run.evaluations]
    lines = []
    if evaluated:
        lines += [*(_aligned(_lines(evaluated), 1) if sideways(evaluated) else _aligned(_rows(evaluated))), ""]
    lines += [plain(sentence) for sentence in (headline(records), *evidence(records))]
    return "\n".join(lines)


def sideways(runs: Sequence[RunRecord]) -> bool:
    """Whether there are so many runs that each gets a row of a table, not a column."""
    return len(runs) > _MOST_COLUMNS


def ranked(runs: Sequence[RunRecord]) -> list[RunRecord]:
    """Returns the runs by the perplexity at the last step that all share, lowest first; as they are where there is none."""
    step = None if incomparable(runs) else decisive_step([run for run in runs if run.curve])
    if step is None:
        return list(runs)

    def rank(run: RunRecord) -> float:
        value = perplexity_at(run, step)
        return math.inf if value is None else value

    return sorted(runs, key=rank)


def needed_column(runs: Sequence[RunRecord]) -> tuple[RunRecord, RunRecord, dict[int, float | None]] | None:
    """Returns (best run, run from scratch, step -> steps that the latter needs for that value); None without the two."""
    best, scratch = leader(runs), baseline(runs)
    if best is None or scratch is None or best is scratch or incomparable(runs):
        return None
    needed = steps_needed(scratch.curve, best.curve)
    return best, scratch, {step: value for (step, _), value in zip(best.curve, needed, strict=True)}


def needed_text(needed: dict[int, float | None], step: int, scratch: RunRecord) -> str:
    """Returns the steps of `needed_column` as text: "more than 200" where the value is not reached."""
    if step not in needed:
        return NO_VALUE
    return f"> {scratch.curve[-1][0]:,}" if needed[step] is None else f"{needed[step]:,.0f}"


def _rows(runs: Sequence[RunRecord]) -> list[list[str]]:
    column = needed_column(runs)
    rows = [["step", *(run.label for run in runs)]]
    if column:
        rows[0].append(f"{column[1].label} needs")
    comparable = incomparable(runs) is None
    for step in all_steps(runs):
        best = best_at(runs, step) if comparable else []
        cells = [number(perplexity_at(run, step)) + ("*" if run in best else " ") for run in runs]
        rows.append([f"{step:,}", *cells])
        if column:
            rows[-1].append(needed_text(column[2], step, column[1]))
    return rows


def _lines(runs: Sequence[RunRecord]) -> list[list[str]]:
    steps = chosen_steps(all_steps(runs), MOST_STEPS)
    comparable = incomparable(runs) is None
    best = {step: best_at(runs, step) if comparable else [] for step in steps}
    rows = [["step", *(f"{step:,} " for step in steps)]]
    for run in ranked(runs):
        rows.append([run.label, *(number(perplexity_at(run, step)) + ("*" if run in best[step] else " ") for step in steps)])
    return rows


def _aligned(rows: list[list[str]], names: int = 0) -> list[str]:
    """Columns of equal width; the first `names` of them begin, the others end below each other."""
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    lines = [
        "  ".join(c.ljust(w) if i < names else c.rjust(w) for i, (c, w) in enumerate(zip(row, widths, strict=True))).rstrip()
        for row in rows
    ]
    return ["perplexity on held-out text", "", lines[0], "-" * max(map(len, lines)), *lines[1:]]
