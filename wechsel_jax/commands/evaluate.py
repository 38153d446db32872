"""Scores models: held-out text, forced choice, reading, labels. One line for each model and task, a file of scores for tables.

  wechsel-jax evaluate german-gpt2/ --text=heldout.de.txt
  wechsel-jax evaluate source=gpt2/ german=runs/de --text=en=heldout.en.txt --text=de=heldout.de.txt --output=scores.json
  wechsel-jax evaluate german-gpt2/ --choice=xcopa=test.sw.jsonl --choice=multiblimp.tsv --output=scores.json

Every number is the model's own: bits per byte (of text, special tokens left out; compares models of different tokenizers),
perplexity (of a masked model pseudo-perplexity: each token masked alone), accuracy. Scores that the file holds already are not
measured again; `wechsel-jax report scores.json --output=scores.md` makes tables of them.
"""

import re
from pathlib import Path

from absl import flags

from wechsel_jax.commands import choice, picked, size, sources
from wechsel_jax.errors import UserError
from wechsel_jax.files import refuse_file
from wechsel_jax.records.run import EXPORT

ARGUMENTS = "MODEL..."
_NAMED = re.compile(r"([^=/\\:]+)=(.+)", re.DOTALL)


def define(values: flags.FlagValues) -> None:
    """Defines the flags of `evaluation.tasks.evaluate`."""
    sources(values, "text", "Held-out text, as FILE or NAME=FILE")
    size(values, "text_bytes", "1MiB", "How much of each text is read, e.g. 100KB; 0 reads all.")
    choice(values, "documents", "lines", ("lines", "paragraphs", "files"), "What a document of a text file is")
    field = "Field of JSON lines, Parquet and datasets that holds the text."
    flags.DEFINE_string("text_field", "text", field, flag_values=values)
    count = {"lower_bound": 0, "upper_bound": 1 << 30, "flag_values": values}
    flags.DEFINE_integer("window", 0, "Tokens that are read at once; 0: 1,024, or as many as the model can.", **count)
    stride = "Tokens of a window that are predicted; 0: half of it; as many as the window: the cheap way."
    flags.DEFINE_integer("stride", 0, stride, **count)
    sources(values, "choice", "Items of forced choice (MultiBLiMP, XCOPA, ARC, ...), as FILE or NAME=FILE")
    flags.DEFINE_string("form", "", "What the items are, where the fields do not tell: arc, xcopa:sw, ...", flag_values=values)
    sources(
        values,
        "reading",
        "Questions about texts (XQuAD, MLQA, TyDi QA) that the model answers by writing, as FILE or NAME=FILE",
    )
    flags.DEFINE_string("words", "en", "Language of the words context, question and answer in the prompt.", flag_values=values)
    sources(values, "labels", "Labelled examples, for fine-tuned models, as FILE or NAME=FILE")
    flags.DEFINE_integer("shots", 0, "Examples with their answers that stand before each item.", **count)
    flags.DEFINE_string("examples", "", "Where they are taken from, of --choice; by default its own file.", flag_values=values)
    within = "Of a masked model's choices: mask the rest of a word, too, while a token of it is predicted."
    flags.DEFINE_boolean("within_word", False, within, flag_values=values)
    flags.DEFINE_integer("limit", 0, "Items that are scored at most; 0: all.", **count)
    choice(values, "dtype", "float32", ("float32", "bfloat16"), "What matrix products compute in")
    flags.DEFINE_string("output", None, "File of scores (.json) to write, or to add to.", flag_values=values)
    flags.DEFINE_boolean("overwrite", False, "Replace scores of other weights, data or settings in it.", flag_values=values)


def run(values: flags.FlagValues, arguments: list[str]) -> None:
    """Prints a line for each score."""
    from wechsel_jax.records.scores import ScoresRecord, is_scores

    models = named(arguments, "model")
    given = {form: named(values[form].value, "task") for form in ("text", "choice", "reading", "labels")}
    places = [(name, place) for of_form in given.values() for name, place in of_form.items()]
    if not places:
        raise UserError("expected --text, --choice, --reading or --labels; see wechsel-jax evaluate --help")
    names = [name for name, _ in places]
    if given["labels"] and values["limit"].present and not (given["choice"] or given["reading"]):
        raise UserError("--limit: has no effect on --labels; leave it out, or give a shorter file")
    if twice := [name for name in names if names.count(name) > 1]:
        raise UserError(f"two tasks are named {twice[0]!r}; expected one name a task: NAME=FILE")
    if values.output:
        if not values.output.endswith(".json"):
            raise UserError(f"--output={values.output}: expected the name of a .json file")
        # What is there is added to, whatever --overwrite says: only scores of the same names are replaced. It may lie in a run.
        refuse_file(values.output, is_scores, "evaluate", True, [place for _, place in places])
        if Path(values.output).exists():
            ScoresRecord.read(values.output)
    from wechsel_jax.evaluation.tasks import Task, evaluate

    settings = {
        "text": picked(values, "text_bytes", "documents", "text_field", "window", "stride"),
        "choice": picked(values, "shots", "examples", "limit", "within_word") | {"kind": values.form},
        "reading": picked(values, "words", "shots", "limit"),
        "labels": {},
    }
    tasks = [Task.of(name, form, place, **settings[form]) for form in given for name, place in given[form].items()]
    evaluate(models, tasks, output=values.output, overwrite=values.overwrite, dtype=values.dtype)


def named(given: list[str], what: str) -> dict[str, str]:
    """Label to place; what has no label is named after its file or directory, a run's export after the run.

    Raises:
      UserError: two have the same label.
    """
    found: dict[str, str] = {}
    for one in given:
        match = _NAMED.fullmatch(one)
        name = Path(one).parent.name if Path(one).name == EXPORT else ""
        label, place = match.groups() if match and not Path(one).exists() else (name or Path(one).name or one, one)
        if label in found:
            raise UserError(f"{one}: a {what} is named {label!r} already; expected different names; give them as NAME={place}")
        found[label] = place
    return found
