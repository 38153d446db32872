"""Models as pure functions of nested dictionaries of parameters; `family(model_type)` is the way in."""

from wechsel_jax.models.config import ModelConfig
from wechsel_jax.models.family import Family
from wechsel_jax.models.registry import family

__all__ = ["Family", "ModelConfig", "family"]
