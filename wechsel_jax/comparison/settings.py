"""The fields of a comparison, and what each of its methods gets of them: which inputs, which settings."""

import copy
import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ml_collections import ConfigDict, config_dict

from wechsel_jax.initializers import AUTO, METHODS
from wechsel_jax.initializers.method import Method
from wechsel_jax.records.names import EXPORT
from wechsel_jax.training import default_config as default_training_config
from wechsel_jax.training.config import as_dict, updated
from wechsel_jax.transfers.choice import DEFAULT
from wechsel_jax.transfers.settings import FITTED, INPUTS, TransferSettings, described_settings, strings

# As the target vectors of a variant: those of words in the documents that are trained on, see `training.data.max_bytes`.
SAMPLE = "sample"
# Of `training.data`: how every text of a comparison is read, also by its transfers.
TEXT = ("text_field", "max_document_bytes")


def default_config() -> ConfigDict:
    """Returns every field of a comparison with its default.

    What must be set: `source`, `text.train`, and what its methods need. All text is read as `training.data` says (`text_field`,
    `max_document_bytes`), by transfers where `transfer` says nothing else; its `documents` and `deduplicate` make the documents
    that are trained on.
    """
    config = ConfigDict()
    # Of transfers, helper, training and fine-tuning.
    config.seed = 0
    # The model that every transfer begins from: a directory or hub id.
    config.source = ""
    config.text = ConfigDict()
    # Text of the new language, named as training.data.train is: for the tokenizer, transfers, word vectors and training.
    config.text.train = ()
    # Held-out text of it; without any, training.data.validation_fraction of its documents is held out.
    config.text.validation = ()
    # Text of the source's language, for methods that read it (anker, tokalign, regression) and word vectors trained here.
    config.text.source = ()
    # The new language's text with spaces between words, for word vectors where it writes none.
    config.text.words = ()
    # The new language's tokenizer, which is trained on its text.
    config.tokenizer = ConfigDict()
    # How many tokens it has.
    config.tokenizer.vocabulary_size = 8192
    # As --algorithm of wechsel-jax tokenizer.
    config.tokenizer.algorithm = "byte_bpe"
    # Whose special tokens it has, as --style of wechsel-jax tokenizer.
    config.tokenizer.style = "gpt2"
    # A finished tokenizer, which is taken instead.
    config.tokenizer.directory = ""
    # Word vectors, for methods that read them.
    config.vectors = ConfigDict()
    # File of the source language's.
    config.vectors.source = ""
    # File of the new language's.
    config.vectors.target = ""
    # File of vectors of the tokenizer's tokens, which methods such as focus compare; "": trained here.
    config.vectors.native = ""
    # Train those of words here, by fastText, on text.source and text.train (or text.words).
    config.vectors.train_here = False
    # Of vectors that are trained here.
    config.vectors.dimensions = 100
    # Passes of their training through the text.
    config.vectors.epochs = 5
    # File of word pairs, as --dictionary of wechsel-jax transfer.
    config.dictionary = ""
    # Parallel text, the source language first, for trans_tokenization.
    config.parallel = ()
    # A model of the new language, for methods that need one, such as salt.
    config.helper = ConfigDict()
    # Its directory or hub id; "": one is trained here, where a method needs it.
    config.helper.checkpoint = ""
    # How it is trained: every setting of a training run.
    config.helper.training = default_training_config()
    # What the trained models and the untouched source model are scored on.
    config.evaluation = ConfigDict()
    # Name -> {"form": one of `evaluation.tasks.FORMS`, "file", and settings of the form}.
    config.evaluation.tasks = ConfigDict()
    # Tasks that every model of every stage is fine-tuned for: name -> {"file": what is scored, and settings of a training run,
    # data and task among them}.
    config.evaluation.fine_tuning = ConfigDict()
    # Score the models before training, too.
    config.evaluation.before = False
    # Further stages, as shares of the training's steps.
    config.evaluation.during = ()
    # Score the trained models; without it, those before training and along the way alone.
    config.evaluation.after = True
    # What is compared, in the order of the tables: methods of wechsel-jax transfer, and names of variants.
    config.methods = ("wechsel_tfr", "trans_inner", "full_rand")
    # A variant whose method is "auto" is the one that so many steps of training prefer, by the optimizer of its run; 0: the one
    # that wechsel-jax transfer chooses.
    config.probe_steps = 0
    # Settings of all transfers: the options of wechsel-jax transfer, but for files and seed.
    config.transfer = ConfigDict()
    for name, described in described_settings().items():
        if name not in (*INPUTS, "seed"):
            default = config_dict.placeholder(described.kind) if described.default is None else described.default
            config.transfer[name] = default
    # As --special_tokens of wechsel-jax transfer; all methods, also those without a source's turn tokens, train on the tokens
    # of one tokenizer.
    config.transfer.special_tokens = "replace"
    # Name -> {"method": a method or "auto", and settings of its transfer}. Of target_vectors "sample" stands for vectors of the
    # words in the documents that are trained on, of which training.data.max_bytes may leave a part.
    config.variants = ConfigDict()
    # With rates, every method has its own: it is trained for a while with each of them, on the training text without some of
    # its documents, and what these say decides. Runs that begin with the same model and have the same settings, but for their
    # length, are tuned once.
    config.tuning = ConfigDict()
    # The highest learning rates to choose from; (): nothing is tuned.
    config.tuning.rates = ()
    # How many times as high the rate of the tables (embeddings) may be; each is tried with each rate.
    config.tuning.tables = (1.0,)
    # Of every trial.
    config.tuning.steps = 60
    # Share of the training documents that trials are scored on and do not train on.
    config.tuning.held_out = 0.02
    # Batches of them that are scored.
    config.tuning.eval_batches = 20
    # How every method is trained: every setting of a training run; its model and data follow from the above.
    config.training = default_training_config()
    # Method -> settings of a training run that it has instead.
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
    """The inputs that one run does not bring: names of settings, "native_vectors" for target vectors of tokens."""
    own = as_dict(config.variants.get(name, ConfigDict()))
    needs = {field for field in inputs_of(METHODS[base_method(config, name)]) if not own.get(field)}
    tokens = "target_vectors" in needs and compares_tokens(config, name)
    return needs - {"target_vectors"} | {"native_vectors"} if tokens else needs


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


def input_places(config: ConfigDict, workdir: Path) -> dict[str, Any]:
    """Where the inputs of transfers are, also those that are not made yet: setting, "native_vectors" or `SAMPLE` -> file(s)."""
    made, here = workdir / "vectors", config.vectors.train_here
    return {
        "dictionary": config.dictionary,
        "parallel": config.parallel,
        "source_text": config.text.source,
        "target_text": config.text.train,
        "source_vectors": str(made / "source.bin") if here else config.vectors.source,
        "target_vectors": str(made / "target.bin") if here else config.vectors.target,
        "native_vectors": config.vectors.native or str(made / "native.bin"),
        SAMPLE: str(made / f"{SAMPLE}.bin"),
        "helper": config.helper.checkpoint or str(workdir / "helper" / EXPORT),
    }


def transfer_settings(config: ConfigDict, name: str, inputs: Mapping[str, Any]) -> dict:
    """The settings of one method's transfer, without those for all methods that others read and this one does not.

    Args:
      config: the comparison.
      name: of the run.
      inputs: its `input_places`.
    """
    method = METHODS[base_method(config, name)]
    settings = {"seed": config.seed, **as_dict(config.transfer), **as_dict(config.variants.get(name, ConfigDict()))}
    settings.pop("method", None)
    for wanted in needs(config, name):
        settings["target_vectors" if wanted == "native_vectors" else wanted] = inputs.get(wanted)
    if method.takes_words and config.dictionary:
        settings.setdefault("dictionary", config.dictionary)
    if settings["calibrate"] != "none" or any(settings[fitted] for fitted in FITTED):
        settings.setdefault("target_text", inputs["target_text"])
    if settings.get("regression") and "regression" in method.settings and config.text.source:
        settings |= {side: settings.get(side) or inputs[side] for side in ("source_text", "target_text")}
    if settings.get("target_vectors") == SAMPLE:
        settings["target_vectors"] = inputs[SAMPLE]
    nobodys = set.intersection(*(_unread(config, other) for other in config.methods))
    settings = {key: value for key, value in settings.items() if key not in _unread(config, name) - nobodys}
    known, data = described_settings(), config.training.data
    alike = {key: data[key] for key in TEXT if settings.get(key) == known[key].default}
    return settings | TransferSettings.read_by(method, settings | alike)


def transfer_files(config: ConfigDict, name: str, workdir: Path) -> tuple[list[str], list[Path], list[Path]]:
    """What one method's transfer reads, but for the comparison's own text and what is made here.

    Returns:
      Its texts, the files of the source model and a helper that are in directories here, and the other files.
    """
    inputs, own = input_places(config, workdir), as_dict(config.variants.get(name, ConfigDict()))
    settings = TransferSettings.filled(METHODS[base_method(config, name)], **transfer_settings(config, name, inputs))
    shared = {file for files in config.text.values() for file in strings(files)}
    texts = [file for file in (*settings.source_text, *settings.target_text) if file not in shared]
    parallel = settings.parallel
    if config.probe_steps and named_method(config, name) == AUTO:
        parallel = strings(own.get("parallel") or config.parallel)
    files = dataclasses.replace(settings, source_text=(), target_text=(), parallel=parallel).files()
    places = [Path(place) for place in (config.source, *files) if place]
    models = [place for place in places if place.is_dir() and place.resolve() != (workdir / "helper" / EXPORT).resolve()]
    kinds = ("config.json", "tokenizer.json", "*.safetensors")
    parts = [file for model in models for kind in kinds for file in sorted(model.glob(kind))]
    made = (workdir / "vectors").resolve()
    return texts, parts, [place for place in places if place.is_file() and place.resolve().parent != made]


def _unread(config: ConfigDict, name: str) -> set[str]:
    """Which of the settings for all methods one method does not read."""
    own = as_dict(config.variants.get(name, ConfigDict()))
    given = as_dict(config.transfer) | {key: value for key, value in own.items() if key != "method"}
    method = METHODS[base_method(config, name)]
    return {*TransferSettings.filled(method, **given).unused(method)} - {*own}


# Of a training: what the comparison makes, and where.
OWN = ("model.checkpoint", "model.tokenizer", "data.train", "data.validation")


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
