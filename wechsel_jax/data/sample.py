"""The text of a random sample of documents, for what reads text instead of tokens."""

import itertools
import json
import os
from collections.abc import Iterator, Sequence

import numpy as np

from wechsel_jax.data.selection import FACTS, TRAIN, choose, facts
from wechsel_jax.files import new_file
from wechsel_jax.text.files import LONGEST_DOCUMENT
from wechsel_jax.text.parts import read_parts
from wechsel_jax.text.sources import find_sources


def write_sample(
    texts: Sequence[str | os.PathLike],
    output: str | os.PathLike,
    *,
    max_bytes: int,
    validation_fraction: float = 0.0,
    documents: str = "lines",
    text_field: str = "text",
    deduplicate: bool = False,
    max_document_bytes: int = LONGEST_DOCUMENT,
) -> int:
    """Writes the documents that `prepare` takes of the same texts with the same settings, one JSON line each.

    Args:
      texts: what is read, see `find_sources`.
      output: the file of JSON lines to write.
      max_bytes: of UTF-8 that the documents have together at most; 0: all.
      validation_fraction: share of the documents that is held out before, see `prepare_split`.
      documents: what a document of a text file is, as in `prepare`.
      text_field: which holds the text of JSON lines and tables; in the output it is "text".
      deduplicate: of documents with exactly the same text, keep the first.
      max_document_bytes: a longer document is refused.

    Returns:
      How many documents there are.
    """
    sources = find_sources(texts, text_field, max_document_bytes)

    def parts() -> Iterator[list[str]]:
        return (part.documents()[0] for source in sources for part in read_parts(source, documents))

    known = np.concatenate([np.zeros(0, FACTS), *map(facts, parts())])
    sides = np.zeros(len(known), np.uint8)
    choose(known, sides, deduplicate=deduplicate, validation_fraction=validation_fraction, max_bytes=max_bytes)
    with new_file(output, "w") as handle:
        for side, document in zip(sides, itertools.chain.from_iterable(parts()), strict=True):
            if side == TRAIN:
                handle.write(json.dumps({"text": document}, ensure_ascii=False) + "\n")
    return int(np.count_nonzero(sides == TRAIN))
