"""Training vectors of words, or of the tokens of a tokenizer, on text with fastText."""

import os
import re
import sys
import unicodedata
from collections.abc import Callable, Iterable
from functools import cache, partial
from pathlib import Path
from typing import IO, TYPE_CHECKING

from tqdm import tqdm

from wechsel_jax.errors import UserError, from_extra
from wechsel_jax.files import temporary_directory
from wechsel_jax.text.files import LONGEST_DOCUMENT
from wechsel_jax.text.parts import source_lines
from wechsel_jax.text.sources import Source, find_sources
from wechsel_jax.tokens.encoding import encode, plain_backend
from wechsel_jax.tokens.files import load_tokenizer
from wechsel_jax.vectors.fasttext_format import FastTextVectors
from wechsel_jax.vectors.subwords import native_word

if TYPE_CHECKING:
    import fasttext
    from transformers import PreTrainedTokenizerFast

_ENOUGH_THREADS = 11
# Bytes of a word and its space, on average: German has 6, Hindi 12, Uyghur 15, Thai that is not cut 51.
_LONG_WORDS = 32
# Above both, fastText ends the process or wants more memory than there is.
_MOST_DIMENSIONS, _MOST_THREADS = 10_000, 1024
_LARGEST_INTEGER = 2**31 - 1


def train_vectors(
    files: str | os.PathLike | Iterable[str | os.PathLike],
    output: str | os.PathLike,
    *,
    dim: int = 100,
    model: str = "skipgram",
    epochs: int = 3,
    smallest_ngram: int = 5,
    largest_ngram: int = 5,
    buckets: int = 500_000,
    min_count: int = 5,
    negatives: int = 10,
    learning_rate: float = 0.05,
    subsampling: float = 1e-4,
    threads: int | None = None,
    verbose: int = 0,
    tokenizer: "str | os.PathLike | PreTrainedTokenizerFast | None" = None,
    text_field: str = "text",
    max_document_bytes: int = LONGEST_DOCUMENT,
    check: Callable[[], None] | None = None,
) -> dict:
    """Trains a fastText model on text and writes it, whole or not at all.

    Each line is cut into words (with apostrophes inside them) and single punctuation marks; case stays. Text written without
    spaces (Chinese, Japanese, Thai) must be segmented beforehand. fastText's threads race: no two runs agree to the bit.

    With a tokenizer, each line is cut into its tokens instead, for `native_vectors`: the auxiliary vectors of FOCUS (Dobler and
    de Melo, 2023, section 3.1), which trains model="cbow", smallest_ngram=3, largest_ngram=6, buckets=2_000_000, min_count=10.

    Args:
      files: text, see `wechsel_jax.text.sources.find_sources`: text files, JSON lines, Parquet, data sets, patterns.
      output: the `.bin` to write, replaced where it exists.
      dim: m, dimensions of a vector.
      model: "skipgram" or "cbow".
      epochs: passes over the text.
      smallest_ngram: fewest characters of an n-gram.
      largest_ngram: most characters of an n-gram; 0 for vectors of whole words only.
      buckets: how many rows the n-grams share.
      min_count: words that are rarer have no row of their own.
      negatives: negative samples a word.
      learning_rate: at the start; falls linearly to zero.
      subsampling: words above this share of the text are left out at random; 1 leaves none out.
      threads: by default as many as there are processors, but at least 11: each thread of fastText 0.9.3 initialises a tenth
        of the matrix, and what no thread initialises stays as the memory was found.
      verbose: 0 silent, 2 shows progress on stderr.
      tokenizer: cut the text with it: a directory, tokenizer.json, hub id or loaded fast tokenizer.
      text_field: which holds the text of JSON lines and tables.
      max_document_bytes: a longer line, or row of a table, is refused.
      check: called before the file takes its place; where it raises, what is there stays.

    Returns:
      {"words": W, "tokens": running words in the text, "dim": m}.

    Raises:
      UserError: a file or the tokenizer is missing, a file is damaged or not UTF-8, there is too little text, a setting is
        impossible or takes more memory than there is, the disk is full, or there is no fastText.
    """
    _check_settings(model, dim, epochs, smallest_ngram, largest_ngram, buckets, min_count, threads)
    texts = [files] if isinstance(files, str | os.PathLike) else list(files)
    sources = find_sources(texts, text_field, max_document_bytes)
    with from_extra("vectors", "to train word vectors"):
        import fasttext
    if isinstance(tokenizer, str | os.PathLike):
        tokenizer = load_tokenizer(tokenizer)
    output = Path(output)
    with temporary_directory(output) as directory:
        corpus = Path(directory, "words.txt")
        with open(corpus, "w", encoding="utf-8") as handle:
            write = _write_words if tokenizer is None else partial(_write_tokens, tokenizer, bool(verbose))
            tokens = sum(write(source, handle) for source in sources)
        # Closed, not only written: fastText opens the file by its name and must find the last words too.
        names = ", ".join(source.name for source in sources)
        length = corpus.stat().st_size / max(tokens, 1)
        if tokenizer is None and verbose and length > _LONG_WORDS:
            print(
                f"{names}: {length:.0f} bytes between two spaces; text of a language that writes none has to be cut into words "
                "first (Thai by pythainlp, Chinese by jieba), or by --tokenizer",
                file=sys.stderr,
            )
        if tokens == 0:
            raise UserError(f"{names or 'no files'}: no word in the text; expected plain text in the language of the vectors")
        try:
            trained = fasttext.train_unsupervised(
                str(corpus),
                model=model,
                dim=dim,
                epoch=epochs,
                minn=smallest_ngram,
                maxn=largest_ngram,
                bucket=buckets,
                minCount=min_count,
                neg=negatives,
                lr=learning_rate,
                t=subsampling,
                thread=threads or max(_ENOUGH_THREADS, os.cpu_count() or 1),
                verbose=verbose,
            )
        except ValueError as error:
            if "Empty vocabulary" not in str(error):
                raise
            advice = f"none of its words occurs {min_count} times; give more text or a smaller min_count"
            raise UserError(f"{names}: {tokens} running words are too few: {advice}") from None
        except RuntimeError as error:
            # "Encountered NaN": a step too large, or rows that too few threads left uninitialised.
            advice = f"lower learning_rate, or use {_ENOUGH_THREADS} threads or more"
            raise UserError(f"{names}: fastText stopped after {tokens} running words ({error}); {advice}") from None
        except MemoryError:
            rows = f"the words and {buckets} buckets, {dim} numbers each"
            raise UserError(f"{names}: there is no memory for {rows}; ask for fewer dimensions or buckets") from None
        _save(trained, Path(directory, "model.bin"), output, check)
    return {"words": len(trained.words), "tokens": tokens, "dim": dim}


def _save(trained: "fasttext.FastText._FastText", unfinished: Path, output: Path, check: Callable[[], None] | None) -> None:
    trained.save_model(str(unfinished))
    try:
        FastTextVectors(unfinished)
    except UserError as error:  # fastText itself passes over a full disk in silence
        raise UserError(f"{output}: cannot be written whole; free some space, or choose another output") from error
    if check is not None:
        check()
    with open(unfinished, "rb") as handle:
        # Else a power cut might leave the name without the bytes.
        os.fsync(handle.fileno())
    os.replace(unfinished, output)


def words_of(line: str) -> list[str]:
    """Cuts a line into words and punctuation marks.

    The pattern is `\\w+(?:['’]\\w+)*|[^\\w\\s]`, where a combining mark and a (non-)joiner count as part of the word that they
    stand in: Python's `\\w` leaves them out, which would cut every Hindi word to pieces.
    """
    return _word_pattern().findall(line)


@cache
def _word_pattern() -> re.Pattern:
    letter = rf"[\w{_combining_marks()}\u200c\u200d]"
    return re.compile(rf"{letter}+(?:['’]{letter}+)*|[^\w\s]")


def _combining_marks() -> str:
    """Returns all characters of Unicode's category M as ranges for a character class of `re`."""
    points = [point for point in range(sys.maxunicode + 1) if unicodedata.category(chr(point))[0] == "M"]
    ranges: list[list[int]] = []
    for point in points:
        if ranges and ranges[-1][1] == point - 1:
            ranges[-1][1] = point
        else:
            ranges.append([point, point])
    return "".join(rf"\U{first:08x}-\U{last:08x}" for first, last in ranges)


def _write_words(source: Source, handle: IO[str]) -> int:
    count = 0
    for line in source_lines(source):
        words = words_of(line)
        if words:
            handle.write(" ".join(words) + "\n")
        count += len(words)
    return count


def _write_tokens(tokenizer: "PreTrainedTokenizerFast", shown: bool, source: Source, handle: IO[str]) -> int:
    """Writes the tokens of each line with spaces between them, as their tokenizer spells them."""
    backend = plain_backend(tokenizer)
    vocabulary = backend.get_vocab(with_added_tokens=True)
    words = {token_id: native_word(string) for string, token_id in vocabulary.items()}
    count = 0
    with tqdm(desc=f"tokenising {source.name}", unit=" lines", disable=not shown, leave=False) as bar:
        for ids in encode(backend, source_lines(source), special_tokens=False):
            if ids:
                handle.write(" ".join([words[token_id] for token_id in ids]) + "\n")
            count += len(ids)
            bar.update()
    return count


def _check_settings(model, dim, epochs, smallest, largest, buckets, min_count, threads) -> None:
    if model not in ("skipgram", "cbow"):
        raise UserError(f"model {model!r}; expected 'skipgram' or 'cbow'")
    if min(dim, epochs, min_count) < 1:
        raise UserError(f"dim {dim}, epochs {epochs}, min_count {min_count}; expected at least 1 each")
    if dim > _MOST_DIMENSIONS or (threads or 1) > _MOST_THREADS:
        limits = f"expected at most {_MOST_DIMENSIONS} and {_MOST_THREADS}"
        raise UserError(f"dim {dim}, threads {threads or 'as many as processors'}; {limits}")
    if max(epochs, smallest, largest, buckets, min_count) > _LARGEST_INTEGER:
        sizes = f"epochs {epochs}, min_count {min_count}, n-grams of {smallest} to {largest} characters, {buckets} buckets"
        raise UserError(f"{sizes}; expected at most {_LARGEST_INTEGER} each")
    if largest and (buckets < 1 or not 1 <= smallest <= largest):
        raise UserError(
            f"n-grams of {smallest} to {largest} characters, {buckets} buckets; expected 1 <= smallest <= largest, 1 <= buckets"
        )
