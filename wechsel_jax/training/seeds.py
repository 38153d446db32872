"""Runs that differ in their seed alone, and the mean and spread of what they score."""

import contextlib
import copy
import statistics
from pathlib import Path
from typing import Any

from ml_collections import ConfigDict

from wechsel_jax.data.examples import FORMS
from wechsel_jax.errors import UserError
from wechsel_jax.files.json import is_number, record_json
from wechsel_jax.records.names import CONFIG_FILE, SEEDS_FILE
from wechsel_jax.training import distributed
from wechsel_jax.training.config import validate
from wechsel_jax.training.loop import train
from wechsel_jax.training.workdir import check_config, only_run, record_config, require_workdir


def finetune(config: ConfigDict, workdir: str | Path) -> dict[str, Any]:
    """Fine-tunes a model on labelled examples; with `seeds` in the settings several times.

    Each run is one of `train`. With n seeds they lie in `workdir/seed-N`, and `workdir/seeds.json` holds mean and spread (the
    standard deviation of a sample) of every score that is finite with all of them; the same command goes on where it stopped.

    Args:
      config: the fields of `default_config`; the objective is one of labelled examples.
      workdir: as of `train`, or of the runs.

    Returns:
      What `train` returns, or the content of seeds.json: {"metric", "seeds", "scores": name -> {"mean", "spread", "values"}}.

    Raises:
      UserError: as `train`.
    """
    # First: without labels, what is said of them is a mistake, too.
    if (objective := config.get("objective")) not in FORMS:
        raise UserError(f"objective: {objective} needs no labels; expected one of {', '.join(FORMS)}; or train.pretrain")
    validate(config, steps_known=not config.get("epochs"))
    workdir = Path(workdir)
    if config.seeds < 2:
        if any(workdir.glob(f"seed-*/{CONFIG_FILE}")):
            raise UserError(f"{workdir}: holds a fine-tuning with several seeds; expected seeds as before, or another workdir")
        return train(config, workdir)
    last = copy.deepcopy(config)
    last.seed += config.seeds - 1
    validate(last, steps_known=not config.epochs)
    require_workdir(workdir, "a fine-tuning")
    check_config(config, workdir)
    results = {}
    distributed.start(config.distributed)
    with only_run(workdir) if distributed.is_first() else contextlib.nullcontext():
        for seed in range(config.seed, config.seed + config.seeds):
            one = copy.deepcopy(config)
            one.seed, one.seeds = seed, 0
            results[seed] = train(one, workdir / f"seed-{seed}")
    names = [name for name, value in results[config.seed].items() if isinstance(value, float) and name != "evaluation_seconds"]
    # A loss that is no finite number with one seed has no mean.
    scores = {
        name: {"mean": statistics.fmean(values), "spread": statistics.stdev(values), "values": values}
        for name in names
        for values in [[result[name] for result in results.values()]]
        if all(map(is_number, values))
    }
    # Of a translation BLEU counts where it is measured.
    metric = results[config.seed].get("metric", "bleu" if "bleu" in scores else "loss")
    found = {"metric": metric, "seeds": list(results), "scores": scores}
    if distributed.is_first():
        record_config(config, workdir)
        record_json(workdir / SEEDS_FILE, found)
    of_all = scores.get("score", scores.get(metric))
    said = "not finite with every seed" if of_all is None else f"{of_all['mean']:.4f} +- {of_all['spread']:.4f}"
    print(f"{metric}: {said} ({len(results)} seeds)")
    return found
