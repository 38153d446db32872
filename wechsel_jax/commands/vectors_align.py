"""Brings the word vectors of two languages into one space through a dictionary, and says how well that went.

  wechsel-jax vectors align --source=en.bin --target=de.bin --dictionary=german.tsv \\
    --source_output=en.aligned.npz --target_output=de.aligned.npz

The outputs hold whole words only; without them the alignment is measured and nothing is written.
"""

from absl import flags

from wechsel_jax.commands import choice
from wechsel_jax.files import refuse_existing

REQUIRED = ("source", "target", "dictionary")


def define(values: flags.FlagValues) -> None:
    """Defines the flags of `vectors.align` and the files."""
    to = {"flag_values": values}
    flags.DEFINE_string("source", None, "Word vectors of the source language.", **to)
    flags.DEFINE_string("target", None, "Word vectors of the target language.", **to)
    flags.DEFINE_string("dictionary", None, "File of word pairs, or 'identical': words spelled the same.", **to)
    flags.DEFINE_string("source_output", None, ".npz file for the source vectors in the shared space.", **to)
    flags.DEFINE_string("target_output", None, ".npz file for the target vectors in the shared space.", **to)
    choice(values, "weighting", "unique", ("unique", "wechsel", "legacy"), "How often a dictionary pair counts")
    flags.DEFINE_boolean("normalize", False, "Scale vectors to length 1 first.", **to)
    flags.DEFINE_boolean("center", False, "Take the mean off the vectors first.", **to)
    flags.DEFINE_float("held_out", 0.1, "Share of the source words that precision at 1 is measured on.", **to)
    flags.DEFINE_integer("seed", 0, "Chooses the held-out words.", **to)
    flags.DEFINE_integer("max_words", None, "Use only this many of the most frequent words.", lower_bound=1, **to)
    flags.DEFINE_boolean("overwrite", False, "Replace existing outputs.", **to)


def run(values: flags.FlagValues, arguments: list[str]) -> None:
    """Aligns, writes what was asked for, and prints the report."""
    del arguments
    for output in (values.source_output, values.target_output):
        if output:
            refuse_existing(output, values.overwrite)
    import numpy as np

    from wechsel_jax.vectors import align, load_vectors, read_dictionary, save_vectors

    pairs = values.dictionary if values.dictionary == "identical" else read_dictionary(values.dictionary)
    source, target = load_vectors(values.source, values.max_words), load_vectors(values.target, values.max_words)
    options = {name: values[name].value for name in ("weighting", "normalize", "center", "held_out", "seed")}
    alignment = align(source, target, pairs, **options)
    sides = ((source, alignment.map_source, values.source_output), (target, alignment.map_target, values.target_output))
    for words, mapped, output in sides:
        if output:
            save_vectors(output, words.words, mapped(words.rows(np.arange(len(words.words)))), words.counts)
            print(f"{output}: {len(words.words)} words")
    for name, value in alignment.report.items():
        print(f"{name}: {value:.4g}" if isinstance(value, float) else f"{name}: {value}")
