"""Scores of a model with a head for labels on labelled examples."""

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from operator import itemgetter
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from wechsel_jax.data.examples import Task, read_examples
from wechsel_jax.data.rows import LabelledRows, encode_examples, padding_id
from wechsel_jax.errors import UserError
from wechsel_jax.evaluation.answers import answer_scores, best_answers
from wechsel_jax.evaluation.label_scores import (
    OUTSIDE,
    classification_scores,
    has_entities,
    require_seqeval,
    role_scores,
    tagging_scores,
)
from wechsel_jax.evaluation.loaded import LoadedModel
from wechsel_jax.evaluation.parsing import best_tree, parsing_scores
from wechsel_jax.evaluation.perplexity import one_behind
from wechsel_jax.files.json import read_json
from wechsel_jax.models.heads import stated_head
from wechsel_jax.models.layers import pin
from wechsel_jax.objectives.labels import LabelObjective, label_objective
from wechsel_jax.records.names import CONFIG_FILE, EXPORT, METRICS_FILE
from wechsel_jax.records.run import exported_model

# Tokens of an answer, as the scripts of transformers have it.
_LONGEST_ANSWER = 30
# Of a row, for a model that does not say how it was trained.
_LENGTH, _STRIDE = 512, 64
# Universal Dependencies: the relation of the root's one word, and one that nothing more is known of.
_ROOT, _UNKNOWN = "root", "dep"
# What the trainer records of an evaluation, the most important first.
_METRICS = {
    "classification": ("accuracy", "macro_f1"),
    "tagging": ("f1", "precision", "recall", "accuracy"),
    "answers": ("f1", "exact_match", "has_answer_f1", "has_answer_exact_match", "no_answer"),
    "parsing": ("las", "uas"),
    "roles": ("f1", "precision", "recall"),
}


@dataclass(frozen=True)
class LabelScores:
    """What a model scored on n examples.

    Attributes:
      metrics: of all examples: "loss" in nats, and "accuracy" and "macro_f1" (classification), "accuracy" and of entities "f1",
        "precision" and "recall" (tagging), "f1" and "exact_match" (answers, and those of `answer_scores` where questions have
        none), "las" and "uas" (parsing), or of arguments "f1", "precision" and "recall" (roles); of `score_labelled` also
        "cut", how many texts were longer than a row, if any were.
      metric: the name of the one that counts.
      places: (n,) file and line, or what else names each example.
      predicted: (n,) label, labels of the words, answer, or (head, relation) of each word; a probe of words has places and
        labels of each word.
      numerators: (n,) of each example; their sum over that of the denominators is the metric that counts.
      denominators: (n,).
    """

    metrics: Mapping[str, float]
    metric: str
    places: Sequence[str]
    predicted: Sequence[Any]
    numerators: Sequence[float]
    denominators: Sequence[float]

    def line(self) -> dict[str, Any]:
        """Returns what a run records of an evaluation: the metrics, "metric", "score" (the metric's value) and "examples"."""
        return {**self.metrics, "metric": self.metric, "score": self.metrics[self.metric], "examples": len(self.places)}


def label_scores(
    objective: LabelObjective,
    params: Any,
    batches: Iterable[Mapping[str, Any]],
    rows: LabelledRows,
    *,
    language: str = "",
) -> LabelScores:
    """Scores the examples of which `batches` hold all rows.

    Args:
      objective: of the model; equal ones share a compilation for each shape of batches.
      params: of the model, on whatever devices.
      batches: of `rows.evaluation_batches`; numpy or placed on the devices of `params`.
      rows: what the batches are of.
      language: answers: whose rules compare them, see `answers.normalized`.

    Raises:
      UserError: entities are to be scored and seqeval is not installed.
    """
    total, found = np.zeros(2), {}
    for loss, weight, number, scores in one_behind(_outputs(objective, params, batch) for batch in batches):
        total += float(loss), float(weight)
        for place, row in enumerate(number):
            if row >= 0:
                one = jax.tree.map(itemgetter(place), scores)
                # At once: the arcs of all sentences together may be gigabytes.
                found[int(row)] = _tree(rows, row, *one) if rows.form == "parsing" else one
    needed = np.bincount(rows.sources, minlength=len(rows.examples))
    seen = np.bincount(rows.sources[sorted(found)], minlength=len(rows.examples))
    whole = np.flatnonzero((seen == needed) & (needed > 0))
    if not whole.size:
        raise UserError("eval_batches: no example was read as a whole; expected more batches; raise eval_batches")
    examples = [rows.examples[number] for number in whole]
    gold = [example.target for example in examples]
    if rows.form == "classification":
        labelled = {int(rows.sources[row]): rows.labels[number] for row, number in found.items()}
        scores = classification_scores(gold, [labelled[number] for number in whole])
    elif rows.form in ("tagging", "roles"):
        labelled = {int(number): [OUTSIDE] * len(rows.examples[number].texts) for number in whole}
        for row, numbers in found.items():
            marks = rows.marks[rows.starts[row] : rows.starts[row + 1]]
            words = labelled.get(int(rows.sources[row]), {})
            for place in np.flatnonzero(marks >= 0) if words else ():
                words[marks[place]] = rows.labels[numbers[place]]
        given = [labelled[number] for number in whole]
        if rows.form == "roles":
            scores = role_scores([labels for _, labels in gold], given)
        else:
            scores = tagging_scores(gold, given, has_entities(rows.labels))
    elif rows.form == "parsing":
        labelled = {int(rows.sources[row]): tree for row, tree in found.items()}
        scores = parsing_scores(gold, [labelled[number] for number in whole])
    else:
        windows = [
            (int(rows.sources[row]), scores[:, : end - start], rows.marks[start:end])
            for row, scores in sorted(found.items())
            for start, end in [rows.starts[row : row + 2]]
        ]
        texts = {int(rows.sources[row]): rows.examples[rows.sources[row]].texts[1] for row in found}
        # Where all questions have answers, to say nothing can only be wrong.
        none = any(not example.target for example in rows.examples)
        labelled = best_answers(windows, texts, _LONGEST_ANSWER, none=none)
        scores = answer_scores([[text for text, _ in answers] for answers in gold], [labelled[n] for n in whole], language)
        scores["items"] = [(one, 1.0) for one in scores["f1s"]]
    metrics = {"loss": float(total[0] / total[1])} | {name: scores[name] for name in _METRICS[rows.form] if name in scores}
    return LabelScores(
        metrics=metrics,
        metric=next(name for name in _METRICS[rows.form] if name in metrics),
        places=[example.place for example in examples],
        predicted=[labelled[number] for number in whole],
        numerators=[numerator for numerator, _ in scores["items"]],
        denominators=[denominator for _, denominator in scores["items"]],
    )


def _tree(rows: LabelledRows, row: int, arcs: np.ndarray, best: np.ndarray) -> list[tuple[int, str]]:
    """(head, relation) of each word of a sentence, from scores of the arcs and best relations (L, L + 1) of its row's words."""
    marks = rows.marks[rows.starts[row] : rows.starts[row + 1]]
    # In a row words are numbered from 1 on by their tokens, in the sentence by all that are in it.
    numbers = np.concatenate([[0], marks[marks >= 0] + 1])
    heads = best_tree(arcs[: numbers.size - 1, : numbers.size])
    tree = {}
    for place, head in enumerate(heads):
        relation = rows.labels[best[place, head]]
        tree[int(numbers[place + 1])] = (int(numbers[head]), _ROOT if head == 0 and _ROOT in rows.labels else relation)
    # What has no token, or is behind the end of the row, hangs on the word at the root.
    top = next((word for word, (head, _) in tree.items() if head == 0), 0)
    return [tree.get(word, (top, _UNKNOWN)) for word in range(1, len(rows.examples[rows.sources[row]].texts) + 1)]


@partial(jax.jit, static_argnums=0)
def _outputs(objective: LabelObjective, params: Any, batch: Mapping[str, jax.Array]) -> tuple[jax.Array, ...]:
    scores = objective.scores(params, batch)
    loss, _ = objective.loss(scores, batch)
    if objective.name == "parsing":
        kept = (scores.arcs, scores.best)
    else:
        kept = scores if objective.name == "answers" else jnp.argmax(scores, axis=-1)
    # Every process of a run reads all of it.
    return loss, jnp.sum(batch["weights"]), pin(batch["row"]), jax.tree.map(pin, kept)


def recorded_task(directory: str | os.PathLike) -> dict[str, Any]:
    """Returns what a fine-tuning, be it its workdir or its export, recorded of its examples: "length", and fields of `task`.

    Of any other model directory it is empty.

    Raises:
      UserError: the record is damaged.
    """
    workdir, directory = Path(directory), Path(exported_model(directory))
    # "." has no name, and what a link leads to another one.
    place = Path(os.path.abspath(directory))
    if place.name == EXPORT and (place.parent / METRICS_FILE).exists():
        workdir = place.parent
    if directory == workdir:
        return {}
    recorded = read_json(workdir / CONFIG_FILE, "the settings of a fine-tuning")
    return {"length": recorded.get("block_length"), **(recorded.get("task") or {})}


def score_labelled(
    directory: str | os.PathLike,
    names: Sequence[str | os.PathLike],
    *,
    texts: Sequence[str] | None = None,
    label: str | None = None,
    columns: Sequence[str] | None = None,
    skip: Sequence[str] | None = None,
    length: int | None = None,
    stride: int | None = None,
    language: str | None = None,
    batch_size: int = 32,
    dtype: str = "float32",
) -> LabelScores:
    """Scores a fine-tuned model on labelled examples, without training.

    Args:
      directory: of a model with a head for labels; of a fine-tuning, be it its workdir or its export, what is None below is as
        it was trained.
      names: files or data sets, see `read_examples`.
      texts: columns or fields with the text, see `Task`, as label, columns and skip are.
      label: column or field with the label.
      columns: all columns of files without a line of names.
      skip: labels whose examples are left out.
      length: of the longest row; None: 512, or the model's where it has fewer positions.
      stride: answers: tokens that neighbouring windows share.
      language: answers: whose rules compare them, see `answers.normalized`.
      batch_size: rows that are scored at once, rounded up to what the devices share.
      dtype: what matrix products compute in.

    Raises:
      UserError: it is no such model, it cannot read rows as long, an example is not what it should be, or has a label that the
        model has not.
    """
    settings = recorded_task(directory)
    if texts is not None or label is not None:
        # Another file, whose columns are others.
        settings.pop("columns", None)
    given = {"texts": texts, "label": label, "columns": columns, "skip": skip, "stride": stride, "language": language}
    settings |= {name: value for name, value in (given | {"length": length}).items() if value is not None}
    directory = Path(exported_model(directory))
    model = LoadedModel.open(directory, labels=True, dtype=dtype)
    form, labels = stated_head(read_json(model.directory / "config.json", "the config.json of a model"))
    labels = () if form == "answers" else labels
    if form == "roles" or (form == "tagging" and has_entities(labels)):
        require_seqeval(str(directory))
    fields = {name: settings[name] for name in ("label",) if name in settings}
    fields |= {name: tuple(settings[name]) for name in ("texts", "columns", "skip") if name in settings}
    examples = read_examples(names, Task(form, **fields))
    most = model.config.max_length
    longest = settings.get("length") or min(_LENGTH, most)
    if longest > most:
        raise UserError(f"length: is {longest}; expected at most the {most} tokens that {model.directory} can read")
    rows = encode_examples(
        examples,
        model.tokenizer,
        form=form,
        labels=labels,
        length=longest,
        pad_id=padding_id(model.config.pad_token_id, model.tokenizer),
        segments=model.config.type_vocabulary_size > 1,
        stride=settings.get("stride", min(_STRIDE, longest // 2)),
    )
    objective = label_objective(model.family, model.config, dtype, form)
    placed = rows.evaluation_batches(model.rows_for(batch_size))
    batches = ({name: model.place(value) for name, value in batch.items()} for batch in placed)
    scores = label_scores(objective, model.parameters, batches, rows, language=settings.get("language", ""))
    return replace(scores, metrics={**scores.metrics, "cut": rows.cut}) if rows.cut else scores
