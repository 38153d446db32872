"""Two languages' word vectors in one space: an orthogonal map fitted on a dictionary (Procrustes)."""

import string
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np

from wechsel_jax.errors import UserError
from wechsel_jax.records import work
from wechsel_jax.search.csls import csls_neighbors, neighborhood_mean
from wechsel_jax.search.neighbors import nearest_neighbors
from wechsel_jax.search.threads import one_thread
from wechsel_jax.vectors.refinement import Refined, Refinement, refine_rotation
from wechsel_jax.vectors.word_vectors import WordVectors

WEIGHTINGS = ("unique", "wechsel", "legacy")
# MUSE's "0-5k is seen often" argument: the mean, the principal axes and the candidates of P@1 come from frequent words.
FREQUENT_WORDS = 50_000
_TEST_WORDS = 1500
_BLOCK = 8192


@dataclass(frozen=True)
class SideMap:
    """What carries one language's vectors into the shared space: x -> (unit(x) - mean) @ matrix.

    Attributes:
      matrix: (m_in, m) float32, or None for the identity.
      mean: (m_in,) float32 that is taken off, or None.
      normalize: whether rows are scaled to length 1 before anything else.
    """

    matrix: np.ndarray | None = None
    mean: np.ndarray | None = None
    normalize: bool = False

    @one_thread()
    def __call__(self, vectors: np.ndarray) -> np.ndarray:
        """Maps (n, m_in) to (n, m) float32; rows of zeros (nothing known) stay rows of zeros."""
        vectors = np.asarray(vectors, np.float32)
        known = vectors.any(axis=1, keepdims=True)
        if self.normalize:
            vectors = vectors / np.where(known, np.linalg.norm(vectors, axis=1, keepdims=True), 1)
        if self.mean is not None:
            vectors = np.where(known, vectors - self.mean, 0)
        if self.matrix is None:
            return vectors
        work.product(len(vectors), *self.matrix.shape)
        return vectors @ self.matrix


@dataclass(frozen=True)
class Alignment:
    """Maps of both languages into one space of m dimensions, m the smaller of the two.

    Attributes:
      source: map of the source language: unit length and mean as chosen, principal axes where m_s > m_t, then the rotation.
      target: map of the target language: unit length and mean as chosen, principal axes where m_t > m_s; no rotation.
      report: "pairs" (distinct pairs of spellings with vectors on both sides), "pairs_given" (entries of the dictionary),
        "pairs_found" (entries of which at least one spelling is among "pairs"), "weighting", "normalize", "center",
        "held_out_words", "precision_at_1" (None without held-out words) and "residual" (||A R - B|| / ||B||, Frobenius norms
        over the weighted pairs, of the map as it is, refined or not; 0 is perfect). With `csls` also "precision_at_1_csls";
        with `refine` also "refine" (rounds), "refined_round" (the one whose rotation was kept) and "refinement" (pairs and
        criterion of each round). What `adversarial_align` adds is said there.
    """

    source: SideMap
    target: SideMap
    report: dict = field(default_factory=dict)

    @property
    def source_map(self) -> np.ndarray | None:
        """(m_s, m) float32: the linear part of `map_source`."""
        return self.source.matrix

    @property
    def target_map(self) -> np.ndarray | None:
        """(m_t, m) float32: the linear part of `map_target`; None for the identity."""
        return self.target.matrix

    def map_source(self, matrix: np.ndarray) -> np.ndarray:
        """Maps source vectors (n, m_s), of words or of subwords, to (n, m) float32; zero rows stay zero."""
        return self.source(matrix)

    def map_target(self, matrix: np.ndarray) -> np.ndarray:
        """Maps target vectors (n, m_t), of words or of subwords, to (n, m) float32; zero rows stay zero."""
        return self.target(matrix)


# Names and loans have vectors either way; of the demonstration's English and German pairs 34 times as many the right way.
_SWAPPED = 4


@dataclass(frozen=True)
class Pairs:
    """n distinct pairs of word ids, each with a weight and the group (source word) that it is held out with."""

    source: np.ndarray
    target: np.ndarray
    weight: np.ndarray
    group: np.ndarray

    def take(self, where: np.ndarray) -> "Pairs":
        return Pairs(self.source[where], self.target[where], self.weight[where], self.group[where])


@one_thread()
def align(
    source: WordVectors,
    target: WordVectors,
    pairs: Iterable[tuple[str, str]] | str,
    *,
    weighting: str = "unique",
    normalize: bool = False,
    center: bool = False,
    held_out: float = 0.1,
    seed: int = 0,
    refine: int | Refinement = 0,
    csls: bool = False,
) -> Alignment:
    """Fits the orthogonal map from source to target vectors on word pairs (Minixhofer et al., 2022, section 3.1).

    Each dictionary pair stands for its spellings as given, in lower case and in title case on both sides; those that both
    languages have vectors for make the rows of A and B, and R = argmin ||A R - B|| = U V^T from the singular value
    decomposition A^T W B = U S V^T (Schönemann, 1966). Where the dimensions differ, the larger side is first projected on its
    principal axes.

    P@1 is measured apart: a rotation fitted without the held-out source words (in all their spellings) looks up each of them
    among the 50,000 most frequent target words by cosine; it is right where one of the dictionary's translations comes first.
    The map returned is fitted on all pairs. Refinement follows either fit, and sees no dictionary.

    Args:
      source: vectors of the source language, (W_s, m_s).
      target: vectors of the target language, (W_t, m_t).
      pairs: (source word, target word) pairs, or "identical": all words that both languages spell the same.
      weighting: how often a pair of spellings counts. "unique": once. "wechsel": as often as the wechsel package 0.0.4 repeats
        it (4 / 2 / 2 / 1 times for a lower-case entry, and again for each repeated entry). "legacy": as the paper's scripts
        did, lower and title case once for each entry.
      normalize: scale every vector to length 1 first.
      center: take the mean of the (at most 50,000) most frequent words off, after `normalize`.
      held_out: share of the source words that P@1 is measured on, at most 1,500 words; 0 measures nothing.
      seed: chooses the held-out words.
      refine: rounds of refinement on translations that the vectors propose (Lample et al., 2018, section 2.2), or all its
        settings. It helps where the dictionary is small or noisy, such as "identical".
      csls: measure P@1 by CSLS as well; it takes two more searches over the 50,000 most frequent words.

    Returns:
      The maps. They hold the choice of `normalize` and `center`, so that subword vectors go the same way as the words did.

    Raises:
      UserError: no pair has vectors on both sides, many more have them the other way round, or a setting is unknown.

    >>> from wechsel_jax import demo, load_vectors, read_dictionary
    >>> words = [load_vectors(demo.path(f"{language}.vectors.npz")) for language in ("english", "german")]
    >>> aligned = align(*words, read_dictionary(demo.path("english-german.tsv.xz")))
    >>> aligned.report["pairs"], round(aligned.report["precision_at_1"], 2)
    (4899, 0.3)
    """
    if weighting not in WEIGHTINGS:
        raise UserError(f"weighting {weighting!r}; expected one of {', '.join(WEIGHTINGS)}")
    if not 0 <= held_out < 1:
        raise UserError(f"held_out is {held_out}; expected 0 or more, and less than 1")
    identical = isinstance(pairs, str)
    if identical and pairs != "identical":
        raise UserError(f"pairs {pairs!r}; expected word pairs or 'identical'")
    given = _identical_words(source, target) if identical else list(pairs)
    found, entries = find_pairs(source, target, given, None if identical else weighting)
    turned = 0 if identical else len(find_pairs(source, target, [pair[::-1] for pair in given], "unique")[0].source)
    if len(found.source) == 0 or turned > _SWAPPED * len(found.source):
        pairs = f"the {len(given)} word pairs"
        some = f"only {len(found.source)} spellings of {pairs} have" if len(found.source) else f"none of {pairs} has"
        advice = f"; {turned} have them the other way round: exchange the columns, or the vectors" if turned else ""
        raise UserError(f"{some} vectors on both sides; expected source-to-target pairs of these languages{advice}")

    size = min(source.dim, target.dim)
    source_side = prepare_side(source, size, normalize, center)
    target_side = prepare_side(target, size, normalize, center)
    moments = _moments(source, target, source_side, target_side, found)
    fit = _rotation(moments)
    improve = _refiner(source, target, source_side, target_side, refine)
    tested, rest = _split(found, min(len(target.words), FREQUENT_WORDS), held_out, seed)
    precision = {"held_out_words": 0, "precision_at_1": None, **({"precision_at_1_csls": None} if csls else {})}
    if tested is not None:
        rotation = _rotation(_moments(source, target, source_side, target_side, rest))
        precision = measure(source, target, rotated(source_side, improve(rotation).rotation), target_side, tested, csls)
    refined = improve(fit)
    report = {
        "pairs": len(found.source),
        "pairs_given": len(given),
        "pairs_found": entries,
        "weighting": "identical" if identical else weighting,
        "normalize": normalize,
        "center": center,
        **precision,
        "residual": _residual(moments, refined.rotation),
    }
    if refined.history:
        report |= {"refine": len(refined.history) - 1, "refined_round": refined.round, "refinement": refined.history}
    return Alignment(rotated(source_side, refined.rotation), target_side, report)


def _refiner(source, target, source_side: SideMap, target_side: SideMap, refine: int | Refinement) -> Callable[..., Refined]:
    settings = refine if isinstance(refine, Refinement) else Refinement(rounds=refine)
    if settings.rounds == 0:
        return lambda rotation: Refined(rotation, float("nan"), 0, [])
    rows = [
        side(vectors.rows(frequent_ids(vectors, settings.max_rank)))
        for vectors, side in ((source, source_side), (target, target_side))
    ]
    return lambda rotation: refine_rotation(*rows, rotation, settings)


def frequent_ids(vectors: WordVectors, most: int, by_count: bool = True) -> np.ndarray:
    """Ids of the `most` most frequent words (0: of all), most frequent first; in the order of `words` where that is unknown."""
    words = len(vectors.words)
    ids = np.argsort(-vectors.counts, kind="stable") if by_count and vectors.counts is not None else np.arange(words)
    return ids[: most or words]


def _identical_words(source: WordVectors, target: WordVectors) -> list[tuple[str, str]]:
    common = set(target.words)
    return [(word, word) for word in source.words if word in common]


def _spellings(word: str, weighting: str | None) -> tuple[str, ...]:
    if weighting is None:
        return (word,)
    if weighting == "legacy":
        return (word.lower(), word.lower().title())
    # `str.title`, which the wechsel package takes, makes "don't" "Don'T".
    return (word, word.lower(), word.title() if weighting == "wechsel" else string.capwords(word))


def find_pairs(source, target, given: Sequence[tuple[str, str]], weighting: str | None) -> tuple[Pairs, int]:
    """Returns the distinct pairs of known spellings, each weighted as asked for, and how many entries have one."""
    source_words = [_spellings(word, weighting) for word, _ in given]
    target_words = [_spellings(word, weighting) for _, word in given]
    variants = len(source_words[0]) if given else 1
    source_ids = source.ids([word for spelled in source_words for word in spelled]).reshape(-1, variants)
    target_ids = target.ids([word for spelled in target_words for word in spelled]).reshape(-1, variants)
    # Spellings differ in case only, so the lower-case word names all that must be held out together.
    groups: dict[str, int] = {}
    group = np.array([groups.setdefault(word.lower(), len(groups)) for word, _ in given], np.int64)

    shape = (len(given), variants, variants)
    ids = np.stack([np.broadcast_to(source_ids[:, :, None], shape), np.broadcast_to(target_ids[:, None, :], shape)])
    known = (ids >= 0).all(axis=0)
    distinct, first, counts = np.unique(ids[:, known], axis=1, return_index=True, return_counts=True)
    weight = counts.astype(np.float64) if weighting in ("wechsel", "legacy") else np.ones(len(counts))
    group = np.broadcast_to(group[:, None, None], shape)[known][first]
    return Pairs(distinct[0], distinct[1], weight, group), int(known.any(axis=(1, 2)).sum())


def prepare_side(vectors: WordVectors, size: int, normalize: bool, center: bool) -> SideMap:
    """Returns the map before the rotation: unit length, mean, and the `size` principal axes where there are more dimensions."""
    side = SideMap(None, None, normalize)
    if not center and vectors.dim == size:
        return side
    words = len(vectors.words)
    frequent = side(vectors.rows(np.arange(min(words, FREQUENT_WORDS)))).astype(np.float64)
    mean = frequent.mean(axis=0)
    axes = None
    if vectors.dim > size:
        _, basis = np.linalg.eigh(np.cov(frequent, rowvar=False))
        # Eigenvalues come in ascending order: the last axes carry the most variance.
        axes = np.ascontiguousarray(basis[:, ::-1][:, :size], np.float32)
    return SideMap(axes, mean.astype(np.float32) if center else None, normalize)


def rotated(side: SideMap, rotation: np.ndarray) -> SideMap:
    matrix = rotation if side.matrix is None else side.matrix.astype(np.float64) @ rotation
    return SideMap(matrix.astype(np.float32), side.mean, side.normalize)


def _moments(source, target, source_side, target_side, pairs: Pairs) -> tuple[np.ndarray, float, float]:
    """Returns A^T W B (m, m), ||A||^2 and ||B||^2 in float64, from sums over blocks: A and B are never held whole."""
    size = min(source.dim, target.dim)
    product, source_square, target_square = np.zeros((size, size)), 0.0, 0.0
    for first in range(0, len(pairs.source), _BLOCK):
        block = pairs.take(np.s_[first : first + _BLOCK])
        a = source_side(source.rows(block.source)).astype(np.float64)
        b = target_side(target.rows(block.target)).astype(np.float64)
        work.product(len(a), size, size)
        product += a.T @ (b * block.weight[:, None])
        source_square += float(block.weight @ np.square(a).sum(axis=1))
        target_square += float(block.weight @ np.square(b).sum(axis=1))
    if target_square == 0 or source_square == 0:
        raise UserError("all word pairs have vectors of zeros; train the vectors again")
    return product, source_square, target_square


def _rotation(moments: tuple[np.ndarray, float, float]) -> np.ndarray:
    work.svd(*moments[0].shape)
    u, _, vt = np.linalg.svd(moments[0])
    return u @ vt


def _residual(moments: tuple[np.ndarray, float, float], rotation: np.ndarray) -> float:
    """||A R - B|| / ||B||, by ||A R - B||^2 = ||A||^2 + ||B||^2 - 2 tr(R^T A^T B) of an orthogonal R."""
    product, source_square, target_square = moments
    square = max(0.0, source_square + target_square - 2 * float(np.sum(rotation * product)))
    return float(np.sqrt(square / target_square))


def _split(pairs: Pairs, candidates: int, held_out: float, seed: int) -> tuple[Pairs, Pairs] | tuple[None, None]:
    """Returns the pairs of the held-out source words and those that a fit may see; None where either would be empty."""
    tested = choose_words(pairs, candidates, held_out, seed)
    if tested is None or len(np.unique(tested.group)) >= len(np.unique(pairs.group)):
        return None, None
    # A spelling may belong to two entries of which one is held out ("Polish", "polish" share a group; two words may share a
    # title case): whatever touches a held-out word's vector stays out of the fit.
    rest = pairs.take(~np.isin(pairs.group, tested.group) & ~np.isin(pairs.source, tested.source))
    return (tested, rest) if len(rest.source) else (None, None)


def choose_words(pairs: Pairs, candidates: int, share: float, seed: int) -> Pairs | None:
    """Returns all pairs of a random `share` (at most 1,500) of the source words whose translation can be found."""
    groups = np.unique(pairs.group[pairs.target < candidates])
    wanted = min(round(share * len(groups)), _TEST_WORDS)
    if wanted == 0:
        return None
    return pairs.take(np.isin(pairs.group, np.random.default_rng(seed).permutation(groups)[:wanted]))


def measure(source, target, source_side: SideMap, target_side: SideMap, tested: Pairs, csls: bool) -> dict:
    """Looks each word of `tested` up: "held_out_words", "precision_at_1" and, with `csls`, "precision_at_1_csls"."""
    # One question a word: its most frequent spelling.
    tested = tested.take(np.lexsort((tested.source, tested.group)))
    _, first = np.unique(tested.group, return_index=True)
    question, group = tested.source[first], tested.group[first]
    answers = set(zip(tested.group.tolist(), tested.target.tolist(), strict=True))

    def precision(nearest: np.ndarray) -> float:
        return sum(answer in answers for answer in zip(group.tolist(), nearest.tolist(), strict=True)) / len(question)

    queries = source_side(source.rows(question))
    keys = target_side(target.rows(np.arange(min(len(target.words), FREQUENT_WORDS))))
    found = {"held_out_words": len(question), "precision_at_1": precision(nearest_neighbors(queries, keys, 1)[1][:, 0])}
    if csls:
        space = source_side(source.rows(np.arange(min(len(source.words), FREQUENT_WORDS))))
        _, nearest = csls_neighbors(queries, keys, key_mean=neighborhood_mean(keys, space))
        found["precision_at_1_csls"] = precision(nearest[:, 0])
    return found
