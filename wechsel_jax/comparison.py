"""One source model, one new language, several initialisations, the same training for each: what `train.compare` runs."""

import copy
import json
import os
import platform
import time
from pathlib import Path

import jax
from ml_collections import ConfigDict

from wechsel_jax.checkpoint import Checkpoint
from wechsel_jax.data import prepare
from wechsel_jax.errors import UserError
from wechsel_jax.files import new_file, require_file
from wechsel_jax.initializers import METHODS
from wechsel_jax.report import comparison_table, read_run, steps_needed, write_report
from wechsel_jax.tokenizer_training import train_tokenizer
from wechsel_jax.training import default_config as default_training_config
from wechsel_jax.training import record_config, train, validate
from wechsel_jax.transfer_job import ALIGNED, IDENTICAL, transfer
from wechsel_jax.vectors import train_vectors

BASELINE = "full_rand"


def default_config() -> ConfigDict:
    """Returns every field of a comparison; `training` holds the fields of `wechsel_jax.training.default_config`."""
    config = ConfigDict()
    config.seed = 0
    config.source = ""
    config.text = ConfigDict({"train": (), "validation": (), "source": ()})
    config.tokenizer = ConfigDict({"vocabulary_size": 8192, "algorithm": "byte_bpe", "style": "gpt2"})
    config.vectors = ConfigDict({"source": "", "target": "", "train_here": False, "dimensions": 100, "epochs": 5})
    config.dictionary = ""
    config.methods = ("wechsel_tfr", "trans_inner", "full_rand")
    config.neighbors = 10
    config.temperature = 0.1
    config.normalize = False
    config.center = False
    config.training = default_training_config()
    config.overrides = ConfigDict()
    return config


def compare(config: ConfigDict, workdir: str | Path) -> dict:
    """Initialises by every method of `config.methods`, trains each alike, and writes table, report and exports.

    What is there already is kept, so the same command again goes on where it stopped.

    Args:
      config: fields as in `default_config`; `overrides[method]` replaces fields of `training` for one method.
      workdir: gets `tokenizer/`, `data/`, `vectors/` (where trained here), one training workdir a method with its
        `transfer/` inside, `comparison.json` and `report.html`.

    Returns:
      What `comparison.json` holds: `methods[name]["evaluations"]` as [step, perplexity] pairs, `steps_needed`, `seconds`.

    Raises:
      UserError: a field is wrong, a file is missing, or `workdir` was made with another config.
    """
    workdir = Path(workdir)
    _validate(config, workdir)
    record_config(config, workdir)
    seconds: dict[str, float] = {}
    if not (workdir / "tokenizer").exists():
        with _timed(seconds, "tokenizer"):
            train_tokenizer(config.text.train, output=workdir / "tokenizer", **config.tokenizer)
    with _timed(seconds, "data"):
        for side in ("train", "validation"):
            prepare(config.text[side], workdir / "tokenizer", workdir / "data" / side)
    with _timed(seconds, "vectors"):
        source_vectors, target_vectors = _word_vectors(config, workdir)
    for method in config.methods:
        print(f"== {method} (seed {config.seed})", flush=True)
        run = workdir / method
        if not (run / "transfer").exists():
            with _timed(seconds, f"{method} transfer"):
                needs_vectors = METHODS[method].vectors is not None
                transfer(
                    config.source,
                    workdir / "tokenizer",
                    run / "transfer",
                    method=method,
                    source_vectors=source_vectors if needs_vectors else None,
                    target_vectors=target_vectors if needs_vectors else None,
                    dictionary=config.dictionary if needs_vectors else None,
                    neighbors=config.neighbors,
                    temperature=config.temperature,
                    normalize=config.normalize,
                    center=config.center,
                    seed=config.seed,
                )
        with _timed(seconds, f"{method} training"):
            train(_training_config(config, method, run, workdir), run)
    return _write_results(config, workdir, seconds)


def _validate(config: ConfigDict, workdir: Path) -> None:
    """Refuses what cannot work before anything is written, so that the corrected command finds a clean workdir."""
    unknown = sorted(set(config.methods) - set(METHODS))
    if unknown:
        raise UserError(f"methods: unknown method {unknown[0]!r}; expected some of {', '.join(sorted(METHODS))}")
    if not config.methods:
        raise UserError("methods: none given; expected at least one method")
    for name in ("train", "validation"):
        if not config.text[name]:
            raise UserError(f"text.{name}: no file given; expected text in the target language")
    stray = sorted(set(config.overrides) - set(config.methods))
    if stray:
        raise UserError(f"overrides.{stray[0]}: this method is not among `methods`")
    for file in (*config.text.train, *config.text.validation, *config.text.source):
        require_file(file, "text")
    Checkpoint.open(config.source)
    if any(METHODS[method].vectors for method in config.methods):
        if config.dictionary not in (ALIGNED, IDENTICAL):
            require_file(config.dictionary, "a dictionary of word pairs")
        for side in () if config.vectors.train_here else ("source", "target"):
            require_file(config.vectors[side], "word vectors")
    for method in config.methods:
        validate(_training_config(config, method, workdir / method, workdir))


def _word_vectors(config: ConfigDict, workdir: Path) -> tuple[str, str]:
    if not config.vectors.train_here:
        return config.vectors.source, config.vectors.target
    outputs = []
    for side, text in (("source", config.text.source), ("target", config.text.train)):
        output = workdir / "vectors" / f"{side}.bin"
        if not output.exists():
            train_vectors(text, output, dim=config.vectors.dimensions, epochs=config.vectors.epochs)
        outputs.append(str(output))
    return outputs[0], outputs[1]


def _training_config(config: ConfigDict, method: str, run: Path, workdir: Path) -> ConfigDict:
    training = copy.deepcopy(config.training)
    training.seed = config.seed
    training.model.checkpoint = str(run / "transfer")
    training.data.train = (str(workdir / "data" / "train"),)
    training.data.validation = (str(workdir / "data" / "validation"),)
    if not training.compilation_cache:
        training.compilation_cache = str(workdir / "compiled")
    training.update(config.overrides.get(method, ConfigDict()))
    return training


def _write_results(config: ConfigDict, workdir: Path, seconds: dict[str, float]) -> dict:
    runs = [workdir / method for method in config.methods]
    curves = {run.name: [list(point) for point in read_run(run).curve] for run in runs}
    result = {
        "methods": {name: {"evaluations": curve} for name, curve in curves.items()},
        "steps_needed": {
            name: steps_needed(curves[BASELINE], curve)
            for name, curve in curves.items()
            if BASELINE in curves and name != BASELINE
        },
        "seed": config.seed,
        "machine": _machine(),
        "seconds": _earlier_seconds(workdir) | seconds,
    }
    with new_file(workdir / "comparison.json", "w") as handle:
        json.dump(result, handle, indent=1)
    print(comparison_table(runs), flush=True)
    report = write_report(runs, workdir / "report.html")
    print(f"report: {report}\nmodels: " + ", ".join(str(run / "export") for run in runs), flush=True)
    return result


def _machine() -> str:
    devices = f"{jax.device_count()} x {jax.devices()[0].device_kind}"
    return f"{devices}, {os.cpu_count()} cores ({platform.machine()}), jax {jax.__version__}"


def _earlier_seconds(workdir: Path) -> dict[str, float]:
    file = workdir / "comparison.json"
    return json.loads(file.read_text(encoding="utf-8"))["seconds"] if file.exists() else {}


class _timed:
    """Adds the seconds that a block takes to `seconds[name]`."""

    def __init__(self, seconds: dict[str, float], name: str):
        self.seconds, self.name = seconds, name

    def __enter__(self) -> None:
        self.start = time.monotonic()

    def __exit__(self, *_) -> None:
        self.seconds[self.name] = self.seconds.get(self.name, 0.0) + round(time.monotonic() - self.start, 2)
