"""A model directory as data: its config, its tensors on disk, and which of them have a vocabulary axis."""

import dataclasses
import functools
import math
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from wechsel_jax.checkpoint.architectures import Architecture, architecture, has_no_vocabulary, stated_size, ties
from wechsel_jax.checkpoint.model_config import check_config
from wechsel_jax.checkpoint.tensors import (
    FLOATS,
    INDEX_FILE,
    SINGLE_FILE,
    ComputedTensor,
    StoredTensor,
    TensorFiles,
    first_nonfinite,
    write_shards,
)
from wechsel_jax.errors import UserError
from wechsel_jax.files.hub import HUB_ID, download
from wechsel_jax.files.json import read_json, write_json
from wechsel_jax.records.names import EXPORT, METRICS_FILE
from wechsel_jax.tokens import load_tokenizer
from wechsel_jax.tokens.files import write_tokenizer

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

_EXPECTED = "a model directory with config.json and model.safetensors, or the id of a model on the hub"
_HUB_FILES = ["*.json", "model*.safetensors", "tokenizer*", "vocab.*", "merges.txt", "*.model", "*.jinja"]
# For programs that do not read tokenizer.json.
EXTRA_TOKENIZER_FILES = ("vocab.json", "merges.txt", "vocab.txt", "sentencepiece.bpe.model", "spiece.model", "tokenizer.model")


@dataclasses.dataclass(frozen=True)
class VocabularyTensor:
    """A tensor with a vocabulary axis.

    Attributes:
      name: in the checkpoint.
      role: "input", "head" or "bias".
      axis: which of its axes is the vocabulary: 0, but 1 for a bias that is stored as (1, V).
    """

    name: str
    role: str
    axis: int = 0

    def rows(self, tensor: np.ndarray) -> np.ndarray:
        """The tensor with the vocabulary in front: (V, d), or (V,) for a bias."""
        return tensor.reshape(-1) if self.axis else tensor

    def shape(self, stored: tuple[int, ...], rows: int) -> tuple[int, ...]:
        """The stored shape with another number of tokens."""
        return (*stored[: self.axis], rows, *stored[self.axis + 1 :])


@dataclasses.dataclass(frozen=True)
class Checkpoint:
    """A model directory; tensors stay on disk until they are read.

    Attributes:
      directory: where the files are (a folder of the hub's cache for a hub id).
      config: the content of config.json.
      tensors: name -> where the tensor lies.
      generation_config: the content of generation_config.json, where there is one.

    >>> from wechsel_jax import demo
    >>> model = Checkpoint.open(demo.path("english-gpt2"))
    >>> model.architecture, model.table, model.vocabulary_size, model.hidden_size, model.tied
    ('gpt2', 'transformer.wte.weight', 8192, 256, True)
    """

    directory: Path
    config: dict
    tensors: TensorFiles
    generation_config: dict | None = None

    @classmethod
    def open(cls, path: str | os.PathLike) -> "Checkpoint":
        """Opens a directory, or a hub id whose files are downloaded first.

        Raises:
          UserError: it is no model directory, its weights are not safetensors, or a file is damaged.
        """
        directory = _locate(path)
        weights = any((directory / name).exists() for name in (SINGLE_FILE, INDEX_FILE))
        if not weights and not (directory / "config.json").exists() and (directory / "tokenizer.json").exists():
            raise UserError(f"{directory}: is a tokenizer and no model; expected {_EXPECTED}")
        config = read_json(directory / "config.json", "the config.json of a model")
        if config.get("model_type") is None:
            single = (directory / METRICS_FILE).exists()
            runs = [directory] if single else sorted(file.parent for file in directory.glob(f"*/{METRICS_FILE}"))
            if runs:
                raise UserError(
                    f"{directory}: is the workdir of {'a run' if single else 'several runs'}; expected a model directory, "
                    f"such as {runs[0] / EXPORT}; `wechsel-jax export` makes one of any checkpoint"
                )
            raise UserError(f"{directory / 'config.json'}: has no model_type; expected the config.json of a transformers model")
        check_config(config, directory / "config.json")
        if not weights and Path(path) != directory:
            # Which of them the repository holds is not known: pickled weights are not fetched.
            raise UserError(
                f"{path}: the repository holds no model.safetensors; expected {_EXPECTED}; if its weights are pickled, run "
                f"`hf download {path} --local-dir {Path(path).name}`, and name that directory"
            )
        if not weights:
            _refuse_weights(directory, config)
        generation = directory / "generation_config.json"
        generation_config = read_json(generation, "a generation_config.json") if generation.exists() else None
        check_config(generation_config or {}, generation)
        return cls(directory, config, TensorFiles.open(directory), generation_config)

    @property
    def architecture(self) -> str:
        """The `model_type`, e.g. "gpt2"."""
        return self.config["model_type"]

    @functools.cached_property
    def record(self) -> Architecture:
        """What is known of the architecture, or was found out; `UserError` for one that is not supported."""
        shapes = {name: stored.shape for name, stored in self.tensors.items()}
        return architecture(self.architecture, self.directory / "config.json", shapes, stated_size(self.config))

    @property
    def shards(self) -> dict[str, str] | None:
        """Tensor name -> name of its file, where there are several; else None."""
        files = {name: stored.file.name for name, stored in self.tensors.items()}
        return files if len(set(files.values())) > 1 else None

    def names(self) -> tuple[str, ...]:
        """The names of all tensors."""
        return tuple(self.tensors)

    def read(self, name: str) -> np.ndarray:
        """One tensor, as a read-only memory map."""
        return self.tensors[name].read()

    def arrays(self) -> dict[str, np.ndarray]:
        """All tensors by name, as read-only memory maps."""
        return {name: self.read(name) for name in self.tensors}

    def vocabulary_tensors(self) -> tuple[VocabularyTensor, ...]:
        """Finds every tensor with a vocabulary axis: the input table first, then other input tables, heads and biases.

        A table that only repeats a tied input table is not among them: see `tied_copies`.

        Raises:
          UserError: there is no input table, sizes disagree, or a tensor may or may not have a vocabulary axis.
        """
        copies = self.tied_copies
        return tuple(tensor for tensor in self._with_vocabulary if tensor.name not in copies)

    @functools.cached_property
    def tied_copies(self) -> tuple[str, ...]:
        """Names of stored tables that only repeat the tied input table; a saved checkpoint need not hold them."""
        if not self.tie_setting:
            return ()
        table, *others = (tensor.name for tensor in self._with_vocabulary if tensor.role != "bias")
        return tuple(name for name in others if _same(self.tensors[table], self.tensors[name]))

    @property
    def tied(self) -> bool:
        """Whether the output head is the input table.

        So it is where config.json says so, or says nothing and the architecture's default is that, unless the file holds a head
        that differs; transformers unties then.
        """
        return self.tie_setting and not any(tensor.role == "head" for tensor in self.vocabulary_tensors())

    @functools.cached_property
    def tie_setting(self) -> bool:
        """What config.json says, or the architecture's default where it says nothing."""
        found = ties(self.record, self.config)
        return not any(self.record.role(name) == "head" for name in self.tensors) if found is None else found

    @property
    def table(self) -> str:
        """The name of the input table (V, d)."""
        return self.vocabulary_tensors()[0].name

    @property
    def vocabulary_size(self) -> int:
        """Rows of the input table; a padded table has more than the tokenizer has ids."""
        return self.tensors[self.table].shape[0]

    @property
    def hidden_size(self) -> int:
        """d, the length of a row."""
        return self.tensors[self.table].shape[1]

    def require_rows(self, tokens: int, what: str = "model") -> None:
        """Raises `UserError` where the input table of a `what` has fewer rows than its tokenizer has ids."""
        if self.vocabulary_size < tokens:
            raise UserError(
                f"{self.directory}: the tokenizer has {tokens} ids, but {self.table} only {self.vocabulary_size} rows; "
                f"expected a row for each id; use the tokenizer that the {what} was trained with"
            )

    def require_finite(self, rows: int | None = None) -> None:
        """Reads every weight once.

        Args:
          rows: how many rows of the vocabulary tensors count, where what padding holds does not matter; None: all.

        Raises:
          UserError: a weight is NaN or infinite, or a vocabulary tensor is not of a floating type.
        """
        vocabulary = {tensor.name: tensor for tensor in self.vocabulary_tensors()}
        for name, stored in self.tensors.items():
            if stored.code in FLOATS:
                shape = vocabulary[name].shape(stored.shape, rows) if name in vocabulary and rows is not None else stored.shape
                _check_finite(name, stored, shape)
            elif name in vocabulary:
                raise UserError(f"{stored.file}: tensor {name} is of type {stored.code}; expected one of {', '.join(FLOATS)}")

    @functools.cached_property
    def _with_vocabulary(self) -> tuple[VocabularyTensor, ...]:
        found = {name: role for name in self.tensors if (role := self.record.role(name))}
        for role in ("more_inputs", "head") if self.tie_setting else ("more_inputs",):
            # The encoder's table stands for a shared one that is not stored, a tied head for the input table.
            stand_ins = [name for name, its_role in found.items() if its_role == role]
            if "input" not in found.values() and stand_ins:
                found[min(stand_ins, key=lambda name: ("encoder" not in name, name))] = "input"
        inputs = [name for name, role in found.items() if role == "input"]
        if len(inputs) != 1:
            what = f"{len(inputs)} of them ({', '.join(inputs)})" if inputs else "none"
            raise UserError(f"{self.directory}: expected one input table of a {self.architecture} model, found {what}")
        self._check_shapes(found, inputs[0])
        order = ("input", "more_inputs", "head", "bias")
        return tuple(
            VocabularyTensor(
                name=name,
                role="input" if role == "more_inputs" else role,
                axis=int(role == "bias" and len(self.tensors[name].shape) == 2),
            )
            for name, role in sorted(found.items(), key=lambda item: order.index(item[1]))
        )

    def _check_shapes(self, found: Mapping[str, str], table: str) -> None:
        shape, place, size = self.tensors[table].shape, self.directory / "config.json", stated_size(self.config)
        if len(shape) != 2 or size not in (None, shape[0]):
            raise UserError(
                f"{place}: vocab_size is {size}, but {table} has shape {shape}; expected as many rows; copy both again"
            )
        if self.config.get("share_encoder_decoder_embeddings", True) is False:
            raise UserError(
                f"{place}: share_encoder_decoder_embeddings is false: source and target text have vocabularies of their own; "
                "expected a model with one vocabulary"
            )
        for name, role in found.items():
            stored = self.tensors[name]
            if stored.shape not in ((shape[:1], (1, shape[0])) if role == "bias" else (shape,)):
                raise UserError(
                    f"{stored.file}: {name} has shape {stored.shape}, and the input table {shape}; expected the same vocabulary"
                )
        for name, stored in self.tensors.items():
            ends = (*stored.shape[:1], *stored.shape[-1:])
            if name not in found and shape[0] in ends and not has_no_vocabulary(name):
                raise UserError(
                    f"{stored.file}: {name} has an axis as long as the vocabulary ({shape[0]}), and is no tensor that a "
                    f"{self.architecture} model is known to have; expected a plain model; save the model without it"
                )


def write_checkpoint(
    directory: str | os.PathLike,
    config: Mapping,
    tensors: Mapping[str, StoredTensor | ComputedTensor | np.ndarray],
    tokenizer: "str | os.PathLike | PreTrainedTokenizerFast | None" = None,
    generation_config: Mapping | None = None,
    shards: Mapping[str, str] | None = None,
) -> None:
    """Writes what transformers loads: config.json, model.safetensors (or shards and their index), and the tokenizer's files.

    Args:
      directory: an existing directory, usually one of `files.new_directory`.
      config: the content of config.json.
      tensors: name -> array, stored tensor (copied byte for byte) or computed tensor.
      tokenizer: the tokenizer or its place, saved as exactly the tokenizer that `load_tokenizer` returns, but for whether it
        names the segments of a pair (`token_type_ids`): where the model knows segments; None: no tokenizer.
      generation_config: the content of generation_config.json; None: no such file.
      shards: which tensors share a file, see `tensors.write_shards`; None: one file, unless it would be too large.
    """
    directory = Path(directory)
    write_json(directory / "config.json", config)
    if generation_config is not None:
        write_json(directory / "generation_config.json", generation_config)
    if tokenizer is not None:
        _write_tokenizer(directory, tokenizer, config)
    write_shards(directory, tensors, shards)


def _write_tokenizer(directory: Path, tokenizer: "str | os.PathLike | PreTrainedTokenizerFast", config: Mapping) -> None:
    place = tokenizer if isinstance(tokenizer, str | os.PathLike) else getattr(tokenizer, "name_or_path", "")
    loaded = load_tokenizer(tokenizer) if isinstance(tokenizer, str | os.PathLike) else tokenizer
    # `model(**tokenizer(text))` of transformers hands over what the tokenizer names: segments to models that know them.
    segments = (config.get("type_vocab_size") or 1) > 1
    if segments != ("token_type_ids" in loaded.model_input_names):
        names = ["input_ids", *["token_type_ids"][:segments], "attention_mask"]
        loaded.model_input_names = loaded.init_kwargs["model_input_names"] = names
    # As in config.json: it names code that is neither run nor copied.
    loaded.init_kwargs.pop("auto_map", None)
    write_tokenizer(loaded, directory)
    extra = [name for name in EXTRA_TOKENIZER_FILES if place and (Path(place) / name).is_file()]
    # Those beside a tokenizer that was extended since say less than it has.
    if extra and load_tokenizer(place).get_vocab() == loaded.get_vocab():
        for name in extra:
            if not (directory / name).exists():
                shutil.copyfile(Path(place) / name, directory / name)


def _check_finite(name: str, stored: StoredTensor, shape: tuple[int, ...]) -> None:
    """Checks the first elements of a tensor, as many as `shape` has."""
    width = FLOATS[stored.code].dtype.itemsize
    begin = 0
    for block in stored.blocks(math.prod(shape) * width):
        wrong = first_nonfinite(block, stored.code)
        if wrong is not None:
            row = (begin + wrong) // max(math.prod(shape[1:]), 1) if shape[:1] != (1,) else begin + wrong
            raise UserError(f"{stored.file}: tensor {name} holds NaN or infinity in row {row}; expected finite weights")
        begin += len(block) // width


def _same(one: StoredTensor, other: StoredTensor) -> bool:
    if (one.code, one.shape) != (other.code, other.shape):
        return False
    return all(first == second for first, second in zip(one.blocks(), other.blocks(), strict=True))


def _locate(path: str | os.PathLike) -> Path:
    place = Path(path)
    if place.is_dir():
        return place
    if os.path.lexists(place):
        raise UserError(f"{path}: {'is a file' if place.is_file() else 'is no directory'}; expected {_EXPECTED}")
    if not HUB_ID.fullmatch(os.fspath(path)):
        raise UserError(f"{path}: no such directory; expected {_EXPECTED}")
    return download(os.fspath(path), _HUB_FILES, _EXPECTED)


def _refuse_weights(directory: Path, config: Mapping) -> None:
    if not any(directory.glob("pytorch_model*.bin*")):
        raise UserError(f"{directory}: holds no model.safetensors; expected {_EXPECTED}")
    names = config.get("architectures") or ["AutoModel"]
    loader = names[0] if isinstance(names[0], str) and names[0].isidentifier() else "AutoModel"
    place = str(directory)
    command = f'python -c "import transformers as t; t.{loader}.from_pretrained({place!r}).save_pretrained({place!r})"'
    raise UserError(f"{directory}: holds pickled weights, which are never read; where torch is installed, run {command}")
