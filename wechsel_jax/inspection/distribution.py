"""How the entries and rows of an embedding table are distributed, before and after transforms, in blocks of rows.

Kim et al. (2024) explain by it which pretrained embeddings a new Transformer trains well from (tables 2, 6 and 8).
"""

import dataclasses
import math
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING

import numpy as np

from wechsel_jax.errors import UserError
from wechsel_jax.initializers.noise import keyed_rows, xavier_limit
from wechsel_jax.initializers.transforms import SHUFFLES, STANDARDIZATIONS, shuffle
from wechsel_jax.records.embeddings import Distribution
from wechsel_jax.search.threads import one_thread

if TYPE_CHECKING:
    from wechsel_jax.inspection.positions import Positions

# What can be done to a table: times sqrt(D), which a Transformer does before it adds positions; another spread; a shuffle.
STEPS = ("scaled", *STANDARDIZATIONS, *SHUFFLES)
# The order of all entries takes 8 bytes for each; distributions of larger tables are not measured after it.
MOST_SHUFFLED = 1 << 25
# Of a histogram, over so many deviations to both sides of the mean.
_BINS, _REACH = 60, 4.0
_BLOCK_BYTES = 1 << 24


@dataclasses.dataclass(frozen=True)
class TableRows:
    """A table (N, D) whose rows are read when they are asked for.

    Attributes:
      name: of the model or file.
      table: which table of it.
      shape: (N, D).
      dtype: what the rows are stored in.
      read: returns the rows of ascending ids (n,), (n, D).
      words: the word that each row stands for, None for other rows; None where no row's word is known.
      groups: origin -> bool (N,), where rows have different origins.
      positions: how the model that the table is of tells positions apart; None for word vectors.
    """

    name: str
    table: str
    shape: tuple[int, int]
    dtype: np.dtype
    read: Callable[[np.ndarray], np.ndarray]
    words: tuple[str | None, ...] | None = None
    groups: Mapping[str, np.ndarray] = dataclasses.field(default_factory=dict)
    positions: "Positions | None" = None

    @classmethod
    def of(cls, array: np.ndarray, name: str, table: str = "words", **fields: object) -> "TableRows":
        """The rows of an array (N, D), which may be mapped from a file."""
        return cls(name, table, array.shape, array.dtype, array.__getitem__, **fields)

    def blocks(self, where: np.ndarray | None = None) -> Iterator[np.ndarray]:
        """Yields the rows, or those of a mask (N,), as float64 blocks.

        Raises:
          UserError: one holds NaN or infinity.
        """
        ids = np.arange(self.shape[0]) if where is None else np.flatnonzero(where)
        step = max(_BLOCK_BYTES // (8 * max(self.shape[1], 1)), 1)
        for begin in range(0, len(ids), step):
            part = ids[begin : begin + step]
            block = self.read(part).astype(np.float64)
            finite = np.isfinite(block).all(axis=1)
            if not finite.all():
                row = part[int(finite.argmin())]
                raise UserError(f"{self.name}: row {row} of {self.table}: NaN or infinity; expected finite numbers")
            yield block


def distribution(
    rows: TableRows, *, group: str = "all", steps: tuple[str, ...] = (), where: np.ndarray | None = None
) -> Distribution:
    """Describes a table in two passes over its rows.

    Args:
      rows: the table, `steps` already applied: see `transformed`.
      group: name of the rows that are described.
      steps: what was done to the table.
      where: bool (N,), the rows of the group; all where None.

    Raises:
      UserError: no row is there, or one holds NaN or infinity.
    """
    count, limit = 0, xavier_limit(*rows.shape)
    shift = None
    total = squares = 0.0
    ends, lengths, directions = [math.inf, -math.inf], [], np.zeros(rows.shape[1])
    for block in rows.blocks(where):
        norms = np.linalg.norm(block, axis=1)
        lengths.append(norms)
        directions += (block / np.where(norms > 0, norms, 1)[:, None]).sum(axis=0)
        ends = [min(ends[0], float(block.min())), max(ends[1], float(block.max()))]
        count += block.size
        # Around some entry, so that a mean far from zero costs the variance no digits.
        shift = float(block[0, 0]) if shift is None else shift
        block -= shift
        total += float(block.sum())
        squares += float(np.square(block, out=block).sum())
    if not count:
        raise UserError(f"{rows.name}: {rows.table} has no {group} rows; expected at least one")
    mean = total / count
    sd = math.sqrt(max(squares - count * mean**2, 0.0) / max(count - 1, 1))
    mean += shift
    low, high = max(ends[0], mean - _REACH * sd), min(ends[1], mean + _REACH * sd)
    counts, outside = np.zeros(_BINS, np.int64), 0
    for block in rows.blocks(where):
        counts += np.histogram(block, _BINS, (low, high) if low < high else (low - 1, high + 1))[0]
        outside += int((np.abs(block) > limit).sum())
    norms = np.concatenate(lengths)
    pointing = int((norms > 0).sum())
    # The sum over all pairs of unit rows is the squared length of their sum; each row paired with itself adds 1 to it.
    pairs = pointing * (pointing - 1)
    return Distribution(
        steps=steps, group=group, rows=len(norms), zero_rows=len(norms) - pointing, least=ends[0], largest=ends[1],
        mean=mean, sd=sd, norm_least=float(norms.min()), norm_mean=float(norms.mean()), norm_largest=float(norms.max()),
        anisotropy=(float(directions @ directions) - pointing) / pairs if pairs else None,
        xavier_limit=limit, outside=outside / count, bins=(low, high), counts=tuple(counts.tolist()),
    )  # fmt: skip


@one_thread()
def moments_of(rows: TableRows) -> tuple[np.ndarray, np.ndarray]:
    """Mean (D,) and covariance (D, D), divided by N, of the rows; float64, in one pass."""
    shift = rows.read(np.arange(1))[0].astype(np.float64)
    total, products = np.zeros(rows.shape[1]), np.zeros((rows.shape[1],) * 2)
    for block in rows.blocks():
        block -= shift
        total += block.sum(axis=0)
        products += block.T @ block
    mean = total / rows.shape[0]
    return mean + shift, products / rows.shape[0] - np.outer(mean, mean)


def transformed(rows: TableRows, step: str, known: Distribution | None = None, *, seed: int = 0) -> TableRows:
    """Returns the table after one step, its rows made when they are read: the numbers of `initializers.transforms`.

    Args:
      rows: the table.
      step: one of `STEPS`.
      known: `distribution(rows)`, where it is known; else what is needed of it is measured.
      seed: of a draw and of a shuffle.

    Raises:
      UserError: all entries are the same number, or the table is too large to be shuffled.
      ValueError: an unknown step.
    """
    size, dimension = rows.shape
    limit = xavier_limit(size, dimension)

    def drawn(ids: np.ndarray) -> np.ndarray:
        out = np.empty((len(ids), dimension), np.float32)
        done = 0
        for some, block in keyed_rows(seed, "table", ids, dimension, uniform=True):
            out[done : done + len(some)] = (2 * block[some % len(block)] - 1) * limit
            done += len(some)
        return out

    def affine(read: Callable[[np.ndarray], np.ndarray], shift: float, factor: float, back: float = 0.0) -> TableRows:
        return dataclasses.replace(
            rows, read=lambda ids: ((read(ids).astype(np.float64) - shift) * factor + back).astype(rows.dtype)
        )

    if step == "scaled":
        return affine(rows.read, 0.0, math.sqrt(dimension))
    if step == "xavier":
        return dataclasses.replace(rows, read=lambda ids: drawn(ids).astype(rows.dtype))
    if step == "rows_columns":
        # A shuffle of the row numbers and of the column numbers tells where each row and column comes from.
        order = shuffle(np.arange(size)[:, None], step, seed=seed)[:, 0]
        columns = shuffle(np.arange(dimension)[None], step, seed=seed)[0]

        def permuted(ids: np.ndarray) -> np.ndarray:
            wanted = order[ids]
            ascending = np.argsort(wanted)
            out = np.empty((len(ids), dimension), rows.dtype)
            out[ascending] = rows.read(wanted[ascending])
            return out[:, columns]

        return dataclasses.replace(rows, read=permuted)
    if step == "elements":
        if size * dimension > MOST_SHUFFLED:
            raise UserError(f"{rows.name}: {size:,} x {dimension} entries are too many to shuffle; expected {MOST_SHUFFLED:,}")
        return dataclasses.replace(rows, read=shuffle(rows.read(np.arange(size)), step, seed=seed).__getitem__)
    if step not in STANDARDIZATIONS:
        raise ValueError(f"step must be one of {', '.join(STEPS)}, got {step!r}")
    known = known or distribution(rows)
    if not known.sd:
        raise UserError(f"{rows.name}: {rows.table}: all entries are the same, {known.mean:g}; expected a table with a spread")
    if step == "pretrained_xavier":
        return affine(rows.read, known.mean, limit / math.sqrt(3) / known.sd)
    draw = distribution(dataclasses.replace(rows, dtype=np.dtype(np.float32), read=drawn))
    return affine(drawn, draw.mean, known.sd / draw.sd, known.mean)
