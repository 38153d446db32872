"""Opens what a transfer reads (models, tokenizers, word vectors, a helper) and makes the two sides that a method compares."""

import dataclasses
import inspect
import os
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from wechsel_jax.checkpoint import Checkpoint
from wechsel_jax.checkpoint.architectures import position_shift, require_special_tokens
from wechsel_jax.errors import UserError, naming
from wechsel_jax.initializers import Method, Side
from wechsel_jax.initializers.anker.sides import Language
from wechsel_jax.initializers.full_rand import require_architecture
from wechsel_jax.initializers.trans_tokenization import Translations, find_translations
from wechsel_jax.text.parallel import read_pairs
from wechsel_jax.tokens import Vocabulary, load_tokenizer, parity_words
from wechsel_jax.tokens.chat import carry_chat
from wechsel_jax.tokens.encoding import plain_backend
from wechsel_jax.tokens.extension import extend_tokenizer
from wechsel_jax.tokens.files import rowless_tokens
from wechsel_jax.tokens.mapping import parse_mapping
from wechsel_jax.tokens.overlap import Overlap, find_overlap
from wechsel_jax.tokens.pieces import source_pieces
from wechsel_jax.transfers.record import Steps
from wechsel_jax.transfers.settings import ALIGNED, IDENTICAL, WITHOUT_DICTIONARY, TransferSettings
from wechsel_jax.vectors import (
    AdversarialSettings,
    Alignment,
    Refinement,
    WordVectors,
    adversarial_align,
    align,
    load_vectors,
    native_vectors,
    ngram_vectors,
    read_dictionary,
    tfr_vectors,
)
from wechsel_jax.vectors.subwords import native_word

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

# Pairs of parallel text that are looked at, and what says that they are the other way round: 1 is neither; English and
# German with tokenizers of 50,000 have 0.35 and then 2.8, single words with tokenizers of 700 have 0.76 and 1.3.
_LEAST_PAIRS, _MOST_PAIRS, _SWAPPED = 100, 1000, 1.25
# Of tokens that begin a word and have three characters, the share that word vectors know: small ones of the right language had
# 41 to 84 %, those of another one 0 to 3 %. Of fewer tokens nothing is said.
_FEW_KNOWN, _ENOUGH_WORDS = 0.1, 100


@dataclasses.dataclass(frozen=True)
class Job:
    """The opened inputs of one transfer.

    Attributes:
      method: how the plan is made.
      settings: all of them filled in.
      dictionary: pairs of words of the file that `settings.dictionary` names; none where the method reads no file.
      checkpoint: the source model.
      source_tokenizer: its tokenizer.
      target_tokenizer: the new one; with `keep_source` the source's with the new tokens appended.
      source: the V_s source tokens.
      target: the V_t target tokens.
      overlap: which of them are shared.
      shift: by how many rows the position table moves, see `architectures.position_shift`.
      notes: gets a sentence for everything out of the ordinary.
    """

    method: Method
    settings: TransferSettings
    dictionary: list[tuple[str, str]]
    checkpoint: Checkpoint
    source_tokenizer: "PreTrainedTokenizerFast"
    target_tokenizer: "PreTrainedTokenizerFast"
    source: Vocabulary
    target: Vocabulary
    overlap: Overlap
    shift: int
    notes: list[str]

    def pieces(self) -> tuple[np.ndarray, ...]:
        """Ids of every target token's text in the source tokenizer, see `tokens.pieces.source_pieces`."""
        return source_pieces(self.source_tokenizer, self.source, self.target)

    def translations(self, log: Callable[[str], None]) -> Translations:
        """What the words of the parallel text are translated into.

        Raises:
          UserError: the text is missing or damaged, has its languages swapped, or pairs too long to be sentences.
        """
        pairs = read_pairs(self.settings.parallel, drop_empty=True, longest=self.settings.max_document_bytes)
        ends = [*(begin for _, begin in pairs.files[1:]), pairs.read]
        for (name, begin), end in zip(pairs.files, ends, strict=True):
            first, last = np.searchsorted(pairs.lines, (begin, end))
            looked_at = slice(first, min(last, first + _MOST_PAIRS))
            self._refuse_swapped(name, pairs.first[looked_at], pairs.second[looked_at])
        if pairs.one_sided:
            self.notes.append(f"{pairs.one_sided} pairs of the parallel text had nothing on one side and were left out.")
        return find_translations(self.source_tokenizer, self.target_tokenizer, pairs.first, pairs.second, log, pairs.place)

    def _refuse_swapped(self, name: str, *sides: Sequence[str]) -> None:
        """Raises `UserError` where each tokenizer writes the other's side far shorter: archives have an order of their own."""
        if len(sides[0]) < _LEAST_PAIRS:
            return
        both = (self.source_tokenizer, self.source), (self.target_tokenizer, self.target)
        lengths = [[_length(tokenizer, vocabulary, side) for side in sides] for tokenizer, vocabulary in both]
        # Two multilingual tokenizers write both alike.
        if lengths[0][0] * lengths[1][1] > _SWAPPED * lengths[0][1] * lengths[1][0]:
            raise UserError(
                f"{name}: the languages look swapped: the source tokenizer takes {lengths[0][0]:,} tokens for the first side "
                f"and {lengths[0][1]:,} for the second, the target tokenizer {lengths[1][0]:,} and {lengths[1][1]:,}; expected "
                "the source language first; swap the columns or the files, or rename an archive (en-de.txt.zip)"
            )


def _length(tokenizer: "PreTrainedTokenizerFast", vocabulary: Vocabulary, texts: Sequence[str]) -> int:
    """Tokens of texts, and a token for each character that none of them stands for: as much as unknown text would take."""
    found, unknown = 0, vocabulary.id_with_role("unk")
    for text, one in zip(texts, plain_backend(tokenizer).encode_batch(texts, add_special_tokens=False), strict=True):
        known = [offsets for token, offsets in zip(one.ids, one.offsets, strict=True) if token != unknown]
        covered = last = 0
        for start, end in known:
            covered, last = covered + max(0, end - max(start, last)), max(last, end)
        found += len(known) + max(0, sum(not character.isspace() for character in text) - covered)
    return found


def open_job(method: Method, settings: TransferSettings, source: str | os.PathLike, target_tokenizer: str | os.PathLike) -> Job:
    """Opens the models and refuses what does not fit together.

    Raises:
      UserError: the dictionary, a model or tokenizer is missing or damaged, or the models do not fit each other.
    """
    unused = settings.unused(method)
    dictionary = []
    if settings.dictionary not in (None, ALIGNED, IDENTICAL) and "dictionary" not in unused:
        # Before the model, which may be large. A method of ours has no parity.
        dictionary = read_dictionary(settings.dictionary, alternatives=bool(method.text) or not settings.parity)
    checkpoint = Checkpoint.open(source)
    record = checkpoint.record
    if method.redraw_inner:
        require_architecture(record.base)
    source_tokenizer, new_tokenizer = load_tokenizer(checkpoint.directory), load_tokenizer(target_tokenizer)
    if settings.keep_source:
        new_tokenizer = extend_tokenizer(source_tokenizer, new_tokenizer)
    new_tokenizer, notes = carry_chat(source_tokenizer, new_tokenizer, settings.special_tokens)
    # How much of a text is read at once is the model's, not the language's.
    new_tokenizer.model_max_length = source_tokenizer.model_max_length
    vocabulary, target = Vocabulary.from_tokenizer(source_tokenizer), Vocabulary.from_tokenizer(new_tokenizer)
    checkpoint.require_rows(len(vocabulary))
    require_special_tokens(record, target, target_tokenizer, checkpoint.architecture)
    checkpoint.require_finite(len(vocabulary))
    if lacking := rowless_tokens(source_tokenizer):
        notes.append(f"{', '.join(lacking)}: without a row in the source model, so left out.")
    if padding := checkpoint.vocabulary_size - len(vocabulary):
        notes.append(f"The source table has {padding} rows of padding after its {len(vocabulary)} tokens; they were dropped.")
    if vocabulary.strings == target.strings and not settings.keep_source:
        notes.append("The target tokenizer has the source's tokens, in the same order: expected that of another language.")
    if method.text and settings.parity:
        left = "the word start is left out, and " if "word_start" in method.settings else ""
        notes.append(
            f"parity was given, but {method.name} has no reference implementation that it repeats: {left}random rows, and what "
            "word vectors and dictionaries it reads, are as in PyPI wechsel 0.0.4."
        )
    elif settings.parity and "parity" not in method.options:
        notes.append(
            f"parity was given, but {method.name} has no choices that a reference implementation makes otherwise: what token "
            "vectors and random rows it has are made as PyPI wechsel 0.0.4 makes them, and nothing else changes."
        )
    chosen = f"{method.name} with parity" if settings.parity else method.name
    notes += [f"{name} was given, but {chosen} does not use it." for name in unused]
    mapping = parse_mapping(settings.map, vocabulary, target)
    reference = method.reference_overlap if settings.parity else None
    overlap = find_overlap(vocabulary, target, settings.overlap, mapping, symbols=settings.symbols, parity=reference)
    if settings.keep_source:
        overlap = overlap.keeping(vocabulary)
    shift = position_shift(record, checkpoint.config, target, target_tokenizer)
    return Job(
        method, settings, dictionary, checkpoint, source_tokenizer, new_tokenizer, vocabulary, target, overlap, shift, notes
    )  # fmt: skip


def make_sides(job: Job, steps: Steps) -> tuple[Side, Side, dict | None]:
    """Makes what the method compares: token vectors of one or both languages, the helper's embeddings.

    Returns:
      The source side, the target side, and the alignment's report (None where nothing was aligned).

    Raises:
      UserError: a file is damaged, or no target token has a vector.
    """
    source = target = alignment = embeddings = rows = head = source_counts = counts = None
    predicted = "regression" in job.method.settings and job.settings.own["regression"]
    if job.method.source_rows or (predicted and not job.method.text):
        rows = job.checkpoint.read(job.checkpoint.table)[: len(job.source)]
    if job.method.text:
        source, target, report = _text_sides(job, steps)
        return dataclasses.replace(source, embeddings=rows), target, report
    if job.method.helper:
        # Before the vectors, which may take minutes.
        with steps("reading the helper's embeddings"):
            embeddings = _helper_rows(job)
    if job.method.vectors is not None:
        if job.method.space == "both":
            source, target, alignment = _shared_space(job, steps)
        else:
            target, counts = _target_space(job, steps)
        for name, vectors in (("target", target), *([("source", source)] if job.method.space == "both" else [])):
            if not vectors.any():
                raise UserError(
                    f"{getattr(job.settings, f'{name}_vectors')}: no {name} token has a vector; expected vectors of the {name} "
                    "tokenizer's language, and words that fit the choice of token vectors"
                )
    if predicted:
        # Counts of the vectors' file are of one language only.
        source_counts, counts = _counts(job, steps)
    if job.method.head_rows:
        heads = [tensor for tensor in job.checkpoint.vocabulary_tensors() if tensor.role == "head"]
        head = heads[0].rows(job.checkpoint.tensors[heads[0].name].read())[: len(job.source)] if heads else None
    return (
        Side(job.source, source, rows, source_counts, head=head),
        Side(job.target, target, embeddings, counts=counts),
        alignment,
    )


def _counts(job: Job, steps: Steps) -> tuple[np.ndarray | None, np.ndarray | None]:
    """How often the source tokens and the target tokens occur in text of their languages, where there is some."""
    settings, counts = job.settings, []
    if not settings.source_text:
        job.notes.append("Without source_text and target_text the regression knows no frequencies.")
        return None, None
    from wechsel_jax.tokens.text import BOUNDARY, read_token_ids

    with steps("counting the tokens of the text"):
        for tokenizer, tokens, text in (
            (job.source_tokenizer, job.source, settings.source_text),
            (job.target_tokenizer, job.target, settings.target_text),
        ):
            ids = read_token_ids(tokenizer, text, settings.text_bytes, settings.text_field, settings.max_document_bytes)
            counts.append(np.bincount(ids[ids != BOUNDARY], minlength=len(tokens)))
    return counts[0], counts[1]


def _text_sides(job: Job, steps: Steps) -> tuple[Side, Side, dict]:
    settings, others, words, dictionary = job.settings, (None, None), None, ()
    if job.method.takes_words:
        if settings.source_vectors:
            *others, words = _shared_space(job, steps)
        dictionary = job.dictionary, settings.dictionary if job.dictionary else None
    # The dictionary is taken as its pairs.
    taken = inspect.signature(job.method.text).parameters.keys() - {"dictionary"}
    with steps("making token vectors"):
        source, target, report, notes = job.method.text(
            Language(job.source_tokenizer, job.source, settings.source_text, others[0]),
            Language(job.target_tokenizer, job.target, settings.target_text, others[1]),
            *dictionary,
            log=steps.log,
            **{name: value for name, value in settings.by_name().items() if name in taken},
        )
    job.notes.extend(notes)
    return source, target, report if words is None else report | {"word_vectors": words}


def _target_space(job: Job, steps: Steps) -> tuple[np.ndarray, np.ndarray | None]:
    """The vectors of the target tokens, and where these are words of the file, how often each occurs.

    Of a file without counts, whose first line is the most frequent word, a number that is in the same order.
    """
    settings = job.settings
    with steps("reading the word vectors"):
        words = load_vectors(settings.target_vectors)
    with steps("making token vectors"):
        vectors = _token_vectors(job, job.target_tokenizer, job.target, words, settings.target_vectors)
    counts = None
    if settings.token_vectors == "native":
        ids = words.ids([native_word(string) if string else None for string in job.target.strings])
        ranked = np.arange(len(words.words), 0, -1) if words.counts is None else words.counts
        counts = np.where(ids >= 0, ranked[ids], 0)
    return vectors, counts


def _shared_space(job: Job, steps: Steps) -> tuple[np.ndarray, np.ndarray, dict | None]:
    settings = job.settings
    pairs = job.dictionary or settings.dictionary
    if pairs is None and settings.alignment == "procrustes":
        pairs = IDENTICAL
    with steps("reading the word vectors"):
        words = load_vectors(settings.source_vectors), load_vectors(settings.target_vectors)
        _check_dimensions(job, *words)
    alignment = None
    if pairs != ALIGNED:
        with steps("aligning the word vectors"):
            alignment = _align(settings, *words, pairs, steps)
    with steps("making token vectors"):
        source = _token_vectors(job, job.source_tokenizer, job.source, words[0], settings.source_vectors)
        target = _token_vectors(job, job.target_tokenizer, job.target, words[1], settings.target_vectors)
        if alignment is not None:
            source, target = alignment.map_source(source), alignment.map_target(target)
    return source, target, None if alignment is None else alignment.report


def _align(
    settings: TransferSettings,
    source: WordVectors,
    target: WordVectors,
    pairs: str | list[tuple[str, str]] | None,
    steps: Steps,
) -> Alignment:
    shared = {name: getattr(settings, name) for name in ("normalize", "center", "seed")}
    with naming(f"{settings.dictionary or settings.source_vectors}: "):
        if settings.alignment in WITHOUT_DICTIONARY:
            start = {"start": "similarities", "epochs": 0} if settings.alignment == "similarities" else {}
            chosen = AdversarialSettings(refinement=Refinement(rounds=settings.refine or Refinement.rounds), **start)
            measured = None if isinstance(pairs, str) else pairs
            return adversarial_align(source, target, chosen, pairs=measured, csls=True, progress=steps.log, **shared)
        return align(source, target, pairs, weighting=settings.weighting, refine=settings.refine, csls=True, **shared)


def _check_dimensions(job: Job, source: WordVectors, target: WordVectors) -> None:
    settings = job.settings
    if settings.dictionary == ALIGNED and source.dim != target.dim:
        raise UserError(
            f"{settings.target_vectors}: {target.dim} dimensions, and {settings.source_vectors} {source.dim}; aligned vectors "
            "share one space; pass a dictionary to align them"
        )
    if source.dim != target.dim:
        dims = sorted((source.dim, target.dim))
        job.notes.append(f"Word vectors of {dims[1]} dimensions were projected on {dims[0]}, the other language's.")


def _token_vectors(
    job: Job, tokenizer: "PreTrainedTokenizerFast", vocabulary: Vocabulary, words: WordVectors, place: str
) -> np.ndarray:
    kind = job.settings.token_vectors
    if kind == "tfr":
        vectors = tfr_vectors(tokenizer, words, max_words=job.settings.max_words)
        if not job.settings.parity:
            # Words that the tokenizer cannot write are the unknown token, whose row is none of their meaning.
            vectors[vocabulary.special] = 0
    elif kind == "native":
        vectors = native_vectors(vocabulary.strings, words)
        ordinary = int((~vocabulary.special).sum())
        known = int((vectors.any(axis=1) & ~vocabulary.special).sum())
        if 2 * known < ordinary:
            job.notes.append(
                f"{place} has a vector for {known:,} of {ordinary:,} tokens. It should be of tokens: `wechsel-jax vectors "
                "train --tokenizer=...`; of vectors of words take --token_vectors=ngram or tfr."
            )
    else:
        if not words.has_subwords:
            job.notes.append(f"{place} has vectors of whole words only: tokens that are no word of it have no vector.")
        else:
            # N-grams of any language have some vector.
            long = {word for word in vocabulary.starting_words() if len(word or "") > 2 and any(map(str.isalpha, word))}
            found = len(long.intersection(words.words))
            if len(long) >= _ENOUGH_WORDS and found < _FEW_KNOWN * len(long):
                job.notes.append(
                    f"{place} has {found:,} of the {len(long):,} tokens that may be whole words: is it of the tokenizer's "
                    "language?"
                )
        vectors = ngram_vectors(parity_words(tokenizer) if job.settings.parity else vocabulary.words(), words)
    if not np.isfinite(vectors).all():
        token = vocabulary.strings[int(np.flatnonzero(~np.isfinite(vectors).all(axis=1))[0])]
        raise UserError(
            f"{place}: gives token {token!r} a vector with NaN or infinity; expected finite vectors; fetch the file again"
        )
    return vectors


def _helper_rows(job: Job) -> np.ndarray:
    """The helper's input row of each target token, float32 (V_t, h); zeros where the helper lacks the token."""
    helper = Checkpoint.open(job.settings.helper)
    tokens = Vocabulary.from_tokenizer(load_tokenizer(helper.directory))
    helper.require_rows(len(tokens), "helper")
    same = tokens.strings == job.target.strings
    rows = np.arange(len(tokens)) if same else find_overlap(tokens, job.target, "exact").source
    known = rows >= 0
    embeddings = np.zeros((len(job.target), helper.hidden_size), np.float32)
    embeddings[known] = helper.read(helper.table)[rows[known]]
    if not known.all():
        job.notes.append(f"The helper {job.settings.helper} lacks {int((~known).sum())} of the {len(known)} target tokens.")
    if not np.isfinite(embeddings).all():
        raise UserError(f"{helper.directory}: {helper.table} holds NaN or infinity; expected finite weights; fetch it again")
    return embeddings
