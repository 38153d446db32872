"""Rows of different lengths in batches: what `rows`, `pairs` and `parallel` have in common.

A batch is padded to the smallest of a few lengths that holds its longest row. Which one that is follows from (seed, step), as
the batch does, and padding changes nothing that is computed. Of rows drawn at random some row is nearly always long, so most
positions of a batch are padding; `group_by_length` is against that.
"""

import abc
from collections.abc import Iterator

import numpy as np

from wechsel_jax.data.batches import ALL_ROWS, Batch, Rows, training_indices
from wechsel_jax.data.order import permuted

_SHORTEST = 16
# Batches that share out their rows by length, at most, and parts of an epoch that they are: few, so that hardly a batch has
# copies of a row and the end of a run leaves few rows out.
_TOGETHER, _PARTS = 16, 4


def fitting_length(longest: int, most: int | None = None) -> int:
    """The length that a batch is padded to, of which there are few: 16, 24, 32, 48, ... or `most`, the longest of the run."""
    length = _SHORTEST
    while length < longest:
        # A power of two by a half of it, or three of these halves by a third: each length is a program to compile.
        length += length // 2 if length & (length - 1) == 0 else length // 3
    return length if most is None else min(length, most)


class PaddedRows(abc.ABC):
    """n rows, none longer than `length`: a `data.batches.Dataset`.

    Attributes:
      length: L.
      group_by_length: whether the batches of some steps, 16 or a quarter of an epoch where that is shorter, share out their
        rows by length, in random order.
    """

    length: int
    group_by_length: bool = False

    @abc.abstractmethod
    def __len__(self) -> int: ...

    @abc.abstractmethod
    def sizes(self, rows: np.ndarray) -> np.ndarray:
        """How many positions rows need: numbers (m,) -> int (m,)."""

    @abc.abstractmethod
    def padded(self, rows: np.ndarray, length: int) -> Batch:
        """Rows by their numbers, (m,), each padded to `length`: arrays whose first axis they are."""

    def drawn(self, step: int, batch_size: int, seed: int) -> np.ndarray:
        """int64 (B,): the rows of one step's batch, as `training_indices` draws them or `group_by_length` says."""
        if not self.group_by_length:
            return training_indices(len(self), step, batch_size, seed)
        together = max(1, min(_TOGETHER, len(self) // (_PARTS * batch_size)))
        group, place = divmod(step, together)
        rows = training_indices(len(self), group, together * batch_size, seed)
        (batch,) = permuted(np.asarray([place]), together, seed, group)
        return rows[np.argsort(self.sizes(rows), kind="stable")].reshape(together, batch_size)[batch]

    def batch(self, step: int, batch_size: int, seed: int, rows: Rows = ALL_ROWS) -> Batch:
        """The batch of one step: what `padded` returns for the rows of `drawn`."""
        chosen = self.drawn(step, batch_size, seed)
        return self.padded(chosen[rows], self._fitting(chosen))

    def positions(self, step: int, batch_size: int, seed: int) -> int:
        """How many positions the batch of a step has (of pairs: either side), padding included."""
        return batch_size * self._fitting(self.drawn(step, batch_size, seed))

    def evaluation_batches(self, batch_size: int, limit: int | None = None, rows: Rows = ALL_ROWS) -> Iterator[Batch]:
        """Batches that hold every row once, the shortest first so that little is padded; the last one is filled up.

        Args:
          batch_size: B.
          limit: read only the first `limit` B rows.
          rows: which of the B rows of each batch to read.

        Returns:
          An iterator of batches as `padded` returns them, with "row": int32 (rows,), -1 for what fills up. "weights" are 0
          there; where `padded` gives none, they are float32 (rows,), 1 elsewhere.
        """
        count = len(self) if limit is None else min(len(self), limit * batch_size)
        order = np.argsort(self.sizes(np.arange(count)), kind="stable")
        for first in range(0, count, batch_size):
            chosen = order[first : first + batch_size]
            places = np.concatenate([chosen, np.full(batch_size - chosen.size, -1)])[rows]
            batch = self.padded(np.where(places < 0, chosen[0], places), self._fitting(chosen))
            batch.setdefault("weights", np.ones(places.size, np.float32))[places < 0] = 0.0
            yield batch | {"row": places.astype(np.int32)}

    def _fitting(self, rows: np.ndarray) -> int:
        return fitting_length(int(self.sizes(rows).max()), self.length)
