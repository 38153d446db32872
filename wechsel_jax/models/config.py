"""What a model is, read from the fields of a Hugging Face `config.json`."""

import dataclasses
import math
from collections.abc import Callable, Mapping
from typing import Any

from wechsel_jax.errors import UserError
from wechsel_jax.models.rotary import LARGEST_NUMBER, Rope

REMATS = ("none", "dots", "full")
ACTIVATIONS = ("gelu", "gelu_python", "gelu_new", "gelu_fast", "gelu_pytorch_tanh", "relu", "silu", "swish", "tanh")

POSITIONS = ("learned", "padded", "sinusoidal", "rotary", "literal", "paired", "none")


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
      scaled_outputs: whether the 2 N projections into the residual stream start smaller by 1 / sqrt(2 N), as GPT-2's do.
      tied: whether the head is the token table.
      positions: "learned": a table; "padded": a table, counted from pad_token_id + 1 and without padding tokens; "sinusoidal":
        computed, counted from 2; "rotary": in each layer, see `rope`; "literal", "paired", "none": see `vanilla`.
      pad_token_id: its row of the token table starts as zeros, and padded positions count from it; None: there is no such row.
      type_vocabulary_size: rows of the segment table; 0 where the family has none.
      head_activation: activation in the head of a masked language model.
      fused_qkv: whether one matrix projects to queries, keys and values, with a bias, as GPT-2 and the encoders have it here;
        their heads share nothing.
      key_value_heads: heads of keys and values, each read by heads / key_value_heads queries; None: as many as `heads`.
      head_size: c, features of a head; None: d / heads.
      gated: whether the feed-forward layer multiplies an activated projection with a second one.
      qkv_bias: whether the projections to queries, keys and values have biases.
      output_bias: whether the projection out of the attention has one.
      mlp_bias: whether the feed-forward layers have biases.
      rms_norm: norms divide by the root mean square and have no bias (Zhang and Sennrich, 2019).
      norm_offset: what is added to a norm's scale before it is used; Gemma keeps scales around 0 and adds 1.
      post_norms: whether what a sublayer adds is normed too.
      query_key_norms: whether each head's queries and keys are normed.
      query_scale: what attention scores are multiplied by; None: 1 / sqrt(c).
      score_cap: scores s become cap * tanh(s / cap); None: they stay.
      logit_cap: the same for the logits.
      embedding_scale: what looked-up token rows are multiplied by.
      inner_dropout: rate after the feed-forward activation.
      rope: frequencies of rotary positions.
      window_rope: those of the layers with a window, where they differ.
      window: how many tokens, itself included, a query sees in layers with a window.
      windowed: whether each layer has a window; empty: none has.
      remat: what the backward pass computes again to save memory: "none", "dots" (all but the matrix products of weights)
        or "full" (each whole layer, a third more computing).
      scan_layers: whether the layers run in one loop, which compiles in a time that does not grow with N, or unrolled.
      labels: C, scores of a head for labels, see `heads.with_head`; 0 where there is none.
      classifier_dropout: rate in that head.
      label_padding_id: a causal model's label is read at the last token that is another, as Hugging Face's classes do it, also
        where it ends a text; None: at the last token of the text.
      target_vocabulary_size: V_t of an encoder-decoder, see `vanilla`; 0 of all other models.
      decoder_layers: of an encoder-decoder.
      language_count: rows of the table of languages, see `trilayer`; 0 where the model knows none.
      tri_layer: whether a layer between the halves may reorder the states, see `trilayer`.
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
    scaled_outputs: bool = False
    tied: bool = True
    positions: str = "learned"
    pad_token_id: int | None = None
    type_vocabulary_size: int = 0
    head_activation: str = "gelu"
    fused_qkv: bool = False
    key_value_heads: int | None = None
    head_size: int | None = None
    gated: bool = False
    qkv_bias: bool = True
    output_bias: bool = True
    mlp_bias: bool = True
    rms_norm: bool = False
    norm_offset: float = 0.0
    post_norms: bool = False
    query_key_norms: bool = False
    query_scale: float | None = None
    score_cap: float | None = None
    logit_cap: float | None = None
    embedding_scale: float = 1.0
    inner_dropout: float = 0.0
    rope: Rope | None = None
    window_rope: Rope | None = None
    window: int | None = None
    windowed: tuple[bool, ...] = ()
    remat: str = "none"
    scan_layers: bool = True
    labels: int = 0
    classifier_dropout: float = 0.0
    label_padding_id: int | None = None
    target_vocabulary_size: int = 0
    decoder_layers: int = 0
    language_count: int = 0
    tri_layer: bool = False

    def override(self, **overrides: Any) -> "ModelConfig":
        """Returns a copy with some fields replaced; `dropout` stands for the dropout rates at once: those of embeddings,
        attention and residuals, and the inner and the head's one where the model has them.

        Raises:
          UserError: a name is no field, or a value makes no model.
        """
        overrides = {name: value for name, value in overrides.items() if value is not None}
        if "dropout" in overrides:
            rate = overrides.pop("dropout")
            rates = ("embedding_dropout", "attention_dropout", "residual_dropout")
            rates += tuple(name for name in ("inner_dropout", "classifier_dropout") if getattr(self, name))
            overrides = dict.fromkeys(rates, rate) | overrides
        known = [field.name for field in dataclasses.fields(self)]
        for name in overrides:
            if name not in known:
                raise UserError(f"model: no setting named {name}; expected one of dropout, {', '.join(known)}")
        return dataclasses.replace(self, **overrides).validated()

    @property
    def head_features(self) -> int:
        """c, features of one attention head."""
        return self.head_size or self.hidden_size // self.heads

    @property
    def residual_range(self) -> float:
        """Standard deviation of new weights of the projections into the residual stream."""
        return self.initializer_range / (math.sqrt(2 * self.layers) if self.scaled_outputs else 1.0)

    def validated(self) -> "ModelConfig":
        """Returns itself, or raises `UserError` where the fields contradict each other."""
        for name in ("vocabulary_size", "hidden_size", "layers", "heads", "inner_size", "max_length"):
            if getattr(self, name) < 1:
                raise UserError(f"config.json: {self.model_type} has {name} {getattr(self, name)}; expected at least 1")
        for name in ("head_size", "key_value_heads", "window", "query_scale", "score_cap", "logit_cap"):
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise UserError(f"config.json: {self.model_type} has {name} {value}; expected a number above 0")
        if self.head_size is None and self.hidden_size % self.heads:
            raise UserError(f"config.json: hidden size {self.hidden_size} is no multiple of {self.heads} attention heads")
        if self.heads % (self.key_value_heads or self.heads):
            raise UserError(
                f"config.json: {self.heads} attention heads are no multiple of {self.key_value_heads} key and value heads"
            )
        for name in ("embedding_dropout", "attention_dropout", "residual_dropout", "inner_dropout", "classifier_dropout"):
            if not 0.0 <= getattr(self, name) < 1.0:
                raise UserError(f"config.json: {name} is {getattr(self, name)}; expected a rate from 0 to less than 1")
        for activation in (self.activation, self.head_activation):
            if activation not in ACTIVATIONS:
                raise UserError(f"config.json: activation {activation!r} is unknown; expected one of {', '.join(ACTIVATIONS)}")
        if self.language_count < 0:
            raise UserError(f"config.json: language_count is {self.language_count}; expected 0 or more")
        if self.tri_layer and self.layers < 2:
            raise UserError(
                f"config.json: {self.layers} layer has no two halves; expected at least 2, or tri_layer to be false"
            )
        if self.remat not in REMATS:
            raise UserError(f"model: remat is {self.remat!r}; expected one of {', '.join(REMATS)}")
        self._check_positions()
        return self

    def _check_positions(self) -> None:
        if self.positions not in POSITIONS:
            raise UserError(f"config.json: positions are {self.positions!r}; expected one of {', '.join(POSITIONS)}")
        if self.positions == "rotary" and (self.rope is None or self.head_features % 2):
            raise UserError(
                f"config.json: rotary positions need heads of an even size and frequencies; a head has {self.head_features}"
            )
        if self.windowed and len(self.windowed) != self.layers:
            raise UserError(
                f"config.json: layer_types names {len(self.windowed)} layers; expected one for each of {self.layers} layers"
            )
        if any(self.windowed) and self.window is None:
            raise UserError("config.json: layers have a sliding window of no size; expected sliding_window to be a number")


class _Watched(dict):
    """Fields that know which were asked for."""

    def __init__(self, values: Mapping[str, Any]):
        super().__init__(values)
        self.asked: set[str] = set()


def fields_read(read_config: Callable[[Mapping[str, Any]], Any], values: Mapping[str, Any]) -> set[str]:
    """Returns the names of the fields that a family's `read_config` looks at; of those in `values` also their other names."""
    watched = _Watched(values)
    read_config(watched)
    return watched.asked


class Fields:
    """Reads `config.json` fields with Hugging Face's defaults and its alternative names.

    Args:
      values: the fields as a dictionary.
      defaults: the family's defaults, by the name that `config.json` uses; None is a legal default, absence means "required".
      aliases: alternative name -> name in `config.json`.
    """

    def __init__(self, values: Mapping[str, Any], defaults: Mapping[str, Any], aliases: Mapping[str, str] | None = None):
        self._names = {name: (aliases or {}).get(name, name) for name in values}
        self._values = {**defaults, **{self._names[name]: value for name, value in values.items()}}
        self._given = values

    def __getitem__(self, name: str) -> Any:
        if name not in self._values:
            raise UserError(f"config.json: no field {name}; expected it to be set for this model type")
        return self.get(name)

    def number(self, name: str, kind: type = int) -> Any:
        """Returns a field as `kind` (int or float)."""
        value = self[name]
        number = isinstance(value, (int, float)) and not isinstance(value, bool)
        if not number or not abs(value) < LARGEST_NUMBER or kind(value) != value:
            raise UserError(f"config.json: {name} is {value!r}; expected a number ({kind.__name__})")
        return kind(value)

    def refuse(self, **unsupported: Any) -> None:
        """Raises `UserError` where a field differs from the only value that is implemented.

        Args:
          **unsupported: field name = the value that is implemented. A field that is missing or None passes.
        """
        for name, supported in unsupported.items():
            value = self.get(name)
            if value is not None and value != supported:
                raise UserError(
                    f"config.json: {name} is {value!r}, which is not implemented; expected {supported!r}; take another model"
                )

    def optional(self, name: str, kind: type = int) -> Any:
        """Returns a field as `kind`, or None where it is None."""
        return None if self[name] is None else self.number(name, kind)

    def flag(self, name: str) -> bool:
        """Returns a field that is true or false."""
        value = self[name]
        if not isinstance(value, bool):
            raise UserError(f"config.json: {name} is {value!r}; expected true or false")
        return value

    def get(self, name: str) -> Any:
        """Returns a field, None where it is absent."""
        if isinstance(self._given, _Watched):
            self._given.asked |= {name, *(given for given, canonical in self._names.items() if canonical == name)}
        return self._values.get(name)

    def padding(self, vocabulary_size: int) -> int | None:
        """Returns the padding token's id or None; a negative one counts from the end, as in torch."""
        token = self.optional("pad_token_id")
        if token is not None and not -vocabulary_size <= token < vocabulary_size:
            raise UserError(f"config.json: pad_token_id is {token}; expected an id from 0 to {vocabulary_size - 1}, or null")
        return token if token is None else token % vocabulary_size
