r"""SmolLM2-135M with a new vocabulary, at a length that a CPU can do: 300 steps of 4 x 128 tokens.

Command:  python -m benchmarks.trained_model --source=SMOLLM2 --text=german.txt --validation=german.validation.txt \
            --english=english.txt --dictionary=german.tsv --vectors=en.bin,de.bin --scratch=runs/smollm2 \
            --output=benchmarks/trained_model.json
          makes the tokenizer (16,384 byte-level tokens), transfers by `anker`, `wechsel` and `fvt`, and trains, with
          --config=configs/smollm2.py:model=DIR,text=FILE,validation=FILE
Cost:     20 minutes a method on 2 CPU cores that had other work.
Expected: held-out perplexity 406 after training by `anker`, 595 by `wechsel` and 474 by `fvt`; on running text PyTorch counts
          2.25, 2.42 and 2.31 bits per byte (benchmarks/trained_model.json).

`steps` and `rows` behind the colon change the length and the batch.
"""

from ml_collections import ConfigDict

from wechsel_jax.training import config_arguments, default_config, one_phase


def get_config(arguments: str = "") -> ConfigDict:
    chosen = config_arguments(arguments, model="smollm2-target", text="train.txt", validation="valid.txt", steps=300, rows=4)
    config = default_config()
    config.model.checkpoint = chosen["model"]
    config.data.train = (chosen["text"],)
    config.data.validation = (chosen["validation"],)
    config.steps = chosen["steps"]
    config.batch_size = chosen["rows"]
    config.block_length = 128
    config.optimizer.update({"peak_learning_rate": 5e-4, "b2": 0.95, "eps": 1e-8, "weight_decay": 0.1})
    config.phases = one_phase(warmup=0.1, decay="cosine")
    config.eval_every = 50
    config.eval_batches = 16
    config.checkpoint_every = 50
    config.keep = 1
    config.log_every = 5
    return config
