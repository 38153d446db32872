"""A run of another length that begins as an earlier run did: its checkpoint, and the lines up to it, in a new workdir."""

import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ml_collections import ConfigDict

from wechsel_jax.errors import UserError
from wechsel_jax.files import copy_tree, damage, new_file, require_directory, temporary_directory
from wechsel_jax.files.json import read_json
from wechsel_jax.records import encode_line, read_metrics
from wechsel_jax.records.names import CHECKPOINTS, CONFIG_FILE, FINGERPRINTS_FILE, MACHINE_FILE, MANIFEST, METRICS_FILE
from wechsel_jax.training.checkpoints import note, read_facts
from wechsel_jax.training.config import as_dict
from wechsel_jax.training.groups import read_groups
from wechsel_jax.training.metrics import best_evaluation, metrics_facts, require_lines
from wechsel_jax.training.schedules import make_phases, phase_at, soft_share
from wechsel_jax.training.workdir import differences, record_config

# What may differ between a run and the one that it is forked from, as far as the steps before the checkpoint are the same.
_LENGTH = ("steps", "phases", "fork", "patience", "soft_targets.steps")


def fork(config: ConfigDict, workdir: Path, say: Callable[[str], None] = print) -> None:
    """Copies the checkpoint that `config.fork` names, so that the run in `workdir` goes on from it.

    It ends with the same metrics and the same weights, bit for bit on the same devices, as a run of these settings from step 0.
    A workdir that has a checkpoint is left as it is.

    Args:
      config: settings of the new run; `fork` is a directory "RUN/checkpoints/STEP".
      workdir: of the new run.
      say: shows one line to the user.

    Raises:
      UserError: there is no such checkpoint, it is damaged, or the settings would not have led to it.
    """
    if any(path.name.isdecimal() for path in (workdir / CHECKPOINTS).glob("*")):
        return
    place = require_directory(config.fork, "a checkpoint of a run, such as runs/de/checkpoints/600")
    facts, what = read_facts(place), damage(place, MANIFEST)
    if facts["step"] is None or what is not None:
        raise UserError(f"fork: {place}: {what or 'is no checkpoint'}; expected a whole one, such as runs/de/checkpoints/600")
    earlier = place.resolve().parents[1]
    recorded, step = read_json(earlier / CONFIG_FILE, "the settings of the run", "fork another one"), facts["step"]
    now = as_dict(config)
    for name, old, new in differences(recorded, now):
        if name.split("[")[0] not in _LENGTH:
            raise UserError(f"fork: {name} was {old!r} in {earlier}, now {new!r}; expected only {', '.join(_LENGTH)} to differ")
    if step >= config.steps:
        raise UserError(
            f"fork: {place} has {step} steps and this run {config.steps}; expected more; take an earlier checkpoint"
        )
    courses = zip(_course(recorded, step), _course(now, step), strict=True)
    other = next((i for i, (old, new) in enumerate(courses) if old != new), None)
    if other is not None:
        raise UserError(
            f"fork: {place}: update {other} had other learning rates, soft targets or parameters than with these settings; "
            f"expected phases alike until step {step}: warmup_steps, not warmup, a decay_fraction that begins later, and where "
            "there are soft targets their steps; take an earlier checkpoint, or more steps"
        )
    metrics, lines = earlier / METRICS_FILE, []
    require_lines(metrics, facts)
    if metrics.exists() and "metrics" in facts:
        held = read_metrics(metrics)[: facts["metrics"]["lines"]]
        # What the other run wrote because it ended there, this one does not write.
        every = {"eval": config.eval_every, "train": config.log_every}
        lines = [
            line
            for line in held
            if line["kind"] not in ("stop", "end")
            and (line["step"] % every.get(line["kind"], 1) == 0 or (line["kind"], line["step"]) == ("train", 1))
        ]
    best = _best_until(lines, config, place)
    if lines:
        with new_file(workdir / metrics.name, "w") as handle:
            handle.writelines(map(encode_line, lines))
    # The text must be the same, whoever makes it into tokens; how long the steps took is told of both runs.
    for name in (MACHINE_FILE, FINGERPRINTS_FILE):
        if (earlier / name).exists():
            (workdir / name).parent.mkdir(exist_ok=True)
            shutil.copyfile(earlier / name, workdir / name)
    record_config(config, workdir)
    checkpoints = workdir / CHECKPOINTS
    checkpoints.mkdir(exist_ok=True)
    # The last one at once: what a kill leaves is forked again.
    for source in (earlier / CHECKPOINTS / str(best), place) if best not in (None, step) else (place,):
        target = checkpoints / source.name
        if source != place and (target.exists() or damage(source, MANIFEST) is not None):
            if not target.exists():
                say(f"{source}: its evaluation is the best so far, and it is not whole; later weights are exported")
            continue
        with temporary_directory(target) as copy:
            copy_tree(source, copy)
            if lines and source == place:
                note(copy, metrics_facts(lines))
            os.rename(copy, target)
    say(f"begins as {earlier} did until step {step:,}")


def _best_until(lines: Sequence[Mapping[str, Any]], config: ConfigDict, place: Path) -> int | None:
    """The step of the best evaluation in the lines, where its weights may be exported.

    Raises:
      UserError: this run would have stopped before the last of the lines.
    """
    if not config.patience:
        return None
    best = None
    for line in (line for line in lines if line["kind"] == "eval"):
        best = best_evaluation([line] if best is None else [best, line])
        if best is not None and line["step"] - best["step"] >= config.patience:
            raise UserError(
                f"fork: {place}: with patience {config.patience} this run stops at step {line['step']}, the best evaluation "
                f"being that of step {best['step']}; expected an earlier checkpoint, more patience, or 0"
            )
    return best["step"] if best is not None and config.keep_best else None


def _course(config: Mapping[str, Any], step: int) -> list[tuple]:
    """What decides about each update before `step`, and of the next one what trains."""
    optimizer = config["optimizer"]
    phases = make_phases(config["phases"], config["steps"], optimizer["peak_learning_rate"])
    groups, course = read_groups(optimizer.get("groups", ())), []
    # Earlier versions had none.
    soft = config.get("soft_targets", {"share": 0.0, "steps": 0})
    for i in range(step + 1):
        phase = phases[phase_at(phases, i)]
        rates = [group.schedule(phase).learning_rate(i - phase.start) for group in groups] if i < step else []
        share = soft_share(soft, config["steps"], i) if i < step else 0.0
        course.append((share, phase.name, phase.start, phase.trainable, phase.layers, phase.keep_optimizer, rates))
    return course
