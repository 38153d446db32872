"""How much memory a call needs."""

import tracemalloc
from collections.abc import Callable


def most_held(call: Callable[[], object]) -> int:
    """Bytes that `call` holds at most besides what was held before, the least of three times.

    What it needs it needs every time; what other threads of the process allocate meanwhile, and what is made once, it does not.
    """
    peaks = []
    for _ in range(3):
        tracemalloc.start()
        try:
            call()
            peaks.append(tracemalloc.get_traced_memory()[1])
        finally:
            tracemalloc.stop()
    return min(peaks)
