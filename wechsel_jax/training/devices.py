"""What the devices can do at most, for model FLOPs utilisation; and programs compiled for them, kept on disk."""

import contextlib
import ctypes
from collections.abc import Iterator
from pathlib import Path

import jax
from jax.experimental.compilation_cache import compilation_cache

# Dense bf16 FLOP/s of one JAX device, from the vendors' data sheets; a JAX device is one core on TPU v2 and v3, one chip later.
_PEAK = (
    ("tpu v2", 22.5e12),
    ("tpu v3", 61.5e12),
    ("tpu v4 lite", 138e12),
    ("tpu v4", 275e12),
    ("tpu v5 lite", 197e12),
    ("tpu v5e", 197e12),
    ("tpu v5p", 459e12),
    ("tpu v5", 459e12),
    ("tpu v6 lite", 918e12),
    ("tpu v6e", 918e12),
    ("h200", 989e12),
    ("h100 pcie", 756e12),
    ("h100", 989e12),
    ("a100", 312e12),
)


def peak_flops(device_kind: str) -> float | None:
    """Returns the dense bf16 FLOP/s of a device, None where it is not known (CPUs).

    Args:
      device_kind: as `jax.Device.device_kind` spells it.
    """
    kind = device_kind.lower()
    return next((peak for name, peak in _PEAK if name in kind), None)


def utilisation(flops_per_token: float, tokens_per_second: float, devices: list[jax.Device]) -> float | None:
    """Model FLOPs utilisation (Chowdhery et al., 2022, appendix B): what the model's matrix products use of the devices' peak.

    Args:
      flops_per_token: forward and backward.
      tokens_per_second: of all devices together.
      devices: all of one kind.
    """
    peak = peak_flops(devices[0].device_kind)
    return None if peak is None else flops_per_token * tokens_per_second / (peak * len(devices))


def keep_freed_memory() -> bool:
    """Makes this process keep the memory that it frees, for its next step; call it once, before training on a CPU.

    There XLA takes the memory of a step from malloc, and glibc gives large pieces back to the system after each step, so that
    the next one pays for every page again: a tenth of the time of a small model. The process then never shrinks.

    Returns:
      Whether the system's malloc can do this (glibc's can).
    """
    # M_TRIM_THRESHOLD = never, M_MMAP_MAX = no piece apart from the heap, M_ARENA_MAX = one heap; numbers of glibc's malloc.h.
    settings = ((-1, -1), (-4, 0), (-8, 1))
    try:
        mallopt = ctypes.CDLL("libc.so.6").mallopt
    except (OSError, AttributeError):
        return False
    return all(mallopt(name, value) == 1 for name, value in settings)


@contextlib.contextmanager
def compiled_programs(directory: str) -> Iterator[None]:
    """Keeps compiled programs in a directory while the block runs; "" changes nothing."""
    if not directory:
        yield
        return
    settings = {"jax_compilation_cache_dir": str(Path(directory).resolve()), "jax_persistent_cache_min_compile_time_secs": 0.0}
    old = {name: getattr(jax.config, name) for name in settings}
    for name, value in settings.items():
        jax.config.update(name, value)
    # JAX opens the directory at the first compilation and then stays with it.
    compilation_cache.reset_cache()
    try:
        yield
    finally:
        for name, value in old.items():
            jax.config.update(name, value)
        compilation_cache.reset_cache()
