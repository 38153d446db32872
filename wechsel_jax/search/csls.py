"""Cross-domain similarity local scaling: cosine less how crowded both words' surroundings are (Lample et al., 2018)."""

import numpy as np

from wechsel_jax.search.columns import with_columns
from wechsel_jax.search.neighbors import nearest_neighbors

# k of r, as in the paper.
NEIGHBORHOOD = 10


def neighborhood_mean(vectors: np.ndarray, others: np.ndarray, *, neighborhood: int = NEIGHBORHOOD) -> np.ndarray:
    """Mean cosine of each vector to its nearest vectors of the other language: r in Lample et al. (2018), section 2.3.

    Args:
      vectors: (n, m).
      others: (c, m), the other language's words in the same space; with fewer than `neighborhood` of them all count.
      neighborhood: how many nearest vectors the mean is taken over; the paper uses 10.

    Returns:
      (n,) float32; 0 for a row of zeros.
    """
    similarity, _ = nearest_neighbors(vectors, others, min(neighborhood, len(others)))
    return similarity.mean(axis=1, dtype=np.float64).astype(np.float32)


def csls_neighbors(
    queries: np.ndarray,
    keys: np.ndarray,
    k: int = 1,
    *,
    key_mean: np.ndarray,
    query_mean: np.ndarray | None = None,
) -> tuple[np.ndarray, np.ndarray]:
    """Finds the k keys of highest CSLS(x, y) = 2 cos(x, y) - r(x) - r(y), exactly and never holding an (n, c) matrix.

    For one x the order of the keys is that of the inner products of (x, 1) and (y, -r(y) / 2), x and y of length 1. One more
    coordinate gives every key the same length (Bachrach et al., 2014), so that the exact cosine search finds them, with the
    same result whatever its block sizes and devices.

    Args:
      queries: (n, m).
      keys: (c, m), in the same space.
      k: neighbors for each query.
      key_mean: (c,) r of each key, from `neighborhood_mean` over the queries' language.
      query_mean: (n,) r of each query. It changes no order: where None, the scores leave it out.

    Returns:
      scores float32 (n, k), descending, equal ones by ascending id, and ids int32 (n, k).

    Raises:
      UserError: fewer than k keys, different dimensions, or a value that is not finite.
    """
    half = np.asarray(key_mean, np.float64) / 2
    fill = np.sqrt(np.square(half).max() - np.square(half))
    raised_keys = with_columns(keys, -half, fill)
    raised_queries = with_columns(queries, np.ones(len(queries)), np.zeros(len(queries)))
    # Candidates without a direction would win through a low r alone.
    similarity, ids = nearest_neighbors(raised_queries, raised_keys, k, candidates=np.asarray(keys).any(axis=1))
    length = np.sqrt(2 * (1 + np.square(half).max()))
    scores = 2 * length * similarity.astype(np.float64)
    if query_mean is not None:
        scores -= np.asarray(query_mean, np.float64)[:, None]
    return scores.astype(np.float32), ids
