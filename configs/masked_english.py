"""A small English RoBERTa to compare initialisations of masked models with: 4 layers x 256, vocabulary 8,192, on novels.

Command:  see benchmarks/masked_start.py for masked/start; then
          python -m train.pretrain --config=configs/masked_english.py:start=masked/start,data=data --workdir=runs/masked_english
Cost:     43 minutes on 2 shared CPU cores.
Expected: held-out perplexity 59.5 of the masked tokens. It is 564 after 500 steps, falls from 443 to 147 between steps 800 and
          1,100, when the model seems to learn to look at what stands around a token, and is 82 after 2,000.

30 % of the tokens are masked, twice RoBERTa's: more to learn from in a short run.
"""

from pathlib import Path

from ml_collections import ConfigDict

from wechsel_jax.training import config_arguments, default_config, one_phase


def get_config(arguments: str = "") -> ConfigDict:
    chosen = config_arguments(arguments, start="masked/start", data="data")
    data = Path(chosen["data"])
    config = default_config()
    config.model.checkpoint = chosen["start"]
    config.model.dropout = 0.0
    config.data.train = (str(data / "en.train.txt"),)
    config.data.validation = (str(data / "en.validation.txt"),)
    config.objective = "mlm"
    config.mask_rate = 0.3
    config.steps = 4000
    config.batch_size = 16
    config.block_length = 128
    config.optimizer.peak_learning_rate = 7e-4
    config.optimizer.b2 = 0.98
    config.phases = one_phase(warmup=0.1)
    config.eval_every = 100
    config.checkpoint_every = 1000
    config.log_every = 20
    return config
