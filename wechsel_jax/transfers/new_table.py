"""An embedding table for a task's vocabulary, its rows taken from word vectors or from a pretrained model's own table."""

import json
import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from wechsel_jax.checkpoint import Checkpoint
from wechsel_jax.checkpoint.tensors import read_header, write_tensors
from wechsel_jax.errors import UserError
from wechsel_jax.files import new_file
from wechsel_jax.initializers.noise import draw_noise, keyed_rows
from wechsel_jax.initializers.transforms import absorption, scalar_moments
from wechsel_jax.initializers.transforms import shuffle as shuffled
from wechsel_jax.initializers.transforms import standardize as standardized
from wechsel_jax.text.files import LONGEST_DOCUMENT, read_lines
from wechsel_jax.text.parts import source_lines
from wechsel_jax.text.sources import find_sources
from wechsel_jax.tokens import Vocabulary, load_tokenizer
from wechsel_jax.tokens.overlap import find_overlap
from wechsel_jax.vectors.word_formats import load_vectors
from wechsel_jax.vectors.word_vectors import WordVectors, take_rows

MISSING = ("normal", "xavier", "mean", "zeros")


@dataclass(frozen=True)
class Table:
    """Embeddings for a vocabulary.

    Attributes:
      embeddings: float32 (V, D).
      found: bool (V,), the token has a row in the source; the others were drawn.
      moments: scalar mean and sample deviation of the found rows as they were in the source.
    """

    embeddings: np.ndarray
    found: np.ndarray
    moments: tuple[float, float]

    def report(self) -> dict:
        """Counts of rows, moments of the source rows, and `transforms.absorption` of the table."""
        mean, deviation = self.moments
        return {
            "tokens": len(self.found),
            "dimensions": self.embeddings.shape[1],
            "found": int(self.found.sum()),
            "missing": int((~self.found).sum()),
            "source_mean": mean,
            "source_sd": deviation,
            **absorption(self.embeddings),
        }


def vocabulary_table(
    vocabulary: Vocabulary | Sequence[str],
    source: WordVectors | tuple[np.ndarray, Vocabulary],
    *,
    standardize: str | None = None,
    shuffle: str | None = None,
    missing: str | None = None,
    seed: int = 0,
) -> Table:
    """Collects the rows of a vocabulary, transforms them, and fills the rows that the source lacks (Kim et al., section 3).

    Transforms see the found rows only, with N = V in Xavier's distribution, so that rows which were never pretrained do not
    change them. The paper does not say what missing rows are: here they follow the found rows as they are in the end.

    Args:
      vocabulary: V tokens of a tokenizer, or V words.
      source: word vectors, or a model's table (V_s, D) with its vocabulary. A word is looked up there as the token that stands
        for it at the start of a word; a token as the token of the same bytes, or as the special token that matches.
      standardize: one of `transforms.STANDARDIZATIONS`, or None: the scale stays.
      shuffle: one of `transforms.SHUFFLES`, or None.
      missing: one of `MISSING`; "normal": with the scalar mean and deviation of the found rows; None: "xavier" after
        "xavier" and "pretrained_xavier", else "normal".
      seed: of every draw.

    Returns:
      The table.

    Raises:
      UserError: an empty vocabulary, a word that occurs twice, or no token that the source has.
    """
    missing = missing or ("xavier" if standardize in ("pretrained_xavier", "xavier") else "normal")
    if missing not in MISSING:
        raise UserError(f"missing {missing!r}: unknown; expected one of {', '.join(MISSING)}")
    rows, found = _collect(vocabulary, source)
    if not found.any():
        raise UserError(f"none of {len(found)} tokens has a row in the source; expected a vocabulary of its language")
    rows, moments = rows[found], scalar_moments(rows[found])
    if standardize is not None:
        rows = standardized(rows, standardize, seed=seed, name="table", size=len(found))
    if shuffle is not None:
        rows = shuffled(rows, shuffle, seed=seed)
    out = np.zeros((len(found), rows.shape[1]), np.float32)
    out[found] = rows
    _fill(out, ~found, rows, missing, seed)
    return Table(out, found, moments)


def _collect(
    vocabulary: Vocabulary | Sequence[str], source: WordVectors | tuple[np.ndarray, Vocabulary]
) -> tuple[np.ndarray, np.ndarray]:
    """Returns float32 (V, D), zeros where the source has no row, and bool (V,) where it has one."""
    given = isinstance(vocabulary, Vocabulary)
    if not len(vocabulary):
        raise UserError("the vocabulary is empty; expected at least one token")
    if not given:
        counts = Counter(vocabulary)
        if repeated := [word for word, count in counts.items() if count > 1]:
            raise UserError(f"the word {repeated[0]!r} occurs {counts[repeated[0]]} times; expected every word once")
    if not isinstance(source, tuple):
        rows = source.lookup(vocabulary.words() if given else vocabulary)
        return rows, rows.any(axis=1)
    matrix, known = source
    ids = find_overlap(known, vocabulary if given else _as_vocabulary(vocabulary)).source.astype(np.int64)
    return take_rows(matrix, ids), ids >= 0


def _as_vocabulary(words: Sequence[str]) -> Vocabulary:
    """Words as the tokens of a tokenizer that writes each with the space before it."""
    raw = tuple(f" {word}".encode() for word in words)
    return Vocabulary(tuple(words), raw, np.ones(len(words), bool), (frozenset(),) * len(words), "wordpiece")


def _fill(out: np.ndarray, where: np.ndarray, rows: np.ndarray, missing: str, seed: int) -> None:
    wanted = np.flatnonzero(where)
    if not len(wanted) or missing == "zeros":
        return
    if missing == "normal":
        mean, deviation = scalar_moments(rows)
        for ids, block in keyed_rows(seed, "table missing", wanted, out.shape[1]):
            out[ids] = mean + deviation * block[ids % len(block)]
    else:
        out[wanted] = draw_noise(rows, len(out), kind=missing, seed=seed, name="table missing", where=where)[wanted]


def text_vocabulary(
    texts: Sequence[str | os.PathLike],
    *,
    min_count: int = 1,
    max_words: int | None = None,
    lowercase: bool = False,
    text_field: str = "text",
    max_document_bytes: int = LONGEST_DOCUMENT,
) -> list[str]:
    """Lists the words of texts, split at white space, most frequent first; equal counts in order of code points.

    Args:
      texts: see `wechsel_jax.text.sources.find_sources`: text files, JSON lines, Parquet, patterns.
      min_count: words that are rarer are left out (the paper takes 2, for IWSLT 5).
      max_words: keep only this many.
      lowercase: count words without their case.
      text_field: which holds the text of JSON lines and tables.
      max_document_bytes: a longer line, or row of a table, is refused.

    Raises:
      UserError: a file is missing or no UTF-8, a line is too long, or no word is that frequent.
    """
    counts: Counter[str] = Counter()
    for source in find_sources(texts, text_field, max_document_bytes):
        for line in source_lines(source):
            counts.update((line.lower() if lowercase else line).split())
    words = sorted((word for word, count in counts.items() if count >= min_count), key=lambda word: (-counts[word], word))
    if not words:
        raise UserError(
            f"{', '.join(map(str, texts))}: no word occurs {min_count} times; expected text, or a smaller min_count"
        )
    return words[:max_words]


def read_words(path: str | os.PathLike) -> list[str]:
    """Reads a list of words, one a line; white space around them and blank lines are dropped.

    Raises:
      UserError: the file is missing or no UTF-8, or a word occurs a second time.
    """
    words: dict[str, int] = {}
    for number, line in read_lines(path, "a list of words, one a line"):
        word = line.strip()
        if word in words:
            raise UserError(f"{path}: line {number}: {word!r} stood in line {words[word]} already; expected every word once")
        if word:
            words[word] = number
    return list(words)


def make_table(
    output: str | os.PathLike,
    record: str | os.PathLike,
    *,
    vectors: str | None = None,
    source: str | None = None,
    tokenizer: str | None = None,
    words: str | None = None,
    input: Sequence[str] = (),
    min_count: int = 1,
    max_words: int | None = None,
    lowercase: bool = False,
    text_field: str = "text",
    max_document_bytes: int = LONGEST_DOCUMENT,
    special_tokens: Sequence[str] = (),
    **options,
) -> dict:
    """Reads what `vocabulary_table` needs from files and writes what it makes.

    Args:
      output: the safetensors file to write: float32 `embeddings` (V, D).
      record: the JSON file to write: the settings, `Table.report`, the words in the order of the rows (null where a token
        of a tokenizer begins none) and the rows that the source lacks.
      vectors: a file of word vectors; or
      source: a model directory or hub id.
      tokenizer: a tokenizer with V tokens; or
      words: a file with a word in each line; or
      input: texts, see `text_vocabulary` for the next five.
      min_count: words that are rarer are left out.
      max_words: keep only this many.
      lowercase: count words without their case.
      text_field: which holds the text of JSON lines and tables.
      max_document_bytes: a longer line is refused.
      special_tokens: rows in front of the words; those that occur among the words are taken out there.
      **options: of `vocabulary_table`.

    Returns:
      The report.

    Raises:
      UserError: not exactly one source or not exactly one vocabulary was given, or a file is missing or damaged.
    """
    _one_of("source of embeddings", {"vectors": vectors, "source": source})
    _one_of("vocabulary", {"tokenizer": tokenizer, "words": words, "input": input})
    settings = {"vectors": vectors, "source": source, "tokenizer": tokenizer, "words": words, "input": list(input)}
    settings |= {"min_count": min_count, "max_words": max_words, "lowercase": lowercase}
    settings |= {"special_tokens": list(special_tokens), **options}
    if tokenizer:
        if special_tokens:
            raise UserError("special_tokens: a tokenizer brings its own; expected them with words or input only")
        vocabulary: Vocabulary | list[str] = Vocabulary.from_tokenizer(load_tokenizer(tokenizer))
        of_rows = vocabulary.starting_words()
    else:
        counted = {"min_count": min_count, "max_words": max_words, "lowercase": lowercase}
        read = {"text_field": text_field, "max_document_bytes": max_document_bytes}
        vocabulary = read_words(words) if words else text_vocabulary(input, **counted, **read)
        of_rows = vocabulary = [*special_tokens, *(word for word in vocabulary if word not in special_tokens)]
    table = vocabulary_table(vocabulary, load_vectors(vectors) if vectors else _model_table(source), **options)
    report = table.report()
    written = {"settings": settings, **report, "words": of_rows}
    written["missing_ids"] = np.flatnonzero(~table.found).tolist()
    # Both are written before either is put in its place.
    with new_file(record, "w") as told, new_file(output) as stored:
        told.write(json.dumps(written, indent=2, ensure_ascii=False) + "\n")
        write_tensors(stored.name, {"embeddings": table.embeddings})
    return report


def is_table(path: Path) -> bool:
    """Whether a file is one that `make_table` writes: a table or its record."""
    if path.suffix == ".json":
        return {"settings", "found", "missing_ids"} <= json.loads(path.read_bytes()).keys()
    return read_header(path).keys() == {"embeddings"}


def _model_table(path: str) -> tuple[np.ndarray, Vocabulary]:
    checkpoint = Checkpoint.open(path)
    vocabulary = Vocabulary.from_tokenizer(load_tokenizer(checkpoint.directory))
    checkpoint.require_rows(len(vocabulary))
    rows = checkpoint.read(checkpoint.table)
    damaged = np.flatnonzero(~np.isfinite(rows).all(axis=1))
    if len(damaged):
        raise UserError(f"{path}: row {damaged[0]} of {checkpoint.table}: NaN or infinity; expected finite numbers")
    return rows, vocabulary


def _one_of(what: str, given: dict) -> None:
    names = [name for name, value in given.items() if value]
    if len(names) != 1:
        flags = ", ".join(f"--{name}" for name in given)
        both = f"{' and '.join(f'--{name}' for name in names)}: " if names else ""
        raise UserError(f"{both}expected one {what}; pass one of {flags}")
