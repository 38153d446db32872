"""Table 11 of the WECHSEL paper: how much text there is to train on, and word vectors that know no more than that.

Command:  for bytes in 262144 1048576 4194304; do
            python -m train.compare --config=configs/wechsel_size.py:bytes=$bytes --workdir=runs/size-$bytes
          done
          (German on bundled text, offline; others with spaces between words by lang= and data=, the folder of
          `python -m benchmarks.language_data`; steps= and seed=; the paper's scale: scale=paper,lang=fr,data=data)
Cost:     of a size four runs of at most 1,000 steps of about a CPU second, 30 minutes on 2 CPU cores.
Expected: benchmarks/studies.json (steps=400, and 300 for 1 MiB), told in docs/papers.md; the paper's best perplexities in
          French with 16, 64, 256 and 1,024 MiB: WECHSEL 78.33, 44.75, 31.63, 24.66 with public vectors and 97.42, 49.50,
          32.88, 24.75 with those of the sample; FullRand 281.46, 83.43, 43.08, 27.09; TransInner 216.37, 77.71, 35.27, 25.15.

A sample has random documents; a smaller one lies in a larger one, and the held-out text is the same. Tokenizer and vectors of
`wechsel` are made of all text, which stands for Common Crawl; those of `wechsel_sample` of the sample alone. Evaluated often; a
run ends when 200 steps have brought nothing, and its best evaluation counts. Schedules are those of compare_initializers.py.

Of the paper's scale are 512 x 512 tokens a step, with the settings of configs/wechsel_gpt2.py, until 10,000 steps have brought
nothing. `data` then also holds cc.en.300.bin and cc.LANG.300.bin of fastText.
"""

from ml_collections import ConfigDict

from configs import compare_initializers
from wechsel_jax.training import one_phase, trans_inner_phases


def get_config(arguments: str = "") -> ConfigDict:
    config, chosen = compare_initializers.study(arguments, 1_000, 250_000, bytes=1 << 20)
    paper, training = chosen["scale"] == "paper", config.training
    # Vectors with n-grams, which the bundled ones have not; those of the sample are as wide as the source's.
    config.vectors.train_here, config.vectors.dimensions = not paper, 300 if paper else 100
    training.data.max_bytes = chosen["bytes"]
    training.eval_every = training.checkpoint_every = 2_500 if paper else 25
    training.patience = 10_000 if paper else 200
    training.phases = one_phase(warmup=0.1 if paper else 0.3)
    config.variants = ConfigDict({"wechsel_sample": {"method": "wechsel", "target_vectors": "sample"}})
    config.overrides = ConfigDict({
        "trans_inner": {"phases": trans_inner_phases(warmup=0.1 if paper else 0.3)},
        "full_rand": {"phases": one_phase(warmup=0.1 if paper else 0.5)},
    })  # fmt: skip
    config.methods = ("wechsel", "wechsel_sample", "trans_inner", "full_rand")
    return config
