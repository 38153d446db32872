"""What a model is, read from the fields of a Hugging Face `config.json`."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from wechsel_jax.errors import UserError

ACTIVATIONS = ("gelu", "gelu_python", "gelu_new", "gelu_fast", "gelu_pytorch_tanh", "relu", "silu", "swish", "tanh")


@dataclasses.dataclass(frozen=True)
class ModelConfig:
    """Everything that decides a model's shapes and its arithmetic; hashable, so a static argument of `jax.jit`.

    Attributes:
      model_type: the family's name in `config.json`.
      vocabulary_size: V, rows of the token table.
      hidden_size: d.
      layers: N.
      heads: attention heads; d is a multiple of it.
      inner_size: width of the feed-forward layers.
      max_length: the longest sequence, in tokens (usable positions, without the rows that RoBERTa skips).
      activation: Hugging Face's name of the feed-forward activation.
      norm_epsilon: of every layer norm.
      embedding_dropout: rate after the embeddings.
      attention_dropout: rate on the attention probabilities.
      residual_dropout: rate on what each sublayer adds.
      initializer_range: standard deviation of new weights.
      tied: whether the head is the token table.
      scale_attention: whether scores are divided by the square root of the head size.
      pad_token_id: decides RoBERTa's positions; None where the family does not use it.
      type_vocabulary_size: rows of the segment table; 0 where the family has none.
      remat: recompute each layer in the backward pass, which saves memory and costs a third more computing.
      unroll: how many layers one iteration of the loop over layers holds.
    """

    model_type: str
    vocabulary_size: int
    hidden_size: int
    layers: int
    heads: int
    inner_size: int
    max_length: int
    activation: str
    norm_epsilon: float
    embedding_dropout: float
    attention_dropout: float
    residual_dropout: float
    initializer_range: float = 0.02
    tied: bool = True
    scale_attention: bool = True
    pad_token_id: int | None = None
    type_vocabulary_size: int = 0
    remat: bool = False
    unroll: int = 1

    def override(self, **overrides: Any) -> "ModelConfig":
        """Returns a copy with some fields replaced; `dropout` stands for the three dropout rates at once.

        Raises:
          UserError: a name is no field, or a value makes no model.
        """
        overrides = {name: value for name, value in overrides.items() if value is not None}
        if "dropout" in overrides:
            rate = overrides.pop("dropout")
            overrides = dict.fromkeys(("embedding_dropout", "attention_dropout", "residual_dropout"), rate) | overrides
        known = [field.name for field in dataclasses.fields(self)]
        for name in overrides:
            if name not in known:
                raise UserError(f"model: no setting named {name}; expected one of dropout, {', '.join(known)}")
        return dataclasses.replace(self, **overrides).validated()

    def validated(self) -> "ModelConfig":
        """Returns itself, or raises `UserError` where the fields contradict each other."""
        for name in ("vocabulary_size", "hidden_size", "layers", "heads", "inner_size", "max_length", "unroll"):
            if getattr(self, name) < 1:
                raise UserError(f"config.json: {self.model_type} has {name} {getattr(self, name)}; expected at least 1")
        if self.hidden_size % self.heads:
            raise UserError(f"config.json: hidden size {self.hidden_size} is no multiple of {self.heads} attention heads")
        for name in ("embedding_dropout", "attention_dropout", "residual_dropout"):
            if not 0.0 <= getattr(self, name) < 1.0:
                raise UserError(f"config.json: {name} is {getattr(self, name)}; expected a rate from 0 to less than 1")
        if self.activation not in ACTIVATIONS:
            raise UserError(f"config.json: activation {self.activation!r} is unknown; expected one of {', '.join(ACTIVATIONS)}")
        return self


class Fields:
    """Reads `config.json` fields with Hugging Face's defaults and its alternative names.

    Args:
      values: the fields as a dictionary.
      defaults: the family's defaults, by the name that `config.json` uses; None is a legal default, absence means "required".
      aliases: alternative name -> name in `config.json`.
    """

    def __init__(self, values: Mapping[str, Any], defaults: Mapping[str, Any], aliases: Mapping[str, str] | None = None):
        renamed = {(aliases or {}).get(name, name): value for name, value in values.items()}
        self._values = {**defaults, **renamed}

    def __getitem__(self, name: str) -> Any:
        if name not in self._values:
            raise UserError(f"config.json: no field {name}; expected it to be set for this model type")
        return self._values[name]

    def number(self, name: str, kind: type = int) -> Any:
        """Returns a field as `kind` (int or float)."""
        value = self[name]
        if isinstance(value, bool) or not isinstance(value, (int, float)) or kind(value) != value:
            raise UserError(f"config.json: {name} is {value!r}; expected a number ({kind.__name__})")
        return kind(value)

    def refuse(self, **unsupported: Any) -> None:
        """Raises `UserError` where a field differs from the only value that is implemented.

        Args:
          **unsupported: field name = the value that is implemented. A field that is missing or None passes.
        """
        for name, supported in unsupported.items():
            value = self._values.get(name)
            if value is not None and value != supported:
                raise UserError(
                    f"config.json: {name} is {value!r}, which is not implemented; expected {supported!r}; take another model"
                )
