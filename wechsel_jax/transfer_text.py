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
from wechsel_jax.vectors.token_anchors import FEW_ANCHORS, find_candidates

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

    from wechsel_jax.tokens import Vocabulary
    from wechsel_jax.transfer_inputs import Job


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
    with steps("reading and counting both languages' text"), ThreadPoolExecutor(2) as threads:
        tokenizers, vocabularies = (job.source_tokenizer, job.target_tokenizer), (job.source, job.target)
        texts = settings.source_text, settings.target_text
        source, target = threads.map(_counted, tokenizers, vocabularies, texts, (settings, settings))
    with steps("finding anchors"):
        file = settings.dictionary if settings.dictionary not in (None, ALIGNED, IDENTICAL) else None
        candidates = find_candidates(job.source, job.target, read_dictionary(file) if file else [])
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
    started = report["rounds"][0]["anchors"]
    if started < FEW_ANCHORS:
        job.notes.append(
            f"Only {started} pairs of tokens were there to start from; with so few, wechsel with good word vectors may do "
            "better."
        )
    source_side = Side(job.source, made.source, counts=source.tokens, other_vectors=others[0])
    return source_side, Side(job.target, made.target, counts=target.tokens, other_vectors=others[1]), report


def _counted(tokenizer: "PreTrainedTokenizerFast", vocabulary: "Vocabulary", files: tuple[str, ...], settings) -> Counted:
    ids = read_token_ids(tokenizer, files, settings.text_bytes)
    size = len(vocabulary)
    tokens = np.bincount(ids[ids != BOUNDARY], minlength=size)
    return Counted(tokens, count_neighbors(ids, size, window=settings.window), ~np.asarray(vocabulary.special, bool))


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
