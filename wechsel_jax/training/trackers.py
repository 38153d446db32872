"""Lines of metrics for other programs: TensorBoard's event files and Weights & Biases."""

import contextlib
import json
import math
import os
import time
import uuid
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol

from ml_collections import ConfigDict

from wechsel_jax.errors import UserError, from_extra, one_line
from wechsel_jax.files.json import record_json

EVENTS, WANDB = "tensorboard", "wandb.json"
# Lines that are sent before it is written down that they were, where many are sent at a start.
_AT_ONCE = 200


class Tracker(Protocol):
    """Something that takes lines of metrics."""

    name: str

    def write(self, line: Mapping[str, Any]) -> None:
        """Takes a line."""

    def close(self) -> None:
        """Sends what is left."""


def require_packages(settings: ConfigDict) -> None:
    """Raises `UserError` where a package is missing that the settings need; long before the trackers are made."""
    if settings.tensorboard:
        _event_writer()
    if settings.wandb:
        _wandb()


class Trackers:
    """The trackers that the settings ask for.

    `metrics.jsonl` is the truth. What it holds and a tracker does not have is given to the tracker first, so a tracker may be
    turned on in the middle of a run, and after an interruption no line is missing and none is there twice.

    A tracker that fails later, because a network or a disk does, is said once and given up: training goes on.

    Args:
      settings: `tensorboard` (bool) and `wandb` (name of the project, "" for none).
      workdir: of the run; TensorBoard's files are in `workdir/tensorboard`, the id of the W&B run is in `workdir/wandb.json`.
      config: the run's settings, to be shown beside its curves.
      lines: what the metrics hold so far.
      write: false in all processes but one, which then do nothing.
      say: shows one line to the user.

    Raises:
      UserError: a package is missing, or W&B cannot be reached or logged in to.
    """

    def __init__(
        self,
        settings: ConfigDict,
        workdir: str | Path,
        config: Mapping[str, Any],
        lines: list[dict[str, Any]],
        write: bool,
        say: Callable[[str], None] = print,
    ):
        self._say, self._trackers = say, []
        if not write:
            return
        if settings.tensorboard:
            self._trackers.append(_TensorBoard(Path(workdir) / EVENTS, config, lines))
        if settings.wandb:
            self._trackers.append(_WeightsAndBiases(settings.wandb, Path(workdir), config, lines))

    def write(self, line: Mapping[str, Any]) -> None:
        """Gives a line of metrics to every tracker."""
        self._each(lambda tracker: tracker.write(line))

    def close(self) -> None:
        """Sends what is left and ends."""
        self._each(lambda tracker: tracker.close())
        self._trackers = []

    def _each(self, use: Callable[[Tracker], None]) -> None:
        for tracker in list(self._trackers):
            try:
                use(tracker)
            except Exception as error:  # whatever another library fails with, days of training are worth more
                self._trackers.remove(tracker)
                told = f"failed and is given up ({one_line(error)}); training goes on; metrics.jsonl has all lines"
                self._say(f"{tracker.name}: {told}")


def scalars(line: Mapping[str, Any]) -> dict[str, float]:
    """Returns what of a line can be drawn: "train/loss", "eval/perplexity", ... -> a finite number."""
    kind, found = line.get("kind", "other"), {}
    for name, value in line.items():
        if name not in ("kind", "step") and isinstance(value, int | float) and math.isfinite(value):
            found[f"{kind}/{name}"] = float(value)
    return found


class _TensorBoard:
    """Event files, written anew from the metrics at each start: so they hold every step once, whoever reads them."""

    name = "TensorBoard"

    def __init__(self, directory: Path, config: Mapping[str, Any], lines: list[dict[str, Any]]):
        self._events, self._summaries, writer = _event_writer()
        directory.mkdir(parents=True, exist_ok=True)
        # Emptied, not removed: a TensorBoard that is looking on goes from a file to the next, but not from one that is gone.
        # It forgets what it has read when it sees a new start.
        for old in directory.glob("events.out.tfevents.*"):
            os.truncate(old, 0)
        self._writer = writer(str(directory), filename_suffix=f".{time.time_ns()}")
        self._put(step=0, session_log=self._events.SessionLog(status=self._events.SessionLog.START))
        self._put(step=0, summary=_text("settings", json.dumps(config, indent=1, sort_keys=True)))
        # Lines have no date, but seconds since the run began.
        last = max((line.get("seconds", 0.0) for line in lines), default=0.0)
        now, seconds = time.time(), 0.0
        for line in lines:
            seconds = line.get("seconds", seconds)
            self._add(line, now - last + seconds)
        self._writer.flush()

    def write(self, line: Mapping[str, Any]) -> None:
        self._add(line, time.time())
        self._writer.flush()

    def close(self) -> None:
        self._writer.close()

    def _add(self, line: Mapping[str, Any], when: float) -> None:
        for name, value in scalars(line).items():
            value = self._summaries.Summary.Value(tag=name, simple_value=value)
            self._put(when, step=line["step"], summary=self._summaries.Summary(value=[value]))

    def _put(self, when: float | None = None, **fields: Any) -> None:
        self._writer.add_event(self._events.Event(wall_time=when or time.time(), **fields))


def _event_writer() -> tuple[Any, Any, Any]:
    with from_extra("watch", "for the event files", "or set trackers.tensorboard to False"):
        from tensorboard.compat.proto import event_pb2, summary_pb2
        from tensorboard.summary.writer.event_file_writer import EventFileWriter
    return event_pb2, summary_pb2, EventFileWriter


def _text(name: str, text: str) -> Any:
    """A summary that TensorBoard's page of texts shows as code."""
    from tensorboard.compat.proto import summary_pb2, tensor_pb2, tensor_shape_pb2, types_pb2
    from tensorboard.plugins.text import metadata

    shape = tensor_shape_pb2.TensorShapeProto(dim=[tensor_shape_pb2.TensorShapeProto.Dim(size=1)])
    code = f"```\n{text}\n```".encode()
    tensor = tensor_pb2.TensorProto(dtype=types_pb2.DT_STRING, string_val=[code], tensor_shape=shape)
    about = metadata.create_summary_metadata(display_name=name, description="")
    return summary_pb2.Summary(value=[summary_pb2.Summary.Value(tag=name, metadata=about, tensor=tensor)])


class _WeightsAndBiases:
    """One W&B run, however often training is interrupted.

    W&B cannot take back what was sent. A run repeats itself exactly, so lines that are made again are those that W&B has;
    `wandb.json` says up to which line that is.
    """

    name = "Weights & Biases"

    def __init__(self, project: str, workdir: Path, config: Mapping[str, Any], lines: list[dict[str, Any]]):
        wandb = _wandb()
        self._file = workdir / WANDB
        self._record = _read(self._file) or {"id": uuid.uuid4().hex[:12], "step": -1, "kinds": []}
        self._keep()
        try:
            self._run = wandb.init(
                project=project, name=workdir.resolve().name, id=self._record["id"], resume="allow",
                dir=str(workdir), config=dict(config),
            )  # fmt: skip
        except Exception as error:  # W&B's errors and those of the network
            raise UserError(
                f"trackers.wandb: cannot begin ({one_line(error)}); expected a login; run `wandb login`, set "
                "WANDB_MODE=offline, or set trackers.wandb to an empty text"
            ) from error
        # Curves are over our steps: W&B's own counter cannot go on where another process had got to.
        self._run.define_metric("step")
        self._run.define_metric("*", step_metric="step")
        for i, line in enumerate(lines):
            self._send(line)
            if i % _AT_ONCE == 0:
                self._keep()
        self._keep()

    def write(self, line: Mapping[str, Any]) -> None:
        self._send(line)
        self._keep()

    def _send(self, line: Mapping[str, Any]) -> None:
        step, kind = line["step"], line.get("kind", "other")
        sent = self._record
        if step < sent["step"] or (step == sent["step"] and kind in sent["kinds"]):
            return
        found = scalars(line)
        if found:
            self._run.log({"step": step, **found})
        kinds = [*sent["kinds"], kind] if step == sent["step"] else [kind]
        self._record = {**sent, "step": step, "kinds": kinds}

    def close(self) -> None:
        self._run.finish()

    def _keep(self) -> None:
        record_json(self._file, self._record)


def _wandb() -> Any:
    with from_extra("watch", "for the upload", "or set trackers.wandb to an empty text"):
        import wandb
    return wandb


def _read(file: Path) -> dict[str, Any] | None:
    with contextlib.suppress(OSError, ValueError, TypeError, KeyError):
        found = json.loads(file.read_text(encoding="utf-8"))
        return {"id": str(found["id"]), "step": int(found["step"]), "kinds": list(found["kinds"])}
    return None
