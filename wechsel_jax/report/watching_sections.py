"""The page's sections about a training as it went, or goes: where it stands, and every quantity over the steps."""

import math
from collections.abc import Callable, Mapping, Sequence
from html import escape
from typing import Any

from wechsel_jax.files.json import is_number
from wechsel_jax.report.display import NO_VALUE, duration, number, plural
from wechsel_jax.report.records import RunRecord
from wechsel_jax.report.sections import Report
from wechsel_jax.report.state import RUNNING
from wechsel_jax.report.strips import Series, strip

# As many lines as a small drawing holds.
_MOST_RUNS = 8
_GROUPS = (("gradient_norm/", "Gradient norm of each group"), ("update_norm/", "Update norm of each group"))
Points = list[tuple[int, float]]


def standing(report: Report) -> str:
    """Where the runs stand that have not come to their end."""
    runs = [run for run in report.runs if run.unfinished]
    if not runs:
        return ""
    heads = ("Step", "of", "left", "loss", "learning rate", "tokens a second", "MFU", "last line")
    head = "".join(f'<th scope="col">{name}</th>' for name in heads)
    rows = "".join(f'<tr><th scope="row">{report.name(run)} {run.state.kind}</th>{_standing(run)}</tr>' for run in runs)
    return (
        "<section><h2>Where it stands</h2><p>What the newest lines of the metrics say. What is left is reckoned from the last "
        "lines, evaluations and checkpoints included.</p>"
        '<div class="scroll" tabindex="0" role="region" aria-label="Where the runs stand"><table><thead><tr>'
        f'<th scope="col">Run</th>{head}</tr></thead><tbody>{rows}</tbody></table></div></section>'
    )


def history(report: Report) -> str:
    """Everything that was measured at every logged step, a small drawing each."""
    runs = [run for run in report.runs if run.training][:_MOST_RUNS]
    if not runs:
        return ""
    drawings = []
    for name, title, about, points, log in _QUANTITIES:
        series = [Series(run.label, report.slot(run), points(run)) for run in runs]
        if name == "loss":
            series = [Series(one.label, one.slot, one.points, _held_out(run)) for one, run in zip(series, runs, strict=True)]
        series = [one for one in series if one.points]
        if series and (name in _ALWAYS or any(value for one in series for _, value in one.points)):
            drawings.append(_drawing(name, title, about, series, log, runs))
    if len(runs) == 1:
        drawings += _groups(runs[0])
    if not drawings:
        return ""
    skipped = [_skipped(report, run) for run in runs if run.of_kind("skipped")]
    few = f"The first {len(runs)} runs are drawn. " if len(runs) < sum(bool(run.training) for run in report.runs) else ""
    note = f'<p class="caption">{few}{" ".join(skipped)}</p>' if few or skipped else ""
    return (
        "<section><h2>The training as it went</h2><p>One drawing for each thing that is measured, over the training steps. "
        "Where lines are many, means are drawn, in a band from the lowest to the highest; a dotted line is the beginning of a "
        f'phase.</p><div class="strips">{"".join(drawings)}</div>{note}</section>'
    )


def _skipped(report: Report, run: RunRecord) -> str:
    steps = [f"{line['step']:,}" for line in run.of_kind("skipped")]
    more = " and later" if len(steps) > 10 else ""
    updates = plural(len(steps), "update")
    return f"{report.name(run)} left out {updates} (not finite), at step {', '.join(steps[:10])}{more}."


def _standing(run: RunRecord) -> str:
    line: Mapping[str, Any] = run.training[-1] if run.training else {}
    rate = line.get("learning_rate")
    cells = [
        NO_VALUE if run.last_step is None else f"{run.last_step:,}",
        f"{run.planned_steps:,}" if run.planned_steps else NO_VALUE,
        duration(run.state.seconds_left) if run.state.kind == RUNNING and run.state.seconds_left is not None else NO_VALUE,
        number(line["loss"], 4) if is_number(line.get("loss")) else NO_VALUE,
        f"{rate:.2e}" if is_number(rate) else NO_VALUE,
        number(line["tokens_per_second"]) if is_number(line.get("tokens_per_second")) else NO_VALUE,
        f"{100 * line['mfu']:.1f} %" if is_number(line.get("mfu")) else NO_VALUE,
        f"{duration(run.state.silent)} ago" if run.state.silent is not None else NO_VALUE,
    ]
    return "".join(f"<td>{cell}</td>" for cell in cells)


def _drawing(
    name: str, title: str, about: str, series: Sequence[Series], log: bool, runs: Sequence[RunRecord], id_prefix: str = "strip"
) -> str:
    switches = [phase.start for phase in runs[0].phases[1:]] if len(runs) == 1 else []
    last = f" <b>{number(series[0].points[-1][1], 3)}</b>" if len(series) == 1 and series[0].points[-1][1] >= 1e-3 else ""
    drawn = strip(f"{id_prefix}-{name}", title, series, log=log, switches=switches)
    return f'<div class="strip"><h3>{escape(title)}{last}</h3><p>{about}</p>{drawn}</div>'


def _groups(run: RunRecord) -> list[str]:
    """The norms of each group of parameters, where a run has recorded them."""
    drawings = []
    for prefix, title in _GROUPS:
        names = list(dict.fromkeys(name for line in run.training for name in line if name.startswith(prefix)))
        series = [Series(name.removeprefix(prefix), i % 8, _values(run, name)) for i, name in enumerate(names[:8])]
        series = [one for one in series if one.points]
        if series:
            about = "logarithmic" + (f"; {len(names) - 8} more groups are in metrics.jsonl" if len(names) > 8 else "")
            drawings.append(_drawing(prefix.strip("/").replace("_", "-"), title, about, series, True, [run], "groups"))
    return drawings


def _values(run: RunRecord, name: str) -> Points:
    return [(line["step"], float(line[name])) for line in run.training if is_number(line.get(name))]


def _field(name: str, scale: float = 1.0) -> Callable[[RunRecord], Points]:
    return lambda run: [(step, value * scale) for step, value in _values(run, name)]


def _changed(name: str) -> Callable[[RunRecord], Points]:
    """What was measured anew: a line repeats the value of the last checkpoint until there is another, or has 0."""

    def points(run: RunRecord) -> Points:
        values = _values(run, name)
        before = [0.0, *(value for _, value in values)]
        return [point for point, last in zip(values, before, strict=False) if point[1] and point[1] != last]

    return points


def _held_out(run: RunRecord) -> Points:
    return [(step, math.log(perplexity)) for step, perplexity in run.curve if perplexity > 1]


def _waiting(run: RunRecord) -> Points:
    """The share of the time since the line before that the devices waited for text, in percent."""
    found, before = [], None
    for line in run.training:
        seconds, waited = line.get("seconds"), line.get("data_wait")
        if is_number(seconds) and is_number(waited) and before is not None and seconds > before:
            found.append((line["step"], min(100.0, 100.0 * waited / (seconds - before))))
        before = seconds if is_number(seconds) else None
    return found


# Drawn even where all values are 0.
_ALWAYS = ("loss", "learning-rate", "gradient-norm", "tokens", "waiting")
_QUANTITIES: tuple[tuple[str, str, str, Callable[[RunRecord], Points], bool], ...] = (
    ("loss", "Training loss", "nats a token, logarithmic; dots: held-out text", _field("loss"), True),
    ("learning-rate", "Learning rate", "of the update", _field("learning_rate"), False),
    ("gradient-norm", "Gradient norm", "before clipping, logarithmic", _field("gradient_norm"), True),
    ("tokens", "Tokens a second", "of all devices, pauses left out", _field("tokens_per_second"), False),
    ("mfu", "Model FLOPs utilisation", "percent of the devices’ peak", _field("mfu", 100.0), False),
    ("waiting", "Waiting for text", "percent of the time", _waiting, False),
    ("checkpoint-write", "Writing a checkpoint", "seconds, in the background", _changed("checkpoint_write"), False),
    ("checkpoint-wait", "Pause for a checkpoint", "seconds that training stood still", _changed("checkpoint_wait"), False),
)
