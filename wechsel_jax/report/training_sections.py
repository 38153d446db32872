"""What is told of the training: headline, key figures, learning curves, perplexities, where it stands, and how it went."""

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from wechsel_jax.files.json import is_number
from wechsel_jax.inspection.verdict import FEW_WORDS
from wechsel_jax.records import RUNNING, RunRecord, best_evaluation
from wechsel_jax.records.compute import median
from wechsel_jax.report import curves
from wechsel_jax.report.display import NO_VALUE, duration, number, percent, plural
from wechsel_jax.report.headline import evidence, headline
from wechsel_jax.report.plots import HIGHEST, Lines, Series
from wechsel_jax.report.runs import Report
from wechsel_jax.report.section import Best, Figure, Items, KeyFigures, Note, Panels, Section, Table, Text, joined, plain

# More runs than this are rows of a table, not columns, with as many evaluations as fit beside their names.
_MOST_COLUMNS, _MOST_STEPS, _MOST_ROWS = 6, 9, 25
# As many lines as a small drawing holds.
_MOST_RUNS = 8
_ABOUT = {
    curves.PERPLEXITY: "Perplexity on held-out text: how many tokens the model hesitates between, on average. Lower is better.",
    curves.BITS: "Bits per byte of held-out text: what the model still needs to tell which byte comes next. Lower is better.",
}
_TRAINABLE = {"all": "all parameters", "tokens": "tokens only", "embeddings": "embeddings only"}
_GROUPS = (("gradient_norm/", "Gradient norm of each group"), ("update_norm/", "Update norm of each group"))
Points = list[tuple[int, float]]


def top(report: Report) -> Section:
    """The headline, what backs it, warnings, and the key figures."""
    reason = curves.incomparable(report.evaluated, report.measure)
    backing = tuple(evidence(report))
    warnings = [Note(reason, "warning")] if reason else []
    warnings += [Note((report.name(run), f": {note}"), "warning") for run in report.transferred for note in run.transfer.notes]
    figures = _key_figures(report)
    blocks = (*([Items(backing)] if backing else []), *warnings, *([KeyFigures(figures)] if figures else []))
    return Section(headline(report), blocks)


def learning_curves(report: Report) -> list[Section]:
    """The learning curves."""
    runs, measure = report.drawn, report.measure
    if not runs:
        return []
    drawn = {run.label: measure.curve(run) for run in runs}
    switches: dict[tuple[int, str], list[RunRecord]] = {}
    for run in runs:
        for phase in run.phases[1:]:
            what = _TRAINABLE.get(phase.trainable, f"phase “{phase.name}”")
            switches.setdefault((phase.start, what), []).append(run)
    lines, notes = [], []
    for (step, what), switching in sorted(switches.items()):
        names = report.names(switching)
        lines.append((step, f"{plain(names)}: {what} from step {step:,}", report.slots[switching[0].label]))
        notes.append((*names, f" trains {what} from step {step:,} on."))
    best, scratch = curves.leader(report.runs, measure), curves.baseline(report.runs)
    sooner = curves.head_start(best, scratch, measure) if best and scratch else None
    lead = None
    if sooner:
        reached, last, value = sooner
        lead = (*sooner[:2], value, f"{number(last / reached, 2)} × fewer steps" if reached > 0 else "before any training")
        notes.append((
            "The dotted line runs from where ", report.name(best), " is as low as ", report.name(scratch),
            f" at its end, step {reached:,.0f}, to that end, step {last:,}.",
        ))  # fmt: skip
    series = tuple(Series(run.label, report.slots[run.label], drawn[run.label]) for run in runs)
    ends = "; ".join(
        f"{label} from {measure.number(curve[0][1])} to {measure.number(curve[-1][1])}" for label, curve in drawn.items()
    )
    highest = min(measure.far * statistics.median(value for curve in drawn.values() for _, value in curve), HIGHEST)
    for run in runs:
        worst = max(value for _, value in drawn[run.label])
        if worst > highest:
            above = f" reaches {measure.number(worst)}, above the drawing; it stands at the upper edge there."
            notes.append((report.name(run), above))
    name, log = measure.name.capitalize(), measure is curves.PERPLEXITY
    figure = Figure(
        "learning-curves",
        f"{name} on held-out text over training steps of {', '.join(drawn)}",
        f"{'Logarithmic scale, lower' if log else 'Lower'} is better. {ends}. The table below has the values.",
        Lines(series, log, measure.name, tuple(lines), lead, highest, from_zero=False, decimals=None if log else 3),
    )
    return [Section("Learning curves", (_ABOUT[measure], figure, *([Note(joined(notes, " "))] if notes else [])))]


def label_scores(report: Report) -> list[Section]:
    """What runs on labelled examples scored along the way: a drawing, and each run's best."""
    runs = [run for run in report.runs if curves.scored(run)]
    if not runs:
        return []
    names = {curves.scored(run)[0].metric.replace("_", " ") for run in runs}
    rows = []
    for run in runs:
        points = curves.scored(run)
        best, last = best_evaluation(points), points[-1]
        at = (NO_VALUE, NO_VALUE) if best is None else (f"{best.score:.4f}", f"{best.step:,}")
        rows.append((report.name(run), last.metric.replace("_", " "), *at, f"{last.score:.4f}", f"{last.step:,}"))
    table = Table(("Run", "score", "best", "at step", "last", "after step"), tuple(rows), "scores of labels", text=(0, 1))
    value = names.pop() if len(names) == 1 else "score"
    drawn = [(run, [(point.step, point.score) for point in curves.scored(run)]) for run in runs]
    figure = _scores(report, "label-scores", value, drawn)
    return [Section("Scores on held-out examples", ("Higher is better; 1 is all right.", figure, table))]


def translations(report: Report) -> list[Section]:
    """BLEU of what runs translated along the way: a drawing, and each run's best (Kim et al., figure 1)."""
    all_points = ((run, [(one.step, one.bleu) for one in run.evaluations if one.bleu is not None]) for run in report.runs)
    found = [(run, points) for run, points in all_points if points]
    if not found:
        return []
    rows = []
    for run, points in found:
        best = max(points, key=lambda point: point[1])
        cells = (f"{best[1]:.2f}", f"{best[0]:,}", f"{points[-1][1]:.2f}", f"{points[-1][0]:,}")
        rows.append((report.name(run), *cells))
    table = Table(("Run", "best", "at step", "last", "after step"), tuple(rows), "BLEU")
    figure = _scores(report, "bleu", "BLEU", found)
    about = "BLEU of greedy translations of held-out text, from 0 to 100. Higher is better."
    return [Section("Translations of held-out text", (about, figure, table))]


def _scores(report: Report, name: str, value: str, points: Sequence[tuple[RunRecord, Points]]) -> Figure:
    """A drawing of what is the better the higher it is."""
    series = tuple(Series(run.label, report.slots[run.label], values) for run, values in points)
    ends = "; ".join(f"{one.label} ends at {number(one.points[-1][1])}" for one in series)
    return Figure(name, f"{value} on held-out examples over training steps", ends, Lines(series, False, value=value))


def perplexities(report: Report) -> list[Section]:
    """The measure of every run at every evaluation, thinned: a column for a run, or of many runs a row, the best first."""
    measure = report.measure
    runs = [run for run in report.evaluated if not curves.scored(run)]
    if not runs:
        if any(curves.scored(run) for run in report.runs):
            return []
        planned = any(run.config or run.training for run in report.runs)
        text = "No evaluation is recorded yet." if planned else "These models have not been trained further."
        return [Section("Perplexity", (text,))]
    steps = sorted({point.step for run in runs for point in run.evaluations})
    sideways = len(runs) > _MOST_COLUMNS
    both = measure is curves.BITS and not sideways
    over, unit = (" of", "byte") if measure is curves.BITS else (" over", "token")
    counts = {getattr(point, f"{unit}s") for run in runs for point in run.evaluations} - {None}
    counted = f"{over} {plural(counts.pop(), unit)}" if len(counts) == 1 else ""
    lede = f"On held-out text{counted}, along the way; step 0 is before training."
    lede += " In brackets: perplexity." if both else ""
    shown = curves.chosen_steps(steps, _MOST_STEPS if sideways else _MOST_ROWS)
    lowest = measure.lowest(runs[0]) if len(runs) == 1 else None
    if lowest:
        shown = sorted({*shown, lowest[0]})
    comparable = curves.incomparable(runs, measure) is None
    best = {step: curves.best_at(runs, step, measure) if comparable else [] for step in shown}
    if lowest:
        best[lowest[0]] = runs

    def cell(run: RunRecord, step: int) -> Text:
        value = measure.at(run, step)
        text = measure.number(value)
        first = Best(text, report.slots[run.label]) if run in best[step] else text
        return (first, f" ({number(curves.PERPLEXITY.at(run, step))})") if both and value is not None else first

    name = "perplexities" if measure is curves.PERPLEXITY else measure.name
    about: list[Text] = []
    if sideways:
        rows = tuple((report.name(run), *(cell(run, step) for step in shown)) for run in _ranked(report, runs))
        head: list[Text] = ["Step", *(f"{step:,}" for step in shown)]
        about += ["Bold or starred: the lowest of its column; the lowest last value is first."] if comparable else []
    else:
        head = ["Step", *map(report.name, runs)]
        body: list[list[Text]] = [[f"{step:,}", *(cell(run, step) for run in runs)] for step in shown]
        about += ["Bold or starred: the lowest of its row."] if comparable and len(runs) > 1 else []
        if lowest:
            step, value = lowest
            about.append(f"Bold or starred: the lowest after training began, {measure.number(value)} at step {step:,}.")
        leading, scratch = curves.leader(runs, measure), curves.baseline(runs)
        if leading and scratch and leading is not scratch and comparable:
            head.append((report.name(scratch), " needs"))
            curve = measure.curve(scratch)
            points = [(step, measure.at(leading, step)) for step in shown]
            for row, (_, value), needed in zip(body, points, curves.steps_needed(curve, points, measure.linear), strict=True):
                never = NO_VALUE if value is None or math.isinf(value) else f"> {curve[-1][0]:,}"
                row.append(never if needed is None else f"{needed:,.0f}")
            about.append((
                "Last column: after how many steps ", report.name(scratch), " is where ", report.name(leading),
                " is in this row, interpolated between evaluations.",
            ))  # fmt: skip
        rows = tuple(map(tuple, body))
    if len(shown) < len(steps):
        about.append(f"{len(shown)} of {len(steps)} evaluations are shown; metrics.jsonl has all.")
    caption = [Note(joined(about, " "))] if about else []
    table = Table(tuple(head), rows, name, left=tuple(range(1, 1 + len(runs))) if both else ())
    return [Section(f"{measure.name.capitalize()} at each evaluation", (lede, table, *caption))]


def bits_per_byte(report: Report) -> list[Section]:
    """What each run ended with, in the measure that tokenizers share, and how much text that was."""
    rows = []
    for run in report.runs:
        found = [one for one in run.evaluations if one.bits_per_byte is not None]
        if not found:
            continue
        last, trained = found[-1], [one.bits_per_byte for one in found if one.step]
        size = last.bytes / last.tokens if last.bytes and last.tokens else None
        rate = median(run, "tokens_per_second")
        speed = rate * size if size and rate is not None else None
        rows.append((
            report.name(run),
            f"{last.step:,}",
            f"{last.bits_per_byte:.3f}",
            f"{min(trained):.3f}" if trained else NO_VALUE,
            number(last.perplexity),
            NO_VALUE if size is None else f"{size:.2f}",
            NO_VALUE if speed is None else f"{speed:,.0f}",
        ))  # fmt: skip
    if not rows:
        return []
    masked = any(run.config.get("objective") in curves.MASKED for run in report.runs)
    about = (
        "What the models still need for a byte of held-out text, special tokens left out. Unlike perplexities, these numbers "
        "can be compared between tokenizers on the same text."
    )
    about += " A masked model is asked for its masked tokens only." if masked else ""
    head = ("Run", "after step", "bits per byte", "lowest", "perplexity", "bytes per token", "bytes per second")
    return [Section("Bits per byte", (about, Table(head, tuple(rows), "bits per byte")))]


def standing(report: Report) -> list[Section]:
    """Where the runs stand that have not come to their end."""
    rows = []
    for run in report.runs:
        if not run.unfinished:
            continue
        line: Mapping[str, Any] = run.training[-1] if run.training else {}
        value = {name: found for name, found in line.items() if is_number(found)}
        left = run.state.seconds_left if run.state.kind == RUNNING else None
        rows.append((
            (report.name(run), f" {run.state.kind}"),
            NO_VALUE if run.last_step is None else f"{run.last_step:,}",
            f"{run.planned_steps:,}" if run.planned_steps else NO_VALUE,
            NO_VALUE if left is None else duration(left),
            number(value["loss"], 4) if "loss" in value else NO_VALUE,
            f"{value['learning_rate']:.2e}" if "learning_rate" in value else NO_VALUE,
            number(value.get("tokens_per_second")),
            f"{100 * value['mfu']:.1f} %" if "mfu" in value else NO_VALUE,
            NO_VALUE if run.state.silent is None else f"{duration(run.state.silent)} ago",
        ))  # fmt: skip
    if not rows:
        return []
    head = ("Run", "Step", "of", "left", "loss", "learning rate", "tokens per second", "MFU", "last line")
    about = "The newest lines of the metrics. The time left is that of the last lines, evaluations and checkpoints included."
    return [Section("Where it stands", (about, Table(head, tuple(rows), "unfinished runs")))]


def history(report: Report) -> list[Section]:
    """Everything that was measured at every logged step, a small drawing each."""
    trained = [run for run in report.runs if run.training]
    runs = trained[:_MOST_RUNS]
    panels = []
    for name, title, about, points, log in _QUANTITIES:
        held_out = [_held_out(run) if name == "loss" else () for run in runs]
        series = [Series(r.label, report.slots[r.label], points(r), dots) for r, dots in zip(runs, held_out, strict=True)]
        series = [one for one in series if one.points]
        if series and (name in _ALWAYS or any(value for one in series for _, value in one.points)):
            switches = [phase.start for phase in runs[0].phases[1:]] if len(runs) == 1 else []
            panels.append(_panel(name, title, about, series, log, switches))
    for prefix, title in _GROUPS if len(runs) == 1 else ():
        names = list(dict.fromkeys(name for line in runs[0].training for name in line if name.startswith(prefix)))
        series = [Series(name.removeprefix(prefix), i, _values(runs[0], name)) for i, name in enumerate(names[:8])]
        series = [one for one in series if one.points]
        if series:
            about = "logarithmic" + (f"; {len(names) - 8} more groups are in metrics.jsonl" if len(names) > 8 else "")
            panels.append(_panel(f"groups-{prefix.strip('/').replace('_', '-')}", title, about, series, True))
    if not panels:
        return []
    notes: list[Text] = [f"The first {len(runs)} runs are drawn."] if len(runs) < len(trained) else []
    for run in runs:
        if skipped := [f"{line['step']:,}" for line in run.of_kind("skipped")]:
            more = " and later" if len(skipped) > 10 else ""
            where = f"at step {', '.join(skipped[:10])}{more}"
            notes.append((report.name(run), f" left out {plural(len(skipped), 'update')} (not finite), {where}."))
    about = (
        "One drawing for each thing that is measured, over the training steps. Where lines are many, means are drawn, in a "
        "band from the lowest to the highest; a dotted line is the beginning of a phase."
    )
    caption = [Note(joined(notes, " "))] if notes else []
    return [Section("The training as it went", (about, Panels(tuple(panels)), *caption))]


def _panel(name: str, title: str, about: str, series: list[Series], log: bool, switches: Sequence[int] = ()):
    # A single run's last value stands beside the heading.
    last = number(series[0].points[-1][1]) if len(series) == 1 and series[0].points[-1][1] >= 1e-3 else ""
    ends = "; ".join(f"{one.label} ends at {number(one.points[-1][1])}" for one in series)
    plot = Lines(tuple(series), log, switches=tuple((step, "", 0) for step in switches))
    return title, (f"{about}; now {last}" if last else about), Figure(name, f"{title} over training steps", ends, plot)


def _key_figures(report: Report) -> tuple[tuple[str, Text], ...]:
    measure = report.measure
    best, scratch = curves.leader(report.runs, measure), curves.baseline(report.runs)
    found: list[tuple[str, Text]] = []
    if best:
        step = measure.curve(best)[-1][0]
        for one in (curves.BITS, curves.PERPLEXITY):
            if math.isfinite(value := one.at(best, step)):
                found.append((one.number(value), (f"{one.name} of ", report.name(best), f" after {plural(step, 'step')}")))
        if (bleu := next((one.bleu for one in best.evaluations if one.step == step), None)) is not None:
            found.append((number(bleu), ("BLEU of ", report.name(best), f" after {plural(step, 'step')}")))
        comparable = not curves.incomparable(report.evaluated, measure)
        sooner = curves.head_start(best, scratch, measure) if scratch and comparable else None
        if sooner and sooner[0] > 0:
            what = ("fewer steps than ", report.name(scratch), f" for the {measure.name} that it ends with")
            found.append((f"{number(sooner[1] / sooner[0], 2)} ×", what))
    chosen = next((run for run in report.transferred if run is best), report.transferred[0] if report.transferred else None)
    if chosen and chosen.transfer.counts and (total := sum(chosen.transfer.counts.values())):
        share = percent((chosen.transfer.counts["copied"] + chosen.transfer.counts["mixed"]) / total)
        found.append((share, (f"of {total:,} tokens start from tokens of the source model (", report.name(chosen), ")")))
    alignment = next((run.transfer.alignment for run in report.transferred if run.transfer.alignment), {})
    # Of few words it says nothing.
    if isinstance(alignment.get("precision_at_1"), float) and (alignment.get("held_out_words") or FEW_WORDS) >= FEW_WORDS:
        compared = "contexts" if "anchors" in alignment else "word vectors"
        found.append((percent(alignment["precision_at_1"]), f"of held-out words find their translation first among {compared}"))
    return tuple(found)


def _ranked(report: Report, runs: Sequence[RunRecord]) -> list[RunRecord]:
    """The runs by their values at the last step that all share, lowest first; as they are where there is none."""
    step = None if curves.incomparable(runs, report.measure) else curves.decisive_step(report.drawn, report.measure)
    values = {run.label: math.inf if step is None else report.measure.at(run, step) for run in runs}
    return sorted(runs, key=lambda run: math.inf if values[run.label] is None else values[run.label])


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
    ("loss", "Training loss", "nats per token, logarithmic; dots: held-out text", _field("loss"), True),
    ("learning-rate", "Learning rate", "of the update", _field("learning_rate"), False),
    ("gradient-norm", "Gradient norm", "before clipping, logarithmic", _field("gradient_norm"), True),
    ("tokens", "Tokens per second", "of all devices, pauses left out", _field("tokens_per_second"), False),
    ("mfu", "Model FLOPs utilisation", "percent of the devices’ peak", _field("mfu", 100.0), False),
    ("waiting", "Waiting for text", "percent of the time", _waiting, False),
    ("checkpoint-write", "Writing a checkpoint", "seconds, in the background", _changed("checkpoint_write"), False),
    ("checkpoint-wait", "Pause for a checkpoint", "seconds that training stood still", _changed("checkpoint_wait"), False),
)
