"""What a run left on disk, as data: settings, metrics and the transfer it started from."""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from wechsel_jax.errors import UserError
from wechsel_jax.files import require_directory
from wechsel_jax.files.json import is_number, parse_json, read_json
from wechsel_jax.report.state import DONE, FINISHED, State, find_state
from wechsel_jax.report.transfers import TransferRecord, read_transfer

BASELINE = "full_rand"
METHOD_NAMES = {
    "wechsel": "WECHSEL",
    "wechsel_tfr": "WECHSEL-TFR",
    "trans_inner": "TransInner",
    "ofa": "OFA",
    "focus": "FOCUS",
    "salt": "SALT",
    "omp": "OMP",
    "clp": "CLP-Transfer",
    "fvt": "FVT",
    "mean": "Mean",
    "multivariate": "Multivariate",
    "trans_inner_shuffle": "TransInner-Shuffle",
    "full_rand": "FullRand",
}
_RUN = "a run: metrics.jsonl of `train.pretrain`, or transfer.json of `wechsel-jax transfer`"


@dataclass(frozen=True)
class Evaluation:
    """Held-out perplexity after `step` updates, inf where it overflowed; `tokens` were counted, where that is recorded."""

    step: int
    perplexity: float
    tokens: float | None = None


@dataclass(frozen=True)
class Phase:
    """A stretch of the training: what it trained and the step that it began after."""

    name: str
    start: int
    trainable: str


@dataclass(frozen=True)
class RunRecord:
    """One run.

    Attributes:
      path: its directory.
      label: what the report calls it.
      config: what config.json holds; empty where there is none.
      evaluations: by step.
      training: the "train" lines of metrics.jsonl, by step.
      others: the lines of all other kinds but "eval", in their order: updates that were skipped, an early stop, the end.
      state: whether it is still going.
      transfer: how the model that the run started from was made; None where that was not recorded.
    """

    path: Path
    label: str
    config: Mapping[str, Any] = field(default_factory=dict)
    evaluations: tuple[Evaluation, ...] = ()
    training: tuple[Mapping[str, Any], ...] = ()
    others: tuple[Mapping[str, Any], ...] = ()
    state: State = DONE
    transfer: TransferRecord | None = None

    @property
    def method(self) -> str:
        """The method's name, or the directory's where the run has no transfer."""
        return self.transfer.method if self.transfer else self.path.name

    @cached_property
    def curve(self) -> list[tuple[int, float]]:
        """(step, perplexity) of the evaluations with a finite perplexity."""
        return [(point.step, point.perplexity) for point in self.evaluations if math.isfinite(point.perplexity)]

    @property
    def last_step(self) -> int | None:
        """The last step that anything was recorded of."""
        return _last_step(self.evaluations, self.training)

    @property
    def planned_steps(self) -> int | None:
        """The steps that the run is set to last, where its settings are known."""
        steps = self.config.get("steps")
        return steps if isinstance(steps, int) else None

    @property
    def unfinished(self) -> bool:
        """Whether fewer steps were recorded than planned, and not by intent: the run is still going, or was stopped."""
        return self.state.kind != FINISHED

    @property
    def best(self) -> tuple[int, float] | None:
        """(step, perplexity) of the lowest finite perplexity after at least one step; None where there is none."""
        trained = [point for point in self.curve if point[0]]
        return min(trained, key=lambda point: point[1], default=None)

    def of_kind(self, kind: str) -> list[Mapping[str, Any]]:
        """The lines of a kind among `others`."""
        return [line for line in self.others if line.get("kind") == kind]

    @cached_property
    def phases(self) -> tuple[Phase, ...]:
        """The phases of the training, from the settings; without them from the metrics, to the step of a line."""
        return _phases_of_config(self.config) or _phases_of_metrics(self.training)


def read_run(path: str | Path) -> RunRecord:
    """Reads one run.

    Args:
      path: a training workdir with `metrics.jsonl`, `config.json` and as a choice `transfer/`; all may be missing but one of
        the metrics and the transfer. The output directory of a transfer counts as a run that has not been trained.

    Raises:
      UserError: `path` is no run, or a file of it is damaged; the message names the file.
    """
    path = require_directory(path, _RUN)
    metrics = path / "metrics.jsonl"
    places = [place for place in (path / "transfer", path) if (place / "transfer.json").exists()]
    if not metrics.exists() and not places:
        raise UserError(f"{path}: holds no metrics.jsonl and no transfer.json; expected {_RUN}; name the run's own directory")
    # The config.json of a directory that transfer wrote is the model's.
    config = path / "config.json"
    own_config = config.exists() and places != [path]
    evaluations, training, others = _read_metrics(metrics) if metrics.exists() else ((), (), ())
    settings = read_json(config, "the settings of the run") if own_config else {}
    planned = settings.get("steps") if isinstance(settings.get("steps"), int) else None
    ended = any(line.get("kind") in ("stop", "end") for line in others)
    transfer = read_transfer(places[0]) if places else None
    name = transfer.method if transfer else path.resolve().name
    return RunRecord(
        path=path,
        label=METHOD_NAMES.get(name, name),
        config=settings,
        evaluations=evaluations,
        training=training,
        others=others,
        state=find_state(path, training, planned, _last_step(evaluations, training), ended),
        transfer=transfer,
    )


def read_runs(paths: Sequence[str | Path | RunRecord]) -> list[RunRecord]:
    """Reads runs and gives each a label of its own.

    Args:
      paths: runs as in `read_run`, and workdirs of `train.compare`, which stand for the runs in them.

    Raises:
      UserError: none is given, one is given twice, or one cannot be read.
    """
    runs: list[RunRecord] = []
    for path in paths:
        runs += [path] if isinstance(path, RunRecord) else [read_run(inner) for inner in _expand(Path(path))]
    if not runs:
        raise UserError("report: no run given; expected the directory of at least one run")
    places = [run.path.resolve() for run in runs]
    for i, place in enumerate(places):
        if place in places[:i]:
            raise UserError(f"{runs[i].path}: given twice; expected each run once")
    return _told_apart(runs)


def read_comparison(runs: Sequence[RunRecord]) -> dict[str, Any]:
    """Returns what the `comparison.json` beside the runs holds; empty where there is none, or the runs lie apart."""
    parents = {run.path.resolve().parent for run in runs}
    file = parents.pop() / "comparison.json"
    if parents or not file.exists():
        return {}
    found = read_json(file, "what `train.compare` wrote", "run it again")
    seconds = found.get("seconds", {})
    if not isinstance(seconds, dict) or not all(map(is_number, seconds.values())):
        raise UserError(f"{file}: field seconds holds no numbers; expected what `train.compare` wrote; run it again")
    return found


def _expand(path: Path) -> list[Path]:
    file = path / "comparison.json"
    if (path / "metrics.jsonl").exists() or not file.exists():
        return [path]
    methods = read_json(file, "what `train.compare` wrote", "run it again").get("methods")
    if not isinstance(methods, dict) or not methods:
        raise UserError(f"{file}: names no methods; expected what `train.compare` wrote; run it again")
    return [path / name for name in methods]


def _last_step(evaluations: Sequence[Evaluation], training: Sequence[Mapping[str, Any]]) -> int | None:
    return max([point.step for point in evaluations] + [line["step"] for line in training], default=None)


def _read_metrics(file: Path) -> tuple[tuple[Evaluation, ...], tuple[Mapping[str, Any], ...], tuple[Mapping[str, Any], ...]]:
    """The evaluations and the training lines by step, and what is neither."""
    evaluations: dict[int, Evaluation] = {}
    training: dict[int, Mapping[str, Any]] = {}
    others: list[Mapping[str, Any]] = []
    lines = file.read_bytes().split(b"\n")
    # What comes after the last newline is nothing, or a line that is being written.
    for number, text in enumerate(lines[:-1], 1):
        try:
            line = parse_json(text)
            if not isinstance(line.get("step"), int) or not 0 <= line["step"] < 1 << 53:
                raise ValueError("no step")
            if line.get("kind") == "eval":
                evaluations[line["step"]] = _evaluation(line)
            elif line.get("kind") == "train":
                training[line["step"]] = line
            else:
                others.append(line)
        except (ValueError, RecursionError) as error:
            raise UserError(
                f"{file}: line {number}: not a line of metrics ({error}); expected a JSON object; remove it"
            ) from error
    by_step = (tuple(found[step] for step in sorted(found)) for found in (evaluations, training))
    return (*by_step, tuple(others))


def _evaluation(line: Mapping[str, Any]) -> Evaluation:
    perplexity = line.get("perplexity")
    # A perplexity that is not finite is recorded as null.
    if perplexity is not None and not (is_number(perplexity) and perplexity > 0):
        raise ValueError(f"perplexity {perplexity!r}")
    tokens = line.get("tokens")
    value = math.inf if perplexity is None else float(perplexity)
    return Evaluation(line["step"], value, float(tokens) if is_number(tokens) else None)


def _phases_of_config(config: Mapping[str, Any]) -> tuple[Phase, ...]:
    descriptions, steps = config.get("phases"), config.get("steps")
    if not isinstance(descriptions, list) or not isinstance(steps, int) or not steps:
        return ()
    phases, share = [], 0.0
    for i, phase in enumerate(descriptions):
        length = phase.get("fraction", phase.get("steps")) if isinstance(phase, dict) else None
        if not is_number(length):
            return ()
        phases.append(Phase(str(phase.get("name", f"phase {i}")), round(share * steps), str(phase.get("trainable", "all"))))
        share += length if "fraction" in phase else length / steps
    return tuple(phases)


def _phases_of_metrics(lines: Sequence[Mapping[str, Any]]) -> tuple[Phase, ...]:
    phases: list[Phase] = []
    for line in lines:
        name = line.get("phase")
        if isinstance(name, str) and (not phases or phases[-1].name != name):
            phases.append(Phase(name, line["step"] - 1 if phases else 0, name))
    return tuple(phases)


def _told_apart(runs: list[RunRecord]) -> list[RunRecord]:
    """Labels by method; where that leaves two alike by seed too, then by directory, then by whole path."""
    if [run.method for run in runs].count("wechsel_tfr") and "wechsel" not in [run.method for run in runs]:
        runs = [dataclasses.replace(run, label="WECHSEL") if run.method == "wechsel_tfr" else run for run in runs]
    ways = (
        lambda run: run.label,
        lambda run: f"{run.label}, seed {run.config.get('seed', 'unknown')}",
        lambda run: f"{run.label} ({run.path.resolve().name})",
        lambda run: f"{run.label} ({run.path.resolve().parent.name}/{run.path.resolve().name})",
        lambda run: f"{run.label} ({run.path})",
    )
    labels = [run.label for run in runs]
    for i, run in enumerate(runs):
        alike = [other for other in runs if other.label == run.label]
        labels[i] = next(way(run) for way in ways if len({way(other) for other in alike}) == len(alike) or way is ways[-1])
    return [dataclasses.replace(run, label=label) for run, label in zip(runs, labels, strict=True)]
