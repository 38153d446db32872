"""Trains a tokenizer on text: a directory that transformers' AutoTokenizer loads.

wechsel-jax tokenizer --input=german.txt --vocab_size=50000 --output=german/
"""

from absl import flags

from wechsel_jax.commands import choice

REQUIRED = ("input", "output")


def define(values: flags.FlagValues) -> None:
    """Defines the flags of `tokenizer.training.train_tokenizer`."""
    flags.DEFINE_list("input", [], "Text files with commas between them, plain or .gz, .xz, .bz2.", flag_values=values)
    flags.DEFINE_string("output", None, "Directory to write.", flag_values=values)
    flags.DEFINE_integer("vocab_size", 50_000, "Number of tokens, special ones included.", lower_bound=1, flag_values=values)
    choice(values, "algorithm", "byte_bpe", ("byte_bpe", "unigram", "wordpiece"), "Kind of tokenizer")
    choice(values, "style", "gpt2", ("gpt2", "roberta"), "The model whose special tokens it gets")
    flags.DEFINE_boolean("overwrite", False, "Replace an existing output.", flag_values=values)


def run(values: flags.FlagValues, arguments: list[str]) -> None:
    """Trains and says how many tokens there are."""
    del arguments
    from wechsel_jax.tokenizer.training import train_tokenizer

    tokenizer = train_tokenizer(
        values.input, values.vocab_size, values.output, values.algorithm, values.style, overwrite=values.overwrite
    )
    print(f"{values.output}: {len(tokenizer)} tokens")
