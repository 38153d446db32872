"""Files and directories that appear whole or not at all."""

import contextlib
import errno
import fcntl
import os
import re
import secrets
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, NoReturn

from wechsel_jax.files.manifests import RECORD, seal
from wechsel_jax.files.refusals import refuse_directory

# A disk without room: none left, none for this user, none for so large a file.
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
# What this process is writing, so that it can be removed however the process ends.
_unfinished: set[Path] = set()


@contextlib.contextmanager
def new_file(path: str | os.PathLike, mode: str = "wb") -> Iterator[IO]:
    """Opens a temporary file beside `path` and renames it to `path` once the block has ended without an error."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    remove_leftovers(path)
    with _temporary(path, lambda place: os.close(os.open(place, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666))) as temporary:
        with open(temporary, mode, encoding=None if "b" in mode else "utf-8") as handle:
            yield handle
            handle.flush()
            os.fsync(handle.fileno())
        os.replace(temporary, path)


@contextlib.contextmanager
def new_directory(path: str | os.PathLike, writer: str, overwrite: bool = False, *, checksums: bool = False) -> Iterator[Path]:
    """Yields a temporary directory beside `path` and renames it to `path` once the block has ended without an error.

    Args:
      path: the directory; it gets a record (`RECORD`) of the writer and of its files, by which `refuse_directory` knows it.
      writer: the verb or program that writes, e.g. "transfer".
      overwrite: it may replace what the same writer wrote.
      checksums: the record holds the sha256 of each file, for `damage`.

    Raises:
      UserError: as `refuse_directory`, before the block or after it. Nothing is touched then.
    """
    path = Path(path)
    refuse_directory(path, writer, overwrite)
    with temporary_directory(path) as temporary:
        yield temporary
        seal(temporary, {"written_by": writer}, RECORD, checksums=checksums)
        # Another process may have written it meanwhile.
        refuse_directory(path, writer, overwrite)
        if not path.is_dir():
            os.replace(temporary, path)
            return
        old = Path(f"{temporary}".removesuffix(".partial") + ".old")
        with held(path):
            os.replace(path, old)
            try:
                os.replace(temporary, path)
            except BaseException:
                os.replace(old, path)
                raise
            shutil.rmtree(old)


@contextlib.contextmanager
def temporary_directory(path: str | os.PathLike) -> Iterator[Path]:
    """Yields a directory beside `path`, for what is needed while `path` is made; it is gone after the block."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    remove_leftovers(path)
    with _temporary(path, os.mkdir) as temporary:
        yield temporary


@contextlib.contextmanager
def _temporary(path: Path, make: Callable[[Path], object]) -> Iterator[Path]:
    """A name beside `path` that is made, held by this process, and removed unless the block renames it."""
    while True:
        # Noted before it is made: a signal may arrive at any instruction.
        temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}.partial")
        _unfinished.add(temporary)
        try:
            make(temporary)
            with held(temporary) as mine:
                # Otherwise another process, which removes leftovers, has seen it before it was held.
                if mine is not False and temporary.exists():
                    yield temporary
                    return
        except OSError as error:
            # Nobody knows the temporary name, and a write that fails does not say where.
            where = error.filename or (temporary if error.errno in (*FULL, errno.EIO) else "")
            if f"{where}".startswith(f"{temporary}"):
                error.filename = f"{path}"
            raise
        finally:
            _remove(temporary)
            _unfinished.discard(temporary)


def copy_tree(source: str | os.PathLike, target: str | os.PathLike) -> None:
    """Copies what lies in a directory into one that is there.

    Raises:
      OSError: the first file that cannot be read or written; `shutil.copytree` raises a list without the system's numbers.
    """

    def fail(error: OSError) -> NoReturn:
        raise error

    for directory, folders, names in os.walk(source, onerror=fail, followlinks=True):
        place = Path(target, os.path.relpath(directory, source))
        for name in folders:
            (place / name).mkdir(exist_ok=True)
        for name in names:
            try:
                shutil.copy2(Path(directory, name), place / name)
            except OSError as error:
                if error.errno in FULL:
                    # Of both files, the error names the one that is read.
                    error.filename, error.filename2 = f"{place / name}", None
                raise


@contextlib.contextmanager
def held(path: str | os.PathLike, wait: bool = False) -> Iterator[bool | None]:
    """Locks a file or directory within the block, or for as long as this process lives.

    Args:
      path: what is there. A file that is replaced does not stay locked; lock its directory.
      wait: until nobody else holds it.

    Yields:
      True; false where another process holds it; None where the file system has no such locks, as some network ones.
    """
    descriptor = os.open(path, os.O_RDONLY)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            mine = False
        except OSError:
            mine = None
        else:
            mine = True
        yield mine
    finally:
        os.close(descriptor)


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        with contextlib.suppress(OSError):
            path.unlink()


def remove_unfinished() -> None:
    """Removes what this process is writing: the last thing a program does that a signal ends."""
    for path in list(_unfinished):
        _remove(path)


def remove_leftovers(path: str | os.PathLike) -> None:
    """Removes what killed processes left of `new_file` and `new_directory` for `path`; what is being written stays.

    Only names that these two make are looked at. Where a process was killed between taking an old directory away and putting
    the new one in its place, the old one is put back.
    """
    path = Path(path)
    ours = re.compile(rf"\.{re.escape(path.name)}\.[0-9a-f]{{8}}\.(partial|old)")
    with contextlib.suppress(OSError):
        for place in [path.with_name(name) for name in os.listdir(path.parent) if ours.fullmatch(name)]:
            if place.is_symlink():
                continue
            with held(place) as free:
                if free and place.suffix == ".old" and not path.exists():
                    os.replace(place, path)
                elif free:
                    _remove(place)
