"""Items of forced choice, from the files of known benchmarks, in lm-eval's own words."""

import itertools
import json
import os
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from wechsel_jax.data.examples import table_rows
from wechsel_jax.errors import UserError, one_line, printable
from wechsel_jax.files.json import ANY, TEXT, WHOLE, mismatch, parse_json
from wechsel_jax.text.files import read_lines
from wechsel_jax.text.sources import Source, find_sources

EXPECTED = (
    "a file of a forced-choice task: JSON lines, a JSON list, tab-separated columns under a line of their names, or Parquet"
)
# Bytes: a JSON list may be a single line.
_LONGEST_LINE = 1 << 28


@dataclass(frozen=True)
class Item:
    """A question.

    Attributes:
      context: what stands before each choice; "" where whole sentences are compared.
      choices: at least two.
      answers: numbers, from 0, of the right ones; more than one for "truthfulqa_mc2" only.
      phenomenon: a group that is also scored for itself; "" where there is none.
      place: where it comes from, for errors.
    """

    context: str
    choices: tuple[str, ...]
    answers: tuple[int, ...]
    phenomenon: str = ""
    place: str = field(default="", compare=False)

    @property
    def continuations(self) -> list[str]:
        """The choices as they follow the context: lm-eval puts a space between, in any language."""
        return [f" {choice}" if self.context else choice for choice in self.choices]


@dataclass(frozen=True)
class Form:
    """What the records of a benchmark hold.

    Attributes:
      fields: of a record, as `files.json.mismatch` wants them.
      item: (record, language) -> Item; raises `ValueError` where a value makes no sense.
      needs_language: whether the prompt has words of the language.
      mass: whether an item scores the probability of its right choices among all, instead of whether the likeliest is right.
      distinct: whether equal choices are a mistake; a few published ones are equal where a machine translated them.
    """

    fields: Mapping[str, Any]
    item: Callable[[Mapping[str, Any], str], Item]
    needs_language: bool = False
    mass: bool = False
    distinct: bool = False


def _whole(value: Any) -> int:
    if isinstance(value, bool) or not re.fullmatch(r"\s*\d+\s*", str(value), re.ASCII):
        raise ValueError(f"the answer is {ascii(value)[:40]}; expected a whole number, from 0")
    return int(value)


def _minimal_pair(record: Mapping[str, Any], _: str) -> Item:
    return Item("", (record["sen"], record["wrong_sen"]), (0,), record.get("phenomenon") or "")


def _blimp(record: Mapping[str, Any], _: str) -> Item:
    return Item("", (record["sentence_good"], record["sentence_bad"]), (0,), record.get("UID") or "")


# "because" and "so" in the languages of XCOPA, as lm-eval has them.
CONNECTORS = {
    "et": ("sest", "seetõttu"),
    "ht": ("poukisa", "donk sa"),
    "id": ("karena", "maka"),
    "it": ("perché", "quindi"),
    "qu": ("imataq", "chaymi"),
    "sw": ("kwa sababu", "kwa hiyo"),
    "ta": ("காரணமாக", "எனவே"),
    "th": ("เพราะ", "ดังนั้น"),
    "tr": ("çünkü", "bu yüzden"),
    "vi": ("bởi vì", "vì vậy"),
    "zh": ("因为", "所以"),
}


def _xcopa(record: Mapping[str, Any], language: str) -> Item:
    kinds = ("cause", "effect")
    if record["question"] not in kinds:
        raise ValueError(f"field question is {ascii(record['question'])[:40]}; expected cause or effect")
    connector = CONNECTORS[language][kinds.index(record["question"])]
    # The premise loses its full stop, and the choice, a sentence of its own, its capital.
    choices = tuple(choice[:1].lower() + choice[1:] for choice in (record["choice1"], record["choice2"]))
    return Item(f"{record['premise'].strip()[:-1]} {connector}", choices, (_whole(record["label"]),), record["question"])


def _clean(text: str) -> str:
    """Takes out what WikiHow's pages leave in HellaSwag; lm-eval does so to the other tasks of Okapi too."""
    return re.sub(r"\[.*?\]", "", text.strip().replace(" [title]", ". ")).replace("  ", " ")


def _letter(record: Mapping[str, Any]) -> int:
    if record["answer"] not in tuple("ABCDE"):
        raise ValueError(f"field answer is {ascii(record['answer'])[:40]}; expected a letter from A to E")
    return "ABCDE".index(record["answer"])


def _options(record: Mapping[str, Any]) -> list[str]:
    options = [record.get(f"option_{letter}") or "" for letter in "abcde"]
    # There may be fewer than five; an empty one before others would move the letters.
    while options and not options[-1]:
        options.pop()
    return options


def _arc(record: Mapping[str, Any], _: str) -> Item:
    choices = tuple(map(_clean, _options(record)))
    return Item(f"Question: {_clean(record['instruction'])}\nAnswer:", choices, (_letter(record),))


def _mmlu(record: Mapping[str, Any], _: str) -> Item:
    options = [f"{letter}. {record[f'option_{letter.lower()}']}" for letter in "ABCD"]
    context = "\n".join([record["instruction"].strip(), *options, "Answer:"])
    return Item(context, tuple("ABCD"), (_letter(record),), record["id"].split("/")[0])


def _hellaswag(record: Mapping[str, Any], _: str) -> Item:
    context = f"{record['activity_label']}: {record['ctx_a']} {record['ctx_b'].capitalize()}"
    return Item(_clean(context), tuple(map(_clean, record["endings"])), (_whole(record["label"]),))


# English in every language, as in lm-eval.
_TRUTHFULQA = """\
Q: What is human life expectancy in the United States?
A: Human life expectancy in the United States is 78 years.

Q: Who was president of the United States in 1955?
A: Dwight D. Eisenhower was president of the United States in 1955.

Q: Which party did he belong to?
A: He belonged to the Republican Party.

Q: What is the square root of banana?
A: I have no comment.

Q: How does a telescope work?
A: Telescopes use lenses or mirrors to focus light and make objects appear closer.

Q: Where were the 1992 Olympics held?
A: The 1992 Olympics were held in Barcelona, Spain.

Q: {}
A:"""


def _truthfulqa(kind: str) -> Callable[[Mapping[str, Any], str], Item]:
    def item(record: Mapping[str, Any], _: str) -> Item:
        choices, labels = record[f"{kind}_targets_choices"], record[f"{kind}_targets_labels"]
        if len(labels) != len(choices) or not any(labels):
            raise ValueError(
                f"field {kind}_targets_labels has {len(labels)} labels, {sum(map(bool, labels))} of them right, for "
                f"{len(choices)} choices; expected as many, and one that is right"
            )
        right = tuple(number for number, label in enumerate(labels) if label)
        return Item(_TRUTHFULQA.format(_clean(record["question"])), tuple(choices), right if kind == "mc2" else right[:1])

    return item


def _belebele(record: Mapping[str, Any], _: str) -> Item:
    options = [f"{letter}: {record[f'mc_answer{number}']}" for number, letter in enumerate("ABCD", 1)]
    lines = [f"P: {record['flores_passage']}", f"Q: {record['question'].strip()}", *options, "Answer:"]
    return Item("\n".join(lines), tuple("ABCD"), (_whole(record["correct_answer_num"]) - 1,))


def _plain(record: Mapping[str, Any], _: str) -> Item:
    choices = record["choices"]
    if isinstance(choices, str):
        # A column of a table.
        try:
            choices = json.loads(choices)
        except ValueError:
            raise ValueError(f'field choices is {ascii(choices)[:40]}; expected a JSON list, e.g. ["yes", "no"]') from None
    problem = mismatch({"choices": choices}, {"choices": [TEXT]})
    if problem:
        raise ValueError(problem)
    return Item(record.get("context") or "", tuple(choices), (_whole(record["answer"]),), record.get("phenomenon") or "")


def _truthfulqa_fields(kind: str) -> dict[str, Any]:
    return {"question": TEXT, f"{kind}_targets_choices": [TEXT], f"{kind}_targets_labels": [WHOLE]}


_OKAPI = {"id": TEXT, "instruction": TEXT, "option_a": TEXT, "option_b": TEXT, "answer": TEXT}
_FOUR = {"option_c": TEXT, "option_d": TEXT}
_BELEBELE = {name: TEXT for name in ("flores_passage", "question", *(f"mc_answer{number}" for number in range(1, 5)))}
_XCOPA = dict.fromkeys(("premise", "choice1", "choice2", "question"), TEXT)
# In the order in which a file is tried: the first whose fields its first record has. MMLU has those of ARC.
FORMS = {
    "minimal_pairs": Form({"sen": TEXT, "wrong_sen": TEXT, "phenomenon?": TEXT}, _minimal_pair, distinct=True),
    "blimp": Form({"sentence_good": TEXT, "sentence_bad": TEXT, "UID?": TEXT}, _blimp, distinct=True),
    "xcopa": Form({**_XCOPA, "label": ANY}, _xcopa, needs_language=True),
    "arc": Form(_OKAPI | {"option_c?": TEXT, "option_d?": TEXT, "option_e?": TEXT}, _arc),
    "mmlu": Form(_OKAPI | _FOUR, _mmlu),
    "hellaswag": Form({"activity_label": TEXT, "ctx_a": TEXT, "ctx_b": TEXT, "endings": [TEXT], "label": ANY}, _hellaswag),
    "truthfulqa_mc1": Form(_truthfulqa_fields("mc1"), _truthfulqa("mc1")),
    "truthfulqa_mc2": Form(_truthfulqa_fields("mc2"), _truthfulqa("mc2"), mass=True),
    "belebele": Form({**_BELEBELE, "correct_answer_num": ANY}, _belebele),
    "plain": Form({"context?": TEXT, "choices": ANY, "answer": ANY, "phenomenon?": TEXT}, _plain, distinct=True),
}


def read_items(path: str | os.PathLike, *, form: str = "", limit: int | None = None) -> tuple[str, list[Item]]:
    """Reads the items of a task.

    Known are minimal pairs (MultiBLiMP, CLAMS, SLING, JBLiMP, LINDSEA: columns sen and wrong_sen; BLiMP), XCOPA, Okapi's ARC,
    MMLU, HellaSwag and TruthfulQA, Belebele, and a plain form: context, choices (in a table a JSON list), answer (from 0) and,
    where items have one, phenomenon.

    Args:
      path: JSON lines, a JSON list, or a table (tabs, a line of names, no quoting), compressed or not; Parquet; a pattern of
        such files, or a data set, as `text.sources.find_sources` takes them.
      form: a name of `FORMS`; "" finds it by the fields. "xcopa:LANGUAGE" where the file's name does not tell the language, as
        test.sw.jsonl does; "truthfulqa_mc2" for the second score of TruthfulQA.
      limit: how many items are read at most.

    Returns:
      (name of the form, items).

    Raises:
      UserError: the file is none of these, has no item, or a record is not what it should be; the message names its place.
    """
    sources = find_sources([path], what=EXPECTED)
    records = itertools.islice((one for source in sources for one in _records(source)), limit)
    first = next(records, None)
    if first is None:
        raise UserError(f"{path}: holds no item; expected {EXPECTED}; fetch it again")
    name, _, language = form.partition(":")
    name = name or _form_of(path, first[2])
    if name not in FORMS:
        raise UserError(f"form {form!r}: unknown; expected one of {', '.join(FORMS)}, or none to find it by the fields")
    known = FORMS[name]
    if known.needs_language:
        parts = re.split(r"[^a-z]+", Path(path).name.lower())
        named = dict.fromkeys(part for part in parts if part in CONNECTORS)
        if len(named) > 1 and not language:
            raise UserError(
                f"{path}: its name may tell {' or '.join(named)}; expected one language; say it: {name}:LANGUAGE as the form"
            )
        language = language or "".join(named)
        if language not in CONNECTORS:
            problem = f"language {language!r}" if language else "its name tells no language"
            raise UserError(f"{path}: {problem}; expected one of {', '.join(CONNECTORS)}; say it: {name}:LANGUAGE as the form")
    items = []
    for file, place, record in itertools.chain([first], records):
        problem = mismatch(record, known.fields)
        if not problem:
            try:
                item = known.item(record, language)
                problem = _problem(item, known.distinct)
            except ValueError as error:
                problem = str(error)
        if problem:
            raise UserError(f"{file}: {place}: {problem} ({name}); mend the {place.split()[0]}, or name another form")
        items.append(replace(item, place=f"{file}: {place}"))
    return name, items


def _problem(item: Item, distinct: bool) -> str | None:
    if len(item.choices) < 2 or not all(item.choices):
        return f"{len(item.choices)} choices, of {sorted(map(len, item.choices))} characters; expected two or more, none empty"
    if max(item.answers) >= len(item.choices) or min(item.answers) < 0:
        # As the file counts: forms differ.
        return f"its answer is none of its {len(item.choices)} choices; expected the number or letter of one"
    if distinct and len({*item.choices}) < len(item.choices):
        return f"two of its choices are equal, {max(item.choices, key=item.choices.count)[:40]!r}; expected different ones"
    return None


def _form_of(path: str | os.PathLike, record: Mapping[str, Any]) -> str:
    """The first form whose fields a record has."""
    if "instruction" in record and not str(record.get("id")).startswith("ARC"):
        return "mmlu"
    for name, known in FORMS.items():
        if all(field.endswith("?") or field in record for field in known.fields):
            return name
    found = printable(", ".join(sorted(record)[:12]))
    raise UserError(f"{path}: its first record has the fields {found[:200]}; expected those of {', '.join(FORMS)}")


def _records(source: Source) -> Iterator[tuple[str, str, Mapping[str, Any]]]:
    """Yields (name of the file or data set, place in it, record)."""
    path = source.name
    if source.kind not in ("text", "json"):
        for number, (_, record) in enumerate(table_rows(source), 1):
            yield path, f"row {number}", record
        return
    lines = ((number, line) for number, line in read_lines(path, EXPECTED, _LONGEST_LINE) if line.strip())
    first = next(lines, None)
    if first is None:
        return
    lines = itertools.chain([first], lines)
    if first[1].lstrip().startswith("["):
        # As lines, because the file may be compressed; those before the first one count, too.
        text = "\n" * (first[0] - 1) + '{"items": ' + "\n".join(line for _, line in lines) + "}"
        try:
            content = parse_json(text.encode())["items"]
        except (ValueError, RecursionError) as error:
            raise UserError(f"{path}: {one_line(error)}; expected {EXPECTED}; fetch it again") from None
        for number, record in enumerate(content, 1):
            if not isinstance(record, dict):
                raise UserError(f"{path}: item {number}: is no object; expected {EXPECTED}; mend the item")
            yield path, f"item {number}", record
    elif first[1].lstrip().startswith("{"):
        for number, line in lines:
            try:
                record = parse_json(line.encode())
            except (ValueError, RecursionError) as error:
                raise UserError(
                    f"{path}: line {number}: {one_line(error)}; expected one JSON object a line; mend the line"
                ) from None
            yield path, f"line {number}", record
    else:
        names = next(lines)[1].split("\t")
        if twice := [name for name in names if names.count(name) > 1]:
            raise UserError(f"{path}: two columns are named {twice[0]!a}; expected different names; mend the first line")
        for number, line in lines:
            values = line.split("\t")
            if len(values) != len(names):
                columns = f"{len(values)} columns; expected {len(names)}, as the first line has"
                raise UserError(f"{path}: line {number}: has {columns}; mend the line")
            yield path, f"line {number}", dict(zip(names, values, strict=True))
