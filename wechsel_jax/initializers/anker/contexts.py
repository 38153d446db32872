"""Which tokens stand before and after each token of a text, counted and turned into positive pointwise mutual information."""

import functools
import math

import numpy as np
from scipy.sparse import csr_array, hstack

# lcm(1..20) times the pairs of 10 billion tokens fits in 64 bits; lcm(1..32) would not with those of 16 MiB.
LARGEST_WINDOW = 20
# Pairs that are sorted at once: 8 bytes each, three times over.
_BLOCK_PAIRS = 1 << 22


def count_neighbors(ids: np.ndarray, size: int, *, window: int = 4, block: int = _BLOCK_PAIRS) -> csr_array:
    """Counts how often one token stands after another, near ones more than far ones.

    A token at distance o counts 1 / o, as in GloVe (Pennington et al., 2014, section 4.2), in units of 1 / lcm(1..window), so
    that all sums are integers and no order of additions matters. Pairs do not reach over the end of a document.

    Args:
      ids: int32 (n,), tokens one after the other; a negative number ends a document.
      size: V, every token is smaller.
      window: the largest distance, at most `LARGEST_WINDOW`.
      block: tokens that are worked through at a time; it changes speed and memory only.

    Returns:
      int64 (V, V) sparse with sorted indices: row i, column j says how often j stands after i. It takes 12 bytes a distinct
      pair, of which there are at most `window` for each token of the text, and twice that while it is made.
    """
    if not 1 <= window <= LARGEST_WINDOW or block < 1:
        raise ValueError(f"window must be 1 to {LARGEST_WINDOW} and block positive, got {window}, {block}")
    unit = math.lcm(*range(1, window + 1))
    # Matrices of like size are added, so that every pair is copied a logarithmic number of times.
    waiting: list[csr_array] = []
    for start in range(0, len(ids), block):
        part = np.asarray(ids[start : start + block + window])
        whole = part >= 0
        for offset in range(1, min(window, len(part) - 1) + 1):
            whole = whole[: len(part) - offset] & (part[offset:] >= 0)
            here = np.flatnonzero(whole[:block])
            waiting.append(_counted(part[here], part[here + offset], size, unit // offset))
            while len(waiting) > 1 and waiting[-1].nnz * 2 >= waiting[-2].nnz:
                waiting.append(waiting.pop() + waiting.pop())
    return functools.reduce(lambda a, b: a + b, reversed(waiting), csr_array((size, size), dtype=np.int64))


def _counted(rows: np.ndarray, columns: np.ndarray, size: int, weight: int) -> csr_array:
    # Narrow keys are sorted faster.
    narrow = np.uint32 if size <= 1 << 16 else np.int64
    keys = rows.astype(narrow) * narrow(size) + columns.astype(narrow)
    keys.sort()
    first = np.flatnonzero(keys[1:] != keys[:-1]) + 1
    first = np.concatenate([np.zeros(min(1, len(keys)), np.int64), first])
    counts = np.diff(first, append=len(keys)) * weight
    keys = keys[first].astype(np.int64)
    starts = np.searchsorted(keys, np.arange(size + 1) * size)
    return csr_array((counts, (keys % size).astype(np.int32), starts.astype(np.int32)), shape=(size, size))


def context_counts(before: csr_array, after: csr_array, rows: np.ndarray, columns: np.ndarray) -> csr_array:
    """Keeps the contexts that are asked for: the columns before, then those after.

    Args:
      before: (V, V), the transpose of `after`.
      after: (V, V) of `count_neighbors`.
      rows: int (R,), tokens whose contexts are wanted.
      columns: int (A,), tokens that count as contexts.

    Returns:
      int64 (R, 2 A): how often columns[j] stands before rows[i] (first half) and after it (second half).
    """
    return hstack([before[rows][:, columns], after[rows][:, columns]], format="csr")


def positive_pmi(contexts: csr_array, totals: np.ndarray, *, smoothing: float = 0.75) -> csr_array:
    """Positive pointwise mutual information of tokens and contexts.

    max(0, log(n(t, c) N / (n(t) n(c)'))), with n(c)' = n(c)^smoothing scaled to the same sum, which keeps rare contexts
    from having the highest values (Levy, Goldberg and Dagan, 2015, section 3.1). The contexts before and after a token are two
    distributions.

    Args:
      contexts: (R, 2 A) of `context_counts`.
      totals: (2 A,), n(c) over all tokens, not only the R.
      smoothing: the exponent; 1 is none.

    Returns:
      float32 (R, 2 A), sparse.
    """
    half = contexts.shape[1] // 2
    totals = np.asarray(totals, np.float64).reshape(2, half)
    smooth = np.power(totals, smoothing)
    smooth *= (totals.sum(axis=1) / np.maximum(smooth.sum(axis=1), 1e-300))[:, None]
    of_columns = (_inverse(smooth) * totals.sum(axis=1)[:, None]).ravel()
    is_after = np.zeros((2 * half, 2))
    is_after[:half, 0] = is_after[half:, 1] = 1
    of_rows = _inverse(contexts @ is_after)
    rows = np.repeat(np.arange(contexts.shape[0]), np.diff(contexts.indptr))
    columns = contexts.indices
    ratio = contexts.data * of_rows[rows, (columns >= half).astype(np.int8)] * of_columns[columns]
    values = np.maximum(np.log(ratio), 0).astype(np.float32)
    result = csr_array((values, columns, contexts.indptr), shape=contexts.shape, copy=True)
    result.eliminate_zeros()
    return result


def _inverse(values: np.ndarray) -> np.ndarray:
    return np.divide(1.0, values, out=np.zeros_like(values, dtype=np.float64), where=values > 0)
