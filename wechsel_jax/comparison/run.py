"""One source model, one new language, several initialisations, the same training for each: what `train.compare` runs."""

import contextlib
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from ml_collections import ConfigDict

from wechsel_jax.checkpoint import Checkpoint
from wechsel_jax.comparison.candidates import probe_directory, transfer_by_probe
from wechsel_jax.comparison.check import settle, validate_comparison
from wechsel_jax.comparison.inputs import make_inputs, prepared_as, read_as, seconds_spent, timed
from wechsel_jax.comparison.scoring import score_models, score_starts
from wechsel_jax.comparison.settings import (
    OWN,
    base_method,
    input_places,
    named_method,
    training_config,
    transfer_settings,
)
from wechsel_jax.comparison.tuning import tune, with_rates
from wechsel_jax.data import prepare, prepare_split
from wechsel_jax.errors import UserError
from wechsel_jax.files import copy_tree, new_directory, temporary_directory
from wechsel_jax.initializers import AUTO
from wechsel_jax.records import ComparisonRecord, read_run
from wechsel_jax.records.machine import machine
from wechsel_jax.records.names import CONFIG_FILE, EXPORT
from wechsel_jax.report import comparison_table, write_report
from wechsel_jax.report.curves import BITS, baseline, steps_needed
from wechsel_jax.tokens import load_tokenizer
from wechsel_jax.tokens.files import write_tokenizer
from wechsel_jax.tokens.training import train_tokenizer
from wechsel_jax.training import train
from wechsel_jax.training.config import as_dict
from wechsel_jax.training.workdir import follow, only_run, require_workdir
from wechsel_jax.transfers.job import transfer


def compare(config: ConfigDict, workdir: str | Path) -> dict:
    """Initialises by every method of `config.methods`, trains each alike, and writes table, report and exports.

    What is there already is kept, so the same command again goes on where it stopped. All transfers come before the first
    training; until that has begun, settings may change, and what depends on them is made again.

    Args:
      config: fields as in `default_config`.
      workdir: gets `tokenizer/`, `data/`, `vectors/` and `helper/` (where trained here), one training workdir a method with
        its `transfer/` inside, `comparison.json`, `report.html`; `scores.json` and `scores.md` where `evaluation` has tasks;
        `tuning/` where rates are tuned; `config.json`, `texts.json` and `seconds.json`: the settings, which text it was, and
        what each step has taken.

    Returns:
      What `comparison.json` holds: `methods[name]["evaluations"]` as [step, perplexity] pairs, likewise `"bits_per_byte"` of
      runs that recorded it, `steps_needed`, `seconds`.

    Raises:
      UserError: a field is wrong, a file is missing, a method has been trained in `workdir` with another config or on other
        text, another process is at work there, or it holds files of others.
    """
    require_workdir(workdir, "a comparison")
    workdir = Path(workdir)
    validate_comparison(config, workdir)
    with only_run(workdir):
        settle(config, workdir)
        return _compare(config, workdir)


def _compare(config: ConfigDict, workdir: Path) -> dict:
    if (workdir / "tokenizer").exists():
        with _made_again(workdir / "tokenizer"):
            load_tokenizer(workdir / "tokenizer")
    else:
        with timed(workdir, "tokenizer"):
            options = as_dict(config.tokenizer)
            if directory := options.pop("directory", ""):
                tokenizer = load_tokenizer(directory)
                with new_directory(workdir / "tokenizer", "tokenizer") as place:
                    write_tokenizer(tokenizer, place)
            else:
                train_tokenizer(config.text.train, output=workdir / "tokenizer", **read_as(config), **options)
    with timed(workdir, "data"):
        sample = {"max_bytes": config.training.data.max_bytes, **prepared_as(config)}
        if config.text.validation:
            prepare(config.text.train, workdir / "tokenizer", workdir / "data" / "train", **sample)
            prepare(config.text.validation, workdir / "tokenizer", workdir / "data" / "validation", **prepared_as(config))
        else:
            fraction = config.training.data.validation_fraction
            prepare_split(config.text.train, workdir / "tokenizer", workdir / "data", validation_fraction=fraction, **sample)
    make_inputs(config, workdir)
    # All before the first training, so that a mistake in the settings of one is found while they may still be changed.
    starts: dict[str, Path] = {}
    for method in config.methods:
        place, settings = workdir / method / "transfer", transfer_settings(config, method, input_places(config, workdir))
        automatic, probing = named_method(config, method) == AUTO, {}
        if automatic and config.probe_steps:
            # As the run itself will be trained.
            optimizer = as_dict(training_config(config, method, workdir / method, workdir).optimizer)
            rates = (optimizer["peak_learning_rate"],)
            probing = {"steps": config.probe_steps, "rates": rates, "recipes": {"training": optimizer}}
        # Runs that differ in their training alone begin with the same files, unless a probe chooses them.
        twin = starts.setdefault(repr((named_method(config, method), sorted(settings.items()), probing)), place)
        if place.exists() and not (workdir / method / CONFIG_FILE).exists():
            with _made_again(place):
                Checkpoint.open(place)
        if place.exists():
            # Of a probe that was killed while it cleared up; the training would take it for files of others.
            shutil.rmtree(probe_directory(place), ignore_errors=True)
        else:
            print(f"== {method}: transfer", flush=True)
            with timed(workdir, f"{method} transfer"):
                if twin != place:
                    with temporary_directory(place) as copied:
                        copy_tree(twin, copied)
                        os.rename(copied, place)
                else:
                    models = (config.source, workdir / "tokenizer", place)
                    if probing:
                        transfer_by_probe(*models, **probing, **({"parallel": config.parallel} | settings))
                    else:
                        transfer(*models, method=None if automatic else base_method(config, method), **settings)
    if config.evaluation.tasks:
        print("== evaluation before training", flush=True)
        with timed(workdir, "evaluation"):
            score_starts(config, workdir)
    tuned: dict[str, list] = {}
    if config.tuning.rates:
        with timed(workdir, "tuning"):
            tuned = tune(config, workdir)
    for method in config.methods:
        print(f"== {method} (seed {config.seed})", flush=True)
        run = workdir / method
        training = training_config(config, method, run, workdir)
        if method in tuned:
            rate, tables, _ = min(tuned[method], key=lambda tried: tried[-1])
            training = with_rates(training, rate, tables)
        with timed(workdir, f"{method} training"):
            follow(training, run, *OWN)
            train(training, run)
    if config.evaluation.tasks or config.evaluation.fine_tuning:
        with timed(workdir, "evaluation"):
            score_models(config, workdir)
    return _write_results(config, workdir, tuned)


@contextlib.contextmanager
def _made_again(place: Path) -> Iterator[None]:
    """Says of what is damaged in a directory that nobody can copy it from elsewhere."""
    try:
        yield
    except UserError as error:
        raise UserError(f"{error}; or remove {place}: the same command makes it again") from None


def _write_results(config: ConfigDict, workdir: Path, tuned: dict[str, list]) -> dict:
    runs = [workdir / method for method in config.methods]
    records = [read_run(run) for run in runs]
    scratch = baseline(records)
    result = ComparisonRecord(
        methods={
            run.name: {"evaluations": [list(point) for point in one.curve]}
            | ({"bits_per_byte": [list(point) for point in bits]} if (bits := BITS.curve(one)) else {})
            for run, one in zip(runs, records, strict=True)
        },
        steps_needed={
            run.name: steps_needed(scratch.curve, one.curve)
            for run, one in zip(runs, records, strict=True)
            if scratch and one is not scratch
        },
        seed=config.seed,
        machine=machine(),
        seconds=seconds_spent(workdir),
        tuning=tuned or None,
    )
    result.write(workdir)
    print(comparison_table(runs), flush=True)
    report = write_report(runs, workdir / "report.html")
    print(f"report: {report}\nmodels: " + ", ".join(str(run / EXPORT) for run in runs), flush=True)
    return vars(result)
