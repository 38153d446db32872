"""The papers' figures beside ours: WECHSEL's Tables 2 to 4, 7 and 9 to 11, and SALT's Tables 1 and 8.

    python -m benchmarks.papers

prints the tables of docs/papers.md. papers.json holds the papers' figures as they are printed, also of what was not run
here, such as other languages, and SALT's Table 5 (three helpers, of which one was tried); ours are read from the other results.
Figures of Kim et al. and of TreLM are in docs/translation.md and docs/trelm.md.
"""

import itertools
import json
import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.results import read_results
from wechsel_jax.evaluation.bootstrap import bootstrap
from wechsel_jax.program import program
from wechsel_jax.records.scores import ScoresRecord

FOLDER = Path(__file__).parent
FIGURES = FOLDER / "papers.json"
WECHSEL = {"wechsel": "WECHSEL", "wechsel_tfr": "WECHSEL-TFR", "trans_inner": "TransInner", "full_rand": "FullRand"}
SALT = {"salt": "SALT", "ofa": "OFA", "focus_words": "FOCUS", "multivariate": "Multivariate"}
GRID = {
    "k1_tau1": "k = 1",
    "k10_tau01": "10, .1",
    "k10_tau1": "10, 1",
    "k50_tau01": "50, .1",
    "k50_tau1": "50, 1",
    "full_rand": "FullRand",
}
# Two scores that are nearer, as a share of the larger, are called level.
LEVEL = 0.01


class Score(NamedTuple):
    """Ours: perplexity or % right, and what stands behind ±, where there is something."""

    value: float
    spread: float | None = None


class Comparison(NamedTuple):
    """A row: what the paper and we have of the same methods, and what either measured; `unit` is the paper's."""

    table: str
    language: str
    measured: tuple[str, str]
    unit: str
    printed: Mapping[str, str]
    ours: Mapping[str, Score]


def read_figures() -> list[dict[str, Any]]:
    """Returns the papers' figures: of each table, language and setting the values as printed, by method."""
    return json.loads(FIGURES.read_text(encoding="utf-8"))


def find(tables: Sequence[str], measure: str, language: str, setting: str, paper: str = "WECHSEL") -> dict[str, str]:
    """Returns the values of one setting by method, as printed, of several tables together."""
    found: dict[str, str] = {}
    for group in read_figures():
        where = (group["paper"], group["measure"], group["language"], group["setting"])
        if where == (paper, measure, language, setting) and group["table"] in tables:
            found |= group["values"]
    return found


def number(printed: str, unit: str) -> float:
    """Returns a printed value as what is compared: of a loss its perplexity."""
    return math.exp(float(printed)) if unit == "nats" else float(printed)


def compare_order(papers: Mapping[str, float], ours: Mapping[str, Score]) -> dict[str, list[tuple[str, str]]]:
    """Returns the pairs of methods that the paper parts: those that are "alike" ordered here, "level" here, or "turned".

    A pair is level where it is less than `LEVEL` apart, ours also where it is less apart than the larger ±.

    >>> found = compare_order({"a": 2.0, "b": 3.0, "c": 3.01}, {"a": Score(5.0), "b": Score(4.0), "c": Score(9.0, 5.0)})
    >>> {name: pairs for name, pairs in found.items() if pairs}
    {'level': [('a', 'c')], 'turned': [('a', 'b')]}
    """
    found: dict[str, list[tuple[str, str]]] = {"alike": [], "level": [], "turned": []}
    for one, other in itertools.combinations([name for name in papers if name in ours], 2):
        theirs, mine = papers[one] - papers[other], ours[one].value - ours[other].value
        if abs(theirs) < LEVEL * max(papers[one], papers[other]):
            continue
        least = LEVEL * max(ours[one].value, ours[other].value)
        least = max([least, *(ours[name].spread or 0.0 for name in (one, other))])
        found["level" if abs(mine) < least else "alike" if theirs * mine > 0 else "turned"].append((one, other))
    return found


def texts_of_language(language: str) -> list[Comparison]:
    """Table 3, and of Table 9 WECHSEL-TFR: perplexity before, after a tenth of and after the training.

    Ours are of anker.json, and of initializers.json where that has no FullRand.
    """
    curves: dict[str, list[list]] = {}
    for run in read_results(FOLDER / "anker.json")["languages"].get(language, {}).values():
        for name in WECHSEL.keys() & run.keys():
            curves.setdefault(name, []).append(run[name]["evaluations"])
    if "full_rand" not in curves:
        methods = read_results(FOLDER / "initializers.json")["languages"][language]["methods"]
        curves = {name: [methods[name]["evaluations"]] for name in WECHSEL}
    steps = [step for step, _ in curves["full_rand"][0]]
    found = []
    for setting, share in (("0", 0.0), ("25k", 0.1), ("250k", 1.0)):
        place = next(place for place, step in enumerate(steps) if step >= share * steps[-1])
        if setting == "25k" and steps[place] > steps[-1] / 4:
            continue
        ours = {name: of_seeds([curve[place][1] for curve in seeds]) for name, seeds in curves.items()}
        measured = (f"perplexity at step {setting}", f"step {steps[place]} of {steps[-1]}")
        found.append(Comparison("3, 9", language, measured, "perplexity", find(("3", "9"), "text", language, setting), ours))
    return found


def of_seeds(values: Sequence[float]) -> Score:
    """Returns the mean of seeds, and their standard deviation where there are several."""
    return Score(statistics.fmean(values), statistics.stdev(values) if len(values) > 1 else None)


def fine_tuned() -> list[Comparison]:
    """Table 2, and of Table 10 WECHSEL-TFR: entities, and inference (ours OCNLI's), ± half of the interval over the items."""
    found = []
    for language, task, file in (
        ("fr", "NER", "downstream_fr.json"),
        ("sw", "NER", "downstream.json"),
        ("zh", "NLI", "downstream_zh.json"),
    ):
        scores = ScoresRecord.read(FOLDER / file)
        steps = read_results(FOLDER / "studies.json")[f"downstream/{language}"]["runs"]["wechsel"]["planned_steps"]
        for setting, suffix, share in (("0", " untrained", 0), ("25k", " 10 %", 0.1), ("250k", "", 1)):
            ours = scored(scores, task, {name: name + suffix for name in WECHSEL})
            measured = (f"{task} at step {setting}", f"step {share * steps:.0f} of {steps}")
            printed = find(("2", "10"), task, language, setting)
            found.append(Comparison("2, 10", language, measured, "%", printed, ours))
    return found


def scored(record: ScoresRecord, task: str, models: Mapping[str, str]) -> dict[str, Score]:
    """Returns % right with half of the 95 % interval of those models, by the names given, that were scored; else nothing."""
    found = {}
    for name, model in models.items():
        if model in record.models:
            value, low, high = bootstrap(record.find(model, task).items)
            found[name] = Score(100 * value, 100 * (high - low) / 2)
    return found


def studied(name: str, methods: Iterable[str]) -> tuple[dict[str, Score], int]:
    """Returns the best perplexity of the methods that a comparison of studies.json has, and its planned steps."""
    runs = read_results(FOLDER / "studies.json")[name]["runs"]
    best = {method: Score(min(point[1] for point in runs[method]["curve"])) for method in methods if method in runs}
    return best, next(iter(runs.values()))["planned_steps"]


def little_text() -> list[Comparison]:
    """Tables 4 and 11: few megabytes of text, and samples of a larger one; the smallest two of the paper's, and of ours."""
    found = []
    for language in ("ug", "mg", "su"):
        ours, steps = studied(f"low_resource/{language}", WECHSEL)
        measured = ("best perplexity", f"of {steps} steps")
        found.append(Comparison("4", language, measured, "perplexity", find(("4",), "text", language, "best"), ours))
    for papers, size in (("16 MiB", 262_144), ("64 MiB", 1_048_576)):
        printed = find(("11",), "text", "fr", papers)
        ours, _ = studied(f"size/{size}", printed)
        for own, told in (("wechsel", ""), ("wechsel_sample", ", vectors of the sample")):
            shown = {"wechsel": own, "trans_inner": "trans_inner", "full_rand": "full_rand"}
            measured = (f"best perplexity, {papers}{told}", f"{size / 1024:,.0f} KiB")
            both = [{name: values[run] for name, run in shown.items()} for values in (printed, ours)]
            found.append(Comparison("11", "fr, ours de", measured, "perplexity", *both))
    return found


def grid() -> list[Comparison]:
    """Table 7 in German: k and tau before any training."""
    record, found = ScoresRecord.read(FOLDER / "wechsel_grid.json"), []
    for task, unit in (("NLI", "%"), ("POS", "%"), ("text", "perplexity")):
        models = {name: f"{name} untrained" for name in GRID}
        if unit == "%":
            ours = scored(record, task, models)
        else:
            ours = {name: Score(record.find(model, task).metrics["perplexity"]) for name, model in models.items()}
        printed = find(("7",), task, "de", "0")
        found.append(Comparison("7", "de", (f"{task}, linear probe" if unit == "%" else "perplexity", ""), unit, printed, ours))
    return found


def knowledge() -> list[Comparison]:
    """SALT's Tables 1 and 8 for both of its models, beside the bundled model in German, and SmolLM2 in Chinese."""
    record, found = ScoresRecord.read(FOLDER / "salt_knowledge.json"), []
    for task, source in itertools.product(("ARC", "TruthfulQA"), ("XGLM", "Gemma")):
        ours = scored(record, task, {name: name for name in SALT})
        measured = (f"{task}, {source}", "bundled model")
        found.append(Comparison("1", "de", measured, "%", find(("1",), task, "de", source, "SALT"), ours))
    for (language, study, model), source in itertools.product(
        (("de", "salt_german/de", "bundled model"), ("ar, ours zh", "salt/zh", "SmolLM2")), ("XGLM", "Gemma")
    ):
        ours, steps = studied(study, SALT)
        printed = find(("8",), "training loss", language[:2], source, "SALT")
        measured = (f"training loss, {source}", f"held-out perplexity, {model}, {steps} steps")
        found.append(Comparison("8", language, measured, "nats", printed, ours))
    return found


def markdown(title: str, methods: Mapping[str, str], rows: Iterable[Comparison]) -> str:
    """A line a comparison, with the paper above and ours below in each cell; all gaps are to the last of the methods."""
    lines = [f"| {title} | to | measured | " + " | ".join(methods.values()) + " | order of pairs |"]
    lines.append("|---|---|---|" + "---:|" * len(methods) + "---|")
    for row in rows:
        papers = {name: number(row.printed[name], row.unit) for name in methods if name in row.printed}
        ours = {name: score.value for name, score in row.ours.items()}
        cells = []
        for name in methods:
            above = row.printed.get(name, "–") + gap(papers, name, [*methods][-1], row.unit)
            below = "–"
            if score := row.ours.get(name):
                digits = 1 if row.unit == "%" else 0
                below = f"{score.value:,.{digits}f}" + ("" if score.spread is None else f" ± {score.spread:,.{digits}f}")
                below += gap(ours, name, [*methods][-1], row.unit)
            cells.append("–" if above == below == "–" else f"{above}<br>{below}")
        order = compare_order(papers, row.ours)
        told = [f"{len(order['alike'])} of {sum(map(len, order.values()))}" if any(order.values()) else "level in the paper"]
        for kind in ("level", "turned"):
            pairs = [f"{methods[one]} and {methods[other]}" for one, other in order[kind]]
            told += [f"{kind}: {'; '.join(pairs) if len(pairs) < 4 else len(pairs)}"] if pairs else []
        cells = [row.table, row.language, "<br>".join(filter(None, row.measured)), *cells, "<br>".join(told)]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def gap(values: Mapping[str, float], name: str, baseline: str, unit: str) -> str:
    """Returns, in brackets, how a value stands to that of the baseline: their ratio, or the difference in points."""
    if name == baseline or name not in values or baseline not in values:
        return ""
    if unit == "%":
        return f" ({values[name] - values[baseline]:+.1f})"
    return f" ({values[name] / values[baseline]:.2f})"


def table() -> str:
    """WECHSEL's methods, its grid and SALT's methods: a table each, and what they have in common."""
    wechsel = [row for language in ("fr", "de", "zh", "sw") for row in texts_of_language(language)]
    seeds = len(read_results(FOLDER / "anker.json")["languages"]["de"])
    note = (
        "In each cell the paper above, ours below; in brackets the ratio to the last column's perplexity (of a loss, of its "
        "exponential), or the difference from it in points. Order of pairs: how many pairs of methods that lie 1 % apart or "
        "more in the paper are ordered alike here; level is what lies less than 1 % apart here, or less than the larger ±. ± "
        f"is the standard deviation over {seeds} seeds, or of scores in % (one seed) half of the 95 % interval over the items; "
        "perplexities without it are of one seed."
    )
    tables = [
        markdown("WECHSEL's table", WECHSEL, [*wechsel, *fine_tuned(), *little_text()]),
        markdown("WECHSEL's table", GRID, grid()),
        markdown("SALT's table", SALT, knowledge()),
    ]
    return "\n\n".join([*tables, note])


if __name__ == "__main__":
    with program("benchmarks.papers"):
        print(table())
