"""What a token is (its bytes, whether it starts a word, its special role), and what two vocabularies share.

Read `vocabulary` first: everything else works with its exact bytes. Then:
  files, training, splitting: a tokenizer from disk, the hub or text, and where it ends a word.
  task_vocabulary: one with the words, or with the tokens of another one, that a task's text holds.
  extension, chat: a source tokenizer with new tokens, a new one with the source's chat template.
  overlap, reference_overlap, mapping: which tokens of two vocabularies are the same.
  encoding, text, pieces: text to ids, however long; ids of files in memory; target tokens in the source's pieces.
"""

from wechsel_jax.tokens.files import load_tokenizer
from wechsel_jax.tokens.vocabulary import (
    BYTE_TOKEN,
    BYTE_VALUES,
    ROLES,
    SAME_ROLE,
    Vocabulary,
    byte_level_string,
    parity_words,
    readable,
)

__all__ = [
    "BYTE_TOKEN",
    "BYTE_VALUES",
    "ROLES",
    "SAME_ROLE",
    "Vocabulary",
    "byte_level_string",
    "load_tokenizer",
    "parity_words",
    "readable",
]
