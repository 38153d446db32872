"""A stream of tokens on disk as blocks of one length; the batch of any training step; the batches of an evaluation."""

import dataclasses
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

import numpy as np

from wechsel_jax.data.manifest import TOKENS, read_manifest, verify_tokens
from wechsel_jax.data.order import permuted
from wechsel_jax.errors import UserError
from wechsel_jax.tokens import Vocabulary

# Tokens.
_COUNTED_AT_ONCE = 1 << 24
Batch = dict[str, np.ndarray]
Rows = slice | np.ndarray
ALL_ROWS = slice(None)


class Dataset(Protocol):
    """What training asks of its data: n rows, and which of them make up a batch, as a function of (seed, step) alone.

    Attributes:
      directory: where they lie, for messages.
      fingerprint: a hash of all that is trained on.
    """

    directory: Path

    @property
    def fingerprint(self) -> str: ...

    def __len__(self) -> int: ...

    def drawn(self, step: int, batch_size: int, seed: int) -> np.ndarray:
        """int64 (B,): the rows of one step's batch."""
        ...

    def batch(self, step: int, batch_size: int, seed: int, rows: Rows = ALL_ROWS) -> Batch:
        """The rows `rows` of the batch of a step; arrays whose first axis they are, "tokens" int32 (rows, L) among them."""
        ...

    def positions(self, step: int, batch_size: int, seed: int) -> int:
        """How many positions, B L, the batch of a step has."""
        ...


@dataclasses.dataclass(frozen=True, eq=False)
class TokenBlocks:
    """Blocks [0, L), [L, 2L), ... of a stream; the tokens behind the last whole block belong to none.

    Attributes:
      directory: where the stream lies.
      length: L, tokens of a block.
      stream: (n,) uint16 or uint32, memory-mapped; read-only.
      vocabulary_size: V of the tokenizer; every token is smaller.
      fingerprint: sha256 of the stream, whatever the block length.
      text_bytes: of the documents in UTF-8; None where an earlier version did not record it.
    """

    directory: Path
    length: int
    stream: np.ndarray = dataclasses.field(repr=False)
    vocabulary_size: int
    fingerprint: str
    text_bytes: int | None = None

    @classmethod
    def open(cls, directory: str | os.PathLike, length: int, verify: bool = False) -> "TokenBlocks":
        """Opens what `prepare` wrote.

        Args:
          directory: of tokens.bin and manifest.json.
          length: L, at least 1.
          verify: whether to read the whole stream, compare it with its sha256 and see that every id is in the vocabulary,
            which takes a second or two per gigabyte; otherwise only its size is compared, and a byte that has changed on the
            disk goes unnoticed.

        Raises:
          UserError: the directory is no prepared text, is damaged or cut short, or holds less than one block.
        """
        if length < 1:
            raise UserError(f"{directory}: block length {length}; expected at least 1 token")
        manifest = read_manifest(directory)
        count = manifest["tokens"]
        if count < length:
            held = f"{count:,} tokens; expected at least one block of {length:,}"
            raise UserError(f"{directory}: {held}; give more text or a smaller block length")
        if verify:
            verify_tokens(directory, manifest)
        dtype = np.dtype(manifest["dtype"]).newbyteorder("<")
        stream = np.memmap(Path(directory) / TOKENS, dtype, mode="r", shape=(count,))
        return cls(Path(directory), length, stream, manifest["vocabulary_size"], manifest["sha256"], manifest.get("text_bytes"))

    def byte_lengths(self, vocabulary: Vocabulary) -> np.ndarray:
        """Returns float32 (V,): how many bytes of these documents each token stands for, together all that they have.

        `Vocabulary.byte_lengths` in another proportion: a tokenizer may invent spaces before words and characters, and write
        letters in another form. An unknown token stands for as much as the mean of the others. Special tokens: 0.
        """
        sizes, counts = vocabulary.byte_lengths.astype(np.float64), np.zeros(len(vocabulary), np.int64)
        for begin in range(0, self.stream.size, _COUNTED_AT_ONCE):
            counts += np.bincount(self.stream[begin : begin + _COUNTED_AT_ONCE], minlength=len(vocabulary))
        spelled, ordinary = counts @ sizes, counts[sizes > 0].sum()
        if not spelled:
            return sizes.astype(np.float32)
        sizes[vocabulary.unknown] = spelled / ordinary
        written = spelled if self.text_bytes is None else self.text_bytes
        return (sizes * (written / (counts @ sizes))).astype(np.float32)

    def __len__(self) -> int:
        return self.stream.size // self.length

    def drawn(self, step: int, batch_size: int, seed: int) -> np.ndarray:
        """int64 (B,): the blocks of one step's batch, see `training_indices`."""
        return training_indices(len(self), step, batch_size, seed)

    def batch(self, step: int, batch_size: int, seed: int, rows: Rows = ALL_ROWS) -> Batch:
        """The batch of one step: a pure function of (seed, step).

        Args:
          step: counted from 0.
          batch_size: B of all hosts together.
          seed: of the run.
          rows: which of the B rows to read, a slice or their numbers; hosts that take disjoint ones make up one batch.

        Returns:
          {"tokens": int32 (rows, L)}.
        """
        return {"tokens": self.blocks(self.drawn(step, batch_size, seed)[rows])}

    def positions(self, step: int, batch_size: int, seed: int) -> int:
        """How many tokens the batch of a step has; the same for all."""
        return batch_size * self.length

    def blocks(self, indices: np.ndarray) -> np.ndarray:
        """Returns blocks by their numbers: indices (n,) -> int32 (n, L).

        Raises:
          IndexError: an index is negative or not below `len(self)`.
        """
        indices = np.asarray(indices)
        if indices.size and (int(indices.min()) < 0 or int(indices.max()) >= len(self)):
            raise IndexError(f"blocks {indices.min()} to {indices.max()} of {len(self)}")
        rows = self.stream[: len(self) * self.length].reshape(len(self), self.length)
        return np.asarray(rows[indices], np.int32)


def training_indices(count: int, step: int, batch_size: int, seed: int) -> np.ndarray:
    """Which of `count` blocks make up the batch of one step: int64 (B,).

    Row r of step s is place s * B + r of an endless sequence of epochs, each with a permutation of its own, so a batch may
    hold the end of one epoch and the start of the next.
    """
    places = int(step) * batch_size + np.arange(batch_size, dtype=np.int64)
    epochs, indices = np.divmod(places, count)
    chosen = np.empty_like(indices)
    for epoch in np.unique(epochs):
        here = epochs == epoch
        chosen[here] = permuted(indices[here], count, seed, int(epoch))
    return chosen


def evaluation_batches(
    blocks: TokenBlocks,
    batch_size: int,
    causal: bool,
    limit: int | None = None,
    rows: Rows = ALL_ROWS,
    byte_lengths: np.ndarray | None = None,
) -> Iterator[Batch]:
    """Windows of the whole stream, in its order, so that every token has weight 1 exactly once.

    Causal windows overlap by one token: the last token of a window is the first of the next, where it is context and has
    weight 0. So every token but the stream's first is predicted once, the windows' first ones from the token before them
    alone. Windows for masked models do not overlap. What is behind the end of the stream has weight 0.

    Args:
      blocks: the stream, and L.
      batch_size: B, of every batch, the last one too.
      causal: whether token i is predicted from the tokens before it.
      limit: yield at most so many batches, from the start of the stream.
      rows: which of the B rows of each batch to read, a slice or their numbers.
      byte_lengths: (V,), how many bytes of text each token stands for, see `TokenBlocks.byte_lengths`; batches then have
        "bytes" (rows, L).

    Returns:
      An iterator of {"tokens": int32 (rows, L), "weights": float32 (rows, L), weight of token i as a predicted token,
      "mask": bool (rows, L), true for tokens of the stream}.

    Raises:
      UserError: nothing can be predicted: a causal window of one token, or a batch without a row.
    """
    if causal and blocks.length < 2:
        raise UserError(f"{blocks.directory}: block length 1; expected at least 2 tokens to predict one from another")
    if batch_size < 1 or (limit is not None and limit < 1):
        raise UserError(f"{blocks.directory}: {batch_size} rows a batch, limit {limit}; expected at least 1 of each")
    overlap = 1 if causal else 0
    windows = -(-(blocks.stream.size - overlap) // (blocks.length - overlap))
    batches = -(-windows // batch_size)
    chosen = range(batches if limit is None else min(limit, batches))
    batch_rows = np.arange(batch_size, dtype=np.int64)[rows]
    found = (_evaluation_batch(blocks, number * batch_size + batch_rows, overlap) for number in chosen)
    return found if byte_lengths is None else (batch | {"bytes": byte_lengths[batch["tokens"]]} for batch in found)


def _evaluation_batch(blocks: TokenBlocks, windows: np.ndarray, overlap: int) -> Batch:
    """Windows by their numbers, int64 (rows,); those behind the last are padding."""
    length, stream = blocks.length, blocks.stream
    starts = windows * (length - overlap)
    places = starts[:, None] + np.arange(length)
    # A row that starts at the stream's last token would predict nothing: the window before it has counted that token.
    mask = (places < stream.size) & (starts[:, None] + overlap < stream.size)
    tokens = np.where(mask, stream[np.minimum(places, stream.size - 1)], 0).astype(np.int32)
    weights = mask.astype(np.float32)
    weights[:, :overlap] = 0.0
    return {"tokens": tokens, "weights": weights, "mask": mask}
