"""Rates of their own for every method of a comparison, tried in short runs on text that is held out for it."""

import copy
import math
import shutil
from pathlib import Path

from ml_collections import ConfigDict

from wechsel_jax.comparison.inputs import prepared_as, sample_as, write_training_text
from wechsel_jax.comparison.settings import OWN, training_config
from wechsel_jax.data import prepare_split
from wechsel_jax.errors import UserError, naming
from wechsel_jax.files import remove_leftovers
from wechsel_jax.records import read_run
from wechsel_jax.records.names import CHECKPOINTS, EXPORT, METRICS_FILE, RECORD_FILE
from wechsel_jax.training import train
from wechsel_jax.training.config import as_dict
from wechsel_jax.training.workdir import follow

# In a comparison's data/: the documents that the methods are trained on, where these are not the whole text.
TUNING_TEXT = "tuning.jsonl"
# Groups of the optimizer by these names have the rate of the tables; with "tokens" alone, positions have that of the body.
TABLES = ("embeddings", "tokens")


def tune(config: ConfigDict, workdir: Path) -> dict[str, list]:
    """Trains every start with every pair of rates, on text of which some is held out for this; what was tried is kept.

    The text is what the methods are trained on, and what is held out of it is none of the text that they are scored on.

    Returns:
      name of a run -> [rate, factor of the tables, loss per token after the last step] of each pair, of finite loss only.

    Raises:
      UserError: no rate leads a start to a finite loss.
    """
    tuning, data, tuned, prepared = config.tuning, workdir / "data" / "tuning", {}, False
    done: dict[str, list] = {}
    for method in config.methods:
        base = training_config(config, method, workdir / method, workdir)
        record = (workdir / method / "transfer" / RECORD_FILE).read_bytes()
        alike = tuning_config(config, base, data, tuning.rates[0], 1.0)
        alike.model.checkpoint = ""
        if (key := repr((record, as_dict(alike)))) in done:
            tuned[method] = done[key]
            continue
        tuned[method], tried = done.setdefault(key, []), set()
        for rate in tuning.rates:
            for tables in tuning.tables:
                settings = tuning_config(config, base, data, rate, tables)
                # Where the tables are frozen, every factor is the same run.
                if (same := repr(as_dict(settings))) in tried:
                    continue
                tried.add(same)
                run = workdir / "tuning" / f"{method}-{rate:g}-{tables:g}"
                # A run that was evaluated after its last step is told by its metrics alone; its weights are of no use.
                if (loss := _loss_after(run, tuning.steps)) is None:
                    if not prepared:
                        _prepare(config, workdir, data)
                        prepared = True
                    print(f"== {method}: rate {rate:g}, of the tables {tables * rate:g}", flush=True)
                    follow(settings, run, *OWN)
                    train(settings, run)
                    loss = _loss_after(run, tuning.steps)
                # Of an export that was killed.
                remove_leftovers(run / EXPORT)
                for name in (CHECKPOINTS, EXPORT):
                    shutil.rmtree(run / name, ignore_errors=True)
                if math.isfinite(loss):
                    done[key].append([rate, tables, round(loss, 5)])
        if not done[key]:
            raise UserError(f"tuning.rates: {method} has no finite loss after {tuning.steps} steps; expected lower ones")
    return tuned


def _prepare(config: ConfigDict, workdir: Path, data: Path) -> None:
    """Makes the tokens that rates are tuned on, of the text that the methods are trained on and of no other."""
    reading = prepared_as(config)
    texts, share, held = config.text.train, config.tuning.held_out, config.training.data.validation_fraction
    if held or config.training.data.max_bytes:
        texts = [workdir / "data" / TUNING_TEXT]
        if not texts[0].exists():
            write_training_text(config, texts[0])
        reading = sample_as(config)
        # A document's side follows from its hash, and those with the lowest are held out for the scores.
        share = held + (1 - held) * share
    with naming(f"tuning.held_out={config.tuning.held_out:g}, of what is trained on: "):
        prepare_split(texts, workdir / "tokenizer", data, validation_fraction=share, **reading)


def _loss_after(run: Path, step: int) -> float | None:
    """The held-out loss of a run's evaluation after a step; None where there was none."""
    evaluations = read_run(run).evaluations if (run / METRICS_FILE).exists() else ()
    return next((one.loss for one in evaluations if one.step == step), None)


def tuning_config(config: ConfigDict, base: ConfigDict, data: Path, rate: float, tables: float) -> ConfigDict:
    training = with_rates(copy.deepcopy(base), rate, tables)
    training.data.train, training.data.validation = (str(data / "train"),), (str(data / "validation"),)
    training.steps = training.eval_every = training.checkpoint_every = config.tuning.steps
    # As in a run of this length.
    training.soft_targets.steps, training.profile_steps = 0, ""
    training.eval_batches = config.tuning.eval_batches
    training.keep, training.keep_every, training.keep_best, training.patience = 1, 0, False, 0
    # A rate that is too high is something to be seen, no mistake.
    training.skip_nonfinite = config.tuning.steps
    return training


def with_rates(training: ConfigDict, rate: float, tables: float) -> ConfigDict:
    """Sets the rate of the body and the factor of the tables; whatever else the groups say stays."""
    groups = [as_dict(group) for group in training.optimizer.groups]
    if tables != 1 and all(group["match"] not in TABLES for group in groups):
        groups.insert(0, {"match": "embeddings"})
    for group in (group for group in groups if group["match"] in TABLES and group.get("kind") != "frozen"):
        group["rate"] = tables
    training.optimizer.peak_learning_rate, training.optimizer.groups = rate, tuple(groups)
    return training
