"""A first map between two languages without a dictionary: words whose similarities to their own language are alike.

Artetxe, Labaka and Agirre (2018), "A robust self-learning method for fully unsupervised cross-lingual mappings of word
embeddings", sections 3.2 and 3.3. It takes a minute where adversarial training takes hours, and finds a map between vectors
that were made by different algorithms, where adversarial training often finds none.
"""

from collections.abc import Callable

import numpy as np

from wechsel_jax.records import work
from wechsel_jax.search.csls import NEIGHBORHOOD
from wechsel_jax.search.threads import one_thread
from wechsel_jax.vectors.refinement import procrustes

# The gain that counts as one, and the rounds after which it ends in any case.
_GAIN, _ROUNDS = 1e-6, 1000


@one_thread()
def similarity_map(
    source: np.ndarray,
    target: np.ndarray,
    generator: np.random.Generator,
    *,
    words: int = 4000,
    keep: float = 0.1,
    patience: int = 10,
    progress: Callable[[str], None] | None = None,
) -> np.ndarray:
    """Finds a rotation from source to target vectors without a dictionary.

    A word's similarities to all words of its language, sorted, hardly depend on the language: words whose sorted lists are
    nearest are the first pairs. From there the rotation fitted on the pairs proposes the next pairs by CSLS, in both
    directions. At first a pair is possible only if a coin says so, newly thrown for each pair in each round: that leads out of
    the poor optima which the first pairs lie next to. The share `keep` of possible pairs doubles each time that the mean
    cosine of the nearest words has not grown for `patience` rounds; the search ends when it has not grown with all of them.

    Args:
      source: (n, m) vectors of the source words, most frequent first, none of zeros; in any position and of any length.
      target: (c, m) likewise.
      generator: throws the coins.
      words: only so many most frequent words of either language take part; the paper has 4,000 for the first pairs and 20,000
        afterwards.
      keep: share of pairs that are possible at first.
      patience: rounds without a gain; the paper has 50.
      progress: called with a line each time that `keep` changes.

    Returns:
      The orthogonal R (m, m) float64: source @ R is compared with target.
    """
    x, z = (_directions(side[:words]) for side in (source, target))
    size = min(len(x), len(z))
    work.product(size, size, size)
    pairs, _ = _choose(_profiles(x[:size]) @ _profiles(z[:size]).T, 1.0, generator)
    best, gained = -np.inf, 0
    for number in range(1, _ROUNDS + 1):
        rotation = procrustes(x[pairs[0]], z[pairs[1]])
        work.product(*x.shape, len(rotation) + len(z))
        pairs, cosine = _choose((x @ rotation).astype(np.float32) @ z.T, keep, generator)
        if cosine > best + _GAIN:
            best, gained = cosine, number
        elif number - gained >= patience:
            if progress is not None:
                progress(f"self-learning, round {number}: {keep:.0%} of the pairs possible, mean cosine {cosine:.4f}")
            if keep >= 1:
                break
            keep, gained = min(1.0, 2 * keep), number
    return rotation


def _directions(vectors: np.ndarray) -> np.ndarray:
    """Rows of length 1 about a mean of zero, almost: float32."""
    vectors = _unit(np.asarray(vectors, np.float64))
    return _unit(vectors - vectors.mean(axis=0)).astype(np.float32)


def _unit(vectors: np.ndarray) -> np.ndarray:
    return vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-30)


def _profiles(vectors: np.ndarray) -> np.ndarray:
    """Each word's similarities (n, n), sorted; of their matrix's square root, which the paper has found to work better."""
    work.svd(*vectors.shape)
    work.product(*vectors.shape, len(vectors))
    left, values, _ = np.linalg.svd(vectors, full_matrices=False)
    similarities = (left * values) @ left.T
    similarities.sort(axis=1)
    return _directions(similarities)


def _choose(cosines: np.ndarray, keep: float, generator: np.random.Generator) -> tuple[tuple[np.ndarray, np.ndarray], float]:
    """Returns the pairs that either side chooses by CSLS among those that chance leaves, and the mean cosine of all nearest."""
    chosen, nearest = [], 0.0
    for side in (cosines, cosines.T):
        nearest += float(side.max(axis=1).mean(dtype=np.float64)) / 2
        scores = side - _nearest_mean(np.ascontiguousarray(side.T)) / 2
        if keep < 1:
            scores[generator.random(scores.shape, np.float32) >= keep] = -np.inf
        chosen.append(scores.argmax(axis=1))
    rows, columns = (np.arange(size) for size in cosines.shape)
    return (np.concatenate([rows, chosen[1]]), np.concatenate([chosen[0], columns])), nearest


def _nearest_mean(cosines: np.ndarray) -> np.ndarray:
    """Mean of each row's largest values: r of CSLS."""
    count = min(NEIGHBORHOOD, cosines.shape[1])
    return np.partition(cosines, cosines.shape[1] - count, axis=1)[:, -count:].mean(axis=1)
