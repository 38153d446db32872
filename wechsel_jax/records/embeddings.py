"""A file of embedding tables: what `wechsel-jax embeddings` measured of each, before and after transforms."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Self

from wechsel_jax.files.json import NUMBER, TEXT, WHOLE
from wechsel_jax.records.results import ResultsFile
from wechsel_jax.records.transfer import Finding

_DISTRIBUTION = {
    **{"steps": [TEXT], "group": TEXT, "rows": WHOLE, "zero_rows": WHOLE, "anisotropy?": NUMBER},
    **dict.fromkeys(("least", "largest", "mean", "sd", "norm_least", "norm_mean", "norm_largest"), NUMBER),
    **{"xavier_limit": NUMBER, "outside": NUMBER, "bins": (NUMBER, NUMBER), "counts": [WHOLE]},
}
_ABSORPTION = {
    **{"steps": [TEXT], "positions": TEXT, "length": WHOLE, "scale": NUMBER, "share": NUMBER, "linear": NUMBER},
    **dict.fromkeys(("embedding_sd?", "position_sd?", "probe_r2?", "probe_accuracy?"), NUMBER),
}
_ANALOGIES = {"steps": [TEXT], "correct": WHOLE, "total": WHOLE, "asked": WHOLE, "sections": {"*": (WHOLE, WHOLE)}}
_EMBEDDINGS = {
    **{"name": TEXT, "table": TEXT, "rows": WHOLE, "dimensions": WHOLE, "settings": {}},
    **{"distributions": [_DISTRIBUTION], "absorptions?": [_ABSORPTION], "analogies?": [_ANALOGIES]},
    "findings?": [{"severity": TEXT, "about": TEXT, "value?": NUMBER, "text": TEXT}],
}
_WHAT = "the embeddings that `wechsel-jax embeddings --output=FILE.json` describes"
_FILE = ResultsFile("embeddings_format", "tables", _EMBEDDINGS, _WHAT)
is_embeddings = _FILE.begins


@dataclass(frozen=True)
class Distribution:
    """How the entries and the rows of a table are distributed.

    Attributes:
      steps: what was done to the table first, names of `inspection.distribution.STEPS`.
      group: "all", or the rows of one origin: "copied", "mixed" and "random" of a transfer, "found" and "drawn" of a new table.
      rows: how many.
      zero_rows: of them, those of zeros; anisotropy leaves them out.
      least: the smallest entry.
      largest: the largest entry.
      mean: of all entries.
      sd: sample deviation of all entries, one number for the table (Kim et al., 2024, section 3.4).
      norm_least: length of the shortest row.
      norm_mean: mean length.
      norm_largest: length of the longest row.
      anisotropy: mean cosine of all pairs of different rows; 0: they point everywhere. None for fewer than two rows.
      xavier_limit: a = sqrt(6 / (N + D)) of the whole table, see `xavier_sd`.
      outside: share of the entries outside [-a, a].
      bins: the ends of the stretch that `counts` divides evenly: four `sd` to both sides of `mean`, no further than entries go.
      counts: entries in each part of that stretch; those beyond it are not counted.
    """

    steps: tuple[str, ...]
    group: str
    rows: int
    zero_rows: int
    least: float
    largest: float
    mean: float
    sd: float
    norm_least: float
    norm_mean: float
    norm_largest: float
    anisotropy: float | None
    xavier_limit: float
    outside: float
    bins: tuple[float, float]
    counts: tuple[int, ...]

    @property
    def xavier_sd(self) -> float:
        """The deviation of Xavier's draw for a table of this size."""
        return self.xavier_limit / math.sqrt(3)

    @property
    def ratio(self) -> float:
        """How many times as spread out as Xavier's draw: its distance from that."""
        return self.sd / self.xavier_sd


@dataclass(frozen=True)
class Absorption:
    """What is left of the positions in the input of a Transformer, where embeddings h = scale * x meet them.

    Attributes:
      steps: what was done to the table first.
      positions: a name of `inspection.positions.KINDS`.
      length: how many positions, each as frequent as the others.
      scale: what the rows were multiplied by, after `steps`.
      share: of the variance of the input, what its position explains: trace of cov(E[input | position]) to trace of cov(input).
      linear: share of the variance of the position's number that the best linear reader explains, over the whole vocabulary.
      embedding_sd: sample deviation of all entries of h.
      position_sd: that of the positions which are added; None where they are not added.
      probe_r2: what a ridge regression explains of the number for words that it has not seen; None where not measured.
      probe_accuracy: how often a linear discriminant names the right position, for such words.
    """

    steps: tuple[str, ...]
    positions: str
    length: int
    scale: float
    share: float
    linear: float
    embedding_sd: float | None = None
    position_sd: float | None = None
    probe_r2: float | None = None
    probe_accuracy: float | None = None


@dataclass(frozen=True)
class Analogies:
    """Answers to word analogies.

    Attributes:
      steps: what was done to the table first.
      correct: answers that are right.
      total: questions of which all words are in the vocabulary.
      asked: questions in the file.
      sections: name -> (correct, total) of each section with a question.
    """

    steps: tuple[str, ...]
    correct: int
    total: int
    asked: int
    sections: Mapping[str, tuple[int, int]]


@dataclass(frozen=True)
class Embeddings:
    """What was measured of one table.

    Attributes:
      name: of the model or file.
      table: which table of it: the name of a tensor, or "words".
      rows: N.
      dimensions: D.
      settings: that change the result.
      distributions: the table as it is comes first.
      absorptions: in the order measured.
      analogies: in the order measured.
      findings: the verdict.
    """

    name: str
    table: str
    rows: int
    dimensions: int
    settings: Mapping[str, Any]
    distributions: tuple[Distribution, ...]
    absorptions: tuple[Absorption, ...] = ()
    analogies: tuple[Analogies, ...] = ()
    findings: tuple[Finding, ...] = ()


@dataclass(frozen=True)
class EmbeddingsRecord:
    """All tables of a file, in the order in which they were measured."""

    tables: tuple[Embeddings, ...] = ()

    @classmethod
    def read(cls, file: str | Path) -> Self:
        """Reads what `write` wrote.

        Raises:
          UserError: it is missing, of a newer format, or holds something else; the message names it and the field.
        """
        return cls(tuple(map(_table, _FILE.read(file))))

    def write(self, file: str | Path) -> None:
        """Writes the file, whole or not at all."""
        _FILE.write(file, map(asdict, self.tables))


def _table(found: Mapping[str, Any]) -> Embeddings:
    names = ("name", "table", "rows", "dimensions", "settings")
    return Embeddings(
        **{name: found[name] for name in names},
        distributions=_all(Distribution, found["distributions"], ("steps", "bins", "counts")),
        absorptions=_all(Absorption, found.get("absorptions"), ("steps",)),
        analogies=tuple(
            Analogies(**(vars(one) | {"sections": {name: tuple(counts) for name, counts in one.sections.items()}}))
            for one in _all(Analogies, found.get("analogies"), ("steps",))
        ),
        findings=_all(Finding, found.get("findings"), ()),
    )


def _all(kind: type, found: Sequence[Mapping[str, Any]] | None, lists: Sequence[str]) -> tuple[Any, ...]:
    """Records of a kind; fields of a later version are left out."""
    made = []
    for one in found or ():
        values = {name: one.get(name) for name in kind.__dataclass_fields__}
        made.append(kind(**values | {name: tuple(values[name]) for name in lists}))
    return tuple(made)
