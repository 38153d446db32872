"""A model directory as data: its config, its tensors on disk, and which of them have a vocabulary axis."""

import dataclasses
import json
import os
import re
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from wechsel_jax.architectures import Architecture, architecture, has_no_vocabulary
from wechsel_jax.errors import UserError
from wechsel_jax.files import require_file
from wechsel_jax.tensors import INDEX_FILE, SINGLE_FILE, ComputedTensor, StoredTensor, TensorFiles, write_tensors
from wechsel_jax.tokens import load_tokenizer

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

_EXPECTED = "a model directory with config.json and model.safetensors, or the id of a model on the hub"
_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?")
_HUB_FILES = ["*.json", "*.safetensors", "tokenizer*", "vocab.*", "merges.txt", "*.model", "*.jinja"]
# For programs that do not read tokenizer.json.
_EXTRA_TOKENIZER_FILES = ("vocab.json", "merges.txt", "vocab.txt", "sentencepiece.bpe.model", "spiece.model", "tokenizer.model")
_FLOATS = ("F16", "BF16", "F32", "F64")
_ROWS_AT_ONCE = 8192


@dataclasses.dataclass(frozen=True)
class VocabularyTensor:
    """A tensor whose first axis is the vocabulary; `role` is "input", "head" or "bias"."""

    name: str
    role: str


@dataclasses.dataclass(frozen=True)
class Checkpoint:
    """A model directory; tensors stay on disk until they are read.

    Attributes:
      directory: where the files are (a folder of the hub's cache for a hub id).
      config: the content of config.json.
      tensors: name -> where the tensor lies.
      generation_config: the content of generation_config.json, where there is one.
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
        config = read_json(directory / "config.json", "the config.json of a model")
        if not isinstance(config.get("model_type"), str):
            raise UserError(f"{directory / 'config.json'}: has no model_type; expected the config.json of a transformers model")
        if not any((directory / name).exists() for name in (SINGLE_FILE, INDEX_FILE)):
            _refuse_weights(directory, config)
        generation = directory / "generation_config.json"
        generation_config = read_json(generation, "a generation_config.json") if generation.exists() else None
        return cls(directory, config, TensorFiles.open(directory), generation_config)

    @property
    def architecture(self) -> str:
        """The `model_type`, e.g. "gpt2"."""
        return self.config["model_type"]

    @property
    def record(self) -> Architecture:
        """What is known of the architecture; `UserError` for one that is not supported."""
        return architecture(self.architecture, self.directory / "config.json")

    def names(self) -> tuple[str, ...]:
        """The names of all tensors."""
        return tuple(self.tensors)

    def read(self, name: str) -> np.ndarray:
        """One tensor, as a read-only memory map."""
        return self.tensors[name].read()

    def vocabulary_tensors(self) -> tuple[VocabularyTensor, ...]:
        """Finds every tensor with a vocabulary axis: the input table first, then heads, then biases.

        A head that only repeats a tied input table is not among them: see `tied_copies`.

        Raises:
          UserError: there is no input table, sizes disagree, or a tensor may or may not have a vocabulary axis.
        """
        copies = self.tied_copies()
        return tuple(tensor for tensor in self._with_vocabulary() if tensor.name not in copies)

    def tied_copies(self) -> tuple[str, ...]:
        """Names of stored heads that only repeat the tied input table; a saved checkpoint need not hold them."""
        found = self._with_vocabulary()
        if not self._config_ties():
            return ()
        (table, *_) = (tensor.name for tensor in found if tensor.role == "input")
        return tuple(tensor.name for tensor in found if tensor.role == "head" and self._same(tensor.name, table))

    @property
    def tied(self) -> bool:
        """Whether the output head is the input table.

        So it is where config.json says so or says nothing, unless the file holds a head that differs; transformers unties then.
        """
        return self._config_ties() and not any(tensor.role == "head" for tensor in self.vocabulary_tensors())

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

    def check_weights(self, rows: int) -> None:
        """Reads every weight once.

        Args:
          rows: how many rows of the vocabulary tensors count; what padding holds does not matter.

        Raises:
          UserError: a weight is NaN or infinite, or a vocabulary tensor is not of a floating type.
        """
        vocabulary = {tensor.name for tensor in self.vocabulary_tensors()}
        for name, stored in self.tensors.items():
            if stored.code in _FLOATS:
                _check_finite(name, stored, rows if name in vocabulary else None)
            elif name in vocabulary:
                raise UserError(f"{stored.file}: tensor {name} is of type {stored.code}; expected one of {', '.join(_FLOATS)}")

    def _config_ties(self) -> bool:
        return self.config.get("tie_word_embeddings", True) is not False

    def _same(self, one: str, other: str) -> bool:
        first, second = self.tensors[one], self.tensors[other]
        if (first.code, first.shape) != (second.code, second.shape):
            return False
        first, second = (tensor.read() for tensor in (first, second))
        blocks = [slice(start, start + _ROWS_AT_ONCE) for start in range(0, len(first), _ROWS_AT_ONCE)]
        return all(np.array_equal(first[block], second[block]) for block in blocks)

    def _with_vocabulary(self) -> list[VocabularyTensor]:
        record, weights = self.record, self.directory / "config.json"
        found = [VocabularyTensor(name, role) for name in self.tensors if (role := record.role(name))]
        if not any(tensor.role == "input" for tensor in found) and self._config_ties():
            found = [dataclasses.replace(tensor, role="input") if tensor.role == "head" else tensor for tensor in found]
        inputs = [tensor.name for tensor in found if tensor.role == "input"]
        if len(inputs) != 1:
            what = f"{len(inputs)} of them ({', '.join(inputs)})" if inputs else "none"
            raise UserError(f"{self.directory}: expected one input table of a {self.architecture} model, found {what}")
        shape = self.tensors[inputs[0]].shape
        if len(shape) != 2 or shape[0] != self.config.get("vocab_size"):
            raise UserError(f"{weights}: vocab_size is {self.config.get('vocab_size')}, but {inputs[0]} has shape {shape}")
        for tensor in found:
            if self.tensors[tensor.name].shape != (shape[:1] if tensor.role == "bias" else shape):
                raise UserError(
                    f"{self.tensors[tensor.name].file}: {tensor.name} has shape {self.tensors[tensor.name].shape}, "
                    f"and the input table {shape}; expected the same vocabulary"
                )
        self._refuse_unknown({tensor.name for tensor in found}, shape[0])
        return sorted(found, key=lambda tensor: ("input", "head", "bias").index(tensor.role))

    def _refuse_unknown(self, known: set[str], size: int) -> None:
        for name, stored in self.tensors.items():
            if name not in known and stored.shape[:1] == (size,) and not has_no_vocabulary(name):
                raise UserError(
                    f"{stored.file}: {name} has as many rows as there are tokens ({size}), and is no tensor that a "
                    f"{self.architecture} model is known to have; expected a plain model; save the model without it"
                )


def write_checkpoint(
    directory: str | os.PathLike,
    config: Mapping,
    tensors: Mapping[str, StoredTensor | ComputedTensor | np.ndarray],
    tokenizer: "str | os.PathLike | PreTrainedTokenizerFast | None" = None,
    generation_config: Mapping | None = None,
) -> None:
    """Writes what transformers loads: config.json, model.safetensors, and the tokenizer's files.

    Args:
      directory: an existing directory, usually one of `files.new_directory`.
      config: the content of config.json.
      tensors: name -> array, stored tensor (copied byte for byte) or computed tensor.
      tokenizer: the tokenizer or its place, saved as exactly the tokenizer that `load_tokenizer` returns; None: no tokenizer.
      generation_config: the content of generation_config.json; None: no such file.
    """
    directory = Path(directory)
    write_json(directory / "config.json", config)
    if generation_config is not None:
        write_json(directory / "generation_config.json", generation_config)
    if tokenizer is not None:
        _write_tokenizer(directory, tokenizer)
    write_tensors(directory / SINGLE_FILE, tensors)


def read_json(path: Path, what: str) -> dict:
    """Reads a JSON object; `UserError` where the file holds none."""
    require_file(path, what)
    try:
        content = json.loads(path.read_bytes().decode("utf-8"))
    except (ValueError, RecursionError):
        raise UserError(f"{path}: not JSON; expected {what}; copy the file again") from None
    if not isinstance(content, dict):
        raise UserError(f"{path}: holds no JSON object; expected {what}; copy the file again")
    return content


def write_json(path: Path, content: Mapping) -> None:
    """Writes a JSON object as transformers does: indented, non-ASCII characters as they are."""
    path.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def _write_tokenizer(directory: Path, tokenizer: "str | os.PathLike | PreTrainedTokenizerFast") -> None:
    place = tokenizer if isinstance(tokenizer, str | os.PathLike) else getattr(tokenizer, "name_or_path", "")
    loaded = load_tokenizer(tokenizer) if isinstance(tokenizer, str | os.PathLike) else tokenizer
    try:
        loaded.save_pretrained(directory)
    except OSError:
        raise
    except Exception as error:  # the Rust side raises plain Exception for a full disk
        number = re.search(r"os error (\d+)", str(error))
        if number is None:
            raise
        raise OSError(int(number[1]), os.strerror(int(number[1])), os.fspath(directory / "tokenizer.json")) from error
    for name in _EXTRA_TOKENIZER_FILES:
        if place and (Path(place) / name).is_file() and not (directory / name).exists():
            shutil.copyfile(Path(place) / name, directory / name)


def _check_finite(name: str, stored: StoredTensor, rows: int | None) -> None:
    array = np.atleast_1d(stored.read())[:rows]
    for start in range(0, len(array), _ROWS_AT_ONCE):
        block = array[start : start + _ROWS_AT_ONCE]
        bad = np.flatnonzero(~np.isfinite(block).reshape(len(block), -1).all(axis=1))
        if bad.size:
            row = start + bad[0]
            raise UserError(f"{stored.file}: tensor {name} holds NaN or infinity in row {row}; expected finite weights")


def _locate(path: str | os.PathLike) -> Path:
    place = Path(path)
    if place.is_dir():
        return place
    if place.exists():
        raise UserError(f"{path}: is a file; expected {_EXPECTED}")
    if not _HUB_ID.fullmatch(os.fspath(path)):
        raise UserError(f"{path}: no such directory; expected {_EXPECTED}")
    from huggingface_hub import snapshot_download

    try:
        return Path(snapshot_download(os.fspath(path), allow_patterns=_HUB_FILES))
    except Exception as error:  # huggingface_hub lets through its own errors, its HTTP client's and the system's
        reason = (str(error).strip() or type(error).__name__).splitlines()[0][:200]
        raise UserError(f"{path}: no such directory, and not to be had from the hub ({reason}); expected {_EXPECTED}") from None


def _refuse_weights(directory: Path, config: Mapping) -> None:
    if not any(directory.glob("pytorch_model*.bin*")):
        raise UserError(f"{directory}: holds no model.safetensors; expected {_EXPECTED}")
    names = config.get("architectures") or ["AutoModel"]
    loader = names[0] if isinstance(names[0], str) and names[0].isidentifier() else "AutoModel"
    place = str(directory)
    command = f'python -c "import transformers as t; t.{loader}.from_pretrained({place!r}).save_pretrained({place!r})"'
    raise UserError(f"{directory}: holds pickled weights, which are never read; where torch is installed, run {command}")
