"""One record a model family: all that training and transfer ask of an architecture."""

import dataclasses
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn
from jax.sharding import PartitionSpec

from wechsel_jax.errors import UserError
from wechsel_jax.models.cache import Cache
from wechsel_jax.models.config import ModelConfig
from wechsel_jax.models.layers import WATCHED
from wechsel_jax.models.weights import TensorNames, flatten

Params = dict[str, Any]


@dataclasses.dataclass(frozen=True)
class Family:
    """An architecture. Parameters are a nested dictionary of float32 arrays; paths below are "/"-joined keys.

    Attributes:
      name: `model_type` in `config.json`.
      architecture: the class name that `config.json` lists under `architectures`.
      causal: whether position i sees positions up to i only.
      module: Linen module with `hidden(tokens, mask)`, `logits(hidden)` and `head_flops(config)`: `Decoder` or `Encoder`; the
        first also has `extend(tokens, mask, cache)`.
      read_config: `config.json` fields -> ModelConfig.
      tensors: how checkpoints name the parameters.
      sharding_rules: (regex, PartitionSpec) over a mesh ("data", "fsdp", "tensor"); exactly one matches each path.
      token_parameters: regex of the paths with a vocabulary axis: token table, untied head, bias of the head.
      embedding_parameters: regex of the paths of all embedding tables, untied head and bias of the head included.
    """

    name: str
    architecture: str
    causal: bool
    module: type[nn.Module]
    read_config: Callable[[Mapping[str, Any]], ModelConfig]
    tensors: TensorNames
    sharding_rules: tuple[tuple[str, PartitionSpec], ...]
    token_parameters: str = r"^(token_embedding|head)/embedding$|^head/bias$"
    embedding_parameters: str = r"^((token|position|type|language)_embedding|head)/embedding$|^head/bias$"

    def config(self, hf: Mapping[str, Any], **overrides: Any) -> ModelConfig:
        """Reads `config.json`.

        Args:
          hf: its fields; absent ones take Hugging Face's defaults, except vocab_size, which must be there.
          **overrides: fields of ModelConfig to replace, or `dropout`, see `ModelConfig.override`. None means "leave it".

        Raises:
          UserError: a field asks for something that is not implemented, or makes no model.
        """
        return self.read_config(hf).validated().override(**overrides)

    def init(self, config: ModelConfig, key: jax.Array) -> Params:
        """Draws new parameters with Hugging Face's initialisation; `jax.jit` it with out_shardings for large models."""
        return _init(self.module, config, key)

    def shapes(self, config: ModelConfig) -> dict[str, tuple[int, ...]]:
        """Returns "/"-joined path -> shape of every parameter, without computing anything."""
        tree = jax.eval_shape(partial(_init, self.module, config), jax.random.key(0))
        return {path: leaf.shape for path, leaf in flatten(tree).items()}

    def from_hugging_face(self, tensors: Mapping[str, np.ndarray], config: ModelConfig, lazy: bool = False) -> Params:
        """Builds parameters (float32 numpy arrays) from a checkpoint's tensors of any float type.

        With `lazy`, functions that each build one stand in their place: see `TensorNames.read`.

        Raises:
          UserError: a tensor is missing, has the wrong shape or belongs to no parameter; the message names it.
        """
        return self.tensors.read(tensors, config, self.shapes(config), lazy)

    def to_hugging_face(self, params: Params, config: ModelConfig) -> dict[str, np.ndarray]:
        """Returns the tensors that `save_pretrained` of the Hugging Face class would write, in float32."""
        return self.tensors.write(params, config)

    def apply(
        self,
        params: Params,
        config: ModelConfig,
        *given: Any,
        method: str = "__call__",
        dropout_key: jax.Array | None = None,
        dtype: Any = jnp.float32,
        **named: Any,
    ) -> Any:
        """Calls a method of the module; `dropout_key` turns dropout on, and matrix products compute in `dtype`."""
        module = self.module(config, jnp.dtype(dtype), dropout_key is None)
        rngs = None if dropout_key is None else {"dropout": dropout_key}
        return module.apply({"params": params}, *given, rngs=rngs, method=method, **named)

    def hidden(
        self,
        params: Params,
        config: ModelConfig,
        tokens: jax.Array,
        mask: jax.Array | None = None,
        types: jax.Array | None = None,
        *,
        crossing: Any = None,
        dropout_key: jax.Array | None = None,
        dtype: Any = jnp.float32,
    ) -> jax.Array:
        """Runs the model up to the last hidden state.

        Args:
          params: parameters.
          config: the model's configuration.
          tokens: int32 (B, L).
          mask: bool (B, L), true for real tokens; None where all are.
          types: int32 (B, L), segments of the tokens; None: all are of the first. Of models that tell segments apart only.
          crossing: an `encoder.Crossing`, for models that know languages; see `trilayer`.
          dropout_key: turns dropout on; None is evaluation.
          dtype: what matrix products compute in.

        Returns:
          (B, L, d) of `dtype`.

        Raises:
          UserError: L is more than the model has positions.
        """
        if tokens.shape[1] > config.max_length and (crossing is None or crossing.positions is None):
            raise UserError(f"a block of {tokens.shape[1]} tokens is too long; expected at most {config.max_length}")
        given = (tokens, mask) if crossing is None and types is None else (tokens, mask, types, crossing)
        return self.apply(params, config, *given, method="hidden", dropout_key=dropout_key, dtype=dtype)

    def attended(
        self, params: Params, config: ModelConfig, tokens: jax.Array, layers: int, *, dtype: Any = jnp.float32
    ) -> tuple[jax.Array, jax.Array]:
        """Runs the first layers of a decoder and returns what the last of them attends to.

        Args:
          params: parameters of all layers.
          config: the model's configuration.
          tokens: int32 (B, L).
          layers: how many are run, 1 to N.
          dtype: what matrix products compute in.

        Returns:
          The probabilities (B, heads, L, L), of a query for each key, and the values (B, heads, L, c) of the keys; heads that
          share their values each have a copy.
        """
        few = config.override(layers=layers, windowed=config.windowed[:layers])
        own = {**params, "layers": jax.tree.map(lambda leaf: leaf[:layers], params["layers"])}
        watched = self.apply(own, few, tokens, None, method="hidden", dtype=dtype, mutable=[WATCHED])[1][WATCHED]
        shares, values = (watched["layers"]["attention"][name][0][-1] for name in ("probabilities", "values"))
        values = jnp.repeat(jnp.moveaxis(values, 2, 1), shares.shape[2], axis=1)
        return shares.reshape(*values.shape[:3], tokens.shape[1]), values

    def extend(
        self,
        params: Params,
        config: ModelConfig,
        tokens: jax.Array,
        mask: jax.Array,
        cache: Cache,
        *,
        dtype: Any = jnp.float32,
    ) -> tuple[jax.Array, Cache]:
        """Reads further tokens of texts whose beginnings are in a cache; causal families only.

        Args:
          params: parameters.
          config: the model's configuration.
          tokens: int32 (B, L).
          mask: bool (B, L), true for real tokens. Padding may stand anywhere; what comes of it means nothing.
          cache: of the tokens before, with L slots left. A row of it holds no more real tokens than the model has positions.
          dtype: what matrix products compute in, and of the cache.

        Returns:
          (B, L, d) of `dtype`, the last hidden states of these tokens as `hidden` of the whole texts has them, and the cache
          with these tokens.
        """
        return self.apply(params, config, tokens, mask, cache, method="extend", dtype=dtype)

    def scores(
        self,
        params: Params,
        config: ModelConfig,
        tokens: jax.Array,
        mask: jax.Array | None = None,
        types: jax.Array | None = None,
        *,
        dropout_key: jax.Array | None = None,
        dtype: Any = jnp.float32,
        **words: jax.Array,
    ) -> Any:
        """Scores the labels; of families with a head for them only, see `heads.with_head`.

        Args:
          params: parameters.
          config: the model's configuration.
          tokens: int32 (B, L).
          mask: bool (B, L), true for real tokens; None where all are.
          types: int32 (B, L), segments of the tokens; None: all are of the first. Only where config.type_vocabulary_size is 2
            or more.
          dropout_key: turns dropout on; None is evaluation.
          dtype: what matrix products compute in.
          **words: for trees `words` and `heads`, see `trees.TreeHead`.

        Returns:
          float32 (B, C) for texts, (B, L, C) for tokens, or (B, 2, L) for where answers start and end; `trees.TreeScores` for
          trees.
        """
        if tokens.shape[1] > config.max_length:
            raise UserError(f"a text of {tokens.shape[1]} tokens is too long; expected at most {config.max_length}")
        given = (tokens, mask) if types is None else (tokens, mask, types)
        return self.apply(params, config, *given, dropout_key=dropout_key, dtype=dtype, **words)

    def logits(self, params: Params, config: ModelConfig, hidden: jax.Array, dtype: Any = jnp.float32) -> jax.Array:
        """Scores the vocabulary: hidden (..., d) -> (..., V) float32. Reads the token table and the head only."""
        return self.apply(params, config, hidden, method="logits", dtype=dtype)

    def head(self, params: Params) -> Params:
        """Returns the part of the parameters that `logits` reads."""
        return {name: params[name] for name in ("token_embedding", "head") if name in params}

    def flops_per_token(self, config: ModelConfig, length: int, head_fraction: float = 1.0, *, frozen: bool = False) -> float:
        """FLOPs of the matrix products of one training step a token: forward and, twice as much, backward.

        Args:
          config: the model's configuration.
          length: L, tokens a row; a causal model needs half of the L x L scores.
          head_fraction: share of the positions that go through the head (the mask rate, where only those are gathered).
          frozen: whether gradients go through the weights only, so that backward costs as much as forward, but for the scores.
        """
        size, groups = config.head_features, config.key_value_heads or config.heads
        projections = 2 * config.hidden_size * size * (config.heads + groups)
        matrices = 3 if config.gated else 2
        # The TRILayer is one more that sees all of them.
        layers = config.layers + config.tri_layer
        dense = 2 * layers * (projections + matrices * config.hidden_size * config.inner_size)
        near = min(config.window or length, length)
        # A query at the end of a causal row sees L keys and one at the start one; with a window W none sees more than W.
        seen = length * (0.5 if self.causal else 1.0)
        seen_near = near - near**2 / (2 * length) if self.causal else seen
        windows = sum(config.windowed)
        scores = 4 * config.heads * size * ((layers - windows) * seen + windows * seen_near)
        return (2.0 if frozen else 3.0) * (dense + head_fraction * self.module.head_flops(config)) + 3.0 * scores


@partial(jax.jit, static_argnums=(0, 1))
def _init(module: type[nn.Module], config: ModelConfig, key: jax.Array) -> Params:
    tokens = jnp.zeros((1, 1), jnp.int32)
    return module(config, jnp.float32, True).init({"params": key}, tokens)["params"]
