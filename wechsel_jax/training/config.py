"""The settings of a training run: defaults, checks, and the record that a workdir keeps of them."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ml_collections import ConfigDict, FieldReference, config_dict

from wechsel_jax.errors import UserError
from wechsel_jax.files import new_file
from wechsel_jax.files.json import read_json
from wechsel_jax.text.files import LONGEST_DOCUMENT
from wechsel_jax.training.profiling import profiled_steps
from wechsel_jax.training.schedules import Phase, make_phases, one_phase

# These decide where and how fast a run goes, not what it computes, so a run may go on with other values.
FREE_FIELDS = (
    *("mesh", "distributed", "compilation_cache", "keep", "keep_every", "checkpoint_every"),
    *("prefetch", "profile_steps", "statistics", "trackers", "max_document_bytes"),
)
# A whole number that int32 does not hold is a mistake, unless it is one of bytes.
_MOST, _MOST_BYTES = 2**31 - 1, 2**63 - 1
# Far above what anyone trains with, and far below where products of them overflow.
_MOST_ROWS, _MOST_BATCHES, _MOST_SECONDS = 2**24, 1000, 10**6
_LARGEST_FLOAT32 = 3.4e38
DTYPES = ("float32", "bfloat16")
REMATS = ("none", "dots", "full")
# Differing settings that a message names.
_MOST_NAMED = 20
EXPORT_DTYPES = ("float32", "float16", "bfloat16")


def default_config() -> ConfigDict:
    """Returns every field of a training run with its default.

    What must be set: `steps`, `data.train`, `data.validation`, and `model.checkpoint` (a directory to start from) or
    `model.config` (fields of a Hugging Face `config.json`, with model_type) and `model.tokenizer`.
    """
    config = ConfigDict()
    config.seed = 0
    config.objective = "clm"
    config.steps = 1000
    config.batch_size = 16
    config.accumulation = 1
    config.block_length = 128
    config.dtype = "float32"
    config.loss_chunk = 0
    config.mask_rate = 0.15
    config.model = ConfigDict({"checkpoint": "", "config": ConfigDict(), "tokenizer": "", "embeddings": ""})
    config.model.dropout = config_dict.placeholder(float)
    config.model.remat = "none"
    config.model.scan_layers = True
    config.model.pad_vocabulary = 1
    config.data = ConfigDict({"train": (), "validation": (), "documents": "lines", "text_field": "text"})
    config.data.update({"validation_fraction": 0.0, "max_bytes": 0, "deduplicate": False})
    config.data.max_document_bytes = LONGEST_DOCUMENT
    config.optimizer = ConfigDict(
        {"peak_learning_rate": 1e-4, "b1": 0.9, "b2": 0.98, "eps": 1e-6, "weight_decay": 0.01, "clip_norm": 1.0}
    )
    config.phases = one_phase(warmup=0.1)
    config.mesh = ConfigDict({"data": -1, "fsdp": 1, "tensor": 1})
    config.log_every = 10
    config.eval_every = 100
    config.eval_batches = config_dict.placeholder(int)
    config.checkpoint_every = 100
    config.keep = 2
    config.keep_every = 0
    config.keep_best = True
    config.patience = 0
    config.skip_nonfinite = 0
    config.prefetch = 2
    config.statistics = False
    config.profile_steps = ""
    config.trackers = ConfigDict({"tensorboard": False, "wandb": ""})
    config.export_dtype = "float32"
    config.compilation_cache = ""
    config.distributed = ConfigDict({"coordinator": "", "processes": 0, "process": -1, "timeout": 300})
    return config


def validate(config: ConfigDict) -> None:
    """Checks what can be checked without opening a file.

    Raises:
      UserError: a field is unknown, missing, of the wrong type or impossible; the message names it.
    """
    _check_fields(as_dict(config), as_dict(default_config()), "")
    for name in ("steps", "accumulation", "log_every", "eval_every", "checkpoint_every", "keep"):
        _check(name, config[name], config[name] >= 1, "at least 1")
    for name in ("keep_every", "patience", "skip_nonfinite"):
        _check(name, config[name], config[name] >= 0, "0 (off) or more")
    for name, least, most in (("batch_size", 1, _MOST_ROWS), ("prefetch", 0, _MOST_BATCHES)):
        _check(name, config[name], least <= config[name] <= most, f"a number from {least} to {most}")
    _check("loss_chunk", config.loss_chunk, config.loss_chunk >= 0, "a number of positions, or 0 to have it chosen")
    _check("mask_rate", config.mask_rate, 0 < config.mask_rate <= 1, "a share above 0 and at most 1")
    _check("block_length", config.block_length, config.block_length >= 2, "at least 2 tokens")
    _check("seed", config.seed, config.seed >= 0, f"a number from 0 to {_MOST}")
    _check("dtype", config.dtype, config.dtype in DTYPES, " or ".join(DTYPES))
    _check("export_dtype", config.export_dtype, config.export_dtype in EXPORT_DTYPES, " or ".join(EXPORT_DTYPES))
    if config.batch_size % config.accumulation:
        raise UserError(
            f"accumulation: {config.accumulation} does not divide batch_size={config.batch_size}; expected a divisor"
        )
    if config.eval_batches is not None:
        _check("eval_batches", config.eval_batches, config.eval_batches >= 1, "at least 1, or None for all")
    if config.model.dropout is not None:
        _check("model.dropout", config.model.dropout, 0 <= config.model.dropout < 1, "a rate from 0 to less than 1")
    _check("model.remat", config.model.remat, config.model.remat in REMATS, ", ".join(REMATS))
    multiple, timeout = config.model.pad_vocabulary, config.distributed.timeout
    _check("model.pad_vocabulary", multiple, 1 <= multiple <= _MOST_ROWS, f"a number from 1 (no padding) to {_MOST_ROWS}")
    _check("distributed.timeout", timeout, 1 <= timeout <= _MOST_SECONDS, f"1 to {_MOST_SECONDS} seconds")
    profiled_steps(config.profile_steps)
    _check_optimizer(config.optimizer)
    _check_sources(config)
    phases(config)


def phases(config: ConfigDict) -> list[Phase]:
    """Returns the run's phases; see `make_phases`."""
    return make_phases([as_dict(phase) for phase in config.phases], config.steps, config.optimizer.peak_learning_rate)


def as_dict(value: Any) -> Any:
    """Turns a config into what JSON can hold: dictionaries, lists, texts, numbers and None."""
    if isinstance(value, FieldReference):
        return as_dict(value.get())
    if isinstance(value, ConfigDict):
        value = {name: value[name] for name in value}
    if isinstance(value, Mapping):
        return {str(name): as_dict(value[name]) for name in sorted(value)}
    if isinstance(value, (list, tuple)):
        return [as_dict(item) for item in value]
    return str(value) if isinstance(value, Path) else value


def record_config(config: ConfigDict, workdir: str | Path) -> None:
    """Writes `workdir/config.json`, or checks that the one there records the same settings.

    Fields that change nothing about the result (`FREE_FIELDS`) may differ; the new values are recorded then.

    Raises:
      UserError: the recorded settings differ; the message names them.
    """
    check_config(config, workdir)
    with new_file(Path(workdir) / "config.json", "w") as handle:
        json.dump(as_dict(config), handle, indent=1, sort_keys=True)
        handle.write("\n")


def check_config(config: ConfigDict, workdir: str | Path) -> None:
    """Raises `UserError` where `workdir/config.json` records other settings; the message names them."""
    file = Path(workdir) / "config.json"
    new = json.loads(json.dumps(as_dict(config)))
    if file.exists():
        recorded = read_json(file, "the settings of an earlier run", "use another workdir")
        differing = differences(recorded, new)
        if differing:
            fields = "; ".join(f"{name} was {_shown(old)}, now {_shown(now)}" for name, old, now in differing[:_MOST_NAMED])
            if len(differing) > _MOST_NAMED:
                fields += f"; and {len(differing) - _MOST_NAMED} more"
            raise UserError(f"{file}: the run there has other settings: {fields}; expected the same; use another workdir")


def differences(old: Any, new: Any) -> list[tuple[str, Any, Any]]:
    """Returns (name, old value, new value) of every setting that differs and changes the result."""
    # Some free ones are fields of a group, and a comparison holds all settings of its trainings in groups.
    return [line for line in _differences(old, new, "") if not {*FREE_FIELDS} & {*line[0].split(".")}]


def _differences(old: Any, new: Any, name: str) -> list[tuple[str, Any, Any]]:
    if isinstance(old, dict) and isinstance(new, dict):
        below = [_differences(old.get(key), new.get(key), f"{name}.{key}" if name else key) for key in sorted({*old, *new})]
        return [line for lines in below for line in lines]
    if isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        return [line for i in range(len(old)) for line in _differences(old[i], new[i], f"{name}[{i}]")]
    return [] if old == new else [(name, old, new)]


def _shown(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 80 else text[:77] + "..."


def _check_fields(values: Mapping[str, Any], defaults: Mapping[str, Any], prefix: str) -> None:
    for name in sorted({*values, *defaults}):
        where = prefix + name
        if name not in defaults:
            raise UserError(
                f"{where}: no such setting; expected one of {', '.join(prefix + known for known in sorted(defaults))}"
            )
        if name not in values:
            raise UserError(f"{where}: is missing; start from wechsel_jax.training.default_config()")
        value, default = values[name], defaults[name]
        if where == "model.config":
            if not isinstance(value, Mapping):
                raise UserError(f"{where}: is {value!r}; expected fields of a Hugging Face config.json")
        elif isinstance(default, Mapping):
            if not isinstance(value, Mapping):
                raise UserError(f"{where}: is {value!r}; expected the settings {', '.join(sorted(default))}")
            _check_fields(value, default, where + ".")
        else:
            _check_type(where, value, default)


def _check_type(name: str, value: Any, default: Any) -> None:
    if name in ("model.dropout", "eval_batches"):
        if value is None:
            return
        default = 0.0 if name == "model.dropout" else 0
    if isinstance(default, bool):
        right, expected = isinstance(value, bool), "True or False"
    elif isinstance(default, list):
        right, expected = isinstance(value, list), "a tuple"
    elif isinstance(default, str):
        right, expected = isinstance(value, str), "a text"
    elif isinstance(default, float):
        # On the devices it is a float32.
        right = isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) <= _LARGEST_FLOAT32
        expected = "a finite number"
    else:
        most = _MOST_BYTES if name == "data.max_bytes" else _MOST
        right = isinstance(value, int) and not isinstance(value, bool) and abs(value) <= most
        expected = f"a whole number of at most {most}"
    _check(name, value, right, expected)


def _check(name: str, value: Any, right: bool, expected: str) -> None:
    if not right:
        # Python refuses to write a number of thousands of digits.
        huge = isinstance(value, int) and abs(value) > _MOST_BYTES
        raise UserError(f"{name}: is {'more than 2**63' if huge else repr(value)}; expected {expected}")


def _check_optimizer(optimizer: ConfigDict) -> None:
    for name in ("b1", "b2"):
        _check(f"optimizer.{name}", optimizer[name], 0 <= optimizer[name] < 1, "a number from 0 to less than 1")
    for name in ("peak_learning_rate", "eps", "clip_norm"):
        _check(f"optimizer.{name}", optimizer[name], optimizer[name] > 0, "more than 0")
    _check("optimizer.weight_decay", optimizer.weight_decay, optimizer.weight_decay >= 0, "0 or more")


def _check_sources(config: ConfigDict) -> None:
    new_model = len(config.model.config) > 0
    if bool(config.model.checkpoint) == new_model:
        found = "both" if new_model else "neither"
        raise UserError(
            f"model: {found} of checkpoint and config are set; expected a directory to start from, or a new model's config"
        )
    if new_model and "model_type" not in config.model.config:
        raise UserError("model.config: has no model_type; expected e.g. gpt2 or roberta")
    if config.model.embeddings and not new_model:
        raise UserError("model.embeddings: is for a new model; expected model.config; `transfer` changes a checkpoint's table")
    if new_model and not config.model.tokenizer:
        raise UserError(
            "model.tokenizer: is empty; a new model needs a tokenizer's directory; `wechsel-jax tokenizer` makes one"
        )
    _check_data(config.data)
    for name in ("data", "fsdp", "tensor"):
        size = config.mesh[name]
        _check(f"mesh.{name}", size, size >= 1 or size == -1, "at least 1, or -1 for all remaining devices")
    if list(as_dict(config.mesh).values()).count(-1) > 1:
        raise UserError("mesh: more than one axis is -1; expected at most one to take the remaining devices")


def _check_data(data: ConfigDict) -> None:
    fraction = data.validation_fraction
    _check("data.validation_fraction", fraction, 0 <= fraction < 1, "a share from 0 to less than 1")
    _check("data.max_bytes", data.max_bytes, data.max_bytes >= 0, "0 (everything) or more bytes")
    longest = data.max_document_bytes
    _check("data.max_document_bytes", longest, 1 <= longest < 2**31, "1 to 2147483647 bytes")
    if data.validation and fraction:
        raise UserError("data.validation_fraction: data.validation names files already; expected one of the two")
    for side in ("train", "validation"):
        paths = data[side]
        if side == "validation" and not paths and fraction:
            continue
        if not paths or not all(isinstance(path, (str, Path)) and str(path) for path in paths):
            raise UserError(f"data.{side}: is {as_dict(paths)!r}; expected a tuple of text files or prepared directories")
