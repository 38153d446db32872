"""Makes an embedding table for a task's vocabulary from word vectors or from a pretrained model's embeddings.

  wechsel-jax table --vectors=glove.txt --input=train.txt --min_count=2 --standardize=pretrained_xavier \\
    --output=table.safetensors
  wechsel-jax table --source=bert/ --tokenizer=my-tokenizer/ --output=table.safetensors

Writes {"embeddings": float32 (V, D)} and, beside it, a .json file that says where the rows come from.
"""

from absl import flags

from wechsel_jax.commands import choice, longest_document, picked, sources, text_field
from wechsel_jax.errors import UserError
from wechsel_jax.files import refuse_file

REQUIRED = ("output",)


def define(values: flags.FlagValues) -> None:
    """Defines the flags of `transfers.new_table.make_table`."""
    to = {"flag_values": values}
    flags.DEFINE_string("vectors", None, "Word vectors of any format: GloVe, word2vec, fastText.", **to)
    flags.DEFINE_string("source", None, "In place of --vectors: a model whose input table is used.", **to)
    flags.DEFINE_string("tokenizer", None, "The vocabulary: that of this tokenizer.", **to)
    flags.DEFINE_string("words", None, "Or: the words of this file, one a line.", **to)
    sources(values, "input", "Or: the words of these, split at white space")
    rare = "Of --input, leave out words that are rarer."
    flags.DEFINE_integer("min_count", 1, rare, lower_bound=1, upper_bound=1 << 40, **to)
    frequent = "Of --input, keep only this many of the most frequent words."
    flags.DEFINE_integer("max_words", None, frequent, lower_bound=1, upper_bound=1 << 31, **to)
    flags.DEFINE_boolean("lowercase", False, "Of --input, take words without their case.", **to)
    text_field(values)
    longest_document(values)
    flags.DEFINE_list("special_tokens", [], "Rows in front of the words, e.g. <pad>,<unk>.", **to)
    choice(values, "standardize", None, ("pretrained_xavier", "xavier_pretrained", "xavier"), "Another scale")
    choice(values, "shuffle", None, ("rows_columns", "elements"), "What is shuffled")
    choice(values, "missing", None, ("normal", "xavier", "mean", "zeros"), "Rows that the source lacks")
    flags.DEFINE_integer("seed", 0, "Of every random number.", lower_bound=0, upper_bound=2**32 - 1, **to)
    flags.DEFINE_string("output", None, "The .safetensors file to write.", **to)
    flags.DEFINE_boolean("overwrite", False, "Replace an existing output.", **to)


def run(values: flags.FlagValues, arguments: list[str]) -> None:
    """Makes the table, writes it with its record, and prints what the record says."""
    del arguments
    for name in ("min_count", "max_words", "lowercase", "text_field", "max_document_bytes"):
        if values[name].present and not values.input:
            raise UserError(f"--{name}: is for the words of --input; expected that, or leave it out")
    record = f"{values.output.removesuffix('.safetensors')}.json"
    read = picked(values, "vectors", "source", "tokenizer", "words")
    from wechsel_jax.initializers.transforms import POSITIONS
    from wechsel_jax.transfers.new_table import is_table, make_table

    for output in (values.output, record):
        refuse_file(output, is_table, "table", values.overwrite, [*values.input, *read.values()])
    if not values.output.endswith(".safetensors"):
        raise UserError(f"--output={values.output}: expected a name that ends in .safetensors")

    counted = ("input", "min_count", "max_words", "lowercase", "text_field", "max_document_bytes", "special_tokens")
    settings = picked(values, *counted, "standardize", "shuffle", "missing", "seed")
    report = make_table(values.output, record, **read, **settings)
    print(f"{values.output}: {report['found']} of {report['tokens']} tokens have a row in the source")
    deviations = f"x * sqrt(D) has deviation {report['embedding_sd']:.4g}, {POSITIONS:,} sinusoidal positions have"
    print(f"{deviations} {report['position_sd']:.4g}: words vary {report['ratio']:.3g} times as much as positions")
