"""Trains vectors of words, or of a tokenizer's tokens, with character n-grams (fastText) on text.

wechsel-jax vectors train --input=german.txt --output=german.bin --dim=100 --epochs=3
wechsel-jax vectors train --input='corpus/*.jsonl.zst' --input=more.txt --output=german.bin
wechsel-jax vectors train --input=german.txt --output=tokens.bin --tokenizer=DIR --model=cbow --min_count=10 (for FOCUS)
"""

from functools import partial
from pathlib import Path

from absl import flags

from wechsel_jax.commands import choice, longest_document, number, sources, text_field
from wechsel_jax.files import refuse_file

REQUIRED = ("input", "output")


def define(values: flags.FlagValues) -> None:
    """Defines the flags of `vectors.train_vectors`."""
    to = {"flag_values": values}
    sources(values, "input")
    text_field(values)
    longest_document(values)
    flags.DEFINE_string("output", None, "The .bin file to write.", **to)
    flags.DEFINE_string(
        "tokenizer", None, "Train vectors of this tokenizer's tokens: directory, tokenizer.json or hub id.", **to
    )
    flags.DEFINE_integer("dim", 100, "Dimensions of a vector.", lower_bound=1, upper_bound=10_000, **to)
    choice(values, "model", "skipgram", ("skipgram", "cbow"), "What is predicted from what")
    flags.DEFINE_integer("epochs", 3, "Passes over the text.", lower_bound=1, upper_bound=10_000, **to)
    flags.DEFINE_integer("smallest_ngram", 5, "Fewest characters of an n-gram.", lower_bound=0, upper_bound=100, **to)
    longest = "Most characters of an n-gram; 0: whole words only."
    flags.DEFINE_integer("largest_ngram", 5, longest, lower_bound=0, upper_bound=100, **to)
    flags.DEFINE_integer("buckets", 500_000, "Rows that the n-grams share.", lower_bound=1, upper_bound=1 << 28, **to)
    rare = "Words that are rarer get no vector of their own."
    flags.DEFINE_integer("min_count", 5, rare, lower_bound=1, upper_bound=2**31 - 1, **to)
    number(values, "learning_rate", 0.05, "At the start; falls linearly to zero.", 1e-9, 10.0)
    number(values, "subsampling", 1e-4, "Words above this share of the text are left out at random.", 0.0, 1.0)
    flags.DEFINE_integer(
        "threads", None, "By default as many as there are processors, and at least 11.", lower_bound=1, upper_bound=1024, **to
    )
    flags.DEFINE_boolean("overwrite", False, "Replace an existing output.", **to)


def run(values: flags.FlagValues, arguments: list[str]) -> None:
    """Trains and says how many words there are."""
    del arguments
    inputs = [*values.input, values.tokenizer]
    refuse = partial(refuse_file, values.output, _is_fasttext, "vectors train", values.overwrite, inputs)
    refuse()
    from wechsel_jax.vectors import train_vectors

    options = {name: values[name].value for name in values if name not in ("input", "output", "overwrite")}
    # Once more at the end: what somebody wrote there in these hours is as dear.
    done = train_vectors(values.input, values.output, verbose=2, check=refuse, **options)
    kind = "words" if values.tokenizer is None else "tokens"
    print(f"{values.output}: {done['words']} {kind}, {done['dim']} dimensions, from {done['tokens']} running {kind}")


def _is_fasttext(path: Path) -> bool:
    from wechsel_jax.vectors.fasttext_format import FastTextVectors

    return bool(FastTextVectors(path).words)
