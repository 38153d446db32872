"""A tiny tokenizer, text, and settings of a tiny run, shared by the tests of training."""

import random
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from ml_collections import ConfigDict
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from tests.training.runs import Runs
from wechsel_jax.training import default_config, trans_inner_phases

WORDS = ("alpha", "beta", "gamma", "delta", "house", "garden", "river", "stone", "winter", "light")
MODEL = {"model_type": "gpt2", "n_embd": 32, "n_layer": 2, "n_head": 2, "n_positions": 32}


@pytest.fixture(scope="session")
def texts(tmp_path_factory) -> Path:
    """A folder with train.txt, validation.txt and tokenizer/ (about 300 byte-level BPE tokens)."""
    folder = tmp_path_factory.mktemp("texts")
    generator = random.Random(0)
    lines = [" ".join(generator.choice(WORDS) for _ in range(generator.randint(3, 20))) for _ in range(400)]
    (folder / "train.txt").write_text("\n".join(lines[:360]) + "\n", encoding="utf-8")
    (folder / "validation.txt").write_text("\n".join(lines[360:]) + "\n", encoding="utf-8")
    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    trainer = trainers.BpeTrainer(
        vocab_size=320, special_tokens=["<|endoftext|>"], initial_alphabet=alphabet, show_progress=False
    )
    backend.train_from_iterator(lines, trainer)
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, bos_token="<|endoftext|>", eos_token="<|endoftext|>")
    tokenizer.save_pretrained(folder / "tokenizer")
    return folder


@pytest.fixture(scope="session")
def make_config(texts, tmp_path_factory) -> Callable[..., ConfigDict]:
    """Returns a function (field=value, ...) -> settings of a run of a few seconds; "a__b" names field a.b.

    All share one cache of compiled programs: most runs of these tests take the same steps.
    """
    cache = str(tmp_path_factory.mktemp("compiled"))

    def make(**changes) -> ConfigDict:
        config = default_config()
        config.data.train = (str(texts / "train.txt"),)
        config.data.validation = (str(texts / "validation.txt"),)
        config.model.tokenizer = str(texts / "tokenizer")
        config.model.config = ConfigDict(MODEL)
        config.model.dropout = 0.1
        config.steps, config.batch_size, config.block_length = 20, 8, 16
        config.eval_every, config.checkpoint_every, config.log_every = 10, 5, 2
        config.optimizer.peak_learning_rate = 1e-2
        config.phases = trans_inner_phases(first=0.3)
        config.compilation_cache = cache
        for name, value in changes.items():
            *parents, field = name.split("__")
            place = config
            for parent in parents:
                place = place[parent]
            with place.ignore_type():
                place[field] = value
        return config

    return make


@pytest.fixture(scope="session")
def runs(tmp_path_factory) -> Iterator[Runs]:
    """Starts runs as processes of their own."""
    runs = Runs(tmp_path_factory.mktemp("runs"))
    yield runs
    runs.close()
