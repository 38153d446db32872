"""The bundled English model: GPT-2 of 4 layers x 256, vocabulary 8,192, on ELTeC's English novels.

Command:  python -m train.pretrain --config=configs/demo_english.py --workdir=runs/demo_english
          (behind a colon: text=FILE,tokenizer=DIR where they are not english.seen.txt and tokenizer-en)
          (wechsel_jax/demo/SOURCES.md says how to make both from the ELTeC XML files)
Cost:     47 minutes on 2 shared CPU cores.
Expected: held-out perplexity 87.3.
"""

from ml_collections import ConfigDict

from wechsel_jax import demo
from wechsel_jax.training import config_arguments, default_config, one_phase


def get_config(arguments: str = "") -> ConfigDict:
    chosen = config_arguments(arguments, text="english.seen.txt", tokenizer="tokenizer-en")
    config = default_config()
    config.data.train = (chosen["text"],)
    config.data.validation = (demo.path("english.validation.txt.xz"),)
    config.model.tokenizer = chosen["tokenizer"]
    config.model.config = ConfigDict(
        {"model_type": "gpt2", "vocab_size": 8192, "n_embd": 256, "n_layer": 4, "n_head": 4, "n_positions": 128}
    )
    config.model.dropout = 0.0
    config.steps = 2500
    config.batch_size = 16
    config.block_length = 128
    config.optimizer.peak_learning_rate = 1.5e-3
    config.phases = one_phase(warmup=0.05)
    config.eval_every = 250
    config.checkpoint_every = 250
    config.log_every = 10
    config.export_dtype = "float16"
    return config
