"""Vectors of the tokens of two languages in one space, from text alone: contexts counted by tokens that both languages share.

Every token is described by how often each anchor stands before and after it. An anchor is a pair of tokens of the same meaning,
so that its column means the same in both languages, and one decomposition serves both: there is no rotation to learn.
"""

import dataclasses
import functools
from collections.abc import Callable

import numpy as np
from scipy.sparse import csr_array, vstack

from wechsel_jax import search
from wechsel_jax.errors import UserError
from wechsel_jax.initializers.anker.anchors import RULES, Anchors, Candidates, choose_anchors
from wechsel_jax.initializers.anker.contexts import context_counts, positive_pmi
from wechsel_jax.initializers.anker.decomposition import decompose
from wechsel_jax.records import work

# Rows and columns of what is decomposed: the most frequent tokens of each language, which the axes are fitted on and pairs are
# learned among, and the most frequent anchors.
_FREQUENT, _MOST_ANCHORS = 8192, 4096
# Tokens that occur less often have no vector and cannot be anchors: what stands around one or two places says little.
_LEAST_COUNT = 3
# The share of the dictionary's words, and the most of them, that P@1 is measured on.
_HELD_OUT, _MOST_HELD_OUT = 0.1, 500
# Tokens whose contexts are in memory at once while all are projected.
_PROJECTED_ROWS = 4096
# Over which CSLS takes the mean similarity of a word to the other language (Lample et al., 2018); as in `search.csls`, which
# brings JAX.
_NEIGHBORHOOD = 10


@dataclasses.dataclass(frozen=True)
class Counted:
    """What a text says about the tokens of one language.

    Attributes:
      tokens: int64 (V,), how often each occurs.
      after: (V, V) sparse, see `contexts.count_neighbors`.
      usable: bool (V,), tokens that may be an anchor or have a vector: special tokens may not.
    """

    tokens: np.ndarray
    after: csr_array
    usable: np.ndarray

    @functools.cached_property
    def before(self) -> csr_array:
        """(V, V) sparse: row i, column j says how often j stands before i."""
        return self.after.T.tocsr()

    @functools.cached_property
    def totals(self) -> tuple[np.ndarray, np.ndarray]:
        """(V,) twice: how often each token stands before any, and after any."""
        return self.after.sum(axis=1), self.after.sum(axis=0)

    def known(self) -> np.ndarray:
        """bool (V,): the token may be used and occurs often enough."""
        return self.usable & (self.tokens >= _LEAST_COUNT)

    def frequent(self) -> np.ndarray:
        """Ids of the most frequent tokens that are known, most frequent first."""
        order = np.argsort(-self.tokens, kind="stable")
        return order[self.known()[order]][:_FREQUENT]


@dataclasses.dataclass(frozen=True)
class Anchored:
    """Vectors of both languages' tokens in one space.

    Attributes:
      source: float32 (V_s, m), zeros where a token is too rare.
      target: float32 (V_t, m).
      anchors: those of the last round.
      report: "anchors" (how many by each rule), "candidates", "rounds" (anchors in each round, from 0: none learned yet),
        "precision_at_1", "precision_at_1_csls" and "held_out_words" (None and 0 where nothing was held out).
    """

    source: np.ndarray
    target: np.ndarray
    anchors: Anchors
    report: dict


def anchored_vectors(
    source: Counted,
    target: Counted,
    candidates: Candidates,
    *,
    dimensions: int = 128,
    rounds: int = 1,
    seed: int = 0,
    progress: Callable[[str], None] | None = None,
) -> Anchored:
    """Makes comparable vectors of all tokens of two vocabularies.

    The counts of the anchors' columns become positive pointwise mutual information, both languages' rows are stacked, and a
    truncated singular value decomposition of the frequent rows gives the axes on which all rows are projected. Then tokens
    that are each other's nearest by CSLS (Lample et al., 2018) become anchors too, and everything is done again (self-learning
    as in Artetxe et al., 2017, but of the columns instead of a rotation).

    Some words of the dictionary are held out until the last decomposition. P@1 is measured on the vectors before it, which have
    not seen these words, so it tends to underestimate the vectors returned. The pairs that were learned without these words
    stay, so another choice of them (`seed`) gives other vectors: with 16 MiB of English and of German novels, it
    moves the rows that the plan makes by 21 % of their length (median).

    Everything stays sparse. Memory holds the counts twice, and the contexts of 2 x 8,192 tokens a few times, 8 bytes per
    entry (4 million entries for 16 MiB of text per language and 8,192 tokens).

    Args:
      source: V_s tokens counted.
      target: V_t tokens counted.
      candidates: pairs that may be anchors from the start.
      dimensions: m, of the vectors.
      rounds: of self-learning: how often mutual nearest neighbors become anchors.
      seed: of the choice of the held-out words.
      progress: called with a line for every round.

    Returns:
      The vectors; the same for the same counts and settings on the same kind of processor.

    Raises:
      UserError: no candidate occurs in both texts.
    """
    say = progress or (lambda line: None)
    report = {"candidates": len(candidates.source), "held_out_words": 0, "precision_at_1": None, "precision_at_1_csls": None}
    given = _chosen(source, target, candidates)
    if not len(given):
        raise UserError(
            f"none of the {len(candidates.source)} pairs of tokens that a dictionary or equal spelling suggests occurs in both "
            "texts; expected some tokens to start from; give a dictionary, or more text"
        )
    tested, first = _held_out(source, target, candidates, seed)
    if tested is None:
        first = given
    anchors, told = first, []
    # P@1 takes a decomposition that has not seen all of the dictionary, even where nothing is learned from it.
    for number in range(rounds or int(tested is not None)):
        fitted = _fit(source, target, anchors, dimensions)
        if rounds:
            told.append(_told(number, anchors, say))
            anchors = first.joined(_mutual(fitted)).take(slice(_MOST_ANCHORS))
    if tested is not None:
        report |= _measure(fitted, tested)
        say(f"  P@1 of {report['held_out_words']} held-out words: {report['precision_at_1']:.3f}")
    learned = anchors.take(anchors.rule == RULES.index("learned"))
    anchors = given.joined(learned).take(slice(_MOST_ANCHORS))
    fitted = _fit(source, target, anchors, dimensions)
    told.append(_told(rounds, anchors, say))
    vectors = [
        _project(*side, fitted.axes, known)
        for side, known in zip(_sides(source, target, anchors), zip(fitted.ids, fitted.vectors, strict=True), strict=True)
    ]
    return Anchored(*vectors, anchors, report | {"anchors": anchors.counts(), "rounds": told})


@dataclasses.dataclass(frozen=True)
class _Fitted:
    """The axes (2 A, m) of a decomposition, and the frequent tokens' ids and vectors on them."""

    axes: np.ndarray
    ids: tuple[np.ndarray, np.ndarray]
    vectors: tuple[np.ndarray, np.ndarray]

    @functools.cached_property
    def by_cosine(self) -> tuple[tuple[np.ndarray, np.ndarray], ...]:
        """For the tokens of either language, the cosines and places of their nearest ones of the other."""
        pairs = (self.vectors, self.vectors[::-1])
        return tuple(search.nearest_neighbors(*pair, min(_NEIGHBORHOOD, len(pair[1]))) for pair in pairs)

    @functools.cached_property
    def by_csls(self) -> tuple[tuple[np.ndarray, np.ndarray], ...]:
        """For the tokens of either language, by CSLS: the place of the nearest of the other (-1 for a token without a vector),
        and by how much that one beats the second."""
        crowding = [cosines.mean(axis=1, dtype=np.float64).astype(np.float32) for cosines, _ in self.by_cosine]
        found = []
        for here, there in ((0, 1), (1, 0)):
            queries, keys = self.vectors[here], self.vectors[there]
            usable = np.flatnonzero(queries.any(axis=1))
            others = int(keys.any(axis=1).sum())
            if not (len(usable) and others):
                raise UserError(
                    "in one of the two texts no frequent token stands beside those that both languages have; expected text of "
                    "both languages; give more of it, or of the right language"
                )
            scores, ids = search.csls_neighbors(queries[usable], keys, min(2, others), key_mean=crowding[there])
            nearest, gap = np.full(len(queries), -1), np.zeros(len(queries))
            nearest[usable], gap[usable] = ids[:, 0], scores[:, 0] - scores[:, -1]
            found.append((nearest, gap))
        return tuple(found)


def _chosen(source: Counted, target: Counted, candidates: Candidates) -> Anchors:
    counts = (np.where(side.usable, side.tokens, 0) for side in (source, target))
    return choose_anchors(candidates, *counts, least_count=_LEAST_COUNT, most=_MOST_ANCHORS)


def _told(number: int, anchors: Anchors, say: Callable[[str], None]) -> dict:
    learned = anchors.counts()["learned"]
    say(f"  round {number}: {len(anchors)} anchors, {learned} of them learned")
    return {"round": number, "anchors": len(anchors), "learned": learned}


def _sides(source: Counted, target: Counted, anchors: Anchors) -> list[tuple[Counted, np.ndarray]]:
    return [(source, anchors.source), (target, anchors.target)]


def _fit(source: Counted, target: Counted, anchors: Anchors, dimensions: int) -> _Fitted:
    sides = _sides(source, target, anchors)
    ids = tuple(side.frequent() for side, _ in sides)
    rows = vstack([_contexts(side, columns, wanted) for (side, columns), wanted in zip(sides, ids, strict=True)], format="csr")
    axes, values = decompose(rows, dimensions)
    # Vectors are the left singular vectors times the square roots of the singular values.
    axes /= np.sqrt(np.maximum(values, 1e-6))
    work.product(rows.nnz, axes.shape[1])
    vectors = rows @ axes
    return _Fitted(axes, ids, (vectors[: len(ids[0])], vectors[len(ids[0]) :]))


def _contexts(side: Counted, columns: np.ndarray, rows: np.ndarray) -> csr_array:
    """Positive PMI (R, 2 A) of some rows; the contexts' totals are those of the whole text."""
    totals = np.concatenate([total[columns] for total in side.totals])
    return positive_pmi(context_counts(side.before, side.after, rows, columns), totals)


def _project(side: Counted, columns: np.ndarray, axes: np.ndarray, fitted: tuple[np.ndarray, np.ndarray]) -> np.ndarray:
    """Vectors (V, m) of all tokens of one language: those (ids, vectors) that the axes were fitted on, and the rest's."""
    vectors = np.zeros((len(side.tokens), axes.shape[1]), np.float32)
    vectors[fitted[0]] = fitted[1]
    wanted = np.setdiff1d(np.flatnonzero(side.known()), fitted[0])
    for start in range(0, len(wanted), _PROJECTED_ROWS):
        rows = wanted[start : start + _PROJECTED_ROWS]
        contexts = _contexts(side, columns, rows)
        work.product(contexts.nnz, axes.shape[1])
        vectors[rows] = contexts @ axes
    return vectors


def _mutual(fitted: _Fitted) -> Anchors:
    """Pairs of frequent tokens that choose each other by CSLS, those first that beat the second best by most."""
    (forth, gap), (back, other_gap) = fitted.by_csls
    places = np.flatnonzero(forth >= 0)
    places = places[back[forth[places]] == places]
    width = np.minimum(gap[places], other_gap[forth[places]])
    chosen = places[np.argsort(-width, kind="stable")]
    pair = fitted.ids[0][chosen].astype(np.int32), fitted.ids[1][forth[chosen]].astype(np.int32)
    return Anchors(*pair, np.full(len(chosen), RULES.index("learned"), np.int8))


def _held_out(
    source: Counted, target: Counted, candidates: Candidates, seed: int
) -> tuple[Candidates, Anchors] | tuple[None, None]:
    """All pairs of a random share of the dictionary's words of which both tokens are frequent, and the anchors without them.

    None where there is no such word, or nothing left without them.
    """
    frequent = [np.isin(ids, side.frequent()) for ids, side in ((candidates.source, source), (candidates.target, target))]
    usable = (candidates.group >= 0) & frequent[0] & frequent[1]
    groups = np.unique(candidates.group[usable])
    wanted = min(round(_HELD_OUT * len(groups)), _MOST_HELD_OUT)
    chosen = np.random.default_rng(seed).permutation(groups)[:wanted]
    tested = candidates.take(usable & np.isin(candidates.group, chosen))
    rest = candidates.take(~np.isin(candidates.source, tested.source) & ~np.isin(candidates.target, tested.target))
    anchors = _chosen(source, target, rest)
    return (tested, anchors) if wanted and len(anchors) else (None, None)


def _measure(fitted: _Fitted, tested: Candidates) -> dict:
    """Looks the held-out source tokens up among the frequent target tokens, by cosine and by CSLS."""
    place = {int(token): i for i, token in enumerate(fitted.ids[0])}
    questions = np.unique(tested.source)
    answers = set(zip(tested.source.tolist(), tested.target.tolist(), strict=True))
    places = [place[int(token)] for token in questions]
    report = {"held_out_words": len(questions)}
    nearest = {"precision_at_1": fitted.by_cosine[0][1][:, 0], "precision_at_1_csls": fitted.by_csls[0][0]}
    for name, found in nearest.items():
        answered = np.where(found[places] >= 0, fitted.ids[1][found[places]], -1)
        report[name] = float(np.mean([pair in answers for pair in zip(questions.tolist(), answered.tolist(), strict=True)]))
    return report
