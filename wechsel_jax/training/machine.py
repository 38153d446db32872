"""What a run was made on: a line in `workdir/machine.json` for every start."""

import importlib.metadata
import json
import platform
from collections.abc import Sequence
from pathlib import Path

import jax

from wechsel_jax.files import new_file

FILE = "machine.json"
_PACKAGES = ("wechsel-jax", "jax", "flax", "optax", "numpy", "tokenizers", "transformers")


def record_start(workdir: str | Path, step: int, seconds: float, devices: Sequence[jax.Device]) -> None:
    """Adds a start to the record.

    Earlier starts after which nothing was kept are dropped, so that from one start to the next the seconds are those of the
    work that counts: times the devices, they are the device hours of a model card.

    Args:
      workdir: of the run.
      step: that training goes on from.
      seconds: of the run so far, as its metrics count them.
      devices: of all processes.
    """
    file = Path(workdir) / FILE
    start = {
        "step": step,
        "seconds": round(seconds, 3),
        "devices": len(devices),
        "device_kind": devices[0].device_kind,
        "platform": devices[0].platform,
        "processes": jax.process_count(),
        "versions": versions(),
    }
    starts = [old for old in read_starts(workdir) if old.get("seconds", 0.0) < start["seconds"]] if step else []
    with new_file(file, "w") as handle:
        json.dump({"starts": [*starts, start]}, handle, indent=1)
        handle.write("\n")


def read_starts(workdir: str | Path) -> list[dict]:
    """Returns the starts of a run, the oldest first; empty where they were not recorded or the file is damaged."""
    try:
        starts = json.loads((Path(workdir) / FILE).read_text(encoding="utf-8"))["starts"]
    except (OSError, ValueError, KeyError, TypeError):
        return []
    return [start for start in starts if isinstance(start, dict)] if isinstance(starts, list) else []


def versions() -> dict[str, str]:
    """Returns the versions of Python and of the packages that decide what training computes."""
    found = {"python": platform.python_version()}
    for package in _PACKAGES:
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found
