"""A stream of tokens on disk, seen as blocks of one length."""

import dataclasses
import os
from pathlib import Path

import numpy as np

from wechsel_jax.data.manifest import TOKENS, read_manifest, verify_tokens
from wechsel_jax.errors import UserError


@dataclasses.dataclass(frozen=True, eq=False)
class TokenBlocks:
    """Blocks [0, L), [L, 2L), ... of a stream; the tokens behind the last whole block belong to none.

    Attributes:
      directory: where the stream lies.
      length: L, tokens of a block.
      stream: (n,) uint16 or uint32, memory-mapped; read-only.
      vocabulary_size: V of the tokenizer; every token is smaller.
      fingerprint: sha256 of the stream, whatever the block length.
    """

    directory: Path
    length: int
    stream: np.ndarray = dataclasses.field(repr=False)
    vocabulary_size: int
    fingerprint: str

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
        return cls(Path(directory), length, stream, manifest["vocabulary_size"], manifest["sha256"])

    def __len__(self) -> int:
        return self.stream.size // self.length

    def block(self, index: int) -> np.ndarray:
        """Returns block `index` as int32 (L,)."""
        return self.blocks(np.asarray([index]))[0]

    def blocks(self, indices: np.ndarray) -> np.ndarray:
        """Returns several blocks: indices (n,) -> int32 (n, L).

        Raises:
          IndexError: an index is negative or not below `len(self)`.
        """
        indices = np.asarray(indices)
        if indices.size and (int(indices.min()) < 0 or int(indices.max()) >= len(self)):
            raise IndexError(f"blocks {indices.min()} to {indices.max()} of {len(self)}")
        rows = self.stream[: len(self) * self.length].reshape(len(self), self.length)
        return np.asarray(rows[indices], np.int32)
