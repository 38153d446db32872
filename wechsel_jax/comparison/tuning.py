"""Rates of their own for every method of a comparison, tried in short runs on text that is held out for it."""

import copy
import math
import shutil
from pathlib import Path

from ml_collections import ConfigDict

from wechsel_jax.comparison.settings import training_config
from wechsel_jax.data import prepare_split
from wechsel_jax.errors import UserError
from wechsel_jax.records import read_run
from wechsel_jax.records.run import METRICS_FILE
from wechsel_jax.training import train
from wechsel_jax.training.config import as_dict


def tune(config: ConfigDict, workdir: Path) -> dict[str, list]:
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
        base = training_config(config, method, workdir / method, workdir)
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
                    train(tuning_config(config, base, data, rate, tables), run)
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


def tuning_config(config: ConfigDict, base: ConfigDict, data: Path, rate: float, tables: float) -> ConfigDict:
    training = with_rates(copy.deepcopy(base), rate, tables)
    training.data.train, training.data.validation = (str(data / "train"),), (str(data / "validation"),)
    training.steps = training.eval_every = training.checkpoint_every = config.tuning.steps
    training.eval_batches = config.tuning.eval_batches
    training.keep, training.keep_every, training.keep_best, training.patience = 1, 0, False, 0
    # A rate that is too high is something to be seen, no mistake.
    training.skip_nonfinite = config.tuning.steps
    return training


def with_rates(training: ConfigDict, rate: float, tables: float) -> ConfigDict:
    """Sets the rate of the body and the factor of the tables; whatever else the groups say stays."""
    groups = [as_dict(group) for group in training.optimizer.groups]
    if tables != 1 and all(group["match"] != "embeddings" for group in groups):
        groups.insert(0, {"match": "embeddings"})
    for group in (group for group in groups if group["match"] == "embeddings"):
        group["rate"] = tables
    training.optimizer.peak_learning_rate, training.optimizer.groups = rate, tuple(groups)
    return training
