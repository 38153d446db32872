"""Files and directories that appear whole or not at all."""

import contextlib
import glob
import os
import shutil
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import IO

from wechsel_jax.errors import UserError


@contextlib.contextmanager
def new_file(path: str | os.PathLike, mode: str = "wb") -> Iterator[IO]:
    """Opens a temporary file beside `path` and renames it to `path` once the block has ended without an error."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".partial")
    try:
        with os.fdopen(descriptor, mode, encoding=None if "b" in mode else "utf-8") as handle:
            yield handle
            handle.flush()
            os.fsync(handle.fileno())
        os.chmod(temporary, 0o666 & ~_umask())
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(temporary)
        raise


@contextlib.contextmanager
def new_directory(path: str | os.PathLike, overwrite: bool = False) -> Iterator[Path]:
    """Yields a temporary directory beside `path` and renames it to `path` once the block has ended without an error.

    Raises:
      UserError: `path` exists (and is not an empty directory) and `overwrite` is false. Nothing is touched then.
    """
    path = Path(path)
    refuse_directory(path, overwrite)
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = Path(tempfile.mkdtemp(dir=path.parent, prefix=f".{path.name}.", suffix=".partial"))
    try:
        yield temporary
        os.chmod(temporary, 0o777 & ~_umask())
        _put_in_place(temporary, path)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise


def refuse_existing(path: str | os.PathLike, overwrite: bool = False, inputs: Iterable[str | os.PathLike | None] = ()) -> None:
    """Refuses an output before any work is done for it.

    Args:
      path: what will be written.
      overwrite: it may replace what is there.
      inputs: what is read: files, directories and patterns; others, such as hub ids, and None do not matter.

    Raises:
      UserError: `path` holds something and `overwrite` is false; it cannot be written; or it is or holds an input, the working
        directory or the home directory, which would be lost.
    """
    path = Path(path)
    if path.parts[:1] == ("~",):
        raise UserError(f"{path}: the shell left ~ as it is; expected a path; write {Path.home() / Path(*path.parts[1:])}")
    empty_directory = path.is_dir() and not any(path.iterdir())
    if path.exists() and not empty_directory and not overwrite:
        raise UserError(f"{path}: exists already; choose another output or pass --overwrite")
    around = next((parent for parent in path.absolute().parents if parent.exists()), path)
    if not around.is_dir():
        raise UserError(f"{path}: {around} is a file; expected a directory to write in; choose another output")
    if not os.access(around, os.W_OK | os.X_OK):
        raise UserError(f"{path}: {around} cannot be written to; choose another output, or ask for the right to write there")
    for given in (*inputs, Path.cwd(), Path.home()):
        for found in _found(given):
            if path.exists() and not empty_directory and path.resolve() in (found, *found.parents):
                raise UserError(f"{path}: {given} {_where(found, path)} and would be lost; choose another output")


def refuse_directory(path: str | os.PathLike, overwrite: bool = False, inputs: Iterable[str | os.PathLike | None] = ()) -> None:
    """Refuses like `refuse_existing`, and what is no directory even where `overwrite` is true: a file or a link."""
    path = Path(path)
    if path.is_symlink() or (overwrite and path.is_file()):
        kind = "link" if path.is_symlink() else "file"
        raise UserError(f"{path}: is a {kind}; expected a directory to write, or nothing there; choose another output")
    refuse_existing(path, overwrite, inputs)


def _found(given: str | os.PathLike | None) -> list[Path]:
    """What there is of an input, links followed."""
    if not given:
        return []
    files = [given] if os.path.exists(given) else glob.glob(os.fspath(given), recursive=True)
    return [Path(file).resolve() for file in files]


def _where(found: Path, path: Path) -> str:
    return "is the same" if found == path.resolve() else "lies in it"


def remove_leftovers(directory: str | os.PathLike) -> None:
    """Removes what killed processes left of `new_file` and `new_directory` in a directory where nobody else is writing."""
    for pattern in (".*.partial", ".*.old"):
        for path in Path(directory).glob(pattern):
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path, ignore_errors=True)
            else:
                path.unlink(missing_ok=True)


def require_file(path: str | os.PathLike, what: str) -> Path:
    """Returns `path`, or raises `UserError` where it is no readable, non-empty file; `what` says what was expected."""
    path = Path(path)
    if path.is_dir():
        raise UserError(f"{path}: is a directory; expected {what}")
    if not path.is_file():
        raise UserError(f"{path}: no such file; expected {what}")
    if path.stat().st_size == 0:
        raise UserError(f"{path}: the file is empty; expected {what}")
    return path


def require_directory(path: str | os.PathLike, what: str) -> Path:
    """Returns `path`, or raises `UserError` where it is no directory; `what` says what was expected."""
    path = Path(path)
    if not path.is_dir():
        raise UserError(f"{path}: {'is not a directory' if path.exists() else 'no such directory'}; expected {what}")
    return path


def _put_in_place(temporary: Path, path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        old = Path(tempfile.mkdtemp(dir=path.parent, prefix=f".{path.name}.", suffix=".old"))
        os.replace(path, old)
        os.replace(temporary, path)
        shutil.rmtree(old)
    else:
        os.replace(temporary, path)


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
