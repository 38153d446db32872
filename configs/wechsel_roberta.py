r"""WECHSEL's RoBERTa training (Minixhofer et al., 2022, section 4 and appendix B): 250,000 steps of 512 x 512 tokens.

First:    wechsel-jax transfer --source=roberta-base --target_tokenizer=TOKENIZER --method=wechsel
            --source_vectors=cc.en.300.bin --target_vectors=cc.de.300.bin --dictionary=english-german.tsv
            --output=roberta-german
Command:  python -m train.pretrain --workdir=DIR \
            --config=configs/wechsel_roberta.py:model=roberta-german,text=train.txt,validation=valid.txt
Cost:     the paper: about 4 days on a TPU v3-8. Not run by this project yet.
Expected: the paper's table 2 (after fine-tuning).

Behind the colon: `schedule=trans_inner` takes TransInner's two phases, `bytes=` a sample of so many bytes of the text,
`steps=1000,rows=8` other steps and rows. The paper's low-resource runs and its studies of freezing (sections 5.2.2 and 5.3)
are of GPT-2 alone: configs/wechsel_gpt2.py.
"""

from ml_collections import ConfigDict

from configs.wechsel_gpt2 import set_scale
from wechsel_jax.training import config_arguments, default_config, one_phase, trans_inner_phases

SCHEDULES = {"one": one_phase(warmup=0.1), "trans_inner": trans_inner_phases(first=0.1, warmup=0.1)}


def get_config(arguments: str = "") -> ConfigDict:
    chosen = config_arguments(
        arguments,
        **{"model": "roberta-target", "text": "train.txt", "validation": "valid.txt"},
        **{"schedule": (*SCHEDULES,), "bytes": 0, "steps": int, "rows": int},
    )
    config = default_config()
    config.model.checkpoint = chosen["model"]
    config.data.train = (chosen["text"],)
    config.data.validation = (chosen["validation"],)
    config.data.max_bytes = chosen["bytes"]
    config.objective = "mlm"
    config.steps = 250_000
    config.batch_size = 512
    config.block_length = 512
    config.accumulation = 8
    config.dtype = "bfloat16"
    # All of table 6; what it does not name, such as a limit of the gradient's norm, there was none.
    config.optimizer.update(
        {"peak_learning_rate": 1e-4, "b1": 0.9, "b2": 0.98, "eps": 1e-6, "weight_decay": 0.01, "clip_norm": None}
    )
    config.phases = SCHEDULES[chosen["schedule"]]
    config.eval_every = 12_500
    config.checkpoint_every = 2_500
    config.keep_every = 25_000
    config.log_every = 100
    set_scale(config, chosen["steps"], chosen["rows"])
    return config
