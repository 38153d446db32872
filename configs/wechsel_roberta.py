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

from configs import wechsel_gpt2
from wechsel_jax.training import config_arguments


def get_config(arguments: str = "") -> ConfigDict:
    chosen = config_arguments(
        arguments,
        **{"model": "roberta-target", "text": "train.txt", "validation": "valid.txt"},
        **{"schedule": ("one", "trans_inner"), "bytes": 0, "steps": int, "rows": int},
    )
    config = wechsel_gpt2.get_config(",".join(f"{name}={value}" for name, value in chosen.items() if value is not None))
    config.objective = "mlm"
    # Table 6 has another rate, and all else alike.
    config.optimizer.peak_learning_rate = 1e-4
    return config
