"""Documents to tokens, and to what is needed to choose among documents."""

import dataclasses
import hashlib
import itertools
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import tokenizers

from wechsel_jax.errors import UserError
from wechsel_jax.tokens.encoding import encode

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

# What is known of a document before it is tokenised: 128 bits of a hash of its text, and its bytes of UTF-8.
FACTS = np.dtype([("low", "<u8"), ("high", "<u8"), ("bytes", "<u8")])
DROPPED, TRAIN, VALIDATION = 0, 1, 2


@dataclasses.dataclass(frozen=True)
class Encoder:
    """A tokenizer, and the end of a document where the tokenizer adds none itself.

    Attributes:
      backend: which neither truncates nor pads.
      vocabulary_size: V, every token is smaller.
      end: token that follows each document; None: the tokenizer itself ends a text.
    """

    backend: tokenizers.Tokenizer
    vocabulary_size: int
    end: int | None

    @classmethod
    def of(cls, tokenizer: "PreTrainedTokenizerFast", place: str) -> "Encoder":
        """The encoder of a tokenizer that was loaded from `place`.

        Raises:
          UserError: the tokenizer has no token to end a document with.
        """
        backend = tokenizers.Tokenizer.from_str(tokenizer.backend_tokenizer.to_str())
        # A tokenizer.json may ask for both; either would lose or add tokens in silence.
        backend.no_truncation()
        backend.no_padding()
        size = max(backend.get_vocab(with_added_tokens=True).values()) + 1
        mask = backend.encode("a").special_tokens_mask
        if mask and mask[-1]:
            return cls(backend, size, None)
        end = next((token for token in (tokenizer.eos_token_id, tokenizer.sep_token_id) if token is not None), None)
        if end is None:
            raise UserError(f"{place}: has no token that ends a text; expected an eos_token; name one in tokenizer_config.json")
        return cls(backend, size, end)

    @property
    def dtype(self) -> np.dtype:
        """Little-endian uint16 where the vocabulary has at most 65536 ids, else uint32."""
        return np.dtype("<u2") if self.vocabulary_size <= 1 << 16 else np.dtype("<u4")

    def tokens(self, documents: Sequence[str]) -> np.ndarray:
        """The tokens (n,) of all documents, one after the other."""
        end = [] if self.end is None else [self.end]
        ids = (piece for encoded in encode(self.backend, documents, special_tokens=True) for piece in (encoded, end))
        return np.fromiter(itertools.chain.from_iterable(ids), self.dtype)


def facts(documents: Sequence[str]) -> np.ndarray:
    """What is known of each document before it is tokenised: `FACTS` (n,)."""
    encoded = [document.encode() for document in documents]
    digests = b"".join(hashlib.blake2b(text, digest_size=16).digest() for text in encoded)
    found = np.empty(len(encoded), FACTS)
    found["low"], found["high"] = np.frombuffer(digests, "<u8").reshape(-1, 2).T
    found["bytes"] = np.fromiter(map(len, encoded), np.uint64, len(encoded))
    return found


def side_of(documents: np.ndarray, validation_fraction: float) -> np.ndarray:
    """On which side each document is: `FACTS` (n,) -> uint8 (n,), `TRAIN` or `VALIDATION`.

    The side depends on the document's text alone: the same text is never on both, and stays where it is when other text is
    added, removed or put in another order.
    """
    held_out = documents["high"] < np.uint64(min(int(validation_fraction * 2.0**64), (1 << 64) - 1))
    return np.where(held_out, VALIDATION, TRAIN).astype(np.uint8)
