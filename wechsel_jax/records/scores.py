"""A file of scores: what `wechsel-jax evaluate` measured of models, task by task."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Self

from wechsel_jax.errors import UserError
from wechsel_jax.files import new_file
from wechsel_jax.files.json import NUMBER, TEXT, WHOLE, mismatch, read_json

# What the number of the format promises: fields may be added, which earlier versions do not read; none changes its meaning.
FORMAT = 1
_WHAT, _ADVICE = "the scores that `wechsel-jax evaluate --output=FILE.json` writes", "measure them again"
_SCORE = {
    "model": TEXT,
    "task": TEXT,
    "form": TEXT,
    "main": TEXT,
    "metrics": {"phenomena?": {"*": {}}},
    "numerators": [NUMBER],
    "denominators": [NUMBER],
    "files": [{"name": TEXT, "sha256": TEXT, "bytes?": WHOLE}],
    "settings": {},
    "facts": {
        **{"weights": TEXT, "tokenizer": TEXT},
        **dict.fromkeys(("parameters?", "embedding_parameters?", "vocabulary_size?"), WHOLE),
    },
    "machine?": {},
    "seconds?": NUMBER,
}
# Of the form "text".
_TEXT_METRICS = dict.fromkeys(("bits_per_byte", "bits_per_word", "bytes_per_token", "unknown_tokens"), NUMBER)


@dataclass(frozen=True)
class Score:
    """What a model got in a task.

    Attributes:
      model: its label, one for all its tasks in a file.
      task: its label, one for all models in a file.
      form: what was done, a name of `evaluation.tasks.FORMS`.
      main: the metric that items make up.
      metrics: name -> number, or a dictionary of such (of a group of items), or a text.
      numerators: of each item; their sum over that of the denominators is the main metric.
      denominators: of each item; in a file none where all are 1.
      files: "name", "sha256" and "bytes" of what was scored.
      settings: that change the result.
      facts: "weights" and "tokenizer" (sha256), "directory", "architecture", "parameters", "vocabulary_size" and, of a model
        that a transfer made, "method".
      machine: "device_kind", "devices", "versions".
      seconds: that it took.
    """

    model: str
    task: str
    form: str
    main: str
    metrics: Mapping[str, Any]
    numerators: Sequence[float]
    denominators: Sequence[float]
    files: Sequence[Mapping[str, Any]]
    settings: Mapping[str, Any] = field(default_factory=dict)
    facts: Mapping[str, Any] = field(default_factory=dict)
    machine: Mapping[str, Any] = field(default_factory=dict)
    seconds: float = 0.0

    @property
    def key(self) -> tuple[str, str]:
        """Model and task, of which a file holds one score."""
        return self.model, self.task

    def asked(self) -> tuple[Any, ...]:
        """What must be equal for two models to be compared: form, data and settings."""
        hashes = tuple(file["sha256"] for file in self.files)
        return self.form, hashes, json.dumps(dict(self.settings), sort_keys=True)


@dataclass(frozen=True)
class ScoresRecord:
    """All scores of a file, in the order in which they were measured."""

    scores: tuple[Score, ...] = ()

    @classmethod
    def read(cls, file: str | Path) -> Self:
        """Reads a file of scores.

        Raises:
          UserError: it is missing, of a newer format, or holds something else; the message names it and the field.
        """
        content = read_json(file, _WHAT, _ADVICE)
        number = content.get("format")
        if isinstance(number, int) and number > FORMAT:
            raise UserError(f"{file}: is of format {number}; expected {FORMAT} at most; update wechsel-jax")
        if number != FORMAT or (problem := mismatch(content, {"scores": [_SCORE]})):
            raise UserError(f"{file}: {'has no format' if number != FORMAT else problem}; expected {_WHAT}; {_ADVICE}")
        names = Score.__dataclass_fields__
        scores = []
        for found in content["scores"]:
            one = Score(**{name: found[name] for name in names if found.get(name) is not None})
            scores.append(one if one.denominators else replace(one, denominators=[1] * len(one.numerators)))
        for one in scores:
            if len(one.numerators) != len(one.denominators):
                counts = f"{len(one.numerators)} numerators and {len(one.denominators)} denominators"
                raise UserError(f"{file}: {one.model}, {one.task}: {counts}; expected as many; {_ADVICE}")
            needed = {one.main: NUMBER} | (_TEXT_METRICS if one.form == "text" else {})
            if one.form == "text" and "perplexity" not in one.metrics:
                needed["pseudo_perplexity"] = NUMBER
            problem = mismatch(one.metrics, needed, "metrics")
            if problem or not one.numerators or min(one.denominators) < 0:
                problem = problem or "has no items, or negative denominators"
                raise UserError(f"{file}: {one.model}, {one.task}: {problem}; {_ADVICE}")
        return cls(tuple(scores))

    def with_score(self, score: Score) -> Self:
        """Returns the record with a score, in the place of the one of the same model and task where there is one."""
        kept = [score if one.key == score.key else one for one in self.scores]
        return type(self)((*kept, *([] if any(one.key == score.key for one in self.scores) else [score])))

    def find(self, model: str, task: str) -> Score | None:
        """Returns the score of a model in a task; None where there is none."""
        return next((one for one in self.scores if one.key == (model, task)), None)

    def write(self, file: str | Path) -> None:
        """Writes a file of scores, whole or not at all."""
        with new_file(file, "w") as handle:
            handle.write(f'{{"format": {FORMAT}, "scores": [\n')
            # A line for each score: files of results are compared by eye and by git.
            lines = (json.dumps(_written(score), ensure_ascii=False, allow_nan=False) for score in self.scores)
            handle.write(",\n".join(lines) + "\n]}\n")


def _written(score: Score) -> dict[str, Any]:
    """A score as JSON has it: numbers of items without a useless ".0", denominators that are all 1 left out."""
    numerators, denominators = (
        [int(value) if float(value).is_integer() else value for value in values]
        for values in (score.numerators, score.denominators)
    )
    return asdict(score) | {"numerators": numerators, "denominators": [] if {*denominators} == {1} else denominators}


def is_scores(path: str | Path) -> bool:
    """Whether a file begins as `ScoresRecord.write` begins one."""
    with open(path, "rb") as handle:
        return handle.read(11) == b'{"format": '
