"""The tokens of text files, as whoever counts tokens wants them: ids in memory, with a mark where a document ends."""

import itertools
import os
import re
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import tokenizers

from wechsel_jax.errors import UserError
from wechsel_jax.records import work
from wechsel_jax.text.files import LONGEST_DOCUMENT
from wechsel_jax.text.parts import Part, read_parts
from wechsel_jax.text.sources import Source, find_sources
from wechsel_jax.tokens.encoding import encode, plain_backend

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

# Follows every document: no token has this id.
BOUNDARY = -1
# Small enough that a sample has parts from everywhere, and that the tokenizer's own records of one part stay small.
_PART_BYTES = 1 << 18
# Characters of text that are kept before they are cut.
_BATCH_CHARACTERS = 1 << 24
# Words that are cut as one text, and what stands for a space in tokens.
_JOINED, _SPACES = 1 << 10, ("Ġ", "▁")
# In a token that goes on behind a space: a mark of it after what is no white space itself (byte-level: "Ċĉčł").
_ACROSS_SPACE = re.compile(r"[^\sĠ▁Ċĉčł][ Ġ▁]")


def read_token_ids(
    tokenizer: "PreTrainedTokenizerFast",
    text_files: Sequence[str | os.PathLike] | str | os.PathLike,
    max_bytes: int = 0,
    field: str = "text",
    longest: int = LONGEST_DOCUMENT,
) -> np.ndarray:
    """Reads text and returns its tokens, without the special tokens that the tokenizer would put around a text.

    A document is a line of a text file, a line of JSON lines, or a row of a table. It takes the memory of the result, 4 bytes a
    token, and about two hundred megabytes.

    Args:
      tokenizer: any fast tokenizer.
      text_files: what is read, see `wechsel_jax.text.sources.find_sources`: text, JSON lines, Parquet, data sets, patterns.
      max_bytes: read at most about this many bytes; 0: all. Several sources share them in proportion to their sizes. Of a plain
        text file, parts of 256 KiB at equal distances are read; of a compressed one or a table, the beginning.
      field: which holds the text of JSON lines and tables.
      longest: a line or row of more bytes is refused.

    Returns:
      int32 (n,), token ids with `BOUNDARY` (-1) after each document; the same for the same files.

    Raises:
      UserError: a file is missing, empty, damaged or not UTF-8, a document is too long, or there is none in all of them.
    """
    encoder = _Encoder(plain_backend(tokenizer))
    arrays = [ids for documents in read_texts(text_files, max_bytes, field, longest) for ids in encoder(documents)]
    return np.concatenate(arrays + encoder.rest())


def read_texts(
    text_files: Sequence[str | os.PathLike] | str | os.PathLike, max_bytes: int, field: str, longest: int
) -> Iterator[list[str]]:
    """Yields the documents of a text, many at a time; all is as in `read_token_ids`.

    Raises:
      UserError: as there, also behind the last document, where there was none.
    """
    if max_bytes < 0:
        raise UserError(f"max_bytes {max_bytes}: expected 0 (all of the text) or a number of bytes")
    texts = [text_files] if isinstance(text_files, str | os.PathLike) else list(text_files)
    sources, empty = find_sources(texts, field, longest), True
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
                work.text(documents)
                yield documents
                empty = False
            if left == 0:
                break
    if empty:
        raise UserError(f"{', '.join(map(str, texts))}: no text in it; expected text in UTF-8; name other files")


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
    """The first documents, as many as `left` bytes hold and one more, and how many bytes are left then; long ones are cut."""
    kept = []
    for document in documents:
        if left <= 0:
            break
        if len(document) > _PART_BYTES:
            document = document.encode()[:left].decode(errors="ignore")
        kept.append(document)
        left -= len(document.encode())
    return kept, max(left, 0)


class _Encoder:
    """Cuts documents into tokens; words that come again and again are cut once, which saves most of the time.

    Nearly every tokenizer cuts text at its spaces first. One with a token that holds a space does not; whether another one does
    is tried out on the first documents of every batch: from the first that comes out otherwise word by word, documents are cut
    as they are.
    """

    def __init__(self, backend: tokenizers.Tokenizer):
        self._backend = backend
        ids = backend.get_vocab(with_added_tokens=True)
        self._begins_word = np.zeros(max(ids.values(), default=-1) + 1, bool)
        self._begins_word[[i for token, i in ids.items() if token.startswith(_SPACES)]] = True
        added = backend.get_added_tokens_decoder()
        # One that takes the space before it, as XLM-R's <mask>, leaves the rest of its word with a begin of its own.
        self._begins_word[[i for i, token in added.items() if token.lstrip]] = True
        # Rare ones are not among the first documents; those that also take the space behind them neither.
        taking = any(token.rstrip for token in added.values())
        self._by_word = not taking and not any(map(_ACROSS_SPACE.search, ids))
        self._waiting: list[str] = []
        self._characters = 0

    def __call__(self, documents: list[str]) -> list[np.ndarray]:
        """Takes documents in; returns the tokens of a batch, or nothing where the batch is not full yet."""
        self._waiting += documents
        self._characters += sum(map(len, documents))
        return self.rest() if self._characters > _BATCH_CHARACTERS else []

    def rest(self) -> list[np.ndarray]:
        """The tokens of what was taken in and not returned."""
        documents, self._waiting, self._characters = self._waiting, [], 0
        if not documents:
            return []
        if self._by_word:
            # The first documents of some length, or all of a shorter batch.
            ends = itertools.accumulate(map(len, documents))
            few = next((i for i, end in enumerate(ends, 1) if end >= _PART_BYTES), None)
            expected, encoded = self._encode(documents[:few]), self._encode_words(documents)
            self._by_word = np.array_equal(encoded[: len(expected)], expected)
        return [encoded if self._by_word else self._encode(documents)]

    def _encode(self, documents: list[str]) -> np.ndarray:
        """The tokens of documents, with their ends."""
        ids, lengths = self._cut(documents)
        return np.insert(ids, np.cumsum(lengths), BOUNDARY)

    def _encode_words(self, documents: list[str]) -> np.ndarray:
        """The same, each different word cut once."""
        texts, words, numbers = _different(documents)
        parts = [(np.array([BOUNDARY], np.int32), np.ones(1, np.int64)), self._cut(texts), self._cut_words(words)]
        return _joined(*map(np.concatenate, zip(*parts, strict=True)), numbers)

    def _cut(self, texts: list[str]) -> tuple[np.ndarray, np.ndarray]:
        """int32 ids of all texts one after the other, and int64 (n,) how many each has."""
        lengths: list[int] = []

        def counted(ids: Sequence[int]) -> Sequence[int]:
            lengths.append(len(ids))
            return ids

        pieces = map(counted, encode(self._backend, texts, special_tokens=False))
        ids = np.fromiter(itertools.chain.from_iterable(pieces), np.int32)
        return ids, np.array(lengths, np.int64)

    def _cut_words(self, words: list[str]) -> tuple[np.ndarray, np.ndarray]:
        """The same of words that begin with a space: many in a text, where the tokens show which begin a word."""
        ids, lengths = self._cut(["".join(words[start : start + _JOINED]) for start in range(0, len(words), _JOINED)])
        starts = np.flatnonzero(self._begins_word[ids])
        if len(starts) != len(words) or not np.array_equal(starts[::_JOINED], np.cumsum(lengths) - lengths):
            return self._cut(words)
        return ids, np.diff(starts, append=len(ids))


def _different(documents: list[str]) -> tuple[list[str], list[str], np.ndarray]:
    """Documents cut before every space.

    One with a space at an end, or two in a row, stays whole.

    Returns:
      The different first words and whole documents; the different words after a space, with it; and int32 numbers of all of
      them in order: 0 ends a document, 1 is the first of the first, and the second follow them.
    """
    raw = (" " + " ".join(documents)).encode()
    begins = np.cumsum([0, *(len(document.encode()) + 1 for document in documents[:-1])])
    starts = np.flatnonzero(np.frombuffer(raw, np.uint8) == ord(" "))
    is_first = np.zeros(len(starts), bool)
    is_first[np.searchsorted(starts, begins)] = True
    document = np.cumsum(is_first) - 1
    whole = np.zeros(len(documents), bool)
    whole[document[np.diff(starts, append=len(raw)) == 1]] = True
    kept = ~whole[document]

    buffers = [pa.py_buffer(np.append(starts, len(raw))), pa.py_buffer(raw)]
    coded = pa.LargeStringArray.from_buffers(len(starts), *buffers).dictionary_encode()
    known = coded.dictionary.to_pylist()
    # The array's own conversion to NumPy would import pandas.
    code = (np.frombuffer(coded.indices.buffers()[1], np.int32, len(coded)) + len(known) * ~is_first)[kept]
    used = np.zeros(2 * len(known), bool)
    used[code] = True
    firsts, others = (np.flatnonzero(half).tolist() for half in np.split(used, 2))
    texts = [known[i][1:] for i in firsts] + [documents[i] for i in np.flatnonzero(whole)]

    number_of = np.cumsum(used, dtype=np.int32)
    number_of[len(known) :] += len(texts) - len(firsts)
    numbers = np.zeros(len(starts), np.int32)
    numbers[kept] = number_of[code]
    numbers[is_first & ~kept] = np.arange(len(firsts), len(texts)) + 1
    entries = kept | is_first
    ends = np.append(np.flatnonzero(is_first[entries])[1:], np.count_nonzero(entries))
    return texts, [known[i] for i in others], np.insert(numbers[entries], ends, 0)


def _joined(ids: np.ndarray, lengths: np.ndarray, numbers: np.ndarray) -> np.ndarray:
    """The tokens of the texts that the numbers say, one after the other."""
    starts, wanted = np.cumsum(lengths) - lengths, lengths[numbers]
    places = np.repeat(starts[numbers] - (np.cumsum(wanted) - wanted), wanted)
    places += np.arange(len(places))
    return ids[places]
