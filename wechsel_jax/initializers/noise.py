"""Random rows: which distribution they follow, and draws that depend on nothing but (seed, tensor name, row)."""

import hashlib
import math
from collections.abc import Callable, Iterator

import numpy as np

from wechsel_jax.records import work
from wechsel_jax.search.threads import one_thread

KINDS = ("source", "source_sample", "multivariate", "mean", "xavier", "initializer_range")
WECHSEL_SEED, OFA_SEED, FOCUS_SEED = 1234, 114514, 42
# Rows that are drawn together, and bytes of rows that are in memory as float64 at once.
_BLOCK, _BLOCK_BYTES = 1024, 1 << 25


def keyed_generator(seed: int, name: str, row: int = 0) -> np.random.Generator:
    """A numpy generator whose stream depends on (seed, name, row) only, whatever was drawn before."""
    key = hashlib.blake2b(f"{seed}\0{name}".encode(), digest_size=16).digest()
    return np.random.Generator(np.random.Philox(key=np.frombuffer(key, "<u8"), counter=[0, 0, row, 0]))


@one_thread()
def draw_noise(
    matrix: np.ndarray,
    rows: int,
    *,
    kind: str,
    seed: int,
    name: str,
    initializer_range: float = 0.02,
    parity: bool = False,
    parity_seed: int = WECHSEL_SEED,
    where: np.ndarray | None = None,
) -> np.ndarray:
    """Draws the random rows of a target tensor; row i depends on (seed, name, i) only.

    The kinds, where m, s and C are the mean, the deviation and the covariance of the rows of `matrix`:
      "source": each dimension normal with its own m and population s (Minixhofer et al., 2022, section 3.2);
      "source_sample": the same with the sample deviation, divided by V_s - 1 (FOCUS: Dobler and de Melo, 2023);
      "multivariate": normal with m and the full C, divided by V_s, singular or not (SALT's baseline); for a bias its variance;
      "mean": m itself, nothing is drawn;
      "xavier": uniform in +-sqrt(6 / (V_t + d)) (Glorot and Bengio, 2010), and zeros for a bias;
      "initializer_range": normal with mean 0, as the model was initialised, and zeros for a bias.

    Args:
      matrix: the source tensor (V_s, ...) of any float type.
      rows: V_t.
      kind: one of `KINDS`.
      seed: any integer.
      name: the tensor's name, so that two tensors get different noise.
      initializer_range: standard deviation of the last kind.
      parity: for "source", the draw of PyPI wechsel 0.0.4: one RandomState for the whole tensor, whatever `seed` and `name`.
        For "source_sample", that of PyPI deepfocus 1.0.1 for a float32 table of 16 dimensions or more: see `torch_normal`.
      parity_seed: of that RandomState: WECHSEL_SEED, or OFA_SEED for what cisnlp/ofa draws; or of torch: FOCUS_SEED.
      where: bool (V_t,); rows outside are not drawn and stay zero. All rows where None. Does not change the others.

    Returns:
      (V_t, ...) float32 (float64 for a float64 `matrix`).
    """
    matrix = np.asarray(matrix)
    if kind not in KINDS:
        raise ValueError(f"kind must be one of {', '.join(KINDS)}, got {kind!r}")
    dtype = np.float64 if matrix.dtype == np.float64 else np.float32
    shape = (rows, *matrix.shape[1:])
    if parity and kind == "source":
        wide = matrix.astype(dtype, copy=False)
        return np.random.RandomState(parity_seed).normal(wide.mean(0), wide.std(0), shape).astype(dtype)
    out = np.zeros(shape, dtype)
    wanted = np.arange(rows) if where is None else np.flatnonzero(where)
    if not len(wanted) or not out.size or (matrix.ndim == 1 and kind in ("initializer_range", "xavier")):
        return out
    if kind == "mean":
        out[wanted] = moments(matrix)[0]
        return out
    if parity and kind == "source_sample" and matrix.ndim == 2 and matrix.shape[1] >= 16:
        mean, deviation = moments(matrix, ddof=1)
        out[wanted] = mean + deviation * torch_normal(parity_seed, len(wanted), matrix.shape[1])
        return out
    transform = _transform(matrix, rows, kind, initializer_range)
    for ids, block in keyed_rows(seed, name, wanted, math.prod(shape[1:]), uniform=kind == "xavier"):
        places = ids % _BLOCK
        # A matrix product rounds differently for another shape: it always gets a whole block, zeros where nothing was drawn.
        drawn = transform(block)[places] if kind == "multivariate" else transform(block[places])
        out[ids] = drawn.reshape(len(ids), *shape[1:])
    return out


def torch_normal(seed: int, rows: int, dimension: int) -> np.ndarray:
    """What torch draws on a CPU, one row after the other: `torch.empty(d).normal_(generator=...)` of a seeded generator.

    torch (2.13; `normal_fill` in aten/src/ATen/native/cpu/DistributionTemplates.h) fills a row with uniform numbers of 24 bits
    from the Mersenne Twister that numpy has too, and turns 8 with the next 8 into normal ones (Box and Muller, 1958). Where the
    dimension is no multiple of 16, the last 16 places are drawn again. Equal up to torch's approximate logarithm and cosine in
    float32.

    Args:
      seed: of the generator, at most 32 bits.
      rows: n.
      dimension: d, at least 16; torch draws shorter rows in another way.

    Returns:
      float64 (n, d).
    """
    if dimension < 16:
        raise ValueError(f"dimension must be at least 16, got {dimension}")
    rest = 16 if dimension % 16 else 0
    drawn = np.random.RandomState(seed).randint(0, 1 << 32, (rows, dimension + rest), np.uint32)
    uniform = (drawn & np.uint32(0xFFFFFF)) * 2.0**-24

    def normal(part: np.ndarray) -> np.ndarray:
        first, second = np.moveaxis(part.reshape(rows, -1, 2, 8), 2, 0)
        radius, angle = np.sqrt(-2 * np.log1p(-first)), 2 * np.pi * second
        return np.stack([radius * np.cos(angle), radius * np.sin(angle)], axis=2).reshape(rows, -1)

    out = np.empty((rows, dimension))
    whole = dimension // 16 * 16
    out[:, :whole] = normal(uniform[:, :whole])
    if rest:
        out[:, -16:] = normal(uniform[:, -16:])
    return out


def keyed_rows(
    seed: int, name: str, rows: np.ndarray, dimension: int, uniform: bool = False
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yields (ids, block (1024, d) float64): row i of the matrix is the start of keyed_generator(seed, name, i)'s stream.

    Args:
      seed: any integer.
      name: as for `keyed_generator`.
      rows: ids of the rows to draw, ascending.
      dimension: d.
      uniform: draw from [0, 1) and not from N(0, 1).

    Yields:
      The ids drawn, all of one aligned block of 1024 rows, and that block: row i is at i % 1024, zeros where not asked for. The
      block is reused for the next.
    """
    generator = keyed_generator(seed, name)
    draw = generator.random if uniform else generator.standard_normal
    bits = generator.bit_generator
    # Moving one generator's counter gives the streams of new generators, and costs a fraction of making them.
    state = bits.state
    counter = state["state"]["counter"]
    block = np.zeros((_BLOCK, dimension))
    for ids in np.split(rows, np.flatnonzero(np.diff(rows // _BLOCK)) + 1):
        block[:] = 0
        for row in ids:
            counter[2] = row
            bits.state = state
            draw(out=block[row % _BLOCK])
        yield ids, block


def moments(matrix: np.ndarray, ddof: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Mean and standard deviation of each dimension, float64, without a float64 copy of the matrix.

    Args:
      matrix: (V, ...) of any float type.
      ddof: 0: divided by V; 1: by V - 1.
    """
    # Around the first row, so that a mean far from zero costs the variance no digits.
    shift = matrix[0].astype(np.float64)
    total, squares = np.zeros_like(shift), np.zeros_like(shift)
    for block in wide_blocks(matrix, 1024):
        block -= shift
        total += block.sum(axis=0)
        squares += np.square(block, out=block).sum(axis=0)
    mean = total / len(matrix)
    variance = np.maximum(squares / len(matrix) - mean**2, 0)
    if ddof:
        variance = variance * (len(matrix) / max(len(matrix) - ddof, 1))
    return mean + shift, np.sqrt(variance)


def covariance(matrix: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Mean (d,) and covariance (d, d), divided by V, of the rows of (V, ...); both float64."""
    mean = moments(matrix)[0].reshape(-1)
    return mean, gram(matrix, mean) / len(matrix)


def gram(matrix: np.ndarray, mean: np.ndarray | float = 0.0) -> np.ndarray:
    """X^T X (d, d) for X = matrix (V, ...) - mean (d,), in float64 and without a float64 copy of the matrix."""
    total = np.zeros((math.prod(matrix.shape[1:]),) * 2)
    work.product(len(matrix), *total.shape)
    for block in wide_blocks(matrix, block_rows(matrix)):
        block = block.reshape(len(block), -1) - mean
        total += block.T @ block
    return total


def block_rows(matrix: np.ndarray) -> int:
    """How many rows of (V, ...) fit into 32 MiB as float64; at least 1."""
    return max(_BLOCK_BYTES // (8 * max(math.prod(matrix.shape[1:]), 1)), 1)


def wide_blocks(matrix: np.ndarray, rows: int) -> Iterator[np.ndarray]:
    """Yields the rows of (V, ...) as float64 copies, `rows` at a time."""
    for begin in range(0, len(matrix), rows):
        yield matrix[begin : begin + rows].astype(np.float64)


def _transform(matrix: np.ndarray, rows: int, kind: str, initializer_range: float) -> Callable[[np.ndarray], np.ndarray]:
    """Returns what turns independent draws (n, d), normal or for "xavier" uniform, into rows (n, d)."""
    if kind == "xavier":
        limit = xavier_limit(rows, math.prod(matrix.shape[1:]))
        return lambda block: (2 * block - 1) * limit
    if kind == "initializer_range":
        return lambda block: 0.0 + initializer_range * block
    if kind == "multivariate" and matrix.ndim > 1:
        mean, spread = covariance(matrix)
        # The symmetric root: unlike eigenvectors it is unique, whatever LAPACK's choice of their signs.
        work.eigh(len(spread))
        values, vectors = np.linalg.eigh(spread)
        # What rounding leaves of a zero eigenvalue is no variance.
        values = np.where(values > values[-1] * len(values) * np.finfo(np.float64).eps, values, 0)
        root = (vectors * np.sqrt(values)) @ vectors.T
        root, mean = (part.astype(np.float64 if matrix.dtype == np.float64 else np.float32) for part in (root, mean))

        def correlated(block: np.ndarray) -> np.ndarray:
            work.product(*block.shape, len(root))
            return mean + block.astype(root.dtype, copy=False) @ root

        return correlated
    mean, deviation = (part.reshape(-1) for part in moments(matrix, ddof=int(kind == "source_sample")))
    return lambda block: mean + deviation * block


def xavier_limit(rows: int, dimension: int) -> float:
    """a = sqrt(6 / (N + D)): Xavier's uniform draw for (N, D) lies in [-a, a); its deviation is sqrt(2 / (N + D))."""
    return math.sqrt(6 / (rows + dimension))
