"""Models times tasks: every score that is still missing is measured, and written down as soon as it is there."""

import contextlib
import dataclasses
import hashlib
import inspect
import math
import os
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Self

import jax
import numpy as np

from wechsel_jax.checkpoint import Checkpoint
from wechsel_jax.data.examples import LABELLED, SQUAD
from wechsel_jax.data.examples import Task as Examples
from wechsel_jax.errors import UserError, naming
from wechsel_jax.evaluation import bootstrap
from wechsel_jax.evaluation.answers import LANGUAGES
from wechsel_jax.evaluation.generation import unread
from wechsel_jax.evaluation.items import EXPECTED as ITEMS
from wechsel_jax.evaluation.loaded import LoadedModel
from wechsel_jax.evaluation.reading import WORDS
from wechsel_jax.files import file_hash, held
from wechsel_jax.files.json import read_json
from wechsel_jax.models.vanilla import MODEL_TYPE
from wechsel_jax.records.machine import versions
from wechsel_jax.records.names import CONFIG_FILE, EXPORT, METRICS_FILE, RECORD_FILE, SEEDS_FILE, STAGES
from wechsel_jax.records.run import exported_model, read_run, seed_runs
from wechsel_jax.records.scores import Score, ScoresRecord, other_model
from wechsel_jax.records.transfer import TransferRecord
from wechsel_jax.text.documents import KINDS
from wechsel_jax.text.parts import read_documents
from wechsel_jax.text.sources import SOURCE_FILE, Source, find_sources, identify


@dataclasses.dataclass(frozen=True)
class Task:
    """What a model is asked.

    Attributes:
      name: its label in a file of scores.
      form: a name of `FORMS`.
      place: the text or the file of items.
      settings: arguments of the form's function; others are as they are there by default.
      fine_tuned: labels: label of a model -> workdir of its fine-tuning, which is scored in its place.
    """

    name: str
    form: str
    place: str
    settings: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    fine_tuned: Mapping[str, str | os.PathLike] = dataclasses.field(default_factory=dict)

    def files(self) -> list[str]:
        """Returns all that is read, the text or the items first."""
        return [self.place, *(self.settings[name] for name in _FILES if self.settings.get(name))]

    def sources(self) -> list[Source]:
        """Returns the same as sources.

        Raises:
          UserError: a file is missing or empty.
        """
        return find_sources(self.files(), self.settings.get("text_field", "text"), what=_EXPECTED[self.form])

    @classmethod
    def of(cls, name: str, form: str, place: str | os.PathLike, **given: Any) -> Self:
        """Returns a task with all of its settings.

        Raises:
          UserError: the form is unknown, or has no such setting, or one is of another kind than its default, or none of those
            that it may be.
        """
        if form not in FORMS:
            raise UserError(f"{name}: form {form!r} is not known; expected one of {', '.join(FORMS)}")
        parameters = list(inspect.signature(FORMS[form]).parameters.values())[2:]
        known = {one.name: one.default for one in parameters}
        if unknown := sorted({*given} - {*known}):
            # "training" is written by whoever scores.
            named = ", ".join(one for one in known if one != "training")
            raise UserError(f"{name}.{unknown[0]}: {form} has no such setting; expected some of {named}")
        settings = {key: list(value) if isinstance(value, tuple) else value for key, value in (known | given).items()}
        if missing := [key for key, value in settings.items() if value is inspect.Parameter.empty]:
            raise UserError(f"{name}: {missing[0]} is missing, which {form} needs")
        for key in given:
            # What has no default is a file.
            kind = str if known[key] is inspect.Parameter.empty else type(known[key])
            if kind in _KINDS and not _KINDS[kind][1](settings[key]):
                raise UserError(f"{name}.{key}: is {given[key]!r}; expected {_KINDS[kind][0]}")
            if settings[key] not in (values := _VALUES.get((form, key), [settings[key]])):
                raise UserError(f"{name}.{key}: is {given[key]!r}; expected one of {', '.join(map(repr, values))}")
        if form in ("labels", "probe"):
            least, most = int(form == "probe"), 1 if settings.get("kind") == "tagging" else 2
            if not least <= len(settings["texts"]) <= most:
                raise UserError(
                    f"{name}.texts: is {settings['texts']!r}; expected the names of {least} to {most} columns or fields"
                )
        if settings.get("examples") and not settings["shots"]:
            raise UserError(f"{name}.examples: has no effect without shots; expected shots, or none of it")
        return cls(name, form, os.fspath(place), settings)


# Type of a setting's default -> what the setting is, and whether a value is one.
_KINDS: dict[type, tuple[str, Callable[[Any], bool]]] = {
    int: ("a whole number, 0 or more", lambda value: type(value) is int and value >= 0),
    bool: ("true or false", lambda value: isinstance(value, bool)),
    str: ("text", lambda value: isinstance(value, str)),
    tuple: ("a list of texts", lambda value: isinstance(value, list) and all(isinstance(one, str) for one in value)),
}


# (form, setting) -> the values that it may have. Refused where a task is named, not after a model has been read for it.
_VALUES: dict[tuple[str, str], Sequence[str]] = {
    ("text", "documents"): KINDS,
    ("reading", "words"): (*WORDS,),
    ("reading", "rules"): ("", *LANGUAGES),
    ("labels", "language"): ("", *LANGUAGES),
    ("probe", "kind"): ("classification", "tagging"),
}


def tasks_of(given: Mapping[str, Any], where: str) -> list[Task]:
    """Returns tasks as configurations and files hold them: name -> {"form", "file", and settings of the form}.

    Args:
      given: the tasks.
      where: where they stand, as messages begin, before the name of a task.

    Raises:
      UserError: a task has no form or file, or a setting that its form does not know, or a file is missing.
    """
    found = []
    for name, task in given.items():
        if not isinstance(task, Mapping) or not all(isinstance(task.get(key), str) for key in ("form", "file")):
            raise UserError(f"{where}{name}: expected a form and a file, and settings of the form")
        settings = {key: value for key, value in task.items() if key not in ("form", "file")}
        one = Task.of(f"{where}{name}", task["form"], task["file"], **settings)
        with naming(f"{where}{name}: "):
            one.sources()
        found.append(dataclasses.replace(one, name=name))
    return found


class Result(NamedTuple):
    """What a form's function returns: see `records.scores.Score`."""

    main: str
    metrics: Mapping[str, Any]
    numerators: Sequence[float]
    denominators: Sequence[float]


def text(
    model: LoadedModel,
    place: str,
    *,
    text_bytes: int = 1 << 20,
    window: int = 0,
    stride: int = 0,
    documents: str = "lines",
    text_field: str = "text",
) -> Result:
    """Bits per byte and perplexity of the beginning of a text; see `evaluation.text.score_text`.

    Args:
      model: causal or masked.
      place: a source of text, see `text.sources.find_sources`.
      text_bytes: how much of it is read, in whole documents but for the last; 0: all.
      window: see `score_text`.
      stride: see `score_text`.
      documents: what a document of a text file is, a name of `text.documents.KINDS`.
      text_field: which field holds the text of JSON lines and tables.
    """
    from wechsel_jax.evaluation.text import score_text

    found = score_text(model, _beginning(place, text_bytes, documents, text_field), window=window, stride=stride)
    return Result("bits_per_byte", found.metrics(), found.nats / math.log(2), found.bytes)


def choice(
    model: LoadedModel,
    place: str,
    *,
    kind: str = "",
    shots: int = 0,
    examples: str = "",
    limit: int = 0,
    within_word: bool = False,
) -> Result:
    """Forced choice; see `evaluation.choice.score_choices`, whose `form` is `kind` here; "" and 0 are None."""
    from wechsel_jax.evaluation.choice import score_choices

    options = {"form": kind, "shots": shots, "examples": examples or None, "limit": limit or None}
    metrics, items = score_choices(model, place, within_word=within_word, **options)
    # What lm-eval reports first for tasks whose choices differ in length.
    main = "acc_norm" if metrics["form"] in ("arc", "hellaswag") else "acc"
    return Result(main, metrics, items[main], np.ones(len(items[main])))


def reading(
    model: LoadedModel,
    place: str,
    *,
    questions: str = "",
    words: str = "en",
    rules: str = "",
    shots: int = 0,
    max_tokens: int = 32,
    limit: int = 0,
) -> Result:
    """Answers that a causal model writes; see `evaluation.reading.score_reading`."""
    from wechsel_jax.evaluation.reading import score_reading

    options = {"words": words, "rules": rules, "shots": shots, "max_tokens": max_tokens}
    metrics, items = score_reading(model, place, questions=questions or None, limit=limit or None, **options)
    return Result("f1", metrics, items["f1"], np.ones(len(items["f1"])))


def labels(
    directory: str | os.PathLike,
    place: str,
    *,
    texts: Sequence[str] = (),
    label: str = "",
    columns: Sequence[str] = (),
    language: str = "",
    training: Mapping[str, Any] | None = None,
    dtype: str = "float32",
) -> Result:
    """What a fine-tuned model finds; see `evaluation.labels.score_labelled`, of which "" and () are None.

    Of a fine-tuning with several seeds all are scored: an item's numbers are the means of theirs, as the metrics are, and
    "spread" is the standard deviation of the metric that counts. `training` is for the record: what was fine-tuned otherwise
    is not compared.
    """
    from wechsel_jax.evaluation.labels import score_labelled

    options = {"texts": texts or None, "label": label or None, "columns": columns or None, "language": language or None}
    every = [score_labelled(one, [place], **options, dtype=dtype) for one in seed_runs(directory)]
    metrics = {name: float(np.mean([one.metrics[name] for one in every])) for name in every[0].metrics}
    if len(every) > 1:
        metrics |= {"seeds": len(every), "spread": float(np.std([one.metrics[every[0].metric] for one in every], ddof=1))}
    numerators, denominators = (
        np.mean([getattr(one, name) for one in every], axis=0) for name in ("numerators", "denominators")
    )
    # The mean of the seeds' F1 is not quite the F1 of the means, which is what the items make up.
    metrics[every[0].metric] = bootstrap.score((numerators, denominators))
    return Result(every[0].metric, metrics, numerators, denominators)


def probe(
    model: LoadedModel,
    place: str,
    *,
    train: str,
    kind: str = "classification",
    texts: Sequence[str] = ("text",),
    label: str = "label",
    columns: Sequence[str] = (),
    length: int = 128,
) -> Result:
    """What a frozen model knows; see `evaluation.probes.probe`.

    `train` is the file that the classifier is trained on; `kind`, "classification" or "tagging", says what is in both.
    """
    from wechsel_jax.evaluation.probes import probe

    task = Examples(kind, tuple(texts), label, tuple(columns))
    found = probe(model, [train], [place], task, length=min(length, model.config.max_length))
    return Result(found.metric, found.metrics, found.numerators, found.denominators)


# A function for each form: (model, place, **settings) -> Result; that of `labels` gets the model's directory.
FORMS: dict[str, Callable[..., Result]] = {
    "text": text,
    "choice": choice,
    "reading": reading,
    "labels": labels,
    "probe": probe,
}
# Settings that are files, too.
_FILES = ("examples", "questions", "train")
# Form -> what its files are expected to be, for messages.
_EXPECTED = {"text": SOURCE_FILE, "choice": ITEMS, "reading": SQUAD, "labels": LABELLED, "probe": LABELLED}


def evaluate(
    models: Mapping[str, str | os.PathLike],
    tasks: Sequence[Task],
    *,
    output: str | os.PathLike | None = None,
    overwrite: bool = False,
    dtype: str = "float32",
    noted: Mapping[str, Mapping[str, Any]] | None = None,
    say: Callable[[str], None] = print,
) -> ScoresRecord:
    """Scores models in tasks.

    A score that `output` holds already is not measured again, so the same command goes on where it stopped, and a file may grow
    by further commands.

    Args:
      models: label -> model directory, hub id, or workdir of a run, whose export it is; with labels also of several seeds.
      tasks: of different names.
      output: the file of scores to write or to add to.
      overwrite: replace scores of the same model's and task's labels that are of other weights, data or settings.
      dtype: what matrix products compute in, "float32" or "bfloat16".
      noted: label -> facts of a model that its directory does not tell, such as what it is the average of.
      say: called with a line for each score.

    Returns:
      All scores of the file, or without one those that were asked for.

    Raises:
      UserError: a model or file is missing or damaged, a task cannot be asked of a model, or `output` holds a score of the same
        labels but of other weights, data or settings.
    """
    record = ScoresRecord.read(output) if output is not None and Path(output).exists() else ScoresRecord()
    files = {task.name: identify(task.sources(), 1)[1] for task in tasks}
    # All that can be wrong without a model is found before any is loaded.
    facts = {label: _facts(place) | dict((noted or {}).get(label, {})) for label, place in models.items()}
    wanted: list[tuple[str, Task, Score]] = []
    for label in models:
        kept = [score for score in record.scores if score.model == label and score.task not in files]
        for score in kept:
            if other := other_model(score.facts, facts[label]):
                raise UserError(
                    f"{output}: has a score of {label} in {score.task}, of other {other}; expected one model a name; use other "
                    f"names (NAME=...) or another file, or score it in {score.task} again, too"
                )
        for task in tasks:
            # Which file it was, its hash says; where it lay is no setting.
            places = {name: Path(task.settings[name]).name for name in _FILES if task.settings.get(name)}
            given = {name: value for name, value in task.settings.items() if value is not None}
            settings = {**given, **places, "dtype": dtype}
            known = facts[label] | ({"fine_tuned": _weights(task.fine_tuned[label])} if label in task.fine_tuned else {})
            if task.form == "labels":
                settings, read = _as_trained(settings, task.fine_tuned.get(label, models[label]))
                known = known | {"read": read}
            asked = Score(label, task.name, task.form, "", {}, (), (), files[task.name], settings, known)
            found = record.find(label, task.name)
            if _replaceable(found, asked, output, overwrite):
                wanted.append((label, task, asked))
            else:
                say(f"{label}, {task.name}: {told(found)} (measured before)")
    model = None
    for label, task, asked in wanted:
        if task.form == "labels":
            model = label, task.fine_tuned.get(label, models[label])
        elif model is None or model[0] != label or not isinstance(model[1], LoadedModel):
            # The one before may fill the memory.
            model = None
            model = label, LoadedModel.open(models[label], dtype=dtype)
            if model[1].note:
                say(f"note: {model[1].note}")
        if task.form == "reading" and (note := unread(model[1], drawing=False)):
            say(f"note: {note}")
        began = time.monotonic()
        computed = {"dtype": dtype} if task.form == "labels" else {}
        try:
            result = FORMS[task.form](model[1], task.place, **(task.settings | computed))
        except UserError as error:
            # What it advises of task.columns and the like is about this one's settings. A task may be called as its file is.
            named = str(error).startswith(f"{task.name}: ")
            raise UserError(f"{'' if named else f'{task.name}: '}{error}") from error
        device = jax.local_devices()[0]
        score = dataclasses.replace(
            asked,
            main=result.main,
            metrics=_finite(result.metrics, f"{label}, {task.name}"),
            numerators=[float(f"{value:.6g}") for value in result.numerators],
            denominators=[float(value) for value in result.denominators],
            machine={"device_kind": device.device_kind, "devices": jax.local_device_count(), "versions": versions()},
            seconds=round(time.monotonic() - began, 3),
        )
        if output is None:
            record = record.with_score(score)
        else:
            place = Path(output).parent
            place.mkdir(parents=True, exist_ok=True)
            with held(place, wait=True):
                # Another process may have added to it meanwhile.
                record = ScoresRecord.read(output) if Path(output).exists() else record
                _replaceable(record.find(label, task.name), asked, output, overwrite)
                record = record.with_score(score)
                record.write(output)
        say(f"{label}, {task.name}: {told(score)} ({score.seconds:.1f} s)")
    return record


def told(score: Score) -> str:
    """Returns the main number of a score in a few words."""
    value = score.metrics[score.main]
    if score.main == "bits_per_byte":
        name = score.perplexity
        return f"{value:.3f} bits per byte ({name.replace('_', '-')} {score.metrics[name]:,.1f})"
    ties = score.metrics.get(f"{score.main}_ties")
    return f"{score.main} {100 * value:.1f} % of {len(score.numerators):,}" + (f", {ties:,.0f} of them ties" if ties else "")


def _replaceable(found: Score | None, asked: Score, output: str | os.PathLike | None, overwrite: bool) -> bool:
    """Whether a score is to be measured: there is none yet, or another one that may be replaced; other ones are refused."""
    other = found and _difference(found, asked)
    if other and not overwrite:
        raise UserError(
            f"{output}: has a score of {asked.model} in {asked.task}, of other {other}; expected the same; use other names "
            "(NAME=...), another file, or --overwrite"
        )
    return found is None or bool(other)


def _difference(found: Score, asked: Score) -> str:
    """What was other when a score was measured than it is now; "" where nothing was."""
    if other := other_model(found.facts, asked.facts):
        return other
    if found.facts.get("fine_tuned") != asked.facts.get("fine_tuned"):
        return "fine-tuned weights"
    if asked.form == "labels" and "read" not in found.facts:
        return "version, which did not record what is right"
    if found.facts.get("read") != asked.facts.get("read"):
        return "settings of its texts"
    names = ("kind", "data", "settings")
    return next((name for name, one, other in zip(names, found.asked(), asked.asked(), strict=True) if one != other), "")


def _as_trained(settings: Mapping[str, Any], place: str | os.PathLike) -> tuple[dict[str, Any], dict[str, Any]]:
    """Settings of labels, what they leave to the fine-tuning set as that has it, and how it reads an example.

    What is right, "label", "skip", "columns" and "language", has to be the same for models to be compared; texts and length are
    the model's own.
    """
    from wechsel_jax.evaluation.labels import recorded_task

    trained = recorded_task(seed_runs(place)[0] if Path(place).is_dir() else place)
    right = {"label": settings.get("label") or trained.get("label", Examples.label)}
    right["skip"] = list(trained.get("skip", Examples.skip))
    right["language"] = settings.get("language") or trained.get("language", "")
    if not (settings.get("texts") or settings.get("label") or settings.get("columns")):
        # Of a file without a line of names they say which column is right.
        right["columns"] = list(trained.get("columns", ()))
    read = {"length": trained.get("length"), "texts": list(settings.get("texts") or trained.get("texts", ()))}
    return {**settings, **right}, read


def _weights(place: str | os.PathLike) -> str:
    """One sha256 of the weights of a model directory or a run, or of all seeds of a fine-tuning."""
    folders = [Path(exported_model(run)) for run in seed_runs(place)]
    found = [file_hash(path) for folder in folders for path in sorted(folder.glob("*.safetensors"))]
    return hashlib.sha256("".join(found).encode()).hexdigest()


def _facts(place: str | os.PathLike) -> dict[str, Any]:
    # Of several seeds these are written when all have ended.
    ended = any((Path(place) / name).exists() for name in (SEEDS_FILE, CONFIG_FILE))
    if not ended and (begun := sorted(Path(place).glob(f"seed-*/{CONFIG_FILE}"))):
        found = ", ".join(path.parent.name for path in begun)
        raise UserError(
            f"{place}: a fine-tuning that is unfinished ({found} have begun); expected all of its seeds; the same "
            "train.finetune command goes on"
        )
    # Several seeds began alike.
    first = seed_runs(place)[0] if Path(place).is_dir() else place
    checkpoint = Checkpoint.open(exported_model(first))
    directory = checkpoint.directory
    # Where there is no tokenizer.json, several files make up a tokenizer.
    names = ("tokenizer.json",), ("*.model", "vocab.txt", "vocab.json", "merges.txt", "added_tokens.json")
    tokenizers = next(filter(None, (sorted(path for name in group for path in directory.glob(name)) for group in names)), [])
    hashes = [file_hash(path) for path in tokenizers]
    # The token before a text and those that end one are named here. Of each its name, too: one may be there without the others.
    named = ("tokenizer_config.json", "special_tokens_map.json", "generation_config.json")
    beside = [f"{name} {file_hash(directory / name)}" for name in named if (directory / name).is_file()]
    sizes = {name: math.prod(tensor.shape) for name, tensor in checkpoint.tensors.items()}
    if checkpoint.architecture == MODEL_TYPE:
        # Made here alone: no surgery knows it, and it stores nothing twice.
        tables = [name for name in sizes if name.endswith("_tok_emb.embedding.weight")]
        size = checkpoint.config["vocab_size"]
    else:
        sizes = {name: count for name, count in sizes.items() if name not in checkpoint.tied_copies}
        tables = [tensor.name for tensor in checkpoint.vocabulary_tensors()]
        size = checkpoint.vocabulary_size
    transfer = directory / RECORD_FILE
    # Not as `TransferRecord`, which refuses those of newer versions: such models can be scored.
    recorded = read_json(transfer, "what a transfer recorded") if transfer.is_file() else {}
    if "method" not in recorded and (begun := _begun(Path(first), directory)):
        recorded = {"method": begun.method, "settings": begun.settings}
    method, settings = recorded.get("method"), recorded.get("settings")
    # Lists are of files, and None is what nobody chose.
    known = settings.items() if isinstance(settings, Mapping) else ()
    chosen = {name: value for name, value in known if isinstance(value, str | int | float)}
    return {
        "directory": str(place),
        "architecture": checkpoint.architecture,
        "weights": _weights(place if Path(place).is_dir() else directory),
        "tokenizer": hashlib.sha256("".join(hashes).encode()).hexdigest() if len(hashes) > 1 else "".join(hashes),
        "config": file_hash(directory / "config.json"),
        "beside_config": hashlib.sha256("\n".join(beside).encode()).hexdigest(),
        "parameters": sum(sizes.values()),
        "embedding_parameters": sum(sizes.get(name, 0) for name in tables),
        "vocabulary_size": size,
        **({"method": method, "settings": chosen} if isinstance(method, str) else {}),
    }


def _begun(place: Path, directory: Path) -> TransferRecord | None:
    """The transfer that a run began with: its workdir is named, or a model that it has exported, at its end or before."""
    if (place / METRICS_FILE).exists():
        return read_run(place).transfer
    on_way, exported = directory.parent.name == STAGES, directory.name == EXPORT
    run = directory.parent.parent if on_way else directory.parent
    if (on_way or exported) and (run / METRICS_FILE).exists():
        # A file by that name may be anybody's.
        with contextlib.suppress(UserError):
            return read_run(run).transfer
    return None


def _beginning(place: str, limit: int, kind: str, field: str) -> list[str]:
    found, left = [], limit
    for document in (document for source in find_sources([place], field) for document in read_documents(source, kind)):
        size = len(document.encode())
        if limit and size > left:
            document = document.encode()[:left].decode(errors="ignore")
        found += [document] if document.strip() else []
        left -= size
        if limit and left <= 0:
            break
    if not found:
        raise UserError(f"{place}: holds nothing but white space; expected text to score")
    return found


def _finite(metrics: Mapping[str, Any], where: str) -> dict[str, Any]:
    """The metrics as JSON can hold them.

    Raises:
      UserError: one is no finite number.
    """
    found: dict[str, Any] = {}
    for name, value in metrics.items():
        if isinstance(value, Mapping):
            found[name] = _finite(value, where)
        elif isinstance(value, float | np.floating) and not math.isfinite(value):
            raise UserError(f"{where}: {name} is {value}; expected a finite number; `wechsel-jax inspect` looks at the weights")
        else:
            found[name] = value.item() if isinstance(value, np.generic) else value
    return found
