"""What a run is made of: the tokenizer, the model, the data and the objective that its settings name."""

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax
import ml_dtypes
import numpy as np
from ml_collections import ConfigDict

from wechsel_jax.architectures import ARCHITECTURES
from wechsel_jax.checkpoint import Checkpoint, write_checkpoint
from wechsel_jax.data import TokenBlocks, prepare
from wechsel_jax.errors import UserError
from wechsel_jax.files import new_directory, new_file
from wechsel_jax.models import Family, ModelConfig, family
from wechsel_jax.objectives import Objective, make_objective
from wechsel_jax.tensors import read_header
from wechsel_jax.tokens import Vocabulary, load_tokenizer
from wechsel_jax.training import distributed
from wechsel_jax.training.config import as_dict
from wechsel_jax.training.step import INIT_STREAM, stream_key

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
      train: token blocks to train on.
      validation: token blocks to evaluate on.
      load_parameters: returns the initial parameters, nested float32 numpy arrays; None: they are drawn, see `draw`.
    """

    family: Family
    model: ModelConfig
    hf_config: dict[str, Any]
    generation_config: dict[str, Any] | None
    tokenizer: "PreTrainedTokenizerFast"
    objective: Objective
    train: TokenBlocks
    validation: TokenBlocks
    load_parameters: Callable[[], dict[str, Any]] | None

    def draw(self, seed: int, shardings: Any) -> dict[str, Any]:
        """Draws new parameters where they shall live."""
        init = jax.jit(lambda key: self.family.init(self.model, key), out_shardings=shardings)
        return init(stream_key(seed, INIT_STREAM))


def gather(config: ConfigDict, workdir: Path) -> Ingredients:
    """Opens everything that the settings name; text is made into token blocks in `workdir/data`.

    Raises:
      UserError: something is missing or does not fit together.
    """
    checkpoint = Checkpoint.open(config.model.checkpoint) if config.model.checkpoint else None
    place = config.model.tokenizer or str(checkpoint.directory)
    tokenizer = load_tokenizer(place)
    vocabulary = Vocabulary.from_tokenizer(tokenizer)
    hf_config = dict(checkpoint.config) if checkpoint else _new_config(config, tokenizer, len(vocabulary))
    model_family = family(hf_config["model_type"])
    model = model_family.config(hf_config, dropout=config.model.dropout, remat=config.model.remat)
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
        model,
        dtype=config.dtype,
        mask_token_id=vocabulary.id_with_role("mask"),
        special_ids=[int(i) for i in np.flatnonzero(vocabulary.special)],
    )
    blocks = {side: _blocks(config, side, place, workdir / "data" / side) for side in ("train", "validation")}
    for side, block in blocks.items():
        if block.vocabulary_size > model.vocabulary_size:
            raise UserError(
                f"data.{side}: was made with {block.vocabulary_size} tokens; expected the model's {model.vocabulary_size}"
            )
    if len(blocks["train"]) == 0:
        raise UserError(
            f"data.train: holds not one block of {config.block_length} tokens; give more text or a smaller block_length"
        )

    table = _read_table(config.model.embeddings, model) if config.model.embeddings else None

    def load() -> dict[str, Any]:
        if table is not None:
            return _drawn_with_table(model_family, model, config.seed, table)
        tensors = {name: checkpoint.read(name) for name in checkpoint.names()}
        return model_family.from_hugging_face(tensors, model)

    return Ingredients(
        model_family,
        model,
        hf_config,
        checkpoint.generation_config if checkpoint else None,
        tokenizer,
        objective,
        blocks["train"],
        blocks["validation"],
        load if checkpoint or table is not None else None,
    )


def check_data(ingredients: Ingredients, workdir: Path, fresh: bool) -> None:
    """Makes sure that a run goes on with the text it began with.

    Args:
      ingredients: of this start.
      workdir: holds `data/fingerprints.json` once a run has begun.
      fresh: whether nothing has been trained yet, so that the fingerprints are written.

    Raises:
      UserError: the token blocks are other ones.
    """
    file = workdir / "data" / "fingerprints.json"
    now = {"train": ingredients.train.fingerprint, "validation": ingredients.validation.fingerprint}
    if fresh or not file.exists():
        if distributed.is_first():
            with new_file(file, "w") as handle:
                json.dump(now, handle, indent=1)
        return
    recorded = json.loads(file.read_text(encoding="utf-8"))
    for side, fingerprint in now.items():
        if recorded.get(side) != fingerprint:
            raise UserError(
                f"data.{side}: the text or tokenizer has changed since this run began; restore it or use another workdir"
            )


def export(ingredients: Ingredients, params: dict[str, Any], dtype: str, directory: Path) -> None:
    """Writes a model directory that transformers loads; an earlier export is replaced.

    Args:
      ingredients: of the run.
      params: nested numpy arrays.
      dtype: of the tensors, "float32", "float16" or "bfloat16".
      directory: where to.
    """
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
    with new_directory(directory, overwrite=True) as output:
        write_checkpoint(output, hf_config, tensors, ingredients.tokenizer, ingredients.generation_config)


def _new_config(config: ConfigDict, tokenizer: "PreTrainedTokenizerFast", size: int) -> dict[str, Any]:
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
    return stored.read().astype(np.float32)


def _drawn_with_table(model_family: Family, model: ModelConfig, seed: int, table: np.ndarray) -> dict[str, Any]:
    """New parameters but for the token table."""
    params = jax.device_get(jax.jit(lambda key: model_family.init(model, key))(stream_key(seed, INIT_STREAM)))
    tensors = dict(model_family.to_hugging_face(params, model))
    (name,) = (name for name in tensors if ARCHITECTURES[model_family.name].role(name) == "input")
    return model_family.from_hugging_face(tensors | {name: table}, model)


def _blocks(config: ConfigDict, side: str, tokenizer: str, output: Path) -> TokenBlocks:
    paths = [Path(path) for path in config.data[side]]
    if len(paths) == 1 and (paths[0] / "manifest.json").is_file():
        return TokenBlocks.open(paths[0], config.block_length)
    if distributed.is_first():
        prepare(paths, tokenizer, output, documents=config.data.documents)
    distributed.barrier(f"data.{side}")
    return TokenBlocks.open(output, config.block_length)
