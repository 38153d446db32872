"""comparison.json: what ties the runs of `train.compare` together."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from wechsel_jax.errors import UserError
from wechsel_jax.files.json import ANY, NUMBER, TEXT, mismatch, read_json, record_json
from wechsel_jax.records.names import CONFIG_FILE, METRICS_FILE
from wechsel_jax.records.run import RunRecord, seed_runs

COMPARISON_FILE = "comparison.json"
_WHAT, _ADVICE = "what `train.compare` wrote", "run it again"
_SCHEMA = {
    "methods": {"*": {"evaluations?": [(NUMBER, NUMBER)], "bits_per_byte?": [(NUMBER, NUMBER)]}},
    "steps_needed?": {"*": [ANY]},
    "machine?": TEXT,
    "seconds?": {"*": NUMBER},
    "chosen?": TEXT,
    "tuning?": {"*": [(NUMBER, NUMBER, NUMBER)]},
}


@dataclass(frozen=True)
class ComparisonRecord:
    """What comparison.json holds.

    Attributes:
      methods: name of a run, which is that of its directory too -> "evaluations", (step, perplexity) pairs, and
        "bits_per_byte", pairs with that.
      steps_needed: name -> for each evaluation the steps that the run from scratch needs for it; None: never.
      seed: of all runs.
      machine: that they were made on.
      seconds: step -> how long it took, of all starts together.
      chosen: name of the run that a probe chose.
      tuning: name -> the rates that were tried for it, of the body and of its tables as a multiple, and the loss each led to;
        None where rates were given.
    """

    methods: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    steps_needed: Mapping[str, Sequence[float | None]] = field(default_factory=dict)
    seed: int | None = None
    machine: str | None = None
    seconds: Mapping[str, float] = field(default_factory=dict)
    chosen: str | None = None
    tuning: Mapping[str, Sequence[Sequence[float]]] | None = None

    @classmethod
    def read(cls, directory: str | Path) -> Self:
        """Reads the comparison.json of a workdir.

        Raises:
          UserError: it is missing, or holds something else; the message names it and the field.
        """
        file = Path(directory) / COMPARISON_FILE
        if not file.exists() and (file.parent / CONFIG_FILE).exists():
            raise UserError(
                f"{file}: no such file; expected {_WHAT}, which writes it at its end; run the comparison's command again, or "
                "name the workdir of another"
            )
        content = read_json(file, _WHAT, _ADVICE)
        if problem := mismatch(content, _SCHEMA):
            raise UserError(f"{file}: {problem}, {_WHAT}; {_ADVICE}")
        if not content["methods"]:
            raise UserError(f"{file}: names no methods; expected {_WHAT}; {_ADVICE}")
        return cls(**{name: content[name] for name in cls.__dataclass_fields__ if content.get(name) is not None})

    def write(self, directory: str | Path) -> None:
        """Writes the comparison.json of a workdir."""
        record_json(Path(directory) / COMPARISON_FILE, {name: value for name, value in vars(self).items() if value is not None})


def expand(path: str | Path) -> list[Path]:
    """Returns the runs of a comparison's workdir or of a fine-tuning with several seeds; others stand for themselves."""
    path = Path(path)
    if (path / METRICS_FILE).exists() or not (path / COMPARISON_FILE).exists():
        return seed_runs(path)
    return [path / name for name in ComparisonRecord.read(path).methods]


def read_comparison(runs: Sequence[RunRecord]) -> ComparisonRecord:
    """Returns the comparison that runs are of; an empty one where there is none, or they lie apart."""
    parents = {run.path.resolve().parent for run in runs}
    place = parents.pop()
    return ComparisonRecord() if parents or not (place / COMPARISON_FILE).exists() else ComparisonRecord.read(place)
