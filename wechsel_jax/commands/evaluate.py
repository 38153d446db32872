"""Scores models: held-out text, forced choice, reading, labels. One line for each model and task, a file of scores for tables.

  wechsel-jax evaluate german-gpt2/ --text=heldout.de.txt
  wechsel-jax evaluate source=gpt2/ german=runs/de --text=en=heldout.en.txt --text=de=heldout.de.txt --output=scores.json
  wechsel-jax evaluate german-gpt2/ --choice=xcopa=test.sw.jsonl --choice=multiblimp.tsv --output=scores.json
  wechsel-jax evaluate german-gpt2/ --tasks=tasks.json --output=scores.json

Every number is the model's own: bits per byte (of text, special tokens left out; compares models of different tokenizers),
perplexity (of a masked model pseudo-perplexity: each token masked alone), accuracy. Scores that the file holds already are not
measured again; `wechsel-jax report scores.json --output=scores.md` makes tables of them.

--tasks names a file with tasks of every form and all of their settings, also those that have no flag:

  {"topics": {"form": "probe", "file": "test.tsv", "train": "train.tsv", "label": "category"}}

What a message calls task.columns is the setting "columns" of a task in such a file.
"""

import contextlib
import re
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from absl import flags

from wechsel_jax.commands import choice, picked, size, sources, text_field
from wechsel_jax.errors import UserError, from_extra
from wechsel_jax.files import refuse_file
from wechsel_jax.records.names import CONFIG_FILE, EXPORT, METRICS_FILE

ARGUMENTS = "MODEL..."
# Form -> the flags that it reads.
_READ = {
    "text": ("text_bytes", "documents", "text_field", "window", "stride"),
    "choice": ("form", "shots", "examples", "limit", "within_word"),
    "reading": ("words", "shots", "limit"),
    "labels": (),
}
_NAMED = re.compile(r"([^=/\\:]+)=(.+)", re.DOTALL)


def define(values: flags.FlagValues) -> None:
    """Defines the flags of `evaluation.tasks.evaluate`."""
    sources(values, "text", "Held-out text, as FILE or NAME=FILE")
    size(values, "text_bytes", "1MiB", "How much of each text is read, e.g. 100KB; 0 reads all.")
    choice(values, "documents", "lines", ("lines", "paragraphs", "files"), "What a document of a text file is")
    text_field(values)
    count = {"lower_bound": 0, "upper_bound": 1 << 30, "flag_values": values}
    flags.DEFINE_integer("window", 0, "Tokens that are read at once; 0: 1,024, or as many as the model can.", **count)
    stride = "Of a causal model: tokens of a window that are predicted; 0: half of it; as many as the window: the cheap way."
    flags.DEFINE_integer("stride", 0, stride, **count)
    sources(values, "choice", "Items of forced choice (MultiBLiMP, XCOPA, ARC, ...), as FILE or NAME=FILE")
    flags.DEFINE_string("form", "", "What the items are, where the fields do not tell: arc, xcopa:sw, ...", flag_values=values)
    sources(
        values,
        "reading",
        "Questions about texts (XQuAD, MLQA, TyDi QA) that the model answers by writing, as FILE or NAME=FILE",
    )
    flags.DEFINE_string("words", "en", "Language of the words context, question and answer in the prompt.", flag_values=values)
    sources(
        values, "labels", "Labelled examples, for fine-tuned models, as FILE or NAME=FILE (columns of other names: --tasks)"
    )
    of_any = "File (.json) of tasks of any form with their settings, as config.evaluation.tasks of train.compare holds them."
    flags.DEFINE_string("tasks", None, of_any, flag_values=values)
    flags.DEFINE_integer("shots", 0, "Examples with their answers that stand before each item.", **count)
    flags.DEFINE_string("examples", "", "Where they are taken from, of --choice; by default its own file.", flag_values=values)
    within = "Of a masked model's choices: mask the rest of a word, too, while a token of it is predicted."
    flags.DEFINE_boolean("within_word", False, within, flag_values=values)
    flags.DEFINE_integer("limit", 0, "Items that are scored at most; 0: all.", **count)
    average = "Of runs: score the mean of the weights of so many checkpoints, the newest ones."
    flags.DEFINE_integer("average", 1, average, lower_bound=1, upper_bound=1 << 20, flag_values=values)
    choice(values, "dtype", "float32", ("float32", "bfloat16"), "What matrix products compute in")
    flags.DEFINE_string("output", None, "File of scores (.json) to write, or to add to.", flag_values=values)
    flags.DEFINE_boolean("overwrite", False, "Replace scores of other weights, data or settings in it.", flag_values=values)


def run(values: flags.FlagValues, arguments: list[str]) -> None:
    """Prints a line for each score."""
    from wechsel_jax.files.json import read_json
    from wechsel_jax.records.scores import ScoresRecord, is_scores

    models = named(arguments, "model")
    given = {form: named(values[form].value, "task") for form in _READ}
    further = read_json(values.tasks, "a file of tasks", "see docs/evaluation.md") if values.tasks else {}
    names = [*(name for of_form in given.values() for name in of_form), *further]
    if not names:
        raise UserError(
            "expected --text, --choice, --reading, --labels, or --tasks that holds one; see wechsel-jax evaluate --help"
        )
    asked = [form for form in _READ if given[form]]
    read = {flag for form in asked for flag in _READ[form]}
    if idle := [flag for some in _READ.values() for flag in some if values[flag].present and flag not in read]:
        there = ", ".join(f"--{name}" for name in [*asked, *(["tasks"] if further else [])])
        raise UserError(f"--{idle[0]}: has no effect on {there}; leave it out")
    if values.examples and not values.shots:
        raise UserError("--examples: has no effect without --shots; leave it out, or say how many")
    if twice := [name for name in names if names.count(name) > 1]:
        raise UserError(f"two tasks are named {twice[0]!r}; expected one name a task: NAME=FILE")
    if values.output:
        if not values.output.endswith(".json"):
            raise UserError(f"--output={values.output}: expected the name of a .json file")
        # What is there is added to, whatever --overwrite says: only scores of the same names are replaced. It may lie in a run.
        places = [place for of_form in given.values() for place in of_form.values()]
        refuse_file(values.output, is_scores, "evaluate", True, [*places, values.tasks])
        if Path(values.output).exists():
            ScoresRecord.read(values.output)
    from wechsel_jax.evaluation.tasks import Task, evaluate, tasks_of

    settings = {form: picked(values, *some) for form, some in _READ.items()}
    settings["choice"]["kind"] = settings["choice"].pop("form")
    tasks = [Task.of(name, form, place, **settings[form]) for form in given for name, place in given[form].items()]
    tasks += tasks_of(further, f"{values.tasks}: ")
    with contextlib.ExitStack() as stack:
        noted = {}
        if values.average > 1:
            noted = {label: {"directory": place, "average": values.average} for label, place in models.items()}
            models = {label: stack.enter_context(averaged(place, values.average)) for label, place in models.items()}
        evaluate(models, tasks, output=values.output, overwrite=values.overwrite, dtype=values.dtype, noted=noted)


@contextlib.contextmanager
def averaged(run: str, count: int) -> Iterator[Path]:
    """Yields a workdir whose export is the mean of a run's `count` newest checkpoints; it is gone after the block.

    Raises:
      UserError: it is no run, or has fewer checkpoints.
    """
    if not (Path(run) / METRICS_FILE).exists():
        seeds = sorted(path.name for path in Path(run).glob("seed-*") if (path / METRICS_FILE).exists())
        advice = f"name one of its seeds, as {run}/{seeds[0]}" if seeds else "score it with a command of its own"
        raise UserError(f"--average: {run} is no training run; expected runs alone; {advice}")
    with from_extra("train", "to train models"):
        from wechsel_jax.training.exports import export_checkpoint
    with tempfile.TemporaryDirectory() as place:
        # A fine-tuning is scored as it was trained.
        for name in (CONFIG_FILE, METRICS_FILE):
            shutil.copyfile(Path(run) / name, Path(place) / name)
        export_checkpoint(run, Path(place) / EXPORT, average=count)
        yield Path(place)


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
