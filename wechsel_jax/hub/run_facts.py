"""What a training run recorded of itself, as far as a model card tells it: settings, text, scores and compute."""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from wechsel_jax.files.json import is_number, parse_json
from wechsel_jax.hub.records import check_settings, read_transfer

SIDES = ("train", "validation")
# A copy of what the run started from, and where `train.compare` puts the transfer of a run.
_TRANSFERS = ("model/transfer.json", "transfer/transfer.json")


@dataclass(frozen=True)
class Compute:
    """What the training up to a step used.

    Attributes:
      seconds: of the run; work that was lost to interruptions and made again is not counted twice.
      device_seconds: the same times the devices that were at work; None where these were not recorded.
      devices: what they were, e.g. "8 x TPU v3"; several where the run went on elsewhere.
      tokens_per_second: median over the lines of the metrics; None without lines.
      utilisation: median of the model FLOPs utilisation, from 0 to 1; None where the devices' peak is not known.
    """

    seconds: float
    device_seconds: float | None = None
    devices: tuple[str, ...] = ()
    tokens_per_second: float | None = None
    utilisation: float | None = None


@dataclass(frozen=True)
class RunFacts:
    """A run up to a step.

    Attributes:
      name: of the workdir.
      step: updates that the weights have seen.
      config: the content of config.json.
      evaluations: lines of metrics.jsonl of kind "eval" up to `step`, in order.
      data: "train" and "validation" -> the manifest of the text, where it is there.
      compute: None where nothing was recorded.
      versions: of the packages of the last start.
      transfer: the content of transfer.json, where the run began from a transfer.
    """

    name: str
    step: int
    config: Mapping[str, Any]
    evaluations: Sequence[Mapping[str, Any]]
    data: Mapping[str, Mapping[str, Any]]
    compute: Compute | None
    versions: Mapping[str, str]
    transfer: Mapping[str, Any] | None

    @property
    def began_with(self) -> str:
        """The model's directory or hub id; empty where its parameters were new."""
        return (self.config.get("model") or {}).get("checkpoint") or ""

    @property
    def best(self) -> Mapping[str, Any] | None:
        """The evaluation with the lowest finite perplexity."""
        finite = [line for line in self.evaluations if is_number(line.get("perplexity"))]
        return min(finite, key=lambda line: line["perplexity"], default=None)

    @property
    def last(self) -> Mapping[str, Any] | None:
        """The evaluation of these weights; None where they were not evaluated."""
        return next((line for line in reversed(self.evaluations) if line["step"] == self.step), None)


def read_facts(workdir: Path, step: int | None = None) -> RunFacts | None:
    """Reads a workdir; None where it is none. Fields and files that are missing are left out.

    Args:
      workdir: of a training run.
      step: of the weights that the card is about; None: the last one that was recorded.

    Raises:
      UserError: a field of the settings, or of the record of the transfer that the run began from, has another type.
    """
    config = read_object(workdir / "config.json")
    if config is None or "model_type" in config or not (workdir / "metrics.jsonl").exists():
        return None
    check_settings(workdir / "config.json", config)
    lines = read_lines(workdir / "metrics.jsonl")
    step = max((line["step"] for line in lines), default=0) if step is None else step
    lines = [line for line in lines if line["step"] <= step]
    starts = _starts(workdir)
    found = starts[-1].get("versions") if starts else None
    return RunFacts(
        name=workdir.resolve().name,
        step=step,
        config=config,
        evaluations=[line for line in lines if line.get("kind") == "eval"],
        data={side: found for side in SIDES if (found := _manifest(workdir, config, side))},
        compute=_compute([line for line in lines if line.get("kind") == "train"], starts),
        versions={name: str(one) for name, one in found.items()} if isinstance(found, dict) else {},
        transfer=_transfer(workdir, config),
    )


def read_object(file: Path) -> dict[str, Any] | None:
    """A JSON object from a file; None where there is none."""
    try:
        return parse_json(file.read_bytes())
    except (OSError, ValueError, RecursionError):
        return None


def read_lines(file: Path) -> list[dict[str, Any]]:
    """The whole lines of a file of metrics that can be read; a run that is still going may be writing another."""
    found = []
    for text in file.read_bytes().split(b"\n")[:-1]:
        try:
            line = parse_json(text)
        except (ValueError, RecursionError):
            continue
        if isinstance(line.get("step"), int):
            found.append(line)
    return found


def _manifest(workdir: Path, config: Mapping[str, Any], side: str) -> dict[str, Any] | None:
    named = (config.get("data") or {}).get(side) or []
    places = [workdir / "data" / side, *map(Path, named)]
    return next((found for place in places if (found := read_object(place / "manifest.json"))), None)


def _transfer(workdir: Path, config: Mapping[str, Any]) -> dict[str, Any] | None:
    start = (config.get("model") or {}).get("checkpoint") or ""
    places = [workdir / place for place in _TRANSFERS] + ([Path(start) / "transfer.json"] if start else [])
    return next((read_transfer(place) for place in places if place.is_file()), None)


def _starts(workdir: Path) -> list[dict[str, Any]]:
    """What every start of the run wrote down about its devices, see `training.machine`."""
    starts = (read_object(workdir / "machine.json") or {}).get("starts")
    return [start for start in starts if isinstance(start, dict)] if isinstance(starts, list) else []


def _compute(lines: Sequence[Mapping[str, Any]], starts: Sequence[Mapping[str, Any]]) -> Compute | None:
    seconds = max((line["seconds"] for line in lines if is_number(line.get("seconds"))), default=None)
    if seconds is None:
        return None
    known = all(is_number(start.get("seconds")) and is_number(start.get("devices")) for start in starts)
    used = device_seconds = None
    if starts and known:
        ends = [*(start["seconds"] for start in starts[1:]), seconds]
        parts = [max(0.0, min(end, seconds) - start["seconds"]) for start, end in zip(starts, ends, strict=True)]
        device_seconds = sum(part * start["devices"] for part, start in zip(parts, starts, strict=True))
        worked = [start for part, start in zip(parts, starts, strict=True) if part > 0] or starts[-1:]
        used = dict.fromkeys(f"{start['devices']} x {start.get('device_kind', 'device')}" for start in worked)
    return Compute(
        seconds, device_seconds, tuple(used or ()), _median(lines, "tokens_per_second"), _median(lines, "mfu")
    )  # fmt: skip


def _median(lines: Sequence[Mapping[str, Any]], field: str) -> float | None:
    values = [line[field] for line in lines if is_number(line.get(field))]
    return statistics.median(values) if values else None
