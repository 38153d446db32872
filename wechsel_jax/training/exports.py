"""Any checkpoint of a run as a directory that transformers loads, with its model card."""

import math
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import ml_dtypes
import numpy as np
from ml_collections import ConfigDict

from wechsel_jax.checkpoint import write_checkpoint
from wechsel_jax.errors import UserError, from_extra, one_line
from wechsel_jax.evaluation.loaded import TARGET_TOKENIZER
from wechsel_jax.files import new_directory, refuse_directory, require_directory, require_file
from wechsel_jax.files.json import read_json, write_json
from wechsel_jax.models.weights import flatten, unflatten
from wechsel_jax.records import read_run
from wechsel_jax.records.names import CHECKPOINTS, CONFIG_FILE, METRICS_FILE, RECORD_FILE
from wechsel_jax.report.card import model_card
from wechsel_jax.tokens import load_tokenizer
from wechsel_jax.tokens.files import write_tokenizer
from wechsel_jax.training.checkpoints import STATE, Checkpoints
from wechsel_jax.training.config import EXPORT_DTYPES, as_dict, default_config
from wechsel_jax.training.metrics import best_evaluation, checked_metrics
from wechsel_jax.training.run_spec import ModelSpec, described_model, named_model, strip

STARTED_FROM = "model"
_NEWEST, _BEST = "newest", "best"


def write_model(model: ModelSpec, params: dict[str, Any], dtype: str, directory: Path) -> None:
    """Writes a model that transformers loads into a directory.

    Args:
      model: of the run.
      params: nested numpy arrays, as they were on the devices.
      dtype: of the tensors, "float32", "float16" or "bfloat16".
      directory: an empty one, of `files.new_directory`.

    Raises:
      UserError: a value is too large for the dtype, or no number.
    """
    tensors = model.family.to_hugging_face(strip(params, model.family, model.config), model.config)
    limit = float(ml_dtypes.finfo(dtype).max)
    for name, tensor in tensors.items():
        largest = float(np.max(np.abs(tensor), initial=0.0))
        if not math.isfinite(largest):
            raise UserError(f"{name}: holds NaN or infinity: the training diverged; expected numbers; export an earlier --step")
        if largest > limit:
            raise UserError(
                f"export_dtype: {dtype} cannot hold {name}, whose largest value is {largest:.3g}; expected float32 or bfloat16"
            )
    tensors = {name: np.ascontiguousarray(tensor.astype(dtype)) for name, tensor in tensors.items()}
    hf_config = {name: value for name, value in model.hf_config.items() if name != "torch_dtype"} | {"dtype": dtype}
    write_checkpoint(directory, hf_config, tensors, model.tokenizer, model.generation_config)
    if model.target_tokenizer is not None:
        write_tokenizer(model.target_tokenizer, directory / TARGET_TOKENIZER)


def record_model(model: ModelSpec, config: ConfigDict, workdir: str | Path, *, fresh: bool = False) -> None:
    """Keeps in `workdir/model` what an export needs besides the weights, so that the workdir is enough for it.

    That is config.json, generation_config.json, the tokenizer's files, and transfer.json where the run began from a transfer.
    What is there already stays, unless nothing has been trained yet (`fresh`): another checkpoint may have taken its place.
    """
    place = Path(workdir) / STARTED_FROM
    if place.exists() and not fresh:
        return
    with new_directory(place, "training", overwrite=fresh) as directory:
        write_json(directory / "config.json", model.hf_config)
        if model.generation_config is not None:
            write_json(directory / "generation_config.json", model.generation_config)
        write_tokenizer(model.tokenizer, directory)
        if model.target_tokenizer is not None:
            write_tokenizer(model.target_tokenizer, directory / TARGET_TOKENIZER)
        record = Path(config.model.checkpoint or ".") / RECORD_FILE
        if config.model.checkpoint and record.is_file():
            shutil.copyfile(record, directory / RECORD_FILE)


def export_checkpoint(
    workdir: str | Path,
    output: str | Path,
    step: str | int = _NEWEST,
    *,
    average: int = 1,
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
      average: write the mean of the weights of so many checkpoints, that of `step` and those before it (Izmailov et al., 2018).
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
    steps = [one for one in Checkpoints(workdir / CHECKPOINTS, keep=1, read_only=True).steps() if one <= number][-average:]
    if not 1 <= average == len(steps):
        raise UserError(
            f"average: is {average}, and {workdir / CHECKPOINTS} has {len(steps)} up to step {number}; expected as "
            "many at most; keep and keep_every of the run's settings keep more"
        )
    model = _model(workdir, config)
    run = read_run(workdir) if (workdir / METRICS_FILE).exists() else None
    record = run.transfer if run else None
    params = _parameters(workdir, number, model)
    for count, other in enumerate((_choose(workdir, one, say) for one in steps[:-1]), start=2):
        params = jax.tree.map(lambda mean, x, n=count: mean + (x - mean) / n, params, _parameters(workdir, other, model))
    with new_directory(output, "export", overwrite) as directory:
        write_model(model, params, dtype or config.export_dtype, directory)
        if record:
            shutil.copyfile(record.file, directory / RECORD_FILE)
        written = read_json(directory / "config.json", "a config.json")
        averaged = (*steps[:-1], number) if average > 1 else ()
        card = model_card(record, run, number, averaged=averaged, model=written, license=license, language=language)
        (directory / "README.md").write_text(card, encoding="utf-8")
    return number


def _settings(workdir: Path) -> ConfigDict:
    """The run's settings; fields that it was made without have their defaults."""
    file = require_file(workdir / CONFIG_FILE, "the settings of a training run")
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
    place = require_directory(workdir / CHECKPOINTS, "the checkpoints of a training run")
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
        best = best_evaluation(checked_metrics(workdir / METRICS_FILE))
        if best is None:
            raise UserError(f"{workdir}: nothing has been evaluated yet; expected an evaluation; use --step=newest")
        number = best["step"]
        what = f"the best evaluation is that of step {number}"
    else:
        # Longer numbers Python does not read at all.
        if not str(step).isdecimal() or len(str(step)) > 18:
            raise UserError(f"step: is {str(step)[:40]!r}; expected a number, {_BEST} or {_NEWEST}; there are {there}")
        number, what = int(step), f"step {step} was asked for"
    if number not in steps:
        raise UserError(f"{place}: {what}, whose checkpoint is not there; expected one of {there}; choose one with --step")
    if not checkpoints.whole(number):
        raise UserError(f"{place / str(number)}: is damaged; expected a whole checkpoint; choose another with --step")
    return number


def _model(workdir: Path, config: ConfigDict) -> ModelSpec:
    """The model of a run, as it was recorded; runs of earlier versions only name it."""
    kept = workdir / STARTED_FROM
    if not (kept / "config.json").is_file():
        return named_model(config)
    hf_config, generation = read_json(kept / "config.json", "a model's config.json"), None
    if (kept / "generation_config.json").is_file():
        generation = read_json(kept / "generation_config.json", "a generation_config.json")
    target = load_tokenizer(kept / TARGET_TOKENIZER) if (kept / TARGET_TOKENIZER).is_dir() else None
    return described_model(hf_config, generation, load_tokenizer(kept), config, target)


def _parameters(workdir: Path, step: int, model: ModelSpec) -> dict[str, Any]:
    """Reads the parameters alone, as numpy arrays."""
    with from_extra("train", "to keep checkpoints"):
        import orbax.checkpoint as ocp

    place = workdir.resolve() / CHECKPOINTS / str(step)
    shapes = model.family.shapes(model.device_config)
    wanted = {"params": unflatten({path: jax.ShapeDtypeStruct(shape, np.float32) for path, shape in shapes.items()})}
    how = jax.tree.map(lambda _: ocp.RestoreArgs(restore_type=np.ndarray), wanted)
    reader = ocp.PyTreeCheckpointer()
    try:
        arguments = ocp.args.PyTreeRestore(item=wanted, restore_args=how, partial_restore=True)
        found = reader.restore(place / STATE, args=arguments)["params"]
    except (ValueError, KeyError, TypeError, OSError) as error:
        raise UserError(
            f"{place}: cannot be read ({one_line(error)}); expected a checkpoint of this model; a run that is going on may "
            "have removed it meanwhile: choose another with --step"
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
