"""Optimizers and rates beside starts: the demonstration's German, each start with each recipe. Runs offline.

Command:  python -m train.compare --config=configs/recipe.py --workdir=runs/recipe
          (--config=configs/recipe.py:starts=anker+wechsel_tfr-regression,recipes=muon_shared,rate=3e-3,steps=400,lang=sw,data=data
          takes others; `-regression` behind a start is `transfer --regression`, `-tuned50` `transfer --tune_coefficients=50`,
          `-residual2` `--residual=2`, `-soft` behind a recipe the soft targets of an n-gram model, decay=0.5 holds the highest
          rates until that share of the steps is left, and data= is of benchmarks.language_data)
Cost:     12 runs of 200 steps, 70 minutes on 2 CPU cores without other work.
Expected: from WECHSEL-TFR's rows perplexity ends at 319 with AdamW, 281 with two rates and 270 with Muon, from `anker`'s at
          260, 253 and 245, at 248 with AdamW where rows also move together, at 236 with Muon and that (rate=3e-3: 233), and at
          229 with SOAP for the tables besides (recipes=muon_soap-soft: 214); docs/recipe.md says what it shows and what not.
"""

from ml_collections import ConfigDict

from configs import compare_initializers
from wechsel_jax.errors import UserError
from wechsel_jax.training import config_arguments, stable_phase
from wechsel_jax.training.groups import RECIPES

# Highest rates of the body; `RECIPES` says how much faster the tables learn. With 3e-3 `muon_shared` learns a little more
# of the new language and forgets far more of the source's (docs/recipe.md).
RATES = {"adamw": 1.5e-3, "two_rates": 1.6e-3, "muon": 3e-3, "shared": 1.5e-3, "muon_shared": 2e-3, "muon_soap": 2e-3}
# Of the soft targets: 1 is as good, also with longer n-grams or more of what they expect (docs/recipe.md).
SOFT, SHARE = "-soft", 0.9
# Share of the steps, as in configs/compare_initializers.py.
WARMUP = 0.3


def get_config(arguments: str = "") -> ConfigDict:
    chosen = config_arguments(
        arguments,
        **{"starts": "wechsel_tfr+anker", "recipes": "+".join(RECIPES), "rate": float, "steps": 200, "seed": 0},
        **{"lang": (*compare_initializers.DICTIONARIES,), "data": "", "decay": float},
    )
    steps, rate = chosen["steps"], chosen["rate"]
    config = compare_initializers.of_language(chosen["lang"], chosen["data"], steps)
    config.seed = chosen["seed"]
    training, runs = config.training, []
    if (decay := chosen["decay"]) is not None:
        if not 0 < decay < 1 - WARMUP:
            raise UserError(f"--config: decay={decay:g}: expected a share of the steps above 0 and below {1 - WARMUP:g}")
        training.phases = stable_phase(round(WARMUP * steps), decay_fraction=decay)
    training.eval_every = training.checkpoint_every = max(1, steps // 4)
    for start in chosen["starts"].split("+"):
        for named in chosen["recipes"].split("+"):
            recipe = named.removesuffix(SOFT)
            if recipe not in RECIPES:
                raise UserError(f"--config: recipes={named}: expected some of {', '.join(RECIPES)}, with or without {SOFT}")
            runs.append(f"{start}_{named}")
            config.variants[runs[-1]] = compare_initializers.variant(start)
            config.overrides[runs[-1]] = ConfigDict(
                {"optimizer": {"peak_learning_rate": RATES[recipe] if rate is None else rate, "groups": RECIPES[recipe]}}
            )
            if named != recipe:
                config.overrides[runs[-1]].soft_targets = ConfigDict({"share": SHARE})
    config.methods = tuple(runs)
    return config
