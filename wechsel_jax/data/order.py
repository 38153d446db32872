"""A permutation of n items, evaluated at an index: no shuffled array is ever held."""

import numpy as np

_ROUNDS = 8
_SMALLEST_HALF = 3
_MASK64 = (1 << 64) - 1
_LARGEST = 1 << 62


def permuted(indices: np.ndarray, size: int, seed: int, epoch: int = 0) -> np.ndarray:
    """Where the keyed permutation of 0 ... size - 1 sends each index.

    A balanced Feistel network permutes the next power of four; an index that it sends outside is sent on until it is inside
    (cycle-walking, Black and Rogaway, 2002: Ciphers with Arbitrary Finite Domains, section 4), which leaves a permutation of
    the items themselves. It is for shuffling, not for secrets.

    Args:
      indices: integers (...), each in [0, size).
      size: n, from 1 to 2**62.
      seed: of the run; any integer.
      epoch: every (seed, epoch) has a permutation of its own.

    Returns:
      int64 (...).

    Raises:
      ValueError: the size or an index is out of range.
    """
    indices = np.asarray(indices)
    if not 1 <= size <= _LARGEST:
        raise ValueError(f"size is {size}; expected 1 to 2**62")
    if indices.size and (int(indices.min()) < 0 or int(indices.max()) >= size):
        raise ValueError(f"indices from {indices.min()} to {indices.max()}; expected 0 to {size - 1}")
    half = max(_SMALLEST_HALF, -(-(size - 1).bit_length() // 2))
    keys = np.random.SeedSequence([seed & _MASK64, epoch & _MASK64]).generate_state(_ROUNDS, np.uint64)
    values = _feistel(indices.astype(np.uint64).ravel(), half, keys)
    outside = np.flatnonzero(values >= size)
    while outside.size:
        values[outside] = _feistel(values[outside], half, keys)
        outside = outside[values[outside] >= size]
    return values.astype(np.int64).reshape(indices.shape)


def _feistel(values: np.ndarray, half: int, keys: np.ndarray) -> np.ndarray:
    """Permutes [0, 4**half): uint64 (n,) -> uint64 (n,), a new array."""
    shift, mask = np.uint64(half), np.uint64((1 << half) - 1)
    left, right = values >> shift, values & mask
    for key in keys:
        left, right = right, left ^ (mixed(right ^ key) & mask)
    return left << shift | right


def mixed(values: np.ndarray) -> np.ndarray:
    """The finaliser of SplitMix64 (Steele, Lea and Flood, 2014, figure 16): every bit depends on every bit."""
    values = (values ^ values >> np.uint64(30)) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ values >> np.uint64(27)) * np.uint64(0x94D049BB133111EB)
    return values ^ values >> np.uint64(31)
