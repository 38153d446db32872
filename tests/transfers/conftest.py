"""A small world that the tests of checkpoints, transfer, command line and hub share: real text, tiny models."""

import dataclasses
import lzma
from pathlib import Path

import pytest
import torch
import transformers

from wechsel_jax import demo
from wechsel_jax.tokens.training import train_tokenizer
from wechsel_jax.vectors import train_vectors

LINES = 1500
PAIRS = 20_000
D = 16
D_WORDS = 24


@dataclasses.dataclass(frozen=True)
class World:
    """Tokenizers, word vectors and a dictionary for English and German, made of the bundled text."""

    root: Path

    def tokenizer(self, language: str, style: str) -> Path:
        return self.root / f"{style}-{language}"

    def vectors(self, language: str) -> Path:
        return self.root / f"{language}.bin"

    @property
    def dictionary(self) -> Path:
        return self.root / "dictionary.tsv"

    def inputs(self, **options) -> dict:
        """Arguments of `transfer` for a method that needs word vectors."""
        vectors = {"source_vectors": self.vectors("english"), "target_vectors": self.vectors("german")}
        return vectors | {"dictionary": self.dictionary} | options


def _lines(name: str, count: int) -> str:
    with lzma.open(demo.path(name), "rt", encoding="utf-8") as handle:
        return "".join(line for _, line in zip(range(count), handle, strict=False))


@pytest.fixture(scope="session")
def world(tmp_path_factory) -> World:
    root = tmp_path_factory.mktemp("world")
    sizes = {"english": 700, "german": 600}  # different, so that swapped sides show
    for language, size in sizes.items():
        text = root / f"{language}.txt"
        text.write_text(_lines(f"{language}.train.txt.xz", LINES), encoding="utf-8")
        for style in ("gpt2", "roberta"):
            train_tokenizer(text, size, root / f"{style}-{language}", style=style)
        train_vectors(
            text,
            root / f"{language}.bin",
            dim=D_WORDS,
            epochs=3,
            learning_rate=0.3,
            subsampling=1e-3,
            negatives=3,
            smallest_ngram=3,
            largest_ngram=4,
            buckets=5000,
            min_count=2,
        )
    (root / "dictionary.tsv").write_text(_lines("english-german.tsv.xz", PAIRS), encoding="utf-8")
    return World(root)


def make_model(kind: str, *, rows: int, tied: bool = True, prefix: bool = True, seed: int = 0, **overrides):
    """A random GPT-2 or RoBERTa with weights large enough that a wrong row shows, head bias included."""
    torch.manual_seed(seed)
    if kind == "gpt2":
        settings = {"n_layer": 2, "n_embd": D, "n_head": 2, "n_positions": 32, "bos_token_id": 0, "eos_token_id": 0}
        config = transformers.GPT2Config(vocab_size=rows, tie_word_embeddings=tied, **(settings | overrides))
        model = (transformers.GPT2LMHeadModel if prefix else transformers.GPT2Model)(config)
    else:
        settings = {"num_hidden_layers": 2, "hidden_size": D, "num_attention_heads": 2, "intermediate_size": 32}
        settings |= {"max_position_embeddings": 34, "layer_norm_eps": 1e-5, "type_vocab_size": 1}
        config = transformers.RobertaConfig(vocab_size=rows, tie_word_embeddings=tied, **(settings | overrides))
        model = (transformers.RobertaForMaskedLM if prefix else transformers.RobertaModel)(config)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "norm" not in name.lower() and "ln_" not in name:
                parameter.copy_(torch.randn(parameter.shape) * 0.3)
    return model.eval()


@pytest.fixture(scope="session")
def save_source(world, tmp_path_factory):
    """Returns a function that saves a random English model with its tokenizer: (directory, model)."""

    def save(kind: str = "gpt2", padding: int = 0, dtype: torch.dtype = torch.float32, **options):
        tokenizer = transformers.AutoTokenizer.from_pretrained(world.tokenizer("english", kind))
        model = make_model(kind, rows=len(tokenizer) + padding, **options).to(dtype)
        directory = tmp_path_factory.mktemp(kind)
        model.save_pretrained(directory)
        tokenizer.save_pretrained(directory)
        return directory, model

    return save


@pytest.fixture(scope="session")
def source(save_source) -> Path:
    """A tied GPT-2 in English, for tests that do not change it."""
    return save_source("gpt2")[0]


@pytest.fixture(scope="session")
def helper(world, tmp_path_factory) -> Path:
    """A German GPT-2 that is smaller than the source models; its tokenizer is the one that tests transfer to."""
    return save_helper(world, tmp_path_factory.mktemp("helper"), "gpt2")


def save_helper(world: World, directory: Path, kind: str) -> Path:
    """Saves a random German model of 12 dimensions, 10 rows of padding included, with its tokenizer."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(world.tokenizer("german", kind))
    width = {"n_embd": 12} if kind == "gpt2" else {"hidden_size": 12}
    make_model(kind, rows=len(tokenizer) + 10, seed=7, **width).save_pretrained(directory)
    tokenizer.save_pretrained(directory)
    return directory
