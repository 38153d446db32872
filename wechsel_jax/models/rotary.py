"""Rotary positions (Su et al., 2021), and how Llama-type models stretch them for longer texts."""

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from wechsel_jax.errors import UserError

# JSON as Python reads it may hold NaN, Infinity and integers of any length.
LARGEST_NUMBER = 1e300
_KEYS = {
    "default": (),
    "linear": ("factor",),
    "llama3": ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"),
}


@dataclasses.dataclass(frozen=True)
class Rope:
    """The frequencies of rotary positions.

    Attributes:
      theta: the base; pair i of the c features of a head turns by theta^(-2i / c) a position.
      kind: "default", "linear" (every frequency divided by `factor`) or "llama3" (Dubey et al., 2024: only the slow ones).
      factor: how much longer the texts may be than those of the first training.
      low_frequency: llama3: features that turn less than this often in the original length are divided by `factor`.
      high_frequency: llama3: features that turn more often than this stay as they are; those between are interpolated.
      original_length: llama3: positions of the first training.
    """

    theta: float
    kind: str = "default"
    factor: float = 1.0
    low_frequency: float = 1.0
    high_frequency: float = 4.0
    original_length: int = 0

    def inverse_frequencies(self, head_size: int) -> np.ndarray:
        """Radians a position of each pair of features, float32 (head_size / 2,)."""
        # Rounded where transformers rounds: far positions multiply every bit that differs.
        exponents = np.arange(0, head_size, 2, dtype=np.float32) / np.float32(head_size)
        frequencies = np.float32(1) / np.power(self.theta, exponents.astype(np.float64)).astype(np.float32)
        if self.kind == "linear":
            frequencies = frequencies / self.factor
        if self.kind == "llama3":
            turns = self.original_length * frequencies / (2 * math.pi)
            kept = (turns - self.low_frequency) / (self.high_frequency - self.low_frequency)
            kept = np.clip(kept, 0.0, 1.0)
            frequencies = (1 - kept) * frequencies / self.factor + kept * frequencies
        return frequencies.astype(np.float32)

    def cos_sin(self, head_size: int, position: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Cosines and sines of the angles at int positions (...), float32 (..., head_size / 2) each."""
        angles = position.astype(jnp.float32)[..., None] * self.inverse_frequencies(head_size)
        return jnp.cos(angles), jnp.sin(angles)


def rotate(x: jax.Array, cos: jax.Array, sin: jax.Array) -> jax.Array:
    """Turns each pair (x[i], x[i + c / 2]) by its angle, in float32.

    Args:
      x: (B, L, heads, c).
      cos: float32 (L, c / 2), or with a leading axis of B or 1.
      sin: like the cosines.

    Returns:
      (B, L, heads, c) of x's type.
    """
    first, second = jnp.split(x.astype(jnp.float32), 2, axis=-1)
    cos, sin = cos[..., None, :], sin[..., None, :]
    return jnp.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1).astype(x.dtype)


def read_rope(stated: Mapping[str, Any], theta: float, max_length: int) -> Rope:
    """Reads what `config.json` states under `rope_parameters` (transformers 5) or `rope_scaling` (before).

    Args:
      stated: the fields.
      theta: the base where they have none.
      max_length: positions of the model, what llama3 takes as the original length where the fields have none.

    Raises:
      UserError: the kind is not implemented (dynamic, yarn, longrope), or a number is missing or impossible.
    """
    stated = {name: value for name, value in stated.items() if value is not None}
    kind = stated.pop("rope_type", stated.pop("type", "default"))
    stated.pop("type", None)
    if not isinstance(kind, str) or kind not in _KEYS:
        raise UserError(
            f"config.json: rope_type is {kind!r}, which is not implemented; expected one of {', '.join(_KEYS)}; "
            "take another model"
        )
    if stated.pop("partial_rotary_factor", 1.0) != 1.0:
        raise UserError("config.json: partial_rotary_factor is not implemented; expected 1.0; take another model")
    numbers = {"rope_theta": theta}
    if kind == "llama3":
        numbers["original_max_position_embeddings"] = max_length
    for name, value in (numbers | stated).items():
        if name not in (*_KEYS[kind], "rope_theta"):
            raise UserError(f"config.json: {name} means nothing for rope_type {kind!r}; expected it absent; remove it")
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value < LARGEST_NUMBER:
            raise UserError(f"config.json: {name} of the rotary positions is {value!r}; expected a number above 0")
        numbers[name] = value
    for name in _KEYS[kind]:
        if name not in numbers:
            raise UserError(f"config.json: rope_type {kind!r} has no {name}; expected a number above 0")
    low, high = float(numbers.get("low_freq_factor", 1.0)), float(numbers.get("high_freq_factor", 4.0))
    if not low < high:
        raise UserError(f"config.json: low_freq_factor is {low} and high_freq_factor {high}; expected the first to be less")
    return Rope(
        theta=float(numbers["rope_theta"]),
        kind=kind,
        factor=float(numbers.get("factor", 1.0)),
        low_frequency=low,
        high_frequency=high,
        original_length=int(numbers.get("original_max_position_embeddings", 0)),
    )
