"""Pairs of segments for next sentence prediction (Devlin et al., 2019, section 3.1): does the second follow the first?

A row is `[CLS] a [SEP] b [SEP]`. Both segments are whole sentences in their order. In half of the rows b is what follows a, in
the others it is of another document. Which, and where a ends, is drawn anew in every epoch, from (seed, epoch, row) alone.
"""

import dataclasses
import hashlib
import os
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from wechsel_jax.data.batches import Batch, TokenBlocks
from wechsel_jax.data.manifest import MANIFEST, SENTENCES, read_manifest
from wechsel_jax.data.order import mixed
from wechsel_jax.data.padded import PaddedRows
from wechsel_jax.data.rows import padding_id
from wechsel_jax.errors import UserError
from wechsel_jax.files import file_hash
from wechsel_jax.files.json import TEXT, WHOLE, mismatch

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

_AROUND = 3
_FIELDS = {"sentences": WHOLE, "before": WHOLE, "after": WHOLE, "sha256": TEXT}
_AGAIN = "delete the directory and prepare the text again"
# The step of SplitMix64 between two of its numbers; and what tells the keys of epochs from those of their order.
_STEP, _EPOCHS = np.uint64(0x9E3779B97F4A7C15), 0x4E5350


@dataclasses.dataclass(frozen=True, eq=False)
class SentencePairs(PaddedRows):
    """n windows, each of which is a pair in every epoch: its beginning, and its end or as much of another document.

    A window is so many whole sentences of a document as fill a row, at least two; the last one of a document may be shorter, or
    begin with a sentence of the window before it.

    Attributes:
      directory: where the text lies.
      length: L, no row is longer.
      vocabulary_size: V of the tokenizer; every token is smaller.
      fingerprint: a hash of tokens and sentences.
      special: ids of [CLS], [SEP] and padding.
      stream: (T,) uint16 or uint32, all tokens, memory-mapped.
      places: int64 (S,), where in the stream each sentence begins.
      totals: int64 (S + 1,), how many tokens all sentences before each have.
      documents: int64 (D + 1,), the first sentence of each document that has one.
    """

    directory: Path
    length: int
    vocabulary_size: int
    fingerprint: str
    special: tuple[int, int, int]
    stream: np.ndarray = dataclasses.field(repr=False)
    places: np.ndarray = dataclasses.field(repr=False)
    totals: np.ndarray = dataclasses.field(repr=False)
    documents: np.ndarray = dataclasses.field(repr=False)

    @classmethod
    def open(
        cls, directory: str | os.PathLike, length: int, tokenizer: "PreTrainedTokenizerFast", verify: bool = False
    ) -> "SentencePairs":
        """Opens what `prepare` wrote with `sentences`.

        Args:
          directory: of tokens.bin, sentences.bin and manifest.json.
          length: L, at least 5: a token of each segment and those around them.
          tokenizer: of the model, with a [CLS] and a [SEP] token.
          verify: whether to read all of it once and compare it with its sha256.

        Raises:
          UserError: the directory is no prepared text with sentences, is damaged, or has no pair: a document with two sentences
            and another document.
        """
        directory, facts = Path(directory), require_sentences(directory)
        if length < _AROUND + 2:
            raise UserError(f"block_length: is {length}; expected at least {_AROUND + 2} for a pair with its special tokens")
        special = (tokenizer.cls_token_id, tokenizer.sep_token_id)
        if None in special:
            raise UserError(f"{tokenizer.name_or_path}: lacks a [CLS] or a [SEP] token; expected both, for pairs of sentences")
        # Of the length of a row nothing depends here: text of a few tokens has no block, but may have pairs.
        blocks = TokenBlocks.open(directory, 1, verify)
        path, described = require_sentence_file(directory, facts, verify), facts["sentence_file"]
        sizes = np.fromfile(path, "<u4").astype(np.int64)
        ends = sizes == 0
        before, after = described["before"], described["after"]
        document = np.cumsum(ends)[~ends]
        places = before + (np.cumsum(sizes) - sizes)[~ends] + (before + after) * document
        sizes = sizes[~ends]
        if (sizes.size, sizes.sum() + (before + after) * ends.sum()) != (described["sentences"], facts["tokens"]):
            raise UserError(f"{path}: cut short or too long; expected {described['sentences']:,} sentences; {_AGAIN}")
        pairs = cls(
            directory=directory,
            length=length,
            vocabulary_size=blocks.vocabulary_size,
            fingerprint=hashlib.sha256(f"{blocks.fingerprint} {described['sha256']}".encode()).hexdigest(),
            special=(*special, padding_id(None, tokenizer)),
            stream=blocks.stream,
            places=places,
            totals=np.concatenate([[0], np.cumsum(sizes)]),
            documents=np.append(np.flatnonzero(np.diff(document, prepend=-1)), sizes.size),
        )
        if not len(pairs) or pairs.documents.size < 3:
            raise UserError(
                f"{directory}: its {facts['documents']:,} documents have {sizes.size:,} sentences; expected one with two, and "
                "another: text with a sentence a line and a blank line between documents (data.documents=paragraphs)"
            )
        return pairs

    @cached_property
    def windows(self) -> np.ndarray:
        """int64 (3, n): of each window its first sentence, the one behind its last, and its document."""
        starts, ends = self.documents[:-1], self.documents[1:]
        count = self.totals.size - 1
        # The sentence behind the one that fills a row from each on; as in BERT, that one runs over, and the row is cut.
        full = np.searchsorted(self.totals, self.totals[:-1] + self.length - _AROUND)
        ends_of = np.repeat(ends, ends - starts)
        follow = np.minimum(np.maximum(full, np.arange(count) + 2), ends_of)
        first: list[int] = []
        for start, end in zip(starts.tolist(), ends.tolist(), strict=True):
            while end - start >= 2:
                first.append(start)
                # A single sentence that is left takes the one before it.
                behind = int(follow[start])
                start = min(behind, end - 2) if behind < end else end
        chosen = np.asarray(first, np.int64)
        owner = np.searchsorted(self.documents, chosen, side="right") - 1
        return np.stack([chosen, follow[chosen], owner])

    def __len__(self) -> int:
        return self.windows.shape[1]

    def drawn(self, step: int, batch_size: int, seed: int) -> np.ndarray:
        """int64 (B,): the rows of one step's batch. The number of a row is its window's, plus n times the key of the epoch."""
        numbers = super().drawn(step, batch_size, seed)
        epochs = (int(step) * batch_size + np.arange(batch_size)) // len(self)
        for epoch in np.unique(epochs):
            key = np.random.SeedSequence([seed, int(epoch), _EPOCHS]).generate_state(1)[0]
            numbers[epochs == epoch] += len(self) * int(key)
        return numbers

    def sizes(self, rows: np.ndarray) -> np.ndarray:
        """How many tokens rows have: numbers (m,) -> int64 (m,)."""
        (_, first), (_, second), _ = self._segments(rows)
        return first + second + _AROUND

    def padded(self, rows: np.ndarray, length: int) -> Batch:
        """Rows by their numbers, (m,), each padded to `length`; those of an evaluation are the numbers below n.

        Returns:
          {"tokens": int32 (m, L), "mask": bool (m, L), "types": int32 (m, L), 1 for b and the [SEP] behind it, "labels": int32
          (m,), as transformers has them: 0 where b follows a, 1 where it is of another document}.
        """
        (start_a, size_a), (start_b, size_b), other = (np.asarray(part)[..., None] for part in self._segments(rows))
        place, cls, (sep, pad) = np.arange(length), self.special[0], self.special[1:]
        second = place - size_a - 2
        of_a, of_b = (place > 0) & (place <= size_a), (second >= 0) & (second < size_b)
        mask = second <= size_b
        tokens = np.where(mask, np.int32(sep), np.int32(pad))
        tokens[:, 0] = cls
        sources = np.where(of_a, start_a + place - 1, start_b + second)
        chosen = of_a | of_b
        tokens[chosen] = self.stream[sources[chosen]]
        types = ((second >= 0) & mask).astype(np.int32)
        return {"tokens": tokens, "mask": mask, "types": types, "labels": other[:, 0].astype(np.int32)}

    def _segments(self, rows: np.ndarray) -> tuple[Any, Any, np.ndarray]:
        """(where in the stream a begins (m,), its tokens (m,)), the same of b, and whether b is of another document (m,)."""
        first, end, own = self.windows[:, rows % len(self)]

        def draw(number: int, choices: np.ndarray) -> np.ndarray:
            """int64 (m,), the row's draw of that number, from 0 to below `choices`."""
            state = (rows.astype(np.uint64) * np.uint64(8) + np.uint64(number + 1)) * _STEP
            return (mixed(state) % choices.astype(np.uint64)).astype(np.int64)

        totals, documents = self.totals, self.documents
        split = first + 1 + draw(0, end - first - 1)
        other = draw(1, np.full(rows.shape, 2)) == 1
        size_a, size_b = totals[split] - totals[first], totals[end] - totals[split]
        # In another document, as many tokens as there were or a few more, where it has them: lengths of rows tell little.
        there = (own + 1 + draw(2, np.full(rows.shape, documents.size - 2))) % (documents.size - 1)
        begin, end_there = documents[there], documents[there + 1]
        # From the last sentence with as many tokens behind it.
        last = np.searchsorted(totals, totals[end_there] - size_b, side="right") - 1
        start = begin + draw(3, np.clip(last - begin + 1, 1, end_there - begin))
        behind = np.minimum(np.searchsorted(totals, totals[start] + size_b), end_there)
        start = np.where(other, start, split)
        size_b = np.where(other, totals[behind] - totals[start], size_b)
        # The longer segment is cut, then both alike; what goes is taken from either end.
        room = self.length - _AROUND
        kept_b = np.minimum(size_b, np.maximum(room // 2, room - size_a))
        kept_a = np.minimum(size_a, room - kept_b)
        place_a = self.places[first] + draw(4, size_a - kept_a + 1)
        place_b = self.places[start] + draw(5, size_b - kept_b + 1)
        return (place_a, kept_a), (place_b, kept_b), other


def require_sentences(directory: str | os.PathLike) -> dict[str, Any]:
    """Returns the manifest of prepared text; `UserError` where the places of its sentences are not recorded."""
    manifest = read_manifest(directory)
    if "sentence_file" not in manifest:
        raise UserError(
            f"{directory}: was prepared without the places of its sentences, which mlm_nsp reads; expected them; prepare the "
            "text with `wechsel-jax prepare --sentences`"
        )
    if wrong := mismatch(manifest["sentence_file"], _FIELDS, "sentence_file"):
        raise UserError(f"{Path(directory) / MANIFEST}: {wrong}; {_AGAIN}")
    return manifest


def require_sentence_file(directory: str | os.PathLike, manifest: Mapping[str, Any], verify: bool) -> Path:
    """Returns sentences.bin, or raises `UserError` where it is missing or, with `verify`, is another than the manifest's."""
    path = Path(directory) / SENTENCES
    if not path.is_file() or (verify and file_hash(path) != manifest["sentence_file"]["sha256"]):
        raise UserError(f"{path}: is missing or damaged; expected the one that manifest.json describes; {_AGAIN}")
    return path
