"""Small vocabularies and the least tokenizer that PyPI wechsel reads."""

from types import SimpleNamespace

import numpy as np
import pytest

from wechsel_jax.initializers import Side
from wechsel_jax.tokens import Vocabulary

# Source tokens, target tokens and dimensions of `counted_sides`.
COUNTED_SIZES = (60, 50, 12)
GPT2_ROLES = {"<|endoftext|>": {"bos", "eos", "unk"}}
ROBERTA_ROLES = {"<s>": {"bos", "cls"}, "<pad>": {"pad"}, "</s>": {"eos", "sep"}, "<unk>": {"unk"}, "<mask>": {"mask"}}


def vocabulary(prefix: str, size: int, roles: dict[str, set[str]]) -> Vocabulary:
    """Specials first, then tokens `prefix`0, `prefix`1, ... up to `size`."""
    strings = (*roles, *(f"{prefix}{i}" for i in range(size - len(roles))))
    marks = tuple(frozenset(roles.get(string, ())) for string in strings)
    return Vocabulary(strings, tuple(s.encode() for s in strings), np.zeros(size, bool), marks, "byte_bpe")


class FakeTokenizer:
    """What `wechsel.create_target_embeddings` and `WECHSEL.apply` ask of a tokenizer."""

    def __init__(self, tokens: Vocabulary):
        self._strings = tokens.strings
        self.vocab = {string: i for i, string in enumerate(tokens.strings)}
        specials = (string for i, string in enumerate(tokens.strings) if tokens.roles[i])
        self.special_tokens_map = {f"special_{i}": string for i, string in enumerate(specials)}

    def __len__(self):
        return len(self._strings)

    def get_vocab(self):
        return self.vocab

    def decode(self, i):
        return self._strings[i]

    def convert_ids_to_tokens(self, ids):
        return self._strings[ids] if np.ndim(ids) == 0 else [self._strings[i] for i in ids]


@pytest.fixture(scope="session")
def fakes() -> SimpleNamespace:
    return SimpleNamespace(vocabulary=vocabulary, Tokenizer=FakeTokenizer, gpt2_roles=GPT2_ROLES, roberta_roles=ROBERTA_ROLES)


@pytest.fixture
def counted_sides() -> tuple[Side, Side]:
    """Source and target with vectors, counts and word starts; the last four tokens of either have no vector."""
    generator = np.random.default_rng(0)
    made = []
    for prefix, size in zip("st", COUNTED_SIZES[:2], strict=True):
        strings = tuple(f"{'Ġ' if i % 3 else ''}{prefix}{i}" for i in range(size))
        starts = np.array([string.startswith("Ġ") for string in strings])
        tokens = Vocabulary(strings, tuple(s.encode() for s in strings), starts, (frozenset(),) * size, "byte_bpe")
        vectors = generator.standard_normal((size, COUNTED_SIZES[2])).astype(np.float32)
        vectors[size - 4 :] = 0
        made.append(Side(tokens, vectors, counts=generator.zipf(1.3, size).clip(max=10_000)))
    return tuple(made)
