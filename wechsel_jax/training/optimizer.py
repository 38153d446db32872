"""AdamW over the trainable parameters of a phase; the learning rate is an input of every step."""

import re
from collections.abc import Mapping
from typing import Any

import jax
import optax
from ml_collections import ConfigDict

from wechsel_jax.errors import UserError
from wechsel_jax.models import Family
from wechsel_jax.models.weights import flatten, unflatten

_NO_DECAY = r"(^|/)bias$|norm/scale$"


def make_optimizer(settings: ConfigDict) -> optax.GradientTransformation:
    """Returns AdamW without its learning rate: clip, Adam's direction, plus decoupled weight decay (Loshchilov & Hutter, 2019).

    The update of a parameter is `-learning_rate * direction`, so one compiled step serves every learning rate. Works on flat
    dictionaries of "/"-joined path -> array; biases and the parameters of norms are not decayed.

    Args:
      settings: b1, b2, eps, weight_decay, clip_norm (global norm of the gradient, of the trainable parameters).
    """
    return optax.chain(
        optax.clip_by_global_norm(settings.clip_norm),
        optax.scale_by_adam(b1=settings.b1, b2=settings.b2, eps=settings.eps),
        optax.add_decayed_weights(settings.weight_decay, mask=decayed),
    )


def decayed(flat: Mapping[str, Any]) -> dict[str, bool]:
    """Says for every path whether weight decay applies to it."""
    return {path: re.search(_NO_DECAY, path) is None for path in flat}


def trainable_paths(family: Family, paths: list[str], trainable: str) -> frozenset[str]:
    """Returns the paths that a phase trains.

    Args:
      family: gives "tokens" and "embeddings" their meaning.
      paths: "/"-joined paths of all parameters.
      trainable: "all", "tokens", "embeddings" or a regex, searched for in the path.

    Raises:
      UserError: no regex, or one that matches no parameter.
    """
    named = {"all": "", "tokens": family.token_parameters, "embeddings": family.embedding_parameters}
    try:
        pattern = re.compile(named.get(trainable, trainable))
    except re.error as error:
        raise UserError(
            f"phases: trainable {trainable!r} is no regular expression ({error}); expected one, or {', '.join(named)}"
        ) from error
    found = frozenset(path for path in paths if pattern.search(path))
    if not found:
        raise UserError(f"phases: trainable {trainable!r} matches no parameter; expected one of {', '.join(sorted(paths))}")
    return found


def split(params: Mapping[str, Any], trainable: frozenset[str]) -> tuple[dict[str, jax.Array], dict[str, jax.Array]]:
    """Splits nested parameters into flat (trainable, frozen)."""
    flat = flatten(params)
    return (
        {path: value for path, value in flat.items() if path in trainable},
        {path: value for path, value in flat.items() if path not in trainable},
    )


def join(trainable: Mapping[str, jax.Array], frozen: Mapping[str, jax.Array]) -> dict[str, Any]:
    """Undoes `split`; keys come sorted, so that the tree is the same whatever the split was."""
    return unflatten(dict(sorted({**trainable, **frozen}.items())))
