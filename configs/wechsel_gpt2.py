r"""WECHSEL's GPT-2 training (Minixhofer et al., 2022, section 4 and appendix B): 250,000 steps of 512 x 512 tokens.

First:    wechsel-jax transfer --source=gpt2 --target_tokenizer=TOKENIZER --method=wechsel --source_vectors=cc.en.300.bin
            --target_vectors=cc.de.300.bin --dictionary=english-german.tsv --output=gpt2-german
Command:  python -m train.pretrain --workdir=DIR \
            --config=configs/wechsel_gpt2.py:model=gpt2-german,text=train.txt,validation=valid.txt
Cost:     the paper: about 4 days on a TPU v3-8. Not run by this project yet.
Expected: the paper's table 3.

`trans_inner=1` behind the colon takes TransInner's two phases.
"""

from ml_collections import ConfigDict

from wechsel_jax.training import default_config, one_phase, trans_inner_phases


def get_config(arguments: str = "") -> ConfigDict:
    chosen = dict(part.split("=", 1) for part in arguments.split(",") if part)
    config = default_config()
    config.model.checkpoint = chosen.get("model", "gpt2-target")
    config.data.train = (chosen.get("text", "train.txt"),)
    config.data.validation = (chosen.get("validation", "valid.txt"),)
    config.steps = 250_000
    config.batch_size = 512
    config.block_length = 512
    config.accumulation = 8
    config.dtype = "bfloat16"
    config.optimizer.peak_learning_rate = 5e-4
    config.phases = trans_inner_phases() if chosen.get("trans_inner") == "1" else one_phase(warmup=0.1)
    config.eval_every = 12_500
    config.checkpoint_every = 2_500
    config.log_every = 100
    return config
