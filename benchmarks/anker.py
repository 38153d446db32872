"""Anker beside the published methods: the dictionaries of its variants, the gathered result, its tables and its picture.

    python -m benchmarks.anker dictionaries data
    python -m benchmarks.anker trained_rows runs/anker/sw-0-long/anker sw-trained
    python -m benchmarks.anker gather runs/anker

The first writes `data/dictionaries/LANG.{500,5000,shuffled}.tsv`: the pairs whose English words are most frequent in
`data/en.train.txt`, and all pairs with their target words in random order. The second writes a model with the embeddings of a
trained run and the body that it had before training. The third reads the workdirs of configs/anker.py, named LANG-SEED or
LANG-SEED-anything (a seed, which is that of the settings, may be spread over several; those of one step count as evaluated
before training only; another model, length, warm-up or learning rate is kept apart). A run that has not ended is left out. What
they hold takes the place of the same runs in benchmarks/anker.json; the file's other runs stay. It also writes docs/anker.png,
docs/anker-more.png and the tables of docs/anker.md.
"""

import itertools
import json
import re
import shutil
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from benchmarks.results import read_results, with_tables, write_results
from configs.anker import DICTIONARIES, LEARNING_RATE, STEPS, WARMUP
from wechsel_jax.checkpoint import Checkpoint
from wechsel_jax.checkpoint.tensors import write_tensors
from wechsel_jax.errors import UserError
from wechsel_jax.files import new_directory, new_file, require_directory
from wechsel_jax.files.json import NUMBER, TEXT, WHOLE, mismatch, read_json
from wechsel_jax.program import program
from wechsel_jax.records import ComparisonRecord, RunRecord, read_run
from wechsel_jax.records.comparison import COMPARISON_FILE
from wechsel_jax.records.names import CONFIG_FILE, EXPORT, METRICS_FILE, RECORD_FILE
from wechsel_jax.report import steps_needed
from wechsel_jax.report.curves import PERPLEXITY, Measure
from wechsel_jax.text.files import read_lines
from wechsel_jax.vectors import read_dictionary

NAMES = {
    "de": "German",
    "fr": "French",
    "sw": "Swahili",
    "zh": "Chinese",
    "vi": "Vietnamese",
    "hi": "Hindi",
    "mg": "Malagasy",
    "su": "Sundanese",
    "ug": "Uyghur",
    "ar": "Arabic",
}
OUTPUT = Path(__file__).with_name("anker.json")
FOLDER = Path(__file__).parents[1] / "docs"
SIZES = (500, 5000)
_COUNTED_LINES = 100_000
# What decides the vectors and the mixture, kept because defaults may change.
_SETTINGS = ("neighbors", "temperature", "word_start", "regression", "window", "rounds", "dimensions", "text_bytes", "overlap")
COLOURS = {
    "anker": "#b3213f",
    "wechsel": "#0063ab",
    "wechsel_tfr": "#4a46b0",
    "focus": "#00735a",
    "ofa": "#7d5f00",
    "trans_inner": "#b04a00",
    "full_rand": "#59606b",
    "trained_rows": "#000000",
}
_COMPARISON = {
    "seed": WHOLE,
    "methods": [TEXT],
    "training": {
        **dict.fromkeys(("steps", "batch_size", "block_length"), WHOLE),
        **{"phases": [{"warmup": NUMBER}], "optimizer": {"peak_learning_rate": NUMBER}},
    },
}
_PANELS_A_ROW, _HIGHEST = 3, 3e4
_OTHER_TEXT = ("anker_text_", "anker_other_")
_OTHERS = ("#943a82", "#0063ab", "#00735a", "#b04a00", "#59606b", "#7d5f00", "#3f8fbf", "#4a46b0", "#8a9a1c", "#c46fb0")


def smaller_dictionaries(pairs: Sequence[tuple[str, str]], counts: Counter[str], seed: int = 0) -> dict[str, list]:
    """Returns by name: the pairs of the most frequent source words, and all pairs with the target words in random order."""
    distinct = list(dict.fromkeys(pairs))
    order = sorted(range(len(distinct)), key=lambda i: (-counts[distinct[i][0].lower()], i))
    targets = np.random.default_rng(seed).permutation([target for _, target in distinct]).tolist()
    shuffled = [(source, target) for (source, _), target in zip(distinct, targets, strict=True)]
    return {str(size): [distinct[i] for i in order[:size]] for size in SIZES} | {"shuffled": shuffled}


def write_dictionaries(data: Path) -> None:
    counts: Counter[str] = Counter()
    for number, line in read_lines(data / "en.train.txt", "English text"):
        counts.update(re.findall(r"\w+", line.lower()))
        if number >= _COUNTED_LINES:
            break
    (data / "dictionaries").mkdir(exist_ok=True)
    for language, name in DICTIONARIES.items():
        file = data / "wechsel_wiktionary" / f"{name}.tsv"
        for kind, pairs in smaller_dictionaries(read_dictionary(file), counts).items():
            with new_file(data / "dictionaries" / f"{language}.{kind}.tsv", "w") as handle:
                handle.writelines(f"{source}\t{target}\n" for source, target in pairs)


def write_trained_rows(run: Path, output: Path) -> None:
    """Writes what a run of `train.compare` started from, but with the embeddings that it ended with.

    No initialiser knows rows as good as these, so they tell how much any could save.
    """
    start, end = Checkpoint.open(run / "transfer"), Checkpoint.open(run / EXPORT)
    tensors = {name: start.read(name) for name in start.names()}
    for tensor in start.vocabulary_tensors():
        tensors[tensor.name] = end.read(tensor.name).astype(tensors[tensor.name].dtype)
    with new_directory(output, "benchmarks.anker") as directory:
        for name in ("config.json", "tokenizer.json", "tokenizer_config.json"):
            shutil.copy(run / "transfer" / name, directory)
        write_tensors(directory / "model.safetensors", tensors)


def gather(folder: Path, earlier: dict | None = None) -> dict:
    """Returns what the workdirs under `folder` hold, and what anker saves, by setting (see `setting_of`) and seed.

    What an earlier result says of other methods, seeds and settings is kept.

    Raises:
      UserError: there are no workdirs, or two of them have a run of one method, setting and seed; or seeds of one run were
        evaluated at other steps.
    """
    earlier = earlier or {"languages": {}, "step_zero": {}, "machines": [], "training": None}
    runs, before = (defaultdict(dict, earlier[name]) for name in ("languages", "step_zero"))
    machines, training = set(earlier["machines"]), earlier["training"]
    expected = "the folder of workdirs of configs/anker.py, named LANG-SEED or LANG-SEED-anything"
    files = sorted(require_directory(folder, expected).glob(f"*/{CONFIG_FILE}"))
    if not files:
        raise UserError(f"{folder}: holds no workdirs; expected {expected}")
    owners: dict[tuple, Path] = {}
    for file in files:
        workdir = file.parent
        config = read_json(file, "the settings of a comparison")
        language = workdir.name.split("-")[0]
        if problem := mismatch(config, _COMPARISON) or ("" if language in NAMES else "its folder names no known language"):
            raise UserError(f"{file}: {problem}; expected {expected}")
        seed, steps = str(config["seed"]), config["training"]["steps"]
        start, place = setting_of(language, config["training"])
        # Of a comparison that goes on or was stopped, what has ended.
        begun = (name for name in config["methods"] if (workdir / name / METRICS_FILE).exists())
        methods = {name: _method(run) for name in begun if not (run := read_run(workdir / name)).unfinished}
        methods = {name: method for name, method in methods.items() if method["evaluations"]}
        for name in methods:
            if (owner := owners.setdefault((place, steps == 1, seed, name), workdir)) != workdir:
                raise UserError(f"{workdir}: has {name} of {place} with seed {seed}, and {owner} too; expected each once")
        if (workdir / COMPARISON_FILE).exists() and (machine := ComparisonRecord.read(workdir).machine):
            machines.add(machine)
        before[start].setdefault(seed, {}).update({name: _at_zero(method) for name, method in methods.items()})
        if steps == 1 or not methods:
            continue
        runs[place].setdefault(seed, {}).update(methods)
        if training is None:
            training = {name: config["training"][name] for name in ("batch_size", "block_length", "phases", "optimizer")}
    runs = {place: runs[place] for place in sorted(runs)}
    for place, seeds in runs.items():
        steps_of: dict[str, list[int]] = {}
        for seed, methods in seeds.items():
            for name, method in methods.items():
                steps = [step for step, _ in method["evaluations"]]
                if steps_of.setdefault(name, steps) != steps:
                    raise UserError(
                        f"{name} of {place}: was evaluated at steps {steps} with seed {seed}; expected {steps_of[name]}, as "
                        "with another"
                    )
    tokens = training["batch_size"] * training["block_length"] if training else 0
    return {
        "command": "python -m benchmarks.anker gather runs/anker",
        "machines": sorted(machines),
        "training": training,
        "languages": runs,
        "saved": {place: _saved(seeds, tokens) for place, seeds in runs.items()},
        "step_zero": {start: before[start] for start in sorted(before)},
    }


def setting_of(language: str, training: dict) -> tuple[str, str]:
    """Names of a language with its model, and of those with the steps, the warm-up and the rate that are unusual."""
    start = place = language + ("-roberta" if training.get("objective") == "mlm" else "")
    if training["steps"] not in (1, STEPS["reduced"]):
        place += f"-{training['steps']}"
    warmup = training["phases"][0]["warmup"]
    if warmup != WARMUP:
        place += f"-warmup{warmup:g}"
    rate = training["optimizer"]["peak_learning_rate"]
    return start, place if rate == LEARNING_RATE else f"{place}-rate{np.format_float_positional(rate)}"


def title_of(setting: str) -> str:
    """The setting's name for readers."""
    language, *others = setting.split("-")
    return ", ".join([NAMES[language], *map(_told, others)])


def label(name: str, found: dict | None = None) -> str:
    """A method's name in a table, apart from the same method with other settings in other tables.

    Args:
      name: of the run.
      found: what was gathered of it, with its settings.
    """
    overlap = " `--overlap=fuzzy`" if name == "ofa" and found and found["settings"].get("overlap") == "fuzzy" else ""
    return f"`{name}`{overlap}" + (", centred" if name.startswith(("wechsel", "ofa")) else "")


def _told(other: str) -> str:
    if other == "roberta":
        return "RoBERTa"
    if other.startswith("warmup"):
        return f"warm-up of {float(other.removeprefix('warmup')):.0%}"
    if other.startswith("rate"):
        return f"rate {other.removeprefix('rate')}"
    return f"{int(other):,} steps"


def _method(run: RunRecord) -> dict:
    record = json.loads((run.path / "transfer" / RECORD_FILE).read_text(encoding="utf-8"))
    alignment = record["alignment"] or {}
    rounds = alignment.get("rounds") if isinstance(alignment.get("rounds"), list) else []
    return {
        "evaluations": [[step, round(perplexity, 1)] for step, perplexity in run.curve],
        "counts": record["counts"],
        "precision_at_1": alignment.get("precision_at_1"),
        "anchors": [entry["anchors"] for entry in rounds],
        "transfer_seconds": round(sum(record["timings"].values()), 1),
        "settings": {name: record["settings"][name] for name in _SETTINGS if name in record["settings"]},
    }


def _at_zero(method: dict) -> dict:
    kept = {name: method[name] for name in ("counts", "precision_at_1", "anchors", "transfer_seconds", "settings")}
    return {"perplexity": method["evaluations"][0][1], **kept}


def _saved(seeds: dict[str, dict], tokens: int) -> dict[str, list[dict]]:
    """By other method, for each of its evaluations: steps that anker needs for the same perplexity, seed by seed.

    `factor` is the other's steps divided by the mean of anker's, `tokens` the difference; None where a seed never gets there.
    """
    saved = defaultdict(list)
    for other in {name: None for methods in seeds.values() for name in methods if name != "anker"}:
        both = [methods for methods in seeds.values() if {"anker", other} <= methods.keys()]
        for i, (step, _) in enumerate(both[0][other]["evaluations"] if both else ()):
            needed = [_needed(methods["anker"], methods[other], i) for methods in both]
            entry = {"step": step, "needed": needed, "factor": None, "tokens": None}
            if None not in needed:
                entry["tokens"] = round((step - float(np.mean(needed))) * tokens)
                entry["factor"] = round(step / float(np.mean(needed)), 2) if np.mean(needed) > 0 else None
            saved[other].append(entry)
    return saved


def _needed(anker: dict, other: dict, place: int) -> float | None:
    (steps,) = steps_needed(anker["evaluations"], other["evaluations"][place : place + 1])
    return None if steps is None else round(steps, 1)


def curves_table(result: dict) -> str:
    """Perplexity by setting and method at five steps, mean over seeds, a table for each length of training."""
    tables = []
    for evaluated, languages in _by_length(result):
        shown = [evaluated[round(i * (len(evaluated) - 1) / 4)] for i in range(5)]
        lines = ["| language | method | seeds | " + " | ".join(f"step {s:,}" for s in shown) + " |"]
        lines.append("|---|---|---:|" + "---:|" * len(shown))
        for language, seeds in languages.items():
            for method in _methods(seeds):
                runs = [methods[method] for methods in seeds.values() if method in methods]
                curves = [dict(map(tuple, run["evaluations"])) for run in runs]
                cells = [_with_spread([curve[step] for curve in curves if step in curve]) for step in shown]
                lines.append(f"| {title_of(language)} | {label(method, runs[0])} | {len(curves)} | " + " | ".join(cells) + " |")
        tables.append("\n".join(lines))
    return "\n\n".join(tables)


def saved_table(result: dict) -> str:
    """Steps that anker needs for the other's perplexity, in a column for each of the other's steps, as in `curves_table`."""
    tables = []
    for evaluated, languages in _by_length(result):
        lines = ["| language | method | " + " | ".join(f"its step {s:,}" for s in evaluated) + " |"]
        lines.append("|---|---|" + "---:|" * len(evaluated))
        for language, seeds in languages.items():
            for other, entries in result["saved"][language].items():
                cells = [_needed_cell(entry) for entry in entries] + [""] * (len(evaluated) - len(entries))
                run = next(methods[other] for methods in seeds.values() if other in methods)
                lines.append(f"| {title_of(language)} | {label(other, run)} | " + " | ".join(cells) + " |")
        tables.append("\n".join(lines))
    return "\n\n".join(tables)


def _needed_cell(entry: dict) -> str:
    if never := entry["needed"].count(None):
        return "never" if never == len(entry["needed"]) else f"never in {never} of {len(entry['needed'])} seeds"
    factor = f" ({entry['factor']:.2f} x)" if entry["factor"] else ""
    return f"{np.mean(entry['needed']):,.0f}{factor}"


def lengths_table(result: dict) -> str:
    """Perplexity at the end of whole schedules of several lengths, each at the best of its rates, in the first seed.

    And how many steps a schedule of anker's has for the same, its logarithm taken to be linear in the logarithm of the length.
    """
    runs = _ends(result["languages"])
    lengths = sorted({length for methods in runs.values() for ends in methods.values() for length in ends})
    lines = ["| language | method | " + " | ".join(f"{length} steps" for length in lengths) + " |"]
    lines.append("|---|---|" + "---:|" * len(lengths))
    for base, methods in runs.items():
        best = {name: {length: min(rates.values()) for length, rates in ends.items()} for name, ends in methods.items()}
        for name in sorted(methods, key=lambda name: best[name][max(best[name])]):
            cells = []
            for length in lengths:
                rates = methods[name].get(length, {})
                cell = f"{min(rates.values()):,.0f} ({min(rates, key=rates.get):g} of {len(rates)})" if rates else ""
                needed = _length_for(min(rates.values()), best["anker"]) if rates and name != "anker" else None
                cells.append(cell + (f"; anker {needed:,.0f}, {length / needed:.2f} x" if needed else ""))
            lines.append(f"| {title_of(base)} | {label(name)} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _length_for(perplexity: float, ends: dict[int, float]) -> float | None:
    """The length at which the ends would be this perplexity, between two lengths that were run."""
    if perplexity > ends[min(ends)]:
        return None
    (found,) = steps_needed([(np.log(length), ends[length]) for length in sorted(ends)], [(0, perplexity)])
    return None if found is None else float(np.exp(found))


def _ends(languages: dict) -> dict[str, dict[str, dict[int, dict[float, float]]]]:
    """Last perplexity of the first seed by setting, method, length and rate, of methods that were run at several of the two."""
    found = defaultdict(lambda: defaultdict(lambda: defaultdict(dict)))
    for setting, seeds in languages.items():
        base, _, rate = setting.partition("-rate")
        steps = re.search(r"-(\d+)", base)
        for name, method in seeds[min(seeds, key=int)].items():
            ends = found[re.sub(r"-\d+", "", base)][name][int(steps[1]) if steps else STEPS["reduced"]]
            ends[float(rate or LEARNING_RATE)] = method["evaluations"][-1][1]
    several = {
        base: {name: ends for name, ends in methods.items() if sum(map(len, ends.values())) > 1}
        for base, methods in found.items()
    }
    return {base: methods for base, methods in several.items() if "anker" in methods}


def zero_table(result: dict) -> str:
    """Perplexity before training, anchors before and after self-learning, and P@1 on held-out words, of each first seed."""
    lines = ["| language | variant | perplexity | anchors | P@1 |", "|---|---|---:|---:|---:|"]
    for language, seeds in result["step_zero"].items():
        for name, found in seeds[min(seeds, key=int)].items():
            cells = f"{found['perplexity']:,.0f}", _anchors(found), _share(found["precision_at_1"])
            lines.append(f"| {title_of(language)} | {label(name, found)} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _by_length(result: dict) -> list[tuple[list[int], dict]]:
    """(evaluated steps, seeds by setting) for each number of steps, the fewest first."""
    groups = defaultdict(dict)
    for setting, seeds in result["languages"].items():
        steps = [point[0] for point in next(iter(next(iter(seeds.values())).values()))["evaluations"]]
        groups[tuple(steps)][setting] = seeds
    return sorted(((list(steps), group) for steps, group in groups.items()), key=lambda pair: pair[0][-1])


def _methods(seeds: dict[str, dict]) -> list[str]:
    """Names of methods, best mean last perplexity first."""
    last = defaultdict(list)
    for methods in seeds.values():
        for name, method in methods.items():
            last[name].append(method["evaluations"][-1][1])
    return sorted(last, key=lambda name: float(np.mean(last[name])))


def _with_spread(values: list[float]) -> str:
    if not values:
        return ""
    return f"{np.mean(values):,.0f}" + (f" ± {np.std(values, ddof=1):,.0f}" if len(values) > 1 else "")


def _anchors(found: dict) -> str:
    return f"{found['anchors'][0]:,} to {found['anchors'][-1]:,}" if found["anchors"] else ""


def _share(value: float | None) -> str:
    return "" if value is None else f"{value:.3f}"


TABLES = {"curves": curves_table, "saved": saved_table, "lengths": lengths_table, "step_zero": zero_table}


def draw(panels: Sequence[tuple[str, dict, list[str]]], path: Path, measure: Measure = PERPLEXITY) -> None:
    """Draws panels of (title, runs by seed, methods): a line a seed, the name at the end of the mean.

    Args:
      panels: what to draw; "evaluations" of a run are (step, value).
      path: of the picture.
      measure: what the values are; a perplexity's axis is logarithmic.
    """
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot
    from matplotlib.ticker import FuncFormatter, NullFormatter

    # Two rows of two instead of one and a rest.
    columns = 2 if len(panels) == 4 else min(len(panels), _PANELS_A_ROW)
    rows = -(-len(panels) // columns)
    figure, grid = pyplot.subplots(rows, columns, figsize=(5.2 * columns, 4.4 * rows), squeeze=False)
    for axes in grid.flat[len(panels) :]:
        axes.axis("off")
    for axes, (title, seeds, names) in zip(grid.flat, panels, strict=False):
        taken = {COLOURS.get(name) for name in names}
        ends, others = {}, itertools.cycle([one for one in _OTHERS if one not in taken])
        colours = {name: COLOURS.get(name) or next(others) for name in names}
        for method in names:
            curves = [methods[method]["evaluations"] for methods in seeds.values() if method in methods]
            for curve in curves:
                axes.plot(*zip(*curve, strict=True), color=colours[method], linewidth=1.2, marker="o", markersize=2.5)
            ends[method] = (curves[0][-1][0], float(np.mean([curve[-1][1] for curve in curves])))
        axes.set(title=title, xlabel="training steps")
        if measure is PERPLEXITY:
            axes.set_yscale("log")
            # Starts far above what random rows have would press all that follows into a corner.
            limits = (axes.get_ylim()[0], min(axes.get_ylim()[1], _HIGHEST))
            axes.set_yticks([50, 100, 200, 300, 500, 1000, 2000, 5000, 10000])
            axes.set_ylim(limits)
            axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
            axes.yaxis.set_minor_formatter(NullFormatter())
        _label(axes, ends, colours, measure)
        axes.spines[["top", "right"]].set_visible(False)
    for row in grid:
        row[0].set_ylabel(f"held-out {measure.name}")
    figure.tight_layout()
    figure.savefig(path, dpi=120)


def panels_of(languages: dict) -> Iterator[tuple[str, dict, list[str]]]:
    """Yields (title, runs by seed, methods) for each language as usual."""
    for language, seeds in languages.items():
        if language in NAMES:
            yield f"English to {title_of(language)}", seeds, [name for name in _methods(seeds) if name in COLOURS]


def more_panels_of(languages: dict) -> Iterator[tuple[str, dict, list[str]]]:
    """Yields the same for another model, length or schedule, and anker with its variants where some were trained."""
    for language, seeds in languages.items():
        names = _methods(seeds)
        others = [name for name in names if name not in COLOURS]
        if language not in NAMES and len(names) > 1:
            yield f"English to {title_of(language)}", seeds, [name for name in names if name in COLOURS]
        for title, shown in (
            ("less or other text", [name for name in others if name.startswith(_OTHER_TEXT)]),
            ("parts and controls", [name for name in others if not name.startswith(_OTHER_TEXT)]),
        ):
            if shown:
                yield f"{title_of(language)}: {title}", seeds, [name for name in ("anker", *shown) if name in names]


def _label(axes, ends: dict[str, tuple[float, float]], colours: dict[str, str], measure: Measure) -> None:
    """Names beside the curves' ends, moved apart where they would overlap."""
    (bottom, top), digits = axes.get_ylim(), 0 if measure is PERPLEXITY else 3
    # In the axes' height, in which both kinds of axis are linear.
    place, lowest = axes.transAxes.inverted(), -np.inf
    for name, (step, value) in sorted(ends.items(), key=lambda item: item[1][1]):
        lowest = max(place.transform(axes.transData.transform((step, min(max(value, bottom), top))))[1], lowest + 0.05)
        axes.annotate(
            f"{name}  {value:,.{digits}f}", (step, lowest), (6, 0), xycoords=("data", "axes fraction"),
            textcoords="offset points", color=colours[name], va="center", fontsize=9, annotation_clip=False,
        )  # fmt: skip


def main(arguments: Sequence[str]) -> None:
    match arguments:
        case ["dictionaries", data]:
            write_dictionaries(Path(data))
        case ["trained_rows", run, output]:
            write_trained_rows(Path(run), Path(output))
        case ["gather", folder]:
            result = gather(Path(folder), read_results(OUTPUT))
            for name, panels in (("anker.png", panels_of), ("anker-more.png", more_panels_of)):
                draw(list(panels(result["languages"])), FOLDER / name)
            write_results(OUTPUT, result)
            document = FOLDER / "anker.md"
            text = with_tables(document.read_text(encoding="utf-8"), {name: table(result) for name, table in TABLES.items()})
            with new_file(document, "w") as handle:
                handle.write(text)
        case _:
            sys.exit(__doc__)


if __name__ == "__main__":
    with program("benchmarks.anker"):
        main(sys.argv[1:])
