"""Work that can be killed at any moment and goes on: files that only grow, and a record of how far they are good."""

import collections
import contextlib
import errno
import fcntl
import hashlib
import json
import os
import re
import shutil
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from wechsel_jax.errors import UserError
from wechsel_jax.files import new_file, sync_directory

_PLAN, _RECORD, RESULT = "plan.json", "progress.json", "output"
# What `prepare` makes in the directory, and what `new_file` does before it has a name.
_OURS = re.compile(
    r"(plan|progress)\.json|(facts|counts|choice)\.bin|output|output/(train|validation)"
    r"|output/((train|validation)/)?((tokens|sentences)\.bin|manifest\.json)"
    r"|\.(plan|progress)\.json\.[0-9a-f]{8}\.partial|output/((train|validation)/)?\.manifest\.json\.[0-9a-f]{8}\.partial"
)
# What a kill can cost.
_RECORD_SECONDS = 10.0
_CHUNK = 1 << 22


class Unfinished:
    """A hidden directory beside an output, in which the output is made.

    Attributes:
      output: where the result will be.
      directory: of what is not finished.
      result: the directory in it that will become the output.
    """

    def __init__(self, output: Path, plan: Mapping[str, Any]):
        """Goes on with what an earlier call left, if that had the same plan; otherwise begins.

        Raises:
          UserError: the directory is somebody else's.
        """
        self.output, self.directory = output, scratch_directory(output)
        stray = foreign(self.directory)
        if stray is not None:
            raise UserError(f"{self.directory}: {stray}; expected unfinished work on {output.name}; move it elsewhere")
        self.result = self.directory / RESULT
        self._record: dict[str, Any] = {}
        plan = json.loads(json.dumps(plan))
        if _read(self.directory / _PLAN) == plan:
            self._record = _read(self.directory / _RECORD) or {}
        else:
            _remove(self.directory)
            try:
                self.directory.mkdir(parents=True)
                with new_file(self.directory / _PLAN, "w") as handle:
                    json.dump(plan, handle)
            except BaseException:
                _remove(self.directory)
                raise
        self.result.mkdir(exist_ok=True)

    @contextlib.contextmanager
    def stage(self, name: str, files: Sequence[str]) -> Iterator["Stage"]:
        """Opens files to append to, each cut back to where it is known to be good."""
        stage = Stage(self, name, [self.directory / file for file in files], self._record.get(name))
        try:
            yield stage
        finally:
            stage.close()

    def record(self, stage: str, reached: Mapping[str, Any]) -> None:
        """Writes down how far a stage has come; its files are on disk up to there."""
        self._record[stage] = reached
        with new_file(self.directory / _RECORD, "w") as handle:
            json.dump(self._record, handle)

    @property
    def worth_keeping(self) -> bool:
        """Whether a later call has something to go on with."""
        return any(reached["parts"] for reached in self._record.values())

    def finish(self) -> None:
        """Puts the result in its place, whole."""
        for directory, _, _ in os.walk(self.result):
            sync_directory(Path(directory))
        os.replace(self.result, self.output)
        sync_directory(self.output.parent)
        self.remove()

    def remove(self) -> None:
        """Deletes what is not finished."""
        _remove(self.directory)


class Stage:
    """Files that grow by the same parts.

    Attributes:
      parts: how many parts are in the files.
      counts: numbers added over these parts.
      done: whether these are all.
      sizes: bytes of each file.
    """

    def __init__(self, owner: Unfinished, name: str, paths: list[Path], reached: Mapping[str, Any] | None):
        self._owner, self._name, self._paths = owner, name, paths
        self._hashes = [hashlib.sha256() for _ in paths]
        self.parts, self.done, self.sizes = 0, False, [0] * len(paths)
        self.counts: collections.Counter[str] = collections.Counter()
        for path in paths:
            path.parent.mkdir(parents=True, exist_ok=True)
        # Unbuffered: after a full disk nothing is left that closing would try to write once more.
        self._handles = [path.open("a+b", buffering=0) for path in paths]
        if reached is not None:
            self._go_on(reached)
        for handle, size in zip(self._handles, self.sizes, strict=True):
            handle.truncate(size)
        self._recorded = time.monotonic()

    def append(self, parts: int, counts: Mapping[str, int], data: Sequence[bytes]) -> None:
        """Appends to each file what comes from the parts up to number `parts`."""
        for i, (handle, piece) in enumerate(zip(self._handles, data, strict=True)):
            view = memoryview(piece)
            while view:
                view = view[handle.write(view) :]
            self._hashes[i].update(piece)
            self.sizes[i] += len(piece)
        self.counts.update(counts)
        self.parts = parts
        if time.monotonic() - self._recorded >= _RECORD_SECONDS:
            self.save()

    def save(self, done: bool = False) -> None:
        """Makes sure that what has been appended so far outlives this process; `done` where it is all."""
        for handle in self._handles:
            os.fsync(handle.fileno())
        self.done = done
        reached = {"parts": self.parts, "counts": self.counts, "done": done, "sizes": self.sizes}
        self._owner.record(self._name, {**reached, "sha256": self.sha256()})
        self._recorded = time.monotonic()

    def sha256(self) -> list[str]:
        """Of each file, as far as it has been written."""
        return [digest.hexdigest() for digest in self._hashes]

    def close(self) -> None:
        for handle in self._handles:
            handle.close()

    def _go_on(self, reached: Mapping[str, Any]) -> None:
        hashes = [_hash_of(path, size) for path, size in zip(self._paths, reached["sizes"], strict=True)]
        # What is not as it was recorded was damaged since; then the stage begins again.
        if [digest.hexdigest() for digest in hashes] == reached["sha256"]:
            self._hashes, self.sizes, self.parts, self.done = hashes, list(reached["sizes"]), reached["parts"], reached["done"]
            self.counts.update(reached["counts"])


def scratch_directory(output: Path) -> Path:
    """Where an output is made before it is whole."""
    return output.parent / f".{output.name}.partial"


def foreign(directory: Path) -> str | None:
    """Says what shows that a scratch directory is not this module's; None where it is, or is not there."""
    if directory.is_symlink() or (directory.exists() and not directory.is_dir()):
        return "is no directory"
    files = {path.relative_to(directory).as_posix(): path for path in directory.rglob("*")}
    stray = next((name for name, path in files.items() if path.is_symlink() or not _OURS.fullmatch(name)), None)
    if stray is not None:
        return f"holds {stray}"
    # The plan is the first that is written.
    made = [name for name in files if not name.startswith(f".{_PLAN}.")]
    return None if not made or _PLAN in made else f"holds {made[0]} but no {_PLAN}"


@contextlib.contextmanager
def lock(output: Path) -> Iterator[bool]:
    """Says whether this is the only process that makes `output`; if so, no other one is told the same within the block.

    The lock is the system's, on a file beside the output: it ends with the process that holds it, however that ends.
    """
    path = _lock_file(output)
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "ab", opener=lambda *given: os.open(given[0], given[1] | os.O_NOFOLLOW, 0o666)) as handle:
        if os.fstat(handle.fileno()).st_size:
            raise UserError(f"{path}: holds something; expected an empty file, or nothing there; move it elsewhere")
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
            return
        except OSError as error:
            # Some network file systems know no locks. There one process must do the work alone, as training sees to.
            if error.errno not in (errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS):
                raise
        # Whoever held it before may have deleted the file after this one had opened it.
        mine = path.exists() and os.path.samestat(os.fstat(handle.fileno()), os.stat(path))
        try:
            yield mine
        finally:
            if mine:
                path.unlink(missing_ok=True)


def discard(output: Path) -> None:
    """Removes what a killed call has left of an output, unless another process is at work on it or others' files lie there."""
    left = scratch_directory(output).exists()
    # Whoever made the output may be removing it at this moment.
    with contextlib.suppress(FileNotFoundError):
        left = left or not _lock_file(output).stat().st_size
    if not left:
        return
    with lock(output) as mine:
        if mine and foreign(scratch_directory(output)) is None:
            _remove(scratch_directory(output))


def _remove(directory: Path) -> None:
    """Removes a scratch directory, its plan last: by that the rest is known if this is killed."""
    with contextlib.suppress(OSError):
        for path in directory.iterdir():
            if path.is_dir():
                shutil.rmtree(path, ignore_errors=True)
            elif path.name != _PLAN:
                path.unlink()
    shutil.rmtree(directory, ignore_errors=True)


def _lock_file(output: Path) -> Path:
    return output.parent / f".{output.name}.lock"


def disk_full(output: Path, error: OSError) -> UserError:
    """The message for a disk without room."""
    kept = ": it goes on where it stopped" if scratch_directory(output).exists() else ""
    return UserError(
        f"{output}: no room left on the disk ({error.strerror}); free some space and run the same command again{kept}"
    )


def _hash_of(path: Path, size: int) -> "hashlib._Hash":
    """sha256 of the first `size` bytes; of fewer where there are fewer."""
    digest = hashlib.sha256()
    with open(path, "rb") as handle:
        while size and (chunk := handle.read(min(size, _CHUNK))):
            digest.update(chunk)
            size -= len(chunk)
    return digest


def _read(path: Path) -> Any:
    """What a file of JSON holds; None where there is none, or it is damaged."""
    try:
        return json.loads(path.read_bytes())
    except (OSError, ValueError):
        return None
