r"""WECHSEL's GPT-2 training (Minixhofer et al., 2022, section 4 and appendix B): 250,000 steps of 512 x 512 tokens.

First:    wechsel-jax transfer --source=gpt2 --target_tokenizer=TOKENIZER --method=wechsel --source_vectors=cc.en.300.bin
            --target_vectors=cc.de.300.bin --dictionary=english-german.tsv --output=gpt2-german
Command:  python -m train.pretrain --workdir=DIR \
            --config=configs/wechsel_gpt2.py:model=gpt2-german,text=train.txt,validation=valid.txt
Cost:     the paper: about 4 days on a TPU v3-8. Not run by this project yet.
Expected: the paper's table 3.

Behind the colon: `schedule=trans_inner` trains the new tokens alone for the first tenth (section 4), `schedule=freeze` all
embeddings alone for the first tenth of 75,000 steps (section 5.3), `schedule=frozen` nothing but the embeddings for 75,000
steps (first version of the paper, section 5.4.1). `low_resource=1` evaluates every 2,500 steps and stops after 10,000 without
gain (section 5.2.2). `bytes=` takes a sample of so many bytes of the text. `steps=1000,rows=8` tries it out: so many steps of
so many rows, evaluated and saved 20 times at most (of more than 50,000 steps as often as the paper's).
"""

from pathlib import Path

from ml_collections import ConfigDict

from wechsel_jax.training import config_arguments, default_config, one_phase, trans_inner_phases

SCHEDULES = {
    "one": one_phase(warmup=0.1),
    "trans_inner": trans_inner_phases(first=0.1, warmup=0.1),
    "freeze": trans_inner_phases(first=0.1, warmup=0.1, trainable="embeddings"),
    "frozen": one_phase(warmup=0.1, trainable="embeddings"),
}


def get_config(arguments: str = "") -> ConfigDict:
    chosen = config_arguments(
        arguments,
        **{"model": "gpt2-target", "text": "train.txt", "validation": "valid.txt"},
        **{"schedule": (*SCHEDULES,), "low_resource": ("0", "1"), "bytes": 0, "steps": int, "rows": int},
    )
    config = default_config()
    config.model.checkpoint = chosen["model"]
    config.data.train = (chosen["text"],)
    config.data.validation = (chosen["validation"],)
    config.data.max_bytes = chosen["bytes"]
    config.steps = 75_000 if chosen["schedule"] in ("freeze", "frozen") else 250_000
    config.batch_size = 512
    config.block_length = 512
    config.accumulation = 8
    config.dtype = "bfloat16"
    # All of table 6; what it does not name, such as a limit of the gradient's norm, there was none.
    config.optimizer.update(
        {"peak_learning_rate": 5e-4, "b1": 0.9, "b2": 0.98, "eps": 1e-6, "weight_decay": 0.01, "clip_norm": None}
    )
    config.phases = SCHEDULES[chosen["schedule"]]
    config.eval_every = 2_500 if chosen["low_resource"] == "1" else 12_500
    config.patience = 10_000 if chosen["low_resource"] == "1" else 0
    config.checkpoint_every = 2_500
    config.keep_every = 25_000
    config.log_every = 100
    set_scale(config, chosen["steps"], chosen["rows"])
    return config


def set_scale(config: ConfigDict, steps: int | None, rows: int | None) -> None:
    """Sets other steps and rows than the paper's, where they are given, and with them what happens how often."""
    if steps is not None:
        config.steps = steps
        config.eval_every = min(config.eval_every, -(-config.steps // 20))
        config.checkpoint_every = min(config.checkpoint_every, config.eval_every)
        config.log_every = min(config.log_every, config.eval_every)
    if rows is not None:
        config.batch_size = rows
        # At most as many parts as the paper's run has, each of at least 64 rows.
        config.accumulation = max(
            n for n in (1, 2, 4, 8) if n == 1 or (config.batch_size % n == 0 and config.batch_size >= 64 * n)
        )


def at_papers_scale(config: ConfigDict, language: str, data: str) -> None:
    """Gives a comparison the paper's source, vectors, vocabulary and training.

    Args:
      config: of `train.compare`, with text and dictionary (the paper's: MUSE's for fr, de and zh, FreeDict's for sw).
      language: two letters.
      data: folder with cc.en.300.bin and those of the language, from fasttext.cc.
    """
    config.source = "gpt2"
    config.tokenizer.vocabulary_size = 50_000
    take_crawl_vectors(config, language, data)
    config.training = get_config("schedule=freeze")


def take_crawl_vectors(config: ConfigDict, language: str, data: str) -> None:
    """Gives a comparison fastText's vectors of web text in place of those that are trained on its own.

    Args:
      config: of `train.compare`.
      language: two letters.
      data: folder with cc.en.300.bin and those of the language, from fasttext.cc.
    """
    files = {side: str(Path(data) / f"cc.{name}.300.bin") for side, name in (("source", "en"), ("target", language))}
    config.vectors.update({**files, "train_here": False})
