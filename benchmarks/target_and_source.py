"""Gathers comparisons of configs/target_and_source.py, a language each, into target_and_source.json: scores with intervals.

    python -m train.compare --config=configs/target_and_source.py:lang=sw,data=data,corpora=corpora --workdir=runs/both-sw
    python -m benchmarks.target_and_source sw=runs/both-sw/scores.json fr=runs/both-fr/scores.json

A language named several times has several seeds, of which the first gives the intervals. What the file holds of other
languages stays.
"""

import itertools
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.origin import origins, with_seed
from benchmarks.results import named_places, read_results, write_results
from wechsel_jax.data import TokenBlocks
from wechsel_jax.errors import UserError
from wechsel_jax.evaluation.bootstrap import bootstrap, paired_bootstrap
from wechsel_jax.files.json import read_json
from wechsel_jax.program import program
from wechsel_jax.records import ComparisonRecord, read_run
from wechsel_jax.records.scores import ScoresRecord
from wechsel_jax.report.scores_table import MEASURES
from wechsel_jax.text.parts import read_documents
from wechsel_jax.tokens import load_tokenizer

OUTPUT = Path(__file__).with_suffix(".json")
COLUMNS = {
    "target text": "target text",
    "English text": "English text",
    "target choice": "target pairs or XCOPA",
    "English pairs": "English pairs",
    "English pairs by length": "by length",
    "target topics": "topics",
    "target words": "word classes",
}
BEST, UNTRAINED, SOURCE = "anker", " untrained", "source"
# Its right sentences are longer far more often than shorter, which `acc_norm` makes up for, and more than that.
BY_LENGTH = "English pairs"


def gather(files: Sequence[Path]) -> dict[str, Any]:
    """Returns what `of_seed` says of the first seed, and of the others their scores and differences alone.

    Raises:
      UserError: two have the same seed, other models or tasks, or runs of other text or with other settings; or one has no
        scores of `anker`.
    """
    comparisons = [ComparisonRecord.read(file.parent) for file in files]
    seeds = [comparison.seed for comparison in comparisons]
    if len({*seeds}) < len(seeds):
        raise UserError(f"{', '.join(map(str, files))}: seeds {seeds}; expected each once")
    known: dict[str, dict[str, dict[str, Any]]] = {}
    for file, comparison in zip(files, comparisons, strict=True):
        for name in comparison.methods:
            known[name] = with_seed(known.get(name, {}), read_run(file.parent / name))
    first, *others = map(of_seed, files)
    for file, other in zip(files[1:], others, strict=True):
        if other["tasks"] != first["tasks"] or {*other["models"]} != {*first["models"]}:
            raise UserError(f"{file}: other tasks or models than in {files[0]}; expected the same")
    kept = ("models", "behind_anker", "held_out", "origin")
    more = [{"seed": seed} | {name: other[name] for name in kept} for seed, other in zip(seeds[1:], others, strict=True)]
    return {"seed": seeds[0]} | first | ({"other_seeds": more} if more else {})


def of_seed(file: Path) -> dict[str, Any]:
    """Returns of each model and task its score and half of the 95 % interval, and how target text differs from `anker`'s."""
    record = ScoresRecord.read(file)
    if BEST not in record.models:
        raise UserError(f"{file}: has no scores of {BEST}, which others are measured against; expected it among the methods")
    runs = {name: read_run(file.parent / name) for name in ComparisonRecord.read(file.parent).methods}
    shared, _ = origins(runs)
    tasks, models = {}, {}
    for score in record.scores:
        value, low, high = bootstrap((score.numerators, score.denominators))
        tasks[score.task] = {"measure": score.main, "items": len(score.numerators), "files": [dict(one) for one in score.files]}
        of_model = models.setdefault(score.model, {})
        of_model[score.task] = [round(value, 5), round((high - low) / 2, 5)]
        if score.task == BY_LENGTH:
            tasks[f"{score.task} by length"] = tasks[score.task] | {"measure": "acc_norm"}
            half = 1.96 * score.metrics["acc_norm_stderr"]
            of_model[f"{score.task} by length"] = [round(score.metrics["acc_norm"], 5), round(half, 5)]
    behind = {}
    best = record.find(BEST, "target text")
    for model in models:
        if model != BEST and not model.endswith(UNTRAINED):
            other = record.find(model, "target text")
            change = paired_bootstrap((other.numerators, other.denominators), (best.numerators, best.denominators))
            behind[model] = [round(number, 5) for number in (change.value, change.low, change.high)]
    machine = record.scores[0].machine
    found = {"tasks": tasks, "models": models, "behind_anker": behind, "machine": machine, "origin": shared}
    # Of the kind of text that was trained on.
    held_out = {name: round(run.evaluations[-1].bits_per_byte, 5) for name, run in runs.items()}
    return found | {"held_out": held_out, "behind_anker_by_rare_tokens": by_rare_tokens(file.parent, record)}


def by_rare_tokens(workdir: Path, record: ScoresRecord) -> dict[str, list[float]]:
    """How many bits per byte a model is behind `anker` in each quarter of the sentences, those with few rare tokens first.

    A token is rare that stands in the training text less than an eighth as often as tokens do on average.
    """
    task = read_json(workdir / "config.json", "the settings of a comparison")["evaluation"]["tasks"]["target text"]
    tokenizer = load_tokenizer(workdir / "tokenizer")
    tokens = TokenBlocks.open(workdir / "data" / "train", 1).stream
    counts = np.bincount(tokens, minlength=len(tokenizer))
    best = record.find(BEST, "target text")
    sentences = itertools.islice(read_documents(task["file"]), len(best.numerators))
    ids = [tokenizer(sentence, add_special_tokens=False)["input_ids"] for sentence in sentences]
    rare = np.array([np.mean(counts[one] < len(tokens) / len(tokenizer) / 8) for one in ids])
    quarters = np.array_split(np.argsort(rare, kind="stable"), 4)
    others = {score.model: score for score in record.scores if score.task == "target text" and score.model != BEST}
    trained = {name: score for name, score in others.items() if name != SOURCE and not name.endswith(UNTRAINED)}
    bits, bytes_ = np.array(best.numerators), np.array(best.denominators)
    return {
        name: [round(float((np.array(one.numerators) - bits)[part].sum() / bytes_[part].sum()), 5) for part in quarters]
        for name, one in trained.items()
    }


def table(result: dict[str, Any]) -> str:
    """A line a language and method: text before and after training, and the other tasks after it."""
    lines = [
        "| | model | target text, untrained | " + " | ".join(COLUMNS.values()) + " |",
        "|---|---|---:|" + "---:|" * len(COLUMNS),
    ]
    for language, found in result.items():
        every = [found["models"], *(seed["models"] for seed in found.get("other_seeds", ()))]
        trained = sorted(
            (name for name in every[0] if not name.endswith(UNTRAINED)),
            key=lambda name: (name != SOURCE, statistics.mean(models[name]["target text"][0] for models in every)),
        )
        for name in trained:
            # The source has no seeds.
            of_model = [models[name] for models in (every[:1] if name == SOURCE else every)]
            before = [models[name + UNTRAINED]["target text"] for models in every if name + UNTRAINED in models]
            cells = [_cell(before, found["tasks"]["target text"]) if before else "–"]
            for task in COLUMNS:
                known = task in found["tasks"]
                cells.append(_cell([one[task] for one in of_model], found["tasks"][task]) if known else "–")
            counted = f" ({len(of_model)} seeds)" if len(of_model) > 1 else ""
            lines.append(f"| {language} | `{name}`{counted} | " + " | ".join(cells) + " |")
    lines.append(
        "\nText: bits per byte; the others: % right. ± is half of the 95 % interval, by drawing the items with replacement; of "
        "several seeds, the standard deviation of their scores, beside the mean."
    )
    return "\n".join(lines)


def _cell(scores: list[list[float]], task: dict[str, Any]) -> str:
    """Of one seed its score and half of the interval, of several the mean and the standard deviation."""
    _, _, factor, digits = MEASURES[task["measure"]]
    values = [value for value, _ in scores]
    spread = statistics.stdev(values) if len(values) > 1 else scores[0][1]
    return f"{factor * statistics.mean(values):.{digits}f} ± {factor * spread:.{digits}f}"


if __name__ == "__main__":
    with program("benchmarks.target_and_source"):
        gathered, named = read_results(OUTPUT), named_places(sys.argv[1:])
        for name in dict.fromkeys(name for name, _ in named):
            gathered[name] = gather([place for other, place in named if other == name])
        write_results(OUTPUT, gathered)
        print(table(gathered))
