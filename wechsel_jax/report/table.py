"""The comparison as a table for the terminal."""

from collections.abc import Sequence
from pathlib import Path

from wechsel_jax.report.curves import all_steps, baseline, best_at, incomparable, perplexity_at, steps_needed
from wechsel_jax.report.display import NO_VALUE, number
from wechsel_jax.report.headline import evidence, headline, leader, plain
from wechsel_jax.report.records import RunRecord, read_runs


def comparison_table(runs: Sequence[str | Path | RunRecord]) -> str:
    """Returns held-out perplexities, a line an evaluation and a column a run, with the sentences that sum them up.

    The lowest value of a line has a star. Where one run was trained from scratch, a last column says how many steps it needs
    for what the best run has by then.

    Args:
      runs: directories as in `read_run`, or runs that were read.

    Raises:
      UserError: a run cannot be read.
    """
    records = read_runs(runs)
    evaluated = [run for run in records if run.evaluations]
    lines = []
    if evaluated:
        lines += [*_aligned(_rows(evaluated)), ""]
    lines += [plain(sentence) for sentence in (headline(records), *evidence(records))]
    return "\n".join(lines)


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


def _aligned(rows: list[list[str]]) -> list[str]:
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    lines = ["  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    return ["perplexity on held-out text", "", lines[0], "-" * max(map(len, lines)), *lines[1:]]
