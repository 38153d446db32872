"""Files and directories that appear whole or not at all, and the one place that decides whether something may be written."""

import contextlib
import fcntl
import glob
import hashlib
import json
import os
import re
import secrets
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import IO, Any

from wechsel_jax.errors import UserError

# In a directory that a verb wrote: which verb, and which files.
RECORD = ".wechsel-jax.json"
_FORMAT = 1
_THREADS = 4
_TEXT_PREFIXES = ("datasets:", "hf://")
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
      UserError: as `refuse_directory`. Nothing is touched then.
    """
    path = Path(path)
    refuse_directory(path, writer, overwrite)
    with temporary_directory(path) as temporary:
        yield temporary
        seal(temporary, {"written_by": writer}, RECORD, checksums=checksums)
        if not path.is_dir():
            os.replace(temporary, path)
            return
        old = Path(f"{temporary}".removesuffix(".partial") + ".old")
        with _held(path):
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
            with _held(temporary) as held:
                # Otherwise another process, which removes leftovers, has seen it before it was held.
                if held is not False and temporary.exists():
                    yield temporary
                    return
        finally:
            _remove(temporary)
            _unfinished.discard(temporary)


@contextlib.contextmanager
def _held(path: Path) -> Iterator[bool | None]:
    """Locks a file or directory within the block, or for as long as this process lives.

    Yields true; false where another process holds it; None where the file system has no such locks, as some network ones.
    """
    descriptor = os.open(path, os.O_RDONLY)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            held = False
        except OSError:
            held = None
        else:
            held = True
        yield held
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
            with _held(place) as free:
                if free and place.suffix == ".old" and not path.exists():
                    os.replace(place, path)
                elif free:
                    _remove(place)


def seal(directory: Path, facts: Mapping[str, Any], name: str, *, checksums: bool = True) -> None:
    """Writes `directory/name`, the size and sha256 of every file below, and makes all of them survive a power cut.

    Args:
      directory: whose files are complete.
      facts: further fields of the record.
      name: of the record.
      checksums: leave out the sha256 where false.
    """
    files = _files(directory, name)
    with ThreadPoolExecutor(_THREADS) as pool:
        entries = list(pool.map(lambda file: _measure(directory / file, checksums, sync=True), files))
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


def sync_directory(directory: Path) -> None:
    """Makes names in a directory survive a power cut."""
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _files(directory: Path, record: str) -> list[str]:
    found = (path.relative_to(directory).as_posix() for path in directory.rglob("*") if path.is_symlink() or not path.is_dir())
    return sorted(name for name in found if name != record)


def _measure(path: Path, checksums: bool, sync: bool) -> dict[str, Any]:
    with open(path, "rb") as handle:
        entry: dict[str, Any] = {"bytes": os.fstat(handle.fileno()).st_size}
        if checksums:
            entry["sha256"] = hashlib.file_digest(handle, "sha256").hexdigest()
        if sync:
            os.fsync(handle.fileno())
    return entry


def _changed(path: Path, sha256: str) -> str | None:
    try:
        return None if _measure(path, True, sync=False)["sha256"] == sha256 else "has other contents than were written"
    except OSError as error:
        return f"cannot be read ({error.strerror})"


def refuse_directory(
    path: str | os.PathLike, writer: str, overwrite: bool = False, inputs: Iterable[str | os.PathLike | None] = ()
) -> None:
    """Refuses a directory as an output before any work is done for it.

    Args:
      path: what will be written.
      writer: the verb or program that will; what it wrote before is known by its record.
      overwrite: it may replace what the same writer wrote.
      inputs: what is read: files, directories, patterns and data sets; others, such as hub ids, and None do not matter.

    Raises:
      UserError: `path` holds something and `overwrite` is false, or somebody else wrote it or some of it; it is no directory,
        or cannot be written; or it is, is in or holds an input, or holds the working or the home directory.
    """
    path = Path(path)
    if path.is_symlink() or (path.exists() and not path.is_dir()):
        kind = "link" if path.is_symlink() else "file"
        raise UserError(f"{path}: is a {kind}; expected a directory to write, or nothing there; choose another output")
    _refuse(path, lambda: foreign(path, writer), writer, overwrite, inputs)


def refuse_file(
    path: str | os.PathLike,
    own: Callable[[Path], bool],
    writer: str,
    overwrite: bool = False,
    inputs: Iterable[str | os.PathLike | None] = (),
) -> None:
    """Refuses a file as an output, as `refuse_directory` does.

    Args:
      own: tells by its contents whether a file is one that the writer writes; it may raise what a parser raises.
    """
    path = Path(path)
    if path.is_symlink() or (path.exists() and not path.is_file()):
        kind = "link" if path.is_symlink() else "directory" if path.is_dir() else "device or pipe"
        raise UserError(f"{path}: is a {kind}; expected a file to write, or nothing there; choose another output")

    def theirs() -> str | None:
        with contextlib.suppress(Exception):  # whatever a parser makes of a foreign file
            if own(path):
                return None
        return "its contents are of another kind"

    _refuse(path, theirs, writer, overwrite, inputs)


def foreign(directory: Path, writer: str) -> str | None:
    """Says what shows that `writer` did not write a directory, or not all that lies in it; None where it did."""
    try:
        record = json.loads((directory / RECORD).read_bytes())
        wrote, files = record["written_by"], record["files"].keys()
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return f"it holds no record of that ({RECORD})"
    if wrote != writer:
        return f"{wrote} wrote it"
    stray = next((name for name in _files(directory, RECORD) if name not in files), None)
    return stray and f"it also holds {stray}"


def _refuse(
    path: Path, theirs: Callable[[], str | None], writer: str, overwrite: bool, inputs: Iterable[str | os.PathLike | None]
) -> None:
    refuse_place(path)
    if not path.exists() or (path.is_dir() and not any(path.iterdir())):
        return
    if not overwrite:
        raise UserError(f"{path}: exists already; choose another output or pass --overwrite")
    here = os.path.realpath(path)
    places = [(given, found, True) for given in inputs for found in _found(given)]
    places += [(given, os.path.realpath(given), False) for given in (Path.cwd(), Path.home())]
    for given, found, read in places:
        if os.path.samefile(here, found):
            where = "is the same"
        elif _within(found, here):
            where = "lies in it"
        elif read and _within(here, found):
            raise UserError(f"{path}: lies in {given}, which is read; expected to replace nothing there; choose another output")
        else:
            continue
        raise UserError(f"{path}: {given} {where} and would be lost; choose another output")
    reason = theirs()
    if reason is not None:
        raise UserError(f"{path}: {reason}; only what {writer} wrote is replaced; choose another output, or remove it yourself")


def refuse_place(path: str | os.PathLike) -> None:
    """Refuses a path where nothing can be written.

    Raises:
      UserError: its name is no UTF-8 or begins with ~, it lies below a file, or the right to write there is missing.
    """
    path = Path(path)
    try:
        os.fspath(path).encode()
    except UnicodeEncodeError:
        shown = os.fsencode(path).decode(errors="replace")
        raise UserError(f"{shown}: the name is not UTF-8; expected one that is; choose another output") from None
    if path.parts[:1] == ("~",):
        raise UserError(f"{path}: the shell left ~ as it is; expected a path; write {Path.home() / Path(*path.parts[1:])}")
    around = next((parent for parent in path.absolute().parents if os.path.lexists(parent)), path)
    if not around.is_dir():
        kind = "a file" if around.exists() else "a link to nothing"
        raise UserError(f"{path}: {around} is {kind}; expected a directory to write in; choose another output")
    if not os.access(around, os.W_OK | os.X_OK):
        raise UserError(f"{path}: {around} cannot be written to; choose another output, or ask for the right to write there")


def refuse_workdir(path: str | os.PathLike, own: Callable[[Path], bool], what: str, *, outputs: bool = False) -> None:
    """Refuses a directory that a program would put its files into among those of others.

    Args:
      path: the workdir.
      own: whether such a program has begun its work there before.
      what: the program's work, e.g. "a training run".
      outputs: whether what verbs wrote may lie there already, e.g. the transfer that a run begins with.

    Raises:
      UserError: it is empty text, no directory, cannot be written, or holds files and is not such a workdir. A file that this
        process prints to may lie there.
    """
    if not os.fspath(path):
        raise UserError("--workdir: is empty; expected a directory for the run (an unset variable of the shell?)")
    path = Path(path)
    refuse_place(path)
    if os.path.lexists(path) and not path.is_dir():
        raise UserError(f"{path}: is no directory; expected one for {what}, or nothing there; choose another --workdir")
    if not path.exists() or own(path):
        return
    if not os.access(path, os.W_OK | os.X_OK):
        raise UserError(f"{path}: cannot be written to; choose another --workdir, or ask for the right to write there")
    printed = [os.fstat(number) for number in (1, 2) if _is_open(number)]
    for inside in sorted(path.iterdir()):
        ours = (outputs and (inside / RECORD).is_file()) or any(os.path.samestat(inside.lstat(), other) for other in printed)
        if not ours:
            raise UserError(
                f"{path}: holds {inside.name}, and nothing that {what} wrote; expected a directory of its own; choose another "
                f"--workdir, such as {path / 'run'}"
            )


def _is_open(descriptor: int) -> bool:
    try:
        os.fstat(descriptor)
    except OSError:
        return False
    return True


def _found(given: str | os.PathLike | None) -> list[str]:
    """What there is of an input, links followed: paths, what a pattern matches, directories of data sets."""
    if not given:
        return []
    text = os.fspath(given)
    for prefix in _TEXT_PREFIXES:
        if text.startswith(prefix):
            text = text.removeprefix(prefix)
            text = next((text[:end] for end in (len(text), *_colons(text)) if os.path.exists(text[:end])), text)
    return [os.path.realpath(file) for file in ([text] if os.path.exists(text) else glob.glob(text, recursive=True))]


def _colons(text: str) -> list[int]:
    return [match.start() for match in re.finditer("[:@#]", text)][::-1]


def _within(inside: str, outside: str) -> bool:
    return os.path.commonpath([inside, outside]) == outside


def require_file(path: str | os.PathLike, what: str) -> Path:
    """Returns `path`, or raises `UserError` where it is no readable, non-empty file; `what` says what was expected."""
    path = Path(path)
    if path.is_dir():
        raise UserError(f"{path}: is a directory; expected {what}")
    if not path.is_file():
        kind = "is no regular file" if os.path.lexists(path) else "no such file"
        raise UserError(f"{path}: {kind}; expected {what}")
    if path.stat().st_size == 0:
        raise UserError(f"{path}: the file is empty; expected {what}")
    return path


def require_directory(path: str | os.PathLike, what: str) -> Path:
    """Returns `path`, or raises `UserError` where it is no directory; `what` says what was expected."""
    path = Path(path)
    if not path.is_dir():
        raise UserError(f"{path}: {'is not a directory' if path.exists() else 'no such directory'}; expected {what}")
    return path
