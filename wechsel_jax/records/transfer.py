"""transfer.json: what a transfer recorded about itself."""

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from wechsel_jax.errors import UserError
from wechsel_jax.files.json import ANY, NUMBER, TEXT, WHOLE, mismatch, read_json, write_json
from wechsel_jax.records.names import RECORD_FILE

# What the number of the format promises: fields may be added, which earlier versions do not read; none changes its meaning.
FORMAT = 1
ORIGINS = ("copied", "mixed", "random")
_WHAT, _ADVICE = "the transfer.json that `wechsel-jax transfer` writes", "run the transfer again"
_SPREAD = {"mean": NUMBER, "std": NUMBER}
_GROUP = {"tokens?": WHOLE, "examples?": [ANY]}
_SIDE = {"tokens?": WHOLE, "without_vector?": WHOLE}
_TABLE = {"not_finite_rows": WHOLE, "duplicate_share?": NUMBER}
_SCHEMA = {
    "method": TEXT,
    "settings?": {},
    "source?": {"model?": TEXT, "architecture?": TEXT, "class?": TEXT, "vocabulary_size?": WHOLE},
    "target?": {"tokenizer?": TEXT, "vocabulary_size?": WHOLE},
    "counts?": {"copied": WHOLE, "mixed": WHOLE, "random": WHOLE, "*": WHOLE},
    "tensors?": [{}],
    "coverage?": {
        "rows?": [
            {
                **{"rule": TEXT, "tokens": NUMBER, "share?": NUMBER, "examples?": [ANY]},
                **dict.fromkeys(("with_vector?", "copied?", "mixed?", "noise?"), WHOLE),
            }
        ],
        "without_vector?": _GROUP,
        "noise?": _GROUP,
    },
    "alignment?": {
        **dict.fromkeys(("pairs?", "pairs_found?", "pairs_given?", "held_out_words?"), WHOLE),
        **{"precision_at_1?": NUMBER, "residual?": NUMBER, "anchors?": {"*": WHOLE}},
        **{"source_text?": _SIDE, "target_text?": _SIDE, "weighting?": TEXT, "method?": TEXT},
    },
    "similarity?": {"*": NUMBER},
    "norms?": {"source": _SPREAD, "target": _SPREAD},
    "examples?": [{"target": TEXT, "how": TEXT, "sources": [(TEXT, NUMBER)]}],
    "behaviour?": [TEXT],
    "notes?": [TEXT],
    "versions?": {"*": TEXT},
    "paper?": TEXT,
    "choice?": {"method?": TEXT, "because?": TEXT},
    "calibration?": {},
    "timings?": {"*": NUMBER},
    "cost?": {"flops": NUMBER, "text_bytes": WHOLE},
    "measures?": {
        "vocabulary_size?": WHOLE,
        "mixture?": {"effective_neighbors": NUMBER, "source_tokens": WHOLE, "largest_absolute_sum?": NUMBER},
        "duplicates?": {"rows": WHOLE, "share": NUMBER},
        "special_tokens?": {"named": [TEXT], "random": [TEXT]},
        "tables": [{"name": TEXT, "role": TEXT, "target": _TABLE, "source?": {}, "ratios?": {"*": NUMBER}}],
    },
}


@dataclass(frozen=True)
class Example:
    """One target token: how its row was made ("copied", "mixed", "random") and its source tokens with their weights."""

    target: str
    how: str
    sources: tuple[tuple[str, float], ...]


@dataclass(frozen=True)
class Mixture:
    """What the weights of a plan's mixed rows look like.

    Attributes:
      effective_neighbors: mean over the rows of exp(entropy of |weights|): how many source tokens a row really leans on.
      source_tokens: how many different source tokens are used at all.
    """

    effective_neighbors: float
    source_tokens: int


@dataclass(frozen=True)
class Finding:
    """One judgement of a transfer.

    Attributes:
      severity: "ok"; "look": may be as it should be, a person has to see it; "wrong": training will pay for it.
      about: what was judged, e.g. "random rows".
      value: the number that was judged, where there is one.
      text: a sentence with the number, and what to do where it is not "ok".
    """

    severity: str
    about: str
    value: float | None
    text: str


@dataclass(frozen=True)
class TransferRecord:
    """What transfer.json holds, in its order; what an older or shortened one lacks is empty or None.

    Attributes:
      method: a name in `initializers.METHODS`.
      parity: whether the reference implementation was repeated bit for bit.
      settings: the fields of `TransferSettings` but parity.
      source: "model", "architecture", "class" (of transformers), "vocabulary_size", "hidden_size", "tied".
      target: "tokenizer", "vocabulary_size".
      counts: rows by `ORIGINS`.
      tensors: "name", "role", "shape" and "dtype" of those with a vocabulary axis.
      examples: some target tokens, drawn once.
      behaviour: a sentence for each rule that was applied.
      notes: a sentence for everything out of the ordinary.
      versions: of Python and packages.
      paper: the method's, as the card cites it in a sentence.
      coverage: what the rules of the overlap matched, see `transfers.coverage`.
      alignment: of the word vectors (`vectors.Alignment.report`) or by anchors (`initializers.anker`); None without one.
      similarity: "mean_top1" and "median_top1" of the tokens that were compared.
      norms: side -> "mean" and "std" of the lengths of the embeddings' rows.
      choice: which "method" was chosen and why ("because"); of a probe also its name among those tried ("start", which may
        have settings of its own) and the "curves"; None where a method was named.
      calibration: see `transfers.calibration`; None where there was none.
      timings: step -> seconds.
      cost: "flops" of the choice of a method, of the plan, of what it is made from, of applying it, of fitting its rows and of
        calibration, and "text_bytes" that were read for all that, in every pass, see `records.work`. None for older records,
        and of those some leave out choice and calibration.
      measures: what was measured of the plan and the tables, see `inspection.measure`; None for older records.
      file: where it was read; None for one that was not.
      mixture, tables, findings: what the plan and the model beside the record tell, see `inspection.completed`; not recorded.
    """

    method: str
    parity: bool = False
    settings: Mapping[str, Any] = field(default_factory=dict)
    source: Mapping[str, Any] = field(default_factory=dict)
    target: Mapping[str, Any] = field(default_factory=dict)
    counts: Mapping[str, int] | None = None
    tensors: tuple[Mapping[str, Any], ...] = ()
    examples: tuple[Example, ...] = ()
    behaviour: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    versions: Mapping[str, str] = field(default_factory=dict)
    paper: str | None = None
    coverage: Mapping[str, Any] = field(default_factory=dict)
    alignment: Mapping[str, Any] | None = None
    similarity: Mapping[str, float] | None = None
    norms: Mapping[str, Mapping[str, float]] | None = None
    choice: Mapping[str, Any] | None = None
    calibration: Mapping[str, Any] | None = None
    timings: Mapping[str, float] = field(default_factory=dict)
    cost: Mapping[str, float] | None = None
    measures: Mapping[str, Any] | None = None
    file: Path | None = field(default=None, metadata={"recorded": False})
    mixture: Mixture | None = field(default=None, metadata={"recorded": False})
    tables: tuple[Mapping[str, Any], ...] = field(default=(), metadata={"recorded": False})
    findings: tuple[Finding, ...] = field(default=(), metadata={"recorded": False})

    @classmethod
    def read(cls, path: str | Path) -> Self:
        """Reads the transfer.json of a directory, or of that name.

        Raises:
          UserError: it is missing or holds no JSON object, another format, no method, or a field of another type; the message
            names it.
        """
        path = Path(path)
        file = path / RECORD_FILE if path.is_dir() else path
        return dataclasses.replace(cls.parse(read_json(file, _WHAT, _ADVICE), file), file=file)

    @classmethod
    def parse(cls, content: Mapping[str, Any], place: str | Path = RECORD_FILE) -> Self:
        """Makes a record of what a transfer.json holds; `place` is named where that is wrong, as in `read`."""
        content = _finite(content)
        version = content.get("format", FORMAT)
        if version != FORMAT:
            newer = isinstance(version, int) and version > FORMAT
            advice = "update wechsel-jax (pip install -U wechsel-jax)" if newer else _ADVICE
            written = ", of a newer version of wechsel-jax" if newer else ""
            raise UserError(
                f"{place}: format {ascii(version)[:40]}{written}; expected {FORMAT}, the one that this version reads; {advice}"
            )
        if isinstance(content.get("coverage"), list):
            # As it was first recorded.
            content["coverage"] = {"rows": content["coverage"]}
        problem = mismatch(content, _SCHEMA)
        if problem is None and "anchors" in (content.get("alignment") or {}):
            problem = mismatch(content["alignment"], {"rounds?": [{"anchors": WHOLE}], "anchors": {}}, "alignment")
        for i, example in enumerate(content.get("examples") or () if problem is None else ()):
            if example["how"] not in ORIGINS:
                problem = f"field examples.{i}.how is {ascii(example['how'])[:40]}; expected one of {', '.join(ORIGINS)}"
                break
        if problem is not None:
            raise UserError(f"{place}: {problem}, as `wechsel-jax transfer` writes it; {_ADVICE}")
        parts = {name: content[name] for name in _RECORDED if content.get(name) is not None}
        parts |= {name: tuple(parts[name]) for name in ("tensors", "behaviour", "notes") if name in parts}
        parts["parity"] = bool(content.get("parity"))
        parts["examples"] = tuple(
            Example(one["target"], one["how"], tuple((token, float(weight)) for token, weight in one["sources"]))
            for one in content.get("examples") or ()
        )
        return cls(**parts)

    def content(self) -> dict[str, Any]:
        """Returns what transfer.json holds, ready for JSON."""
        content = {"format": FORMAT} | {name: getattr(self, name) for name in _RECORDED}
        content |= {name: [*content[name]] for name in ("tensors", "behaviour", "notes")}
        content["examples"] = [
            {"target": one.target, "how": one.how, "sources": [[*source] for source in one.sources]} for one in self.examples
        ]
        # What later versions added is left out where it is not there.
        added = ("choice", "calibration", "cost", "measures")
        return {name: value for name, value in content.items() if name not in added or value is not None}

    def write(self, directory: str | Path) -> None:
        """Writes the transfer.json of a directory."""
        write_json(Path(directory) / RECORD_FILE, self.content())


_RECORDED = tuple(one.name for one in dataclasses.fields(TransferRecord) if one.metadata.get("recorded", True))


def _finite(value: Any) -> Any:
    """The same value with null for NaN and infinities, which JSON cannot hold when it is written again."""
    if isinstance(value, dict):
        return {name: _finite(item) for name, item in value.items()}
    if isinstance(value, list):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
