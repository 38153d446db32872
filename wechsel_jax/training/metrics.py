"""metrics.jsonl: one JSON object a line, in the order of the steps, exact across interruptions."""

import hashlib
import math
import os
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from wechsel_jax import records
from wechsel_jax.errors import UserError
from wechsel_jax.files import new_file
from wechsel_jax.files.json import TEXT, WHOLE, mismatch
from wechsel_jax.records import Evaluation, encode_line, read_metrics
from wechsel_jax.records.names import CHECKPOINTS
from wechsel_jax.training.checkpoints import newest_facts

# Fields that tell how long something took. All others are the same whenever the same run is made again.
TIMING = (
    *("seconds", "tokens_per_second", "mfu", "data_wait", "checkpoint_wait", "checkpoint_write"),
    "evaluation_seconds",
)


class MetricsFile:
    """Appends lines and remembers them.

    What cannot be written because the disk is full is said once, kept in memory, and written with the next line that can be.

    Args:
      path: the file; created where it is missing.
      restored_step: the step that training goes on from; lines of later steps belong to updates that are made again and are
        dropped, and so is a last line that was cut off. None drops everything.
      facts: what the checkpoint of that step was saved with; see `require_lines`.
      write: false in all processes but one, which then only remember.
      say: shows one line to the user.

    Attributes:
      lines: what the file holds.

    Raises:
      UserError: the file is damaged.
    """

    def __init__(
        self,
        path: str | Path,
        restored_step: int | None,
        facts: Mapping[str, Any] | None = None,
        write: bool = True,
        say: Callable[[str], None] = lambda text: None,
    ):
        self.path, self._say = Path(path), say
        if restored_step is not None and not self.path.exists():
            say(f"{path}: is missing; the run goes on from step {restored_step:,} without the lines before")
        elif facts:
            require_lines(self.path, facts)
        old = read_metrics(self.path) if restored_step is not None else []
        # No line is there twice: what was copied behind the lines of the checkpoint is left out.
        kept: dict[tuple[int, str, int | None], dict[str, Any]] = {}
        for line in old:
            if line["step"] <= restored_step:
                kept.setdefault((line["step"], line["kind"], line.get("exported_step")), line)
        self.lines = list(kept.values())
        self._sha256 = hashlib.sha256("".join(map(encode_line, self.lines)).encode())
        self._descriptor: int | None = None
        self._waiting, self._warned = b"", False
        if write:
            with new_file(self.path, "w") as handle:
                handle.writelines(encode_line(line) for line in self.lines)
            self._descriptor = os.open(self.path, os.O_WRONLY | os.O_APPEND)

    def write(self, line: dict[str, Any]) -> None:
        """Appends one line; it is in the file when this returns, or waits for space on the disk."""
        self.lines.append(line)
        encoded = encode_line(line).encode()
        self._sha256.update(encoded)
        if self._descriptor is not None:
            self._waiting += encoded
            self._flush()

    def facts(self) -> dict[str, Any]:
        """Returns what a checkpoint shall be saved with, so that `require_lines` finds these lines again."""
        return _facts(len(self.lines), self._sha256)

    def evaluated(self, step: int) -> bool:
        """Whether there is an evaluation of `step`."""
        return any(line["kind"] == "eval" and line["step"] == step for line in self.lines)

    def sync(self) -> bool:
        """Makes the lines survive a power cut, before a checkpoint says that they are there; False where that fails."""
        if self._descriptor is None:
            return True
        try:
            if self._flush():
                os.fsync(self._descriptor)
        except OSError as error:
            self._warn(error)
            return False
        return not self._waiting

    def close(self) -> None:
        if self._descriptor is not None:
            self._flush()
            os.close(self._descriptor)
            self._descriptor = None

    def _flush(self) -> bool:
        """Writes what waits; False where some of it still does."""
        try:
            while self._waiting:
                # A full disk may take part of a line; the rest goes behind it later.
                self._waiting = self._waiting[os.write(self._descriptor, self._waiting) :]
        except OSError as error:
            self._warn(error)
            return False
        self._warned = False
        return True

    def _warn(self, error: OSError) -> None:
        if not self._warned:
            self._warned = True
            self._say(f"{self.path}: cannot be written ({error.strerror}); its lines are kept in memory; training goes on")


def metrics_facts(lines: Iterable[dict[str, Any]]) -> dict[str, Any]:
    """What a checkpoint is saved with where a file holds these lines, see `MetricsFile.facts`."""
    encoded = [encode_line(line).encode() for line in lines]
    return _facts(len(encoded), hashlib.sha256(b"".join(encoded)))


def _facts(count: int, sha256: Any) -> dict[str, Any]:
    return {"metrics": {"lines": count, "sha256": sha256.hexdigest()}}


def require_lines(path: str | Path, facts: Mapping[str, Any]) -> None:
    """Raises `UserError` where a metrics file does not begin with the lines that a checkpoint was saved with.

    Args:
      path: the file.
      facts: of the checkpoint: "step" and `MetricsFile.facts`; older checkpoints lack these, and pass.
    """
    if "metrics" not in facts:
        return
    count, sha256, found = "same", None, ""
    if not mismatch(facts, {"metrics": {"lines": WHOLE, "sha256": TEXT}}) and Path(path).exists():
        count, sha256 = facts["metrics"]["lines"], facts["metrics"]["sha256"]
        with open(path, "rb") as handle:
            found = hashlib.sha256(b"".join(handle.readlines()[: max(count, 0)])).hexdigest()
    if found != sha256:
        raise UserError(
            f"{path}: does not begin with the {count} lines that the checkpoint of step {facts['step']} was saved with; "
            "expected them unchanged; put the file back from a copy, or remove it to go on without them"
        )


def checked_metrics(path: str | Path) -> list[dict[str, Any]]:
    """As `read_metrics`; raises `UserError` where the newest checkpoint of the run was saved with other lines."""
    require_lines(path, newest_facts(Path(path).parent / CHECKPOINTS))
    return read_metrics(path)


def final_metrics(path: str | Path, steps: int) -> dict[str, Any] | None:
    """Returns the evaluation of the weights that a run has ended with, None where it has not ended.

    A run ends after `steps` updates, or early, with a line of kind "stop". The last line of kind "end" names the step whose
    weights were exported.

    Raises:
      UserError: a line is damaged, or the run has ended and its lines are not those that its newest checkpoint was saved with.
    """
    lines = read_metrics(path)
    stop = early_stop(lines)
    last = steps if stop is None else stop["step"]
    exported = last if (end := end_of(lines)) is None else end.get("exported_step")
    found = next((line for line in reversed(lines) if line["kind"] == "eval" and line["step"] == exported), None)
    if found is not None:
        checked_metrics(path)
    return found


def losses(lines: list[dict[str, Any]]) -> dict[int, float]:
    """Returns step -> validation loss, or the score of labels with a minus, after at least one update, where it is finite."""
    evaluations = [line for line in lines if line["kind"] == "eval" and line["step"]]
    found = {line["step"]: -line["score"] if "score" in line else line["loss"] for line in evaluations}
    return {step: loss for step, loss in found.items() if loss is not None and math.isfinite(loss)}


def best_evaluation(lines: list[dict[str, Any]]) -> dict[str, Any] | None:
    """Returns the line of the best evaluation, as `records.best_evaluation` defines it; None where there is none."""
    # A score is a loss with a minus here.
    best = records.best_evaluation(Evaluation(step, math.inf, loss=loss) for step, loss in losses(lines).items())
    return next((line for line in lines if best and line["kind"] == "eval" and line["step"] == best.step), None)


def early_stop(lines: list[dict[str, Any]]) -> dict[str, Any] | None:
    """Returns the line that says that the run ended before its last step; None where it did not."""
    return next((line for line in lines if line["kind"] == "stop"), None)


def end_of(lines: list[dict[str, Any]]) -> dict[str, Any] | None:
    """Returns the line that says which weights were exported last; None before a run has ended."""
    return next((line for line in reversed(lines) if line["kind"] == "end"), None)
