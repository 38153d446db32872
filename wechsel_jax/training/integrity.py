"""What a checkpoint holds, file by file, so that damage on disk is found before anything is read from it."""

import hashlib
import json
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

MANIFEST = "manifest.json"
_FORMAT = 1
_THREADS = 4


def seal(directory: Path, facts: dict[str, Any]) -> None:
    """Writes `directory/manifest.json`, the size and sha256 of every file below, and makes all of them survive a power cut.

    Args:
      directory: whose files are complete.
      facts: further fields of the manifest.
    """
    files = _files(directory)
    with ThreadPoolExecutor(_THREADS) as pool:
        entries = list(pool.map(lambda name: _measure(directory / name, sync=True), files))
    manifest = {"format": _FORMAT, **facts, "files": dict(zip(files, entries, strict=True))}
    with open(directory / MANIFEST, "w", encoding="utf-8") as handle:
        json.dump(manifest, handle, indent=1)
        handle.flush()
        os.fsync(handle.fileno())
    for folder in (directory, *(path for path in directory.rglob("*") if path.is_dir())):
        sync_directory(folder)


def damage(directory: Path) -> str | None:
    """Says what is wrong with a directory that `seal` has seen; None where every file is as it was."""
    try:
        manifest = json.loads((directory / MANIFEST).read_bytes())
        expected = {str(name): (int(entry["bytes"]), str(entry["sha256"])) for name, entry in manifest["files"].items()}
    except FileNotFoundError:
        return f"{MANIFEST} is missing"
    except OSError as error:
        return f"{MANIFEST} cannot be read ({error.strerror})"
    except (ValueError, KeyError, TypeError, AttributeError):
        return f"{MANIFEST} is damaged"
    if manifest.get("format") != _FORMAT:
        return f"{MANIFEST} has format {manifest.get('format')!r}, not {_FORMAT}"
    # Sizes first: they cost nothing and find most damage.
    for name, (size, _) in expected.items():
        path = directory / name
        if not path.is_file():
            return f"{name} is missing"
        if path.stat().st_size != size:
            return f"{name} has {path.stat().st_size:,} bytes instead of {size:,}"
    with ThreadPoolExecutor(_THREADS) as pool:
        found = pool.map(lambda name: _changed(directory / name, expected[name][1]), expected)
        return next((f"{name} {what}" for name, what in zip(expected, found, strict=True) if what), None)


def sync_directory(directory: Path) -> None:
    """Makes names in a directory survive a power cut."""
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _files(directory: Path) -> list[str]:
    found = (path.relative_to(directory).as_posix() for path in directory.rglob("*") if path.is_file())
    return sorted(name for name in found if name != MANIFEST)


def _measure(path: Path, sync: bool) -> dict[str, Any]:
    with open(path, "rb") as handle:
        digest = hashlib.file_digest(handle, "sha256").hexdigest()
        if sync:
            os.fsync(handle.fileno())
    return {"bytes": path.stat().st_size, "sha256": digest}


def _changed(path: Path, sha256: str) -> str | None:
    try:
        return None if _measure(path, sync=False)["sha256"] == sha256 else "has other contents than were written"
    except OSError as error:
        return f"cannot be read ({error.strerror})"
