"""What figures were taken on: the processor and the packages, for every benchmark that names them."""

import contextlib
import importlib.metadata
import platform
from pathlib import Path

_FACTS = Path("/proc/cpuinfo")


def processor() -> str:
    """Returns the processor's name, as far as the system tells it."""
    lines = _FACTS.read_text(encoding="utf-8").splitlines() if _FACTS.exists() else []
    names = (line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.processor())


def installed(*packages: str) -> dict[str, str]:
    """Returns the versions of those packages that are installed."""
    found = {}
    for package in packages:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            found[package] = importlib.metadata.version(package)
    return found
