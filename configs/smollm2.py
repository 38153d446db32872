r"""SmolLM2-135M with a new vocabulary, at a length that a CPU can do: 300 steps of 4 x 128 tokens.

Command:  python -m benchmarks.trained_model --source=SMOLLM2 --text=german.txt --validation=german.validation.txt \
            --english=english.txt --dictionary=german.tsv --vectors=en.bin,de.bin --scratch=runs/smollm2 \
            --output=benchmarks/trained_model.json
          makes the tokenizer (16,384 byte-level tokens), transfers by `anker`, `wechsel` and `fvt`, and trains, with
          --config=configs/smollm2.py:model=DIR,text=FILE,validation=FILE
Cost:     20 minutes a method on 2 CPU cores that had other work.
Expected: held-out perplexity 406 after training by `anker`, 595 by `wechsel` and 474 by `fvt`; on running text PyTorch counts
          2.25, 2.42 and 2.31 bits per byte (benchmarks/trained_model.json).

`steps` and `rows` behind the colon change the length and the batch, `recipe`, `rate` and `warmup` how it is trained
(docs/recipe.md).
"""

from ml_collections import ConfigDict

from configs.compare_initializers import require_some
from wechsel_jax.training import config_arguments, default_config, one_phase
from wechsel_jax.training.groups import RECIPES


def get_config(arguments: str = "") -> ConfigDict:
    chosen = config_arguments(
        arguments,
        **{"model": "smollm2-target", "text": "train.txt", "validation": "valid.txt", "steps": 300, "rows": 4},
        **{"recipe": (*RECIPES,), "rate": 5e-4, "warmup": 0.1},
    )
    require_some(steps=chosen["steps"], rows=chosen["rows"])
    config = default_config()
    config.model.checkpoint = chosen["model"]
    config.data.train = (chosen["text"],)
    config.data.validation = (chosen["validation"],)
    config.steps = chosen["steps"]
    config.batch_size = chosen["rows"]
    config.block_length = 128
    config.optimizer.update({"peak_learning_rate": chosen["rate"], "b2": 0.95, "eps": 1e-8, "weight_decay": 0.1})
    config.optimizer.groups = RECIPES[chosen["recipe"]]
    config.phases = one_phase(warmup=chosen["warmup"], decay="cosine")
    config.eval_every = config.checkpoint_every = max(1, chosen["steps"] // 6)
    config.eval_batches = max(1, 64 // chosen["rows"])
    config.keep = 1
    config.log_every = 5
    return config
