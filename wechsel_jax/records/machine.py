"""The software and the machine that something was made with."""

import contextlib
import importlib.metadata
import os
import platform

# Those that decide what a transfer, a run or an evaluation computes.
_PACKAGES = ("wechsel-jax", "jax", "flax", "optax", "numpy", "tokenizers", "transformers")


def versions() -> dict[str, str]:
    """Returns the versions of Python and of the packages that decide a result, as far as they are installed."""
    found = {"python": platform.python_version()}
    for package in _PACKAGES:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            found[package] = importlib.metadata.version(package)
    return found


def machine() -> str:
    """Returns devices, cores, architecture and version of JAX, as a comparison of runs records them."""
    import jax

    devices = f"{jax.device_count()} x {jax.devices()[0].device_kind}"
    return f"{devices}, {os.cpu_count()} cores ({platform.machine()}), jax {jax.__version__}"
