"""Documents to tokens, each ended as its tokenizer ends a text."""

import dataclasses
import itertools
from array import array
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import tokenizers

from wechsel_jax.errors import UserError
from wechsel_jax.tokens.encoding import around, encode, plain_backend

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast


def token_dtype(vocabulary_size: int) -> np.dtype:
    """The type of tokens on disk: little-endian uint16 where the vocabulary has at most 65536 ids, else uint32."""
    return np.dtype("<u2" if vocabulary_size <= 1 << 16 else "<u4")


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
        backend = plain_backend(tokenizer)
        size = max(backend.get_vocab(with_added_tokens=True).values()) + 1
        if around(backend)[1]:
            return cls(backend, size, None)
        end = next((token for token in (tokenizer.eos_token_id, tokenizer.sep_token_id) if token is not None), None)
        if end is None:
            raise UserError(f"{place}: has no token that ends a text; expected an eos_token; name one in tokenizer_config.json")
        return cls(backend, size, end)

    @property
    def dtype(self) -> np.dtype:
        """Of tokens on disk."""
        return token_dtype(self.vocabulary_size)

    def tokens(self, documents: Sequence[str]) -> np.ndarray:
        """The tokens (n,) of all documents, one after the other."""
        end = [] if self.end is None else [self.end]
        ids = (piece for encoded in encode(self.backend, documents, special_tokens=True) for piece in (encoded, end))
        return np.fromiter(itertools.chain.from_iterable(ids), self.dtype)

    @property
    def around(self) -> tuple[list[int], list[int]]:
        """The tokens before and behind each document."""
        before, after = around(self.backend)
        return before, after if self.end is None else [*after, self.end]

    def sentences(self, documents: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
        """As `tokens`, of documents in which each line is a sentence, cut into tokens for itself.

        Returns:
          The tokens (n,), and uint32 how many of them each sentence has, with a 0 behind the last sentence of a document.
        """
        before, after = self.around
        split = [document.split("\n") for document in documents]
        ids = encode(self.backend, (line.rstrip("\r") for lines in split for line in lines), special_tokens=False)
        tokens, sizes = array("I"), array("I")
        for lines in split:
            tokens.extend(before)
            for found in itertools.islice(ids, len(lines)):
                # A line without a token is no sentence.
                sizes.extend([len(found)] if len(found) else [])
                tokens.extend(found)
            tokens.extend(after)
            sizes.append(0)
        return np.asarray(tokens, self.dtype), np.asarray(sizes, "<u4")
