"""Refinement: the rotation proposes translations, they make a better rotation, and so on (Lample et al., 2018, section 2.2)."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from wechsel_jax.errors import UserError
from wechsel_jax.records import work
from wechsel_jax.search.csls import NEIGHBORHOOD, csls_neighbors, neighborhood_mean
from wechsel_jax.search.threads import one_thread

DIRECTIONS = ("mutual", "source", "target")


@dataclass(frozen=True)
class Refinement:
    """How translations are proposed; the values are MUSE's, but for `direction` (MUSE's code asks the source side only).

    Attributes:
      rounds: how often translations are proposed and the rotation is fitted on them.
      max_rank: only words among this many most frequent ones propose or are proposed.
      criterion_words: the criterion is the mean cosine of the proposals among this many most frequent words.
      neighborhood: k of CSLS.
      direction: "mutual": pairs that choose each other; "source": what each source word chooses; "target": the reverse.
    """

    rounds: int = 5
    max_rank: int = 15_000
    criterion_words: int = 10_000
    neighborhood: int = NEIGHBORHOOD
    direction: str = "mutual"

    def __post_init__(self):
        if not 0 <= self.rounds <= 1000:
            raise UserError(f"refine is {self.rounds}; expected 0 to 1000 rounds")
        if min(self.max_rank, self.criterion_words, self.neighborhood) < 1:
            raise UserError(f"{self}; expected positive numbers")
        if self.direction not in DIRECTIONS:
            raise UserError(f"direction {self.direction!r}; expected one of {', '.join(DIRECTIONS)}")


@dataclass(frozen=True)
class Refined:
    """The best rotation of a refinement.

    Attributes:
      rotation: (m, m) float64, orthogonal where the first one was.
      criterion: mean cosine of its proposals among the most frequent words.
      round: which round made it; 0 is the rotation that the refinement began with.
      history: for every round, from 0: "round", "pairs" (proposals the rotation was fitted on, None in round 0), "criterion".
    """

    rotation: np.ndarray
    criterion: float
    round: int
    history: list[dict]


def procrustes(source: np.ndarray, target: np.ndarray) -> np.ndarray:
    """The orthogonal R (m, m) float64 that minimises ||A R - B|| for A, B (n, m) (Schönemann, 1966)."""
    size = len(np.asarray(source).T)
    work.product(len(source), size, size)
    work.svd(size, size)
    u, _, vt = np.linalg.svd(np.asarray(source, np.float64).T @ np.asarray(target, np.float64))
    return u @ vt


def propose(source: np.ndarray, target: np.ndarray, settings: Refinement) -> tuple[np.ndarray, np.ndarray, float]:
    """Proposes translations of words in one space by CSLS.

    Args:
      source: (n, m) the mapped vectors of the source words that take part, most frequent first, none of zeros.
      target: (c, m) likewise.
      settings: which proposals count.

    Returns:
      ids of the source words (p,) and of the target words (p,), and the criterion: the mean cosine of what the
      `criterion_words` most frequent source words choose among as many target words' first; a choice beyond them is left out.
    """
    target_mean = neighborhood_mean(target, source, neighborhood=settings.neighborhood)
    _, forward = csls_neighbors(source, target, key_mean=target_mean)
    forward = forward[:, 0]
    frequent = np.flatnonzero(forward[: settings.criterion_words] < settings.criterion_words)
    criterion = float(_cosine(source[frequent], target[forward[frequent]]).mean()) if len(frequent) else -1.0
    ids = np.arange(len(source))
    if settings.direction == "source":
        return ids, forward, criterion
    source_mean = neighborhood_mean(source, target, neighborhood=settings.neighborhood)
    _, backward = csls_neighbors(target, source, key_mean=source_mean)
    backward = backward[:, 0]
    if settings.direction == "target":
        return backward, np.arange(len(target)), criterion
    mutual = np.flatnonzero(backward[forward] == ids)
    return mutual, forward[mutual], criterion


@one_thread()
def refine_rotation(
    source: np.ndarray,
    target: np.ndarray,
    rotation: np.ndarray,
    settings: Refinement,
    *,
    progress: Callable[[dict], None] | None = None,
) -> Refined:
    """Improves a rotation without a dictionary: CSLS translations, Procrustes on them, and again.

    The proposals are made between directions; the rotation is fitted on the vectors as they are. Kept is the round with the
    highest criterion, the unsupervised measure by which Lample et al. (2018, section 3.2) choose between models.

    Args:
      source: (n, m) vectors of the source words, most frequent first; those after `max_rank` and rows of zeros are ignored.
      target: (c, m) likewise.
      rotation: (m, m) to begin with: source @ rotation is compared with target.
      settings: rounds and proposals.
      progress: called with each entry of the history as it is made.

    Returns:
      The best rotation met, which may be the first.

    Raises:
      UserError: one side has no vectors.
    """
    source, target = (known_rows(side[: settings.max_rank]) for side in (source, target))
    if not len(source) or not len(target):
        raise UserError("one language has vectors of zeros only; expected word vectors of both; train the vectors again")
    best, history, fitted = None, [], None
    for number in range(settings.rounds + 1):
        work.product(*source.shape, len(rotation))
        mapped = (source @ rotation).astype(np.float32)
        left, right, criterion = propose(mapped, target, settings)
        history.append({"round": number, "pairs": fitted, "criterion": criterion})
        if progress is not None:
            progress(history[-1])
        if best is None or criterion > best[1]:
            best = rotation, criterion, number
        if number < settings.rounds and len(left):
            rotation, fitted = procrustes(source[left], target[right]), len(left)
    return Refined(np.asarray(best[0], np.float64), best[1], best[2], history)


def known_rows(vectors: np.ndarray) -> np.ndarray:
    """Rows that are not all zeros, float32."""
    vectors = np.asarray(vectors, np.float32)
    return vectors[vectors.any(axis=1)]


def _cosine(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    a, b = np.asarray(a, np.float64), np.asarray(b, np.float64)
    return (a * b).sum(axis=1) / np.maximum(np.linalg.norm(a, axis=1) * np.linalg.norm(b, axis=1), 1e-30)
