"""The fields of a comparison, and what each of its methods gets of them: which inputs, which settings."""

import copy
from pathlib import Path

from ml_collections import ConfigDict, config_dict

from wechsel_jax.initializers import METHODS
from wechsel_jax.initializers.method import Method
from wechsel_jax.training import default_config as default_training_config
from wechsel_jax.training.config import as_dict, updated
from wechsel_jax.transfers.choice import DEFAULT
from wechsel_jax.transfers.settings import INPUTS, TransferSettings, described_settings

# As the target vectors of a variant: those of words in the documents that are trained on, see `training.data.max_bytes`.
SAMPLE = "sample"
# Stands for the method that `transfer` chooses where none is named.
AUTO = "auto"
# Of `training.data`: how every text of a comparison is read, also by its transfers.
TEXT = ("text_field", "max_document_bytes")


def default_config() -> ConfigDict:
    """Returns every field of a comparison.

    `training` and `helper.training` hold the fields of `wechsel_jax.training.default_config`; `text.words` is the target text
    with spaces between words, for word vectors where the language writes none; without `text.validation`,
    `training.data.validation_fraction` of the target text is held out. All text is read as `training.data` says (`text_field`,
    `max_document_bytes`), by transfers where `transfer` says nothing else; its `documents` and `deduplicate` make the documents
    that are trained on. `parallel` is parallel text, the source language first,
    for trans_tokenization. `tokenizer.directory` is a finished tokenizer, which is taken instead of training one. `transfer`
    holds the fields of `transfers.settings.TransferSettings` but for the files and the seed. `variants[name]` makes `name` one
    of the methods that can be compared: {"method": one of `initializers.METHODS`, and settings of its own}. `overrides[name]`
    replaces fields of `training` for one method. A variant's method may be "auto", whichever `transfer` chooses; with
    `probe_steps`, by `transfer_by_probe`, with the optimizer that the run itself has. A variant whose target_vectors are
    "sample" has vectors of the words in the documents that are trained on, of which `training.data.max_bytes` may leave a part.

    `evaluation.tasks` are what the trained models and the untouched source model are scored on: name -> {"form": one of
    `evaluation.tasks.FORMS`, "file", and settings of the form}; with `evaluation.before` the models before training, too, and
    without `evaluation.after` these alone. `evaluation.during` are further stages, as fractions of the training's steps.
    `evaluation.fine_tuning` are tasks that every model of every stage is fine-tuned for: name -> {"file": what is scored, and
    fields of `wechsel_jax.training.default_config`, data and task among them}.

    With `tuning.rates` every method has its own rates: it is trained for `tuning.steps` with each of them, and with the rate of
    its tables (embeddings) each of `tuning.tables` times as high, on the training text without `tuning.held_out` of its
    documents; what these say decides, as far as `tuning.eval_batches` read it. Runs that begin with the same model and have the
    same settings, but for their length, are tuned once.
    """
    config = ConfigDict()
    config.seed = 0
    config.source = ""
    config.text = ConfigDict({"train": (), "validation": (), "source": (), "words": ()})
    config.tokenizer = ConfigDict({"vocabulary_size": 8192, "algorithm": "byte_bpe", "style": "gpt2", "directory": ""})
    config.vectors = ConfigDict({"source": "", "target": "", "native": "", "train_here": False, "dimensions": 100, "epochs": 5})
    config.dictionary = ""
    config.parallel = ()
    config.helper = ConfigDict({"checkpoint": "", "training": default_training_config()})
    config.evaluation = ConfigDict({"tasks": {}, "fine_tuning": {}, "before": False, "during": (), "after": True})
    config.methods = ("wechsel_tfr", "trans_inner", "full_rand")
    config.probe_steps = 0
    config.transfer = ConfigDict()
    for name, described in described_settings().items():
        if name not in (*INPUTS, "seed"):
            default = config_dict.placeholder(described.kind) if described.default is None else described.default
            config.transfer[name] = default
    # All methods, also those without a source's turn tokens, train on the tokens of one tokenizer.
    config.transfer.special_tokens = "replace"
    config.variants = ConfigDict()
    config.tuning = ConfigDict({"rates": (), "tables": (1.0,), "steps": 60, "held_out": 0.02, "eval_batches": 20})
    config.training = default_training_config()
    config.overrides = ConfigDict()
    return config


def base_method(config: ConfigDict, method: str) -> str:
    """The method whose inputs and settings a run has."""
    named = named_method(config, method)
    return DEFAULT if named == AUTO else named


def named_method(config: ConfigDict, method: str) -> str:
    """The method that a run's name stands for."""
    return config.variants[method].method if method in config.variants else method


def needs(config: ConfigDict, name: str) -> set[str]:
    """The inputs of one run: names of settings, and "native_vectors" where its target vectors are those of tokens."""
    needs = {*inputs_of(METHODS[base_method(config, name)])}
    return needs - {"target_vectors"} | {"native_vectors"} if compares_tokens(config, name) else needs


def inputs_of(method: Method) -> tuple[str, ...]:
    """The settings that a method cannot do without."""
    return (*method.needs, *(("helper",) if method.helper else ()))


def needs_of_all(config: ConfigDict) -> set[str]:
    return set().union(*(needs(config, name) for name in config.methods))


def compares_tokens(config: ConfigDict, name: str) -> bool:
    """Whether the run reads word vectors whose words are the target tokenizer's tokens."""
    method, own = METHODS[base_method(config, name)], config.variants.get(name, ConfigDict())
    kind = own.get("token_vectors") or config.transfer.get("token_vectors") or method.vectors
    return kind == "native" and method.space == "target"


def transfer_settings(config: ConfigDict, name: str, inputs: dict[str, str]) -> dict:
    """The settings of one method's transfer, without those for all methods that others read and this one does not."""
    method = METHODS[base_method(config, name)]
    settings = {"seed": config.seed, **as_dict(config.transfer), **as_dict(config.variants.get(name, ConfigDict()))}
    settings.pop("method", None)
    for wanted in inputs_of(method):
        settings.setdefault(wanted, inputs.get(wanted))
    if method.takes_words and config.dictionary:
        settings.setdefault("dictionary", config.dictionary)
    if settings["calibrate"] != "none" or settings["distill"] or settings["tune_coefficients"]:
        settings.setdefault("target_text", inputs["target_text"])
    if settings.get("regression") and "regression" in method.settings and config.text.source:
        settings |= {side: settings.get(side) or inputs[side] for side in ("source_text", "target_text")}
    if compares_tokens(config, name):
        settings["target_vectors"] = inputs["native_vectors"]
    if settings.get("target_vectors") == SAMPLE:
        settings["target_vectors"] = inputs[SAMPLE]
    nobodys = set.intersection(*(_unread(config, other) for other in config.methods))
    settings = {key: value for key, value in settings.items() if key not in _unread(config, name) - nobodys}
    known, data = described_settings(), config.training.data
    alike = {key: data[key] for key in TEXT if settings.get(key) == known[key].default}
    return settings | TransferSettings.read_by(method, settings | alike)


def _unread(config: ConfigDict, name: str) -> set[str]:
    """Which of the settings for all methods one method does not read."""
    own = as_dict(config.variants.get(name, ConfigDict()))
    given = as_dict(config.transfer) | {key: value for key, value in own.items() if key != "method"}
    method = METHODS[base_method(config, name)]
    return {*TransferSettings.filled(method, **given).unused(method)} - {*own}


def training_config(config: ConfigDict, method: str, run: Path, workdir: Path) -> ConfigDict:
    training = copy.deepcopy(config.training)
    training.seed = config.seed
    training.model.checkpoint = str(run / "transfer")
    _with_data(training, workdir)
    return updated(training, config.overrides.get(method, ConfigDict()), f"overrides.{method}")


def helper_config(config: ConfigDict, workdir: Path) -> ConfigDict:
    training = copy.deepcopy(config.helper.training)
    training.seed = config.seed
    training.model.tokenizer = str(workdir / "tokenizer")
    return _with_data(training, workdir)


def _with_data(training: ConfigDict, workdir: Path) -> ConfigDict:
    training.data.train = (str(workdir / "data" / "train"),)
    training.data.validation = (str(workdir / "data" / "validation"),)
    # Of the text, which is tokens already.
    training.data.validation_fraction, training.data.max_bytes, training.data.deduplicate = 0.0, 0, False
    if not training.compilation_cache:
        training.compilation_cache = str(workdir / "compiled")
    return training
