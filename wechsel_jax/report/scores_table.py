"""Files of scores as tables: models as rows, tasks as columns, each number with its 95 % interval."""

import csv
import io
import math
from collections.abc import Sequence
from pathlib import Path

from wechsel_jax.errors import UserError, printable
from wechsel_jax.evaluation.bootstrap import Interval, bootstrap, paired_bootstrap
from wechsel_jax.files import new_file, refuse_file
from wechsel_jax.files.json import is_number
from wechsel_jax.records.scores import Score, ScoresRecord, other_model
from wechsel_jax.report.display import NO_VALUE, number, plural
from wechsel_jax.report.figures import WIDE, WRITER, drawn, encoded
from wechsel_jax.report.latex import latex
from wechsel_jax.report.markdown import comment, markdown
from wechsel_jax.report.plots import HeatMap, Intervals
from wechsel_jax.report.section import Best, Figure, Note, Section, Table, Text
from wechsel_jax.report.terminal import terminal

# Of the metrics that items make up: how the column is called, whether lower is better, the factor and the digits shown.
MEASURES = {
    "bits_per_byte": ("bits per byte", True, 1.0, 3),
    "acc": ("accuracy, %", False, 100.0, 1),
    "acc_norm": ("accuracy by length, %", False, 100.0, 1),
    "accuracy": ("accuracy, %", False, 100.0, 1),
    "f1": ("F1, %", False, 100.0, 1),
    "las": ("labelled attachment, %", False, 100.0, 1),
}
ENDINGS = (".md", ".csv", ".tex", ".svg", ".png")
# What models of one grid share, beside the settings of their transfers.
_OF_A_GRID = ("architecture", "tokenizer", "vocabulary_size")
_COLUMNS = ("model", "task", "form", "group", "metric", "value", "low", "high", "items", "weights")


def read_scores(files: Sequence[str | Path]) -> ScoresRecord:
    """Reads files of scores as one.

    Raises:
      UserError: two of them score the same model in the same task, or models were asked different things under the name of one
        task, or one name stands for two models.
    """
    record, places = ScoresRecord(), {}
    asked: dict[str, Score] = {}
    for file in files:
        for score in ScoresRecord.read(file).scores:
            if score.key in places:
                where = f"{score.model}, {score.task}: is in {places[score.key]}, too"
                raise UserError(f"{file}: {where}; expected one score for a model and a task; leave one of the files out")
            if score.main not in MEASURES:
                known = ", ".join(MEASURES)
                raise UserError(
                    f"{file}: {score.model}, {score.task}: is in {score.main!r}; expected {known}; update wechsel-jax"
                )
            places[score.key] = file
            other = asked.setdefault(score.task, score)
            if other.asked() != score.asked():
                raise UserError(
                    f"{file}: {score.task}: {score.model} was scored on other data or with other settings than {other.model}; "
                    "expected the same; score it again, or give the task another name"
                )
            for named in record.scores:
                if named.model == score.model and (told := other_model(named.facts, score.facts)):
                    raise UserError(
                        f"{file}: {score.model}: other {told} in {score.task} than in {named.task}; expected one model a name"
                    )
            record = record.with_score(score)
    if not record.scores:
        raise UserError(f"{', '.join(map(str, files))}: hold no score; expected what `wechsel-jax evaluate` measured")
    return record


def sections(record: ScoresRecord) -> list[Section]:
    """Returns the tables of a record: scores, differences from the first model, and what the texts and models are."""
    first = {score.task: score for score in reversed(record.scores)}
    best: dict[str, float] = {}
    for task, score in first.items():
        values = [one.metrics[one.main] for one in record.scores if one.task == task]
        if len(values) > 1:
            best[task] = (min if MEASURES[score.main][1] else max)(values)

    def cell(model: str, task: str) -> Text:
        score = record.find(model, task)
        if score is None:
            return NO_VALUE
        _, _, factor, digits = MEASURES[score.main]
        value, low, high = _ends(score)
        text = f"{factor * value:.{digits}f}"
        text += "" if math.isnan(high) else f" ± {factor * (high - low) / 2:.{digits}f}"
        notes = [f"{_seeds(score)} seeds"] if _seeds(score) else []
        notes += [f"{_ties(score)} tie{'s' * (_ties(score) > 1)}"] if _ties(score) else []
        text += f" ({', '.join(notes)})" if notes else ""
        return Best(text) if score.metrics[score.main] == best.get(task) else text

    head = ("Model", *(f"{task} ({MEASURES[first[task].main][0]})" for task in record.tasks))
    rows = tuple((model, *(cell(model, task) for task in record.tasks)) for model in record.models)
    sizes = {task: len(first[task].numerators) for task in record.tasks}
    counts = "; ".join(f"{task}: {plural(size, 'item')}" for task, size in sizes.items())
    about = (
        f"± is half of the 95 % interval, by drawing the items with replacement ({counts}). Bold or starred: the best of its "
        "column. Bits per byte: lower is better, and tokenizers can be compared."
    )
    if any(map(_seeds, record.scores)):
        about += (
            " Where a number of seeds stands behind it, ± is the standard deviation of what models scored that differ in their "
            "seed alone, and the number before it their mean, of F1 that of their mean counts."
        )
    if any(map(_ties, record.scores)):
        about += " Ties are items with several best choices, of which the first counts; of minimal pairs it is the right one."
    told = [Section("Scores", (Table(head, rows, "scores"), Note(about)))]
    return [*told, *_differences(record), *_texts(record), *_models(record)]


def _seeds(score: Score) -> int:
    """How many models the score is the mean of; 0 where it is of one."""
    seeds, spread = score.metrics.get("seeds"), score.metrics.get("spread")
    return seeds if isinstance(seeds, int) and is_number(spread) else 0


def _ties(score: Score) -> int:
    ties = score.metrics.get(f"{score.main}_ties", 0)
    return ties if isinstance(ties, int) else 0


def _ends(score: Score) -> Interval:
    """A score with its 95 % interval; of several seeds, from a standard deviation below their mean to one above."""
    if not _seeds(score):
        return _told(bootstrap(score.items))
    value, spread = score.metrics[score.main], score.metrics["spread"]
    return Interval(value, value - spread, value + spread)


def _told(found: Interval) -> Interval:
    """Without ends where all draws agree, as where every item is right: they tell nothing of other items."""
    return found if found.low < found.high else Interval(found.value, math.nan, math.nan)


def _differences(record: ScoresRecord) -> list[Section]:
    """How each model differs from the first, on the same items."""
    (base, *models), rows = record.models, []
    for model in models:
        cells = []
        for task in record.tasks:
            one, other = (record.find(name, task) for name in (model, base))
            if one is None or other is None:
                cells.append(NO_VALUE)
                continue
            _, _, factor, digits = MEASURES[one.main]
            change = _told(paired_bootstrap(one.items, other.items))
            value, low, high = (f"{factor * end:+.{digits}f}" for end in change)
            cells.append(value if math.isnan(change.high) else f"{value} [{low}, {high}]")
        rows.append((model, *cells))
    if not rows:
        return []
    about = (
        "In brackets the 95 % interval; one that does not hold 0 is a difference that other such items would probably show, "
        "too. By chance one in twenty does not hold it where there is none."
    )
    if any(map(_seeds, record.scores)):
        about += " Of several seeds their means on each item are compared: what other seeds would show, it does not tell."
    heading = f"Differences from {base}"
    return [Section(heading, (Table(("Model", *record.tasks), tuple(rows), "differences"), Note(about)))]


def _texts(record: ScoresRecord) -> list[Section]:
    rows = []
    for score in record.scores:
        if score.form != "text":
            continue
        metrics = score.metrics
        rows.append((
            score.task,
            score.model,
            f"{metrics['bits_per_byte']:.3f}",
            number(metrics[score.perplexity]),
            f"{metrics['bits_per_word']:.2f}",
            f"{metrics['bytes_per_token']:.2f}",
            f"{sum(score.denominators):,.0f}",
            f"{metrics['unknown_tokens']:,}",
        ))  # fmt: skip
    if not rows:
        return []
    head = ("Text", "Model", "bits per byte", "perplexity", "bits per word", "bytes per token", "bytes", "unknown tokens")
    about = (
        "Perplexity counts tokens, so it compares models of the same tokenizer only. That of a masked model is its "
        "pseudo-perplexity, which is not that of a causal model."
    )
    if any(score.metrics.get("unknown_tokens") for score in record.scores):
        about += (
            " An unknown token is one guess, however much text it stands for, and a character that the tokenizer leaves out, "
            "which is counted with them, is none: where a model has many, its bits per byte are too low to be compared."
        )
    return [Section("Texts", (Table(head, tuple(rows), "texts", text=(0, 1)), Note(about)))]


def _models(record: ScoresRecord) -> list[Section]:
    facts = {score.model: score.facts for score in record.scores}
    rows = tuple(
        (
            model,
            str(one.get("architecture", NO_VALUE)),
            str(one.get("method", NO_VALUE)),
            number(one.get("vocabulary_size")),
            number(one.get("parameters")),
            f"{100 * (one.get('embedding_parameters') or 0) / one['parameters']:.0f} %" if one.get("parameters") else NO_VALUE,
            one["weights"][:12] + (f", mean of {one['average']} checkpoints" if one.get("average") else ""),
        )
        for model, one in facts.items()
    )
    head = ("Model", "architecture", "initialised by", "tokens", "parameters", "in embeddings", "sha256 of the weights")
    return [Section("Models", (Table(head, rows, "models", text=(0, 1, 2, 6)),))]


def figure(record: ScoresRecord) -> Figure:
    """Returns a drawing of the scores: a panel for each task, a row for each model."""
    panels = []
    for task in record.tasks:
        scores = [record.find(model, task) for model in record.models]
        name, _, factor, _ = MEASURES[next(score.main for score in scores if score)]
        ends = [score and _ends(score) for score in scores]
        # Without an interval a dot is drawn alone.
        values = [one and tuple(factor * (one.value if math.isnan(end) else end) for end in one) for one in ends]
        seeds = [_seeds(score) for score in scores if score]
        lines = f"\n± of {max(seeds)} seeds{'' if all(seeds) else ', else 95 %'}" if any(seeds) else ""
        panels.append((f"{task}\n{name}{lines}", tuple(values)))
    about = (
        "Each dot is a score, its line the 95 % interval, or of several seeds a standard deviation to each side; the vertical "
        "line is the first model's score."
    )
    return Figure("scores", "Scores of models in tasks", about, Intervals(record.models, tuple(panels)))


def heat_map(record: ScoresRecord) -> Figure:
    """Returns a drawing of the table of scores, where the best of each task is dark and the worst is light."""
    heads, columns = zip(*(_shaded(record, task, record.models) for task in record.tasks), strict=True)
    about = "Each column is shaded from its worst score to its best; behind ± the standard deviation of several seeds."
    table = HeatMap(record.models, heads, tuple(zip(*columns, strict=True)))
    return Figure("scores", "Scores of models in tasks", about, table)


def grid(record: ScoresRecord, settings: Sequence[str]) -> Figure:
    """Returns a heat map of two settings of a method, such as k and tau (WECHSEL, Table 7): for each task a column a value.

    Models of other methods, and those that no transfer made, are not in it.

    Args:
      record: scores of models whose transfers differ in these two settings alone.
      settings: the names of the rows' setting and of the columns'.

    Raises:
      UserError: the record does not tell these settings, or has two models for a cell, or models that differ in others, too.
    """
    where = f"grid {','.join(settings)}"
    if len({*settings}) != 2:
        raise UserError(f"{where}: expected two settings of transfers, as in neighbors,temperature")
    known = {score.model: score.facts for score in record.scores if {*settings} <= {*score.facts.get("settings", ())}}
    # All settings are recorded, also those that a method does not read: its models have one value of them.
    tried: dict[str, dict[str, tuple]] = {}
    for model, facts in known.items():
        tried.setdefault(str(facts.get("method")), {})[model] = tuple(facts["settings"][name] for name in settings)
    tried = {method: places for method, places in tried.items() if len({*places.values()}) > 1}
    if len(tried) != 1:
        found = f"methods {', '.join(tried)} have" if tried else "no method has"
        raise UserError(
            f"{where}: {found} scores of several values; expected one that has; score its transfers, into a new file (earlier "
            "ones do not tell settings)"
        )
    (places,) = tried.values()
    every = [known[model]["settings"] | {name: known[model].get(name) for name in _OF_A_GRID} for model in places]
    names = sorted({name for one in every for name in one} - {*settings})
    if other := next((name for name in names if len({str(one.get(name)) for one in every}) > 1), None):
        raise UserError(f"{where}: the transfers differ in {other}, too; expected these two alone; leave the others out")
    models = {place: model for model, place in places.items()}
    if twice := next((model for model, place in places.items() if models[place] != model), None):
        raise UserError(f"{where}: {twice} and {models[places[twice]]} have the same; expected one model a cell; leave one out")
    rows, columns = (sorted({*tried}, key=lambda value: (isinstance(value, str), value)) for tried in zip(*models, strict=True))
    heads, cells = [], [[] for _ in rows]
    for task in record.tasks:
        head, shaded = _shaded(record, task, [models.get((row, column), "") for row in rows for column in columns])
        heads += [f"{head}\n{settings[1]} {_short(column)}" for column in columns]
        for place, row in enumerate(cells):
            row += shaded[place * len(columns) : (place + 1) * len(columns)]
    about = f"Each task is shaded from its worst score to its best, by {settings[0]} and {settings[1]} of the transfer."
    table = HeatMap(tuple(f"{settings[0]} {_short(row)}" for row in rows), tuple(heads), tuple(map(tuple, cells)), len(columns))
    return Figure("scores", f"Scores by {settings[0]} and {settings[1]}", about, table)


def _short(value: str | float) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def _shaded(record: ScoresRecord, task: str, models: Sequence[str]) -> tuple[str, list[tuple[str, float] | None]]:
    """Returns how a task is called, and of each model its score and its shade, from 0, the worst of them, to 1."""
    scores = [record.find(model, task) for model in models]
    name, lower, factor, digits = MEASURES[next(score.main for score in record.scores if score.task == task)]
    values = [score.metrics[score.main] for score in scores if score] or [0.0]
    worst, best = (max(values), min(values)) if lower else (min(values), max(values))
    shades = [score and (score.metrics[score.main] - worst) / ((best - worst) or 1.0) for score in scores]
    spreads = [f" ± {factor * score.metrics['spread']:.{digits}f}" if score and _seeds(score) else "" for score in scores]
    return f"{task}\n{name}", [
        None if score is None else (f"{factor * score.metrics[score.main]:.{digits}f}{spread}", shade)
        for score, shade, spread in zip(scores, shades, spreads, strict=True)
    ]


def scores_text(record: ScoresRecord) -> str:
    """Returns the tables as lines for a terminal."""
    return terminal(sections(record))


def write_scores(
    files: Sequence[str | Path],
    output: str | Path,
    *,
    shaded: bool = False,
    settings: Sequence[str] = (),
    overwrite: bool = False,
) -> Path:
    """Writes files of scores as tables; nothing is measured again.

    Args:
      files: of `wechsel-jax evaluate`.
      output: .md (all tables), .tex (all, one tabular after another, for booktabs, with what is said of them in comments), .csv
        (a line for each metric of each score, for programs: differences and facts of models are not among them), or .svg and
        .png (a drawing of the scores with their intervals).
      shaded: draw a heat map of the table instead.
      settings: draw a heat map of two settings of the models' transfers instead, see `grid`.
      overwrite: replace what was written before.

    Raises:
      UserError: see `read_scores` and `grid`; or `output` has another ending, or holds something else.
    """
    output = Path(output)
    if output.suffix not in ENDINGS:
        raise UserError(f"{output}: expected a name that ends in {', '.join(ENDINGS)} for tables of scores")
    marks = (WRITER.encode(), ",".join(_COLUMNS).encode())
    refuse_file(output, lambda path: any(mark in path.read_bytes()[:2000] for mark in marks), "report", overwrite, files)
    record = read_scores(files)
    if output.suffix in (".svg", ".png"):
        plot = grid(record, settings) if settings else heat_map(record) if shaded else figure(record)
        drawing = encoded(drawn(plot, WIDE), output.suffix[1:])
        with new_file(output) as handle:
            handle.write(drawing)
        return output
    told = f"{WRITER} from {', '.join(map(str, files))}."
    if output.suffix == ".csv":
        text = _csv(record)
    elif output.suffix == ".tex":
        # Behind the end of a line, a name that has one would be no comment any more.
        lines = [f"% {printable(told)}"]
        for section in sections(record):
            lines += ["", f"% {printable(section.heading)}"]
            lines += [latex(one).rstrip() if isinstance(one, Table) else f"% {printable(one.text)}" for one in section.blocks]
        text = "\n".join(lines) + "\n"
    else:
        text = f"{comment(told)}\n\n{markdown(sections(record))}\n"
    with new_file(output, "w") as handle:
        handle.write(text)
    return output


def _csv(record: ScoresRecord) -> str:
    handle = io.StringIO()
    table = csv.writer(handle, lineterminator="\n")
    table.writerow(_COLUMNS)
    for score in record.scores:
        interval = _told(bootstrap(score.items))
        # Scores of earlier versions have a group of those that name none.
        groups = [("", score.metrics), *(one for one in score.metrics.get("phenomena", {}).items() if one[0])]
        for group, metrics in groups:
            for name, value in metrics.items():
                if is_number(value):
                    shown = name == score.main and not group and not math.isnan(interval.high)
                    ends = interval[1:] if shown else ("", "")
                    items = metrics.get("items", "") if group else len(score.numerators)
                    row = (group, name, value, *ends, items, score.facts["weights"][:12])
                    table.writerow((score.model, score.task, score.form, *row))
    return handle.getvalue()
