"""The start of a small English RoBERTa, for configs/masked_english.py: what the bundled GPT-2 and sinusoids can give it.

    wechsel-jax tokenizer --input=data/en.train.txt --style=roberta --vocab_size=8192 --output=masked/tokenizer
    python -m benchmarks.masked_start masked/tokenizer masked/start

A masked model learns from the masked tokens alone and needs far more text than a causal one before it looks at more than
frequencies. Two things that cost nothing shall bring that forward: tokens that the bundled GPT-2 has too begin with its rows
(centred, scaled to twice the standard deviation of new ones), and positions begin as sinusoids, so that neighbors are found by
the same weights everywhere. All else is a new model's. Writes a folder with tokenizer, config.json and model.safetensors.
"""

import json
import shutil
import sys
from pathlib import Path

import jax
import numpy as np
from safetensors.numpy import load_file, save_file

from wechsel_jax import demo
from wechsel_jax.files import new_directory
from wechsel_jax.models import family
from wechsel_jax.program import program
from wechsel_jax.tokens import load_tokenizer

SIZE = {
    "model_type": "roberta",
    "hidden_size": 256,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "intermediate_size": 1024,
    "max_position_embeddings": 130,
    "type_vocab_size": 1,
    "layer_norm_eps": 1e-5,
    "pad_token_id": 1,
}
TABLES = "roberta.embeddings.{}_embeddings.weight"
NEW_SPREAD = 0.02
POSITIONS, LONGEST_WAVE = 0.03, 500.0


def start(tokenizer: Path, output: Path) -> int:
    """Writes the start for a tokenizer and returns how many of its tokens have a row of the bundled GPT-2.

    Raises:
      UserError: `output` exists, or `tokenizer` is none. Nothing is written then.
    """
    vocabulary = load_tokenizer(str(tokenizer)).get_vocab()
    roberta, source = family("roberta"), Path(demo.path("english-gpt2"))
    described = {**SIZE, "vocab_size": len(vocabulary)}
    config = roberta.config(described, dropout=0.0)
    tensors = {
        name: np.array(value)
        for name, value in roberta.to_hugging_face(roberta.init(config, jax.random.key(0)), config).items()
    }
    known = load_tokenizer(str(source)).get_vocab()
    table = next(value for name, value in load_file(source / "model.safetensors").items() if name.endswith("wte.weight"))
    table = table.astype(np.float32) - table.astype(np.float32).mean(axis=0)
    table *= 2 * NEW_SPREAD / table.std()
    shared = [(row, known[token]) for token, row in vocabulary.items() if token in known]
    rows, sources = map(list, zip(*shared, strict=True))
    tensors[TABLES.format("word")][rows] = table[sources]
    tensors[TABLES.format("position")] = POSITIONS * sinusoids(*tensors[TABLES.format("position")].shape)
    described |= {"architectures": ["RobertaForMaskedLM"], "tie_word_embeddings": True}
    with new_directory(output, "benchmarks.masked_start") as folder:
        shutil.copytree(tokenizer, folder, dirs_exist_ok=True)
        save_file({name: np.ascontiguousarray(value) for name, value in tensors.items()}, folder / "model.safetensors")
        (folder / "config.json").write_text(json.dumps(described, indent=1) + "\n", encoding="utf-8")
    return len(shared)


def sinusoids(length: int, size: int) -> np.ndarray:
    """float32 (length, size): sines and cosines, the slowest at the end of either half.

    Shorter waves than those of Vaswani et al. (2017), section 3.5, whose slowest hardly move in 128 positions.
    """
    angles = np.arange(length)[:, None] / LONGEST_WAVE ** (2 * np.arange(size // 2) / size)
    return np.concatenate([np.sin(angles), np.cos(angles)], axis=1).astype(np.float32)


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    with program("benchmarks.masked_start"):
        print(f"{start(Path(sys.argv[1]), Path(sys.argv[2])):,} tokens have a row of the bundled GPT-2")
