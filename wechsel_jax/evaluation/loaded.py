"""A model directory, ready to be run and scored on all devices."""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import jax
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from wechsel_jax.checkpoint import Checkpoint
from wechsel_jax.errors import UserError
from wechsel_jax.models import Family, ModelConfig
from wechsel_jax.models.heads import is_translator, stated_family, stated_head
from wechsel_jax.records.run import exported_model
from wechsel_jax.tokens import Vocabulary, load_tokenizer
from wechsel_jax.tokens.encoding import plain_backend
from wechsel_jax.tokens.files import rowless_tokens

if TYPE_CHECKING:
    from tokenizers import Tokenizer
    from transformers import PreTrainedTokenizerFast

DTYPES = ("float32", "bfloat16")
# Where the directory of an encoder-decoder keeps the tokenizer of its translations; the other one is that of the sources.
TARGET_TOKENIZER = "target_tokenizer"
# (whether it translates, whether it has a head for labels) -> what a model is.
_KINDS = {
    (False, False): "a language model",
    (False, True): "a model with a head for labels, as `train.finetune` exports it",
    (True, False): "an encoder-decoder that translates",
}


def few_tokens(place: str | os.PathLike, tokens: int, rows: int) -> str:
    """Says that a tokenizer has so few tokens for the rows of a model that it may be another model's; "" where it has not."""
    # Rows are padded to a multiple of some hundred; published models have a few in a hundred behind their tokens.
    if rows - tokens <= max(rows // 10, 127):
        return ""
    return f"{place}: its tokenizer has {tokens:,} tokens, and the model {rows:,} rows: make sure that it is the model's own"


def tokenizer_note(place: str | os.PathLike, tokenizer: "PreTrainedTokenizerFast", rows: int) -> str:
    """What the user should know about a tokenizer beside a model of so many rows, or ""."""
    if lacking := rowless_tokens(tokenizer):
        return f"{place}: {', '.join(lacking)}: without a row in the model, so left out"
    return few_tokens(place, len(tokenizer), rows)


@dataclass(frozen=True, eq=False)
class LoadedModel:
    """A model with its parameters on the devices; `LoadedModel.open` reads one.

    Every device of this process holds all parameters; the rows of a batch are split over them.

    Attributes:
      directory: where it was read from.
      family: of the model.
      config: its configuration, without dropout.
      parameters: nested float32 arrays.
      tokenizer: of the model.
      generation_config: fields of generation_config.json; empty where there is none.
      dtype: what matrix products compute in.
      mesh: one axis, "data".
      target_tokenizer: of an encoder-decoder's translations; None for other models.
    """

    directory: Path
    family: Family
    config: ModelConfig
    parameters: dict[str, Any] = field(repr=False)
    tokenizer: "PreTrainedTokenizerFast" = field(repr=False)
    generation_config: Mapping[str, Any]
    dtype: str
    mesh: Mesh = field(repr=False)
    target_tokenizer: "PreTrainedTokenizerFast | None" = field(repr=False)

    @classmethod
    def open(
        cls, directory: str | os.PathLike, *, dtype: str = "float32", labels: bool = False, translation: bool = False
    ) -> Self:
        """Reads a model directory, or one of the hub, or what a run exported.

        Args:
          directory: with config.json, the weights and the tokenizer; or a run's workdir.
          dtype: what matrix products compute in, "float32" or "bfloat16".
          labels: whether it shall be a model with a head for labels.
          translation: whether it shall be an encoder-decoder. Without both it shall be a language model.

        Raises:
          UserError: it is no such directory, is damaged, its architecture is none that is implemented here, or its tokenizer
            is another model's.
        """
        if dtype not in DTYPES:
            raise UserError(f"dtype: is {dtype!r}; expected {' or '.join(DTYPES)}")
        checkpoint = Checkpoint.open(exported_model(directory))
        translator = is_translator(checkpoint.config)
        found = _KINDS[translator, stated_head(checkpoint.config) is not None]
        if found != (expected := _KINDS[translation, labels]):
            raise UserError(f"{checkpoint.directory}: is {found}; expected {expected}; name another directory")
        of_model = stated_family(checkpoint.config)
        config = of_model.config(checkpoint.config, dropout=0.0)
        tokenizer = load_tokenizer(checkpoint.directory)
        # Ids may have holes.
        if (size := max(tokenizer.get_vocab().values()) + 1) > config.vocabulary_size:
            raise UserError(
                f"{checkpoint.directory}: has ids up to {size - 1:,} and the model {config.vocabulary_size:,} rows; "
                "expected the tokenizer of the model"
            )
        parameters = of_model.from_hugging_face(checkpoint.arrays(), config)
        mesh = Mesh(np.asarray(jax.local_devices()), ("data",), axis_types=(AxisType.Auto,))
        parameters = jax.device_put(parameters, NamedSharding(mesh, PartitionSpec()))
        given = checkpoint.generation_config or {}
        target = load_tokenizer(checkpoint.directory / TARGET_TOKENIZER) if translator else None
        if target is not None and len(target) > config.target_vocabulary_size:
            raise UserError(
                f"{target.name_or_path}: has {len(target):,} tokens and the decoder {config.target_vocabulary_size:,} rows; "
                "expected the tokenizer of the model's translations"
            )
        return cls(checkpoint.directory, of_model, config, parameters, tokenizer, given, dtype, mesh, target)

    @cached_property
    def vocabulary(self) -> Vocabulary:
        """What the tokens of the tokenizer are."""
        return Vocabulary.from_tokenizer(self.tokenizer)

    @cached_property
    def backend(self) -> "Tokenizer":
        """What cuts texts into tokens, always the same ones, see `plain_backend`."""
        return plain_backend(self.tokenizer)

    @property
    def note(self) -> str:
        """What the user should know about it, or ""."""
        return tokenizer_note(self.directory, self.tokenizer, self.config.vocabulary_size)

    def useless(self, what: str) -> UserError:
        """What is raised where the weights give no numbers."""
        return UserError(f"{self.directory}: {what}; expected weights that give one; `wechsel-jax inspect` looks at them")

    @property
    def rows(self) -> int:
        """Rows of a batch must be a multiple of this."""
        return self.mesh.size

    def rows_for(self, batch_size: int) -> int:
        """The fewest rows of a batch that hold so many."""
        return -(-batch_size // self.rows) * self.rows

    def place(self, batch: np.ndarray) -> jax.Array:
        """Puts an array whose first axis are the rows of a batch on the devices, split over them."""
        return jax.device_put(batch, NamedSharding(self.mesh, PartitionSpec("data")))
