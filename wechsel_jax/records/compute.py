"""What a training run used: hours, devices and how well they were used."""

import statistics
from dataclasses import dataclass

from wechsel_jax.files.json import is_number
from wechsel_jax.records.run import RunRecord


@dataclass(frozen=True)
class Compute:
    """What the training up to a step used.

    Attributes:
      seconds: of the run; work that was lost to interruptions and made again is not counted twice.
      device_seconds: the same times the devices that were at work; None where these were not recorded.
      devices: what they were, e.g. "8 x TPU v3"; several where the run went on elsewhere.
      tokens_per_second: median over the lines of the metrics; None without lines.
      utilisation: median of the model FLOPs utilisation, from 0 to 1; None where the devices' peak is not known.
      flops: of the model's matrix products, forward and backward, for all tokens trained on, whatever of them was frozen; None
        where they or the tokens were not recorded.
    """

    seconds: float
    device_seconds: float | None = None
    devices: tuple[str, ...] = ()
    tokens_per_second: float | None = None
    utilisation: float | None = None
    flops: float | None = None


def compute(run: RunRecord) -> Compute | None:
    """Returns what a run used as far as its record goes; None where it recorded no time."""
    seconds = max((line["seconds"] for line in run.training if is_number(line.get("seconds"))), default=None)
    if seconds is None:
        return None
    used, device_seconds = (), None
    if run.starts and all(is_number(start.get("seconds")) and is_number(start.get("devices")) for start in run.starts):
        # Each start worked until the next one, or until the last line.
        ends = [*(start["seconds"] for start in run.starts[1:]), seconds]
        parts = [max(0.0, min(end, seconds) - start["seconds"]) for start, end in zip(run.starts, ends, strict=True)]
        device_seconds = sum(part * start["devices"] for part, start in zip(parts, run.starts, strict=True))
        worked = [start for part, start in zip(parts, run.starts, strict=True) if part > 0] or run.starts[-1:]
        used = tuple(dict.fromkeys(f"{start['devices']} x {start.get('device_kind') or 'device'}" for start in worked))
    each = run.starts[-1].get("flops_per_token") if run.starts else None
    flops = None if each is None or run.tokens is None else each * run.tokens
    return Compute(seconds, device_seconds, used, median(run, "tokens_per_second"), median(run, "mfu"), flops)


def median(run: RunRecord, field: str) -> float | None:
    """Returns the median of a field over the lines of the training, whose first ones are short stretches behind a compilation.

    None where no line has it.
    """
    values = [line[field] for line in run.training if is_number(line.get(field))]
    return statistics.median(values) if values else None
