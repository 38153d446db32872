"""Checkpoints of a run's state: written in the background, whole or not at all, restored onto any mesh."""

import contextlib
import json
import logging
import math
import os
import re
import shutil
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import jax

from wechsel_jax.errors import UserError, from_extra, one_line
from wechsel_jax.files import damage, seal, sync_directory
from wechsel_jax.files.json import record_json
from wechsel_jax.records.names import MANIFEST
from wechsel_jax.training.compilation import out_of_memory
from wechsel_jax.training.distributed import broadcast_from_first, is_first
from wechsel_jax.training.step import TrainState

# Where in a checkpoint the arrays are.
STATE = "state"
# The names of what is not a checkpoint yet, or any more.
_HIDDEN = re.compile(r"\.\d+\.(\d+\.saving|removed)")
_NONE, _ALL_DAMAGED = -1, -2
# How TensorStore, which writes the arrays, passes on what the system said.
_SYSTEM_ERROR = re.compile(r"os_error_code='(\d+)'")


class Checkpoints:
    """The checkpoints of a run, one directory a step: `N/state`, and `N/manifest.json` with the checksums of its files.

    Orbax writes the arrays to a hidden directory in the background; once they are all there, a thread of the first process
    adds the manifest, renames the directory to the step's number, and removes checkpoints that need not be kept. A process
    that dies on the way leaves a hidden directory, which the next start removes. A checkpoint that cannot be written costs
    nothing but itself: it is said in one line, and those before it stay.

    Args:
      directory: where they are.
      keep: how many of the newest stay.
      keep_every: a checkpoint whose step is a multiple of it stays for good; 0: none does.
      losses: step -> validation loss, filled by the caller as the run goes on; the best of those that are saved stays.
      say: shows one line to the user.
      read_only: leave alone what a run that may be going on here is writing; `save` must not be called then.

    Attributes:
      saved: the step of the newest whole checkpoint, None where there is none.
      write_seconds: how long the last one took in the background.
    """

    def __init__(
        self,
        directory: str | Path,
        keep: int,
        *,
        keep_every: int = 0,
        losses: Mapping[int, float] | None = None,
        say: Callable[[str], None] = print,
        read_only: bool = False,
    ):
        self.directory = Path(directory).resolve()
        self.keep, self.keep_every, self.losses, self._say = keep, keep_every, {} if losses is None else losses, say
        self.saved: int | None = None
        self.write_seconds = 0.0
        self._first = is_first()
        self._thread: threading.Thread | None = None
        self._checkpointer: Any = None
        self._saves = 0
        self._quiet = contextlib.ExitStack()
        self._writes = self._first and not read_only
        if self._writes:
            self.directory.mkdir(parents=True, exist_ok=True)
        self._sweep()

    def steps(self) -> list[int]:
        """Returns the steps of all checkpoints in their order, damaged or not."""
        return sorted(int(path.name) for path in self.directory.iterdir() if path.name.isdecimal())

    def find(self) -> int | None:
        """Returns the step of the newest whole checkpoint, the same in every process; None where there is none at all.

        Every file is compared with its checksum first. Damaged checkpoints are said, and are replaced when training gets to
        their step again.

        Raises:
          UserError: there are checkpoints, and all of them are damaged.
        """
        found = broadcast_from_first(self._find() if self._first else _NONE)
        if found == _ALL_DAMAGED:
            raise UserError(
                f"{self.directory}: every checkpoint is damaged; expected a whole one; put one back from a copy, "
                "or remove the directory to begin from step 0"
            )
        self.saved = None if found == _NONE else found
        return self.saved

    def whole(self, step: int) -> bool:
        """Whether the checkpoint of a step is there and undamaged, the same in every process; says so where it is not."""
        return bool(broadcast_from_first(int(self._first and self._whole(step))))

    def best(self) -> int | None:
        """Returns the step of the saved checkpoint with the lowest validation loss."""
        steps = [step for step in self.steps() if math.isfinite(self.losses.get(step, math.inf))]
        return min(steps, key=lambda step: (self.losses[step], step), default=None)

    def facts(self, step: int) -> dict[str, Any]:
        """Returns what the checkpoint of a step was saved with; see `read_facts`."""
        return read_facts(self.directory / str(step))

    def note(self, step: int, facts: Mapping[str, Any]) -> None:
        """Replaces what the checkpoint of a step was saved with, once more is known than at that time."""
        note(self.directory / str(step), facts)

    def save(self, step: int, state: TrainState, facts: Mapping[str, Any] | None = None) -> None:
        """Copies the state to the host and writes it in the background; does nothing where `step` is saved already.

        Args:
          step: of the state.
          state: to be saved.
          facts: that the manifest shall hold too.
        """
        self._join()
        if self.saved == step:
            return
        self._sweep()
        self._saves += 1
        # A name of its own for every try: writes that were under way when an earlier one failed may still arrive there.
        began, place = time.perf_counter(), self.directory / f".{step}.{self._saves}.saving"
        if not broadcast_from_first(self._begin(step, place)):
            return
        try:
            if self._checkpointer is None:
                self._checkpointer = _checkpointer()
                self._quiet.close()
                self._quiet.enter_context(_without_tracebacks())
            self._checkpointer.save(place / STATE, state._asdict())
        except Exception as error:
            self._failed(step, place, error)
            return
        self._thread = threading.Thread(target=self._commit, args=(step, place, began, dict(facts or {})), name="checkpoint")
        self._thread.start()

    def restore(self, step: int, state: TrainState, shardings: TrainState) -> TrainState:
        """Reads a checkpoint.

        Args:
          step: one that is there.
          state: shapes and dtypes, as `jax.eval_shape` gives them.
          shardings: where the arrays shall live; they may have lived elsewhere when they were saved.

        Raises:
          UserError: the checkpoint is of another model.
        """

        def target(value: Any, where: Any) -> jax.ShapeDtypeStruct:
            return jax.ShapeDtypeStruct(value.shape, value.dtype, sharding=where)

        wanted = jax.tree.map(target, state._asdict(), shardings._asdict())
        place = self.directory / str(step)
        try:
            with contextlib.closing(_checkpointer()) as checkpointer:
                restored = checkpointer.restore(place / STATE, wanted)
        except (ValueError, KeyError, TypeError, OSError) as error:
            if out_of_memory(error):
                raise
            raise UserError(
                f"{place}: cannot be restored ({_reason(error)}); expected a checkpoint of this model; "
                "remove this directory to go on from an older one"
            ) from error
        if jax.default_backend() != "cpu":
            return TrainState(**restored)
        # On the host, restored arrays may share memory with what the reader holds, and the training step donates its input.
        own = jax.jit(lambda tree: jax.tree.map(lambda x: x.copy(), tree), out_shardings=shardings._asdict())
        return TrainState(**own(restored))

    def wait(self) -> int | None:
        """Returns once nothing is being written: the step of the newest whole checkpoint, the same in every process."""
        self._join()
        if jax.process_count() > 1:
            found = broadcast_from_first(_NONE if self.saved is None else self.saved)
            self.saved = None if found == _NONE else found
        return self.saved

    def close(self) -> None:
        """Waits and ends the background threads."""
        self._join()
        self._drop_checkpointer()
        self._quiet.close()
        self._sweep()

    def _find(self) -> int:
        steps = self.steps()
        for step in reversed(steps):
            if self._whole(step):
                return step
        return _ALL_DAMAGED if steps else _NONE

    def _whole(self, step: int) -> bool:
        place = self.directory / str(step)
        what = damage(place, MANIFEST)
        if what is None and (saved := read_facts(place)["step"]) != step:
            what = f"it was saved as the checkpoint of step {saved}"
        if what is not None:
            self._say(f"{place}: damaged, {what}; it is not used")
        return what is None

    def _begin(self, step: int, place: Path) -> bool:
        """Makes the directory; the other processes may only write where the first one could."""
        try:
            if self._first:
                place.mkdir(parents=True)
        except OSError as error:
            self._failed(step, place, error)
            return False
        return True

    def _sweep(self) -> None:
        """Removes what dead processes and failed saves left, by its name; nothing may be being written."""
        for leftover in self.directory.glob(".*") if self._writes else ():
            if _HIDDEN.fullmatch(leftover.name):
                shutil.rmtree(leftover, ignore_errors=True)

    def _commit(self, step: int, place: Path, began: float, facts: dict[str, Any]) -> None:
        """In a thread: waits for orbax, which waits for all processes, and makes the checkpoint visible."""
        try:
            self._checkpointer.wait_until_finished()
            if self._first:
                seal(place, {"step": step, **facts}, MANIFEST)
                final = self.directory / str(step)
                if final.exists():
                    self._remove(final)
                os.rename(place, final)
                sync_directory(self.directory)
            self.saved, self.write_seconds = step, time.perf_counter() - began
            if self._first:
                self._prune()
        except Exception as error:
            if self.saved != step:
                self._failed(step, place, error)

    def _prune(self) -> None:
        """Removes what need not be kept; newer ones than the one just written are damaged, or training would not be here."""
        steps = [step for step in self.steps() if step <= self.saved]
        kept = {*steps[-self.keep :], self.best()}
        kept |= {step for step in steps if self.keep_every and step % self.keep_every == 0}
        for step in steps:
            if step not in kept:
                self._remove(self.directory / str(step))

    def _remove(self, place: Path) -> None:
        # Out of sight first: what a kill leaves of it must not look like a damaged checkpoint.
        hidden = self.directory / f".{place.name}.removed"
        os.rename(place, hidden)
        shutil.rmtree(hidden, ignore_errors=True)

    def _failed(self, step: int, place: Path, error: Exception) -> None:
        kept = "there is none yet" if self.saved is None else f"that of step {self.saved:,} is kept"
        self._say(f"the checkpoint of step {step:,} could not be written ({_reason(error)}); {kept}; the next one is tried")
        self._drop_checkpointer()
        if self._first:
            shutil.rmtree(place, ignore_errors=True)

    def _drop_checkpointer(self) -> None:
        checkpointer, self._checkpointer = self._checkpointer, None
        if checkpointer is not None:
            with contextlib.suppress(Exception):
                checkpointer.close()

    def _join(self) -> None:
        thread, self._thread = self._thread, None
        if thread is not None:
            thread.join()


def note(place: Path, facts: Mapping[str, Any]) -> None:
    """Replaces what a checkpoint was saved with, see `Checkpoints.note`."""
    file = place / MANIFEST
    manifest = json.loads(file.read_bytes())
    if manifest != {**manifest, **facts}:
        record_json(file, {**manifest, **facts})


def read_facts(place: Path) -> dict[str, Any]:
    """Returns what a checkpoint was saved with: "step" and the facts given to `save`; without where it cannot be read."""
    try:
        manifest = json.loads((place / MANIFEST).read_bytes())
        return {"step": None} | {name: value for name, value in manifest.items() if name not in ("format", "files")}
    except (OSError, ValueError, AttributeError, RecursionError):
        return {"step": None}


def newest_facts(directory: Path) -> dict[str, Any]:
    """Returns the `read_facts` of the newest checkpoint in a directory that has any; its other files are not looked at."""
    steps = sorted((int(path.name) for path in directory.glob("[0-9]*") if path.name.isdecimal()), reverse=True)
    found = ((step, read_facts(directory / str(step))) for step in steps)
    return next((facts for step, facts in found if facts["step"] == step), {})


def _checkpointer() -> Any:
    with from_extra("train", "to keep checkpoints"):
        import orbax.checkpoint as ocp

    return ocp.StandardCheckpointer()


def _reason(error: BaseException) -> str:
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    number = _SYSTEM_ERROR.search(str(error))
    return os.strerror(int(number[1])) if number else one_line(error)


@contextlib.contextmanager
def _without_tracebacks() -> Iterator[None]:
    """Keeps from the screen what orbax logs, and TensorStore's threads print, about a failed save; one line says it here."""

    def not_of_orbax(record: logging.LogRecord) -> bool:
        # Of several arrays that fail, the first is reported; asyncio tells about the others once they are collected.
        unheard = record.name == "asyncio" and "exception was never retrieved" in record.getMessage()
        return "orbax" not in record.pathname and not unheard

    def hook(unraisable: Any) -> None:
        # What is still being written when the first error arrives finds nobody to report to.
        if str(unraisable.exc_value) != "Event loop is closed":
            before(unraisable)

    before, sys.unraisablehook = sys.unraisablehook, hook
    loggers = [logging.getLogger(name) for name in ("absl", "asyncio")]
    for logger in loggers:
        logger.addFilter(not_of_orbax)
    try:
        yield
    finally:
        for logger in loggers:
            logger.removeFilter(not_of_orbax)
        sys.unraisablehook = before
