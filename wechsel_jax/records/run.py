"""What a training run left in its workdir: config.json, metrics.jsonl, machine.json, and the records beside them."""

import json
import math
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Self

from wechsel_jax.errors import UserError, one_line
from wechsel_jax.files import require_directory
from wechsel_jax.files.json import NUMBER, TEXT, WHOLE, is_number, mismatch, parse_json, read_json
from wechsel_jax.records.names import (
    CONFIG_FILE,
    EXPORT,
    FINGERPRINTS_FILE,
    MACHINE_FILE,
    MANIFEST,
    METRICS_FILE,
    RECORD_FILE,
    SEEDS_FILE,
    TOKENS,
)
from wechsel_jax.records.state import DONE, FINISHED, State, find_state
from wechsel_jax.records.transfer import TransferRecord

SIDES = ("train", "validation")
# Objectives whose rows are whole blocks of text; those of others are examples, pairs or sentences, and shorter.
FILLED = ("clm", "mlm")
# Where `train.compare` puts the transfer of a run, the directory of a transfer itself, a copy of what the run began with.
_TRANSFERS = ("transfer", ".", "model")
_RUN = "a run: metrics.jsonl of `train.pretrain`, or transfer.json of `wechsel-jax transfer`"
_CONFIG = {
    "model?": {"checkpoint?": TEXT},
    "data?": {"train?": [TEXT], "validation?": [TEXT]},
    "optimizer?": {"groups?": [{}]},
    "phases?": [{}],
    "soft_targets?": {},
}
_STARTS = {
    "starts": [
        {"seconds?": NUMBER, "devices?": WHOLE, "device_kind?": TEXT, "flops_per_token?": NUMBER, "versions?": {"*": TEXT}}
    ]
}
_MANIFEST = {
    "inputs?": [{"name?": TEXT, "bytes?": WHOLE, "sha256?": TEXT}],
    **{"documents?": WHOLE, "text_bytes?": WHOLE, "tokens?": WHOLE, "sha256?": TEXT, "tokenizer?": {"sha256": TEXT}},
}


@dataclass(frozen=True)
class Evaluation:
    """Held-out loss and perplexity after `step` updates, inf where it overflowed.

    `tokens` were counted, which stand for `bytes` of text; earlier runs recorded no bytes, the first ones no tokens. A run on
    labelled examples has no perplexity (inf) but a `score`, the larger the better, whose name is `metric`. One that translates
    may have `bleu`, 0 to 100, of its translations of held-out text.
    """

    step: int
    perplexity: float
    tokens: float | None = None
    loss: float = math.inf
    bits_per_byte: float | None = None
    bytes: float | None = None
    score: float | None = None
    metric: str = ""
    bleu: float | None = None

    @classmethod
    def of(cls, line: Mapping[str, Any]) -> Self:
        """Reads a line of kind "eval".

        Raises:
          ValueError: its perplexity is neither a number above 0 nor null, as one that is not finite is recorded.
        """
        loss, perplexity = line.get("loss"), line.get("perplexity")
        if perplexity is not None and not (is_number(perplexity) and perplexity > 0):
            raise ValueError(f"perplexity {ascii(perplexity)[:40]}")
        value = math.inf if perplexity is None else float(perplexity)
        names = ("tokens", "bits_per_byte", "bytes", "score", "bleu")
        return cls(
            step=line["step"],
            perplexity=value,
            **{name: float(found) for name in names if is_number(found := line.get(name))},
            metric=str(line.get("metric", "")),
            # The first runs' lines had none; what is no number is not finite.
            loss=float(loss) if is_number(loss) else math.log(value) if "loss" not in line else math.inf,
        )


def best_evaluation(evaluations: Iterable[Evaluation]) -> Evaluation | None:
    """Returns the evaluation with the highest score, or else the lowest finite loss, the first of equal ones.

    None where there is none.

    Step 0 is never the best of a trained run, however it compares: its weights are not what training made.
    """
    trained = [one for one in evaluations if one.step and math.isfinite(one.loss)]
    return min(trained, key=lambda one: (one.loss if one.score is None else -one.score, one.step), default=None)


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
      label: what it is called; `read_run` gives the method's name, or the directory's where the run has no transfer.
      config: what config.json holds; empty where there is none.
      evaluations: by step.
      training: the "train" lines of metrics.jsonl, by step.
      others: the lines of all other kinds but "eval", in their order: updates that were skipped, an early stop, the end.
      state: whether it is still going.
      transfer: how the model that the run started from was made; None where that was not recorded.
      starts: what machine.json holds of every start: "step", "seconds", "devices", "device_kind", "flops_per_token" and
        "versions".
      data: "train" and "validation" -> the manifest of the text, where it was prepared.
      fingerprints: "train", "validation" and "tokenizer" -> sha256, as in the manifests; the run has them wherever these lie.
    """

    path: Path
    label: str
    config: Mapping[str, Any] = field(default_factory=dict)
    evaluations: tuple[Evaluation, ...] = ()
    training: tuple[Mapping[str, Any], ...] = ()
    others: tuple[Mapping[str, Any], ...] = ()
    state: State = DONE
    transfer: TransferRecord | None = None
    starts: tuple[Mapping[str, Any], ...] = ()
    data: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    fingerprints: Mapping[str, str] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """The directory's name, also where it was given as "."."""
        return self.path.resolve().name

    @property
    def method(self) -> str:
        """The method's name, or the directory's where the run has no transfer."""
        return self.transfer.method if self.transfer else self.name

    @cached_property
    def curve(self) -> list[tuple[int, float]]:
        """(step, perplexity) of the evaluations with a finite perplexity."""
        return [(point.step, point.perplexity) for point in self.evaluations if math.isfinite(point.perplexity)]

    @cached_property
    def evaluated_at(self) -> Mapping[int, Evaluation]:
        """Step -> the evaluation after so many updates."""
        return {point.step: point for point in self.evaluations}

    @property
    def last_step(self) -> int | None:
        """The last step that anything was recorded of."""
        return _last_step(self.evaluations, self.training, self.others)

    @property
    def tokens(self) -> int | None:
        """Tokens trained on, WECHSEL's measure of effort (Minixhofer et al., 2022, table 1): batch x sequence length x steps.

        None where settings or steps are not known, or where rows are examples, which are shorter.
        """
        sizes = [self.config.get("batch_size"), self.config.get("block_length"), self.last_step]
        if self.config.get("objective") not in FILLED or not all(is_number(size) for size in sizes):
            return None
        return math.prod(sizes)

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
    def exported_step(self) -> int | None:
        """The step whose weights the run wrote as its model: that of its end, or of its best evaluation; None before."""
        found = [line.get("exported_step") for line in self.of_kind("end")]
        return found[-1] if found and isinstance(found[-1], int) else None

    @property
    def began_with(self) -> str:
        """The directory or hub id of the model that the run began with; empty where its parameters were new."""
        return (self.config.get("model") or {}).get("checkpoint") or ""

    def of_kind(self, kind: str) -> list[Mapping[str, Any]]:
        """The lines of a kind among `others`."""
        return [line for line in self.others if line["kind"] == kind]

    def until(self, step: int) -> "RunRecord":
        """The same run without what was recorded of later steps."""
        return replace(
            self,
            evaluations=tuple(one for one in self.evaluations if one.step <= step),
            training=tuple(line for line in self.training if line["step"] <= step),
            others=tuple(line for line in self.others if line["step"] <= step),
        )

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
    metrics = path / METRICS_FILE
    places = [place for name in _TRANSFERS if (place := path / name / RECORD_FILE).exists()]
    if not metrics.exists() and not places:
        inside = ", ".join(sorted(str(file.parent) for file in path.glob(f"*/{METRICS_FILE}")))
        advice = f"such as the runs in it: {inside}" if inside else "name the run's own directory"
        raise UserError(f"{path}: holds no {METRICS_FILE} and no {RECORD_FILE}; expected {_RUN}; {advice}")
    # The config.json of a directory that transfer wrote is the model's.
    file = path / CONFIG_FILE
    config = read_json(file, "the settings of the run") if file.exists() and places[:1] != [path / RECORD_FILE] else {}
    lines = read_metrics(metrics)
    evaluations = {line["step"]: Evaluation.of(line) for line in lines if line["kind"] == "eval"}
    training = {line["step"]: line for line in lines if line["kind"] == "train"}
    evaluations, training = (tuple(found[step] for step in sorted(found)) for found in (evaluations, training))
    others = tuple(line for line in lines if line["kind"] not in ("eval", "train"))
    transfer = TransferRecord.read(places[0]) if places else None
    run = RunRecord(
        path=path,
        label="",
        config=config,
        evaluations=evaluations,
        training=training,
        others=others,
        transfer=transfer,
        starts=read_starts(path / MACHINE_FILE),
        data={side: found for side in SIDES if (found := _read_manifest(path, config, side))},
        fingerprints=_read_fingerprints(path / FINGERPRINTS_FILE),
    )
    ended = bool(run.of_kind("stop") or run.of_kind("end"))
    state = find_state(path, training, run.planned_steps, _last_step(evaluations, training), ended)
    return replace(run, label=run.method, state=state)


def read_metrics(path: str | Path) -> list[dict[str, Any]]:
    """Reads the lines of a metrics file; a last line that was cut off is left out, a missing file is empty.

    Raises:
      UserError: another line is damaged; the message names it.
    """
    path = Path(path)
    if not path.exists():
        return []
    lines = []
    # What comes after the last newline is nothing, or a line that is being written or that a kill cut off.
    for number, text in enumerate(path.read_bytes().split(b"\n")[:-1], 1):
        try:
            line = parse_json(text)
            if not isinstance(line.get("kind"), str) or not isinstance(line.get("step"), int):
                raise ValueError("it lacks a kind and a step, or has others than a word and a number")
            if not 0 <= line["step"] < 1 << 53:
                raise ValueError(f"step {ascii(line['step'])[:40]}")
            if line["kind"] == "eval":
                Evaluation.of(line)
        except (ValueError, RecursionError) as error:
            raise UserError(
                f"{path}: line {number}: not a line of metrics ({one_line(error)}); expected what a run writes; put the file "
                "back from a copy, or remove it, and the curve so far with it"
            ) from error
        lines.append(line)
    return lines


def seed_runs(workdir: str | Path) -> list[Path]:
    """Returns the runs of a fine-tuning with several seeds; the directory itself where it is none.

    Raises:
      UserError: seeds.json is not as `training.finetune` writes it.
    """
    record = Path(workdir) / SEEDS_FILE
    if not record.is_file():
        return [Path(workdir)]
    content = read_json(record, "what several seeds scored", "remove it, and run the fine-tuning again")
    if problem := mismatch(content, {"seeds": [WHOLE]}):
        raise UserError(f"{record}: {problem}, as a fine-tuning writes it; remove it, and run that again")
    return [record.parent / f"seed-{seed}" for seed in content["seeds"]]


def exported_model(place: str | os.PathLike) -> str | os.PathLike:
    """The model that a run has exported, of the run's workdir; any other place, a run without one too, as it is."""
    exported = (Path(place) / METRICS_FILE).exists() and (Path(place) / EXPORT).is_dir()
    return Path(place) / EXPORT if exported else place


def encode_line(line: Mapping[str, Any]) -> str:
    """Returns a line of metrics as it is written; JSON has no infinity, so an overflowing perplexity becomes null."""
    finite = {name: None if isinstance(value, float) and not math.isfinite(value) else value for name, value in line.items()}
    return json.dumps(finite) + "\n"


def _last_step(*lines: Sequence[Evaluation | Mapping[str, Any]]) -> int | None:
    return max((one.step if isinstance(one, Evaluation) else one["step"] for some in lines for one in some), default=None)


def read_starts(file: Path) -> tuple[Mapping[str, Any], ...]:
    """Returns the starts of a run that machine.json has, the oldest first; none where there is no file.

    Raises:
      UserError: the file is damaged.
    """
    if not file.exists():
        return ()
    content = read_json(file, "what a run recorded of its devices", "remove it")
    if problem := mismatch(content, _STARTS):
        raise UserError(f"{file}: {problem}, as a training run writes it; remove it")
    return tuple(content["starts"])


def _read_manifest(path: Path, config: Mapping[str, Any], side: str) -> Mapping[str, Any] | None:
    named = [] if mismatch(config, _CONFIG) else (config.get("data") or {}).get(side) or []
    # A directory of somebody's text may hold a manifest of its own; the run's own outlives its tokens.
    places = [path / "data" / side, *(place for place in map(Path, named) if (place / TOKENS).is_file())]
    file = next((place / MANIFEST for place in places if (place / MANIFEST).is_file()), None)
    if file is None:
        return None
    content = read_json(file, "the manifest of prepared text", "prepare the text again")
    if problem := mismatch(content, _MANIFEST):
        raise UserError(f"{file}: {problem}, as `wechsel-jax prepare` writes it; prepare the text again")
    return content


def _read_fingerprints(file: Path) -> dict[str, str]:
    if not file.exists():
        return {}
    content = read_json(file, "what the run began with", "put it back")
    return {name: value for name, value in content.items() if isinstance(value, str)}


def require_settings(run: RunRecord) -> None:
    """Raises `UserError` where a field of a run's config.json that a model card tells is of another type."""
    if problem := mismatch(run.config, _CONFIG):
        file = run.path / CONFIG_FILE
        raise UserError(f"{file}: {problem} of a run's settings; put back the file that the run wrote")


def _phases_of_config(config: Mapping[str, Any]) -> tuple[Phase, ...]:
    descriptions, steps = config.get("phases"), config.get("steps")
    # An integer of JSON may be too large for a float.
    if not isinstance(descriptions, list) or not isinstance(steps, int) or not steps or not is_number(steps):
        return ()
    phases, start, share = [], 0, 0.0
    for i, phase in enumerate(descriptions):
        length = phase.get("fraction", phase.get("steps")) if isinstance(phase, dict) else None
        if not is_number(length):
            return ()
        phases.append(Phase(str(phase.get("name", f"phase {i}")), start, str(phase.get("trainable", "all"))))
        # As `training.schedules` lays them: ends of fractions are rounded, not lengths.
        share += length if "fraction" in phase else length / steps
        start = round(share * steps) if "fraction" in phase else start + round(length)
    return tuple(phases)


def _phases_of_metrics(lines: Sequence[Mapping[str, Any]]) -> tuple[Phase, ...]:
    phases: list[Phase] = []
    for line in lines:
        name = line.get("phase")
        if isinstance(name, str) and (not phases or phases[-1].name != name):
            phases.append(Phase(name, line["step"] - 1 if phases else 0, name))
    return tuple(phases)
