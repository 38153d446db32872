"""Which documents are wanted: no text twice, some held out, a sample of the others."""

import hashlib
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from wechsel_jax.data.order import mixed

# What is known of a document before it is tokenised: 128 bits of a hash of its text, and its bytes of UTF-8.
FACTS = np.dtype([("low", "<u8"), ("high", "<u8"), ("bytes", "<u8")])
DROPPED, TRAIN, VALIDATION = 0, 1, 2
# Documents that are sorted, or looked at, at once: 40 and 32 bytes each.
_SORTED_DOCUMENTS, _CHUNK = 1 << 25, 1 << 20
_BUCKET_BITS = 16
_SAMPLE = np.uint64(0x9E3779B97F4A7C15)


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


def choose(
    documents: np.ndarray, choice: np.ndarray, *, deduplicate: bool, validation_fraction: float, max_bytes: int
) -> dict[str, Any]:
    """Decides about every document.

    Of the same text only the first document stays. Then some are held out by what they say (see `side_of`), and of the rest
    as many stay as `max_bytes` allow, in an order drawn once for all: that of a keyed hash of the document's number. So
    every document is as likely to be in a sample as any other, a smaller sample lies in a larger one, what is held out is
    the same for samples of any size, and where files are appended the sample may lose documents of the old ones but gains none.

    Args:
      documents: `FACTS` (n,), may be memory-mapped.
      choice: uint8 (n,), written: 0 (dropped), 1 (training) or 2 (validation).
      deduplicate: whether the same text stays only once.
      validation_fraction: the share of documents that is held out.
      max_bytes: bytes of UTF-8 that the training documents have together at most; 0: all of them stay.

    Returns:
      {"duplicates": {"documents", "text_bytes"}, "subsample": {"documents", "text_bytes"}}: what was dropped, and why.
    """
    for start, chunk in _chunks(documents):
        choice[start : start + len(chunk)] = side_of(chunk, validation_fraction)
    dropped = {"duplicates": {"documents": 0, "text_bytes": 0}, "subsample": {"documents": 0, "text_bytes": 0}}
    if deduplicate:
        dropped["duplicates"] = _drop_duplicates(documents, choice)
    if max_bytes:
        dropped["subsample"] = _sample(documents, choice, max_bytes)
    return dropped


def _drop_duplicates(documents: np.ndarray, choice: np.ndarray) -> dict[str, int]:
    """In several passes, each over those texts whose hash leaves one remainder, so that memory stays bounded."""
    passes = -(-len(documents) // _SORTED_DOCUMENTS)
    count = size = 0
    for remainder in range(passes):
        places = [start + np.flatnonzero(chunk["high"] % np.uint64(passes) == remainder) for start, chunk in _chunks(documents)]
        here = np.concatenate(places)
        low, high = documents["low"][here], documents["high"][here]
        # lexsort is stable: of the same text, the first document comes first.
        order = np.lexsort((low, high))
        again = (high[order[1:]] == high[order[:-1]]) & (low[order[1:]] == low[order[:-1]])
        later = here[order[1:][again]]
        choice[later] = DROPPED
        count, size = count + later.size, size + int(documents["bytes"][later].sum())
    return {"documents": count, "text_bytes": size}


def _sample(documents: np.ndarray, choice: np.ndarray, max_bytes: int) -> dict[str, int]:
    """Drops training documents from where, in the order of their keys, they become too many."""
    shift = np.uint64(64 - _BUCKET_BITS)
    sizes = np.zeros(1 << _BUCKET_BITS, np.int64)
    for start, chunk in _chunks(documents):
        weights = np.where(choice[start : start + len(chunk)] == TRAIN, chunk["bytes"], 0)
        buckets = (_keys(start, len(chunk)) >> shift).astype(np.int64)
        sizes += np.bincount(buckets, weights, minlength=sizes.size).astype(np.int64)
    ends = np.cumsum(sizes)
    # All buckets before `edge` fit; of `edge`, a part does.
    edge = int(np.searchsorted(ends, max_bytes, side="right"))
    left = max_bytes - int(ends[edge - 1] if edge else 0)
    at_edge, count, size = [], 0, 0
    for start, chunk in _chunks(documents):
        sides = choice[start : start + len(chunk)]
        buckets = (_keys(start, len(chunk)) >> shift).astype(np.int64)
        at_edge.append(start + np.flatnonzero((buckets == edge) & (sides == TRAIN)))
        beyond = (buckets > edge) & (sides == TRAIN)
        sides[beyond] = DROPPED
        count, size = count + int(beyond.sum()), size + int(chunk["bytes"][beyond].sum())
    places = np.concatenate([np.zeros(0, np.int64), *at_edge])
    places = places[np.argsort(mixed(places.astype(np.uint64) + _SAMPLE), kind="stable")]
    last = places[np.cumsum(documents["bytes"][places]) > left]
    choice[last] = DROPPED
    return {"documents": count + last.size, "text_bytes": size + int(documents["bytes"][last].sum())}


def _keys(start: int, count: int) -> np.ndarray:
    return mixed(np.arange(start, start + count, dtype=np.uint64) + _SAMPLE)


def _chunks(documents: np.ndarray) -> Iterator[tuple[int, np.ndarray]]:
    return ((start, documents[start : start + _CHUNK]) for start in range(0, len(documents), _CHUNK))
