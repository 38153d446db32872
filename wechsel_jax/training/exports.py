"""Any checkpoint of a run as a directory that transformers loads, with its model card."""

import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
from ml_collections import ConfigDict

from wechsel_jax.checkpoint import Checkpoint
from wechsel_jax.errors import UserError
from wechsel_jax.files import new_directory, refuse_directory, require_directory, require_file
from wechsel_jax.files.json import read_json, write_json
from wechsel_jax.hub import model_card, read_facts
from wechsel_jax.models import family
from wechsel_jax.models.weights import flatten, unflatten
from wechsel_jax.tokens import Vocabulary, load_tokenizer
from wechsel_jax.training.checkpoints import Checkpoints
from wechsel_jax.training.config import EXPORT_DTYPES, as_dict, default_config
from wechsel_jax.training.ingredients import Ingredients, configured, export, new_config
from wechsel_jax.training.metrics import checked_metrics, losses

STARTED_FROM = "model"
_RECORD = "transfer.json"
_NEWEST, _BEST = "newest", "best"


def record_model(ingredients: Ingredients, config: ConfigDict, workdir: str | Path) -> None:
    """Keeps in `workdir/model` what an export needs besides the weights, so that the workdir is enough for it.

    That is config.json, generation_config.json, the tokenizer's files, and transfer.json where the run began from a transfer.
    What is there already stays.
    """
    place = Path(workdir) / STARTED_FROM
    if place.exists():
        return
    with new_directory(place, "training") as directory:
        write_json(directory / "config.json", ingredients.hf_config)
        if ingredients.generation_config is not None:
            write_json(directory / "generation_config.json", ingredients.generation_config)
        ingredients.tokenizer.save_pretrained(directory)
        record = Path(config.model.checkpoint or ".") / _RECORD
        if config.model.checkpoint and record.is_file():
            shutil.copyfile(record, directory / _RECORD)


def export_checkpoint(
    workdir: str | Path,
    output: str | Path,
    step: str | int = _NEWEST,
    *,
    dtype: str | None = None,
    license: str | None = None,
    language: Sequence[str] = (),
    overwrite: bool = False,
    say: Callable[[str], None] = print,
) -> int:
    """Writes a checkpoint of a run as a model directory with a card.

    The parameters are read to the host, whatever devices the run was on; its text need not be there, and it may be going on.

    Args:
      workdir: of the run.
      output: the directory to write.
      step: of a checkpoint, or "newest", or "best" (the lowest validation loss).
      dtype: of the tensors; by default the run's export_dtype.
      license: for the card, as the hub spells it.
      language: for the card, codes such as "de".
      overwrite: replace an existing `output`.
      say: shows one line to the user.

    Returns:
      The step.

    Raises:
      UserError: it is no run, there is no such checkpoint or it is damaged, or a setting is wrong.
    """
    workdir = require_directory(workdir, "the workdir of a training run")
    refuse_directory(output, "export", overwrite, [workdir])
    if dtype not in (None, *EXPORT_DTYPES):
        raise UserError(f"dtype: is {dtype!r}; expected {', '.join(EXPORT_DTYPES)}")
    config = _settings(workdir)
    number = _choose(workdir, step, say)
    ingredients = _model(workdir, config)
    facts = read_facts(workdir, number)
    record = facts.transfer if facts else None
    params = _parameters(workdir, number, ingredients)
    with new_directory(output, "export", overwrite) as directory:
        export(ingredients, params, dtype or config.export_dtype, directory)
        if record:
            write_json(directory / _RECORD, record)
        model = read_json(directory / "config.json", "a config.json")
        card = model_card(record, facts=facts, model=model, license=license, language=language)
        (directory / "README.md").write_text(card, encoding="utf-8")
    return number


def _settings(workdir: Path) -> ConfigDict:
    """The run's settings; fields that it was made without have their defaults."""
    file = require_file(workdir / "config.json", "the settings of a training run")
    recorded = read_json(file, "the settings of a training run")
    if "steps" not in recorded or "model" not in recorded:
        raise UserError(f"{file}: holds no settings of a training run; expected the workdir of one")
    return ConfigDict(_filled(as_dict(default_config()), recorded))


def _filled(defaults: Mapping[str, Any], values: Mapping[str, Any]) -> dict[str, Any]:
    both = {**defaults, **values}
    deeper = {name for name, value in defaults.items() if isinstance(value, Mapping) and isinstance(values.get(name), Mapping)}
    return {name: _filled(defaults[name], value) if name in deeper else value for name, value in both.items()}


def _choose(workdir: Path, step: str | int, say: Callable[[str], None]) -> int:
    """The step of a whole checkpoint."""
    place = require_directory(workdir / "checkpoints", "the checkpoints of a training run")
    checkpoints = Checkpoints(place, keep=1, say=say, read_only=True)
    steps = checkpoints.steps()
    if not steps:
        raise UserError(f"{place}: holds no checkpoint yet; expected one; wait for the first, or train the model")
    there = ", ".join(map(str, steps))
    if step == _NEWEST:
        whole = next((number for number in reversed(steps) if checkpoints.whole(number)), None)
        if whole is None:
            raise UserError(f"{place}: every checkpoint is damaged; expected a whole one; put one back from a copy")
        return whole
    if step == _BEST:
        found = losses(checked_metrics(workdir / "metrics.jsonl"))
        number = min(found, key=lambda number: (found[number], number), default=None)
        if number is None:
            raise UserError(f"{workdir}: nothing has been evaluated yet; expected an evaluation; use --step=newest")
        what = f"the best evaluation is that of step {number}"
    else:
        if not str(step).isdecimal():
            raise UserError(f"step: is {step!r}; expected a number, {_BEST} or {_NEWEST}; there are {there}")
        number, what = int(step), f"step {step} was asked for"
    if number not in steps:
        raise UserError(f"{place}: {what}, whose checkpoint is not there; expected one of {there}; choose one with --step")
    if not checkpoints.whole(number):
        raise UserError(f"{place / str(number)}: is damaged; expected a whole checkpoint; choose another with --step")
    return number


def _model(workdir: Path, config: ConfigDict) -> Ingredients:
    """The parts of the run that an export needs."""
    kept = workdir / STARTED_FROM
    generation = None
    if (kept / "config.json").is_file():
        tokenizer, hf_config = load_tokenizer(kept), read_json(kept / "config.json", "a model's config.json")
        if (kept / "generation_config.json").is_file():
            generation = read_json(kept / "generation_config.json", "a generation_config.json")
    else:
        checkpoint = Checkpoint.open(config.model.checkpoint) if config.model.checkpoint else None
        tokenizer = load_tokenizer(config.model.tokenizer or str(checkpoint.directory))
        size = len(Vocabulary.from_tokenizer(tokenizer))
        hf_config = dict(checkpoint.config) if checkpoint else new_config(config, tokenizer, size)
        generation = checkpoint.generation_config if checkpoint else None
    model_family = family(hf_config["model_type"])
    hf_config.setdefault("architectures", [model_family.architecture])
    model = configured(model_family, hf_config, config)
    multiple = config.model.pad_vocabulary
    return Ingredients(model_family, model, hf_config, generation, tokenizer, None, None, None, None, multiple)


def _parameters(workdir: Path, step: int, ingredients: Ingredients) -> dict[str, Any]:
    """Reads the parameters alone, as numpy arrays."""
    import orbax.checkpoint as ocp

    place = workdir.resolve() / "checkpoints" / str(step)
    shapes = ingredients.family.shapes(ingredients.device_model)
    wanted = {"params": unflatten({path: jax.ShapeDtypeStruct(shape, np.float32) for path, shape in shapes.items()})}
    how = jax.tree.map(lambda _: ocp.RestoreArgs(restore_type=np.ndarray), wanted)
    reader = ocp.PyTreeCheckpointer()
    try:
        arguments = ocp.args.PyTreeRestore(item=wanted, restore_args=how, partial_restore=True)
        found = reader.restore(place / "state", args=arguments)["params"]
    except (ValueError, KeyError, TypeError, OSError) as error:
        reason = " ".join(str(error).split())[:200]
        raise UserError(
            f"{place}: cannot be read ({reason}); expected a checkpoint of this model; a run that is going on may have "
            "removed it meanwhile: choose another with --step"
        ) from error
    finally:
        reader.close()
    for path, value in flatten(found).items():
        if not isinstance(value, np.ndarray) or value.shape != shapes[path]:
            what = f"has shape {value.shape}" if isinstance(value, np.ndarray) else "is missing"
            raise UserError(
                f"{place}: parameter {path} {what}; expected shape {shapes[path]}; the settings or the software are not those "
                "that the run was made with"
            )
    return found
