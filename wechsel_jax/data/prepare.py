"""Text to flat streams of tokens on disk: once, and from where it stopped.

From top to bottom: what the callers see; what a preparation is (`_Job`); who makes it where several are asked to (`_prepare`);
its one or two stages (`_make`, `_choose`), each of which reads all parts of the text (`_work_through`); its manifest.
"""

import contextlib
import dataclasses
import itertools
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import tokenizers
from tqdm import tqdm

from wechsel_jax.data.encoder import Encoder
from wechsel_jax.data.manifest import FORMAT, MANIFEST, SENTENCES, TOKENS, reuse
from wechsel_jax.data.parallel import vocabulary_hash
from wechsel_jax.data.selection import DROPPED, FACTS, TRAIN, VALIDATION, choose, facts, side_of
from wechsel_jax.data.unfinished import RESULT, Stage, Unfinished, discard, disk_full, lock
from wechsel_jax.errors import UserError
from wechsel_jax.files import FULL, refuse_directory, remove_leftovers
from wechsel_jax.files.json import record_json
from wechsel_jax.records.run import SIDES
from wechsel_jax.text.documents import check_kind
from wechsel_jax.text.files import LONGEST_DOCUMENT
from wechsel_jax.text.parts import PART_BYTES, Part, read_parts
from wechsel_jax.text.sources import Source, find_sources, identify
from wechsel_jax.tokens import load_tokenizer
from wechsel_jax.tokens.files import tokenizer_hash

_MOST_BYTES = 1 << 62
_POLL_SECONDS = 1.0
_VERSIONS = {"tokenizers": tokenizers.__version__}
# From the number of a part to which of its documents are wanted.
_Choice = Callable[[int], np.ndarray]
# From the n documents of a part and their sides (n,) to numbers that are added up, and what is appended to each file.
_Make = Callable[[list[str], np.ndarray | None], tuple[dict[str, int], list[bytes]]]


def prepare(
    texts: Sequence[str | os.PathLike] | str | os.PathLike,
    tokenizer: str | os.PathLike,
    output: str | os.PathLike,
    *,
    documents: str = "lines",
    text_field: str = "text",
    max_bytes: int = 0,
    max_document_bytes: int = LONGEST_DOCUMENT,
    deduplicate: bool = False,
    sentences: bool = False,
) -> dict[str, Any]:
    """Writes the tokens of all documents of all sources, one after the other, to `output/tokens.bin`.

    Each document is what the tokenizer makes of it with its own special tokens (RoBERTa: <s> text </s>). Where the tokenizer
    itself puts nothing behind a text (GPT-2), its end-of-text token follows. Tokens are little-endian uint16 where the
    vocabulary has at most 65536 ids, else uint32. `output/manifest.json` records what they were made of; where it
    matches, nothing is done.

    The bytes are the same whatever the number of threads (all cores tokenise, or as many as the environment variable
    RAYON_NUM_THREADS says when the process first tokenises), and whether or not it was interrupted: what is not finished
    lies in `.NAME.partial` beside the output, and the same call goes on with it. A call that finds another one at work on
    the same output waits for it.

    Args:
      texts: what is read, see `find_sources`: text, JSON lines, Parquet, data sets.
      tokenizer: a directory, a tokenizer.json or a hub id.
      output: the directory to write. It appears whole or not at all.
      documents: what a document of a text file is: "lines", "paragraphs" (with blank lines between them) or "files". A line of
        JSON lines and a row of a table is always one document.
      text_field: which holds the text of JSON lines and tables.
      max_bytes: stop at a random sample of documents of this many bytes of UTF-8 together; 0: take all.
      max_document_bytes: a longer line, row or document is refused. Most long documents are tokenised in pieces; one without
        any space takes up to 150 times its size in memory.
      deduplicate: of documents with exactly the same text, keep the first.
      sentences: each line of a document is a sentence: also write how many tokens each has, to `output/sentences.bin`, from
        which `SentencePairs` makes pairs. Lines are cut into tokens one by one; WordPiece makes the same of a whole text.

    Returns:
      The manifest, see `read_manifest`.

    Raises:
      UserError: a file is missing, empty or not UTF-8 or holds too long a document (file and line are named), there is no
        document in all of them, the tokenizer has no token to end a document with, the disk is full, or `output` is no
        directory, cannot be written or holds something else.
    """
    settings = {"documents_are": documents, "text_field": text_field, "max_bytes": max_bytes, "deduplicate": deduplicate}
    settings |= {"validation_fraction": 0.0, "sentences": sentences}
    return _prepare(texts, tokenizer, Path(output), settings, max_document_bytes)[""]


def prepare_split(
    texts: Sequence[str | os.PathLike] | str | os.PathLike,
    tokenizer: str | os.PathLike,
    output: str | os.PathLike,
    *,
    validation_fraction: float,
    documents: str = "lines",
    text_field: str = "text",
    max_bytes: int = 0,
    max_document_bytes: int = LONGEST_DOCUMENT,
    deduplicate: bool = False,
    sentences: bool = False,
) -> dict[str, dict[str, Any]]:
    """As `prepare`, into two streams: `output/train` and `output/validation`.

    The side of a document depends on its text alone. So the same text is never on both sides, and a document stays on its
    side whatever else is added, removed or moved. `max_bytes` limits the training side; the validation side is the same
    for samples of any size, as in WECHSEL (Minixhofer et al., 2022, table 11).

    Args:
      validation_fraction: the share of documents that is held out, above 0 and below 1; the number of documents on the
        side varies around it as that of coin tosses does.

    Returns:
      {"train": manifest, "validation": manifest}.

    Raises:
      UserError: as `prepare`, or a side would be empty.
    """
    if not 0 < validation_fraction < 1:
        raise UserError(f"validation_fraction: is {validation_fraction}; expected a share above 0 and below 1")
    settings = {"documents_are": documents, "text_field": text_field, "max_bytes": max_bytes, "deduplicate": deduplicate}
    settings |= {"validation_fraction": validation_fraction, "sentences": sentences}
    return _prepare(texts, tokenizer, Path(output), settings, max_document_bytes)


@dataclasses.dataclass(frozen=True)
class _Job:
    """A preparation.

    Attributes:
      sources: what is read.
      state: size and time of change of their files before they were hashed.
      encoder: makes tokens.
      recipe: the fields of its manifests that tell it from another preparation.
    """

    sources: list[Source]
    state: list[tuple[int, int]]
    encoder: Encoder
    recipe: dict[str, Any]

    @property
    def files(self) -> tuple[str, ...]:
        """What each side has, besides its manifest."""
        return (TOKENS, SENTENCES) if self.recipe["sentences"] else (TOKENS,)

    @property
    def sides(self) -> tuple[str, ...]:
        """Directories below the output; "" is the output itself."""
        return SIDES if self.recipe["validation_fraction"] else ("",)

    def recipe_of(self, side: str) -> dict[str, Any]:
        return {**self.recipe, "side": side} if side else self.recipe


def _prepare(
    texts: Sequence[str | os.PathLike] | str | os.PathLike,
    tokenizer: str | os.PathLike,
    output: Path,
    settings: dict[str, Any],
    longest: int,
) -> dict[str, dict[str, Any]]:
    """Finds what is there already, or waits for whoever makes it, or makes it."""
    names = [texts] if isinstance(texts, (str, os.PathLike)) else list(texts)
    if output.is_symlink() or not _exists(output):
        refuse_directory(output, "prepare", inputs=names)
    # Of a `remove_prepared` that was killed.
    remove_leftovers(output)
    job = _describe(names, tokenizer, settings, longest)
    reported = False
    while not _exists(output):
        with lock(output) as mine:
            if mine and not _exists(output):
                try:
                    return _make(job, output)
                except OSError as error:
                    if error.errno not in FULL:
                        raise
                    raise disk_full(output, error) from None
        if not mine:
            if not reported:
                print(f"{output}: another process prepares it; waiting for that", file=sys.stderr)
            reported = True
            time.sleep(_POLL_SECONDS)
    found = {side: reuse(output / side, job.recipe_of(side)) for side in job.sides}
    # Of a call that was killed after its last step.
    discard(output)
    return found


def _exists(output: Path) -> bool:
    return output.exists() and not (output.is_dir() and not any(output.iterdir()))


def _describe(names: list[str | os.PathLike], tokenizer: str | os.PathLike, settings: dict[str, Any], longest: int) -> _Job:
    """Finds the text, hashes it and loads the tokenizer."""
    if not names:
        raise UserError("texts: no file is named; expected at least one text file")
    check_kind(settings["documents_are"])
    if not 0 <= settings["max_bytes"] <= _MOST_BYTES:
        raise UserError(f"max_bytes={settings['max_bytes']}; expected 0 (all) or a number of bytes")
    sources = find_sources(names, settings["text_field"], longest)
    loaded = load_tokenizer(tokenizer)
    encoder = Encoder.of(loaded, str(tokenizer))
    state = _state(sources)
    sources, inputs = identify(sources, len(os.sched_getaffinity(0)))
    described = {"dtype": encoder.dtype.name, "vocabulary_size": encoder.vocabulary_size, "end_token": encoder.end}
    vocabulary = vocabulary_hash(loaded.backend_tokenizer, encoder.vocabulary_size)
    named = {"name": Path(tokenizer).name, "sha256": tokenizer_hash(loaded), "vocabulary": vocabulary}
    made_of = {"tokenizer": named, "inputs": inputs}
    return _Job(sources, state, encoder, {"format": FORMAT, **settings, **described, **made_of})


def _state(sources: Sequence[Source]) -> list[tuple[int, int]]:
    stats = (os.stat(file) for source in sources for file in source.files())
    return [(stat.st_size, stat.st_mtime_ns) for stat in stats]


def _make(job: _Job, output: Path) -> dict[str, dict[str, Any]]:
    """Makes the output, or goes on making it."""
    work = Unfinished(output, {**job.recipe, "part_bytes": PART_BYTES, "versions": _VERSIONS})
    try:
        choice, dropped = _choose(job, work) if job.recipe["deduplicate"] or job.recipe["max_bytes"] else (None, {})
        with work.stage("tokens", [f"{RESULT}/{side}/{name}" for side in job.sides for name in job.files]) as stage:
            _work_through(job, stage, f"tokens for {output.name}", partial(_tokens, job), choice)
            if _state(job.sources) != job.state:
                raise UserError(f"{output}: a source has changed while it was read; run the command again")
            manifests = {side: _manifest(job, stage, index, dropped) for index, side in enumerate(job.sides)}
        for side, manifest in manifests.items():
            record_json(work.result / side / MANIFEST, manifest)
        work.finish()
        return manifests
    except BaseException as error:
        # After a mistake in the text, other text must come, and with that the work begins again.
        if isinstance(error, UserError) or not work.worth_keeping:
            work.remove()
        elif isinstance(error, KeyboardInterrupt):
            error.args = (f"{output}: the same command goes on from there",)
        raise


def _choose(job: _Job, work: Unfinished) -> tuple[_Choice, dict[str, Any]]:
    """Reads all documents once to decide about them; the decision is made anew each time, from what was read."""

    def known(documents: list[str], _: np.ndarray | None) -> tuple[dict[str, int], list[bytes]]:
        return {}, [facts(documents).tobytes(), np.uint64(len(documents)).tobytes()]

    with work.stage("facts", ["facts.bin", "counts.bin"]) as stage:
        _work_through(job, stage, f"reading for {work.output.name}", known, None)
    counts = np.fromfile(work.directory / "counts.bin", "<u8").astype(np.int64)
    total = int(counts.sum())
    sides = np.zeros(0, np.uint8)
    dropped: dict[str, Any] = {"blank": {"documents": stage.counts["blank"]}}
    if total:
        with open(work.directory / "choice.bin", "wb") as handle:
            # A mapped file for which there is no room would end the process without a word.
            os.posix_fallocate(handle.fileno(), 0, total)
        sides = np.memmap(work.directory / "choice.bin", np.uint8, "r+", shape=(total,))
        read = np.memmap(work.directory / "facts.bin", FACTS, "r", shape=(total,))
        names = ("deduplicate", "validation_fraction", "max_bytes")
        dropped |= choose(read, sides, **{name: job.recipe[name] for name in names})
    if total and dropped["subsample"]["documents"] and not np.any(sides == TRAIN):
        names = ", ".join(entry["name"] for entry in job.recipe["inputs"])
        raise UserError(
            f"{names}: no document fits into the {job.recipe['max_bytes']:,} bytes that are read at most (max_bytes); expected "
            "shorter ones, such as lines of a text: break long lines, or allow more"
        )
    starts = np.concatenate([[0], np.cumsum(counts)])
    # Of a part that was not there when they were counted nothing is wanted; the change is noticed at the end.
    return (lambda number: sides[slice(*starts[number : number + 2])] if number < len(counts) else sides[:0]), dropped


def _work_through(job: _Job, stage: Stage, title: str, make: _Make, choice: _Choice | None) -> None:
    """Takes a stage from where it is to its end: what `make` makes of each part is appended.

    The parts are made by this thread alone and in their order, so the bytes do not depend on the machine; `encode` spreads the
    documents of a part over the tokenizer's own threads. Meanwhile the next part is read in a thread.
    """
    if stage.done:
        return
    size = sum(entry["bytes"] for entry in job.recipe["inputs"])
    with tqdm(total=size or None, unit="B", unit_scale=True, disable=None, desc=title) as bar:
        # Closing waits for the part that is being read, where something goes wrong.
        with contextlib.closing(_read_ahead(_texts(job, stage.parts, choice, bar))) as texts:
            for text in texts:
                with _memory(text.part):
                    counts, data = make(text.documents, text.sides)
                stage.append(text.number + 1, {"blank": text.blank, **counts}, data)
                bar.update(text.progress)
                bar.set_postfix_str(f"{sum(stage.sizes):,} bytes written")
    stage.save(done=True)


class _Text(NamedTuple):
    """A part that has been read.

    Attributes:
      number: of the part, over all sources.
      part: for messages.
      progress: bytes of the sources that are done with once this part is.
      documents: the n documents in it.
      blank: how many records held nothing but white space.
      sides: (n,) uint8, for each document `DROPPED`, `TRAIN` or `VALIDATION`; None: all are for training.
    """

    number: int
    part: Part
    progress: int
    documents: list[str]
    blank: int
    sides: np.ndarray | None


def _texts(job: _Job, done: int, choice: _Choice | None, bar: tqdm) -> Iterator[_Text]:
    """The parts of which something is wanted, from number `done` on."""
    parts = itertools.chain.from_iterable(read_parts(source, job.recipe["documents_are"], PART_BYTES) for source in job.sources)
    progress, fraction = 0, job.recipe["validation_fraction"]
    for number, part in enumerate(parts):
        progress += part.progress
        sides = None if choice is None else np.asarray(choice(number))
        if number < done or (sides is not None and not np.any(sides != DROPPED)):
            continue
        with _memory(part):
            documents, blank = part.documents()
        if sides is None and fraction:
            sides = side_of(facts(documents), fraction)
        if sides is not None and len(sides) != len(documents):
            raise UserError(f"{part.name}: has changed while it was being read; run the command again")
        yield _Text(number, part, progress, documents, blank, sides)
        progress = 0
    bar.update(progress)


def _read_ahead(texts: Iterator[_Text]) -> Iterator[_Text]:
    """Makes each item in a thread while the one before it is used; an error comes when its item's turn does."""
    with ThreadPoolExecutor(1) as thread:
        following = thread.submit(next, texts, None)
        while (text := following.result()) is not None:
            following = thread.submit(next, texts, None)
            yield text


@contextlib.contextmanager
def _memory(part: Part) -> Iterator[None]:
    try:
        yield
    except MemoryError:
        raise MemoryError(f"{part.name}: use a smaller max_document_bytes") from None


def _tokens(job: _Job, documents: list[str], sides: np.ndarray | None) -> tuple[dict[str, int], list[bytes]]:
    """What `_make` appends: the files of each of the one or two sides."""
    counts, data = {}, []
    for side, name in ((TRAIN, "train"), (VALIDATION, "validation"))[: len(job.sides)]:
        chosen = documents if sides is None else [documents[i] for i in np.flatnonzero(sides == side).tolist()]
        counts |= {f"{name}_documents": len(chosen), f"{name}_text_bytes": sum(len(text.encode()) for text in chosen)}
        if job.recipe["sentences"]:
            tokens, sizes = job.encoder.sentences(chosen)
            counts[f"{name}_sentences"] = int(np.count_nonzero(sizes))
            data += [tokens.tobytes(), sizes.tobytes()]
        else:
            data.append(job.encoder.tokens(chosen).tobytes())
    return counts, data


def _manifest(job: _Job, stage: Stage, index: int, dropped: dict[str, Any]) -> dict[str, Any]:
    """What is said about one side; see `read_manifest`."""
    side = job.sides[index]
    counted = {name: stage.counts[f"{side or 'train'}_{name}"] for name in ("documents", "text_bytes")}
    if not stage.counts["train_documents"] and not stage.counts["validation_documents"]:
        raise UserError(f"{job.sources[0].name}: holds nothing but white space; expected text")
    if not counted["documents"]:
        raise UserError(
            f"validation_fraction: {job.recipe['validation_fraction']} leaves no document for {side}; "
            "expected another share, or more documents"
        )
    place = index * len(job.files)
    size, hashes = stage.sizes[place], stage.sha256()[place:]
    written = {"tokens": size // job.encoder.dtype.itemsize, "bytes": size, "sha256": hashes[0]}
    if job.recipe["sentences"]:
        around = dict(zip(("before", "after"), map(len, job.encoder.around), strict=True))
        written["sentence_file"] = {"sentences": stage.counts[f"{side or 'train'}_sentences"], **around, "sha256": hashes[1]}
    dropped = dropped or {"blank": {"documents": stage.counts["blank"]}}
    return {**job.recipe_of(side), **written, **counted, "dropped": dropped, "versions": _VERSIONS}
