"""Bitwise identical rows searched once: real vocabularies hold many ("haus" and " haus" share a word vector)."""

import hashlib
from dataclasses import dataclass

import numpy as np

from wechsel_jax.search.rescoring import best_pairs

_ROWS = 256


@dataclass(frozen=True)
class Groups:
    """Bitwise identical rows as one: `first[g]` is the lowest id of group g, `members[start[g]:start[g + 1]]` all of them."""

    first: np.ndarray
    members: np.ndarray
    start: np.ndarray

    def rows(self, matrix: np.ndarray) -> np.ndarray:
        return matrix if len(self.first) == len(matrix) else matrix[self.first]

    def expand(self, scores: np.ndarray, groups: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
        """Turns the best groups (n, g <= k), by score and first id, into the k best ids (n, k)."""
        if len(self.first) == len(self.members):
            return scores, groups
        row = np.repeat(np.arange(len(groups)), groups.shape[1])
        members, source = self._members(groups.reshape(-1), k)
        return best_pairs(row[source], members, scores.reshape(-1)[source], len(groups), k)

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
    first, which = distinct_rows(matrix)
    start = np.concatenate([[0], np.cumsum(np.bincount(which, minlength=len(first)))])
    return Groups(first, np.argsort(which, kind="stable"), start)
