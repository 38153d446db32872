"""The runs of a report: read, named, and with what can be measured of their transfers."""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from wechsel_jax.errors import UserError, one_line
from wechsel_jax.initializers import METHODS
from wechsel_jax.records import ComparisonRecord, RunRecord, expand, read_run
from wechsel_jax.report import curves
from wechsel_jax.report.curves import Measure
from wechsel_jax.report.palette import slots
from wechsel_jax.report.section import Inline, Name, joined


@dataclass(frozen=True)
class Report:
    """What all sections share: the runs in their order, a colour for each, and what the comparison as a whole recorded."""

    runs: list[RunRecord]
    comparison: ComparisonRecord = field(default_factory=ComparisonRecord)

    @cached_property
    def slots(self) -> dict[str, int]:
        """Label of a run -> its colour and marker."""
        return dict(zip((run.label for run in self.runs), slots([run.method for run in self.runs]), strict=True))

    @cached_property
    def measure(self) -> Measure:
        """What the runs are compared in."""
        return curves.measure(self.runs)

    @property
    def evaluated(self) -> list[RunRecord]:
        """The runs with evaluations."""
        return [run for run in self.runs if run.evaluations]

    @property
    def drawn(self) -> list[RunRecord]:
        """The runs with a curve."""
        return [run for run in self.runs if self.measure.curve(run)]

    @property
    def transferred(self) -> list[RunRecord]:
        """The runs whose transfer was recorded."""
        return [run for run in self.runs if run.transfer]

    def name(self, run: RunRecord) -> Name:
        """The run's label in its colour."""
        return Name(run.label, self.slots[run.label])

    def names(self, runs: Sequence[RunRecord]) -> tuple[Inline, ...]:
        """ "A, B and C", in their colours."""
        return joined([self.name(run) for run in runs], last=" and ")


def read_runs(paths: Sequence[str | Path | RunRecord], *, measured: bool = False) -> list[RunRecord]:
    """Reads runs and gives each a label of its own.

    Args:
      paths: runs as in `records.read_run`, and workdirs of `train.compare`, which stand for the runs in them.
      measured: also measure the tables of their transfers, see `inspection.completed`.

    Raises:
      UserError: none is given, one is given twice, one cannot be read, or two were scored on different held-out text.
    """
    runs: list[RunRecord] = []
    for path in paths:
        runs += [path] if isinstance(path, RunRecord) else map(read_run, expand(path))
    if not runs:
        raise UserError("report: no run given; expected the directory of at least one run")
    places = [run.path.resolve() for run in runs]
    for i, place in enumerate(places):
        if place in places[:i]:
            raise UserError(f"{runs[i].path}: given twice; expected each run once")
    _require_one_text(runs)
    if measured:
        from wechsel_jax.inspection import completed

        runs = [dataclasses.replace(run, transfer=run.transfer and completed(run.transfer)) for run in runs]
    return _told_apart([dataclasses.replace(run, label=_label(run, runs)) for run in runs])


def _require_one_text(runs: Sequence[RunRecord]) -> None:
    """Raises `UserError` where two runs were scored on different held-out text, as far as they recorded which."""
    recorded = [run for run in runs if run.evaluations and curves.files_of(run, "validation")]
    for run in recorded[1:]:
        pair = recorded[0], run
        if not curves.differ_in_text(pair, "validation"):
            continue
        texts = [curves.files_of(one, "validation") for one in pair]
        told = []
        for files, others in (texts, texts[::-1]):
            # Those that the other has not come first.
            names = [f"{one_line(files[file])}, sha256 {file[:8]}" for file in sorted(files, key=others.__contains__)]
            told.append("; ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else ""))
        raise UserError(
            f"{run.path}: was scored on other held-out text ({told[1]}) than {pair[0].path} ({told[0]}); expected the same; "
            "report them apart, or score both on one text by `wechsel-jax evaluate` and report its file of scores"
        )


def _label(run: RunRecord, runs: Sequence[RunRecord]) -> str:
    """The name of the run's method; by which vectors WECHSEL was made matters only where both kinds are compared."""
    name = run.transfer.method if run.transfer else run.label
    if name == "wechsel_tfr" and all(other.method != "wechsel" for other in runs):
        name = "wechsel"
    return METHODS[name].label if name in METHODS else name


def _told_apart(runs: list[RunRecord]) -> list[RunRecord]:
    """Labels by method; where that leaves two alike by seed too, then by directory, then by whole path."""
    ways = (
        lambda run: run.label,
        lambda run: f"{run.label}, seed {run.config.get('seed', 'unknown')}",
        lambda run: f"{run.label} ({run.name})",
        lambda run: f"{run.label} ({run.path.resolve().parent.name}/{run.name})",
        lambda run: f"{run.label} ({run.path})",
    )
    labels = [run.label for run in runs]
    for i, run in enumerate(runs):
        alike = [other for other in runs if other.label == run.label]
        labels[i] = next(way(run) for way in ways if len({way(other) for other in alike}) == len(alike) or way is ways[-1])
    return [dataclasses.replace(run, label=label) for run, label in zip(runs, labels, strict=True)]
