"""Table 4 and Figure 3 of the WECHSEL paper: GPT-2 in languages with a few megabytes of text, until it overfits.

Command:  python -m benchmarks.language_data --data=corpora --output=data
          python -m train.compare --config=configs/wechsel_low_resource.py:lang=ug,data=data --workdir=runs/low-ug
          (lang: ug, mg, su; methods=, steps= and seed= for others)
Cost:     of a language four runs of at most 2,000 steps of about a CPU second, two hours on 2 CPU cores at most.
          Run with steps=400 (docs/papers.md): 20 minutes a language.
Expected: the paper's best perplexities: Uyghur 34.3 (WECHSEL), 39.1 (TransInner), 42.8 (FullRand); Malagasy 14.0, 14.9, 15.9;
          Sundanese 111.7, 151.9, 149.5.

Evaluated often; a run ends when 300 steps have brought nothing, and its best evaluation counts. The other settings are those of
configs/compare_initializers.py; TransInner trains the tokens alone in its first tenth.
"""

from ml_collections import ConfigDict

from configs import compare_initializers
from wechsel_jax.training import config_arguments

METHODS = "anker+wechsel+trans_inner+full_rand"


def get_config(arguments: str = "") -> ConfigDict:
    given = {"lang": ("ug", "mg", "su"), "data": "data", "steps": 2000, "methods": METHODS, "seed": 0}
    chosen = config_arguments(arguments, **given)
    # Without a name compare_initializers takes all methods.
    passed = {name: chosen[name] for name in ("lang", "data", "steps")} | {"methods": chosen["methods"] or METHODS}
    config = compare_initializers.get_config(",".join(f"{name}={value}" for name, value in passed.items()))
    config.seed = chosen["seed"]
    config.training.eval_every = config.training.checkpoint_every = 50
    config.training.patience = 300
    return config
