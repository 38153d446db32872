"""A directory's manifest: the sizes and checksums of its files, and whether they are still so."""

import hashlib
import json
import os
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

# In a directory that a verb wrote: which verb, and which files.
RECORD = ".wechsel-jax.json"
_FORMAT = 1
_THREADS = 4


def seal(directory: Path, facts: Mapping[str, Any], name: str, *, checksums: bool = True) -> None:
    """Writes `directory/name`, the size and sha256 of every file below, and makes all of them survive a power cut.

    Args:
      directory: whose files are complete.
      facts: further fields of the record.
      name: of the record.
      checksums: leave out the sha256 where false.
    """
    files = list_files(directory, name)
    with ThreadPoolExecutor(_THREADS) as pool:
        entries = list(pool.map(lambda file: _synced(directory / file, checksums), files))
    record = {"format": _FORMAT, **facts, "files": dict(zip(files, entries, strict=True))}
    with open(directory / name, "w", encoding="utf-8") as handle:
        json.dump(record, handle, indent=1)
        handle.flush()
        os.fsync(handle.fileno())
    for folder in (directory, *(path for path in directory.rglob("*") if path.is_dir())):
        sync_directory(folder)


def damage(directory: Path, name: str = RECORD) -> str | None:
    """Says what is wrong with a directory that `seal` has seen; None where every file is as it was."""
    try:
        record = json.loads((directory / name).read_bytes())
        expected = {str(file): (int(entry["bytes"]), str(entry["sha256"])) for file, entry in record["files"].items()}
    except FileNotFoundError:
        return f"{name} is missing"
    except OSError as error:
        return f"{name} cannot be read ({error.strerror})"
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return f"{name} is damaged"
    if record.get("format") != _FORMAT:
        return f"{name} has format {record.get('format')!r}, not {_FORMAT}"
    # Sizes first: they cost nothing and find most damage.
    for file, (size, _) in expected.items():
        path = directory / file
        if not path.is_file():
            return f"{file} is missing"
        if path.stat().st_size != size:
            return f"{file} has {path.stat().st_size:,} bytes instead of {size:,}"
    with ThreadPoolExecutor(_THREADS) as pool:
        found = pool.map(lambda file: _changed(directory / file, expected[file][1]), expected)
        return next((f"{file} {what}" for file, what in zip(expected, found, strict=True) if what), None)


def file_hash(path: str | os.PathLike) -> str:
    """sha256 of a file."""
    with open(path, "rb") as handle:
        return hashlib.file_digest(handle, "sha256").hexdigest()


def sync_directory(directory: Path) -> None:
    """Makes names in a directory survive a power cut."""
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def list_files(directory: Path, record: str) -> list[str]:
    """Names of all files below a directory but its record, sorted; links count as files."""
    found = (path.relative_to(directory).as_posix() for path in directory.rglob("*") if path.is_symlink() or not path.is_dir())
    return sorted(name for name in found if name != record)


def _synced(path: Path, checksum: bool) -> dict[str, Any]:
    """Makes a file survive a power cut; returns its entry."""
    with open(path, "rb") as handle:
        entry: dict[str, Any] = {"bytes": os.fstat(handle.fileno()).st_size}
        if checksum:
            entry["sha256"] = hashlib.file_digest(handle, "sha256").hexdigest()
        os.fsync(handle.fileno())
    return entry


def _changed(path: Path, sha256: str) -> str | None:
    try:
        same = file_hash(path) == sha256
    except OSError as error:
        return f"cannot be read ({error.strerror})"
    return None if same else "has other contents than were written"
