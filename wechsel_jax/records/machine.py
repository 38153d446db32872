"""The software that something was made with."""

import contextlib
import importlib.metadata
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
