"""Scores models: held-out text, forced choice. One line for each model and task, and a file of scores for tables.

  wechsel-jax evaluate german-gpt2/ --text=heldout.de.txt
  wechsel-jax evaluate source=gpt2/ german=runs/de/export --text=en=heldout.en.txt --text=de=heldout.de.txt --output=scores.json
  wechsel-jax evaluate german-gpt2/ --choice=xcopa=test.sw.jsonl --choice=multiblimp.tsv --output=scores.json

Every number is the model's own: bits per byte (of text, special tokens left out; compares models of different tokenizers),
perplexity (of a masked model pseudo-perplexity: each token masked alone), accuracy. Scores that the file holds already are not
measured again; `wechsel-jax report scores.json --output=scores.md` makes tables of them.
"""

import re
from pathlib import Path

from absl import flags

from wechsel_jax.commands import choice, size, sources
from wechsel_jax.errors import UserError
from wechsel_jax.files import refuse_file

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
    flags.DEFINE_integer("shots", 0, "Examples with their answers that stand before each item.", **count)
    flags.DEFINE_integer("limit", 0, "Items that are scored at most; 0: all.", **count)
    choice(values, "dtype", "float32", ("float32", "bfloat16"), "What matrix products compute in")
    flags.DEFINE_string("output", None, "File of scores (.json) to write, or to add to.", flag_values=values)
    flags.DEFINE_boolean("overwrite", False, "Replace scores of other weights, data or settings in it.", flag_values=values)


def run(values: flags.FlagValues, arguments: list[str]) -> None:
    """Prints a line for each score."""
    from wechsel_jax.records.scores import ScoresRecord, is_scores

    models = _named(arguments, "model")
    texts, choices = _named(values.text, "text"), _named(values.choice, "task")
    if not texts and not choices:
        raise UserError("expected --text or --choice: what the models are to be scored on; see wechsel-jax evaluate --help")
    if both := texts.keys() & choices.keys():
        raise UserError(f"--choice: {sorted(both)[0]!r} is the name of a text, too; expected one name a task: NAME=FILE")
    if values.output:
        if not values.output.endswith(".json"):
            raise UserError(f"--output={values.output}: expected the name of a .json file")
        # What is there is added to, whatever --overwrite says: only scores of the same names are replaced.
        refuse_file(values.output, is_scores, "evaluate", True, [*models.values(), *texts.values(), *choices.values()])
        if Path(values.output).exists():
            ScoresRecord.read(values.output)
    from wechsel_jax.evaluation.tasks import Task, evaluate

    of_text = {name: values[name].value for name in ("text_bytes", "documents", "text_field")}
    of_text |= {name: values[name].value for name in ("window", "stride")}
    of_choice = {"form": values.form, "shots": values.shots, "seed": None, "limit": values.limit or None}
    tasks = [Task(name, "text", place, of_text) for name, place in texts.items()]
    tasks += [Task(name, "choice", place, of_choice) for name, place in choices.items()]
    evaluate(models, tasks, output=values.output, overwrite=values.overwrite, dtype=values.dtype)


def _named(given: list[str], what: str) -> dict[str, str]:
    """Label to place; what has no label is named after its file or directory.

    Raises:
      UserError: two have the same label.
    """
    found: dict[str, str] = {}
    for one in given:
        match = _NAMED.fullmatch(one)
        label, place = match.groups() if match and not Path(one).exists() else (Path(one).name or one, one)
        if label in found:
            raise UserError(f"{one}: a {what} is named {label!r} already; expected different names; give them as NAME={place}")
        found[label] = place
    return found
