"""Linear algebra with the same bits whatever the number of processors."""

from collections.abc import Iterator
from contextlib import contextmanager

from threadpoolctl import threadpool_limits


@contextmanager
def one_thread() -> Iterator[None]:
    """numpy and scipy call BLAS and LAPACK on one thread: in a `with` block, or in a function under `@one_thread()`.

    BLAS and LAPACK cut a product or a factorisation into as many parts as there are threads, and other parts round differently.
    Sums in float64 only make that rare: of the float32 numbers that they become, a few in 10^8 differ still. On one thread the
    shapes alone decide the order of additions. The limit holds for the whole process. Apple's Accelerate, which numpy may be
    built with on macOS, takes no limit.
    """
    with threadpool_limits(1, user_api="blas"):
        yield
