"""The demonstration: a small English GPT-2 becomes German, by anker, by WECHSEL and by two baselines. Runs offline.

Command:  python -m train.compare --config=configs/demo.py --workdir=runs/demo
          (`wechsel-jax demo --workdir=runs/demo` is the same without these files; here every setting may be another)
Cost:     10 to 20 minutes on 2 CPU cores.
Expected: anker's perplexity is lower than WECHSEL's, and WECHSEL's than both baselines', at every evaluation; figures of three
          seeds are in benchmarks/demo.json.

`--config.transfer.normalize=False --config.transfer.center=False` aligns the word vectors the paper's way.
`--config.vectors.train_here=True` trains word vectors from the bundled excerpts (`pip install "wechsel-jax[vectors]"`) instead
of taking the bundled ones.
"""

from wechsel_jax.demo.settings import get_config as get_config
