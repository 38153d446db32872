"""Training: a function of (settings, seed, step) on any mesh, resumed exactly; `train(config, workdir)` is the way in.

Read in this order:

1. `config.py`: every setting with its meaning; `schedules.py`: phases and learning rates.
2. `loop.py`: a run from its settings to an exported model. What it is made of is in `run_spec.py`, its text in
   `run_data.py`.
3. `step.py`: one update. `optimizer.py` says what trains and how (`groups.py` which parameters, `muon.py`, `coordinates.py` for
   rows that also move together), `sharding.py` where each array lives, `placement.py` lays a run's states and batches out on
   its mesh. With labelled examples `labelled.py` opens the data, and `seeds.py` makes runs of several seeds. `trelm.py` is
   TreLM: four runs, and what makes one model of two.
4. `checkpoints.py`: the state on disk; `metrics.py`: the lines that belong to it; `workdir.py`: what else makes a start go on
   with the run that began, `fork.py` how one begins as another did.

Aside: `compilation.py` and `devices.py` (memory, speed, profiles), `distributed.py` (several processes), `interrupts.py`
(signals), `recorder.py`, `progress.py` and `trackers.py` (what is shown), `exports.py` (a checkpoint as a model).
"""

from wechsel_jax.training.config import config_arguments, default_config, validate
from wechsel_jax.training.loop import train
from wechsel_jax.training.schedules import Phase, one_phase, stable_phase, trans_inner_phases
from wechsel_jax.training.seeds import finetune
from wechsel_jax.training.trelm import default_trelm_config, train_trelm
from wechsel_jax.training.workdir import record_config

__all__ = [
    "Phase",
    "config_arguments",
    "default_config",
    "default_trelm_config",
    "finetune",
    "one_phase",
    "record_config",
    "stable_phase",
    "train",
    "train_trelm",
    "trans_inner_phases",
    "validate",
]
