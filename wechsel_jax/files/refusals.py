"""The one place that decides whether something may be read or written; every refusal comes before any work."""

import contextlib
import glob
import json
import os
import re
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path

from wechsel_jax.errors import UserError
from wechsel_jax.files.manifests import RECORD, list_files

# What the name of a data set of the hub, and of a saved one, begins with where text is named.
HUB, SAVED = "hf://", "datasets:"


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
        or cannot be written; or something lies there and it is, is in or holds an input, or holds the working or the home
        directory.
    """
    path = Path(path)
    if path.is_symlink() or (path.exists() and not path.is_dir()):
        kind = "link" if path.is_symlink() else "file"
        raise UserError(f"{path}: is a {kind}; expected a directory to write, or nothing there; choose another output")
    _refuse(path, lambda: foreign(path, writer), writer, overwrite, inputs)
    if path.name in ("", ".."):
        # "." in an empty directory. It is made under another name first, and then renamed.
        raise UserError(f"{path}: has no name of its own; expected the name of a directory to make; choose another output")


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
    stray = next((name for name in list_files(directory, RECORD) if name not in files), None)
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
    # A service's user may have no home.
    own = [place for place in (Path.cwd(), os.path.expanduser("~")) if os.path.exists(place)]
    places += [(given, os.path.realpath(given), False) for given in own]
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
      UserError: its name is no UTF-8 or begins with ~, it lies below a file, or no file can be made there.
    """
    path = Path(path)
    try:
        os.fspath(path).encode()
    except UnicodeEncodeError:
        shown = os.fsencode(path).decode(errors="replace")
        raise UserError(f"{shown}: the name is not UTF-8; expected one that is; choose another name") from None
    if path.parts[:1] == ("~",):
        raise UserError(f"{path}: the shell left ~ as it is; expected a path; write {Path.home() / Path(*path.parts[1:])}")
    around = next((parent for parent in path.absolute().parents if os.path.lexists(parent)), path)
    if not around.is_dir():
        kind = "a file" if around.exists() else "a link to nothing"
        raise UserError(f"{path}: {around} is {kind}; expected a directory to write in; choose another place")
    try:
        # Rights do not tell: root has them in /proc, too. On most file systems such a file never has a name.
        tempfile.TemporaryFile(dir=around).close()
    except OSError as error:
        expected = f"choose another place, or ask for the right to write there ({error.strerror})"
        raise UserError(f"{path}: {around} cannot be written to; {expected}") from None


def refuse_workdir(path: str | os.PathLike, own: Callable[[Path], bool], what: str, *, outputs: bool = False) -> None:
    """Refuses a directory that a program would put its files into among those of others.

    Args:
      path: the workdir.
      own: whether such a program has begun its work there before.
      what: the program's work, e.g. "a training run".
      outputs: whether what verbs wrote may lie there already, e.g. the transfer that a run begins with.

    Raises:
      UserError: it is empty text, no directory, cannot be written, or holds files and is not such a workdir. A file that this
        process prints to may lie there, and an empty .lock.
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
    # What somebody knows is named before the lock.
    for inside in sorted(path.iterdir(), key=lambda one: (one.name == ".lock", one.name)):
        ours = (outputs and (inside / RECORD).is_file()) or any(os.path.samestat(inside.lstat(), other) for other in printed)
        # The first that a program makes: on a full disk, or after a kill, nothing is in it yet.
        ours = ours or (inside.name == ".lock" and inside.is_file() and not inside.stat().st_size)
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
    for prefix in (SAVED, HUB):
        if text.startswith(prefix):
            text = text.removeprefix(prefix)
            # What follows a mark is a split or the like, unless it is part of the name.
            ends = [*(match.start() for match in re.finditer("[:@#]", text)), len(text)]
            text = next((text[:end] for end in reversed(ends) if os.path.exists(text[:end])), text)
    return [os.path.realpath(file) for file in ([text] if os.path.exists(text) else glob.glob(text, recursive=True))]


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
