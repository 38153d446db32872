"""Sentences and their translations as rows of tokens: the batch of any training step, and the batches of an evaluation.

Both sides of a batch are padded to the same length.
"""

import dataclasses
import hashlib
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from wechsel_jax.data.batches import Batch
from wechsel_jax.data.examples import Example
from wechsel_jax.data.padded import PaddedRows
from wechsel_jax.data.rows import padding_id
from wechsel_jax.errors import UserError
from wechsel_jax.tokens.encoding import GROUP_TEXTS, plain_backend

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast


@dataclasses.dataclass(frozen=True, eq=False)
class TranslationRows(PaddedRows):
    """n encoded pairs. Tokens of a side lie one after the other.

    Attributes:
      directory: of the run's record of the data, for messages.
      examples: what the rows were made of; texts (source,) and the translation as target.
      length: L, no row is longer.
      pad_ids: token behind the end of a source, and of a target.
      tokens: int32 (T,), sources with the special tokens that their tokenizer puts around a text.
      starts: int64 (n + 1,), where they begin.
      targets: int32 (U,), each with a begin and an end token.
      target_starts: int64 (n + 1,), where they begin.
      cut: how many pairs lost tokens because a side was longer than a row.
      group_by_length: see `PaddedRows`.
    """

    directory: Path
    examples: Sequence[Example] = dataclasses.field(repr=False)
    length: int
    pad_ids: tuple[int, int]
    tokens: np.ndarray = dataclasses.field(repr=False)
    starts: np.ndarray = dataclasses.field(repr=False)
    targets: np.ndarray = dataclasses.field(repr=False)
    target_starts: np.ndarray = dataclasses.field(repr=False)
    cut: int = 0
    group_by_length: bool = False

    def __len__(self) -> int:
        return self.starts.size - 1

    @cached_property
    def fingerprint(self) -> str:
        """sha256 of both sides."""
        digest = hashlib.sha256()
        for part in (self.tokens, self.starts, self.targets, self.target_starts):
            digest.update(np.ascontiguousarray(part))
        return digest.hexdigest()

    def sizes(self, rows: np.ndarray) -> np.ndarray:
        """How many positions the longer side of rows needs: numbers (m,) -> int64 (m,)."""
        sources, targets = (starts[rows + 1] - starts[rows] for starts in (self.starts, self.target_starts))
        # One token of a target is only read, and one is only predicted.
        return np.maximum(sources, targets - 1)

    def padded(self, rows: np.ndarray, length: int) -> Batch:
        """Rows by their numbers, (m,), each padded to `length`.

        Returns:
          {"tokens": int32 (m, L), "mask": bool (m, L), of the sources; "targets": int32 (m, L), which the decoder
          reads; "labels": int32 (m, L), the token behind each of them, and "weights": float32 (m, L), 1 where there is
          one}.
        """

        def side(tokens: np.ndarray, starts: np.ndarray, pad_id: int, skip: int, drop: int) -> tuple[np.ndarray, np.ndarray]:
            sizes = (starts[rows + 1] - starts[rows] - skip - drop)[:, None]
            mask = np.arange(length) < sizes
            places = np.minimum(starts[rows][:, None] + skip + np.arange(length), tokens.size - 1)
            return np.where(mask, tokens[places], np.int32(pad_id)), mask

        tokens, mask = side(self.tokens, self.starts, self.pad_ids[0], 0, 0)
        targets, _ = side(self.targets, self.target_starts, self.pad_ids[1], 0, 1)
        labels, real = side(self.targets, self.target_starts, self.pad_ids[1], 1, 0)
        return {"tokens": tokens, "mask": mask, "targets": targets, "labels": labels, "weights": real.astype(np.float32)}


def encode_pairs(
    examples: Sequence[Example],
    source: "PreTrainedTokenizerFast",
    target: "PreTrainedTokenizerFast",
    *,
    length: int,
    directory: Path = Path(),
) -> TranslationRows:
    """Encodes pairs for an encoder-decoder; what is too long is cut at its end.

    Args:
      examples: of `read_examples`.
      source: tokenizer of the sources; puts its special tokens around them.
      target: tokenizer of the translations, which begin and end with `ends` of it.
      length: L, of the longest row.
      directory: of the run's record of the data.

    Raises:
      UserError: the target's tokenizer has no special tokens to begin and to end with.
    """
    begin, end = ends(target)
    backends = plain_backend(source), plain_backend(target)
    room = length - backends[0].num_special_tokens_to_add(False)
    if room < 1:
        raise UserError(f"block_length: {length} leaves no room for a source; expected more than its special tokens take")
    parts: tuple[list[np.ndarray], list[np.ndarray]] = ([], [])
    cut = np.zeros(len(examples), bool)
    backends[0].enable_truncation(length)
    for first in range(0, len(examples), GROUP_TEXTS):
        group = examples[first : first + GROUP_TEXTS]
        for number, found in enumerate(backends[0].encode_batch([one.texts[0] for one in group]), first):
            parts[0].append(np.asarray(found.ids, np.int32))
            cut[number] |= bool(found.overflowing)
        written = backends[1].encode_batch([one.target for one in group], add_special_tokens=False)
        for number, found in enumerate(written, first):
            # Of the L positions of the decoder the first one holds the begin, and the last one predicts the end.
            parts[1].append(np.asarray([begin, *found.ids[: length - 1], end], np.int32))
            cut[number] |= len(found.ids) > length - 1
    starts = [np.concatenate([[0], np.cumsum([len(row) for row in rows])]).astype(np.int64) for rows in parts]
    return TranslationRows(
        directory=directory,
        examples=examples,
        length=length,
        pad_ids=(padding_id(None, source), padding_id(None, target)),
        tokens=np.concatenate(parts[0]),
        starts=starts[0],
        targets=np.concatenate(parts[1]),
        target_starts=starts[1],
        cut=int(cut.sum()),
    )


def ends(tokenizer: "PreTrainedTokenizerFast") -> tuple[int, int]:
    """The tokens that a translation begins and ends with.

    They are begin-of-text or [CLS], else, as in T5, padding; and end-of-text or [SEP].

    Raises:
      UserError: there are none, or they are the same.
    """
    begin = next((i for i in (tokenizer.bos_token_id, tokenizer.cls_token_id, tokenizer.pad_token_id) if i is not None), None)
    end = tokenizer.eos_token_id if tokenizer.eos_token_id is not None else tokenizer.sep_token_id
    if begin is None or end is None or begin == end:
        raise UserError(
            f"{tokenizer.name_or_path}: has no token that a translation begins with and another one that it ends with; "
            "expected both; make a tokenizer with `wechsel-jax tokenizer --algorithm=words`"
        )
    return begin, end
