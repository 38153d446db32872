"""What anker compares tokens by: text of both languages is tokenised, counted and turned into vectors."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import numpy as np

from wechsel_jax.errors import UserError
from wechsel_jax.initializers import Side
from wechsel_jax.tokens.text import BOUNDARY, read_token_ids
from wechsel_jax.transfer_record import Steps
from wechsel_jax.transfer_settings import ALIGNED, IDENTICAL
from wechsel_jax.vectors import read_dictionary
from wechsel_jax.vectors.anchored import AnchorSettings, Counted, anchored_vectors
from wechsel_jax.vectors.contexts import count_neighbors
from wechsel_jax.vectors.token_anchors import FEW_ANCHORS, Candidates, find_candidates

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

    from wechsel_jax.tokens import Vocabulary
    from wechsel_jax.transfer_inputs import Job


# A share of a dictionary's pairs below which, and of a vocabulary above which, a note may be due; small vocabularies have few.
_FEW_ENTRIES, _SOME_ENTRIES, _MANY_UNSEEN = 0.01, 20, 0.75


def anchored_sides(job: "Job", steps: Steps, word_vectors: Callable) -> tuple[Side, Side, dict]:
    """Makes the two sides that `initializers.anker` compares.

    Args:
      job: the opened inputs.
      steps: names what is done.
      word_vectors: makes (source, target, report) of the word vectors that were given, for tokens that the text does not show.

    Returns:
      The source side, the target side, and what is known of the anchors.

    Raises:
      UserError: a file is damaged or empty, or nothing in the two texts corresponds.
    """
    settings = job.settings
    file = settings.dictionary if settings.dictionary not in (None, ALIGNED, IDENTICAL) else None
    pairs = read_dictionary(file) if file else []
    with steps("reading and counting both languages' text"), ThreadPoolExecutor(2) as threads:
        tokenizers, vocabularies = (job.source_tokenizer, job.target_tokenizer), (job.source, job.target)
        texts = settings.source_text, settings.target_text
        source, target = threads.map(_counted, tokenizers, vocabularies, texts, (settings, settings))
    with steps("finding anchors"):
        candidates = find_candidates(job.source, job.target, pairs)
        if file:
            job.notes.extend(_useless(job, file, pairs, candidates))
    with steps("making token vectors"):
        chosen = AnchorSettings(dimensions=settings.dimensions, rounds=settings.rounds, seed=settings.seed)
        try:
            made = anchored_vectors(source, target, candidates, chosen, steps.log)
        except UserError as error:
            raise UserError(f"{', '.join((*settings.source_text, *settings.target_text))}: {error}") from None
    others = (None, None)
    if settings.source_vectors:
        *others, words = word_vectors(job, steps)
        made.report["word_vectors"] = words
    report = {"method": "anker", **made.report, **_account(source, target, made.source, made.target)}
    job.notes.extend(_unseen("source", source, report))
    if not settings.keep_source:
        job.notes.extend(_unseen("target", target, report))
    started = report["rounds"][0]["anchors"]
    if started < FEW_ANCHORS:
        job.notes.append(
            f"Only {started} pairs of tokens were there to start from; with so few, wechsel with good word vectors may do "
            "better."
        )
    source_side = Side(job.source, made.source, counts=source.tokens, other_vectors=others[0])
    return source_side, Side(job.target, made.target, counts=target.tokens, other_vectors=others[1]), report


def _counted(tokenizer: "PreTrainedTokenizerFast", vocabulary: "Vocabulary", files: tuple[str, ...], settings) -> Counted:
    ids = read_token_ids(tokenizer, files, settings.text_bytes, settings.text_field, settings.max_document_bytes)
    size = len(vocabulary)
    tokens = np.bincount(ids[ids != BOUNDARY], minlength=size)
    return Counted(tokens, count_neighbors(ids, size, window=settings.window), ~np.asarray(vocabulary.special, bool))


def _useless(job: "Job", file: str, pairs: list[tuple[str, str]], candidates: Candidates) -> list[str]:
    """A sentence where next to nothing of the dictionary is a token on both sides, as if it were another language's."""
    used = _entries(candidates)
    if used >= _FEW_ENTRIES * len(pairs):
        return []
    reverse = _entries(find_candidates(job.source, job.target, [pair[::-1] for pair in pairs]))
    if used >= _SOME_ENTRIES and reverse <= used:
        return []
    turned = f"; the other way round they would be of {reverse}" if reverse > used else ""
    return [
        f"{file}: of its {len(pairs)} pairs only those of {used} source words are single tokens of both vocabularies{turned}; "
        "expected a source word, a tab and a target word on each line."
    ]


def _entries(candidates: Candidates) -> int:
    """How many of the dictionary's source words have a pair of tokens."""
    return len(np.unique(candidates.group[candidates.group >= 0]))


def _unseen(name: str, side: Counted, report: dict) -> list[str]:
    """A sentence where most tokens of a language have no vector, as if the text were of another."""
    usable, missing = int(side.usable.sum()), report[f"{name}_text"]["without_vector"]
    if missing <= _MANY_UNSEEN * usable:
        return []
    return [
        f"The {name} text shows {missing} of {usable} {name} tokens too seldom to compare them: is it of the language of the "
        f"{name} tokenizer, and enough of it?"
    ]


def _account(source: Counted, target: Counted, *vectors: np.ndarray) -> dict:
    """How much text there was, and how many tokens it does not show often enough."""
    sides = zip(("source", "target"), (source, target), vectors, strict=True)
    return {
        f"{name}_text": {
            "tokens": int(side.tokens.sum()),
            "without_counts": int((side.usable & (side.tokens == 0)).sum()),
            "without_vector": int((side.usable & ~made.any(axis=1)).sum()),
        }
        for name, side, made in sides
    }
