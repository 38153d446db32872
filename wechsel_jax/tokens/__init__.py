"""What a token is (its bytes, whether it starts a word, its special role), and what two vocabularies share."""

from wechsel_jax.tokens.vocabulary import (
    BYTE_TOKEN,
    ROLES,
    SAME_ROLE,
    Vocabulary,
    byte_level_string,
    load_tokenizer,
    parity_words,
    readable,
)

__all__ = [
    "BYTE_TOKEN",
    "ROLES",
    "SAME_ROLE",
    "Vocabulary",
    "byte_level_string",
    "load_tokenizer",
    "parity_words",
    "readable",
]
