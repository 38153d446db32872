"""A disk without room, as a test can have one."""

import contextlib
import resource
from collections.abc import Iterator


@contextlib.contextmanager
def no_file_above(size: int) -> Iterator[None]:
    """Within the block, what would make a file larger than `size` bytes fails as on a full disk (EFBIG)."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
