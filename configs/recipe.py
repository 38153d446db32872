"""Optimizers and rates beside starts: the demonstration's German, each start with each recipe. Runs offline.

Command:  python -m train.compare --config=configs/recipe.py --workdir=runs/recipe
          (--config=configs/recipe.py:starts=anker+fvt,recipes=muon,steps=400 takes others)
Cost:     6 runs of 200 steps, 40 minutes on 2 CPU cores without other work.
Expected: from WECHSEL-TFR's rows perplexity ends at 319 with AdamW, 281 with two rates and 270 with Muon, from `anker`'s at
          260 with AdamW and 245 with Muon; docs/recipe.md says what that does and does not show.
"""

from ml_collections import ConfigDict

from wechsel_jax.demo.settings import get_config as demo_config
from wechsel_jax.errors import UserError
from wechsel_jax.training import config_arguments
from wechsel_jax.training.groups import RECIPES

# Highest rates of the body; `RECIPES` says how much faster the tables learn. AdamW's is the demonstration's.
RATES = {"adamw": 1.5e-3, "two_rates": 1.6e-3, "muon": 3e-3}


def get_config(arguments: str = "") -> ConfigDict:
    chosen = config_arguments(arguments, starts="wechsel_tfr+anker", recipes="+".join(RECIPES), steps="200", seed="0")
    for name in ("steps", "seed"):
        if not chosen[name].isdecimal():
            raise UserError(f"--config: {name}={chosen[name]}: expected a whole number")
    config, steps = demo_config(), int(chosen["steps"])
    config.seed = int(chosen["seed"])
    training, runs = config.training, []
    training.steps, training.eval_every, training.checkpoint_every = steps, max(1, steps // 4), max(1, steps // 4)
    config.overrides = ConfigDict()
    for start in chosen["starts"].split("+"):
        for recipe in chosen["recipes"].split("+"):
            if recipe not in RECIPES:
                raise UserError(f"--config: recipes={recipe}: expected some of {', '.join(RECIPES)}")
            runs.append(f"{start}_{recipe}")
            config.variants[runs[-1]] = ConfigDict({"method": start})
            config.overrides[runs[-1]] = ConfigDict(
                {"optimizer": {"peak_learning_rate": RATES[recipe], "groups": RECIPES[recipe]}}
            )
    config.methods = tuple(runs)
    return config
