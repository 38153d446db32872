"""Says whether embeddings will train well: how they are distributed, what is left of positions, what analogies they solve.

  wechsel-jax embeddings bert/ glove.txt table.safetensors --output=embeddings.json
  wechsel-jax embeddings german-gpt2/                              # copied, mixed and random rows of a transfer apart
  wechsel-jax embeddings glove.txt --max_words=30000 --analogies=questions-words.txt --probe
  wechsel-jax report embeddings.json --output=embeddings.html      # with drawings; .md: tables alone

A place is a model (directory or hub id), a table that `wechsel-jax table` wrote, or word vectors of any format. Distributions
are measured before and after each transform; positions are added at each scale. The verdict at the end says it in plain words.
"""

from functools import partial
from pathlib import Path

from absl import flags

from wechsel_jax.commands import picked
from wechsel_jax.errors import UserError
from wechsel_jax.files import refuse_file

ARGUMENTS = "MODEL|VECTORS|TABLE..."


def define(values: flags.FlagValues) -> None:
    """Defines the flags of `inspection.embeddings.study`."""
    to = {"lower_bound": 1, "flag_values": values}
    flags.DEFINE_string(
        "output", None, "A .json file for what was measured; `wechsel-jax report` reads it.", flag_values=values
    )
    flags.DEFINE_list("steps", None, "What is done to a table, each by itself (default: all).", flag_values=values)
    flags.DEFINE_list("positions", ["sinusoidal", "paired"], "What a new model would add (halves, too).", flag_values=values)
    flags.DEFINE_integer(
        "length", 64, "Over how many positions the input is measured.", upper_bound=1 << 16, **(to | {"lower_bound": 2})
    )
    flags.DEFINE_boolean("probe", False, "Train probes to read positions back (needs scikit-learn).", flag_values=values)
    flags.DEFINE_string("analogies", None, "A file such as questions-words.txt, to be answered.", flag_values=values)
    flags.DEFINE_integer("max_words", None, "Only so many words: of vectors, and to answer among.", upper_bound=1 << 31, **to)
    added = "For analogies: a random one of so many positions is added to a word."
    flags.DEFINE_integer("position_rows", 1024, added, upper_bound=1 << 20, **to)
    flags.DEFINE_integer("seed", 0, "Of every random number.", upper_bound=2**32 - 1, **(to | {"lower_bound": 0}))
    flags.DEFINE_boolean("overwrite", False, "Replace an existing output.", flag_values=values)


def run(values: flags.FlagValues, arguments: list[str]) -> None:
    """Prints what was measured of each table, and writes it."""
    from wechsel_jax.inspection.analogies import read_questions
    from wechsel_jax.inspection.distribution import STEPS
    from wechsel_jax.inspection.embeddings import open_tables, study
    from wechsel_jax.inspection.positions import FORMULAS
    from wechsel_jax.records.embeddings import EmbeddingsRecord, is_embeddings
    from wechsel_jax.report.embeddings_sections import sections
    from wechsel_jax.report.terminal import terminal

    for name, known in (("steps", STEPS), ("positions", FORMULAS)):
        for one in values[name].value or ():
            if one not in known:
                raise UserError(f"--{name}={one}: unknown; expected some of {', '.join(known)}")
    read = [*arguments, values.analogies]
    refuse = partial(refuse_file, values.output, is_embeddings, "file of embeddings", values.overwrite, read)
    if values.output:
        if Path(values.output).suffix != ".json":
            raise UserError(f"--output={values.output}: expected a name that ends in .json")
        refuse()
    if values["position_rows"].present and not values.analogies:
        raise UserError("--position_rows: is for --analogies; expected that, or leave it out")
    questions = read_questions(values.analogies) if values.analogies else ()
    # All are opened first: a mistake in the last name should not come after hours.
    tables = [rows for place in arguments for rows in open_tables(place, max_words=values.max_words, length=values.length)]
    options = picked(values, "length", "probe", "max_words", "position_rows", "seed")
    options |= {"steps": STEPS if values.steps is None else values.steps, "kinds": values.positions, "questions": questions}
    found = []
    for rows in tables:
        found.append(study(rows, **options))
        if not values.output:
            print(terminal(sections(EmbeddingsRecord((found[-1],)))))
    if values.output:
        # Once more: what somebody wrote there meanwhile, which may be hours, is as dear.
        refuse()
        # First, because who reads the tables may go away (`| head`).
        EmbeddingsRecord(tuple(found)).write(values.output)
        for each in found:
            print(terminal(sections(EmbeddingsRecord((each,)))))
        print(values.output)
