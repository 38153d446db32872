"""Figures 4 and 6 of the WECHSEL paper, and Figure 5 of its first version: freezing at the start, or to the end.

Command:  python -m train.compare --config=configs/wechsel_freezing.py --workdir=runs/freezing
          python -m train.compare --config=configs/wechsel_freezing.py:study=relearning --workdir=runs/relearning
          wechsel-jax inspect runs/relearning/wechsel_tfr/export --before=runs/relearning/wechsel_tfr/transfer
          python -m train.compare --config=configs/wechsel_freezing.py:study=bound,first=1000 --workdir=runs/bound
          (German on bundled text, offline; other languages with lang= and data=, the folder of
          `python -m benchmarks.language_data`; steps= and seed=; the paper's scale: scale=paper,data=data)
Cost:     six runs of 200 steps of about a CPU second, 20 minutes on 2 CPU cores; relearning three.
Expected: benchmarks/studies.json, told in docs/papers.md. The paper: TransInner needs the freezing and WECHSEL does not,
          and shuffled rows (Zoph et al., 2016) end slightly worse than TransInner's random ones. With nothing but the
          embeddings training, perplexity still falls far.

study=freezing    WECHSEL, TransInner and its shuffled rows, each with all parameters from the start (WECHSEL in section 5.3)
                  and, as `..._freeze`, with the embeddings alone in the first tenth. Figure 4 is the first four of Figure 6's
                  six; methods=trans_inner+trans_inner_freeze for some.
study=relearning  WECHSEL-TFR, which the first version of the paper calls WECHSEL, TransInner and `anker` with everything but
                  the embeddings frozen to the end (its section 5.4.1, French and Chinese); `inspect` says how far they moved
                  (its Figure 6).
study=bound       What rows can be worth at most: `anker` with the embeddings alone for the `first` steps, under the body that
                  has learnt English, then everything for `steps`. No figure of the papers.

Of the paper's scale are 75,000 steps of 512 x 512 tokens, with the settings of configs/wechsel_gpt2.py. `data` then also holds
cc.en.300.bin and cc.LANG.300.bin of fastText; the paper took 4 days on a TPU v3-8 for 250,000 such steps.
"""

from ml_collections import ConfigDict

from configs import compare_initializers
from wechsel_jax.errors import UserError
from wechsel_jax.training import one_phase, trans_inner_phases

# Of study=bound: steps of the embeddings alone.
FIRST = 1600


def get_config(arguments: str = "") -> ConfigDict:
    own = {"study": ("freezing", "relearning", "bound"), "methods": "", "first": int}
    config, chosen = compare_initializers.study(arguments, 200, 75_000, **own)
    compare_initializers.require_some(first=chosen["first"])
    if chosen["first"] and chosen["study"] != "bound":
        raise UserError(f"--config: first={chosen['first']}: study={chosen['study']} does not read it; expected study=bound")
    # The small runs are short, and random rows suffer from a short warm-up most.
    warmup = 0.1 if chosen["scale"] == "paper" else 0.3
    training = config.training
    training.eval_every, training.checkpoint_every = max(1, training.steps // 20), max(1, training.steps // 4)

    # The bundled vectors are of words alone; others know n-grams, too.
    wechsel = "wechsel" if chosen["data"] else "wechsel_tfr"
    if chosen["study"] == "relearning":
        training.phases = one_phase(warmup=warmup, trainable="embeddings")
        runs = ["wechsel_tfr", "trans_inner", "anker"]
    elif chosen["study"] == "bound":
        first, steps = chosen["first"] or FIRST, training.steps
        # Of the tables alone about the 4e-3 that they have beside a body that learns, too (docs/recipe.md).
        alone = {"name": "embeddings", "steps": first, "trainable": "embeddings", "warmup": 0.05, "peak": 2.5}
        training.phases = (alone, {"name": "all", "steps": steps, "trainable": "all", "warmup": warmup})
        training.steps = first + steps
        training.eval_every, training.checkpoint_every = max(1, first // 8), first
        runs = ["anker"]
    else:
        training.phases = one_phase(warmup=warmup)
        methods = (wechsel, "trans_inner", "trans_inner_shuffle")
        runs = [name for method in methods for name in (method, f"{method}_freeze")]
        for method in methods:
            config.variants[f"{method}_freeze"] = ConfigDict({"method": method})
            phases = trans_inner_phases(first=0.1, warmup=warmup, trainable="embeddings")
            config.overrides[f"{method}_freeze"] = ConfigDict({"phases": phases})
    config.methods = tuple(chosen["methods"].split("+") if chosen["methods"] else runs)
    return config
