"""Training: a function of (settings, seed, step) on any mesh, resumed exactly; `train(config, workdir)` is the way in."""

from wechsel_jax.training.arguments import config_arguments
from wechsel_jax.training.config import default_config, record_config, validate
from wechsel_jax.training.loop import train
from wechsel_jax.training.schedules import Phase, one_phase, trans_inner_phases

__all__ = [
    "Phase",
    "config_arguments",
    "default_config",
    "one_phase",
    "record_config",
    "train",
    "trans_inner_phases",
    "validate",
]
