"""A transfer plan says where every row of a target embedding matrix comes from, and applies to any vocabulary-sized tensor."""

import math
import os
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from scipy.sparse import csr_array

from wechsel_jax.errors import UserError
from wechsel_jax.files import new_file
from wechsel_jax.files.npz import read_arrays
from wechsel_jax.records import work
from wechsel_jax.search.threads import one_thread
from wechsel_jax.tokens import ROLES, Vocabulary
from wechsel_jax.tokens.overlap import match_special

_BLOCK = 1024
_SLICE_BYTES = 1 << 28
_COPY_BYTES = 1 << 24
# Rows that are held as float64 at once.
_PRODUCT_ROWS = 8192
_FIELDS = {
    "copy": (np.dtype(np.int32), 1),
    "neighbors": (np.dtype(np.int32), 2),
    "weights": (np.dtype(np.float32), 2),
    "random": (np.dtype(bool), 1),
}
# A plan has both of these or neither.
_LOW_RANK = {"coordinates": (np.dtype(np.float32), 2), "basis": (np.dtype(np.float32), 2)}
_HEAD = "head_weights"
_EXPECTED = "a transfer_plan.npz, which `wechsel-jax transfer` writes beside a model"
# Of a row with weights of all source rows, so many are named.
_MOST_SOURCES = 10
# Rows have as many neighbors as the one with the most. Of a source that keeps its tokens nearly all are zeros, which DEFLATE
# shrinks up to 1,032 times.
_MOST_TIMES = 1032


@dataclass(frozen=True)
class Side:
    """One language's tokens.

    Attributes:
      vocabulary: V tokens.
      vectors: float32 (V, m), a vector of each token in the space that both languages share; zeros where there is none.
        None for the methods that need no vectors.
      embeddings: (V, d), the token's row in a model's own input table: of the source model on the source side, of a helper (a
        model of the target language) on the target side; zeros where that model lacks the token. None where no method asks.
      counts: int (V,), how often each token occurs in text of its language. None where no method asks.
      other_vectors: float32 (V, n), vectors in another shared space, for tokens that `vectors` has none of; or None.
      head: float (V, d), the token's row in the source model's output head, where that is another table than `embeddings`. None
        where it is not, or no method asks.

    >>> from wechsel_jax import demo, load_tokenizer
    >>> vocabulary = Vocabulary.from_tokenizer(load_tokenizer(demo.path("english-gpt2")))
    >>> int(Side(vocabulary, np.eye(8192, 3, dtype=np.float32)).has_vector.sum())
    3
    """

    vocabulary: Vocabulary
    vectors: np.ndarray | None = None
    embeddings: np.ndarray | None = None
    counts: np.ndarray | None = None
    other_vectors: np.ndarray | None = None
    head: np.ndarray | None = None

    @cached_property
    def has_vector(self) -> np.ndarray:
        """bool (V,): the token's vector is not all zeros."""
        if self.vectors is None:
            return np.zeros(len(self.vocabulary), bool)
        return np.asarray(self.vectors).any(axis=1)


@dataclass(frozen=True)
class TransferPlan:
    """Where V_t target rows come from; each is copied, or mixed from source rows, or random.

    A mixed row is a weighted sum of K source rows and, where there are `coordinates`, of all of them, with weights of rank r,
    so that V_t x V_s numbers are never held: a regression of the rows, or CLP-Transfer's mean over all shared tokens.

    Attributes:
      copy: int32 (V_t,), the source row to copy, -1 where the row is not copied.
      neighbors: int32 (V_t, K), source rows; 0 where the row is not mixed.
      weights: float32 (V_t, K), signed weights of the neighbors; 0 where the row is not mixed.
      random: bool (V_t,), the row is noise.
      coordinates: float32 (V_t, r), coordinates[i] @ basis are weights of all source rows that come on top of row i's
        neighbors; 0 where the row is not mixed. None: rows have their neighbors only.
      basis: float32 (r, V_s), or None.
      head_weights: float32 (V_t, K), weights of the neighbors in an untied output head; a head's bias has them divided by their
        sum. None: `weights`, for all tensors.

    A first row that is a copy of source row 2, and a second that is the mean of rows 0 and 1:

    >>> plan = TransferPlan.mixed([[0, 0], [0, 1]], [[0, 0], [0.5, 0.5]]).with_copies(np.array([2, -1]))
    >>> plan.apply(np.array([[1.0, 0.0], [0.0, 1.0], [7.0, 7.0]], np.float32)).tolist()
    [[7.0, 7.0], [0.5, 0.5]]
    """

    copy: np.ndarray
    neighbors: np.ndarray
    weights: np.ndarray
    random: np.ndarray
    coordinates: np.ndarray | None = None
    basis: np.ndarray | None = None
    head_weights: np.ndarray | None = None

    def __len__(self) -> int:
        return len(self.copy)

    @classmethod
    def mixed(cls, neighbors: np.ndarray, weights: np.ndarray) -> "TransferPlan":
        """Every row is mixed: neighbors (V_t, K) with weights (V_t, K)."""
        rows = len(neighbors)
        return cls(
            np.full(rows, -1, np.int32), np.array(neighbors, np.int32), np.array(weights, np.float32), np.zeros(rows, bool)
        )

    @classmethod
    def of_pairs(cls, rows: int, row: np.ndarray, ids: np.ndarray, weights: np.ndarray) -> "TransferPlan":
        """Makes a plan of `rows` rows of n pairs: row[i] has the source row ids[i] with weights[i]; rows without any are noise.

        Args:
          rows: V_t.
          row: int (n,), ascending.
          ids: int (n,).
          weights: float (n,).
        """
        count = np.bincount(row, minlength=rows)
        place = np.arange(len(row)) - np.repeat(np.cumsum(count) - count, count)
        neighbors = np.zeros((rows, count.max(initial=0)), np.int32)
        of_neighbors = np.zeros(neighbors.shape, np.float32)
        neighbors[row, place], of_neighbors[row, place] = ids, weights
        return cls.mixed(neighbors, of_neighbors).with_noise(count == 0)

    @classmethod
    def low_rank(cls, coordinates: np.ndarray, basis: np.ndarray) -> "TransferPlan":
        """Every row is mixed of all source rows, with the weights coordinates (V_t, r) @ basis (r, V_s)."""
        return cls.mixed(*np.zeros((2, len(coordinates), 0))).with_regression(coordinates, basis)

    @classmethod
    def copied(cls, copy: np.ndarray) -> "TransferPlan":
        """Row i is source row copy[i] (V_t,); random where copy[i] is -1."""
        return cls.all_random(len(copy)).with_copies(copy)

    @classmethod
    def all_random(cls, rows: int) -> "TransferPlan":
        """Every one of `rows` rows is noise."""
        return cls.mixed(np.zeros((rows, 0)), np.zeros((rows, 0))).with_noise(np.ones(rows, bool))

    def with_regression(self, coordinates: np.ndarray, basis: np.ndarray) -> "TransferPlan":
        """The same plan with coordinates (V_t, r) @ basis (r, V_s) as weights of all source rows added to its mixed rows."""
        coordinates = np.where(self.is_mixed[:, None], coordinates, 0).astype(np.float32)
        return replace(self, coordinates=coordinates, basis=np.asarray(basis, np.float32))

    def with_noise(self, where: np.ndarray) -> "TransferPlan":
        """The same plan with noise in the rows that `where`, bool (V_t,), selects."""
        where = np.asarray(where)
        return self._changed(where, np.where(where, np.int32(-1), self.copy), self.random | where)

    def with_copies(self, copy: np.ndarray) -> "TransferPlan":
        """The same plan with row i copied from source row copy[i], int (V_t,), wherever that is not -1."""
        where = np.asarray(copy) >= 0
        return self._changed(where, np.where(where, copy, self.copy).astype(np.int32), self.random & ~where)

    def with_special_tokens(self, source: Side, target: Side, parity: bool = False) -> "TransferPlan":
        """The same plan with the special tokens copied from the source.

        Args:
          source: the tokens to copy from.
          target: the V_t tokens of this plan.
          parity: copy as PyPI wechsel 0.0.4 does: a source token with a role, to the target token spelled exactly the same
            (special or not). Otherwise see `match_special`: by spelling, else by role, so that "[CLS]" finds "<s>".
        """
        if not parity:
            return self.with_copies(match_special(source.vocabulary, target.vocabulary))
        strings, roles = source.vocabulary.strings, source.vocabulary.roles
        named = {string: i for i, string in enumerate(strings) if not roles[i].isdisjoint(ROLES)}
        return self.with_copies(np.array([named.get(string, -1) for string in target.vocabulary.strings], np.int32))

    def merged(self) -> "TransferPlan":
        """The same plan as short as it can be: the weights of a row's equal neighbors added, none of them zero, largest first.

        Equal magnitudes are ordered by id; K shrinks to the largest number of neighbors left in a row. A mixed row whose
        weights cancel altogether says nothing about its token and becomes noise.
        """
        neighbors, weights = on_source_rows(self.neighbors, self.weights.astype(np.float64))
        plan = replace(self, neighbors=neighbors, weights=weights)
        return plan.with_noise(self.is_mixed & ~plan._has_weights)

    def of_role(self, role: str) -> "TransferPlan":
        """The plan of the tensors of a role: "input", "head" or "bias"."""
        if role == "input" or self.head_weights is None:
            return self
        weights = self.head_weights
        if role == "bias":
            total = weights.sum(axis=1, keepdims=True)
            weights = weights / np.where(total, total, 1)
        return replace(self, weights=weights)

    def counts(self) -> dict[str, int]:
        """How many of the V_t rows are copied, mixed and random."""
        copied, random = int((self.copy >= 0).sum()), int(self.random.sum())
        return {"copied": copied, "mixed": len(self) - copied - random, "random": random}

    @cached_property
    def is_mixed(self) -> np.ndarray:
        """bool (V_t,): the row is a weighted sum."""
        return (self.copy < 0) & ~self.random

    def sources(self, row: int) -> tuple[np.ndarray, np.ndarray]:
        """Source rows and weights of a mixed row, largest magnitude first: its neighbors.

        Where the plan has no neighbors at all but coordinates, the ten of largest weight by these; nothing where the row is not
        mixed, or a regression's alone beside rows that have neighbors.
        """
        ids, weights, most = self.neighbors[row], self.weights[row], None
        if self.basis is not None and not self.neighbors.shape[1]:
            weights, most = self.coordinates[row].astype(np.float64) @ self.basis, _MOST_SOURCES
            ids = np.arange(len(weights))
        order = np.argsort(-np.abs(weights), kind="stable")
        order = order[weights[order] != 0][:most]
        return ids[order], weights[order]

    @property
    def _has_weights(self) -> np.ndarray:
        """bool (V_t,): the row names some source row."""
        named = self.weights.any(axis=1)
        return named if self.coordinates is None else named | self.coordinates.any(axis=1)

    def validate(self, source_size: int | None = None) -> None:
        """Checks that every row has exactly one origin and every origin exists.

        Args:
          source_size: V_s, rows of the source matrix; ids are checked against it where given.

        Raises:
          ValueError: what is wrong, and in which row first.
        """
        if (self.coordinates is None) != (self.basis is None):
            raise ValueError("has coordinates or a basis, but not both")
        fields = _FIELDS if self.basis is None else _FIELDS | _LOW_RANK
        for name, (dtype, dimensions) in fields.items():
            array = getattr(self, name)
            if array.dtype != dtype or array.ndim != dimensions:
                raise ValueError(f"{name} is {array.dtype} of shape {array.shape}, not {dimensions}-dimensional {dtype}")
        shapes = {name: getattr(self, name).shape for name in _FIELDS}
        if len({shape[0] for shape in shapes.values()}) != 1 or self.neighbors.shape != self.weights.shape:
            raise ValueError(f"the arrays do not fit together: {shapes}")
        if self.basis is not None:
            self._validate_regression(source_size)
        if self.head_weights is not None:
            dtype, shape = self.head_weights.dtype, self.head_weights.shape
            if (dtype, shape) != (self.weights.dtype, self.weights.shape):
                raise ValueError(f"head_weights is {dtype} of shape {shape}, unlike weights of shape {self.weights.shape}")
            _refuse_rows(~np.isfinite(self.head_weights).all(axis=1), "has a weight of the head that is not finite")
            _refuse_rows(~self.is_mixed & self.head_weights.any(axis=1), "is copied or random, and has weights of the head")
        top = np.iinfo(np.int32).max if source_size is None else source_size
        _refuse_rows((self.copy < -1) | (self.copy >= top), f"copies no row of a source of {top}")
        _refuse_rows(((self.neighbors < 0) | (self.neighbors >= top)).any(axis=1), f"has a neighbor outside a source of {top}")
        _refuse_rows(~np.isfinite(self.weights).all(axis=1), "has a weight that is not finite")
        _refuse_rows((self.copy >= 0) & self.random, "is copied and random at once")
        _refuse_rows(self.is_mixed & ~self._has_weights, "is neither copied nor mixed nor random")
        _refuse_rows(~self.is_mixed & self._has_weights, "is copied or random, and has weights")

    def _validate_regression(self, source_size: int | None) -> None:
        rows, columns = (len(self), len(self.basis)), (len(self.basis), source_size or self.basis.shape[1])
        if self.coordinates.shape != rows or self.basis.shape != columns:
            raise ValueError(
                f"coordinates and basis do not fit: {self.coordinates.shape}, {self.basis.shape}; expected {rows}, {columns}"
            )
        if not np.isfinite(self.basis).all():
            raise ValueError("basis has a number that is not finite")
        _refuse_rows(~np.isfinite(self.coordinates).all(axis=1), "has a coordinate that is not finite")

    @one_thread()
    def apply(self, matrix: np.ndarray, noise: np.ndarray | None = None) -> np.ndarray:
        """Makes the target tensor of a source tensor: input embeddings, output head, head bias.

        Copied rows keep their bits. Mixed rows are summed in float32 and rounded to the tensor's type once.

        Args:
          matrix: (V_s, ...) of any float type, bfloat16 included.
          noise: (V_t, ...), read where a row is random; may be None where no row is. See `draw_noise`.

        Returns:
          (V_t, ...) of the type of `matrix`.

        Raises:
          ValueError: the plan and `matrix` do not fit, or noise is missing or of another shape.
        """
        matrix = np.asarray(matrix)
        self.validate(len(matrix))
        out = np.empty((len(self), *matrix.shape[1:]), matrix.dtype)
        step = max(_COPY_BYTES // max(math.prod(matrix.shape[1:]) * 4, 1), 1)
        if self.random.any():
            if noise is None or noise.shape != out.shape:
                raise ValueError(f"random rows need noise of shape {out.shape}, got {None if noise is None else noise.shape}")
            for rows in _blocks(np.flatnonzero(self.random), step):
                out[rows] = noise[rows].astype(matrix.dtype)
        for rows in _blocks(np.flatnonzero(self.copy >= 0), step):
            out[rows] = matrix[self.copy[rows]]
        mixed = np.flatnonzero(self.is_mixed)
        if len(mixed) and out.size:
            self._mix_into(out, matrix, mixed)
        return out

    def _mix_into(self, out: np.ndarray, matrix: np.ndarray, mixed: np.ndarray) -> None:
        """Writes the rows `mixed` of `out`, some dimensions at a time: of the source only these are ever held as float32."""
        named = np.zeros(len(matrix), bool) if self.basis is None else self.basis.any(axis=0)
        named[self.neighbors[mixed]] = True
        needed = np.flatnonzero(named)
        place = np.zeros(len(matrix), np.int32)
        place[needed] = np.arange(len(needed))
        source, target = matrix.reshape(len(matrix), -1), out.reshape(len(out), -1)
        basis = None if self.basis is None else self.basis[:, needed]
        width = source.shape[1]
        slices = -(-4 * len(needed) * width // _SLICE_BYTES)
        step = -(-width // slices)
        for begin in range(0, width, step):
            columns = slice(begin, begin + step)
            part = source[:, columns] if len(needed) == len(source) else source[needed, columns]
            table = part.astype(np.float32, copy=False)
            low_rank = None if basis is None else _product(basis, table)
            for rows in _blocks(mixed, _BLOCK):
                block = _mix(table, place[self.neighbors[rows]], self.weights[rows])
                if low_rank is not None:
                    block += _product(self.coordinates[rows], low_rank)
                target[rows, columns] = block.astype(matrix.dtype, copy=False)

    def save(self, path: str | os.PathLike) -> None:
        """Writes `transfer_plan.npz`: the arrays copy, neighbors, weights and random, and those that a plan may have besides.

        The file appears whole or not at all.
        """
        fields = [name for name in (*_FIELDS, *_LOW_RANK, _HEAD) if getattr(self, name) is not None]
        with new_file(path) as handle, zipfile.ZipFile(handle, "w") as archive:
            for name in fields:
                # Packing numbers without a pattern takes seconds and saves a tenth of them.
                packing = zipfile.ZIP_STORED if name in _LOW_RANK else zipfile.ZIP_DEFLATED
                member = zipfile.ZipInfo(f"{name}.npy")
                member.compress_type = packing
                with archive.open(member, "w", force_zip64=True) as array:
                    np.lib.format.write_array(array, np.ascontiguousarray(getattr(self, name)))

    @classmethod
    def load(cls, path: str | os.PathLike) -> "TransferPlan":
        """Reads what `save` wrote.

        Raises:
          UserError: no such file, or it holds no valid plan.
        """
        arrays = read_arrays(path, _EXPECTED, (*_FIELDS, *_LOW_RANK, _HEAD), _MOST_TIMES)
        missing = [name for name in _FIELDS if name not in arrays]
        if missing:
            raise UserError(f"{path}: is no transfer plan: holds no array {', '.join(missing)}; expected {_EXPECTED}")
        plan = cls(**arrays)
        try:
            plan.validate()
        except ValueError as error:
            raise UserError(f"{path}: {error}; expected {_EXPECTED}") from None
        return plan

    def _changed(self, where: np.ndarray, copy: np.ndarray, random: np.ndarray) -> "TransferPlan":
        emptied = {
            name: np.where(where[:, None], values.dtype.type(0), values)
            for name in ("neighbors", "weights", "coordinates", "head_weights")
            if (values := getattr(self, name)) is not None
        }
        return replace(self, copy=copy, random=random, **emptied)


def on_source_rows(neighbors: np.ndarray, weights: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Adds up weights that fall on the same source row, and drops zeros.

    Args:
      neighbors: int (T, K), source rows, repeated ones allowed.
      weights: float64 (T, K).

    Returns:
      neighbors int32 and weights float32 (T, K'), by descending magnitude of the weight, then by id; K' is the largest support.
    """
    if not neighbors.size:
        return np.zeros((len(neighbors), 0), np.int32), np.zeros((len(neighbors), 0), np.float32)
    order = np.argsort(neighbors, axis=1, kind="stable")
    ids, parts = (np.take_along_axis(x, order, axis=1) for x in (neighbors, weights))
    first = np.ones(ids.shape, bool)
    first[:, 1:] = ids[:, 1:] != ids[:, :-1]
    starts = np.flatnonzero(first)
    summed = np.zeros(ids.size, np.float32)
    summed[starts] = np.add.reduceat(parts.reshape(-1), starts)
    summed = summed.reshape(ids.shape)
    ids = np.where(summed != 0, ids, 0)
    order = np.lexsort((ids, -np.abs(summed)), axis=-1)[:, : int((summed != 0).sum(axis=1).max())]
    return np.take_along_axis(ids, order, axis=1).astype(np.int32), np.take_along_axis(summed, order, axis=1)


def _refuse_rows(wrong: np.ndarray, what: str) -> None:
    if wrong.any():
        raise ValueError(f"row {int(wrong.argmax())} {what}")


def _blocks(rows: np.ndarray, step: int) -> Iterator[np.ndarray]:
    for begin in range(0, len(rows), step):
        yield rows[begin : begin + step]


def _product(left: np.ndarray, right: np.ndarray) -> np.ndarray:
    """left @ right, summed in float64: a row's weights are many, and cancel."""
    work.product(*left.shape, right.shape[1])
    total = np.zeros((len(left), right.shape[1]))
    for begin in range(0, len(right), _PRODUCT_ROWS):
        rows = slice(begin, begin + _PRODUCT_ROWS)
        total += left[:, rows].astype(np.float64) @ right[rows].astype(np.float64)
    return total.astype(np.float32)


def _mix(table_SxD: np.ndarray, neighbors_TxK: np.ndarray, weights_TxK: np.ndarray) -> np.ndarray:
    # A sparse product reads each neighbor's row once and adds it to a row that stays in the cache: all of it is reading memory.
    used = weights_TxK != 0
    work.product(used.sum(), table_SxD.shape[1])
    starts = np.concatenate([[0], np.cumsum(used.sum(axis=1))])
    shape = len(weights_TxK), len(table_SxD)
    return csr_array((weights_TxK[used], neighbors_TxK[used], starts), shape=shape) @ table_SxD
