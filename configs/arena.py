"""Initialisations under one protocol, each with rates that were tuned for it: what a start is worth, in tokens.

Command:  for seed in 0 1 2; do
            python -m train.compare --config=configs/arena.py:seed=$seed --workdir=runs/arena-de-$seed
          done
          python -m benchmarks.arena de=runs/arena-de-0 de=runs/arena-de-1 de=runs/arena-de-2
          (English to German on bundled text, offline; lang=sw,data=data for another language, with the files that
          `python -m benchmarks.language_data --data=corpora --output=data` makes; starts=anker+salt+full_rand for other
          methods, `-regression` behind one is `transfer --regression`, `-calibrated` `transfer --calibrate=unigram`, and last
          `-first` trains the tokens alone in the first tenth; parallel=FILE+FILE for those that read parallel text; rates=,
          tables= and tuning= for what is tried, steps= and lengths= for how long; recipe=muon_shared or another
          of docs/recipe.md in place of AdamW, with -soft behind it soft targets besides)
Cost:     of a seed 36 runs of 50 steps and 8 of 200 to 800, 4,200 steps of about a CPU second: an hour on 2 cores without
          other work. The same command goes on where it stopped.
Expected: benchmarks/arena.json (seed 0), told in docs/papers.md: 2.066 bits per byte from `anker`, 2.094 from
          WECHSEL-TFR, 2.288 from FullRand, which needs 3.9 and 3.3 times the tokens to reach the two; 2.037 from `anker` with
          recipe=muon_shared; with recipe=muon_soap,rates=1.5e-3+3e-3+6e-3,tables=2, three seeds, 2.024, WECHSEL-TFR 2.067,
          and with recipe=muon_soap-soft, one seed, 1.991 and 2.018. In French, lang=fr with the last recipe and its rates,
          two seeds, 1.710 from `anker`, 1.761 from FOCUS and 1.768 from WECHSEL; in Hindi .923, .951 and .949.

Every start is trained for `tuning` steps with each of three rates of the body, each with two of the tables (inputs and
outputs), and is given those that 2 % of the training text, held out for this alone, say are best. Then it is trained for
`steps` with them, on all of the training text, and scored on the held-out text. FullRand is also trained for `lengths` times as
many steps, each a run of its own with a decay to 0: so it is read off how many tokens it needs to reach each start. Rates that
short runs chose may be too high for the long ones.

The source is the bundled English GPT-2 (4 layers x 256), a step has 16 x 128 tokens. Warm-up takes 30 % of the steps, of
FullRand 50 %, which is best for it with AdamW (benchmarks/demo_tuning.json); TransInner trains the tokens alone in its first
tenth.
"""

import math

from ml_collections import ConfigDict

from configs import compare_initializers
from configs.recipe import SHARE, SOFT
from wechsel_jax.errors import UserError
from wechsel_jax.training import config_arguments, one_phase, trans_inner_phases
from wechsel_jax.training.groups import RECIPES

# Behind a start: embeddings first, as TransInner has them.
FIRST = "-first"
STARTS = "anker+WECHSEL+focus+fvt+trans_inner+full_rand"


def get_config(arguments: str = "") -> ConfigDict:
    chosen = config_arguments(
        arguments,
        **{"lang": (*compare_initializers.DICTIONARIES,), "data": "", "parallel": "", "starts": STARTS, "seed": 0},
        **{"steps": 200, "lengths": "1+2+4", "tuning": 50, "rates": "0.75e-3+1.5e-3+3e-3", "tables": "1+2.5"},
        recipe=(*RECIPES, *(f"{name}{SOFT}" for name in RECIPES)),
    )
    try:
        lengths = [int(length) for length in chosen["lengths"].split("+")]
        rates, tables = (tuple(float(rate) for rate in chosen[name].split("+")) for name in ("rates", "tables"))
        if wrong := [number for number in (*lengths, *rates, *tables) if not 0 < number < math.inf]:
            raise ValueError(f"{wrong[0]:g} is none that could be tried")
    except ValueError as error:
        raise UserError(f"--config: {error}; expected numbers such as lengths=1+2+4,rates=1e-3+3e-3") from None
    # The bundled vectors are of words alone; those that are trained on the text of a folder know n-grams, too.
    starts = chosen["starts"].replace("WECHSEL", "wechsel" if chosen["data"] else "wechsel_tfr").split("+")
    steps = chosen["steps"]
    config = compare_initializers.of_language(chosen["lang"], chosen["data"], steps)
    config.seed = chosen["seed"]
    config.parallel = tuple(file for file in chosen["parallel"].split("+") if file)
    config.tuning.update({"rates": rates, "tables": tables, "steps": chosen["tuning"]})

    training = config.training
    training.eval_every, training.checkpoint_every = max(1, steps // 8), steps
    training.keep, training.keep_best = 1, False
    training.optimizer.groups = RECIPES[chosen["recipe"].removesuffix(SOFT)]
    training.soft_targets.share = SHARE if chosen["recipe"].endswith(SOFT) else 0.0
    full_rand = {"phases": one_phase(warmup=0.5)}
    config.overrides = ConfigDict({"trans_inner": {"phases": trans_inner_phases(warmup=0.3)}, "full_rand": full_rand})
    runs = [start for start in starts if start != "full_rand"]
    config.variants.update({start: compare_initializers.variant(start.removesuffix(FIRST)) for start in runs})
    for start in runs:
        if start.endswith(FIRST):
            config.overrides[start] = ConfigDict({"phases": trans_inner_phases(warmup=0.3)})
    for length in lengths if "full_rand" in starts else ():
        runs.append("full_rand" if length == 1 else f"full_rand_x{length}")
        if length > 1:
            longer = {"steps": length * steps, "eval_every": max(1, length * steps // 8), "checkpoint_every": length * steps}
            config.variants[runs[-1]] = ConfigDict({"method": "full_rand"})
            config.overrides[runs[-1]] = ConfigDict(full_rand | longer)
    config.methods = tuple(runs)
    return config
