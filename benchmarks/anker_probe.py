"""What a linear classifier finds in the hidden states of models that `configs/anker.py` moved and trained.

    PYTHONPATH=. python -m benchmarks.anker_probe data/labelled runs/anker

reads the workdirs LANG-SEED[-anything] of Swahili and German, puts their scores into benchmarks/anker_probe.json, where those
of other runs stay (the machine is that of the newest), and writes its table in docs/anker.md. Two tasks: the part of speech
of a word (MasakhaPOS; Universal Dependencies GSD, fitted on its development set) from the last hidden state of its last token,
and the topic of a news article (MasakhaNEWS, 50 of each topic to fit on) from the mean of its first 128 tokens' states. The
model stays as it is; the classifier is scikit-learn's logistic regression on standardised features. Masked models see all of
the text, causal ones what comes before.
"""

import csv
import gzip
import json
import sys
from collections import defaultdict
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

import jax
import numpy as np
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from benchmarks import anker
from benchmarks.real_models import machine
from benchmarks.results import read_results, with_tables, write_results
from wechsel_jax.checkpoint import Checkpoint
from wechsel_jax.errors import UserError
from wechsel_jax.files import new_file, require_directory
from wechsel_jax.files.json import read_json
from wechsel_jax.models import family
from wechsel_jax.program import program
from wechsel_jax.records.names import CONFIG_FILE, EXPORT
from wechsel_jax.tokens import load_tokenizer

OUTPUT = Path(__file__).with_name("anker_probe.json")
METHODS = ("anker", "wechsel", "focus", "full_rand")
LENGTH = 128
TASKS = {"sw": ("parts of speech", "topics"), "de": ("parts of speech",)}
_BATCH = 32
# Fitted on at most so many words.
_WORDS = 8_000


class Encoder:
    """A model and its tokenizer, as a source of hidden states."""

    def __init__(self, directory: Path):
        checkpoint = Checkpoint.open(directory)
        self.family = family(checkpoint.config["model_type"])
        self.config = self.family.config(checkpoint.config, dropout=0.0)
        tensors = {name: checkpoint.read(name) for name in checkpoint.names()}
        self.params = jax.device_put(self.family.from_hugging_face(tensors, self.config))
        self.tokenizer = load_tokenizer(directory)
        # Of RoBERTa's positions two are not for tokens.
        self.length = min(LENGTH, self.config.max_length)
        self.hidden = jax.jit(partial(self.family.hidden, config=self.config))

    def states(self, rows: Sequence[Sequence[int]]) -> Iterator[np.ndarray]:
        """Yields the hidden states (n, d) of each row of n tokens."""
        for start in range(0, len(rows), _BATCH):
            batch = rows[start : start + _BATCH]
            tokens, mask = np.zeros((_BATCH, self.length), np.int32), np.zeros((_BATCH, self.length), bool)
            for i, row in enumerate(batch):
                tokens[i, : len(row)], mask[i, : len(row)] = row, True
            # Where there is nothing at all, attention has nothing to look at.
            mask[len(batch) :, 0] = True
            made = np.asarray(self.hidden(self.params, tokens=tokens, mask=mask))
            yield from (made[i, : len(row)] for i, row in enumerate(batch))

    def texts(self, texts: Sequence[str]) -> np.ndarray:
        """(N, d), means of the states of the first tokens of texts."""
        rows = [self.tokenizer.encode(text, truncation=True, max_length=self.length) for text in texts]
        return np.stack([states.mean(axis=0) for states in self.states(rows)])

    def words(self, sentences: Sequence[Sequence[str]]) -> tuple[np.ndarray, np.ndarray]:
        """(N, d), the states of the words' last tokens, and bool, of all words in order, whether a word is among them."""
        rows, places, seen = [], [], []
        for sentence in sentences:
            row, ends = self._cut(sentence)
            rows.append(row)
            places.append(ends)
            seen += [True] * len(ends) + [False] * (len(sentence) - len(ends))
        return np.concatenate([states[at] for states, at in zip(self.states(rows), places, strict=True)]), np.array(seen)

    def _cut(self, sentence: Sequence[str]) -> tuple[list[int], list[int]]:
        """The tokens of a sentence as far as they fit in, and where each word that fits in ends."""
        begin, end = ([], []) if self.family.causal else ([self.tokenizer.bos_token_id], [self.tokenizer.eos_token_id])
        row, ends = begin, []
        for number, word in enumerate(sentence):
            ids = self.tokenizer.encode(" " * bool(number) + word, add_special_tokens=False)
            if len(row) + len(ids) + len(end) > self.length or not ids:
                break
            row = row + ids
            ends.append(len(row) - 1)
        return row + end, ends


def _lines(path: Path) -> Iterator[str]:
    with gzip.open(path, "rt", encoding="utf-8") as handle:
        yield from (line.rstrip("\n") for line in handle)


def tagged(path: Path) -> list[list[tuple[str, str]]]:
    """Sentences of (word, part of speech) from "word TAG" lines or CoNLL-U."""
    sentences: list[list[tuple[str, str]]] = [[]]
    for line in _lines(path):
        fields = line.split("\t") if ".conllu" in path.name else line.rsplit(" ", 1)
        if not line:
            sentences.append([])
        elif len(fields) == 10 and fields[0].isdigit():
            sentences[-1].append((fields[1], fields[3]))
        elif len(fields) == 2:
            sentences[-1].append((fields[0], fields[1]))
    return [sentence for sentence in sentences if sentence]


def articles(path: Path) -> tuple[list[str], list[str]]:
    """Headline with text, and topic, of every article."""
    rows = list(csv.DictReader(_lines(path), delimiter="\t"))
    return [f"{row['headline']} {row['text']}" for row in rows], [row["category"] for row in rows]


def probe(encoder: Encoder, data: Path, language: str, task: str) -> dict:
    """Fits and scores a classifier."""
    if task == "topics":
        (train, wanted), (test, expected) = (
            articles(data / "masakhanews" / f"swa-{part}.tsv.gz") for part in ("train", "test")
        )
        features, judged = encoder.texts(train), encoder.texts(test)
    else:
        files = {
            "sw": ("masakhapos/swa-train.txt.gz", "masakhapos/swa-test.txt.gz"),
            "de": ("ud/German-GSD-dev.conllu.gz", "ud/German-GSD-test.conllu.gz"),
        }[language]
        (features, wanted), (judged, expected) = (_word_states(encoder, tagged(data / file)) for file in files)
        features, wanted = features[:_WORDS], wanted[:_WORDS]
    classifier = make_pipeline(StandardScaler(), LogisticRegression(C=0.01, max_iter=300))
    classifier.fit(features, wanted)
    most = max(map(expected.count, set(expected))) / len(expected)
    sizes = {"fitted_on": len(wanted), "judged_on": len(expected)}
    return {"accuracy": float(classifier.score(judged, expected)), "most_frequent": most, **sizes}


def _word_states(encoder: Encoder, sentences: list[list[tuple[str, str]]]) -> tuple[np.ndarray, list[str]]:
    states, seen = encoder.words([[word for word, _ in sentence] for sentence in sentences])
    tags = [tag for sentence in sentences for _, tag in sentence]
    return states, [tag for tag, one in zip(tags, seen, strict=True) if one]


def measure(data: Path, runs: Path, earlier: dict | None = None) -> dict:
    """Probes every method's model before and after training, by setting (see `benchmarks.anker`), method and seed.

    What an earlier result says of other settings, methods and seeds is kept.

    Raises:
      UserError: a folder is none of configs/anker.py, or there is nothing to probe.
    """
    found: dict = defaultdict(lambda: defaultdict(dict))
    for setting, methods in (earlier or {"settings": {}})["settings"].items():
        found[setting].update(methods)
    probed = 0
    for file in sorted(runs.glob(f"*/{CONFIG_FILE}")):
        workdir = file.parent
        language, seed = (*workdir.name.split("-"), "")[:2]
        training = read_json(file, "the settings of a comparison", "name the folder of its workdirs").get("training", {})
        if not seed or "warmup" not in next(iter(training.get("phases", ())), {}):
            raise UserError(f"{workdir}: was not made by configs/anker.py; expected its comparisons alone; move it elsewhere")
        setting = anker.setting_of(language, training)[1]
        for method in METHODS if language in TASKS and training["steps"] > 1 else ():
            for step, place in ((0, "transfer"), (training["steps"], EXPORT)):
                if (workdir / method / EXPORT).exists() and (workdir / method / place).exists():
                    encoder = Encoder(workdir / method / place)
                    scores = {task: probe(encoder, data, language, task) for task in TASKS[language]}
                    found[setting][method].setdefault(seed, {})[str(step)] = scores
                    probed += 1
                    told = ", ".join(f"{task} {score['accuracy']:.3f}" for task, score in scores.items())
                    print(f"{setting} seed {seed} {method} step {step}: {told}", flush=True)
    if not probed:
        raise UserError(f"{runs}: holds no trained models of {', '.join(TASKS)}; expected workdirs of configs/anker.py")
    return {"machine": machine(), "settings": {setting: found[setting] for setting in sorted(found)}}


def probe_table(result: dict) -> str:
    """Accuracy before and after training, mean over seeds."""
    lines = ["| language | task | method | seeds | before training | after |", "|---|---|---|---:|---:|---:|"]
    for setting, methods in result["settings"].items():
        for task in TASKS[setting.split("-")[0]]:
            for method, seeds in methods.items():
                ends = zip(*([score[task]["accuracy"] for score in steps.values()] for steps in seeds.values()), strict=True)
                cells = " | ".join(_percent(values) for values in ends)
                lines.append(f"| {anker.title_of(setting)} | {task} | {anker.label(method)} | {len(seeds)} | {cells} |")
            one = next(iter(next(iter(next(iter(methods.values())).values())).values()))[task]
            lines.append(f"| {anker.title_of(setting)} | {task} | the most frequent answer | | | {one['most_frequent']:.1%} |")
    return "\n".join(lines)


def _percent(values: Sequence[float]) -> str:
    return f"{np.mean(values):.1%}" + (f" ± {100 * np.std(values, ddof=1):.1f}" if len(values) > 1 else "")


def main(arguments: Sequence[str]) -> None:
    if len(arguments) != 2:
        raise UserError(f"{' '.join(arguments) or 'nothing'}: expected two directories: of the labelled data, and of the runs")
    for place in arguments:
        require_directory(place, "the labelled data and the runs")
    earlier = read_results(OUTPUT) or None
    result = json.loads(json.dumps(measure(*map(Path, arguments), earlier)))
    write_results(OUTPUT, result)
    document = anker.FOLDER / "anker.md"
    text = with_tables(document.read_text(encoding="utf-8"), {"probe": probe_table(result)})
    with new_file(document, "w") as handle:
        handle.write(text)


if __name__ == "__main__":
    with program("benchmarks.anker_probe"):
        main(sys.argv[1:])
