"""The main job: a source checkpoint, a target tokenizer and word vectors become a target checkpoint."""

import dataclasses
import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from wechsel_jax.architectures import position_shift, require_special_tokens
from wechsel_jax.checkpoint import Checkpoint, write_json
from wechsel_jax.errors import UserError
from wechsel_jax.files import new_directory, refuse_existing, require_file
from wechsel_jax.hub import model_card
from wechsel_jax.initializers import METHODS, Method, Side, TransferPlan
from wechsel_jax.initializers.wechsel import nearest_similarity
from wechsel_jax.surgery import HEAD_BIAS, Surgery, write_target
from wechsel_jax.tokens import Vocabulary, load_tokenizer, parity_words
from wechsel_jax.transfer_record import Steps, behaviour, examples, to_stderr, versions
from wechsel_jax.vectors import Alignment, WordVectors, align, load_vectors, ngram_vectors, read_dictionary, tfr_vectors

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

PLAN_FILE = "transfer_plan.npz"
RECORD_FILE = "transfer.json"
WEIGHTINGS = ("unique", "wechsel", "legacy")
ALIGNED, IDENTICAL = "none", "identical"


@dataclasses.dataclass(frozen=True)
class Settings:
    """Everything but the models that decides the result of a transfer; see `transfer`."""

    source_vectors: str | None = None
    target_vectors: str | None = None
    dictionary: str | None = None
    neighbors: int = 10
    temperature: float = 0.1
    seed: int = 0
    parity: bool = False
    head_bias: str = "transfer"
    weighting: str = "unique"
    normalize: bool = False
    center: bool = False
    max_words: int | None = None


@dataclasses.dataclass(frozen=True)
class _Job:
    """The opened inputs of one transfer."""

    method: Method
    settings: Settings
    checkpoint: Checkpoint
    source_tokenizer: "PreTrainedTokenizerFast"
    target_tokenizer: "PreTrainedTokenizerFast"
    source: Vocabulary
    target: Vocabulary
    shift: int
    notes: list[str]


def transfer(
    source: str | os.PathLike,
    target_tokenizer: str | os.PathLike,
    output: str | os.PathLike,
    *,
    method: str = "wechsel",
    source_vectors: str | os.PathLike | None = None,
    target_vectors: str | os.PathLike | None = None,
    dictionary: str | os.PathLike | None = None,
    neighbors: int = 10,
    temperature: float = 0.1,
    seed: int = 0,
    parity: bool = False,
    head_bias: str = "transfer",
    weighting: str | None = None,
    normalize: bool = False,
    center: bool = False,
    max_words: int | None = None,
    overwrite: bool = False,
    log: Callable[[str], None] = to_stderr,
) -> dict:
    """Gives a model a new vocabulary and writes a directory that transformers loads.

    One plan is computed and applied to every tensor with a vocabulary axis; all others are copied byte for byte (but for
    `full_rand`, which draws them again, and RoBERTa's position table, which moves where the id of the pad token changes).

    Args:
      source: model directory with config.json, model.safetensors and its tokenizer, or a hub id.
      target_tokenizer: directory, tokenizer.json or hub id of the tokenizer with V_t tokens.
      output: the directory to write: the model, its tokenizer, transfer_plan.npz, transfer.json and README.md.
      method: a name in `initializers.METHODS`.
      source_vectors: word vectors of the source language, any format of `vectors.load_vectors`.
      target_vectors: word vectors of the target language.
      dictionary: file of word pairs; "identical": words spelled the same; "none": the vectors share a space already.
      neighbors: k, how many source rows make one target row.
      temperature: of the softmax over similarities.
      seed: of the noise, the order of `trans_inner_shuffle`, the held-out dictionary words and the examples.
      parity: choose as PyPI wechsel 0.0.4 does, wherever the default is another.
      head_bias: "transfer": the weights of the embeddings make the head's bias; "zeros".
      weighting: how often a dictionary pair counts, see `vectors.align`; by default "unique", with `parity` "wechsel".
      normalize: scale word vectors to length 1 before aligning.
      center: take the mean off the word vectors before aligning.
      max_words: with `wechsel_tfr`, use only this many of the most frequent words.
      overwrite: replace an existing `output`.
      log: called with progress lines.

    Returns:
      What transfer.json holds: method, settings, counts of copied, mixed and random tokens, alignment quality, similarity,
      tensors, norms of the rows, 30 examples, the rules that were applied, notes, versions and timings in seconds.

    Raises:
      UserError: an input is missing, damaged or does not fit; nothing is written then.
    """
    settings = Settings(
        *(None if place is None else os.fspath(place) for place in (source_vectors, target_vectors, dictionary)),
        neighbors, temperature, seed, parity, head_bias,
        weighting or ("wechsel" if parity else "unique"), normalize, center, max_words,
    )  # fmt: skip
    chosen = _check(method, settings)
    refuse_existing(output, overwrite)
    if Path(source).is_dir() and Path(output).exists() and Path(output).samefile(source):
        raise UserError(f"{output}: is the source model itself; choose another output")
    steps = Steps(log)
    with steps("reading the source model and both tokenizers"):
        job = _open(chosen, settings, source, target_tokenizer)
    sides, alignment = _sides(job, steps)
    with steps("making the plan"):
        plan = _plan(job, *sides, steps)
    similarity = _similarity(plan, *sides)
    with new_directory(output, overwrite) as directory:
        with steps("writing the model"):
            norms = write_target(_surgery(job, plan), directory, job.target_tokenizer)
            plan.save(directory / PLAN_FILE)
        record = _record(job, plan, os.fspath(source), os.fspath(target_tokenizer), alignment, similarity, norms)
        record["timings"] = steps.seconds
        write_json(directory / RECORD_FILE, record)
        (directory / "README.md").write_text(model_card(record), encoding="utf-8")
    counts = ", ".join(f"{count} {how}" for how, count in record["counts"].items())
    log(f"{output}: {len(plan)} tokens: {counts}")
    return record


def _check(method: str, settings: Settings) -> Method:
    """Finds the method and refuses impossible settings before anything is read."""
    if method not in METHODS:
        raise UserError(f"method {method!r}: no such method; expected one of {', '.join(METHODS)}")
    for name, value, known in (("head_bias", settings.head_bias, HEAD_BIAS), ("weighting", settings.weighting, WEIGHTINGS)):
        if value not in known:
            raise UserError(f"{name} {value!r}: unknown; expected one of {', '.join(known)}")
    if METHODS[method].vectors is None:
        return METHODS[method]
    needed = ("source_vectors", "target_vectors", "dictionary")
    missing = [name for name in needed if not getattr(settings, name)]
    if missing:
        raise UserError(
            f"method {method}: no {' and no '.join(missing)}; expected two files of word vectors and a dictionary "
            f"of word pairs, or {IDENTICAL!r} for words spelled the same, or {ALIGNED!r} for vectors that share a space already"
        )
    if not settings.temperature > 0 or settings.neighbors < 1:
        raise UserError(f"temperature {settings.temperature}, neighbors {settings.neighbors}: expected both above zero")
    for name in needed:
        if name != "dictionary" or settings.dictionary not in (ALIGNED, IDENTICAL):
            require_file(getattr(settings, name), "a dictionary of word pairs" if name == "dictionary" else "word vectors")
    return METHODS[method]


def _open(method: Method, settings: Settings, source: str | os.PathLike, target_tokenizer: str | os.PathLike) -> _Job:
    """Opens the models and refuses what does not fit together."""
    checkpoint = Checkpoint.open(source)
    record = checkpoint.record
    tokenizers = load_tokenizer(checkpoint.directory), load_tokenizer(target_tokenizer)
    vocabulary, target = (Vocabulary.from_tokenizer(tokenizer) for tokenizer in tokenizers)
    rows, notes = checkpoint.vocabulary_size, []
    if rows < len(vocabulary):
        raise UserError(
            f"{checkpoint.directory}: the tokenizer has {len(vocabulary)} ids, but {checkpoint.table} only {rows} rows; "
            "expected a row for each id; use the tokenizer that the model was trained with"
        )
    require_special_tokens(record, target, target_tokenizer, checkpoint.architecture)
    checkpoint.check_weights(len(vocabulary))
    if rows > len(vocabulary):
        padding = rows - len(vocabulary)
        notes.append(f"The source table has {padding} rows of padding after its {len(vocabulary)} tokens; they were dropped.")
    shift = position_shift(record, checkpoint.config, target, target_tokenizer)
    return _Job(method, settings, checkpoint, *tokenizers, vocabulary, target, shift, notes)


def _sides(job: _Job, steps: Steps) -> tuple[tuple[Side, Side], dict | None]:
    """Makes the token vectors of both languages in one space; returns the alignment's report with them."""
    settings = job.settings
    if job.method.vectors is None:
        if settings.source_vectors or settings.target_vectors or settings.dictionary:
            job.notes.append(f"Word vectors or a dictionary were given, but {job.method.name} uses none.")
        return (Side(job.source), Side(job.target)), None
    with steps("reading the word vectors"):
        pairs = settings.dictionary
        if pairs not in (ALIGNED, IDENTICAL):
            pairs = read_dictionary(pairs, alternatives=not settings.parity)
        words = load_vectors(settings.source_vectors), load_vectors(settings.target_vectors)
        _check_vectors(job, *words)
    alignment = None
    if pairs != ALIGNED:
        with steps("aligning the word vectors"):
            alignment = _align(settings, *words, pairs)
    with steps("making token vectors"):
        source = _token_vectors(job, job.source_tokenizer, job.source, words[0], settings.source_vectors)
        target = _token_vectors(job, job.target_tokenizer, job.target, words[1], settings.target_vectors)
        if alignment is not None:
            source, target = alignment.map_source(source), alignment.map_target(target)
    sides = Side(job.source, source), Side(job.target, target)
    if not sides[1].has_vector.any():
        raise UserError(
            f"{settings.target_vectors}: no target token has a vector; expected vectors of the target tokenizer's language"
        )
    return sides, None if alignment is None else alignment.report


def _align(settings: Settings, source: WordVectors, target: WordVectors, pairs: str | list[tuple[str, str]]) -> Alignment:
    options = {name: getattr(settings, name) for name in ("weighting", "normalize", "center", "seed")}
    try:
        return align(source, target, pairs, **options)
    except UserError as error:
        raise UserError(f"{settings.dictionary}: {error}") from None


def _check_vectors(job: _Job, source: WordVectors, target: WordVectors) -> None:
    settings = job.settings
    if settings.dictionary == ALIGNED and source.dim != target.dim:
        raise UserError(
            f"{settings.target_vectors}: {target.dim} dimensions, and {settings.source_vectors} {source.dim}; aligned vectors "
            "share one space; pass a dictionary to align them"
        )
    if source.dim != target.dim:
        dims = sorted((source.dim, target.dim))
        job.notes.append(f"Word vectors of {dims[1]} dimensions were projected on {dims[0]}, the other language's.")
    for words, place in ((source, settings.source_vectors), (target, settings.target_vectors)):
        if job.method.vectors == "ngram" and not words.has_subwords:
            job.notes.append(f"{place} has vectors of whole words only: tokens that are no word of it have no vector.")


def _token_vectors(
    job: _Job, tokenizer: "PreTrainedTokenizerFast", vocabulary: Vocabulary, words: WordVectors, place: str | None
) -> np.ndarray:
    if job.method.vectors == "tfr":
        vectors = tfr_vectors(tokenizer, words, max_words=job.settings.max_words)
    else:
        vectors = ngram_vectors(parity_words(tokenizer) if job.settings.parity else vocabulary.words(), words)
    if not np.isfinite(vectors).all():
        token = vocabulary.strings[int(np.flatnonzero(~np.isfinite(vectors).all(axis=1))[0])]
        raise UserError(
            f"{place}: gives token {token!r} a vector with NaN or infinity; expected finite vectors; fetch the file again"
        )
    return vectors


def _plan(job: _Job, source: Side, target: Side, steps: Steps) -> TransferPlan:
    settings = job.settings
    options = {
        "neighbors": settings.neighbors,
        "temperature": settings.temperature,
        "parity": settings.parity,
        "seed": settings.seed,
        "progress": steps.counter("nearest source tokens"),
    }
    return job.method.plan(source, target, **{name: options[name] for name in job.method.options})


def _similarity(plan: TransferPlan, source: Side, target: Side) -> dict | None:
    if source.vectors is None or not plan.is_mixed.any():
        return None
    similarity = nearest_similarity(plan, source, target)
    return {"mean_top1": float(similarity.mean()), "median_top1": float(np.median(similarity))}


def _surgery(job: _Job, plan: TransferPlan) -> Surgery:
    settings = job.settings
    return Surgery(
        job.checkpoint, plan, job.method, len(job.source), job.target,
        settings.seed, settings.parity, settings.head_bias, job.shift, job.notes,
    )  # fmt: skip


def _record(
    job: _Job, plan: TransferPlan, source: str, tokenizer: str, alignment: dict | None, similarity: dict | None, norms: dict
) -> dict:
    checkpoint, settings = job.checkpoint, dataclasses.asdict(job.settings)
    parity = settings.pop("parity")
    weighting = IDENTICAL if job.settings.dictionary == IDENTICAL else job.settings.weighting
    return {
        "format": 1,
        "method": job.method.name,
        "parity": parity,
        "settings": settings,
        "source": {
            "model": source,
            "architecture": checkpoint.architecture,
            "vocabulary_size": len(job.source),
            "hidden_size": checkpoint.hidden_size,
            "tied": checkpoint.tied,
        },
        "target": {"tokenizer": tokenizer, "vocabulary_size": len(job.target)},
        "counts": plan.counts(),
        "alignment": alignment,
        "similarity": similarity,
        "tensors": [
            {
                "name": tensor.name,
                "role": tensor.role,
                "shape": [len(plan), *checkpoint.tensors[tensor.name].shape[1:]],
                "dtype": checkpoint.tensors[tensor.name].dtype.name,
            }
            for tensor in checkpoint.vocabulary_tensors()
        ],
        "norms": norms,
        "examples": examples(plan, job.source, job.target, job.settings.seed),
        "behaviour": behaviour(job.method, parity, alignment is None, weighting, job.settings.head_bias),
        "notes": job.notes,
        "versions": versions(),
        "paper": job.method.paper,
    }
