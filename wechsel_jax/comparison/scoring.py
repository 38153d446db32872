"""What the models of a comparison are scored on: tasks, and tasks that each is fine-tuned for, at every stage."""

import dataclasses
from pathlib import Path

from ml_collections import ConfigDict

from wechsel_jax.errors import UserError
from wechsel_jax.evaluation.tasks import Task, evaluate, tasks_of
from wechsel_jax.records.names import EXPORT, STAGES
from wechsel_jax.report.scores_table import read_scores, scores_text, write_scores
from wechsel_jax.text.sources import find_sources
from wechsel_jax.training import default_config as default_training_config
from wechsel_jax.training import finetune
from wechsel_jax.training.config import as_dict, updated
from wechsel_jax.training.exports import export_checkpoint
from wechsel_jax.training.workdir import follow

# Of a run's workdir: its model before any training.
TRANSFER = "transfer"
# Labels of what is there before any training: the source, and behind the name of a method.
SOURCE, UNTRAINED = "source", " untrained"


def scored_models(config: ConfigDict, workdir: Path) -> dict[str, Path]:
    """Label -> model directory of the source and of every method at every stage.

    Raises:
      UserError: what is fine-tuned from two of them would lie in one folder.
    """
    asked = config.evaluation
    stages = {UNTRAINED: TRANSFER} if asked.before else {}
    stages |= {f" {100 * part:g} %": f"{STAGES}/{round(part * config.training.steps)}" for part in asked.during}
    stages |= {"": EXPORT} if asked.after else {}
    models = [(SOURCE, Path(config.source))]
    models += [(f"{name}{stage}", workdir / name / place) for stage, place in stages.items() for name in config.methods]
    folders = [_folder(label) for label, _ in models]
    for number, (label, _) in enumerate(models):
        if (first := folders.index(folders[number])) < number:
            raise UserError(
                f"methods: the scores of {label!r} and {models[first][0]!r} would not be told apart; expected other names "
                "than source and than another method's at a stage; rename the variant"
            )
    return dict(models)


def _folder(label: str) -> str:
    return label.replace(" ", "_").replace("_%", "")


def score_starts(config: ConfigDict, workdir: Path) -> None:
    """Scores what is there before any training, so that a task that cannot be asked of these models is not found after it."""
    models = scored_models(config, workdir)
    starts = {label: place for label, place in models.items() if label == SOURCE or place.name == TRANSFER}
    evaluate(starts, read_tasks(config), output=workdir / "scores.json", overwrite=True)


def score_models(config: ConfigDict, workdir: Path) -> None:
    """Scores the models; what was scored before, with the same settings, is not scored again."""
    print("== evaluation", flush=True)
    models, scores = scored_models(config, workdir), workdir / "scores.json"
    for place in models.values():
        if place.parent.name == STAGES and not place.exists():
            export_checkpoint(place.parents[1], place, int(place.name))
    if config.evaluation.tasks:
        evaluate(models, read_tasks(config), output=scores, overwrite=True)
    for name, given in config.evaluation.fine_tuning.items():
        places = {label: workdir / "fine_tuning" / name / _folder(label) for label in models}
        settings = {key: value for key, value in as_dict(given).items() if key != "file"}
        # Which files they were, their hashes in the workdirs say.
        for side, files in settings.get("data", {}).items():
            settings["data"][side] = [Path(file).name for file in files] if isinstance(files, list) else files
        for label, place in places.items():
            print(f"== {label}: fine-tuning for {name}", flush=True)
            tuned = fine_tuning_config(config, name, models[label], workdir)
            for run in (place, *sorted(place.glob("seed-*"))):
                follow(tuned, run, "model.checkpoint")
            finetune(tuned, place)
        task = Task.of(name, "labels", given.file, training=settings)
        evaluate(models, [dataclasses.replace(task, fine_tuned=places)], output=scores, overwrite=True)
    table = write_scores([scores], workdir / "scores.md", overwrite=True)
    print(scores_text(read_scores([scores])), f"scores: {table}", sep="\n\n", flush=True)


def fine_tuning_config(config: ConfigDict, name: str, model: Path, workdir: Path) -> ConfigDict:
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
    updated(training, given, f"evaluation.fine_tuning.{name}")
    for field, wrong in (("model.checkpoint", training.model.checkpoint != str(model)), ("fork", training.fork)):
        if wrong:
            raise UserError(
                f"evaluation.fine_tuning.{name}.{field}: is set; expected none: each model that is compared is fine-tuned"
            )
    return training


def read_tasks(config: ConfigDict) -> list[Task]:
    """What the models are scored on.

    Raises:
      UserError: a task has no file, or a setting that its form does not know, or a file is missing.
    """
    return tasks_of(as_dict(config.evaluation.tasks), "evaluation.tasks.")
