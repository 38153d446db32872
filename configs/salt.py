r"""SALT's continued training of Gemma or XGLM (Lee et al., 2025, appendix C): one epoch of 512 x 1,024 tokens, cosine.

First:    wechsel-jax transfer --source=google/gemma-2b --target_tokenizer=TOKENIZER --method=salt --helper=TARGET_MODEL
            --token_vectors=native --target_vectors=tokens.bin --output=gemma-german
Command:  python -m train.pretrain --workdir=DIR --config=configs/salt.py:model=gemma-german,text=train.txt,steps=N
Cost:     the paper used two A100 of 80 GB. Not run by this project yet.
Expected: the paper's table 8 (loss of the last step).

`steps` is the number of updates in one epoch: the text's tokens divided by 524,288. One hundredth of the documents, which the
paper does not name, is held out for the perplexity. AdamW's other numbers are Hugging Face's defaults, which the paper kept.
"""

from ml_collections import ConfigDict

from wechsel_jax.training import config_arguments, default_config, one_phase


def get_config(arguments: str = "") -> ConfigDict:
    chosen = config_arguments(arguments, model="gemma-target", text="train.txt", steps=1000)
    config = default_config()
    config.model.checkpoint = chosen["model"]
    config.model.remat = "full"
    config.data.train = (chosen["text"],)
    config.data.validation_fraction = 0.01
    config.steps = chosen["steps"]
    config.batch_size = 512
    config.block_length = 1024
    config.accumulation = 16
    config.dtype = "bfloat16"
    config.optimizer.update({"peak_learning_rate": 1e-5, "b2": 0.999, "eps": 1e-8, "weight_decay": 0.0, "clip_norm": 1.0})
    config.phases = one_phase(warmup=0.05, decay="cosine")
    config.eval_every = 500
    config.checkpoint_every = 500
    config.log_every = 10
    return config
