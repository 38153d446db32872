"""AdamW, Muon and SOAP, as groups say, over the trainable parameters of a phase; learning rates are inputs of every step."""

import re
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from ml_collections import ConfigDict

from wechsel_jax.errors import UserError
from wechsel_jax.models import Family
from wechsel_jax.models.weights import flatten, unflatten
from wechsel_jax.training.coordinates import scale_by_coordinates
from wechsel_jax.training.groups import Grouping, parameter_regex
from wechsel_jax.training.muon import scale_by_muon
from wechsel_jax.training.schedules import NAMED
from wechsel_jax.training.soap import scale_by_soap

_NO_DECAY = r"(^|/)bias$|norm/scale$"
_LAYERS = "layers/"
# The second stack, of an encoder-decoder.
_DECODER = "decoder/"


def make_optimizer(
    settings: ConfigDict, grouping: Grouping | None = None, shardings: Mapping[str, Any] | None = None
) -> optax.GradientTransformation:
    """Returns AdamW without its learning rate: clip, Adam's direction, plus decoupled weight decay (Loshchilov & Hutter, 2019).

    The update of a parameter is `-learning_rate * direction`, so one compiled step serves every learning rate. Works on flat
    dictionaries of "/"-joined path -> array; biases and the parameters of norms are not decayed.

    Args:
      settings: b1, b2, eps, weight_decay, clip_norm (global norm of the gradient, of the trainable parameters; None: no limit).
      grouping: gives some parameters the direction of Muon or SOAP, shared updates or another weight decay. Without, the
        state is that of earlier versions.
      shardings: nested `NamedSharding`s of all parameters, on a mesh of several devices.
    """
    # Without clipping too, the state has three parts, so that checkpoints of all runs are alike.
    clip = optax.identity() if settings.clip_norm is None else optax.clip_by_global_norm(settings.clip_norm)
    adam = optax.scale_by_adam(b1=settings.b1, b2=settings.b2, eps=settings.eps)
    if grouping is None:
        return optax.chain(clip, adam, optax.add_decayed_weights(settings.weight_decay, mask=decayed))

    def kinds(flat: Mapping[str, Any]) -> dict[str, str]:
        return {
            path: str(grouping.of[path]) if path in grouping.coordinates else grouping.group(whole(path)).kind for path in flat
        }

    def decay(directions: Mapping[str, jax.Array], params: Mapping[str, jax.Array]) -> dict[str, jax.Array]:
        own = {path: grouping.group(whole(path)).weight_decay for path in params}
        rates = {path: settings.weight_decay if rate is None else rate for path, rate in own.items()}
        applies = decayed(params)
        return {path: x + rates[path] * params[path] if applies[path] else x for path, x in directions.items()}

    directions = {
        "adamw": adam,
        "soap": scale_by_soap(b1=settings.b1, b2=settings.b2, eps=settings.eps),
        "muon": scale_by_muon(grouping.axes, flatten(shardings or {})),
    }
    for path, x in grouping.coordinates.items():
        group = grouping.group(path)
        directions[str(grouping.of[path])] = scale_by_coordinates(directions[group.kind], x.shape[1], group.shared)
    return optax.chain(clip, optax.partition(directions, kinds), optax.stateless(decay))


def decayed(flat: Mapping[str, Any]) -> dict[str, bool]:
    """Says for every path whether weight decay applies to it."""
    return {path: re.search(_NO_DECAY, whole(path)) is None for path in flat}


def trainable_paths(
    family: Family,
    shapes: Mapping[str, tuple[int, ...]],
    trainable: str,
    layers: str = "",
    grouping: Grouping | None = None,
) -> frozenset[str]:
    """Returns the paths that a phase trains; "path[first:end]" where only some of the stacked layers do.

    Args:
      family: gives "tokens" and "embeddings" their meaning.
      shapes: "/"-joined path -> shape of every parameter; those under "layers/" have a leading axis of layers.
      trainable: "all", "tokens", "embeddings" or a regex, searched for in the path.
      layers: "first:end" of the layers that train; "" for all. Parameters outside the layers are not concerned.
      grouping: says what is frozen whatever the phase.

    Raises:
      UserError: no regex, one that matches no parameter or only frozen ones, layers that the model has not, or layers of a
        model with two stacks.
    """
    try:
        pattern = re.compile(parameter_regex(family, trainable))
    except re.error as error:
        raise UserError(
            f"phases: trainable {trainable!r} is no regular expression ({error}); expected one, or {', '.join(NAMED)}"
        ) from error
    found = frozenset(path for path in shapes if pattern.search(path))
    if not found:
        raise UserError(f"phases: trainable {trainable!r} matches no parameter; expected one of {', '.join(sorted(shapes))}")
    if grouping is not None:
        found = frozenset(path for path in found if grouping.group(path).kind != "frozen")
    if not found:
        raise UserError(f"phases: trainable {trainable!r} matches only what optimizer.groups freeze; expected something else")
    if not layers:
        return found
    if any(path.startswith(_DECODER) for path in shapes):
        raise UserError(
            f"phases: layers {layers!r} of an encoder-decoder, which has two stacks of them; expected none; choose a whole "
            f"stack by trainable, such as ^{_LAYERS} or ^{_DECODER}"
        )
    return frozenset(_part(path, shapes[path][0], layers) if path.startswith(_LAYERS) else path for path in found)


def _part(path: str, count: int, layers: str) -> str:
    first, _, end = layers.partition(":")
    first, end = int(first or 0), int(end or count)
    if not 0 <= first < end <= count:
        raise UserError(f"phases: layers {layers!r} of a model with {count} layers; expected first:end with first below end")
    return path if (first, end) == (0, count) else f"{path}[{first}:{end}]"


def whole(path: str) -> str:
    """The path of the whole parameter that a trainable path is, or is a part of."""
    return path.partition("[")[0]


def trained_shardings(shardings: Mapping[str, Any], trainable: frozenset[str]) -> dict[str, Any]:
    """The shardings of the trainable paths, from the nested ones of all parameters (the layer axis is never split)."""
    flat = flatten(shardings)
    return {path: flat[whole(path)] for path in trainable}


def split(params: Mapping[str, Any], trainable: frozenset[str]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Splits nested parameters into flat (trainable, frozen); of a parameter that trains in part, the rest is frozen.

    Args:
      params: nested arrays, or `jax.ShapeDtypeStruct`s.
      trainable: what `trainable_paths` returns.
    """
    trained, frozen = {}, {}
    parts = {whole(path): path for path in trainable if whole(path) != path}
    for path, value in flatten(params).items():
        if path in parts:
            first, end = _bounds(parts[path])
            trained[parts[path]] = _slice(value, first, end)
            for start, stop in ((0, first), (end, value.shape[0])):
                if start < stop:
                    frozen[f"{path}[{start}:{stop}]"] = _slice(value, start, stop)
        else:
            (trained if path in trainable else frozen)[path] = value
    return trained, frozen


def join(trainable: Mapping[str, jax.Array], frozen: Mapping[str, jax.Array]) -> dict[str, Any]:
    """Undoes `split`; keys come sorted, so that the tree is the same whatever the split was."""
    flat: dict[str, Any] = {}
    parts: dict[str, dict[int, jax.Array]] = {}
    for path, value in {**trainable, **frozen}.items():
        if whole(path) == path:
            flat[path] = value
        else:
            parts.setdefault(whole(path), {})[_bounds(path)[0]] = value
    for path, pieces in parts.items():
        flat[path] = jnp.concatenate([pieces[first] for first in sorted(pieces)])
    return unflatten(dict(sorted(flat.items())))


def kept(new: Any, old: Any) -> Any:
    """Optimizer state of a phase that goes on with what the phase before knew.

    Args:
      new: the phase's own state, at zero.
      old: the last state of the phase before. Moments of the paths that both hold are taken from it, of layers that both train
        where they train others, too, and the count of updates: parameters that join later are corrected for the bias of their
        zeros no more.
    """
    known = {jax.tree_util.keystr(place): leaf for place, leaf in jax.tree_util.tree_leaves_with_path(old)}
    # Of parameters that trained in part: the place without the layers -> (first layer, moments) of those.
    partly: dict[str, list[tuple[int, jax.Array]]] = {}
    for place, leaf in jax.tree_util.tree_leaves_with_path(old):
        if (part := _layers(place, leaf)) is not None:
            partly.setdefault(part[0], []).append((part[1], leaf))

    def take(place: tuple, leaf: jax.Array) -> jax.Array:
        if (name := jax.tree_util.keystr(place)) in known:
            return known[name]
        if (part := _layers(place, leaf)) is None:
            return leaf
        first, end = part[1], part[1] + len(leaf)
        for start, moments in partly.get(part[0], ()):
            low, high = max(first, start), min(end, start + len(moments))
            if low < high:
                leaf = leaf.at[low - first : high - first].set(moments[low - start : high - start])
        return leaf

    return jax.tree_util.tree_map_with_path(take, new)


def _layers(place: tuple, leaf: Any) -> tuple[str, int] | None:
    """Of moments of stacked layers: their place, of whichever layers they are, and the first of these; None of others."""
    key = getattr(place[-1], "key", None) if place else None
    if not isinstance(key, str) or not key.startswith(_LAYERS) or not np.ndim(leaf):
        return None
    return f"{jax.tree_util.keystr(place[:-1])} {whole(key)}", 0 if whole(key) == key else _bounds(key)[0]


def _bounds(path: str) -> tuple[int, int]:
    first, _, end = path[path.index("[") + 1 : -1].partition(":")
    return int(first), int(end)


def _slice(value: Any, first: int, end: int) -> Any:
    if isinstance(value, jax.ShapeDtypeStruct):
        return jax.ShapeDtypeStruct((end - first, *value.shape[1:]), value.dtype)
    return value[first:end]
