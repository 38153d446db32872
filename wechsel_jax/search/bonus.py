"""A bonus to the similarity of tokens that agree in one flag, and the two searches that find the neighbors with it exactly.

All keys of one flag get the same bonus from a query. So the best of each half are found as if there were none, and the best of
all are among them.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from wechsel_jax.errors import UserError


@dataclass(frozen=True)
class Half:
    """The candidates whose flag is `flag`: bool (V_s,), how many there are, and what is told of the search among them."""

    flag: bool
    candidates: np.ndarray
    size: int
    progress: Callable[[int, int], None] | None


@dataclass(frozen=True)
class Bonus:
    """A bonus to the similarity of a query and a key that have the same flag: both begin a word, or neither does.

    Attributes:
      amount: what is added to the cosine; not negative.
      queries: bool (V_t,), the flags of the queries.
      keys: bool (V_s,), the flags of the keys.
    """

    amount: float
    queries: np.ndarray
    keys: np.ndarray

    def raise_scores(self, scores: np.ndarray, flag: bool) -> np.ndarray:
        """Adds the bonus to the scores (V_t, K) of keys that all have `flag`, in the rows of queries that have it too."""
        return scores + np.where(self.queries == flag, self.amount, 0.0)[:, None]

    def parts(self, allowed: np.ndarray, progress: Callable[[int, int], None] | None = None) -> list[Half]:
        """The candidates `allowed`, bool (V_s,), by their flag; a flag that none has is left out.

        Raises:
          ValueError: the flags are not bool, or not as many as the keys.
          UserError: the bonus is negative or not finite.
        """
        if not 0 <= self.amount < math.inf:
            raise UserError(f"word_start {self.amount}: expected a number of at least 0; the usual one is 0.1")
        if self.keys.shape != allowed.shape or {self.keys.dtype, self.queries.dtype} != {np.dtype(bool)}:
            raise ValueError(f"flags must be bool {allowed.shape}, got {self.keys.dtype} {self.keys.shape}")
        masks = [(flag, mask) for flag in (False, True) if (mask := allowed & (self.keys == flag)).any()]
        return [
            Half(flag, mask, int(mask.sum()), _share_of(progress, number, len(masks)))
            for number, (flag, mask) in enumerate(masks)
        ]


def _share_of(progress: Callable[[int, int], None] | None, number: int, parts: int) -> Callable[[int, int], None] | None:
    """Progress of one of `parts` searches as progress of all."""
    return None if progress is None else lambda done, total: progress(number * total + done, parts * total)
