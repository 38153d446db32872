"""The settings of a training run: what each means, its default, and what is checked before anything is opened."""

import functools
import inspect
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from ml_collections import ConfigDict, FieldReference, config_dict

from wechsel_jax.data.examples import FORMS
from wechsel_jax.errors import UserError, one_line
from wechsel_jax.evaluation.answers import check_language
from wechsel_jax.evaluation.loaded import DTYPES
from wechsel_jax.text.files import LONGEST_DOCUMENT
from wechsel_jax.training.devices import profiled_steps
from wechsel_jax.training.groups import Group, read_groups
from wechsel_jax.training.schedules import Phase, make_phases, one_phase

# A whole number that int32 does not hold is a mistake, unless it is one of bytes.
_MOST, _MOST_BYTES = 2**31 - 1, 2**63 - 1
# Far above what anyone trains with, and far below where products of them overflow.
_MOST_ROWS, _MOST_BATCHES, _MOST_SECONDS = 2**24, 1000, 10**6
_LONGEST_NGRAM, _MOST_CONTINUATIONS = 8, 1024
_LARGEST_FLOAT32, _LEAST_FLOAT32, _MOST_BELOW_1 = 3.4e38, 1.2e-38, 1 - 2**-24
REMATS = ("none", "dots", "full")
# Settings that may be None, with the type that they have otherwise.
_OPTIONAL = {"model.dropout": 0.0, "eval_batches": 0, "optimizer.clip_norm": 0.0}
EXPORT_DTYPES = ("float32", "float16", "bfloat16")


def default_config() -> ConfigDict:
    """Returns every field of a training run with its default.

    What must be set: `steps`, `data.train`, `data.validation`, and `model.checkpoint` (a directory to start from) or
    `model.config` (fields of a Hugging Face `config.json`, with model_type) and `model.tokenizer`.
    """
    config = ConfigDict()
    # Of everything random: the order of the text, masking, dropout, new parameters.
    config.seed = 0
    # "clm" (predict the next token), "mlm" (predict masked tokens) or "mlm_nsp" (that, and of a pair of segments whether the
    # second follows the first: documents have a sentence a line); with aligned sentences "cdlm" (TreLM's, of the sentence from
    # its translation), "tlm" (masked tokens of both) or "brlm" (those, each from the token that it is linked with); with
    # labelled examples "classification" (of texts or pairs), "tagging" (of words), "answers" (to questions about a text) or
    # "parsing" (dependency trees) or "roles" (semantic ones, of a predicate); "translation" of an encoder-decoder.
    config.objective = "clm"
    # Updates of the whole run.
    config.steps = 1000
    # Checkpoint of a run of another length, RUN/checkpoints/STEP, that this one goes on from; "" for none.
    config.fork = ""
    # With labelled examples: passes through data.train, from which `steps` follows; 0 takes `steps` as it is.
    config.epochs = 0.0
    # `train.finetune` runs with so many seeds, from `seed` on, each in workdir/seed-N; workdir/seeds.json has mean and spread
    # of every score; 0: one run.
    config.seeds = 0
    # Rows in an update, of all devices together; must be divisible by the devices that share it.
    config.batch_size = 16
    # Parts that an update is computed in, one after the other: less memory for the same update, but for what dropout and
    # masking draw.
    config.accumulation = 1
    # Tokens in a row. A longer labelled example is cut, goes on in another row (tagging) or is read in windows (answers).
    config.block_length = 128
    # Of matrix products: "float32" or "bfloat16"; parameters, optimizer, softmax, norms and loss stay float32.
    config.dtype = "float32"
    # clm: positions of a row whose logits exist at the same time; 0: 512 tokens a device on a CPU, elsewhere 2,048.
    config.loss_chunk = 0
    # mlm, mlm_nsp, cdlm, tlm, brlm: share of the tokens that are to be predicted, in rows where some are masked.
    config.mask_rate = 0.15
    # clm: beside each next token, what an n-gram model of the training text expects.
    config.soft_targets = ConfigDict()
    # How much of the target an n-gram model makes up at first; it falls ever faster, as 1 - (step / steps)^2; 0: nothing.
    config.soft_targets.share = 0.0
    # Steps until nothing of it is left, so that in the end text alone is learnt; 0: those of the run.
    config.soft_targets.steps = 0
    # Tokens of the longest n-grams.
    config.soft_targets.order = 3
    # How many tokens the n-gram model expects after a context of each length, the most frequent; the rest counts for the next
    # token.
    config.soft_targets.continuations = 64
    # cdlm: masks and languages as the public code of TreLM has them (docs/trelm.md).
    config.parity = False

    config.model = ConfigDict()
    # Directory of the model to start from; "" for a new model.
    config.model.checkpoint = ""
    # Of a new model: fields of its config.json, with model_type.
    config.model.config = ConfigDict()
    # Directory of the tokenizer; "" takes the checkpoint's.
    config.model.tokenizer = ""
    # Of a new model: file with a token table that `wechsel-jax table --tokenizer=DIR` wrote; "" for none.
    config.model.embeddings = ""
    # translation: directory of the tokenizer of the translations; "" takes the checkpoint's.
    config.model.target_tokenizer = ""
    # translation: as model.embeddings, for the tokens of the decoder.
    config.model.target_embeddings = ""
    # All dropout rates of the model; None keeps those of its config.json.
    config.model.dropout = config_dict.placeholder(float)
    # What the backward pass computes again to save memory: "none", "dots" (all but the weights' matrix products) or "full".
    config.model.remat = "none"
    # One loop over the layers, which compiles fast whatever their number; False unrolls it.
    config.model.scan_layers = True
    # On the devices, rows of the token table are padded to a multiple of this; 1 pads nothing. Exports are without padding.
    config.model.pad_vocabulary = 1

    config.data = ConfigDict()
    # Files, globs, "datasets:DIR", "hf://NAME", or a directory of `wechsel-jax prepare`.
    config.data.train = ()
    # Held-out text, named likewise.
    config.data.validation = ()
    # Of aligned sentences (a directory of `wechsel-jax align`): which rows a pair makes (docs/trelm.md); else "".
    config.data.rows = ""
    # What a document of a text file is: "lines", "paragraphs" or "files".
    config.data.documents = "lines"
    # Field of JSON lines, Parquet and datasets that holds the text; in a comparison of all its text.
    config.data.text_field = "text"
    # Share of the training documents to hold out where data.validation names none.
    config.data.validation_fraction = 0.0
    # Train on a random sample of documents of this many bytes; 0 takes everything.
    config.data.max_bytes = 0
    # Leave out documents that occurred before.
    config.data.deduplicate = False
    # Text with a longer line, row or document is refused.
    config.data.max_document_bytes = LONGEST_DOCUMENT

    # Of labelled examples, which data.train and data.validation name.
    config.task = ConfigDict()
    # Columns or fields with the text; two for pairs and for translation (source, target), and for tagging the field with the
    # words.
    config.task.texts = ("text",)
    # Column or field with the label.
    config.task.label = "label"
    # All columns, of files without a line of names; for roles "word", "predicate" and "roles" among them.
    config.task.columns = ()
    # The labels in their order; () takes the checkpoint's where it has the same ones, else those of data.train, sorted.
    config.task.labels = ()
    # Texts with one of these labels are left out; with "-" the annotators did not agree.
    config.task.skip = ("-",)
    # answers: tokens that neighbouring windows of a long text share.
    config.task.stride = 64
    # answers: whose rules compare them: "" (SQuAD's, for any language) or a language of MLQA's.
    config.task.language = ""
    # Whether the batches of 16 steps, or a quarter of an epoch, share out their texts by length: less padding, so faster steps;
    # else they are random.
    config.task.group_by_length = False
    # translation: evaluations also translate, greedily, and score BLEU, which needs the extra eval.
    config.task.bleu = False
    # What BLEU counts, as sacrebleu calls it: 13a (words), zh, char (characters) and others.
    config.task.tokenize = "13a"

    # AdamW (Loshchilov & Hutter, 2019).
    config.optimizer = ConfigDict()
    # Highest learning rate of phases with peak 1.
    config.optimizer.peak_learning_rate = 1e-4
    # Decay of the mean of the gradients.
    config.optimizer.b1 = 0.9
    # Decay of the mean of their squares.
    config.optimizer.b2 = 0.98
    # Added to the root of that mean.
    config.optimizer.eps = 1e-6
    # Decoupled from the gradient; not on biases and norms.
    config.optimizer.weight_decay = 0.01
    # Largest global norm of the gradient, above which it is scaled down; "none" never does, as in WECHSEL's configurations.
    config.optimizer.clip_norm = config_dict.placeholder(float)
    config.optimizer.clip_norm = 1.0
    # Parameters with another rate, weight decay, warm-up or optimizer (docs/training.md); the first that finds a parameter
    # counts.
    config.optimizer.groups = ()
    # What trains when, and at which learning rate (docs/training.md).
    config.phases = one_phase(warmup=0.1)

    config.mesh = ConfigDict()
    # Devices that the rows of a batch are split over; -1: the rest of all.
    config.mesh.data = -1
    # Devices that rows and parameters are split over; -1: the rest of all.
    config.mesh.fsdp = 1
    # Devices that parameters are split over, each matrix within; -1: the rest of all.
    config.mesh.tensor = 1
    # Steps between two lines of the metrics.
    config.log_every = 10
    # Steps between two evaluations.
    config.eval_every = 100
    # Batches that an evaluation reads; None reads all of data.validation.
    config.eval_batches = config_dict.placeholder(int)
    # Steps between two checkpoints.
    config.checkpoint_every = 100
    # How many of the newest checkpoints stay.
    config.keep = 2
    # A checkpoint is saved at every multiple of this, too, and stays for good; 0: none does.
    config.keep_every = 0
    # Keep the checkpoint with the best validation loss (or score of labels) too; with `patience` it is exported.
    config.keep_best = True
    # End the run after this many steps without a better validation loss (or score of labels); 0 never does.
    config.patience = 0
    # Updates in all that may be left out because their loss or gradient is not finite; the next such one ends the run.
    config.skip_nonfinite = 0
    # Batches that are made ahead while a step runs.
    config.prefetch = 2
    # Write gradient and update norms of each group of parameters into the metrics.
    config.statistics = False
    # "FIRST:LAST" writes a profile of these steps to workdir/profile.
    config.profile_steps = ""
    # Other programs that get every line of the metrics.
    config.trackers = ConfigDict()
    # Write TensorBoard's files to workdir/tensorboard.
    config.trackers.tensorboard = False
    # Name of a W&B project; "" for none.
    config.trackers.wandb = ""
    # Of the exported weights: "float32", "float16" or "bfloat16".
    config.export_dtype = "float32"
    # Directory that keeps compiled programs for the next start, also of runs with other seeds; "" for none.
    config.compilation_cache = ""

    config.distributed = ConfigDict()
    # "auto" (Cloud TPU, Slurm, MPI) or host:port of process 0; "" for a run of one process.
    config.distributed.coordinator = ""
    # How many processes there are; not with "auto".
    config.distributed.processes = 0
    # The number of this one, from 0; not with "auto".
    config.distributed.process = -1
    # Seconds that processes wait for each other at the start.
    config.distributed.timeout = 300
    # Seconds without a sign of life after which a process counts as lost. A thread that computes nothing else gives the signs.
    config.distributed.heartbeat = 30
    return config


def validate(config: ConfigDict, steps_known: bool = True) -> None:
    """Checks what can be checked without opening a file.

    Args:
      config: settings of a run.
      steps_known: whether `steps` is that of the run; with `epochs` only the data says.

    Raises:
      UserError: a field is unknown, missing, of the wrong type or impossible; the message names it.
    """
    _check_fields(as_dict(config), as_dict(default_config()), "")
    for name in ("steps", "accumulation", "log_every", "eval_every", "checkpoint_every", "keep"):
        _check(name, config[name], config[name] >= 1, "at least 1")
    for name in ("keep_every", "patience", "skip_nonfinite", "seeds", "epochs"):
        _check(name, config[name], config[name] >= 0, "0 (off) or more")
    for name, least, most in (("batch_size", 1, _MOST_ROWS), ("prefetch", 0, _MOST_BATCHES)):
        _check(name, config[name], least <= config[name] <= most, f"a number from {least} to {most}")
    _check("loss_chunk", config.loss_chunk, config.loss_chunk >= 0, "a number of positions, or 0 to have it chosen")
    _check("mask_rate", config.mask_rate, 0 < config.mask_rate <= 1, "a share above 0 and at most 1")
    if config.objective in _READ_BY["mask_rate"]:
        least, enough = 0.5 / config.block_length, round(config.mask_rate * config.block_length) >= 1
        expected = f"more than {least:.2g}, so that a row of block_length={config.block_length} has a mask"
        _check("mask_rate", config.mask_rate, enough, expected)
    _check_soft_targets(config)
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
    multiple = config.model.pad_vocabulary
    _check("model.pad_vocabulary", multiple, 1 <= multiple <= _MOST_ROWS, f"a number from 1 (no padding) to {_MOST_ROWS}")
    for name in ("timeout", "heartbeat"):
        seconds = config.distributed[name]
        _check(f"distributed.{name}", seconds, 1 <= seconds <= _MOST_SECONDS, f"1 to {_MOST_SECONDS} seconds")
    profiled = profiled_steps(config.profile_steps)
    if profiled and steps_known and profiled[0] >= config.steps:
        raise UserError(
            f"profile_steps: is {config.profile_steps!r}, and the run ends after {config.steps} steps; expected some of these"
        )
    _check_unread(config)
    _check_task(config)
    optimizer = config.optimizer
    # As float32 has it on the devices, where 1 - 1e-9 is 1 and divides by zero, and 1e-50 is 0.
    for name in ("b1", "b2"):
        _check(f"optimizer.{name}", optimizer[name], 0 <= optimizer[name] <= _MOST_BELOW_1, "a number from 0 to 1 - 6e-8")
    for name in ("peak_learning_rate", "eps"):
        _check(f"optimizer.{name}", optimizer[name], optimizer[name] >= _LEAST_FLOAT32, f"{_LEAST_FLOAT32:g} or more")
    _check("optimizer.weight_decay", optimizer.weight_decay, optimizer.weight_decay >= 0, "0 or more")
    if optimizer.clip_norm is not None:
        _check("optimizer.clip_norm", optimizer.clip_norm, optimizer.clip_norm > 0, "more than 0, or None for no clipping")
    for name in ("data", "fsdp", "tensor"):
        size = config.mesh[name]
        _check(f"mesh.{name}", size, size >= 1 or size == -1, "at least 1, or -1 for all remaining devices")
    if list(as_dict(config.mesh).values()).count(-1) > 1:
        raise UserError("mesh: more than one axis is -1; expected at most one to take the remaining devices")
    _check_sources(config)
    read = groups(config)
    for phase in phases(config) if steps_known else ():
        for group in read:
            group.schedule(phase)


def phases(config: ConfigDict) -> list[Phase]:
    """Returns the run's phases; see `make_phases`."""
    return make_phases([as_dict(phase) for phase in config.phases], config.steps, config.optimizer.peak_learning_rate)


def groups(config: ConfigDict) -> tuple[Group, ...]:
    """Returns the run's groups of parameters; see `read_groups`."""
    return read_groups([as_dict(group) for group in config.optimizer.groups])


def updated(config: ConfigDict, given: Mapping[str, Any], place: str) -> ConfigDict:
    """Returns `config`, changed to what is given.

    Raises:
      UserError: a field has another type than its default, or there is none of its name; the message begins with `place`.
    """
    try:
        config.update(given)
    except (TypeError, AttributeError, KeyError) as error:
        raise UserError(f"{place}: {one_line(error)}; expected settings of a training with values of their types") from None
    return config


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


def described(defaults: Callable[[], ConfigDict]) -> dict[str, str]:
    """Returns dotted name -> what it is, for every setting or group of them with a comment above its line in `defaults`."""
    found, words = {}, []
    for line in map(str.strip, inspect.getsource(defaults).splitlines()):
        if line.startswith("# "):
            words.append(line[2:])
            continue
        if words and (assigned := re.match(r"config\.([\w.]+) = ", line)):
            found[assigned[1]] = " ".join(words)
        words = []
    return found


def config_arguments(given: str, /, **known: str | int | float | type | tuple[str, ...]) -> dict[str, Any]:
    """Reads the arguments of a file of settings.

    Args:
      given: "name=value" pairs with commas between them, or nothing.
      **known: every argument that the file knows, with what it is where it is not given. A tuple lists all that it may be,
        the default first; what stands for a whole number (0 or more) or for a number is one; `int` or `float` are None where
        they are not given.

    Returns:
      name -> value for all of them, of the type of what stands for it.

    Raises:
      UserError: a part is not name=value, has a name that the file does not know or a value that it does not take.
    """
    chosen: dict[str, Any] = {}
    for part in (part for part in given.split(",") if part):
        name, equals, value = part.partition("=")
        if not equals or name not in known:
            names = ", ".join(f"{name}=" for name in known)
            expected = f"some of {names}" if names else "nothing there"
            raise UserError(
                f"--config: {part!r} behind the colon is not known; expected {expected}; a setting of the run is a "
                "flag of its own, as --config.block_length=128 or --config.training.block_length=128"
            )
        if isinstance(known[name], tuple) and value not in known[name]:
            raise UserError(f"--config: {part!r} behind the colon; expected {name} to be one of {', '.join(known[name])}")
        kind = known[name] if isinstance(known[name], type) else type(known[name])
        if kind is int and not re.fullmatch(r"\d{1,18}", value, re.ASCII):
            raise UserError(f"--config: {part!r} behind the colon; expected {name} to be a whole number, 0 or more")
        if kind is float and not re.fullmatch(r"\d*\.?\d+(e-?\d{1,3})?", value, re.ASCII):
            raise UserError(f"--config: {part!r} behind the colon; expected {name} to be a number such as 0.1 or 3e-3")
        if name in chosen:
            raise UserError(f"--config: {name}= stands twice behind the colon; expected it once")
        chosen[name] = kind(value) if kind in (int, float) else value
    unset = {name: None if isinstance(value, type) else value for name, value in known.items()}
    return {name: value[0] if isinstance(value, tuple) else value for name, value in unset.items()} | chosen


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
    if name in _OPTIONAL:
        if value is None:
            return
        default = _OPTIONAL[name]
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


def _check_soft_targets(config: ConfigDict) -> None:
    soft = config.soft_targets
    _check("soft_targets.share", soft.share, 0 <= soft.share <= 1, "a share from 0 (none) to 1")
    # More would end a run before text alone is learnt.
    most = config.steps if soft.share else _MOST
    _check("soft_targets.steps", soft.steps, 0 <= soft.steps <= most, f"0 (those of the run) or at most its {config.steps}")
    for name, least, most in (("order", 2, _LONGEST_NGRAM), ("continuations", 1, _MOST_CONTINUATIONS)):
        _check(f"soft_targets.{name}", soft[name], least <= soft[name] <= most, f"a number from {least} to {most}")
    if soft.share and config.objective != "clm":
        raise UserError(f"soft_targets.share: is {soft.share:g} with objective={config.objective}; expected 0: they are of clm")


# Settings that not every objective reads.
_READ_BY = {
    "loss_chunk": ("clm", "cdlm", "translation"),
    "mask_rate": ("mlm", "mlm_nsp", "cdlm", "tlm", "brlm"),
    "parity": ("cdlm",),
    "task.stride": ("answers",),
    "task.language": ("answers",),
    "task.skip": ("classification",),
    "task.label": ("classification", "tagging"),
    "task.columns": ("classification", "tagging", "roles", "translation"),
    "task.texts": ("classification", "tagging", "translation"),
    "task.labels": ("classification", "tagging", "parsing", "roles"),
    "task.group_by_length": FORMS,
    "task.bleu": ("translation",),
    "task.tokenize": ("translation",),
}


def _check_unread(config: ConfigDict) -> None:
    """That no setting has been given that the objective does not read."""
    given, defaults = as_dict(config), as_dict(default_config())
    for name, readers in _READ_BY.items():
        *group, field = name.split(".")
        here, default = (functools.reduce(dict.__getitem__, group, every)[field] for every in (given, defaults))
        _check(name, here, config.objective in readers or here == default, f"{default!r}: it is for {', '.join(readers)}")


def _check_task(config: ConfigDict) -> None:
    """That the settings of labelled examples fit what is to be predicted."""
    task, usual = config.task, default_config()
    for name in ("texts", "columns", "labels", "skip"):
        if not all(isinstance(item, str) for item in task[name]) or len({*task[name]}) < len(task[name]):
            raise UserError(f"task.{name}: is {as_dict(task[name])!r}; expected a tuple of texts, each once")
    _check("task.stride", task.stride, task.stride >= 0, "0 or more tokens")
    if config.objective not in FORMS:
        _check("epochs", config.epochs, not config.epochs, "0: passes are counted of labelled examples; set steps")
        return
    least, most = {"classification": (1, 2), "translation": (2, 2)}.get(config.objective, (1, 1))
    right = task.bleu or task.tokenize == usual.task.tokenize
    _check("task.tokenize", task.tokenize, right, f"{usual.task.tokenize!r}: it is how task.bleu counts")
    count = len(task.texts)
    _check("task.texts", as_dict(task.texts), least <= count <= most, f"the names of {least} to {most} columns or fields")
    if config.objective == "answers":
        _check("task.stride", task.stride, task.stride < config.block_length, "less than block_length")
    check_language(task.language)
    for name in ("validation_fraction", "max_bytes", "deduplicate", "rows"):
        _check(f"data.{name}", config.data[name], not config.data[name], "no value: it is for text without labels")
    for name in ("documents", "text_field", "max_document_bytes"):
        given, default = config.data[name], usual.data[name]
        _check(f"data.{name}", given, given == default, f"{default!r}: it is for text without labels; see task.texts")


def _check_sources(config: ConfigDict) -> None:
    """That the settings name one model to begin with, and text on both sides."""
    new_model = len(config.model.config) > 0
    if bool(config.model.checkpoint) == new_model:
        found = "both" if new_model else "neither"
        raise UserError(
            f"model: {found} of checkpoint and config are set; expected a directory to start from, or a new model's config"
        )
    if new_model and "model_type" not in config.model.config:
        raise UserError("model.config: has no model_type; expected e.g. gpt2 or roberta")
    translating = config.objective == "translation"
    for name in ("embeddings", "target_embeddings"):
        if config.model[name] and not new_model:
            raise UserError(f"model.{name}: is for a new model; expected model.config; `transfer` changes a checkpoint's table")
    for name in ("target_tokenizer", "target_embeddings"):
        _check(f"model.{name}", config.model[name], translating or not config.model[name], "no value: it is for translation")
    if translating and new_model and not config.model.target_tokenizer:
        raise UserError("model.target_tokenizer: is empty; expected the directory of a tokenizer of the translations")
    if new_model and not config.model.tokenizer:
        raise UserError(
            "model.tokenizer: is empty; a new model needs a tokenizer's directory; `wechsel-jax tokenizer` makes one"
        )
    data, fraction = config.data, config.data.validation_fraction
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
