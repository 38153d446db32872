"""Cosine similarities in float64 whose bits depend on the two vectors alone, and the search that trusts nothing else.

Bitwise identical rows are searched once: real vocabularies hold many ("haus" and " haus" share a word vector).
"""

import hashlib
from dataclasses import dataclass

import numpy as np

from wechsel_jax.records import work

# Rows, or pairs of rows, that are in memory as float64 at once.
_PAIRS = 256
# Keys of one product of the exact search.
_KEYS = 8192
# Rows whose checksums are made at once.
_ROWS = 256


class Index:
    """Keys float32 (R, m) with their norms.

    Attributes:
      keys: (R, m).
      norms: float64 (R,).
    """

    def __init__(self, keys: np.ndarray):
        self.keys = keys
        self.norms = row_norms(keys)

    def __len__(self) -> int:
        return len(self.keys)

    def scores(self, queries: np.ndarray, rows: np.ndarray, ids: np.ndarray) -> np.ndarray:
        """Cosine similarity float64 (p,) of the pairs (queries[rows[i]], keys[ids[i]])."""
        work.product(len(rows), queries.shape[1])
        wide = queries.astype(np.float64)
        out = np.empty(len(rows))
        narrow = np.empty((_PAIRS, wide.shape[1]), np.float32)
        products, factors = np.empty((2, _PAIRS, wide.shape[1]))
        for begin in range(0, len(rows), _PAIRS):
            row, key = rows[begin : begin + _PAIRS], ids[begin : begin + _PAIRS]
            n = len(row)
            np.take(self.keys, key, axis=0, out=narrow[:n], mode="clip")
            np.take(wide, row, axis=0, out=factors[:n], mode="clip")
            np.copyto(products[:n], narrow[:n])
            products[:n] *= factors[:n]
            out[begin : begin + n] = _row_sums(products[:n])
        scale = row_norms(queries)[rows] * self.norms[ids]
        return np.divide(out, scale, out=np.zeros_like(out), where=scale > 0)


def _row_sums(matrix: np.ndarray) -> np.ndarray:
    """Sums float64 rows one by one: numpy adds a contiguous row pairwise, in an order that its length alone decides."""
    return np.add.reduce(matrix, axis=1)


def row_norms(matrix: np.ndarray) -> np.ndarray:
    """Euclidean lengths float64 (n,) of rows (n, m); each depends on its own row alone."""
    out = np.empty(len(matrix))
    for begin in range(0, len(matrix), _PAIRS):
        block = matrix[begin : begin + _PAIRS].astype(np.float64)
        out[begin : begin + _PAIRS] = np.sqrt(_row_sums(np.square(block, out=block)))
    return out


def normalised(matrix: np.ndarray, norms: np.ndarray) -> np.ndarray:
    """Rows of length one, float32; rows of zeros stay zero."""
    inverse = np.divide(1.0, norms, out=np.zeros_like(norms), where=norms > 0)
    return np.multiply(matrix, inverse[:, None], out=np.empty(matrix.shape, np.float32), casting="same_kind")


def accumulation_error(dimension: int) -> float:
    """Bound on what rounding adds to a product of two unit vectors that are summed up in float32.

    Every addition errs by at most half a unit in the last place; the factor of four covers hardware that truncates sums, or
    that builds float32 products from bfloat16 passes.
    """
    return (dimension + 8) * 2.0**-22


def exact_search(queries: np.ndarray, floor: np.ndarray, index: Index, k: int) -> tuple[np.ndarray, np.ndarray]:
    """Searches all keys whose float32 product does not rule out a score of at least `floor`.

    Args:
      queries: float32 (n, m), none of them zero.
      floor: float64 (n,), a score that k keys reach.
      index: the keys.
      k: neighbors.

    Returns:
      float64 scores (n, k) and ids (n, k), by descending score and ascending id.
    """
    normal = normalised(queries, row_norms(queries))
    floor = (floor - accumulation_error(queries.shape[1]))[:, None]
    row, ids, scores = np.empty(0, np.int64), np.empty(0, np.int64), np.empty(0)
    for begin in range(0, len(index), _KEYS):
        part = slice(begin, begin + _KEYS)
        work.product(len(normal), normal.shape[1], len(index.keys[part]))
        new_row, new = np.nonzero(normal @ normalised(index.keys[part], index.norms[part]).T >= floor)
        row, ids = np.concatenate([row, new_row]), np.concatenate([ids, new + begin])
        scores = np.concatenate([scores, index.scores(queries, new_row, new + begin)])
        kept = _best_places(row, ids, scores, k)
        row, ids, scores = row[kept], ids[kept], scores[kept]
    return scores.reshape(len(queries), k), ids.reshape(len(queries), k)


def sort_rows(scores: np.ndarray, ids: np.ndarray) -> None:
    """Sorts by (-score, id) in place the rows that are not yet in order; -inf marks places without a score."""
    ordered = (scores[:, :-1] > scores[:, 1:]) | np.isneginf(scores[:, 1:])
    wrong = np.flatnonzero(~ordered.all(axis=1))
    order = np.lexsort((ids[wrong], -scores[wrong]), axis=-1)
    scores[wrong] = np.take_along_axis(scores[wrong], order, axis=1)
    ids[wrong] = np.take_along_axis(ids[wrong], order, axis=1)


def _best_places(row: np.ndarray, ids: np.ndarray, scores: np.ndarray, k: int) -> np.ndarray:
    """Places of up to k pairs a row, by (row, -score, id)."""
    order = np.lexsort((ids, -scores, row))
    ordered = row[order]
    starts = np.flatnonzero(np.diff(ordered, prepend=-1))
    rank = np.arange(len(row)) - np.repeat(starts, np.diff(np.append(starts, len(row))))
    return order[rank < k]


@dataclass(frozen=True)
class Groups:
    """Bitwise identical rows as one: `first[g]` is the lowest id of group g, `members[start[g]:start[g + 1]]` all of them."""

    first: np.ndarray
    members: np.ndarray
    start: np.ndarray

    def rows(self, matrix: np.ndarray) -> np.ndarray:
        """One row of each group, (G, m) of a matrix (n, m)."""
        return matrix if len(self.first) == len(matrix) else matrix[self.first]

    def expand(self, scores: np.ndarray, groups: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
        """Turns the best groups (n, g <= k), by score and first id, into the k best ids (n, k)."""
        if len(self.first) == len(self.members):
            return scores, groups
        row = np.repeat(np.arange(len(groups)), groups.shape[1])
        members, source = self._members(groups.reshape(-1), k)
        row, scores = row[source], scores.reshape(-1)[source]
        kept = _best_places(row, members, scores, k)
        return scores[kept].reshape(-1, k), members[kept].reshape(-1, k)

    def members_of(self, row: np.ndarray, groups: np.ndarray, scores: np.ndarray) -> tuple[np.ndarray, ...]:
        """Turns pairs (row, group, score) into (row, id, score) of all members, by row, descending score and id."""
        if len(self.first) == len(self.members):
            return row, groups, scores
        members, source = self._members(groups, len(self.members))
        row, scores = row[source], scores[source]
        order = np.lexsort((members, -scores, row))
        return row[order], members[order], scores[order]

    def _members(self, groups: np.ndarray, most: int) -> tuple[np.ndarray, np.ndarray]:
        """The first `most` members of each of the groups (g,), and at which place of `groups` each belongs."""
        sizes = np.minimum(self.start[groups + 1] - self.start[groups], most)
        ends = np.cumsum(sizes)
        offset = np.arange(sizes.sum()) - np.repeat(ends - sizes, sizes)
        return self.members[np.repeat(self.start[groups], sizes) + offset], np.repeat(np.arange(len(groups)), sizes)


def distinct_rows(matrix: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns the first id of every distinct row, ascending, and for each row the place of its twin in that list."""
    first = np.arange(len(matrix))
    checksums = _checksums(matrix)
    _, place, count = np.unique(checksums, return_inverse=True, return_counts=True)
    twin: dict[bytes, int] = {}
    for i in np.flatnonzero(count[place] > 1):
        # Adding zero turns -0.0 into 0.0: such rows score alike and must share a group.
        first[i] = twin.setdefault(hashlib.blake2b(matrix[i] + np.float32(0), digest_size=16).digest(), i)
    distinct = np.flatnonzero(first == np.arange(len(matrix)))
    return distinct, np.searchsorted(distinct, first)


def _checksums(matrix: np.ndarray) -> np.ndarray:
    """A weak uint64 checksum of each row: rows that differ in it need no closer comparison."""
    weights = np.random.default_rng(0).integers(2**63, size=matrix.shape[1], dtype=np.uint64)
    out = np.empty(len(matrix), np.uint64)
    for begin in range(0, len(matrix), _ROWS):
        bits = (matrix[begin : begin + _ROWS] + np.float32(0)).view(np.uint32)
        np.add.reduce(bits * weights, axis=1, out=out[begin : begin + _ROWS])
    return out


def collapse(matrix: np.ndarray) -> Groups:
    """Finds the bitwise identical rows of a float32 matrix (n, m)."""
    first, which = distinct_rows(matrix)
    start = np.concatenate([[0], np.cumsum(np.bincount(which, minlength=len(first)))])
    return Groups(first, np.argsort(which, kind="stable"), start)
