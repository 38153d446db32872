"""What anker compares tokens by: text of both languages is tokenised and counted, and the counts become vectors."""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import numpy as np

from wechsel_jax.errors import UserError
from wechsel_jax.initializers.anker.anchors import FEW_ANCHORS, Candidates, find_candidates
from wechsel_jax.initializers.anker.contexts import LARGEST_WINDOW, count_neighbors
from wechsel_jax.initializers.anker.vectors import Counted, anchored_vectors
from wechsel_jax.initializers.method import Setting
from wechsel_jax.initializers.plan import Side
from wechsel_jax.records import work
from wechsel_jax.text.files import LONGEST_DOCUMENT

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

    from wechsel_jax.tokens import Vocabulary


# A share of a dictionary's pairs below which, and of a vocabulary above which, a note may be due; small vocabularies have few.
_FEW_ENTRIES, _SOME_ENTRIES, _MANY_UNSEEN = 0.01, 20, 0.75


@dataclass(frozen=True)
class Language:
    """One language of a transfer.

    Attributes:
      tokenizer: which cuts its text.
      vocabulary: the V tokens.
      text: files, and whatever else `text.sources.find_sources` knows.
      other_vectors: (V, m') of tokens that the text does not show, in a space of both languages; None: there are none.
    """

    tokenizer: "PreTrainedTokenizerFast"
    vocabulary: "Vocabulary"
    text: tuple[str, ...]
    other_vectors: np.ndarray | None = None


def text_sides(
    source: Language,
    target: Language,
    pairs: Sequence[tuple[str, str]],
    dictionary: str | None,
    *,
    window: Annotated[int, Setting("How far from a token its contexts reach", 1, LARGEST_WINDOW)] = 4,
    rounds: Annotated[int, Setting("Of self-learning: how often mutual nearest neighbors become anchors", 0, 100)] = 1,
    dimensions: Annotated[int, Setting("Of the vectors made of text", 1, 1024)] = 128,
    seed: int = 0,
    text_bytes: int = 0,
    text_field: str = "text",
    max_document_bytes: int = LONGEST_DOCUMENT,
    keep_source: bool = False,
    log: Callable[[str], None],
) -> tuple[Side, Side, dict, list[str]]:
    """Makes the two sides that `anker` compares.

    Args:
      source: the source language.
      target: the target language.
      pairs: of a dictionary.
      dictionary: its file, for notes.
      window: how far from a token its contexts reach.
      rounds: of self-learning, see `anchored_vectors`.
      dimensions: m, of the vectors.
      seed: of the choice of the words that P@1 is measured on.
      text_bytes: how many bytes of text are read per language, at most and about; 0: all.
      text_field: which field holds the text of JSON lines and tables.
      max_document_bytes: text with a longer line or row is refused.
      keep_source: the target has all source tokens too, which its text need not show.
      log: called with progress lines.

    Returns:
      The source side, the target side, what is known of the anchors, and a sentence for everything out of the ordinary.

    Raises:
      UserError: a file is damaged or empty, or nothing in the two texts corresponds.
    """
    # Here, since who lists the methods' settings need not load the libraries that read text.
    from wechsel_jax.tokens.text import BOUNDARY, read_token_ids

    notes = []

    def counted(language: Language) -> Counted:
        ids = read_token_ids(language.tokenizer, language.text, text_bytes, text_field, max_document_bytes)
        size = len(language.vocabulary)
        tokens = np.bincount(ids[ids != BOUNDARY], minlength=size)
        return Counted(tokens, count_neighbors(ids, size, window=window), ~language.vocabulary.special)

    with ThreadPoolExecutor(2) as threads:
        source_counts, target_counts = threads.map(work.carried(counted), (source, target))
    candidates = find_candidates(source.vocabulary, target.vocabulary, pairs)
    used = _entries(candidates)
    if dictionary and used < _FEW_ENTRIES * len(pairs):
        turned = [pair[::-1] for pair in pairs]
        reverse = _entries(find_candidates(source.vocabulary, target.vocabulary, turned))
        if used < _SOME_ENTRIES or reverse > used:
            hint = f"; the other way round they would be of {reverse}" if reverse > used else ""
            notes.append(
                f"{dictionary}: of its {len(pairs)} pairs only those of {used} source words are single tokens of both "
                f"vocabularies{hint}; expected a source word, a tab and a target word on each line."
            )
    try:
        made = anchored_vectors(
            source_counts, target_counts, candidates, dimensions=dimensions, rounds=rounds, seed=seed, progress=log
        )
    except UserError as error:
        # What was found wrong with the dictionary may be why.
        raise UserError(" ".join([*notes, f"{', '.join((*source.text, *target.text))}: {error}"])) from None
    made_of = (source, made.source, source_counts), (target, made.target, target_counts)
    sides = [
        Side(language.vocabulary, vectors, counts=counts.tokens, other_vectors=language.other_vectors)
        for language, vectors, counts in made_of
    ]
    report = {"method": "anker", **made.report}
    for name, side in zip(("source", "target"), sides, strict=True):
        report[f"{name}_text"] = of_text(side)
        usable, missing = int((~side.vocabulary.special).sum()), report[f"{name}_text"]["without_vector"]
        if missing > _MANY_UNSEEN * usable and not (keep_source and name == "target"):
            notes.append(
                f"The {name} text shows {missing} of {usable} {name} tokens too seldom to compare them: is it of the language "
                f"of the {name} tokenizer, and enough of it?"
            )
    started = report["rounds"][0]["anchors"]
    if started < FEW_ANCHORS:
        notes.append(
            f"Only {started} pairs of tokens were there to start from; with so few, wechsel with good word vectors may do "
            "better."
        )
    return *sides, report, notes


def of_text(side: Side) -> dict[str, int]:
    """What a record says of a side's text: tokens in it, and how many of the vocabulary it shows not at all or too seldom."""
    ordinary = ~side.vocabulary.special
    return {
        "tokens": int(side.counts.sum()),
        "without_counts": int((ordinary & (side.counts == 0)).sum()),
        "without_vector": int((ordinary & ~side.has_vector).sum()),
    }


def _entries(candidates: Candidates) -> int:
    """How many of the dictionary's source words have a pair of tokens."""
    return len(np.unique(candidates.group[candidates.group >= 0]))
