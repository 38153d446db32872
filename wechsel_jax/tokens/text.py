"""The tokens of text files, as whoever counts tokens wants them: ids in memory, with a mark where a document ends."""

import itertools
import os
from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np
import tokenizers

from wechsel_jax.data.parts import Part, read_parts
from wechsel_jax.data.sources import Source, find_sources
from wechsel_jax.errors import UserError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

# Follows every document: no token has this id.
BOUNDARY = -1
# Small enough that a sample has parts from everywhere, and that the tokenizer's own records of one part stay small.
_PART_BYTES = 1 << 18
# Distinct words, and characters of text, that are kept before they are cut: some tens of megabytes.
_BATCH_WORDS, _BATCH_CHARACTERS = 1 << 18, 1 << 25
# Texts that are cut at once: the tokenizer's record of each is large.
_AT_ONCE = 1 << 13
# Stands for the end of a document among words.
_END = ""


def read_token_ids(
    tokenizer: "PreTrainedTokenizerFast",
    text_files: Sequence[str | os.PathLike] | str | os.PathLike,
    max_bytes: int = 0,
) -> np.ndarray:
    """Reads text and returns its tokens, without the special tokens that the tokenizer would put around a text.

    A document is a line of a text file, a line of JSON lines, or a row of a table. It takes the memory of the result, 4 bytes a
    token, and about a hundred megabytes.

    Args:
      tokenizer: any fast tokenizer.
      text_files: what is read, see `wechsel_jax.data.sources.find_sources`: text, JSON lines, Parquet, data sets, patterns.
      max_bytes: read at most about this many bytes; 0: all. Several sources share them in proportion to their sizes. Of a plain
        text file, parts of 256 KiB at equal distances are read; of a compressed one or a table, the beginning.

    Returns:
      int32 (n,), token ids with `BOUNDARY` (-1) after each document; the same for the same files.

    Raises:
      UserError: a file is missing, empty, damaged or not UTF-8, or there is no document in all of them.
    """
    if max_bytes < 0:
        raise UserError(f"max_bytes {max_bytes}: expected 0 (all of the text) or a number of bytes")
    texts = [text_files] if isinstance(text_files, str | os.PathLike) else list(text_files)
    backend = tokenizers.Tokenizer.from_str(tokenizer.backend_tokenizer.to_str())
    # A tokenizer.json may ask for both; either would lose or add tokens in silence.
    backend.no_truncation()
    backend.no_padding()
    encoder = _Encoder(backend)
    arrays = [ids for documents in _documents(find_sources(texts), max_bytes) for ids in encoder(documents)]
    arrays += encoder.rest()
    if not arrays:
        raise UserError(f"{', '.join(map(str, texts))}: no text in it; expected text in UTF-8; name other files")
    return np.concatenate(arrays)


def _documents(sources: Sequence[Source], max_bytes: int) -> Iterator[list[str]]:
    sizes = [source.size for source in sources]
    known = sum(sizes)
    for source, size in zip(sources, sizes, strict=True):
        share = size / known if known and all(sizes) else 1 / len(sources)
        left = round(max_bytes * share) if max_bytes else None
        for part in _parts(source, left):
            documents = part.documents()[0]
            if left is not None:
                documents, left = _within(documents, left)
            if documents:
                yield documents
            if left == 0:
                break


def _parts(source: Source, most: int | None) -> Iterator[Part]:
    """The parts of a source; of a plain text file that is longer than `most` bytes, evenly chosen ones."""
    parts = read_parts(source, "lines", _PART_BYTES)
    if most is None or source.kind not in ("text", "json"):
        return parts
    parts = list(itertools.takewhile(lambda part: part.path, parts))
    if not parts:
        return read_parts(source, "lines", _PART_BYTES)
    total = sum(part.size for part in parts)
    wanted = min(len(parts), -(-len(parts) * most // total))
    return iter([parts[i] for i in np.linspace(0, len(parts) - 1, wanted).round().astype(int)])


def _within(documents: list[str], left: int) -> tuple[list[str], int]:
    """The first documents, as many as `left` bytes hold and one more, and how many bytes are left then."""
    kept = []
    for document in documents:
        if left <= 0:
            break
        kept.append(document)
        left -= len(document.encode())
    return kept, max(left, 0)


class _Encoder:
    """Cuts documents into tokens; words that come again and again are cut once, which saves most of the time.

    Nearly every tokenizer cuts text at its spaces first. Whether one does is tried out on the first documents of every batch:
    from the first that comes out otherwise word by word, documents are cut as they are.
    """

    def __init__(self, backend: tokenizers.Tokenizer):
        self._backend, self._by_word = backend, True
        self._start()

    def _start(self) -> None:
        # The number of a word is how many others were seen before it.
        self._numbers: defaultdict[str, int] = defaultdict(itertools.count(1).__next__, {_END: 0})
        self._words: list[np.ndarray] = []
        self._tried: list[str] = []
        self._characters = 0

    def __call__(self, documents: list[str]) -> list[np.ndarray]:
        """Takes documents in; returns the tokens of a batch, or nothing where the batch is not full yet."""
        if not self._by_word:
            return [self._encode(documents)]
        self._tried = self._tried or documents
        self._characters += sum(map(len, documents))
        words = itertools.chain.from_iterable(map(_words, documents))
        self._words.append(np.fromiter(map(self._numbers.__getitem__, words), np.int32))
        full = len(self._numbers) > _BATCH_WORDS or self._characters > _BATCH_CHARACTERS
        return self.rest() if full else []

    def rest(self) -> list[np.ndarray]:
        """The tokens of what was taken in and not returned."""
        if not self._words:
            return []
        known, numbers = list(self._numbers), np.concatenate(self._words)
        encoded, expected = _joined(*self._cut(known[1:]), numbers), self._encode(self._tried)
        self._by_word = np.array_equal(encoded[: len(expected)], expected)
        self._start()
        return [encoded if self._by_word else self._encode(_rejoined(known, numbers))]

    def _encode(self, documents: list[str]) -> np.ndarray:
        """The tokens of documents, with their ends."""
        ids, lengths = self._cut(documents)
        return np.insert(ids, np.cumsum(lengths), BOUNDARY)

    def _cut(self, texts: list[str]) -> tuple[np.ndarray, np.ndarray]:
        """int32 ids of all texts one after the other, and int64 (n,) how many each has."""
        ids, lengths = [np.zeros(0, np.int32)], []
        for start in range(0, len(texts), _AT_ONCE):
            encodings = self._backend.encode_batch_fast(texts[start : start + _AT_ONCE], add_special_tokens=False)
            pieces = [encoding.ids for encoding in encodings]
            ids.append(np.fromiter(itertools.chain.from_iterable(pieces), np.int32))
            lengths.extend(map(len, pieces))
        return np.concatenate(ids), np.array(lengths, np.int64)


def _words(document: str) -> list[str]:
    """The document cut before every space, and its end; one with a space at an end, or two in a row, stays whole."""
    first, *others = document.split(" ")
    if first and all(others):
        return [first, *map(" ".__add__, others), _END]
    return [document, _END] if document else [_END]


def _joined(ids: np.ndarray, lengths: np.ndarray, numbers: np.ndarray) -> np.ndarray:
    """The words' tokens as the numbers say; number 0 is the end of a document, 1 the first word."""
    ids, lengths = np.concatenate([np.array([BOUNDARY], np.int32), ids]), np.concatenate([np.ones(1, np.int64), lengths])
    starts, wanted = np.cumsum(lengths) - lengths, lengths[numbers]
    places = np.repeat(starts[numbers] - (np.cumsum(wanted) - wanted), wanted)
    places += np.arange(len(places))
    return ids[places]


def _rejoined(words: list[str], numbers: np.ndarray) -> list[str]:
    """The documents again."""
    ends = np.flatnonzero(numbers == 0)
    return ["".join(words[number] for number in part[:-1].tolist()) for part in np.split(numbers, ends[:-1] + 1)]
