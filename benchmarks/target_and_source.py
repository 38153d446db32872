"""Gathers comparisons of configs/target_and_source.py, a language each, into target_and_source.json: scores with intervals.

    python -m train.compare --config=configs/target_and_source.py:lang=sw,data=data,corpora=corpora --workdir=runs/both-sw
    python -m benchmarks.target_and_source sw=runs/both-sw/scores.json fr=runs/both-fr/scores.json

What the file holds of other languages stays.
"""

import itertools
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np

from wechsel_jax.data import TokenBlocks
from wechsel_jax.evaluation.bootstrap import bootstrap, paired_bootstrap
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


def gather(file: Path) -> dict[str, Any]:
    """Returns of each model and task its score and half of the 95 % interval, and how target text differs from `anker`'s."""
    record = ScoresRecord.read(file)
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
    found = {"tasks": tasks, "models": models, "behind_anker": behind, "machine": machine}
    # Of the kind of text that was trained on.
    methods = ComparisonRecord.read(file.parent).methods
    held_out = {name: round(read_run(file.parent / name).evaluations[-1].bits_per_byte, 5) for name in methods}
    return found | {"held_out": held_out, "behind_anker_by_rare_tokens": by_rare_tokens(file.parent, record)}


def by_rare_tokens(workdir: Path, record: ScoresRecord) -> dict[str, list[float]]:
    """How many bits per byte a model is behind `anker` in each quarter of the sentences, those with few rare tokens first.

    A token is rare that stands in the training text less than an eighth as often as tokens do on average.
    """
    task = json.loads((workdir / "config.json").read_bytes())["evaluation"]["tasks"]["target text"]
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
        models = found["models"]
        trained = sorted(
            (name for name in models if not name.endswith(UNTRAINED)),
            key=lambda name: (name != SOURCE, models[name]["target text"][0]),
        )
        for name in trained:
            before = models.get(name + UNTRAINED)
            cells = [_cell(before["target text"], found["tasks"]["target text"]) if before else "–"]
            cells += [_cell(models[name][task], found["tasks"][task]) if task in found["tasks"] else "–" for task in COLUMNS]
            lines.append(f"| {language} | `{name}` | " + " | ".join(cells) + " |")
    lines.append(
        "\nText: bits per byte; the others: % right. ± is half of the 95 % interval, by drawing the items with replacement. "
        "One seed."
    )
    return "\n".join(lines)


def _cell(score: list[float], task: dict[str, Any]) -> str:
    _, _, factor, digits = MEASURES[task["measure"]]
    value, half = score
    return f"{factor * value:.{digits}f} ± {factor * half:.{digits}f}"


if __name__ == "__main__":
    gathered = json.loads(OUTPUT.read_text(encoding="utf-8")) if OUTPUT.exists() else {}
    for argument in sys.argv[1:]:
        name, place = argument.split("=", 1)
        gathered[name] = gather(Path(place))
    OUTPUT.write_text(json.dumps(gathered, indent=1) + "\n", encoding="utf-8")
    print(table(gathered))
