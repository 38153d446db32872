"""Labelled examples from files of the usual kinds: labels of texts, pairs or words, answers, trees, or translations."""

import csv
import dataclasses
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from wechsel_jax.data.propositions import read_propositions
from wechsel_jax.data.treebanks import read_trees
from wechsel_jax.errors import UserError, one_line, parsing
from wechsel_jax.files.json import parse_json
from wechsel_jax.text.files import LONGEST_DOCUMENT, read_lines
from wechsel_jax.text.parallel import BESIDE, read_pairs
from wechsel_jax.text.sources import Source, find_sources

FORMS = ("classification", "tagging", "answers", "parsing", "roles", "translation")
LABELLED = "labelled examples (columns with tabs between them, .csv, JSON lines, Parquet or CoNLL)"
SQUAD = 'a file as SQuAD has it: {"data": [{"paragraphs": [{"context", "qas": [...]}]}]}'
# Bytes of a line of such a file, which is often the whole file: SQuAD's own has 30 MB.
_LONGEST_SQUAD = 1 << 28
_DOCUMENT = "-DOCSTART-"
_UNIVERSAL = ("id", "form", "lemma", "upos", "xpos", "feats", "head", "deprel", "deps", "misc")
# Lines between sentences that say which follows, as CoNLL-U and MultiCoNER have them.
_COMMENT = re.compile(r"#\s*(id|sent_id|text|newdoc|newpar|global\.columns)\b[^\t]*$")


@dataclasses.dataclass(frozen=True)
class Task:
    """What examples are, and where files say it.

    Attributes:
      form: "classification" (a text or a pair has one label), "tagging" (each word has one), "answers" (a part of a text),
        "parsing" (each word has a head and a relation to it), "roles" (each word has one for a predicate of the sentence) or
        "translation" (another text).
      texts: names of the columns or fields with the text; two for pairs, source and target for translation, and for tagging
        the field with the words.
      label: name of the column or field with the label.
      columns: names of all columns, for files without a line of names, and where words have more than a label beside them; of
        roles see `propositions.read_propositions`.
      skip: examples with one of these labels are left out; "-" is where annotators did not agree.
    """

    form: str
    texts: tuple[str, ...] = ("text",)
    label: str = "label"
    columns: tuple[str, ...] = ()
    skip: tuple[str, ...] = ("-",)


class Example(NamedTuple):
    """One example.

    Attributes:
      place: file and line, or what else names it.
      texts: the text or the pair, the words, or (question, text).
      target: label, labels of the words, (answer, its first character) of every answer that is right (of none where the text
        does not tell), (head, relation) of each word as in `treebanks.Tree`, (place of the predicate, labels of the words) for
        roles, or the translation.
      id: of a question, by which its translations are known; "" where the file has none.
    """

    place: str
    texts: tuple[str, ...]
    target: Any
    id: str = ""


def read_examples(names: Sequence[str | os.PathLike], task: Task) -> list[Example]:
    """Reads labelled examples.

    Args:
      names: as `find_sources` takes them. `.csv`, or text with tabs between columns (nothing is quoted there); JSON lines;
        Parquet and data sets. For tagging also a word and its label a line, with blank lines between sentences, and `.conllu`,
        where labels are UPOS by default, or what `task.label` names; for answers files as SQuAD has them; for parsing CoNLL-U
        alone; for roles columns as CoNLL 2005, 2009 and 2012 have them; for translation "SOURCE::TARGET", two texts with a
        sentence a line.
      task: what they are.

    Raises:
      UserError: a file is missing or damaged, a line is not what it should be, a column is missing, or there is no example.
    """
    beside = [str(name) for name in names if task.form == "translation" and BESIDE in str(name)]
    found = []
    for name in beside:
        pairs = read_pairs([name], task.texts)
        both = zip(pairs.lines, pairs.first, pairs.second, strict=True)
        found += [_pair(f"{name.split(BESIDE)[0]}: line {line + 1}", *texts) for line, *texts in both]
    what = SQUAD if task.form == "answers" else LABELLED
    if alone := [name for name in names if str(name) not in beside]:
        found += [example for source in find_sources(alone, what=what) for example in _READERS[task.form](source, task)]
    if task.form == "classification":
        found = [example for example in found if example.target not in task.skip]
    if not found:
        raise UserError(f"{', '.join(map(str, names))}: holds no example; expected {what}; name another file")
    return found


def find_labels(examples: Iterable[Example], form: str) -> tuple[str, ...]:
    """Returns the labels of examples, sorted; of trees the relations, and of answers there are none."""
    if form == "answers":
        return ()
    if form == "parsing":
        return tuple(sorted({relation for one in examples for _, relation in one.target}))
    if form == "roles":
        return tuple(sorted({label for one in examples for label in one.target[1]}))
    return tuple(sorted({label for one in examples for label in ([one.target] if form == "classification" else one.target)}))


def _classified(source: Source, task: Task) -> Iterator[Example]:
    for place, row in _rows(source, task, (*task.texts, task.label)):
        texts, label = tuple(row[name] for name in task.texts), row[task.label]
        label = label.strip() if isinstance(label, str) else label
        for name, text in zip(task.texts, texts, strict=True):
            if not isinstance(text, str):
                raise UserError(f"{place}: {name} is {text!r}; expected text; name another field with task.texts")
        if not any(text.strip() for text in texts):
            raise UserError(f"{place}: {' and '.join(task.texts)} are blank; expected text; complete or remove the line")
        if isinstance(label, bool) or not isinstance(label, str | int) or label == "":
            expected = "a text or a whole number as label"
            raise UserError(f"{place}: {task.label} is {label!r}; expected {expected}; complete or remove the line")
        yield Example(place, texts, str(label))


def _translated(source: Source, task: Task) -> Iterator[Example]:
    for place, row in _rows(source, task, task.texts):
        yield _pair(place, *(row[name] for name in task.texts))


def _pair(place: str, source: Any, target: Any) -> Example:
    for side, text in (("source", source), ("target", target)):
        if not isinstance(text, str) or not text.strip():
            raise UserError(f"{place}: the {side} is {text!r}; expected a sentence; complete or remove the pair")
    return Example(place, (source.strip(),), target.strip())


def _tagged(source: Source, task: Task) -> Iterator[Example]:
    if source.kind != "text":
        for place, row in _rows(source, task, (task.texts[0], task.label)):
            words, labels = row[task.texts[0]], row[task.label]
            if not (isinstance(words, list) and isinstance(labels, list) and len(words) == len(labels) > 0):
                raise UserError(
                    f"{place}: {task.texts[0]} and {task.label} are no two lists of one length; expected words and their labels"
                )
            for word, label in zip(words, labels, strict=True):
                if not isinstance(word, str):
                    raise UserError(f"{place}: {task.texts[0]} has {word!r}; expected a word")
                if isinstance(label, bool) or not isinstance(label, str | int) or not str(label).strip():
                    raise UserError(f"{place}: {task.label} has {label!r}; expected a text or a whole number for each word")
            yield Example(place, tuple(words), tuple(str(label).strip() for label in labels))
        return
    columns, names, lines, wide = task.columns, (task.texts[0], task.label), 0, 0
    universal = ".conllu" in Path(source.place).suffixes
    if universal:
        columns = columns or _UNIVERSAL
        usual = (Task.texts[0], Task.label)
        names = tuple(
            own if name == default else name for name, default, own in zip(names, usual, ("form", "upos"), strict=True)
        )
    missing = [name for name in names if columns and name not in columns]
    if missing:
        where = (
            f"task.columns: has no {missing[0]!r}" if task.columns else f"{source.name}: CoNLL-U has no column {missing[0]!r}"
        )
        raise UserError(f"{where}; expected the names of all columns, words and labels among them")
    words: list[str] = []
    labels: list[str] = []
    first = 1
    for number, line in read_lines(source.place, LABELLED):
        if not line.strip():
            if words:
                yield Example(f"{source.name}: line {first}", tuple(words), tuple(labels))
            words, labels = [], []
            continue
        if line.startswith(_DOCUMENT) or (universal and line.startswith("#")) or (not words and _COMMENT.match(line)):
            continue
        first = first if words else number
        if universal:
            fields = line.split("\t")
            if len(fields) != 10:
                raise UserError(
                    f"{source.name}: line {number}: has {len(fields)} columns; expected the 10 of CoNLL-U; mend the line"
                )
            if not fields[0].isdecimal():
                # A range such as 3-4, whose words follow, or a word that is not written.
                continue
            word, label = (fields[columns.index(name)] for name in names)
        else:
            tabs = "\t" in line
            fields = line.split("\t") if tabs else line.split()
            lines, wide = lines + 1, wide + (len(fields) > 2)
            if columns and len(fields) != len(columns):
                raise UserError(
                    f"{source.name}: line {number}: has {len(fields)} columns; expected the {len(columns)} of task.columns: "
                    f"{', '.join(columns)}; mend the line"
                )
            if columns:
                word, label = (fields[columns.index(name)].strip() for name in names)
            elif tabs and len(fields) > 2:
                raise UserError(
                    f"{source.name}: line {number}: has {len(fields)} columns; expected a word and its label; name them, the "
                    f"words {names[0]!r} and the labels {names[1]!r}, with task.columns"
                )
            else:
                # A word may have blanks in it, such as a number.
                word, *rest = fields if tabs else line.rsplit(None, 1)
                label = rest[-1].strip() if rest else ""
                if lines == 1 and (word, label) == names:
                    raise UserError(
                        f"{source.name}: line {number}: names the columns; expected a word and its label; remove the line"
                    )
        if not label or not word:
            missing = "label" if word else "word"
            raise UserError(
                f"{source.name}: line {number}: has no {missing}; expected a word and its label, and a blank line after a "
                "sentence"
            )
        words.append(word)
        labels.append(label)
    if 2 * wide > lines and not columns:
        raise UserError(
            f"{source.name}: {wide:,} of {lines:,} lines have 3 columns or more; expected a word and its label; name them, the "
            f"words {names[0]!r} and the labels {names[1]!r}, with task.columns"
        )
    if words:
        yield Example(f"{source.name}: line {first}", tuple(words), tuple(labels))


def _parsed(source: Source, task: Task) -> Iterator[Example]:
    if source.kind != "text":
        raise UserError(f"{source.name}: is no text file; expected a treebank in CoNLL-U; name another file")
    for tree in read_trees(source.place, source.name):
        yield Example(f"{source.name}: line {tree.line}", tree.words, tuple(zip(tree.heads, tree.relations, strict=True)))


def _roles(source: Source, task: Task) -> Iterator[Example]:
    if source.kind != "text":
        raise UserError(f"{source.name}: is no text file; expected columns of words, predicates and roles; name another file")
    for one in read_propositions(source.place, source.name, task.columns):
        yield Example(f"{source.name}: line {one.line}", one.words, (one.predicate, one.labels))


def _questions(source: Source, task: Task) -> Iterator[Example]:
    read = _squad(source) if source.kind in ("text", "json") else _question_rows(source, task)
    for place, identifier, question, text, answers, impossible in read:
        for answer, start in answers:
            if not answer:
                raise UserError(
                    f"{place}: an answer has no text; expected what stands in the context; take a file whose answers are not "
                    "held back, as those of a test set may be, or remove the question"
                )
            if start < 0 or text[start : start + len(answer)] != answer:
                raise UserError(
                    f"{place}: the answer {answer[:40]!r} does not stand at character {start} of the text; expected it there; "
                    "mend answer_start or remove the question"
                )
        if not answers and not impossible:
            raise UserError(
                f'{place}: has no answer; expected one in the text, or "is_impossible": true (SQuAD 2); remove the question'
            )
        yield Example(place, (question, text), tuple(answers), identifier)


def _squad(source: Source) -> Iterator[tuple[str, str, str, str, list[tuple[str, int]], bool]]:
    text = "\n".join(line for _, line in read_lines(source.place, SQUAD, _LONGEST_SQUAD))
    with parsing(source.name, SQUAD):
        articles = parse_json(text.encode())["data"]
        paragraphs = [paragraph for article in articles for paragraph in article["paragraphs"]]
        questions = [(paragraph["context"], asked) for paragraph in paragraphs for asked in paragraph["qas"]]
        found = [
            (
                f"{source.name}: question {asked.get('id', number)}",
                str(asked.get("id", "")),
                _text(asked["question"]),
                _text(context),
                [(_text(answer["text"]), _place(answer["answer_start"])) for answer in asked["answers"]],
                asked.get("is_impossible") is True,
            )
            for number, (context, asked) in enumerate(questions)
        ]
    yield from found


def _question_rows(source: Source, task: Task) -> Iterator[tuple[str, str, str, str, list[tuple[str, int]], bool]]:
    for place, row in _rows(source, task, ("question", "context", "answers")):
        with parsing(place, "question, context and answers (text, answer_start), as SQuAD's data set has them"):
            texts, starts = row["answers"]["text"], row["answers"]["answer_start"]
            answers = [(_text(text), _place(start)) for text, start in zip(texts, starts, strict=True)]
            question, context = _text(row["question"]), _text(row["context"])
        # The data set of SQuAD 2 has nothing else that says it.
        identifier = str(row.get("id", ""))
        yield f"{place} ({identifier})", identifier, question, context, answers, not answers


def _text(value: Any) -> str:
    """The value, which is text; else `ValueError`, which `parsing` tells."""
    if not isinstance(value, str):
        raise ValueError(f"{value!r} where text should be")
    return value


def _place(value: Any) -> int:
    """Likewise of a whole number."""
    if isinstance(value, bool) or int(value) != value:
        raise ValueError(f"{value!r} where a whole number should be")
    return int(value)


_READERS: dict[str, Callable[[Source, Task], Iterator[Example]]] = {
    "classification": _classified,
    "tagging": _tagged,
    "answers": _questions,
    "parsing": _parsed,
    "roles": _roles,
    "translation": _translated,
}


def _rows(source: Source, task: Task, wanted: tuple[str, ...]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yields (place, column -> value) of a table's rows, all of which have the wanted columns."""
    rows: Iterator[tuple[str, Mapping[str, Any]]]
    if source.kind == "text":
        rows = _lines(source, task, wanted)
    else:
        rows = _json(source, task) if source.kind == "json" else table_rows(source, task.label)
    for place, row in rows:
        missing = [name for name in wanted if name not in row]
        if missing:
            raise UserError(
                f"{place}: has no column {missing[0]!r}, only {', '.join(map(repr, row))}; expected {', '.join(wanted)}; name "
                "columns with task.texts and task.label, and those of a file without a line of names with task.columns"
            )
        yield place, row


def _lines(source: Source, task: Task, wanted: tuple[str, ...]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    lines = (line for _, line in read_lines(source.place, LABELLED))
    if ".csv" in map(str.lower, Path(source.place).suffixes):
        # Without, a column of 128 KiB is too long.
        csv.field_size_limit(LONGEST_DOCUMENT)
        reader = csv.reader((line + "\n" for line in lines), strict=True)
        with parsing(source.name, "a CSV file", csv.Error):
            numbered, first = [], 1
            for fields in reader:
                # A record may be of several lines.
                numbered.append((first, fields))
                first = reader.line_num + 1
    else:
        numbered = [(number, line.split("\t")) for number, line in enumerate(lines, 1)]
    columns = task.columns
    for number, fields in numbered:
        if not any(fields):
            continue
        if not columns:
            columns = tuple(fields)
            if twice := [name for name in wanted if columns.count(name) > 1]:
                problem = f"two columns are named {twice[0]!r}; expected one; rename the other"
                raise UserError(f"{source.name}: line {number}: {problem}")
            continue
        if task.columns and sorted(field.strip() for field in fields) == sorted(columns):
            raise UserError(
                f"{source.name}: line {number}: names the columns; expected an example, since task.columns names them; remove "
                "the line"
            )
        if len(fields) != len(columns):
            raise UserError(
                f"{source.name}: line {number}: has {len(fields)} columns; expected {len(columns)}: {', '.join(columns)}; "
                "mend the line, or name the columns of a file without a line of names with task.columns"
            )
        yield f"{source.name}: line {number}", dict(zip(columns, fields, strict=True))


def _json(source: Source, task: Task) -> Iterator[tuple[str, Mapping[str, Any]]]:
    for number, line in read_lines(source.place, LABELLED):
        if not line.strip():
            continue
        place = f"{source.name}: line {number}"
        try:
            row = parse_json(line.encode())
        except (ValueError, RecursionError) as error:
            raise UserError(f"{place}: {one_line(error)}; expected a JSON object a line; mend the line") from None
        yield place, row


def table_rows(source: Source, label: str = "") -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yields (place, column -> value) of the rows of Parquet and of data sets.

    Args:
      source: of kind "parquet", "saved" or "hub".
      label: a column whose values become their names where labels are recorded as numbers.

    Raises:
      UserError: the source is damaged or cannot be fetched, or a label has no name.
    """
    if source.kind == "parquet":
        import pyarrow as pa
        import pyarrow.parquet as pq
        from datasets import Features

        with parsing(source.name, "a Parquet file; fetch it again", pa.ArrowException), pq.ParquetFile(source.place) as file:
            rows, features = file.read().to_pylist(), Features.from_arrow_schema(file.schema_arrow)
    else:
        rows = source.open_saved() if source.kind == "saved" else source.open_hub()
        features = rows.features or {}
        rows = rows if source.kind == "saved" else source.streamed(rows)
    feature = features.get(label)
    named = getattr(feature, "names", None) or getattr(getattr(feature, "feature", None), "names", None)

    def name_of(value: Any, place: str, of_words: bool = False) -> Any:
        if isinstance(value, list):
            return [name_of(item, place, True) for item in value]
        if not named or not isinstance(value, int):
            return value
        if value == -1 and not of_words:
            # How data sets have it that annotators did not agree.
            return "-"
        if not 0 <= value < len(named):
            raise UserError(f"{place}: {label} is {value}; expected a number from 0 to {len(named) - 1}, one of the names")
        return named[value]

    for number, row in enumerate(rows, 1):
        place = f"{source.name}: row {number}"
        yield place, row | ({label: name_of(row[label], place)} if label in row else {})
