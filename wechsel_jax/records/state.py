"""Whether a run is still going, how far it has come, and when it will be done."""

import itertools
import os
import re
import socket
import struct
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from wechsel_jax.files.json import is_number
from wechsel_jax.records.names import LOCK_FILE, METRICS_FILE

RUNNING, STOPPED, FINISHED = "running", "stopped", "finished"
# Where no lock tells, a run whose metrics were silent for longer than this, and than ten of its pauses, has stopped.
_SILENT_SECONDS = 600.0
_RECENT_LINES = 50
# The fields of C's struct flock.
_LOCK = "hhqqi"


@dataclass(frozen=True)
class State:
    """What a run is doing.

    Attributes:
      kind: RUNNING, STOPPED or FINISHED.
      seconds_left: until the last step, at the speed of late, evaluations and checkpoints included; None where it is not known.
      silent: seconds since the metrics were last written.
    """

    kind: str
    seconds_left: float | None = None
    silent: float | None = None


DONE = State(FINISHED)


def find_state(workdir: Path, lines: Sequence[Mapping[str, Any]], planned: int | None, last: int | None, ended: bool) -> State:
    """Finds out about a run.

    Args:
      workdir: of the run.
      lines: the "train" lines of its metrics, by step.
      planned: steps that it is set to last; None: not known.
      last: the last step that anything was recorded of.
      ended: whether its metrics say that it has come to its end.
    """
    if ended or planned is None or last is None or last >= planned:
        return DONE
    silent = max(0.0, time.time() - (workdir / METRICS_FILE).stat().st_mtime)
    pace = seconds_per_step(lines)
    left = None if pace is None else pace * (planned - last)
    alive = _lock_held(workdir)
    if alive is None:
        times = [line["seconds"] for line in lines if is_number(line.get("seconds"))]
        pauses = [later - sooner for sooner, later in itertools.pairwise(times)]
        alive = silent < max(_SILENT_SECONDS, 10 * max(pauses, default=0.0))
    return State(RUNNING, left, silent) if alive else State(STOPPED, None, silent)


def seconds_per_step(lines: Sequence[Mapping[str, Any]]) -> float | None:
    """Returns the seconds of one step of late; None where fewer than two lines tell."""
    timed = [line for line in lines if is_number(line.get("seconds"))][-_RECENT_LINES:]
    # The first line of a run comes after its compilation.
    timed = timed[1:] if len(timed) > 2 else timed
    if len(timed) < 2 or timed[-1]["step"] <= timed[0]["step"]:
        return None
    pace = (timed[-1]["seconds"] - timed[0]["seconds"]) / (timed[-1]["step"] - timed[0]["step"])
    return pace if pace > 0 else None


def whole_file() -> bytes:
    """A lock for writing on all of a file, as the system takes it that is asked for one or about one."""
    import fcntl

    return struct.pack(_LOCK, fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)


def _lock_held(workdir: Path) -> bool | None:
    """Whether a process of this machine is at work in a workdir; None where that cannot be told from here."""
    file = workdir / LOCK_FILE
    try:
        holder = re.search(r"on (\S+)", file.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    if holder is None or holder[1] != socket.gethostname() or sys.platform != "linux":
        return None
    import fcntl

    descriptor = os.open(file, os.O_RDONLY)
    try:
        # Asked for, not taken: a run that starts now must not be refused because somebody looks on.
        answer = fcntl.fcntl(descriptor, fcntl.F_OFD_GETLK, whole_file())
        return struct.unpack(_LOCK, answer)[0] != fcntl.F_UNLCK
    except OSError:
        return None
    finally:
        os.close(descriptor)
