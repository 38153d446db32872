"""More columns that make another score the inner product of two vectors, so that the exact cosine search finds it."""

import math
from dataclasses import dataclass

import numpy as np

from wechsel_jax.errors import UserError


@dataclass(frozen=True)
class Bonus:
    """A bonus to the similarity of a query and a key that have the same flag: both begin a word, or neither does.

    With flags f in {1, -1} and c^2 = amount / 2, the vectors (u, c f), where u has length 1, have the cosine
    (cos + f f' amount / 2) / (1 + amount / 2): the similarity with the bonus, but for a scale and a constant.

    Attributes:
      amount: what is added to the cosine; not negative.
      queries: bool (V_t,), the flags of the queries.
      keys: bool (V_s,), the flags of the keys.
    """

    amount: float
    queries: np.ndarray
    keys: np.ndarray

    def columns(self, queries: np.ndarray, keys: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Vectors (V_t, m + 2) and (V_s, m + 2) whose cosine is (similarity - amount / 2) / (1 + amount / 2).

        A query of zeros stays one, since it is compared with nothing. The last column gives keys of zeros the length of the
        others, so that their similarity is 0 and the bonus.

        Raises:
          UserError: the amount is negative or not finite.
          ValueError: the flags are not bool, or not as many as the vectors.
        """
        if not 0 <= self.amount < math.inf:
            raise UserError(f"word_start {self.amount}: expected a number of at least 0; the usual one is 0.1")
        flags, sizes = (self.queries, self.keys), (len(queries), len(keys))
        if any(flag.shape != (size,) or flag.dtype != bool for flag, size in zip(flags, sizes, strict=True)):
            found = ", ".join(f"{flag.dtype} {flag.shape}" for flag in flags)
            raise ValueError(f"flags must be bool ({sizes[0]},) and bool ({sizes[1]},), got {found}")
        sign = [np.where(flag, 1.0, -1.0) * math.sqrt(self.amount / 2) for flag in flags]
        wanted, empty = np.any(queries, axis=1), ~np.any(keys, axis=1)
        return with_columns(queries, sign[0] * wanted, np.zeros(len(queries))), with_columns(keys, sign[1], empty)


def with_columns(vectors: np.ndarray, *columns: np.ndarray) -> np.ndarray:
    """Rows (n, m) scaled to length 1 (zeros stay) and then more columns (n,); float32 (n, m + columns)."""
    vectors = np.asarray(vectors, np.float32)
    norms = np.sqrt(np.einsum("nm,nm->n", vectors, vectors, dtype=np.float64))
    unit = vectors / np.where(norms > 0, norms, 1)[:, None]
    return np.concatenate([unit, *(column[:, None] for column in columns)], axis=1).astype(np.float32)
