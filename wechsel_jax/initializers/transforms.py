"""What is done to a whole embedding table: a low-rank factorisation, another scale, a shuffle; and the way back.

Every transform takes a table (N, D) of any float type, works on blocks of rows in float64, and returns the table's type.
"""

import math
from dataclasses import dataclass

import numpy as np

from wechsel_jax.errors import UserError
from wechsel_jax.initializers.noise import block_rows, draw_noise, gram, keyed_generator, moments, wide_blocks, xavier_limit
from wechsel_jax.records import work
from wechsel_jax.search.threads import one_thread

STANDARDIZATIONS = ("pretrained_xavier", "xavier_pretrained", "xavier")
SHUFFLES = ("rows_columns", "elements")
# Those whose deviation is that of Kim et al.'s table 6, see `absorption`.
POSITIONS = 1024


@dataclass(frozen=True)
class Factors:
    """A table as a product.

    Attributes:
      coordinates: (V, D') of each token.
      projection: float32 (D', d) that all tokens share; None where the table was not factorised: the coordinates are it.
    """

    coordinates: np.ndarray
    projection: np.ndarray | None

    @one_thread()
    def dense(self, dtype: np.dtype | None = None) -> np.ndarray:
        """The product (V, d), of the given type; that of the coordinates where None."""
        dtype = self.coordinates.dtype if dtype is None else np.dtype(dtype)
        if self.projection is None:
            return self.coordinates.astype(dtype, copy=False)
        out = np.empty((len(self.coordinates), self.projection.shape[1]), dtype)
        work.product(len(out), *self.projection.shape)
        step = block_rows(out)
        for begin in range(0, len(out), step):
            rows = self.coordinates[begin : begin + step].astype(np.float32, copy=False)
            out[begin : begin + step] = rows @ self.projection
        return out


@one_thread()
def low_rank(matrix: np.ndarray, dimensions: int | str | None) -> Factors:
    """The best factorisation of rank D': matrix = F P with F = U and P = S V^T truncated (Liu et al., 2024: OFA, section 3.1).

    The coordinates have orthonormal columns: the singular values are in the projection, as in the reference. Both come from the
    eigenvectors of the (d, d) Gram matrix, which spares the decomposition of the whole table. Signs, which a decomposition
    leaves open, are such that the largest entry of each row of the projection is positive.

    Args:
      matrix: (V, d) of any float type.
      dimensions: D' <= min(V, d); None, 0, "full" or d: no factorisation.

    Returns:
      coordinates float32 (V, D') and projection float32 (D', d); without factorisation the matrix itself and None.

    Raises:
      UserError: more dimensions than the table has, a number below 0, or a bias in place of a table.
    """
    if dimensions in (None, 0, "full") or (matrix.ndim == 2 and dimensions == matrix.shape[1]):
        return Factors(matrix, None)
    if matrix.ndim != 2 or not isinstance(dimensions, int | np.integer) or not 0 < dimensions <= min(matrix.shape):
        raise UserError(
            f"dimensions {dimensions}: a table of shape {matrix.shape} cannot have so many; expected 1 to {min(matrix.shape)}"
        )
    work.eigh(matrix.shape[1])
    work.product(*matrix.shape, dimensions)
    values, vectors = np.linalg.eigh(gram(matrix))
    basis = vectors[:, np.argsort(-values, kind="stable")[:dimensions]]
    largest = np.abs(basis).argmax(axis=0)
    basis = basis * np.where(basis[largest, np.arange(dimensions)] < 0, -1, 1)
    coordinates = np.empty((len(matrix), dimensions), np.float32)
    squares, begin = np.zeros(dimensions), 0
    for block in wide_blocks(matrix, block_rows(matrix)):
        scores = block @ basis
        squares += np.square(scores).sum(axis=0)
        coordinates[begin : begin + len(block)] = scores
        begin += len(block)
    # The lengths of U S rather than roots of eigenvalues: those have no correct digit where S is small.
    singular = np.sqrt(squares)
    coordinates *= np.divide(1, singular, out=np.zeros_like(singular), where=singular > 0).astype(np.float32)
    return Factors(coordinates, (basis * singular).T.astype(np.float32))


def scalar_moments(table: np.ndarray) -> tuple[float, float]:
    """Mean and sample standard deviation of all N D entries of a table, not of each dimension."""
    if not table.size:
        return 0.0, 0.0
    means, deviations = moments(table.reshape(len(table), -1))
    mean = means.mean()
    variance = (np.square(deviations) + np.square(means - mean)).mean() * table.size / max(table.size - 1, 1)
    return float(mean), math.sqrt(variance)


def rescale(table: np.ndarray, mean: float, deviation: float) -> np.ndarray:
    """Shifts and scales all entries of a table so that their mean and sample standard deviation are the given ones.

    `rescale(standardized, *scalar_moments(original))` undoes a standardization.

    Raises:
      UserError: all entries are the same number.
    """
    old_mean, old_deviation = scalar_moments(table)
    if not old_deviation > 0:
        raise UserError(f"a table of shape {table.shape} whose entries are all the same cannot be scaled; expected embeddings")
    out = np.empty(table.shape, table.dtype)
    begin, factor = 0, deviation / old_deviation
    for block in wide_blocks(table, block_rows(table)):
        out[begin : begin + len(block)] = (block - old_mean) * factor + mean
        begin += len(block)
    return out


def standardize(
    table: np.ndarray, kind: str, *, seed: int = 0, name: str = "standardize", size: int | None = None
) -> np.ndarray:
    """Gives pretrained embeddings X_p the scale of Xavier's, or Xavier's that of X_p (Kim et al., section 3.4 and A.3).

    The kinds, with scalar means and sample deviations over all entries:
      "pretrained_xavier": (x - mean(X_p)) sigma_x / sigma_p, equation 1; sigma_x = sqrt(2 / (N + D)), that of Xavier's
        distribution (the paper may mean that of one draw, which differs by about 1 / sqrt(2 N D) of it);
      "xavier_pretrained": a draw X_x, as (x - mean(X_x)) sigma_p / sigma_x + mean(X_p), equation 4; sigma_x is the draw's;
      "xavier": a draw X_x, uniform in +-sqrt(6 / (N + D)).

    Args:
      table: X_p, (rows, D) of any float type.
      kind: one of `STANDARDIZATIONS`.
      seed: of the draw; row i of it depends on (seed, name, i) only.
      name: of the draw.
      size: N, rows of the table that X_p is a part of; rows where None.

    Returns:
      (rows, D) of the type of `table`.

    Raises:
      UserError: all entries are the same number.
      ValueError: an unknown kind.
    """
    if kind not in STANDARDIZATIONS:
        raise ValueError(f"kind must be one of {', '.join(STANDARDIZATIONS)}, got {kind!r}")
    rows, dimension = table.shape
    size = size or rows
    if kind == "pretrained_xavier":
        return rescale(table, 0.0, xavier_limit(size, dimension) / math.sqrt(3))
    # Drawn in the table of N rows, of which the first are kept: the limit is that of N.
    draw = draw_noise(table[:1], size, kind="xavier", seed=seed, name=name, where=np.arange(size) < rows)[:rows]
    drawn = rescale(draw, *scalar_moments(table)) if kind == "xavier_pretrained" else draw
    return drawn.astype(table.dtype, copy=False)


def shuffle(table: np.ndarray, kind: str = "rows_columns", *, seed: int = 0) -> np.ndarray:
    """Destroys what embeddings mean and keeps their distribution ("Pre-trained_Shuffled", Kim et al., section 3.4).

    The paper shuffles "rows and columns": "rows_columns" permutes each, which keeps the similarities between rows but gives
    them to other tokens; "elements" permutes all N D entries, which destroys them (and takes 8 bytes of memory for each).

    Args:
      table: (N, D) of any type.
      kind: one of `SHUFFLES`.
      seed: with the shape and the kind all that the permutation depends on.

    Returns:
      (N, D); `unshuffle` undoes it.
    """
    rows, columns = _orders(table.shape, kind, seed)
    if columns is None:
        return table.reshape(-1)[rows].reshape(table.shape)
    return table[np.ix_(rows, columns)]


def unshuffle(table: np.ndarray, kind: str = "rows_columns", *, seed: int = 0) -> np.ndarray:
    """Undoes `shuffle` with the same kind and seed, bit for bit."""
    rows, columns = _orders(table.shape, kind, seed)
    out = np.empty(table.shape, table.dtype)
    if columns is None:
        out.reshape(-1)[rows] = table.reshape(-1)
    else:
        out[np.ix_(rows, columns)] = table
    return out


def _orders(shape: tuple[int, int], kind: str, seed: int) -> tuple[np.ndarray, np.ndarray | None]:
    if kind not in SHUFFLES:
        raise ValueError(f"kind must be one of {', '.join(SHUFFLES)}, got {kind!r}")
    if kind == "elements":
        return keyed_generator(seed, "shuffle elements").permutation(math.prod(shape)), None
    rows, columns = (
        keyed_generator(seed, f"shuffle {axis}").permutation(n) for axis, n in zip(("rows", "columns"), shape, strict=True)
    )
    return rows, columns


def sinusoidal_positions(length: int, dimension: int, paired: bool = False) -> np.ndarray:
    """The position table P (L, D) that a Transformer adds to its scaled embeddings (Kim et al., appendix A.1, equation 2).

    P[i, j] = sin(i / 10000^(j / D)) for even j and cos of the same for odd j. With `paired`, both of a pair of dimensions have
    the exponent of the even one, as in Vaswani et al. (2017).
    """
    j = np.arange(dimension)
    exponent = (j - j % 2 if paired else j) / dimension
    angle = np.arange(length)[:, None] / 10000.0**exponent
    return np.where(j % 2 == 0, np.sin(angle), np.cos(angle))


def absorption(table: np.ndarray, length: int = POSITIONS, paired: bool = False) -> dict[str, float]:
    """How far embeddings drown the positions that are added to them (Kim et al., section 6 and table 6).

    A Transformer's input is x sqrt(D) + P. With Xavier's embeddings x sqrt(D) varies less than P (0.27 against 0.67 in the
    paper's table), with GloVe's ten times as much (6.39): the positions are absorbed. The paper does not give the length of P:
    1024 positions have its deviation of 0.67, but its mean of 0.131 belongs to 5000 (there the deviation is 0.69).

    Args:
      table: (N, D).
      length: L, positions that P has.
      paired: see `sinusoidal_positions`.

    Returns:
      "embedding_sd" and "position_sd", sample deviations of all entries of x sqrt(D) and of P, their "ratio", and "mean" and
      "sd" of the entries of x.
    """
    mean, deviation = scalar_moments(table)
    scaled = deviation * math.sqrt(table.shape[1])
    position = scalar_moments(sinusoidal_positions(length, table.shape[1], paired))[1]
    return {"mean": mean, "sd": deviation, "embedding_sd": scaled, "position_sd": position, "ratio": scaled / position}
