"""TreLM's ablations (Li et al., 2021, tables 5 to 8 and 10) at a small scale: from English, and plain transfers beside them.

    PYTHONPATH=. python -m benchmarks.trelm --source=runs/masked_english/export --data=corpora --workdir=runs/trelm-ablation
    ... --language=zh --workdir=runs/trelm-zh --output=benchmarks/trelm_zh.json --runs=trelm,mlm,mlm_anker
    ... --language=id --workdir=runs/trelm-id --output=benchmarks/trelm_id.json --runs=trelm,tlm,brlm,tlm_plain,mlm,mlm_anker
    ... --language=ja --workdir=runs/trelm-ja --output=benchmarks/trelm_ja.json --runs=trelm,tlm,mlm,mlm_anker
    ... --first_phase --workdir=runs/trelm-rows --output=benchmarks/trelm_rows.json --seeds=3 \\
      --runs=trelm,trelm_random,trelm_random_map,trelm_vectors,trelm_map,trelm_shared_map

`--source` is the small English RoBERTa of configs/masked_english.py. `--data` holds what LANGUAGES names: parallel text, a pair
of sentences a line; a dictionary; and trees. All models get the same joint vocabulary (but for CdLM*, which has two), the same
text (one side of the pairs) and the same number of steps, `--steps` times 140,000; 280 by default. TreLM spends three sevenths
of them on the pairs, as the paper does, and the others all on text of the new language. One learning rate for all.

What is counted is bits per byte and per token of held-out sentences, each token masked alone (the paper's "bits per word" are
bits per token, too, with 15 % of them masked at once: what compares is the order); of what the half models write of held-out
sentences, sacrebleu's precisions; and of a dependency parser that each final model is fine-tuned to, the words with the right
head and relation. No sentence of either side of the held-out pairs is in the training text. Run again, it goes on where it
stopped; further `--seeds` join those in benchmarks/trelm.json, and docs/trelm.md shows them. How far apart the parsers are is
added by

    wechsel-jax evaluate runs/trelm-ablation/parsing-*/export --labels=corpora/labelled/ud/German-GSD-test.conllu.gz \\
      --output=parsers.json
    ... --parsers=parsers.json
"""

import copy
import itertools
import json
import lzma
import math
import random
import shutil
import statistics
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from absl import flags
from ml_collections import ConfigDict
from safetensors.numpy import load_file, save_file

from benchmarks.real_models import machine
from benchmarks.results import read_flags, with_tables
from configs import finetune
from configs import trelm as experiment
from wechsel_jax.data.align import align_pairs
from wechsel_jax.errors import UserError
from wechsel_jax.evaluation.bootstrap import Items, paired_bootstrap
from wechsel_jax.evaluation.crossing import cross
from wechsel_jax.evaluation.loaded import LoadedModel
from wechsel_jax.evaluation.text import score_text
from wechsel_jax.evaluation.translation import score_translations
from wechsel_jax.files import new_directory, new_file
from wechsel_jax.program import program
from wechsel_jax.records.names import EXPORT, METRICS_FILE
from wechsel_jax.records.run import read_metrics
from wechsel_jax.records.scores import ScoresRecord
from wechsel_jax.tokens import load_tokenizer
from wechsel_jax.tokens.extension import unreached_from
from wechsel_jax.tokens.training import train_tokenizer
from wechsel_jax.training import default_config, train, train_trelm
from wechsel_jax.training.config import as_dict
from wechsel_jax.training.trelm import PHASES
from wechsel_jax.transfers.job import transfer
from wechsel_jax.vectors import native_vectors, train_vectors
from wechsel_jax.vectors.fasttext_format import FastTextVectors

OUTPUT = Path(__file__).with_name("trelm.json")
DOCUMENT = Path(__file__).parents[1] / "docs" / "trelm.md"


class Language(NamedTuple):
    """What the folder of the data has of a language.

    Attributes:
      name: in English.
      pairs: of the Tatoeba challenge and of another collection.
      dictionary: of Wiktionary.
      trees: treebanks to train a parser on and to score it on. German's training part is not in the folder; the Chinese trees
        are of texts in traditional characters, the pairs in simplified ones.
      tokenize: what sacrebleu counts.
      spaced: whether words are written apart; fastText knows no other words.
    """

    name: str
    pairs: tuple[str, str]
    dictionary: str
    trees: tuple[str, str]
    tokenize: str = "13a"
    spaced: bool = True


LANGUAGES = {
    "de": Language("German", ("tatoeba2021", "xnli"), "german", ("German-GSD-dev", "German-GSD-test")),
    "zh": Language(
        "Chinese", ("tatoeba2021", "xnli"), "chinese", ("Chinese-GSD_v1-train", "Chinese-GSD_v1-test"), "zh", spaced=False
    ),
    "id": Language("Indonesian", ("tatoeba2021", "panl_bppt"), "indonesian", ("Indonesian-GSD-train", "Indonesian-GSD-test")),
    "ja": Language(
        "Japanese",
        ("tatoeba2021", "small_parallel_enja"),
        "japanese",
        ("Japanese-GSD-train", "Japanese-GSD-test"),
        "char",
        spaced=False,
    ),
}
TOKENS, DEPTH, WIDTH, TABLE = 8192, 4, 256, "roberta.embeddings.word_embeddings.weight"
# Of the English sentences whose pairs are held out, and of those pairs, how many sentences are scored.
HELD_OUT, SCORED = 0.04, 400
BATCH, LENGTH, RATE = 32, 64, 7e-4
# Of the parsers: steps of 32 trees, and the rate of the model; that of the new head is 5 times as high.
PARSER_STEPS, PARSER_RATE = 200, 3e-4
# Rows of the joint vocabulary that a model begins with, see `_start`.
STARTS = {
    "random": "random",
    "random_map": "random, mapped by shared tokens",
    "vectors": "fastText, not mapped",
    "map": "fastText, mapped without a dictionary",
    "shared_map": "fastText, mapped by shared tokens, none copied",
    "shared": "fastText, mapped by shared tokens",
    "anker": "`anker`",
    "wechsel": "`wechsel`",
    "apart": "fastText of its own tokens, mapped by shared tokens",
}
# name -> (training, its start, arguments of configs/trelm.py; None: plain MLM)
RUNS: dict[str, tuple[str, str, dict[str, str] | None]] = {
    "trelm": ("TreLM", "shared", {}),
    "tlm": ("TreLM, TLM for CdLM", "shared", {"objective": "tlm"}),
    "brlm": ("TreLM, BRLM for CdLM", "shared", {"objective": "brlm"}),
    "separate": ("TreLM, separate vocabularies (CdLM*)", "apart", {}),
    "tlm_plain": ("TreLM, TLM for CdLM, no TRILayer", "shared", {"objective": "tlm", "tri_layer": "0"}),
    "mlm": ("MLM on {language}", "shared", None),
    "mlm_anker": ("MLM on {language}", "anker", None),
    "mlm_wechsel": ("MLM on {language}", "wechsel", None),
    "mlm_random": ("MLM on {language}", "random", None),
    "trelm_anker": ("TreLM", "anker", {}),
    "trelm_random": ("TreLM", "random", {}),
    "trelm_random_map": ("TreLM", "random_map", {}),
    "trelm_vectors": ("TreLM", "vectors", {}),
    "trelm_map": ("TreLM", "map", {}),
    "trelm_shared_map": ("TreLM", "shared_map", {}),
}
# Half models, and what table 6 of the paper counts of what they write.
WAYS = {"forward": "BLEU-1/2/3/4 to {language}", "backward": "to English"}

VALUES = flags.FlagValues()
flags.DEFINE_string("source", None, "Directory of the English RoBERTa.", flag_values=VALUES)
flags.DEFINE_string("data", None, "Folder with parallel/ and dict/.", flag_values=VALUES)
flags.DEFINE_string("workdir", None, "Gets everything that is made.", flag_values=VALUES)
flags.DEFINE_enum("language", "de", [*LANGUAGES], "The new language.", flag_values=VALUES)
flags.DEFINE_list("runs", [*RUNS], "What to train.", flag_values=VALUES)
flags.DEFINE_list("seeds", ["0"], "Of the order of the text, masking and the table of languages.", flag_values=VALUES)
flags.DEFINE_float("steps", 0.002, "Share of the paper's 140,000 steps.", flag_values=VALUES)
flags.DEFINE_boolean("first_phase", False, "Score TreLM after its first phase alone (table 5).", flag_values=VALUES)
flags.DEFINE_string("output", str(OUTPUT), "Where the result goes.", flag_values=VALUES)
flags.DEFINE_integer("pairs", 0, "Use only so many pairs; 0: all.", flag_values=VALUES)
flags.DEFINE_string("parsers", "", "Scores of the parsers; nothing is trained then.", flag_values=VALUES)
flags.mark_flags_as_required(["source", "data", "workdir"], flag_values=VALUES)


def main() -> None:
    """Trains and scores what the output does not hold yet, and writes it after every score."""
    data, output = Path(VALUES.workdir) / "data", Path(VALUES.output)
    if unknown := {*VALUES.runs} - {*RUNS}:
        raise UserError(f"--runs: {', '.join(sorted(unknown))}: unknown; expected some of {', '.join(RUNS)}")
    if VALUES.language != "de" and output == OUTPUT:
        raise UserError(f"--output: {OUTPUT} is of German; expected another file for --language={VALUES.language}")
    if VALUES.first_phase and (plain := [name for name in VALUES.runs if RUNS[name][2] is None]):
        raise UserError(f"--first_phase: {plain[0]} has no phases; expected runs of TreLM")
    command = f"python -m benchmarks.trelm --source=DIR --data=DIR --workdir=DIR --steps={VALUES.steps:g}"
    if VALUES.language != "de":
        command += f" --language={VALUES.language}"
    if VALUES.pairs:
        command += f" --pairs={VALUES.pairs}"
    if VALUES.first_phase:
        command += " --first_phase"
    new = {"command": command, "machine": machine(), "language": VALUES.language, "steps": _steps(), "runs": {}}

    def known() -> dict[str, Any]:
        """What the output holds; another process may have added to it."""
        result = json.loads(output.read_text(encoding="utf-8")) if output.exists() else copy.deepcopy(new)
        if result["command"] != command:
            raise UserError(f"{output}: is of other settings ({result['command']}); expected the same; name another --output")
        return result

    known()
    if VALUES.parsers:
        _write(known() | {"parsers": parsers(ScoresRecord.read(VALUES.parsers))}, output)
        return
    if not data.exists():
        with new_directory(data, "benchmarks.trelm") as folder:
            _make_data(folder)
    for seed in VALUES.seeds:
        for name, stage, place in _models(data, int(seed)):
            score = known()["runs"].get(name, {}).get(seed, {}).get(stage)
            if score is None:
                if stage == "parsing":
                    score = _parse(place, int(seed), data.parent / f"parsing-{name}-{seed}")
                else:
                    score = _scores(data, stage, LoadedModel.open(place))
                result = known()
                result["runs"].setdefault(name, {}).setdefault(seed, {})[stage] = score
                _write(result, output)
            print(f"{name}, seed {seed}, {stage}: {score}", flush=True)
    result = known()
    print(table(result))
    if output == OUTPUT:
        text = with_tables(DOCUMENT.read_text(encoding="utf-8"), {"ablation": table(result)})
        with new_file(DOCUMENT, "w") as handle:
            handle.write(text)


def _write(result: dict[str, Any], output: Path) -> None:
    with new_file(output, "w") as handle:
        handle.write(json.dumps(result, indent=1) + "\n")


def parsers(scores: ScoresRecord) -> dict[str, dict[str, dict[str, float]]]:
    """Seed -> "one - other" -> how much higher the LAS of one parser is, with the 95 % interval over sentences.

    Args:
      scores: of parsers that are named parsing-RUN-SEED.

    Raises:
      UserError: one has another name.
    """
    seeds: dict[str, dict[str, Items]] = {}
    for score in scores.scores:
        kind, name, seed = [*score.model.split("-"), "", ""][:3]
        if kind != "parsing" or not seed:
            raise UserError(f"--parsers: {score.model}: expected parsing-RUN-SEED; score the folders of that name")
        seeds.setdefault(seed, {})[name] = score.items
    return {
        seed: {
            f"{one} - {other}": {
                key: round(value, 4) for key, value in paired_bootstrap(items[one], items[other])._asdict().items()
            }
            for one, other in itertools.combinations(items, 2)
        }
        for seed, items in seeds.items()
    }


def _scores(data: Path, stage: str, model: LoadedModel) -> dict[str, Any]:
    """Of what a half model writes, sacrebleu's precisions of 1 to 4 words; of others how well they predict."""
    if stage in ("forward", "backward"):
        pairs = [line.split("\t") for line in (data / "held_out.tsv").read_text(encoding="utf-8").splitlines()[:SCORED]]
        to = int(stage == "forward")
        first = None if unreached_from(model.tokenizer) is None else load_tokenizer(VALUES.source)
        written = cross(model, [pair[1 - to] for pair in pairs], to=to, first_tokenizer=first)
        tokenize = LANGUAGES[VALUES.language].tokenize if to else "13a"
        scores = score_translations(written, [pair[to] for pair in pairs], tokenize=tokenize)
        return {name: scores[name] for name in ("precisions", "bleu", "signature")}
    scores = score_text(model, (data / "valid.txt").read_text(encoding="utf-8").splitlines())
    bits = float(scores.nats.sum()) / math.log(2)
    return {f"bits_per_{unit}": bits / int(n.sum()) for unit, n in {"byte": scores.bytes, "token": scores.tokens}.items()}


def _parse(model: Path, seed: int, workdir: Path) -> dict[str, float]:
    """Fine-tunes a model to a dependency parser (tables 7, 8 and 10 of the paper); scores of trees that it has not seen."""
    train_on, scored = (f"{VALUES.data}/labelled/ud/{name}.conllu.gz" for name in LANGUAGES[VALUES.language].trees)
    config = finetune.get_config(f"task=parsing,model={model},train={train_on},validation={scored}")
    config.seed, config.epochs, config.steps = seed, 0.0, PARSER_STEPS
    config.optimizer.peak_learning_rate = PARSER_RATE
    config.optimizer.groups = ({"match": "^classifier/", "rate": 5.0},)
    config.eval_every = config.checkpoint_every = PARSER_STEPS
    config.compilation_cache = str(workdir.parent / "compiled")
    train(config, workdir)
    last = [line for line in read_metrics(workdir / METRICS_FILE) if line["kind"] == "eval"][-1]
    return {"uas": last["uas"], "las": last["las"]}


def _steps() -> int:
    steps = [max(2, round(VALUES.steps * steps)) for steps in experiment.STEPS.values()]
    return steps[0] if VALUES.first_phase else sum(steps)


def _make_data(folder: Path) -> None:
    """Pairs for training and scoring, their text, and the joint vocabulary."""
    language = VALUES.language
    names = [f"parallel/en-{language}.{name}.tsv.xz" for name in LANGUAGES[language].pairs]
    texts = [lzma.decompress((Path(VALUES.data) / name).read_bytes()).decode() for name in names]
    pairs = [tuple(line.split("\t")) for text in texts for line in text.splitlines()]
    kept, held_out = split(pairs, VALUES.pairs or None)
    for name, chosen in (("train", kept), ("held_out", held_out)):
        (folder / f"{name}.tsv").write_text("".join(f"{one}\t{two}\n" for one, two in chosen), encoding="utf-8")
    files = {
        "en.txt": [one for one, _ in kept],
        f"{language}.txt": [two for _, two in kept],
        "valid.txt": [two for _, two in held_out[:SCORED]],
    }
    for name, lines in files.items():
        (folder / name).write_text("".join(f"{line}\n" for line in dict.fromkeys(lines)), encoding="utf-8")
    both = [folder / "en.txt", folder / f"{language}.txt"]
    train_tokenizer(both, TOKENS, folder / "joint", style="roberta")
    for name in ("train", "held_out"):
        align_pairs([folder / f"{name}.tsv"], folder / "joint", folder / "pairs" / name, languages=("en", language), log=print)
    of_tokens = {"tokenizer": folder / "joint", "dim": WIDTH, "smallest_ngram": 3, "largest_ngram": 6, "min_count": 1}
    train_vectors(both, folder / "joint.bin", epochs=10, **of_tokens)
    for side in ("en", language) if LANGUAGES[language].spaced else ():
        train_vectors([folder / f"{side}.txt"], folder / f"{side}.bin", min_count=2, epochs=10)


def split(pairs: Sequence[tuple[str, str]], most: int | None = None) -> tuple[list[tuple[str, str]], list[tuple[str, str]]]:
    """Returns pairs to train on and pairs that are held out, at most `most`; no sentence of either side is in both."""
    pairs, generator = list(dict.fromkeys(pairs)), random.Random(0)
    generator.shuffle(pairs)
    pairs = pairs[:most]
    english = sorted({one for one, _ in pairs})
    held = {*generator.sample(english, max(1, round(HELD_OUT * len(english))))}
    held_out = [pair for pair in pairs if pair[0] in held]
    # A sentence has several translations.
    second = {two for _, two in held_out}
    return [pair for pair in pairs if pair[0] not in held and pair[1] not in second], held_out


def _start(data: Path, rows: str) -> Path:
    """The source model with the joint vocabulary."""
    place, text = (
        data.parent / "starts" / rows,
        {"source_text": [data / "en.txt"], "target_text": [data / f"{VALUES.language}.txt"]},
    )
    if place.exists():
        return place
    vectors = {"source_vectors": data / "en.bin", "target_vectors": data / f"{VALUES.language}.bin"}
    dictionary = {
        "dictionary": Path(VALUES.data) / "dict" / "wechsel_wiktionary" / f"{LANGUAGES[VALUES.language].dictionary}.tsv"
    }
    joint, tokens = data / "joint", data / "joint.bin"
    if rows == "apart":
        # The new language's own tokens and their vectors.
        joint, tokens = _apart(data) / "tokenizer", _apart(data) / "tokens.bin"
    elif rows == "random_map":
        tokens = _random_vectors(data)
    mapped = {"method": "trelm", "target_vectors": tokens, "start": "shared"}
    # Tokens of both vocabularies are copied, for the sake of the English side; but for table 5, whose model begins with none.
    copied = {**mapped, "overlap": "exact"}
    settings = {
        "random": {"method": "trans_inner"},
        "vectors": {"method": "trans_inner"},
        "random_map": mapped,
        "map": {**mapped, "start": "similarities"},
        "shared_map": mapped,
        "shared": copied,
        "apart": copied,
        "anker": {"method": "anker", **text},
        "wechsel": {"method": "wechsel", **vectors, **dictionary},
    }[rows]
    if rows != "vectors":
        transfer(VALUES.source, joint, place, **settings)
        return place
    with new_directory(place, "benchmarks.trelm") as folder:
        shutil.copytree(_start(data, "random"), folder, dirs_exist_ok=True)
        tensors = load_file(folder / "model.safetensors")
        tensors[TABLE] = _vectors_as_they_are(data, tensors[TABLE])
        save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    return place


def _apart(data: Path) -> Path:
    """What CdLM* needs in place of the joint vocabulary's: a tokenizer of the new language, its vectors, pairs with both."""
    place, text = data.parent / "apart", data / f"{VALUES.language}.txt"
    if not place.exists():
        with new_directory(place, "benchmarks.trelm") as folder:
            train_tokenizer([text], TOKENS, folder / "tokenizer", style="roberta")
            of_tokens = {"tokenizer": folder / "tokenizer", "dim": WIDTH, "min_count": 1}
            train_vectors([text], folder / "tokens.bin", epochs=10, smallest_ngram=3, largest_ngram=6, **of_tokens)
            both = {"languages": ("en", VALUES.language), "first_tokenizer": VALUES.source, "log": print}
            for name in ("train", "held_out"):
                align_pairs([data / f"{name}.tsv"], folder / "tokenizer", folder / "pairs" / name, **both)
    return place


def _random_vectors(data: Path) -> Path:
    """Random vectors of the joint vocabulary's tokens, in the place of fastText's."""
    place, names = data.parent / "random.vec", load_tokenizer(data / "joint").get_vocab()
    if not place.exists():
        drawn = np.random.default_rng(0).standard_normal((len(names), WIDTH))
        with new_file(place, "w") as handle:
            handle.write(f"{len(names)} {WIDTH}\n")
            for name, vector in zip(sorted(names), drawn, strict=True):
                handle.write(f"{name} {' '.join(f'{value:.5f}' for value in vector)}\n")
    return place


def _vectors_as_they_are(data: Path, table: np.ndarray) -> np.ndarray:
    """The tokens' vectors with the mean and the spread of a table (V, d), in their own directions."""
    tokens = sorted(load_tokenizer(data / "joint").get_vocab().items(), key=lambda item: item[1])
    vectors = native_vectors([token for token, _ in tokens], FastTextVectors(data / "joint.bin"))
    known = np.flatnonzero(np.abs(vectors).sum(axis=1))
    centred = vectors[known] - vectors[known].mean(axis=0)
    wanted = table - table.mean(axis=0)
    made = table.copy()
    made[known] = table.mean(axis=0) + centred * np.sqrt(
        np.square(wanted).sum(axis=1).mean() / np.square(centred).sum(axis=1).mean()
    )
    return made


def _models(data: Path, seed: int) -> Iterator[tuple[str, str, Path]]:
    """Trains what is not trained yet; yields name, stage and directory of every model to score, as soon as it is there."""
    text = data / f"{VALUES.language}.txt"
    for name, (_, rows, arguments) in RUNS.items():
        if name not in VALUES.runs or (rows == "wechsel" and not LANGUAGES[VALUES.language].spaced):
            continue
        workdir, start = data.parent / f"{name}-{seed}", _start(data, rows)
        print(f"== {name}, seed {seed}", flush=True)
        if arguments is None:
            config = default_config()
            config.objective, config.model.checkpoint = "mlm", str(start)
            config.data.train, config.data.validation = ((str(place),) for place in (text, data / "valid.txt"))
            _fit(config, data, seed, _steps())
            train(config, workdir)
            yield name, "end", workdir / EXPORT
            yield name, "parsing", workdir / EXPORT
            continue
        pairs, given = data / "pairs", {}
        if rows == "apart":
            pairs, given = _apart(data) / "pairs", {"first": VALUES.source}
        given |= {"model": start, "pairs": pairs / "train", "held_out": pairs / "held_out"}
        given |= {"text": text, "validation": data / "valid.txt", "depth": DEPTH, "steps": VALUES.steps, **arguments}
        config = experiment.get_config(",".join(f"{key}={value}" for key, value in given.items()))
        config.seed = seed
        for phase in PHASES:
            # Nothing is asked of what follows the first phase, so that is as short as can be.
            _fit(config[phase], data, seed, 2 if VALUES.first_phase and phase != PHASES[0] else config[phase].steps)
        found = train_trelm(config, workdir)
        for phase in PHASES[: 1 if VALUES.first_phase else 3]:
            yield name, phase, workdir / phase / EXPORT
        if VALUES.first_phase:
            continue
        yield name, "end", workdir / found["model"]
        yield name, "parsing", workdir / found["model"]


def _fit(config: ConfigDict, data: Path, seed: int, steps: int) -> None:
    """What all runs and phases share, for a small model and few steps."""
    config.seed, config.steps, config.batch_size, config.block_length, config.dtype = seed, steps, BATCH, LENGTH, "float32"
    config.model.dropout = 0.0
    config.optimizer.update({"peak_learning_rate": RATE, "b2": 0.98, "eps": 1e-6, "clip_norm": 1.0})
    trained = {"trainable": "all", "layers": "", **as_dict(config.phases[0])}
    config.phases = ({**{name: trained[name] for name in ("name", "trainable", "layers")}, "fraction": 1.0, "warmup": 0.1},)
    config.eval_every = config.checkpoint_every = max(1, steps // 2)
    config.log_every, config.keep_best = 20, False
    config.compilation_cache = str(data.parent / "compiled")


def table(result: dict[str, Any]) -> str:
    """Mean over the seeds, a line a run; what was measured of none is left out."""
    language = LANGUAGES[result.get("language", "de")].name
    titles = ["training", "rows at the start", "seeds", "bits per byte", "bits per token", "after phase 1"]
    titles += [*WAYS.values(), "UAS", "LAS"]
    rows = [[title.format(language=language) for title in titles]]

    def mean(seeds: dict[str, dict], stage: str, unit: str, digits: int = 3, times: float = 1) -> str:
        values = [times * stages[stage][unit] for stages in seeds.values() if stage in stages]
        spread = f" ± {statistics.stdev(values):.{digits}f}" if len(values) > 1 else ""
        return f"{statistics.fmean(values):.{digits}f}{spread}" if values else ""

    def precisions(seeds: dict[str, dict], stage: str) -> str:
        values = [stages[stage]["precisions"] for stages in seeds.values() if stage in stages]
        return " / ".join(f"{statistics.fmean(one):.1f}" for one in zip(*values, strict=True))

    for name, (training, start, _) in RUNS.items():
        if seeds := result["runs"].get(name):
            cells = [mean(seeds, "end", "bits_per_byte")]
            # Bits per token compare models of the same tokens.
            cells += ["–" if start == "apart" else mean(seeds, stage, "bits_per_token") for stage in ("end", "commonality")]
            cells += [precisions(seeds, stage) for stage in WAYS]
            cells += [mean(seeds, "parsing", score, 1, 100) for score in ("uas", "las")]
            rows.append([training.format(language=language), STARTS[start], str(len(seeds)), *cells])
    kept = [column for column in zip(*rows, strict=True) if any(column[1:])]
    first, *others = (f"| {' | '.join(cells)} |" for cells in zip(*kept, strict=True))
    lines = [first, "|---|---|" + "---:|" * (len(kept) - 2), *others]
    told = f"Held-out {language} after {result['steps']} steps, each token masked alone; the mean over seeds"
    return "\n".join([*lines, f"\n{told}. {result['machine']['description']}."])


if __name__ == "__main__":
    with program("benchmarks.trelm"):
        read_flags(VALUES, __doc__, sys.argv[1:])
        main()
