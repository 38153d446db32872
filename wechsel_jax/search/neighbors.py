"""Exact cosine nearest neighbors, blocked, jitted, and the same to the last bit whatever the block sizes or the devices.

A matrix product rounds differently for other tile shapes, so its scores only nominate candidates. The candidates' scores are
computed again in float64, in an order of additions that depends on the dimension alone, and a bound on the product's rounding
error tells for which rows the nomination may have missed a neighbor; those are searched again. Since nothing but speed depends
on the product, it is taken in bfloat16 wherever the hardware multiplies that faster.
"""

import functools
import math
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from wechsel_jax.errors import UserError
from wechsel_jax.records import work
from wechsel_jax.search.columns import Bonus
from wechsel_jax.search.rescoring import (
    Groups,
    Index,
    accumulation_error,
    collapse,
    distinct_rows,
    exact_search,
    normalised,
    row_norms,
    sort_rows,
)

# Keys that are nominated beyond k, by the type of the product.
_MARGIN = {"float32": 4, "bfloat16": 10}
# How many scores stand for one in the first level of `_top`.
_FOLD = 16
# Doubtful queries that are searched again at once.
_REPEATED_ROWS = 512


def nearest_neighbors(
    queries: np.ndarray,
    keys: np.ndarray,
    k: int,
    *,
    candidates: np.ndarray | None = None,
    bonus: Bonus | None = None,
    target_block: int = 512,
    source_block: int = 8192,
    devices: Sequence[jax.Device] | None = None,
    product: str | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> tuple[np.ndarray, np.ndarray]:
    """Finds the k keys of highest cosine similarity for every query, without ever holding a (V_t, V_s) matrix.

    The neighbors are those of a float64 search: sorted by descending similarity, equal similarities by ascending id. A row
    of zeros has similarity 0 to everything; of the two, only a key of zeros can have the bonus. Similarities and ids have the
    same bits for every `target_block`, `source_block`, number of devices and `product`. This is the search of WECHSEL
    (Minixhofer et al., 2022, section 3.2).

    Args:
      queries: (V_t, m) target vectors; searched as float32.
      keys: (V_s, m) source vectors; searched as float32.
      k: neighbors for each query.
      candidates: bool (V_s,), the keys that may be a neighbor; all where None.
      bonus: is added to the similarity of keys that agree with the query; None: nothing is.
      target_block: queries that one device searches at a time.
      source_block: keys that one matrix product covers at most.
      devices: the queries are split over these; this process's devices where None.
      product: type in which candidates are nominated, "float32" or "bfloat16"; the faster one where None.
      progress: called with (distinct queries done, distinct queries in all) after every block.

    Returns:
      similarity float32 (V_t, k) and ids int32 (V_t, k).

    Raises:
      UserError: fewer than k candidates, different dimensions, or a value that is not finite.
      ValueError: a block size or k below 1, an unknown product, or an array of the wrong rank.

    >>> similarity, nearest = nearest_neighbors(np.array([[1.0, 0.1]]), np.array([[0.0, 2.0], [3.0, 0.0]]), 1)
    >>> nearest.tolist(), round(float(similarity[0, 0]), 3)
    ([[1]], 0.995)
    """
    if min(k, target_block, source_block) < 1:
        raise ValueError(f"k, target_block and source_block must be positive, got {k}, {target_block}, {source_block}")
    problem = make_problem(queries, keys, candidates, bonus)
    if k > len(problem.allowed):
        raise UserError(
            f"{k} neighbors were asked for, but only {len(problem.allowed)} source tokens can be one; use fewer neighbors"
        )
    similarity = np.zeros((len(problem.distinct), k))
    ids = np.empty((len(problem.distinct), k), np.int64)
    ids[:] = np.arange(k)
    search = Search(problem.index, min(k, len(problem.index)), target_block, source_block, devices, product)
    scores, found = search(problem.queries, problem.distinct[problem.searched], progress)
    scores, ids[problem.searched] = problem.groups.expand(scores, found, k)
    if bonus is not None and bonus.amount:
        scores = (1 + bonus.amount / 2) * scores + bonus.amount / 2
    similarity[problem.searched] = scores
    return similarity.astype(np.float32)[problem.which], problem.allowed[ids].astype(np.int32)[problem.which]


@dataclass(frozen=True)
class Problem:
    """A search in its smallest form: bitwise identical rows once, and no query of zeros.

    Attributes:
      queries: float32 (V_t, m).
      distinct: int (D,), the rows of `queries` that are the first of their kind.
      which: int (V_t,), for every query the place of its twin in `distinct`.
      searched: int, places in `distinct` of the queries that are not all zeros.
      allowed: int (A,), ids of the keys that may be a neighbor.
      groups: the allowed keys (as places in `allowed`) by their twins.
      index: one key of each group.
    """

    queries: np.ndarray
    distinct: np.ndarray
    which: np.ndarray
    searched: np.ndarray
    allowed: np.ndarray
    groups: Groups
    index: Index


def make_problem(queries: np.ndarray, keys: np.ndarray, candidates: np.ndarray | None, bonus: Bonus | None = None) -> Problem:
    """Checks the arrays of a search (see `nearest_neighbors`) and finds the rows that need no search of their own."""
    queries, keys = _rows(queries, "target"), _rows(keys, "source")
    if queries.shape[1] != keys.shape[1]:
        raise UserError(
            f"the target vectors have {queries.shape[1]} dimensions, the source vectors {keys.shape[1]}; expected one shared "
            "space; align the two sets of word vectors first"
        )
    if bonus is not None and bonus.amount:
        queries, keys = bonus.columns(queries, keys)
    allowed = np.arange(len(keys)) if candidates is None else np.flatnonzero(_mask(candidates, len(keys)))
    if candidates is not None:
        keys = keys[allowed]
    groups = collapse(keys)
    distinct, which = distinct_rows(queries)
    searched = np.flatnonzero(queries[distinct].any(axis=1))
    return Problem(queries, distinct, which, searched, allowed, groups, Index(groups.rows(keys)))


def _rows(matrix: np.ndarray, side: str) -> np.ndarray:
    matrix = np.asarray(matrix)
    if matrix.ndim != 2:
        raise ValueError(f"the {side} vectors must be a matrix, got shape {matrix.shape}")
    with np.errstate(over="ignore"):
        matrix = np.ascontiguousarray(matrix, dtype=np.float32)
    finite = np.isfinite(matrix.sum(axis=1, dtype=np.float64))
    if not finite.all():
        raise UserError(f"{side} vector {int(finite.argmin())}: holds NaN or infinity; expected finite float32 numbers")
    return matrix


def _mask(candidates: np.ndarray, count: int) -> np.ndarray:
    candidates = np.asarray(candidates)
    if candidates.shape != (count,) or candidates.dtype != bool:
        raise ValueError(f"candidates must be bool ({count},), got {candidates.dtype} {candidates.shape}")
    return candidates


def _faster_product(device: jax.Device, dimension: int) -> str:
    """Few dimensions crowd the similarities, and rows that bfloat16 cannot tell apart are searched twice."""
    if dimension < 64:
        return "float32"
    if device.platform != "cpu":
        return "bfloat16"
    described = Path("/proc/cpuinfo")
    flags = described.read_text(errors="replace").split() if described.exists() else ()
    return "bfloat16" if "avx512_bf16" in flags or "amx_bf16" in flags else "float32"


@dataclass(frozen=True)
class Nomination:
    """One block of queries with the keys of highest product, in descending order of it.

    Attributes:
      where: the block's place among the wanted queries.
      queries: float32 (n, m).
      values: float32 (n, c), products; -inf marks padding.
      ids: int (n, c), places in the index.
      missed: float32 (n,), the highest product that a key left out may have; -inf where none is left out.
      bound: float64 (n,), how far a product may be from the float64 score.
    """

    where: slice
    queries: np.ndarray
    values: np.ndarray
    ids: np.ndarray
    missed: np.ndarray
    bound: np.ndarray


class Search:
    """Distinct keys on the devices, ready to be searched in blocks of queries for the k of highest cosine."""

    def __init__(
        self,
        index: Index,
        k: int,
        target_block: int,
        source_block: int,
        devices: Sequence[jax.Device] | None = None,
        product: str | None = None,
    ):
        devices = tuple(devices) if devices is not None else tuple(jax.local_devices())
        product = product or _faster_product(devices[0], index.keys.shape[1])
        if product not in _MARGIN:
            raise ValueError(f"product must be float32 or bfloat16, got {product!r}")
        self._index, self._k, self._target_block, self._product = index, k, target_block, product
        self._mesh = Mesh(np.asarray(devices), ("targets",))
        self._nominate = _nominator(self._mesh, min(k + _MARGIN[product], len(index)))
        chunks = -(-len(index) // source_block)
        width = _rounded(-(-len(index) // chunks), source_block)
        # XLA's CPU product is faster when no operand has to be transposed, hence (chunks, m, width).
        keys = np.empty((chunks, index.keys.shape[1], width), ml_dtypes.bfloat16 if product == "bfloat16" else np.float32)
        self._key_error = 0.0
        for c in range(chunks):
            # Dealt out in turn, so that the neighbors of a query, which often have close ids, spread over the chunks.
            part = slice(c, None, chunks)
            stored, error = self._stored(index.keys[part], index.norms[part], width)
            keys[c] = stored.T
            self._key_error = max(self._key_error, error.max(initial=0))
        exists = np.arange(chunks * width).reshape(width, chunks).transpose() < len(index)
        penalty = np.where(exists, 0, -np.inf).astype(np.float32)
        replicated = NamedSharding(self._mesh, PartitionSpec())
        self._keys, self._penalty = jax.device_put((keys, penalty), replicated)

    def __call__(self, queries: np.ndarray, wanted: np.ndarray, progress: Callable | None) -> tuple[np.ndarray, np.ndarray]:
        """Returns float64 scores and key ids (n, k) of the n queries whose rows are `wanted`."""
        scores, ids = np.empty((len(wanted), self._k)), np.empty((len(wanted), self._k), np.int64)
        doubtful = np.zeros(len(wanted), bool)
        for block in self.nominations(queries, wanted):
            scores[block.where], ids[block.where], doubtful[block.where] = self._rescore(block)
            if progress is not None:
                progress(block.where.stop, len(wanted))
        again = np.flatnonzero(doubtful)
        for part in np.split(again, range(_REPEATED_ROWS, len(again), _REPEATED_ROWS)):
            scores[part], ids[part] = exact_search(queries[wanted[part]], scores[part, -1], self._index, self._k)
        return scores, ids

    def nominations(self, queries: np.ndarray, wanted: np.ndarray) -> Iterator[Nomination]:
        """Yields the `wanted` rows of the queries in blocks, with k nominees or more for each row."""
        devices = self._mesh.size
        step = _rounded(-(-len(wanted) // devices), self._target_block) * devices
        split = NamedSharding(self._mesh, PartitionSpec("targets"))
        waiting: deque = deque()
        for begin in range(0, len(wanted) + step, step):
            # One block stays under way on the devices while the host works on the one before.
            if begin < len(wanted):
                rows = queries[wanted[begin : begin + step]]
                work.product(len(rows), rows.shape[1], len(self._index))
                stored, error = self._stored(rows, row_norms(rows), step)
                nominated = self._nominate(jax.device_put(stored, split), self._keys, self._penalty)
                waiting.append((slice(begin, begin + len(rows)), rows, nominated, error))
            if len(waiting) > 1 or (waiting and begin >= len(wanted)):
                where, rows, nominated, error = waiting.popleft()
                bound = error + (1 + error) * self._key_error + accumulation_error(rows.shape[1])
                yield Nomination(where, rows, *(np.array(x)[: len(rows)] for x in nominated), bound)

    def _stored(self, rows: np.ndarray, norms: np.ndarray, height: int) -> tuple[np.ndarray, np.ndarray]:
        """Unit rows in the product's type, padded with zeros to `height`, and how far (n,) each is from its exact direction."""
        exact = normalised(rows, norms)
        if self._product == "bfloat16":
            stored = exact.astype(ml_dtypes.bfloat16)
            exact -= stored
            error = np.sqrt(np.einsum("tm,tm->t", exact, exact)) * 1.001 + 2.0**-22
        else:
            stored, error = exact, np.full(len(rows), 2.0**-22)
        return np.pad(stored, ((0, height - len(rows)), (0, 0))), error

    def _rescore(self, block: Nomination) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Sorts the nominees by float64 score and id; the last result, bool (n,), marks rows in which one may be missing."""
        values, ids = block.values, block.ids
        # Two products further apart than twice the bound are in the order of their float64 scores.
        row, place = np.nonzero(values >= (values[:, self._k - 1] - 2 * block.bound)[:, None])
        scores = np.full(values.shape, -np.inf)
        scores[row, place] = self._index.scores(block.queries, row, ids[row, place])
        sort_rows(scores, ids)
        return scores[:, : self._k], ids[:, : self._k], scores[:, self._k - 1] <= block.missed + block.bound


def _rounded(count: int, most: int) -> int:
    """Up to a power of two, or a multiple of 512 from there on: few shapes to compile, and little padding."""
    up = 1 << max(count - 1, 0).bit_length() if count <= 512 else -(-count // 512) * 512
    return min(up, most)


@functools.lru_cache(maxsize=16)
def _nominator(mesh: Mesh, count: int) -> Callable:
    """Returns the jitted search for the `count` keys of highest product, split over the mesh by queries.

    It gives values (T, count), ids (T, count), and the highest value (T,) that a key left out may have.
    """

    def nominate(queries_TxM: jax.Array, keys_CxMxS: jax.Array, penalty_CxS: jax.Array):
        chunks, width = penalty_CxS.shape
        # Nominees spread evenly but for chance; a chunk that had more to give shows in `missed`.
        share = -(-count // chunks)
        each = min(count, width, share + 3 + min(share, math.ceil(4 * math.sqrt(share))))

        def one_chunk(_, chunk):
            keys_MxS, penalty_S, number = chunk
            precision = jax.lax.Precision.HIGHEST
            product_TxS = jnp.matmul(queries_TxM, keys_MxS, precision=precision, preferred_element_type=jnp.float32)
            values, places = _top(product_TxS, penalty_S, each)
            return None, (values, places * chunks + number)

        numbers = jnp.arange(chunks, dtype=jnp.int32)
        _, (values, ids) = jax.lax.scan(one_chunk, None, (keys_CxMxS, penalty_CxS, numbers))
        # A minimum, not the last place: XLA's CPU compiler runs top_k again for a slice of its result.
        missed_T = jnp.max(jnp.min(values, axis=2), axis=0)
        missed_T = jnp.full_like(missed_T, -jnp.inf) if each == width else missed_T
        values, ids = (jnp.moveaxis(x, 0, 1).reshape(queries_TxM.shape[0], -1) for x in (values, ids))
        enough = min(count, values.shape[1])
        values, places = jax.lax.top_k(values, enough)
        missed_T = missed_T if enough == chunks * each else jnp.maximum(missed_T, jnp.min(values, axis=1))
        return values, jnp.take_along_axis(ids, places, axis=1), missed_T

    split, replicated = PartitionSpec("targets"), PartitionSpec()
    specs = {"in_specs": (split, replicated, replicated), "out_specs": (split, split, split)}
    return jax.jit(jax.shard_map(nominate, mesh=mesh, **specs))


def _top(product_TxS: jax.Array, penalty_S: jax.Array, count: int) -> tuple[jax.Array, jax.Array]:
    """The `count` highest of each row in two levels: columns by the maximum of their members, then the members of the best.

    Nothing outside the `count` columns of highest maximum can be among the `count` highest values.
    """
    rows, width = product_TxS.shape
    columns = width // _FOLD
    if width % _FOLD or columns < 4 * count:
        return jax.lax.top_k(product_TxS + penalty_S, count)
    folded_TxFxC = product_TxS.reshape(rows, _FOLD, columns)
    penalty_FxC = penalty_S.reshape(_FOLD, columns)
    _, best_TxK = jax.lax.top_k(jnp.max(folded_TxFxC + penalty_FxC, axis=1), count)
    members_TxFxK = jnp.take_along_axis(folded_TxFxC, best_TxK[:, None, :], axis=2)
    members_TxFxK += jnp.moveaxis(penalty_FxC[:, best_TxK], 0, 1)
    places_TxFxK = best_TxK[:, None, :] + (jnp.arange(_FOLD, dtype=jnp.int32) * columns)[:, None]
    values, which = jax.lax.top_k(members_TxFxK.reshape(rows, -1), count)
    return values, jnp.take_along_axis(places_TxFxK.reshape(rows, -1), which, axis=1)
