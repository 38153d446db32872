r"""SALT's continued training of Gemma or XGLM (Lee et al., 2025, appendix C): one epoch of 512 x 1,024 tokens, cosine.

First:    wechsel-jax transfer --source=google/gemma-2b --target_tokenizer=TOKENIZER --method=salt --helper=TARGET_MODEL
            --target_vectors=cc.de.300.bin --output=gemma-german
Command:  python -m train.pretrain --workdir=DIR --config=configs/salt.py:model=gemma-german,text=train.txt,steps=N
Cost:     the paper used two A100 of 80 GB. Not run by this project yet.
Expected: the paper's table 8 (loss of the last step).

`steps` is the number of updates in one epoch: the text's tokens divided by 524,288. That is our reading of "maximum length":
rows are full, and the paper's 7.2 million German sentences about 390 updates; a sentence a row would make it 14,060. A tenth is
held out, as in the paper, which takes the last of the text, and here documents are drawn. AdamW's other numbers are Hugging
Face's defaults, which the paper kept.
"""

from ml_collections import ConfigDict

from wechsel_jax.training import config_arguments, default_config, one_phase


def get_config(arguments: str = "") -> ConfigDict:
    chosen = config_arguments(arguments, model="gemma-target", text="train.txt", steps=400)
    config = default_config()
    config.model.checkpoint = chosen["model"]
    config.model.remat = "full"
    config.data.train = (chosen["text"],)
    config.data.validation_fraction = 0.1
    config.steps = chosen["steps"]
    config.batch_size = 512
    config.block_length = 1024
    config.accumulation = 16
    config.dtype = "bfloat16"
    config.optimizer.update({"peak_learning_rate": 1e-5, "b2": 0.999, "eps": 1e-8, "weight_decay": 0.0, "clip_norm": 1.0})
    config.phases = one_phase(warmup=0.05, decay="cosine")
    config.eval_every = config.checkpoint_every = max(1, config.steps // 10)
    config.log_every = 10
    return config
