"""A transfer plan says where every row of a target embedding matrix comes from, and applies to any vocabulary-sized tensor."""

import hashlib
import os
import zipfile
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property

import jax
import jax.numpy as jnp
import numpy as np

from wechsel_jax.errors import UserError
from wechsel_jax.files import new_file, require_file
from wechsel_jax.overlap import match_special
from wechsel_jax.tokens import Vocabulary

_BLOCK = 1024
_FIELDS = {"copy": (np.dtype(np.int32), 1), "neighbors": (np.dtype(np.int32), 2), "weights": (np.dtype(np.float32), 2)}
_FIELDS["random"] = (np.dtype(bool), 1)
_NAMED_ROLES = frozenset({"bos", "eos", "pad", "unk", "mask", "cls", "sep"})


@dataclass(frozen=True)
class Side:
    """One language's tokens.

    Attributes:
      vocabulary: V tokens.
      vectors: float32 (V, m), a vector of each token in the space that both languages share; zeros where there is none.
        None for the methods that need no vectors.
      embeddings: (V, d), the token's row in a model's own input table: of the source model on the source side, of a helper (a
        model of the target language) on the target side; zeros where that model lacks the token. None where no method asks.
    """

    vocabulary: Vocabulary
    vectors: np.ndarray | None = None
    embeddings: np.ndarray | None = None

    @cached_property
    def has_vector(self) -> np.ndarray:
        """bool (V,): the token's vector is not all zeros."""
        if self.vectors is None:
            return np.zeros(len(self.vocabulary), bool)
        return np.asarray(self.vectors).any(axis=1)


@dataclass(frozen=True)
class TransferPlan:
    """Where V_t target rows come from; each is copied, or mixed from K source rows, or random.

    Attributes:
      copy: int32 (V_t,), the source row to copy, -1 where the row is not copied.
      neighbors: int32 (V_t, K), source rows; 0 where the row is not mixed.
      weights: float32 (V_t, K), signed weights of the neighbors; 0 where the row is not mixed.
      random: bool (V_t,), the row is noise.
    """

    copy: np.ndarray
    neighbors: np.ndarray
    weights: np.ndarray
    random: np.ndarray

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
    def copied(cls, copy: np.ndarray) -> "TransferPlan":
        """Row i is source row copy[i] (V_t,); random where copy[i] is -1."""
        return cls.all_random(len(copy)).with_copies(copy)

    @classmethod
    def all_random(cls, rows: int) -> "TransferPlan":
        """Every one of `rows` rows is noise."""
        return cls.mixed(np.zeros((rows, 0)), np.zeros((rows, 0))).with_noise(np.ones(rows, bool))

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
            (special or not). Otherwise tokens are matched by role, so that "[CLS]" finds "<s>".
        """
        if not parity:
            return self.with_copies(match_special(source.vocabulary, target.vocabulary))
        strings, roles = source.vocabulary.strings, source.vocabulary.roles
        named = {string: i for i, string in enumerate(strings) if roles[i] & _NAMED_ROLES}
        return self.with_copies(np.array([named.get(string, -1) for string in target.vocabulary.strings], np.int32))

    def counts(self) -> dict[str, int]:
        """How many of the V_t rows are copied, mixed and random."""
        copied, random = int((self.copy >= 0).sum()), int(self.random.sum())
        return {"copied": copied, "mixed": len(self) - copied - random, "random": random}

    @cached_property
    def is_mixed(self) -> np.ndarray:
        """bool (V_t,): the row is a weighted sum."""
        return (self.copy < 0) & ~self.random

    def validate(self, source_size: int | None = None) -> None:
        """Checks that every row has exactly one origin and every origin exists.

        Args:
          source_size: V_s, rows of the source matrix; ids are checked against it where given.

        Raises:
          ValueError: what is wrong, and in which row first.
        """
        for name, (dtype, dimensions) in _FIELDS.items():
            array = getattr(self, name)
            if array.dtype != dtype or array.ndim != dimensions:
                raise ValueError(f"{name} is {array.dtype} of shape {array.shape}, not {dimensions}-dimensional {dtype}")
        shapes = {name: getattr(self, name).shape for name in _FIELDS}
        if len({shape[0] for shape in shapes.values()}) != 1 or self.neighbors.shape != self.weights.shape:
            raise ValueError(f"the arrays do not fit together: {shapes}")
        top = np.iinfo(np.int32).max if source_size is None else source_size
        _refuse_rows((self.copy < -1) | (self.copy >= top), f"copies no row of a source of {top}")
        _refuse_rows(((self.neighbors < 0) | (self.neighbors >= top)).any(axis=1), f"has a neighbor outside a source of {top}")
        _refuse_rows(~np.isfinite(self.weights).all(axis=1), "has a weight that is not finite")
        _refuse_rows((self.copy >= 0) & self.random, "is copied and random at once")
        _refuse_rows(self.is_mixed & ~self.weights.any(axis=1), "is neither copied nor mixed nor random")
        _refuse_rows(~self.is_mixed & self.weights.any(axis=1), "is copied or random, and has weights")

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
        if self.random.any():
            if noise is None or noise.shape != out.shape:
                raise ValueError(f"random rows need noise of shape {out.shape}, got {None if noise is None else noise.shape}")
            out[self.random] = noise[self.random].astype(matrix.dtype)
        copied = self.copy >= 0
        out[copied] = matrix[self.copy[copied]]
        mixed = np.flatnonzero(self.is_mixed)
        if len(mixed) and out.size:
            table = jnp.asarray(matrix.reshape(len(matrix), -1).astype(np.float32, copy=False))
            for begin in range(0, len(mixed), _BLOCK):
                rows = mixed[begin : begin + _BLOCK]
                fill = ((0, _BLOCK - len(rows)), (0, 0))
                block = _mix(table, np.pad(self.neighbors[rows], fill), np.pad(self.weights[rows], fill))
                out[rows] = np.asarray(block)[: len(rows)].reshape(len(rows), *matrix.shape[1:]).astype(matrix.dtype)
        return out

    def save(self, path: str | os.PathLike) -> None:
        """Writes `transfer_plan.npz`: the arrays copy, neighbors, weights and random. The file appears whole or not at all."""
        with new_file(path) as handle:
            np.savez_compressed(handle, **{name: getattr(self, name) for name in _FIELDS})

    @classmethod
    def load(cls, path: str | os.PathLike) -> "TransferPlan":
        """Reads what `save` wrote.

        Raises:
          UserError: no such file, or it holds no valid plan.
        """
        path = require_file(path, "a transfer_plan.npz")
        try:
            with path.open("rb") as handle:
                plan = cls(**_plan_arrays(np.load(handle, allow_pickle=False)))
            plan.validate()
        except (ValueError, EOFError, OSError, zipfile.BadZipFile, zlib.error, RuntimeError) as error:
            what = "expected a transfer_plan.npz; write it again with `wechsel-jax transfer`"
            raise UserError(f"{path}: {error}; {what}") from error
        return plan

    def _changed(self, where: np.ndarray, copy: np.ndarray, random: np.ndarray) -> "TransferPlan":
        neighbors, weights = (np.where(where[:, None], x.dtype.type(0), x) for x in (self.neighbors, self.weights))
        return replace(self, copy=copy, random=random, neighbors=neighbors, weights=weights)


def _plan_arrays(file: Mapping[str, np.ndarray] | np.ndarray) -> dict[str, np.ndarray]:
    if not isinstance(file, Mapping):
        raise ValueError("holds a single array")
    missing = [name for name in _FIELDS if name not in file]
    if missing:
        raise ValueError(f"holds no array {', '.join(missing)}")
    return {name: file[name] for name in _FIELDS}


def _refuse_rows(wrong: np.ndarray, what: str) -> None:
    if wrong.any():
        raise ValueError(f"row {int(wrong.argmax())} {what}")


@jax.jit
def _mix(table_SxD: jax.Array, neighbors_TxK: jax.Array, weights_TxK: jax.Array) -> jax.Array:
    # One neighbor at a time: float32 on every device, and no (T, K, D) array is ever stored.
    out_TxD = jnp.zeros((neighbors_TxK.shape[0], table_SxD.shape[1]), jnp.float32)
    for k in range(neighbors_TxK.shape[1]):
        out_TxD += weights_TxK[:, k, None] * table_SxD[neighbors_TxK[:, k]]
    return out_TxD


def keyed_generator(seed: int, name: str, row: int = 0) -> np.random.Generator:
    """A numpy generator whose stream depends on (seed, name, row) only, whatever was drawn before."""
    key = hashlib.blake2b(f"{seed}\0{name}".encode(), digest_size=16).digest()
    return np.random.Generator(np.random.Philox(key=np.frombuffer(key, "<u8"), counter=[0, 0, row, 0]))


def draw_noise(
    matrix: np.ndarray,
    rows: int,
    *,
    kind: str,
    seed: int,
    name: str,
    initializer_range: float = 0.02,
    parity: bool = False,
    where: np.ndarray | None = None,
) -> np.ndarray:
    """Draws the random rows of a target tensor; row i depends on (seed, name, i) only.

    Args:
      matrix: the source tensor (V_s, ...), for its mean and population standard deviation of each dimension.
      rows: V_t.
      kind: "source": normal with the mean and deviation of each dimension of `matrix` (Minixhofer et al., 2022, section 3.2);
        "initializer_range": normal with mean 0, as the model was initialised, and zeros for a bias (V_s,).
      seed: any integer.
      name: the tensor's name, so that two tensors get different noise.
      initializer_range: standard deviation of the second kind.
      parity: the draw of PyPI wechsel 0.0.4: one RandomState(1234) for the whole tensor, whatever `seed` and `name`.
      where: bool (V_t,); rows outside are not drawn and stay zero. All rows where None. Does not change the others.

    Returns:
      (V_t, ...) float32 (float64 for a float64 `matrix`).
    """
    matrix = np.asarray(matrix)
    dtype = np.float64 if matrix.dtype == np.float64 else np.float32
    shape = (rows, *matrix.shape[1:])
    if kind not in ("source", "initializer_range"):
        raise ValueError(f'kind must be "source" or "initializer_range", got {kind!r}')
    if parity and kind == "source":
        wide = matrix.astype(dtype, copy=False)
        return np.random.RandomState(1234).normal(wide.mean(0), wide.std(0), shape).astype(dtype)
    out = np.zeros(shape, dtype)
    if kind == "initializer_range" and matrix.ndim == 1:
        return out
    mean, deviation = _moments(matrix) if kind == "source" else (0.0, initializer_range)
    for row in range(rows) if where is None else np.flatnonzero(where):
        out[row] = mean + deviation * keyed_generator(seed, name, int(row)).standard_normal(matrix.shape[1:])
    return out


def _moments(matrix: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Mean and population standard deviation of each dimension, float64, without a float64 copy of the matrix."""
    # Around the first row, so that a mean far from zero costs the variance no digits.
    shift = matrix[0].astype(np.float64)
    total, squares = np.zeros_like(shift), np.zeros_like(shift)
    for begin in range(0, len(matrix), _BLOCK):
        block = matrix[begin : begin + _BLOCK].astype(np.float64) - shift
        total += block.sum(axis=0)
        squares += np.square(block, out=block).sum(axis=0)
    mean = total / len(matrix)
    return mean + shift, np.sqrt(np.maximum(squares / len(matrix) - mean**2, 0))
