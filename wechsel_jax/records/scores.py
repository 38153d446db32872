"""A file of scores: what `wechsel-jax evaluate` measured of models, task by task."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Self

from wechsel_jax.errors import UserError
from wechsel_jax.files.json import NUMBER, TEXT, WHOLE, mismatch
from wechsel_jax.records.results import ADVICE, ResultsFile

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
        **{"weights": TEXT, "tokenizer": TEXT, "settings?": {}},
        **dict.fromkeys(("parameters?", "embedding_parameters?", "vocabulary_size?"), WHOLE),
    },
    "machine?": {},
    "seconds?": NUMBER,
}
_FILE = ResultsFile("format", "scores", _SCORE, "the scores that `wechsel-jax evaluate --output=FILE.json` writes")
is_scores = _FILE.begins
# Facts that say which model it is -> what differs where they do.
_IDENTITY = {
    "weights": "weights",
    "tokenizer": "tokens",
    "config": "settings of the model",
    "beside_config": "tokenizer_config.json, special_tokens_map.json or generation_config.json",
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
      facts: "weights" and "tokenizer" (sha256), "directory", "architecture", "parameters", "vocabulary_size" and, which earlier
        files lack, "config" and "beside_config" (sha256 of config.json, and of what else names special tokens and the end of a
        text) and, of a model that a transfer made, "method" and its "settings"; of labels also "read" ("length" of a row and
        the "texts" that it is made of) and, where it was fine-tuned for them, "fine_tuned" (sha256).
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

    @property
    def items(self) -> tuple[Sequence[float], Sequence[float]]:
        """Numerators and denominators, which `evaluation.bootstrap` draws from."""
        return self.numerators, self.denominators

    @property
    def perplexity(self) -> str:
        """Of a text: which of the two its metrics have, that of a causal model or that of a masked one."""
        return "perplexity" if "perplexity" in self.metrics else "pseudo_perplexity"

    def asked(self) -> tuple[Any, ...]:
        """What must be equal for two models to be compared: form, data and settings."""
        hashes = tuple(file["sha256"] for file in self.files)
        return self.form, hashes, json.dumps(dict(self.settings), sort_keys=True)


def other_model(facts: Mapping[str, Any], others: Mapping[str, Any]) -> str:
    """Says what differs between the models of two scores; "" where nothing does of what both tell."""
    both = [name for name in _IDENTITY if name in facts and name in others]
    return next((_IDENTITY[name] for name in both if facts[name] != others[name]), "")


@dataclass(frozen=True)
class ScoresRecord:
    """All scores of a file, in the order in which they were measured."""

    scores: tuple[Score, ...] = ()

    @property
    def models(self) -> tuple[str, ...]:
        """The labels of the models, in their order."""
        return tuple(dict.fromkeys(score.model for score in self.scores))

    @property
    def tasks(self) -> tuple[str, ...]:
        """The labels of the tasks, in their order."""
        return tuple(dict.fromkeys(score.task for score in self.scores))

    @classmethod
    def read(cls, file: str | Path) -> Self:
        """Reads a file of scores.

        Raises:
          UserError: it is missing, of a newer format, or holds something else; the message names it and the field.
        """
        names = Score.__dataclass_fields__
        scores = []
        for found in _FILE.read(file):
            one = Score(**{name: found[name] for name in names if found.get(name) is not None})
            scores.append(one if one.denominators else replace(one, denominators=[1] * len(one.numerators)))
        for one in scores:
            if len(one.numerators) != len(one.denominators):
                counts = f"{len(one.numerators)} numerators and {len(one.denominators)} denominators"
                raise UserError(f"{file}: {one.model}, {one.task}: {counts}; expected as many; {ADVICE}")
            needed = {one.main: NUMBER} | (_TEXT_METRICS | {one.perplexity: NUMBER} if one.form == "text" else {})
            problem = mismatch(one.metrics, needed, "metrics")
            if problem or not one.numerators or min(one.denominators) < 0:
                problem = problem or "has no items, or negative denominators"
                raise UserError(f"{file}: {one.model}, {one.task}: {problem}; {ADVICE}")
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
        _FILE.write(file, map(_written, self.scores))


def _written(score: Score) -> dict[str, Any]:
    """A score as JSON has it: numbers of items without a useless ".0", denominators that are all 1 left out."""
    numerators, denominators = (
        [int(value) if float(value).is_integer() else value for value in values]
        for values in (score.numerators, score.denominators)
    )
    return asdict(score) | {"numerators": numerators, "denominators": [] if {*denominators} == {1} else denominators}
