"""One source model, one new language, several initialisations, the same training for each: what `train.compare` runs."""

import contextlib
import copy
import dataclasses
import json
import math
import os
import platform
import shutil
import time
from pathlib import Path

import jax
from ml_collections import ConfigDict, config_dict

from wechsel_jax.candidates import transfer_by_probe
from wechsel_jax.checkpoint import Checkpoint
from wechsel_jax.data import prepare, prepare_split
from wechsel_jax.data.manifest import remove_prepared
from wechsel_jax.data.sample import write_sample
from wechsel_jax.errors import UserError
from wechsel_jax.evaluation.tasks import Task, evaluate
from wechsel_jax.files import foreign, new_directory, refuse_workdir, remove_leftovers, require_file, temporary_directory
from wechsel_jax.initializers import METHODS
from wechsel_jax.records import ComparisonRecord, read_run
from wechsel_jax.records.comparison import COMPARISON_FILE
from wechsel_jax.records.run import METRICS_FILE
from wechsel_jax.report import comparison_table, steps_needed, write_report
from wechsel_jax.report.scores_table import read_scores, scores_text, write_scores
from wechsel_jax.text.sources import find_sources
from wechsel_jax.tokens import load_tokenizer
from wechsel_jax.tokens.training import train_tokenizer
from wechsel_jax.training import default_config as default_training_config
from wechsel_jax.training import finetune, record_config, train, validate
from wechsel_jax.training.config import as_dict
from wechsel_jax.training.exports import export_checkpoint
from wechsel_jax.training.workdir import differences, has_begun, only_run
from wechsel_jax.transfers.choice import DEFAULT
from wechsel_jax.transfers.job import transfer
from wechsel_jax.transfers.settings import ALIGNED, IDENTICAL, INPUTS, TransferSettings, described_settings
from wechsel_jax.vectors import train_vectors

BASELINE, SETTINGS = "full_rand", "config.json"
# As the target vectors of a variant: those of words in the documents that are trained on, see `training.data.max_bytes`.
SAMPLE = "sample"
# Stands for the method that `transfer` chooses where none is named.
AUTO = "auto"
# As FOCUS trains its token vectors (deepfocus 1.0.1), but for dimensions and epochs.
NATIVE_VECTORS = {"model": "cbow", "smallest_ngram": 3, "largest_ngram": 6, "min_count": 10}


def default_config() -> ConfigDict:
    """Returns every field of a comparison.

    `training` and `helper.training` hold the fields of `wechsel_jax.training.default_config`; `text.words` is the target text
    with spaces between words, for word vectors where the language writes none; without `text.validation`,
    `training.data.validation_fraction` of the target text is held out. `tokenizer.directory` is a finished tokenizer, which is
    taken instead of training one. `transfer` holds the fields of
    `transfers.settings.TransferSettings` but for the files and the seed. `variants[name]` makes `name` one of the methods
    that can be compared: {"method": one of `initializers.METHODS`, and settings of its own}. `overrides[name]` replaces fields
    of `training` for one method. A variant's method may be "auto", whichever `transfer` chooses; with `probe_steps`, by
    `transfer_by_probe`. A variant whose target_vectors are "sample" has vectors of the words in the documents that are trained
    on, of which `training.data.max_bytes` may leave a part.

    `evaluation.tasks` are what the trained models and the untouched source model are scored on: name -> {"form": one of
    `evaluation.tasks.FORMS`, "file", and settings of the form}; with `evaluation.before` the models before training, too, and
    without `evaluation.after` these alone. `evaluation.during` are further stages, as fractions of the training's steps.
    `evaluation.fine_tuning` are tasks that every model of every stage is fine-tuned for: name -> {"file": what is scored, and
    fields of `wechsel_jax.training.default_config`, data and task among them}.

    With `tuning.rates` every method has its own rates: it is trained for `tuning.steps` with each of them, and with the rate of
    its tables (embeddings) each of `tuning.tables` times as high, on the training text without `tuning.held_out` of its
    documents; what these say decides, as far as `tuning.eval_batches` read it. Runs that begin with the same model and have the
    same phases are tuned once.
    """
    config = ConfigDict()
    config.seed = 0
    config.source = ""
    config.text = ConfigDict({"train": (), "validation": (), "source": (), "words": ()})
    config.tokenizer = ConfigDict({"vocabulary_size": 8192, "algorithm": "byte_bpe", "style": "gpt2", "directory": ""})
    config.vectors = ConfigDict({"source": "", "target": "", "train_here": False, "dimensions": 100, "epochs": 5})
    config.vectors.native = ""
    config.dictionary = ""
    config.helper = ConfigDict({"checkpoint": "", "training": default_training_config()})
    config.evaluation = ConfigDict({"tasks": {}, "fine_tuning": {}, "before": False, "during": (), "after": True})
    config.methods = ("wechsel_tfr", "trans_inner", "full_rand")
    config.probe_steps = 0
    config.transfer = _transfer_defaults()
    # All methods, also those without a source's turn tokens, train on the tokens of one tokenizer.
    config.transfer.special_tokens = "replace"
    config.variants = ConfigDict()
    config.tuning = ConfigDict({"rates": (), "tables": (1.0,), "steps": 60, "held_out": 0.02, "eval_batches": 20})
    config.training = default_training_config()
    config.overrides = ConfigDict()
    return config


def _transfer_defaults() -> ConfigDict:
    config = ConfigDict()
    for name, described in described_settings().items():
        if name not in (*INPUTS, "seed"):
            config[name] = config_dict.placeholder(described.kind) if described.default is None else described.default
    return config


def compare(config: ConfigDict, workdir: str | Path) -> dict:
    """Initialises by every method of `config.methods`, trains each alike, and writes table, report and exports.

    What is there already is kept, so the same command again goes on where it stopped. All transfers come before the first
    training; until that has begun, settings may change, and what depends on them is made again.

    Args:
      config: fields as in `default_config`.
      workdir: gets `tokenizer/`, `data/`, `vectors/` and `helper/` (where trained here), one training workdir a method with
        its `transfer/` inside, `comparison.json`, `report.html`; `scores.json` and `scores.md` where `evaluation` has tasks;
        `tuning/` where rates are tuned.

    Returns:
      What `comparison.json` holds: `methods[name]["evaluations"]` as [step, perplexity] pairs, `steps_needed`, `seconds`.

    Raises:
      UserError: a field is wrong, a file is missing, a method has been trained in `workdir` with another config, another
        process is at work there, or it holds files of others.
    """
    refuse_workdir(workdir, has_begun, "a comparison")
    workdir = Path(workdir)
    _validate(config, workdir)
    with only_run(workdir):
        _settle(config, workdir)
        return _compare(config, workdir)


def _compare(config: ConfigDict, workdir: Path) -> dict:
    seconds: dict[str, float] = {}
    longest = {"max_document_bytes": config.training.data.max_document_bytes}
    if not (workdir / "tokenizer").exists():
        with _timed(seconds, "tokenizer"):
            options = as_dict(config.tokenizer)
            if directory := options.pop("directory", ""):
                tokenizer = load_tokenizer(directory)
                with new_directory(workdir / "tokenizer", "tokenizer") as place:
                    tokenizer.save_pretrained(place)
            else:
                train_tokenizer(config.text.train, output=workdir / "tokenizer", **longest, **options)
    with _timed(seconds, "data"):
        sample = {"max_bytes": config.training.data.max_bytes, **longest}
        if config.text.validation:
            prepare(config.text.train, workdir / "tokenizer", workdir / "data" / "train", **sample)
            prepare(config.text.validation, workdir / "tokenizer", workdir / "data" / "validation", **longest)
        else:
            fraction = config.training.data.validation_fraction
            prepare_split(config.text.train, workdir / "tokenizer", workdir / "data", validation_fraction=fraction, **sample)
    inputs = _inputs(config, workdir, seconds)
    # All before the first training, so that a mistake in the settings of one is found while they may still be changed.
    starts: dict[str, Path] = {}
    for method in config.methods:
        place, settings = workdir / method / "transfer", _settings(config, method, inputs)
        # Runs that differ in their training alone begin with the same files.
        twin = starts.setdefault(repr((_named(config, method), sorted(settings.items()))), place)
        if not place.exists():
            print(f"== {method}: transfer", flush=True)
            with _timed(seconds, f"{method} transfer"):
                if twin != place:
                    with temporary_directory(place) as copied:
                        shutil.copytree(twin, copied, dirs_exist_ok=True)
                        os.rename(copied, place)
                else:
                    models, automatic = (config.source, workdir / "tokenizer", place), _named(config, method) == AUTO
                    if automatic and config.probe_steps:
                        transfer_by_probe(*models, steps=config.probe_steps, **settings)
                    else:
                        transfer(*models, method=None if automatic else _base(config, method), **settings)
    tuned: dict[str, list] = {}
    if config.tuning.rates:
        with _timed(seconds, "tuning"):
            tuned = _tune(config, workdir)
    for method in config.methods:
        print(f"== {method} (seed {config.seed})", flush=True)
        run = workdir / method
        training = _training_config(config, method, run, workdir)
        if method in tuned:
            rate, tables, _ = min(tuned[method], key=lambda tried: tried[-1])
            training = _with_rates(training, rate, tables)
        with _timed(seconds, f"{method} training"):
            train(training, run)
    if config.evaluation.tasks or config.evaluation.fine_tuning:
        with _timed(seconds, "evaluation"):
            _evaluate(config, workdir)
    return _write_results(config, workdir, seconds, tuned)


def _tune(config: ConfigDict, workdir: Path) -> dict[str, list]:
    """Trains every start with every pair of rates, on text of which some is held out for this; what was tried is kept.

    Returns:
      name of a run -> [rate, factor of the tables, loss per token after the last step] of each pair, of finite loss only.

    Raises:
      UserError: no rate leads a start to a finite loss.
    """
    tuning, data, tuned = config.tuning, workdir / "data" / "tuning", {}
    longest = config.training.data.max_document_bytes
    prepare_split(
        config.text.train, workdir / "tokenizer", data, validation_fraction=tuning.held_out, max_document_bytes=longest
    )
    done: dict[str, list] = {}
    for method in config.methods:
        base = _training_config(config, method, workdir / method, workdir)
        record = (workdir / method / "transfer" / "transfer.json").read_bytes()
        if (key := repr((record, as_dict(base)["phases"]))) in done:
            tuned[method] = done[key]
            continue
        tuned[method] = done[key] = []
        for rate in tuning.rates:
            for tables in tuning.tables:
                run = workdir / "tuning" / f"{method}-{rate:g}-{tables:g}"
                # A run that was evaluated after its last step is told by its metrics alone; its weights are of no use.
                if (loss := _loss_after(run, tuning.steps)) is None:
                    print(f"== {method}: rate {rate:g}, of the tables {tables * rate:g}", flush=True)
                    train(_tuning_config(config, base, data, rate, tables), run)
                    loss = _loss_after(run, tuning.steps)
                for name in ("checkpoints", "export"):
                    shutil.rmtree(run / name, ignore_errors=True)
                if math.isfinite(loss):
                    done[key].append([rate, tables, round(loss, 5)])
        if not done[key]:
            raise UserError(f"tuning.rates: {method} has no finite loss after {tuning.steps} steps; expected lower ones")
    return tuned


def _loss_after(run: Path, step: int) -> float | None:
    """The held-out loss of a run's evaluation after a step; None where there was none."""
    evaluations = read_run(run).evaluations if (run / METRICS_FILE).exists() else ()
    return next((one.loss for one in evaluations if one.step == step), None)


def _tuning_config(config: ConfigDict, base: ConfigDict, data: Path, rate: float, tables: float) -> ConfigDict:
    training = _with_rates(copy.deepcopy(base), rate, tables)
    training.data.train, training.data.validation = (str(data / "train"),), (str(data / "validation"),)
    training.steps = training.eval_every = training.checkpoint_every = config.tuning.steps
    training.eval_batches = config.tuning.eval_batches
    training.keep, training.keep_every, training.keep_best, training.patience = 1, 0, False, 0
    # A rate that is too high is something to be seen, no mistake.
    training.skip_nonfinite = config.tuning.steps
    return training


def _with_rates(training: ConfigDict, rate: float, tables: float) -> ConfigDict:
    training.optimizer.peak_learning_rate = rate
    training.optimizer.groups = () if tables == 1 else ({"match": "embeddings", "rate": tables},)
    return training


def _evaluate(config: ConfigDict, workdir: Path) -> None:
    """Scores the models; what was scored before, with the same settings, is not scored again."""
    print("== evaluation", flush=True)
    models, steps = {"source": Path(config.source)}, config.training.steps
    stages = {0.0: " untrained"} if config.evaluation.before else {}
    stages |= {part: f" {100 * part:g} %" for part in config.evaluation.during}
    for part, name in stages.items():
        for method in config.methods:
            place = workdir / method / "transfer"
            if part:
                place = workdir / method / "stages" / f"{round(part * steps)}"
                if not place.exists():
                    export_checkpoint(workdir / method, place, round(part * steps))
            models[f"{method}{name}"] = place
    if config.evaluation.after:
        models |= {method: workdir / method / "export" for method in config.methods}
    scores = workdir / "scores.json"
    if config.evaluation.tasks:
        evaluate(models, _tasks(config), output=scores, overwrite=True)
    for name, given in config.evaluation.fine_tuning.items():
        places = {label: workdir / "fine_tuning" / name / label.replace(" ", "_").replace("_%", "") for label in models}
        settings = {key: value for key, value in as_dict(given).items() if key != "file"}
        # Which files they were, their hashes in the workdirs say.
        for side, files in settings.get("data", {}).items():
            settings["data"][side] = [Path(file).name for file in files] if isinstance(files, list) else files
        for label, place in places.items():
            print(f"== {label}: fine-tuning for {name}", flush=True)
            finetune(_fine_tuning(config, name, models[label], workdir), place)
        task = Task.of(name, "labels", given.file, training=settings)
        evaluate(models, [dataclasses.replace(task, fine_tuned=places)], output=scores, overwrite=True)
    table = write_scores([scores], workdir / "scores.md", overwrite=True)
    print(scores_text(read_scores([scores])), f"scores: {table}", sep="\n\n", flush=True)


def _fine_tuning(config: ConfigDict, name: str, model: Path, workdir: Path) -> ConfigDict:
    """The settings of a model's fine-tuning.

    Raises:
      UserError: there is no file to score, or a field that no training has.
    """
    given = config.evaluation.fine_tuning[name]
    if not isinstance(given, ConfigDict) or not isinstance(given.get("file"), str):
        raise UserError(f"evaluation.fine_tuning.{name}: expected the file that is scored, and fields of the training")
    find_sources([given.file])
    training = default_training_config()
    training.seed, training.model.checkpoint = config.seed, str(model)
    training.compilation_cache = str(workdir / "compiled")
    # A configuration may hold parts of another one, with references, which do not take each other's place.
    given = {key: value for key, value in as_dict(given).items() if key != "file"}
    if wrong := sorted({*given} - {*training}):
        raise UserError(f"evaluation.fine_tuning.{name}.{wrong[0]}: no such setting; expected one of {', '.join(training)}")
    training.update(given)
    return training


def _tasks(config: ConfigDict) -> list[Task]:
    """What the models are scored on.

    Raises:
      UserError: a task has no file, or a setting that its form does not know, or a file is missing.
    """
    found = []
    for name, task in as_dict(config.evaluation.tasks).items():
        if not isinstance(task, dict) or not isinstance(task.get("form"), str) or not isinstance(task.get("file"), str):
            raise UserError(f"evaluation.tasks.{name}: expected a form and a file, and settings of the form")
        settings = {key: value for key, value in task.items() if key not in ("form", "file")}
        found.append(Task.of(f"evaluation.tasks.{name}", task["form"], task["file"], **settings))
        find_sources([task["file"]])
    return [dataclasses.replace(task, name=task.name.removeprefix("evaluation.tasks.")) for task in found]


def _settle(config: ConfigDict, workdir: Path) -> None:
    """Records the settings; until the first training has begun, others may take their place, and what depends on them goes.

    Raises:
      UserError: a method has been trained with other settings, or what depends on them holds what somebody added. (A helper
        that has been trained stays; its own training refuses other settings.)
    """
    if (workdir / "tuning").exists() or any((workdir / method / SETTINGS).exists() for method in config.methods):
        record_config(config, workdir)
        return
    remove_leftovers(workdir / SETTINGS)
    old, now = {}, json.loads(json.dumps(as_dict(config)))
    with contextlib.suppress(OSError, ValueError):
        old = dict(json.loads((workdir / SETTINGS).read_bytes()))

    fields = [name for name, _, _ in differences(old, now)]
    changed = {name.split(".")[0].split("[")[0] for name in fields}

    def differ(*names: str) -> bool:
        return not changed.isdisjoint(names)

    # The names are those of this comparison: a recorded one might lead anywhere.
    writers = {"tokenizer": "tokenizer"} if differ("text", "tokenizer") else {}
    writers |= {f"{name}/transfer": "transfer" for name in config.methods if changed}
    there = [(workdir / name, writer) for name, writer in writers.items() if old and (workdir / name).exists()]
    for place, writer in there:
        if what := foreign(place, writer):
            raise UserError(f"{place}: was made with other settings, and {what}; remove it yourself, or use another workdir")
    for place, _ in there:
        shutil.rmtree(place)
    for side in ("train", "validation"):
        other = differ("text", "tokenizer") or any(name.startswith("training.data.") for name in fields)
        if old and other and (workdir / "data" / side).exists():
            remove_prepared(workdir / "data" / side)
    for name in ("source", "target", "native", "sample"):
        if old and differ("text", "tokenizer", "vectors", *(("training",) if name == "sample" else ())):
            (workdir / "vectors" / f"{name}.bin").unlink(missing_ok=True)
    (workdir / SETTINGS).unlink(missing_ok=True)
    record_config(config, workdir)


def _validate(config: ConfigDict, workdir: Path) -> None:
    """Refuses what cannot work before anything is written, so that the corrected command finds a clean workdir."""
    for name, variant in config.variants.items():
        if "method" not in variant:
            raise UserError(f"variants.{name}: has no method; expected one of {', '.join(sorted(METHODS))}")
    unknown = sorted({_base(config, method) for method in config.methods} - set(METHODS))
    if unknown:
        raise UserError(f"methods: unknown method {unknown[0]!r}; expected some of {', '.join(sorted(METHODS))}")
    if not config.methods or len({*config.methods}) < len(config.methods):
        raise UserError(f"methods: is {as_dict(config.methods)}; expected at least one method, and each once")
    known = described_settings()
    for where, given in [("transfer", config.transfer), *((f"variants.{name}", one) for name, one in config.variants.items())]:
        wrong = sorted({*given} - {*known, "method"})
        if wrong:
            raise UserError(f"{where}.{wrong[0]}: no such setting; expected one of {', '.join(sorted(known))}")
    for name, given in config.overrides.items():
        wrong = sorted({*given} - {*config.training})
        if wrong:
            raise UserError(
                f"overrides.{name}.{wrong[0]}: no such setting; expected one of {', '.join(sorted(config.training))}"
            )
    for name in ("train", "validation"):
        if not config.text[name] and not (name == "validation" and config.training.data.validation_fraction):
            raise UserError(f"text.{name}: no file given; expected text in the target language")
    stray = sorted(set(config.overrides) - set(METHODS) - set(config.variants))
    if stray:
        raise UserError(f"overrides.{stray[0]}: no such method; expected one of {', '.join(sorted(METHODS))}, or of `variants`")
    for files in config.text.values():
        find_sources(files)
    _tasks(config)
    Checkpoint.open(config.source)
    for name in config.evaluation.fine_tuning:
        validate(_fine_tuning(config, name, Path(config.source), workdir))
    every = config.training.keep_every
    for part in config.evaluation.during:
        if not 0 < part < 1 or not every or round(part * config.training.steps) % every:
            raise UserError(
                f"evaluation.during: {part} of {config.training.steps} steps has no checkpoint that stays; expected a fraction "
                f"between 0 and 1 whose step is a multiple of training.keep_every={every}"
            )
    needed = _needed(config)
    if "dictionary" in needed and config.dictionary not in (ALIGNED, IDENTICAL):
        require_file(config.dictionary, "a dictionary of word pairs")
    if not config.vectors.train_here:
        for side in ("source", "target"):
            if f"{side}_vectors" in needed:
                require_file(config.vectors[side], "word vectors")
    for method in config.methods:
        base = _training_config(config, method, workdir / method, workdir)
        validate(base)
        for rate in config.tuning.rates:
            for tables in config.tuning.tables:
                validate(_tuning_config(config, base, workdir, rate, tables))


def _base(config: ConfigDict, method: str) -> str:
    """The method whose inputs and settings a run has."""
    named = _named(config, method)
    return DEFAULT if named == AUTO else named


def _named(config: ConfigDict, method: str) -> str:
    """The method that a run's name stands for."""
    return config.variants[method].method if method in config.variants else method


def _needs(config: ConfigDict, name: str) -> set[str]:
    """The inputs of one run: names of settings, and "native_vectors" where its target vectors are those of tokens."""
    method = METHODS[_base(config, name)]
    needs = {*method.needs, *(("helper",) if method.helper else ())}
    return needs - {"target_vectors"} | {"native_vectors"} if _compares_tokens(config, name) else needs


def _needed(config: ConfigDict) -> set[str]:
    return set().union(*(_needs(config, name) for name in config.methods))


def _compares_tokens(config: ConfigDict, name: str) -> bool:
    """Whether the run reads word vectors whose words are the target tokenizer's tokens."""
    method, own = METHODS[_base(config, name)], config.variants.get(name, ConfigDict())
    kind = own.get("token_vectors") or config.transfer.get("token_vectors") or method.vectors
    return kind == "native" and method.space == "target"


def _inputs(config: ConfigDict, workdir: Path, seconds: dict[str, float]) -> dict[str, str]:
    """Makes what the methods need and the config does not name; returns setting -> file or directory."""
    needed, inputs = _needed(config), {"dictionary": config.dictionary}
    inputs |= {"source_text": config.text.source, "target_text": config.text.train}
    with _timed(seconds, "vectors"):
        for side, text in (("source", config.text.source), ("target", config.text.words or config.text.train)):
            if f"{side}_vectors" not in needed:
                continue
            inputs[f"{side}_vectors"] = config.vectors[side]
            if config.vectors.train_here:
                output = workdir / "vectors" / f"{side}.bin"
                if not output.exists():
                    train_vectors(text, output, dim=config.vectors.dimensions, epochs=config.vectors.epochs)
                inputs[f"{side}_vectors"] = str(output)
        if any(config.variants.get(name, {}).get("target_vectors") == SAMPLE for name in config.methods):
            inputs[SAMPLE] = str(_sampled_vectors(config, workdir))
        if "native_vectors" in needed:
            inputs["native_vectors"] = config.vectors.native or str(_native_vectors(config, workdir))
    if "helper" in needed:
        inputs["helper"] = config.helper.checkpoint
        if not config.helper.checkpoint:
            with _timed(seconds, "helper"):
                train(_helper_config(config, workdir), workdir / "helper")
            inputs["helper"] = str(workdir / "helper" / "export")
    return inputs


def _native_vectors(config: ConfigDict, workdir: Path) -> Path:
    output = workdir / "vectors" / "native.bin"
    if not output.exists():
        options = {"dim": config.vectors.dimensions, "epochs": config.vectors.epochs, **NATIVE_VECTORS}
        train_vectors(config.text.train, output, tokenizer=workdir / "tokenizer", **options)
    return output


def _sampled_vectors(config: ConfigDict, workdir: Path) -> Path:
    output, data = workdir / "vectors" / "sample.bin", config.training.data
    if not output.exists():
        output.parent.mkdir(exist_ok=True)
        with temporary_directory(output) as work:
            fraction = 0.0 if config.text.validation else data.validation_fraction
            sizes = {"max_bytes": data.max_bytes, "max_document_bytes": data.max_document_bytes}
            write_sample(config.text.train, work / "sample.jsonl", validation_fraction=fraction, **sizes)
            options = {"dim": config.vectors.dimensions, "epochs": config.vectors.epochs}
            train_vectors([work / "sample.jsonl"], output, max_document_bytes=data.max_document_bytes, **options)
    return output


def _settings(config: ConfigDict, name: str, inputs: dict[str, str]) -> dict:
    """The settings of one method's transfer, without those for all methods that others read and this one does not."""
    method = METHODS[_base(config, name)]
    settings = {"seed": config.seed, **as_dict(config.transfer), **as_dict(config.variants.get(name, ConfigDict()))}
    settings.pop("method", None)
    for wanted in (*method.needs, *(("helper",) if method.helper else ())):
        settings.setdefault(wanted, inputs.get(wanted))
    if method.text and config.dictionary:
        settings.setdefault("dictionary", config.dictionary)
    if settings["calibrate"] != "none":
        settings.setdefault("target_text", inputs["target_text"])
    if settings.get("regression") and "regression" in method.settings and config.text.source:
        settings |= {side: settings.get(side) or inputs[side] for side in ("source_text", "target_text")}
    if _compares_tokens(config, name):
        settings["target_vectors"] = inputs["native_vectors"]
    if settings.get("target_vectors") == SAMPLE:
        settings["target_vectors"] = inputs[SAMPLE]
    nobodys = set.intersection(*(_unread(config, other) for other in config.methods))
    return {key: value for key, value in settings.items() if key not in _unread(config, name) - nobodys}


def _unread(config: ConfigDict, name: str) -> set[str]:
    """Which of the settings for all methods one method does not read."""
    own = as_dict(config.variants.get(name, ConfigDict()))
    given = as_dict(config.transfer) | {key: value for key, value in own.items() if key != "method"}
    method = METHODS[_base(config, name)]
    return {*TransferSettings.filled(method, **given).unused(method)} - {*own}


def _helper_config(config: ConfigDict, workdir: Path) -> ConfigDict:
    training = copy.deepcopy(config.helper.training)
    training.seed = config.seed
    training.model.tokenizer = str(workdir / "tokenizer")
    return _with_data(training, workdir)


def _with_data(training: ConfigDict, workdir: Path) -> ConfigDict:
    training.data.train = (str(workdir / "data" / "train"),)
    training.data.validation = (str(workdir / "data" / "validation"),)
    # Of the text, which is tokens already.
    training.data.validation_fraction, training.data.max_bytes = 0.0, 0
    if not training.compilation_cache:
        training.compilation_cache = str(workdir / "compiled")
    return training


def _training_config(config: ConfigDict, method: str, run: Path, workdir: Path) -> ConfigDict:
    training = copy.deepcopy(config.training)
    training.seed = config.seed
    training.model.checkpoint = str(run / "transfer")
    _with_data(training, workdir)
    training.update(config.overrides.get(method, ConfigDict()))
    return training


def _write_results(config: ConfigDict, workdir: Path, seconds: dict[str, float], tuned: dict[str, list]) -> dict:
    runs = [workdir / method for method in config.methods]
    curves = {run.name: [list(point) for point in read_run(run).curve] for run in runs}
    earlier = ComparisonRecord.read(workdir).seconds if (workdir / COMPARISON_FILE).exists() else {}
    result = ComparisonRecord(
        methods={name: {"evaluations": curve} for name, curve in curves.items()},
        steps_needed={
            name: steps_needed(curves[BASELINE], curve)
            for name, curve in curves.items()
            if BASELINE in curves and name != BASELINE
        },
        seed=config.seed,
        machine=_machine(),
        seconds={**earlier, **seconds},
        tuning=tuned or None,
    )
    result.write(workdir)
    print(comparison_table(runs), flush=True)
    report = write_report(runs, workdir / "report.html")
    print(f"report: {report}\nmodels: " + ", ".join(str(run / "export") for run in runs), flush=True)
    return vars(result)


def _machine() -> str:
    devices = f"{jax.device_count()} x {jax.devices()[0].device_kind}"
    return f"{devices}, {os.cpu_count()} cores ({platform.machine()}), jax {jax.__version__}"


class _timed:
    """Adds the seconds that a block takes to `seconds[name]`."""

    def __init__(self, seconds: dict[str, float], name: str):
        self.seconds, self.name = seconds, name

    def __enter__(self) -> None:
        self.start = time.monotonic()

    def __exit__(self, *_) -> None:
        self.seconds[self.name] = self.seconds.get(self.name, 0.0) + round(time.monotonic() - self.start, 2)
