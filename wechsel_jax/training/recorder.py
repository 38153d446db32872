"""What happens in a run, as lines of its metrics and on the screen."""

import contextlib
import hashlib
import math
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
from ml_collections import ConfigDict

import wechsel_jax
from wechsel_jax.data import Dataset
from wechsel_jax.errors import UserError
from wechsel_jax.files.json import record_json
from wechsel_jax.records.names import CHECKPOINTS
from wechsel_jax.training.config import as_dict
from wechsel_jax.training.distributed import is_first
from wechsel_jax.training.metrics import MetricsFile, best_evaluation, early_stop, end_of
from wechsel_jax.training.progress import Clock, Progress
from wechsel_jax.training.trackers import Trackers

_STANDARD = ("loss", "weight", "gradient_norm", "finite")


class _Pending(NamedTuple):
    """An update whose metrics have not been read from the device yet."""

    step: int
    phase: str
    learning_rate: float
    metrics: dict[str, jax.Array]


class Recorder:
    """Writes lines of metrics; those of an update one step late, so that the device need not wait for them.

    Lines have a "kind": "train", "eval" (validation loss and other scores after `step` updates), "skipped" (an update that was
    left out because it was not finite), "stop" (no gain for `patience` steps) and "end" (the weights of `exported_step` were
    exported). Every line has the "step" it belongs to: updates made so far.

    Args:
      config: settings of the run.
      metrics: the file.
      progress: the screen.
      clock: of the run.
      utilisation: tokens a second -> model FLOPs utilisation, None where it is not known.
      nonfinite: (what a "skipped" line would hold, steps skipped before) -> the error that ends the run.

    Attributes:
      trackers: other programs that take the lines; None before a run has begun. They find earlier lines in the file.
      stopped: whether the run has ended early.
      checkpoint_write: seconds that the last checkpoint took in the background.
    """

    def __init__(
        self,
        config: ConfigDict,
        metrics: MetricsFile,
        progress: Progress,
        clock: Clock,
        utilisation: Callable[[float], float | None],
        nonfinite: Callable[[dict[str, Any], list[int]], UserError],
    ):
        self.config, self.metrics, self.progress, self.clock = config, metrics, progress, clock
        self._utilisation, self._nonfinite = utilisation, nonfinite
        self.trackers: Trackers | None = None
        self._pending: _Pending | None = None
        # Seconds since the last training line that the devices waited for something.
        self._waited = {"data_wait": 0.0, "checkpoint_wait": 0.0}
        self.checkpoint_write = 0.0
        self.stopped = early_stop(metrics.lines) is not None

    @contextlib.contextmanager
    def waiting(self, name: str) -> Iterator[None]:
        """Adds the time that the block takes to "data_wait" or "checkpoint_wait" of the next training line."""
        began = time.perf_counter()
        yield
        self._waited[name] += time.perf_counter() - began

    def update(self, step: int, phase: str, learning_rate: float, metrics: dict[str, jax.Array]) -> None:
        """Takes the metrics of an update, on the device, and reads those of the update before."""
        self.read()
        self._pending = _Pending(step, phase, learning_rate, metrics)

    def read(self) -> None:
        """Reads the metrics of the last update, which waits for it, and writes them where it is time to.

        Raises:
          UserError: they are not finite, and `skip_nonfinite` updates have been skipped already.
        """
        pending, self._pending = self._pending, None
        if pending is None:
            return
        # One transfer from the device, not one for each number.
        numbers = {name: value.item() for name, value in jax.device_get(pending.metrics).items()}
        loss, gradient_norm = numbers["loss"], numbers["gradient_norm"]
        line = {"kind": "train", "step": pending.step, "phase": pending.phase, "loss": loss}
        line |= {"learning_rate": pending.learning_rate, "gradient_norm": gradient_norm}
        if not (math.isfinite(loss) and math.isfinite(gradient_norm) and numbers["finite"]):
            self._skip(line)
        elif pending.step % self.config.log_every == 0 or pending.step in (1, self.config.steps):
            line |= {name: value for name, value in numbers.items() if name not in _STANDARD}
            self._train(line)

    def evaluation(self, step: int, scores: dict[str, Any], seconds: float) -> None:
        """Writes an evaluation, and that the run stops, where `patience` says so."""
        line = {"kind": "eval", "step": step, **scores, "evaluation_seconds": round(seconds, 3)}
        self.write(line)
        self.progress.evaluation(line)
        best, patience = best_evaluation(self.metrics.lines), self.config.patience
        if patience and best is not None and step - best["step"] >= patience and step < self.config.steps:
            self.stopped = True
            self.write({"kind": "stop", "step": step, "best_step": best["step"], "best_loss": best["loss"]})
            self.progress.say(
                f"step {step:,}: no better held-out {best.get('metric', 'perplexity')} for {step - best['step']:,} steps; "
                "the run stops early"
            )

    def end(self, step: int, exported: int) -> dict[str, Any]:
        """Writes which weights were exported, and returns their evaluation."""
        lines = self.metrics.lines
        best = best_evaluation(lines)
        # Where the best checkpoint and the export are lost, other weights are exported later.
        if (ended := end_of(lines)) is None or ended.get("exported_step") != exported:
            names = ("step", "loss", "perplexity", "score")
            fields = {} if best is None else {f"best_{name}": best[name] for name in names if name in best}
            self.write({"kind": "end", "step": step, "exported_step": exported, **fields})
        if best is not None and "score" in best:
            self.progress.say(f"best held-out {best['metric'].replace('_', ' ')} {best['score']:.4f}, at step {best['step']:,}")
        elif best is not None:
            # The recorded one is null where it overflowed. It is of masked tokens, without the guess of a next sentence.
            perplexity = math.exp(min(best["mlm_loss" if "nsp_loss" in best else "loss"], 700.0))
            bits = f"{best['bits_per_byte']:.3f} bits per byte, " if "bits_per_byte" in best else ""
            self.progress.say(f"best held-out {bits}perplexity {perplexity:,.2f}, at step {best['step']:,}")
        return next(line for line in reversed(lines) if line["kind"] == "eval" and line["step"] == exported)

    def write(self, line: dict[str, Any]) -> None:
        """Appends a line to the metrics, and gives it to the trackers."""
        self.metrics.write(line)
        if self.trackers is not None:
            self.trackers.write(line)

    def close(self) -> None:
        """Ends the line of the progress bar, the metrics and the trackers."""
        self.progress.close()
        self.metrics.close()
        if self.trackers is not None:
            self.trackers.close()

    def _skip(self, line: dict[str, Any]) -> None:
        skipped = [earlier["step"] for earlier in self.metrics.lines if earlier["kind"] == "skipped"]
        allowed = self.config.skip_nonfinite
        if len(skipped) >= allowed:
            raise self._nonfinite(line, skipped)
        self.write({**line, "kind": "skipped"})
        self.progress.say(
            f"step {line['step']:,}: loss {line['loss']} and gradient norm {line['gradient_norm']}: "
            f"update skipped ({len(skipped) + 1} of at most {allowed})"
        )

    def _train(self, line: dict[str, Any]) -> None:
        rate = self.clock.tokens_per_second(line["step"])
        line |= {"tokens_per_second": round(rate, 1), "seconds": round(self.clock.seconds(), 3)}
        line |= {name: round(seconds, 3) for name, seconds in self._waited.items()}
        line["checkpoint_write"] = round(self.checkpoint_write, 3)
        self._waited = dict.fromkeys(self._waited, 0.0)
        mfu = self._utilisation(rate)
        if mfu is not None:
            line["mfu"] = round(mfu, 4)
        self.write(line)
        left = (self.config.steps - line["step"]) * self.clock.seconds_per_step
        # That of held-out text; a run that goes on knows it from before.
        scored = (one for one in reversed(self.metrics.lines) if one["kind"] == "eval" and one.get("bytes"))
        size = next((one["bytes"] / one["tokens"] for one in scored), None)
        self.progress.train(line, seconds_left=left, bytes_per_token=size)


def stop_report(
    config: ConfigDict, workdir: Path, data: Dataset, line: dict[str, Any], checkpoint: int | None, skipped: list[int]
) -> UserError:
    """Writes `workdir/nonfinite-step-N.json` and returns the error that ends the run.

    The file names the rows of the batch as the data counts them (`TokenBlocks.blocks`), the sha256 of its tokens as int32, and
    the checkpoint to start from; the keys of masking and dropout follow from seed and step.

    Args:
      config: settings of the run.
      workdir: of the run.
      data: that is trained on.
      line: what the metrics say about the update: step (N, the updates made with it), phase, loss, gradient_norm,
        learning_rate.
      checkpoint: step of the newest one, None where there is none.
      skipped: earlier steps whose updates were skipped.
    """
    step = line["step"]
    chosen = data.drawn(step - 1, config.batch_size, config.seed)
    tokens = np.ascontiguousarray(data.batch(step - 1, config.batch_size, config.seed)["tokens"])
    report = {
        **{name: line[name] for name in ("step", "phase", "learning_rate")},
        **{name: str(line[name]) for name in ("loss", "gradient_norm")},
        "seed": config.seed,
        "blocks": chosen.tolist(),
        "tokens_sha256": hashlib.sha256(tokens.tobytes()).hexdigest(),
        "data": {"directory": str(data.directory), "fingerprint": data.fingerprint},
        "checkpoint": None if checkpoint is None else str(workdir / CHECKPOINTS / str(checkpoint)),
        "skipped_before": skipped,
        "versions": {"wechsel_jax": wechsel_jax.__version__, "jax": jax.__version__},
        "config": as_dict(config),
    }
    file = workdir / f"nonfinite-step-{step}.json"
    if is_first():
        record_json(file, report)
    kept = "no checkpoint had been saved" if checkpoint is None else f"the checkpoint of step {checkpoint} is kept"
    allowed = f" after {len(skipped)} skipped updates" if skipped else ""
    return UserError(
        f"{workdir}: loss {line['loss']} and gradient norm {line['gradient_norm']} at step {step}{allowed}; "
        f"expected finite numbers; {kept}, {file.name} holds the batch; "
        "lower optimizer.peak_learning_rate, or set skip_nonfinite, and train in another workdir"
    )
