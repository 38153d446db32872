"""What a run is made of: the tokenizer, the model, the data and the objective that its settings name."""

import dataclasses
import hashlib
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax
import ml_dtypes
import numpy as np
from ml_collections import ConfigDict

import wechsel_jax
from wechsel_jax.checkpoint import Checkpoint, write_checkpoint
from wechsel_jax.checkpoint.architectures import ARCHITECTURES
from wechsel_jax.checkpoint.model_config import check_config
from wechsel_jax.checkpoint.tensors import read_header
from wechsel_jax.data import TokenBlocks, prepare, prepare_split, wait_for
from wechsel_jax.data.manifest import MANIFEST, MadeOtherwise, remove_prepared
from wechsel_jax.data.prepare import SIDES
from wechsel_jax.errors import UserError, parsing
from wechsel_jax.files import new_file
from wechsel_jax.files.json import read_json
from wechsel_jax.models import Family, ModelConfig, family
from wechsel_jax.models.weights import flatten
from wechsel_jax.objectives import Objective, make_objective
from wechsel_jax.text.sources import find_sources
from wechsel_jax.tokens import Vocabulary, load_tokenizer
from wechsel_jax.training import distributed, sharding
from wechsel_jax.training.config import as_dict
from wechsel_jax.training.step import INIT_STREAM, stream_key
from wechsel_jax.training.vocabulary_padding import pad, padded, strip

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

TABLE = "embeddings"
_EXPORT_DTYPES = {"float32": np.float32, "float16": np.float16, "bfloat16": ml_dtypes.bfloat16}


@dataclasses.dataclass(frozen=True)
class Ingredients:
    """The parts of a run.

    Attributes:
      family: the model's family.
      model: its configuration.
      hf_config: fields of `config.json`, as they will be exported.
      generation_config: fields of `generation_config.json` of the checkpoint, where it has one.
      tokenizer: also exported.
      objective: what is minimised.
      train: token blocks to train on; None before `with_data`.
      validation: token blocks to evaluate on; likewise.
      load_parameters: returns the initial parameters, nested float32 numpy arrays or functions that each build one; None: they
        are drawn, see `initial`.
      multiple: on the devices, vocabulary axes are padded to a multiple of it; exported tensors are not.
    """

    family: Family
    model: ModelConfig
    hf_config: dict[str, Any]
    generation_config: dict[str, Any] | None
    tokenizer: "PreTrainedTokenizerFast"
    objective: Objective
    train: TokenBlocks | None
    validation: TokenBlocks | None
    load_parameters: Callable[[], dict[str, Any]] | None
    multiple: int = 1

    @property
    def device_model(self) -> ModelConfig:
        """The configuration of the parameters on the devices."""
        return padded(self.model, self.multiple)

    def initial(self, seed: int, shardings: Any) -> dict[str, Any]:
        """Returns the initial parameters, padded, where they shall live: those of `load_parameters`, or new ones."""
        if self.load_parameters is not None:
            return sharding.put(pad(self.load_parameters(), self.family, self.model, self.multiple)[0], shardings)

        def draw(key: jax.Array) -> dict[str, Any]:
            return pad(self.family.init(self.model, key), self.family, self.model, self.multiple)[0]

        return jax.jit(draw, out_shardings=shardings)(stream_key(seed, INIT_STREAM))


def gather(config: ConfigDict, weights: bool = True) -> Ingredients:
    """Opens everything that the settings name but the data.

    Args:
      config: settings of the run.
      weights: whether to read the checkpoint that the run starts from once, for weights that do not fit or are not finite; a
        run that goes on from its own needs none of them.

    Raises:
      UserError: something is missing, damaged or does not fit together.
    """
    checkpoint = Checkpoint.open(config.model.checkpoint) if config.model.checkpoint else None
    place = config.model.tokenizer or str(checkpoint.directory)
    tokenizer = load_tokenizer(place)
    vocabulary = Vocabulary.from_tokenizer(tokenizer)
    hf_config = dict(checkpoint.config) if checkpoint else new_config(config, tokenizer, len(vocabulary))
    described = checkpoint.directory / "config.json" if checkpoint else "model.config"
    check_config(hf_config, described)
    model_family = family(hf_config["model_type"])
    with parsing(described, "the description of a model; mend the field"):
        model = configured(model_family, hf_config, config)
    _check_numbers(dataclasses.asdict(model), described)
    hf_config.setdefault("architectures", [model_family.architecture])
    if len(vocabulary) > model.vocabulary_size:
        raise UserError(
            f"{place}: has {len(vocabulary)} tokens and the model only {model.vocabulary_size}; "
            "expected the model's own tokenizer; `wechsel-jax transfer` gives a model another one"
        )
    if config.block_length > model.max_length:
        raise UserError(
            f"block_length: {config.block_length} is more than the model's {model.max_length} positions; expected at most that"
        )
    objective = make_objective(
        config.objective,
        model_family,
        padded(model, config.model.pad_vocabulary),
        dtype=config.dtype,
        mask_token_id=vocabulary.id_with_role("mask"),
        special_ids=[int(i) for i in np.flatnonzero(vocabulary.special)],
        chunk=config.loss_chunk,
        mask_rate=config.mask_rate,
        vocabulary_size=model.vocabulary_size,
    )
    table = _read_table(config.model.embeddings, model) if config.model.embeddings else None

    def load() -> dict[str, Any]:
        if table is not None:
            return _drawn_with_table(model_family, model, config.seed, table)
        tensors = {name: checkpoint.read(name) for name in checkpoint.names()}
        return model_family.from_hugging_face(tensors, model, lazy=True)

    if checkpoint and weights:
        _check_weights(checkpoint, load())
    return Ingredients(
        model_family,
        model,
        hf_config,
        checkpoint.generation_config if checkpoint else None,
        tokenizer,
        objective,
        None,
        None,
        load if checkpoint or table is not None else None,
        config.model.pad_vocabulary,
    )


def with_data(
    ingredients: Ingredients, config: ConfigDict, workdir: Path, *, fresh: bool, say: Callable[[str], None] = print
) -> Ingredients:
    """Adds the data; text is made into token blocks in `workdir/data`.

    The first process reads all tokens once, so that damage on the disk is found before anything is trained on it.

    Args:
      ingredients: of `gather`.
      config: settings of the run.
      workdir: of the run.
      fresh: whether no run has begun here, so that tokens that were made with other settings may be made again.
      say: shows one line to the user.

    Raises:
      UserError: text is missing, the tokens are damaged, or do not fit the model or the settings.
    """
    for side in SIDES:
        # A mistake on the second side shall not wait for hours of work on the first.
        texts = [str(text) for text in config.data[side]]
        if not _is_prepared(texts):
            find_sources(texts, config.data.text_field)
    place = config.model.tokenizer or str(Checkpoint.open(config.model.checkpoint).directory)
    blocks = {side: _blocks(config, side, place, workdir / "data" / side, fresh, say) for side in SIDES}
    size = ingredients.model.vocabulary_size
    for side, block in blocks.items():
        if block.vocabulary_size > size:
            raise UserError(f"data.{side}: was made with {block.vocabulary_size} tokens; expected the model's {size}")
    return dataclasses.replace(ingredients, **blocks)


def configured(model_family: Family, hf_config: Mapping[str, Any], config: ConfigDict) -> ModelConfig:
    """Returns a model's configuration with what the settings of a run change about it."""
    settings = config.model
    return model_family.config(hf_config, dropout=settings.dropout, remat=settings.remat, scan_layers=settings.scan_layers)


def check_data(ingredients: Ingredients, workdir: Path, fresh: bool, say: Callable[[str], None] = print) -> None:
    """Makes sure that a run goes on with the text and the tokenizer it began with; says where the software is another version.

    Args:
      ingredients: of this start.
      workdir: holds `data/fingerprints.json` once a run has begun.
      fresh: whether nothing has been trained yet, so that the fingerprints are written.
      say: shows one line to the user.

    Raises:
      UserError: the token blocks or the tokenizer are other ones.
    """
    file = workdir / "data" / "fingerprints.json"
    now = {"train": ingredients.train.fingerprint, "validation": ingredients.validation.fingerprint}
    now["tokenizer"] = _tokenizer_fingerprint(ingredients.tokenizer)
    versions = {"wechsel_jax": wechsel_jax.__version__, "jax": jax.__version__}
    if fresh or not file.exists():
        if distributed.is_first():
            with new_file(file, "w") as handle:
                json.dump({**now, "versions": versions}, handle, indent=1)
        return
    recorded = read_json(file, "what the run began with", "put it back or use another workdir")
    for name, fingerprint in now.items():
        if recorded.get(name, fingerprint) != fingerprint:
            where, what = ("model.tokenizer", "tokenizer") if name == "tokenizer" else (f"data.{name}", "text or tokenizer")
            raise UserError(f"{where}: the {what} has changed since this run began; restore it or use another workdir")
    began = recorded.get("versions")
    for name, version in versions.items():
        if isinstance(began, dict) and began.get(name, version) != version:
            say(f"this run began with {name} {began[name]}, now {version}: numbers may differ in the last digits")


def _tokenizer_fingerprint(tokenizer: "PreTrainedTokenizerFast") -> str:
    """Of tokenizer.json where there is one; its bytes do not change with the version of the library that reads it."""
    file = Path(tokenizer.name_or_path or "") / "tokenizer.json"
    raw = file.read_bytes() if file.is_file() else tokenizer.backend_tokenizer.to_str().encode()
    return hashlib.sha256(raw).hexdigest()


def export(ingredients: Ingredients, params: dict[str, Any], dtype: str, directory: Path) -> None:
    """Writes a model that transformers loads into a directory.

    Args:
      ingredients: of the run.
      params: nested numpy arrays, as they were on the devices.
      dtype: of the tensors, "float32", "float16" or "bfloat16".
      directory: an empty one, of `files.new_directory`.
    """
    params = strip(params, ingredients.family, ingredients.model)
    tensors = ingredients.family.to_hugging_face(params, ingredients.model)
    limit = float(ml_dtypes.finfo(_EXPORT_DTYPES[dtype]).max)
    for name, tensor in tensors.items():
        largest = float(np.max(np.abs(tensor), initial=0.0))
        if largest > limit:
            raise UserError(
                f"export_dtype: {dtype} cannot hold {name}, whose largest value is {largest:.3g}; expected float32 or bfloat16"
            )
    tensors = {name: np.ascontiguousarray(tensor.astype(_EXPORT_DTYPES[dtype])) for name, tensor in tensors.items()}
    hf_config = {name: value for name, value in ingredients.hf_config.items() if name != "torch_dtype"} | {"dtype": dtype}
    write_checkpoint(directory, hf_config, tensors, ingredients.tokenizer, ingredients.generation_config)


def new_config(config: ConfigDict, tokenizer: "PreTrainedTokenizerFast", size: int) -> dict[str, Any]:
    """Returns the config.json of a new model with a vocabulary of `size` tokens."""
    ids = {f"{role}_token_id": getattr(tokenizer, f"{role}_token_id", None) for role in ("bos", "eos", "pad")}
    known = {name: value for name, value in ids.items() if value is not None}
    return {"vocab_size": size, **known, **as_dict(config.model.config)}


def _read_table(place: str, model: ModelConfig) -> np.ndarray:
    """The token table (V, d) that `wechsel-jax table` wrote."""
    stored = read_header(place).get(TABLE)
    wanted = (model.vocabulary_size, model.hidden_size)
    if stored is None or stored.shape != wanted:
        found = "no such tensor" if stored is None else f"one of shape {stored.shape}"
        raise UserError(
            f"{place}: expected a tensor {TABLE!r} of shape {wanted}, a row for each token, and found {found}; "
            "make it with `wechsel-jax table --tokenizer`"
        )
    table = stored.read().astype(np.float32)
    if not np.isfinite(table).all():
        row = int(np.flatnonzero(~np.isfinite(table).all(axis=1))[0])
        raise UserError(f"{place}: tensor {TABLE} holds NaN or infinity in row {row}; expected finite numbers; make it again")
    return table


def _check_weights(checkpoint: Checkpoint, parameters: dict[str, Any]) -> None:
    """Builds each parameter once, which raises `UserError` where tensors are missing or have other shapes."""
    for path, build in flatten(parameters).items():
        with np.errstate(over="ignore"):
            finite = np.isfinite(build()).all()
        if not finite:
            # It names the file and the tensor; what is finite in float64 only it does not find.
            checkpoint.require_finite()
            raise UserError(f"{checkpoint.directory}: {path} holds numbers that float32 does not; expected float32 weights")


def _check_numbers(value: Any, place: str | Path, name: str = "") -> None:
    """Raises `UserError` where a model is described by a number that float32 does not hold: NaN, infinity, 1e300."""
    inner = value.items() if isinstance(value, Mapping) else enumerate(value) if isinstance(value, list | tuple) else ()
    for key, below in inner:
        _check_numbers(below, place, f"{name}.{key}" if name else str(key))
    if isinstance(value, float) and not abs(value) <= np.finfo(np.float32).max:
        raise UserError(f"{place}: {name} is {value}; expected a finite number; mend it")


def _drawn_with_table(model_family: Family, model: ModelConfig, seed: int, table: np.ndarray) -> dict[str, Any]:
    """New parameters but for the token table."""
    params = jax.device_get(jax.jit(lambda key: model_family.init(model, key))(stream_key(seed, INIT_STREAM)))
    tensors = dict(model_family.to_hugging_face(params, model))
    (name,) = (name for name in tensors if ARCHITECTURES[model_family.name].role(name) == "input")
    return model_family.from_hugging_face(tensors | {name: table}, model)


def _is_prepared(texts: list[str]) -> bool:
    return len(texts) == 1 and (Path(texts[0]) / MANIFEST).is_file()


def _blocks(
    config: ConfigDict, side: str, tokenizer: str, output: Path, fresh: bool, say: Callable[[str], None]
) -> TokenBlocks:
    """The token blocks of one side; called for "train" first, because that makes both sides of a split."""
    data = config.data
    texts = [str(text) for text in data[side]]
    first = distributed.is_first()
    if _is_prepared(texts):
        for name in ("validation_fraction", "max_bytes", "deduplicate"):
            if data[name] and side == "train":
                raise UserError(
                    f"data.{name}: data.train is prepared already ({texts[0]}); expected text; "
                    f"or give --{name} to `wechsel-jax prepare`, and here the directories that it wrote"
                )
        return TokenBlocks.open(texts[0], config.block_length, verify=first)
    settings = {name: data[name] for name in ("documents", "text_field", "max_document_bytes", "deduplicate")}
    # What is held out is the same for subsamples of any size.
    max_bytes = data.max_bytes if side == "train" else 0
    split = output.parent / "split"
    output = split / side if data.validation_fraction else output

    def make() -> None:
        if not data.validation_fraction:
            prepare(texts, tokenizer, output, max_bytes=max_bytes, **settings)
        elif side == "train":
            fraction = data.validation_fraction
            prepare_split(texts, tokenizer, split, validation_fraction=fraction, max_bytes=max_bytes, **settings)

    if first:
        try:
            make()
        except MadeOtherwise as other:
            if not fresh:
                raise
            say(f"{str(other).rpartition(';')[0]}, and nothing was trained on it; it is made again")
            for made in SIDES if data.validation_fraction else (".",):
                remove_prepared((split if data.validation_fraction else output) / made)
            make()
    else:
        # Not in a collective, which would give up while an hour's text is prepared.
        wait_for(output)
    distributed.barrier(f"data.{side}")
    return TokenBlocks.open(output, config.block_length, verify=first)
