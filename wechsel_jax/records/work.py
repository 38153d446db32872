"""What was multiplied and added, and how much text was read: kernels tell, where they know their shapes, and `counted` hears.

FLOPs are those of matrix products, dense and sparse, and of factorisations by their usual counts (Golub and Van Loan, 2013).
What is linear in a table or a text, such as means of word vectors, logarithms, counts and sorting, is none.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar


class Work:
    """What has been told; lists, to which threads can append at once."""

    def __init__(self):
        self._flops: list[float] = []
        self._text: list[int] = []

    @property
    def flops(self) -> float:
        """Multiplications and additions so far."""
        return math.fsum(self._flops)

    @property
    def text_bytes(self) -> int:
        """UTF-8 bytes of text that were cut into tokens or words so far, in every pass over it."""
        return sum(self._text)


_HEARD: ContextVar[Work | None] = ContextVar("work", default=None)


@contextmanager
def counted() -> Iterator[Work]:
    """Hears what is told in the block, on this thread and those of `carried` functions; an inner block hears for itself."""
    work = Work()
    token = _HEARD.set(work)
    try:
        yield work
    finally:
        _HEARD.reset(token)


def carried(function: Callable) -> Callable:
    """The function for another thread, which is heard here."""
    work = _HEARD.get()

    def run(*arguments):
        _HEARD.set(work)
        return function(*arguments)

    return run


def flops(number: float) -> None:
    """Tells so many operations."""
    if (work := _HEARD.get()) is not None:
        work._flops.append(number)


def product(*sizes: int) -> None:
    """Tells the product of an (n, k) and a (k, m) matrix as n, k, m; of a sparse one and a (k, m) as its numbers, m."""
    flops(2 * math.prod(map(int, sizes)))


def svd(rows: int, columns: int) -> None:
    """Tells a thin singular value decomposition with both sides' vectors (figure 8.6.1)."""
    large, small = max(rows, columns), min(rows, columns)
    flops(6 * large * small**2 + 20 * small**3)


def eigh(size: int) -> None:
    """Tells the eigenvalues and eigenvectors of a symmetric matrix (section 8.3)."""
    flops(9 * size**3)


def solve(size: int, columns: int) -> None:
    """Tells a linear system of so many unknowns and right-hand sides (section 3.2)."""
    flops(2 * size**3 / 3 + 2 * size**2 * columns)


def qr(rows: int, columns: int) -> None:
    """Tells an orthogonal basis of tall columns (section 5.2)."""
    flops(4 * rows * columns**2 - 4 * columns**3 / 3)


def text(documents: Sequence[str]) -> None:
    """Tells text that was read."""
    if (work := _HEARD.get()) is not None:
        work._text.append(sum(len(document.encode("utf-8", "surrogatepass")) for document in documents))
