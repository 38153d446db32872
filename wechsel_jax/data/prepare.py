"""Text to flat streams of tokens on disk: once, in parallel, and from where it stopped."""

import contextlib
import dataclasses
import hashlib
import itertools
import json
import os
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import tokenizers
from tqdm import tqdm

from wechsel_jax.data.encoder import DROPPED, FACTS, TRAIN, Encoder
from wechsel_jax.data.manifest import FORMAT, MANIFEST, TOKENS, reuse
from wechsel_jax.data.processes import ProcessEnded, work_through
from wechsel_jax.data.selection import choose
from wechsel_jax.data.unfinished import FULL, RESULT, Stage, Unfinished, disk_full, foreign, lock, scratch_directory
from wechsel_jax.data.work import Task, Worker
from wechsel_jax.errors import UserError
from wechsel_jax.files import new_file, refuse_directory
from wechsel_jax.text.documents import check_kind
from wechsel_jax.text.files import LONGEST_DOCUMENT
from wechsel_jax.text.parts import PART_BYTES, Part, read_parts
from wechsel_jax.text.sources import Source, file_hash, find_sources, identify
from wechsel_jax.tokens import load_tokenizer

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

SIDES = ("train", "validation")
_MOST_BYTES, _MOST_PROCESSES = 1 << 62, 1024
# Less text than this is done before other processes have started.
_SMALL_BYTES = 8 << 20
_POLL_SECONDS = 1.0
# From the number of a part to which of its documents are wanted.
_Choice = Callable[[int], np.ndarray]


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
    processes: int | None = None,
) -> dict[str, Any]:
    """Writes the tokens of all documents of all sources, one after the other, to `output/tokens.bin`.

    Each document is what the tokenizer makes of it with its own special tokens (RoBERTa: <s> text </s>). Where the tokenizer
    itself puts nothing behind a text (GPT-2), its end-of-text token follows. Tokens are little-endian uint16 where the
    vocabulary has at most 65536 ids, else uint32. `output/manifest.json` records what they were made of; where it
    matches, nothing is done.

    The bytes are the same whatever the number of processes, and whether or not it was interrupted: what is not finished
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
        any space takes up to 150 times its size in memory. Only one at a time is longer than four megabytes.
      deduplicate: of documents with exactly the same text, keep the first.
      processes: how many tokenise, beside this one; 0: this one does, with the tokenizer's threads; None: as many as there
        are cores, or 0 for a few megabytes; at most 1024.

    Returns:
      The manifest, see `read_manifest`.

    Raises:
      UserError: a file is missing, empty or not UTF-8 or holds too long a document (file and line are named), there is no
        document in all of them, the tokenizer has no token to end a document with, the disk is full, or `output` is no
        directory, cannot be written or holds something else.
    """
    settings = {"documents_are": documents, "text_field": text_field, "max_bytes": max_bytes, "deduplicate": deduplicate}
    settings |= {"validation_fraction": 0.0}
    return _prepare(texts, tokenizer, Path(output), settings, max_document_bytes, processes)[""]


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
    processes: int | None = None,
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
    settings |= {"validation_fraction": validation_fraction}
    return _prepare(texts, tokenizer, Path(output), settings, max_document_bytes, processes)


@dataclasses.dataclass(frozen=True)
class _Job:
    """A preparation: what is read, and the fields of its manifests that tell it from another one."""

    sources: list[Source]
    encoder: Encoder
    recipe: dict[str, Any]
    processes: int

    @property
    def sides(self) -> tuple[str, ...]:
        """Directories below the output; "" is the output itself."""
        return SIDES if self.recipe["validation_fraction"] else ("",)

    @property
    def chooses(self) -> bool:
        """Whether all documents must be known before the first is tokenised."""
        return bool(self.recipe["deduplicate"] or self.recipe["max_bytes"])

    def recipe_of(self, side: str) -> dict[str, Any]:
        return {**self.recipe, "side": side} if side else self.recipe


def _prepare(
    texts: Sequence[str | os.PathLike] | str | os.PathLike,
    tokenizer: str | os.PathLike,
    output: Path,
    settings: dict[str, Any],
    longest: int,
    processes: int | None,
) -> dict[str, dict[str, Any]]:
    names = [texts] if isinstance(texts, (str, os.PathLike)) else list(texts)
    if output.is_symlink() or not _exists(output):
        refuse_directory(output, "prepare", inputs=names)
    job, before = _describe(names, tokenizer, settings, longest, processes)
    told = False
    while not _exists(output):
        with lock(output) as mine:
            if mine and not _exists(output):
                try:
                    return _make(job, output, before)
                except OSError as error:
                    if error.errno not in FULL:
                        raise
                    raise disk_full(output, error) from None
        if not mine:
            if not told:
                print(f"{output}: another process prepares it; waiting for that", file=sys.stderr)
            told = True
            time.sleep(_POLL_SECONDS)
    found = {side: reuse(output / side, job.recipe_of(side)) for side in job.sides}
    if scratch_directory(output).exists():
        # A call that was killed after its last step.
        with lock(output) as mine:
            if mine and foreign(scratch_directory(output)) is None:
                shutil.rmtree(scratch_directory(output), ignore_errors=True)
    return found


def _describe(
    names: list[str | os.PathLike],
    tokenizer: str | os.PathLike,
    settings: dict[str, Any],
    longest: int,
    processes: int | None,
) -> tuple[_Job, list[tuple[int, int]]]:
    """Finds and reads what the text will be made of; also returns the state of its files before they were hashed."""
    if not names:
        raise UserError("texts: no file is named; expected at least one text file")
    check_kind(settings["documents_are"])
    if not 0 <= settings["max_bytes"] <= _MOST_BYTES:
        raise UserError(f"max_bytes={settings['max_bytes']}; expected 0 (all) or a number of bytes")
    if processes is not None and not 0 <= processes <= _MOST_PROCESSES:
        raise UserError(f"processes={processes}; expected a number from 0 to {_MOST_PROCESSES}")
    sources = find_sources(names, settings["text_field"], longest)
    loaded = load_tokenizer(tokenizer)
    encoder = Encoder.of(loaded, str(tokenizer))
    before = _state(sources)
    cores = len(os.sched_getaffinity(0))
    sources, inputs = identify(sources, cores)
    if processes is None:
        small = all(not source.on_hub for source in sources) and sum(entry["bytes"] for entry in inputs) < _SMALL_BYTES
        processes = 0 if small else min(cores, _MOST_PROCESSES)
    made_with = {"name": Path(tokenizer).name, "sha256": _tokenizer_hash(loaded)}
    described = {"dtype": encoder.dtype.name, "vocabulary_size": encoder.vocabulary_size, "end_token": encoder.end}
    recipe = {"format": FORMAT, **settings, **described, "tokenizer": made_with, "inputs": inputs}
    return _Job(sources, encoder, recipe, processes), before


def _exists(output: Path) -> bool:
    return output.exists() and not (output.is_dir() and not any(output.iterdir()))


def _make(job: _Job, output: Path, before: list[tuple[int, int]]) -> dict[str, dict[str, Any]]:
    """Makes the output, or goes on making it."""
    work = Unfinished(output, {**job.recipe, "part_bytes": PART_BYTES, "versions": _versions()})
    try:
        choice, dropped = _choose(job, work) if job.chooses else (None, {})
        with work.stage("tokens", [f"{RESULT}/{side}/{TOKENS}" for side in job.sides]) as stage:
            _run(job, stage, Worker(job.encoder, job.recipe["validation_fraction"]), f"tokens for {output.name}", choice)
            if _state(job.sources) != before:
                raise UserError(f"{output}: a source has changed while it was read; run the command again")
            manifests = {side: _manifest(job, stage, index, dropped) for index, side in enumerate(job.sides)}
        for side, manifest in manifests.items():
            with new_file(work.result / side / MANIFEST, "w") as handle:
                json.dump(manifest, handle, indent=1)
        work.finish()
        return manifests
    except BaseException as error:
        # After a mistake in the text, other text must come, and with that the work begins again.
        mistake = isinstance(error, UserError) and not isinstance(error, ProcessEnded)
        if mistake or not work.worth_keeping:
            work.remove()
        elif isinstance(error, KeyboardInterrupt):
            error.args = (f"{output}: the same command goes on from there",)
        raise


def _choose(job: _Job, work: Unfinished) -> tuple[_Choice, dict[str, Any]]:
    """Reads all documents once to decide about them; the decision is made anew each time, from what was read."""
    with work.stage("facts", ["facts.bin", "counts.bin"]) as stage:
        _run(job, stage, Worker(None), f"reading for {work.output.name}", None)
    counts = np.fromfile(work.directory / "counts.bin", "<u8").astype(np.int64)
    total = int(counts.sum())
    sides = np.zeros(0, np.uint8)
    dropped: dict[str, Any] = {"blank": {"documents": stage.counts["blank"]}}
    if total:
        with open(work.directory / "choice.bin", "wb") as handle:
            # A mapped file for which there is no room would end the process without a word.
            os.posix_fallocate(handle.fileno(), 0, total)
        sides = np.memmap(work.directory / "choice.bin", np.uint8, "r+", shape=(total,))
        facts = np.memmap(work.directory / "facts.bin", FACTS, "r", shape=(total,))
        names = ("deduplicate", "validation_fraction", "max_bytes")
        dropped |= choose(facts, sides, **{name: job.recipe[name] for name in names})
    if total and dropped["subsample"]["documents"] and not np.any(sides == TRAIN):
        raise UserError(f"max_bytes: {job.recipe['max_bytes']:,} is less than one document; expected more")
    ends = np.cumsum(counts)
    return (lambda number: sides[ends[number] - counts[number] : ends[number]]), dropped


def _run(job: _Job, stage: Stage, worker: Worker, title: str, choice: _Choice | None) -> None:
    """Takes a stage from where it is to its end."""
    if stage.done:
        return
    size = sum(entry["bytes"] for entry in job.recipe["inputs"])
    with tqdm(total=size or None, unit="B", unit_scale=True, disable=None, desc=title) as bar:
        read = (read_parts(source, job.recipe["documents_are"], PART_BYTES) for source in job.sources)
        parts = enumerate(itertools.chain.from_iterable(read))
        # Closing it ends the processes at once, where something goes wrong.
        with contextlib.closing(work_through(worker, _tasks(parts, stage.parts, choice, bar), job.processes)) as results:
            for task, result in results:
                stage.append(task.number + 1, result.counts, result.data[: len(stage.sizes)])
                bar.update(task.progress)
                bar.set_postfix_str(f"{sum(stage.sizes):,} bytes written")
    stage.save(done=True)


def _tasks(parts: Iterator[tuple[int, Part]], done: int, choice: _Choice | None, bar: tqdm) -> Iterator[Task]:
    """The parts of which something is wanted, and that are not done."""
    progress = 0
    for number, part in parts:
        if number < done:
            bar.update(part.progress)
            continue
        progress += part.progress
        wanted = None if choice is None else np.asarray(choice(number))
        if wanted is None or np.any(wanted != DROPPED):
            yield Task(number, part, progress, wanted)
            progress = 0
    bar.update(progress)


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
    size = stage.sizes[index]
    written = {"tokens": size // job.encoder.dtype.itemsize, "bytes": size, "sha256": stage.sha256()[index]}
    dropped = dropped or {"blank": {"documents": stage.counts["blank"]}}
    return {**job.recipe_of(side), **written, **counted, "dropped": dropped, "versions": _versions()}


def _state(sources: Sequence[Source]) -> list[tuple[int, int]]:
    stats = (os.stat(file) for source in sources for file in source.files())
    return [(stat.st_size, stat.st_mtime_ns) for stat in stats]


def _versions() -> dict[str, str]:
    return {"tokenizers": tokenizers.__version__}


def _tokenizer_hash(tokenizer: "PreTrainedTokenizerFast") -> str:
    """Of tokenizer.json where there is one; its bytes do not change with the version of the library that reads it."""
    if tokenizer.name_or_path:
        place = Path(tokenizer.name_or_path)
        for path in (place, place / "tokenizer.json"):
            if path.is_file():
                return file_hash(path)
    return hashlib.sha256(tokenizer.backend_tokenizer.to_str().encode()).hexdigest()
