"""Gives a model a new vocabulary: a directory that transformers loads, with the plan of where every token came from.

  wechsel-jax transfer --source=gpt2/ --target_tokenizer=german/ --output=german-gpt2/ \\
    --source_vectors=cc.en.300.bin --target_vectors=cc.de.300.bin --dictionary=german.tsv
"""

from absl import flags

from wechsel_jax.commands import choice

REQUIRED = ("source", "target_tokenizer", "output")
# Written out because importing the methods takes a second; a test compares them with `initializers.METHODS`.
METHOD_NAMES = ("wechsel", "wechsel_tfr", "trans_inner", "trans_inner_shuffle", "full_rand")


def define(values: flags.FlagValues) -> None:
    """Defines the flags of `transfer.transfer`."""
    to = {"flag_values": values}
    flags.DEFINE_string("source", None, "Model directory (config.json, model.safetensors, tokenizer) or hub id.", **to)
    flags.DEFINE_string("target_tokenizer", None, "Directory, tokenizer.json or hub id of the new tokenizer.", **to)
    flags.DEFINE_string("output", None, "Directory to write.", **to)
    choice(values, "method", "wechsel", METHOD_NAMES, "How the new embeddings are made")
    flags.DEFINE_string("source_vectors", None, "Word vectors of the source language: .bin, .vec, .txt or .npz.", **to)
    flags.DEFINE_string("target_vectors", None, "Word vectors of the target language.", **to)
    flags.DEFINE_string(
        "dictionary",
        None,
        "File of word pairs; 'identical': words spelled the same; 'none': the vectors share a space already.",
        **to,
    )
    flags.DEFINE_integer("neighbors", 10, "Source tokens that make one target token.", **to)
    flags.DEFINE_float("temperature", 0.1, "Of the softmax over similarities.", **to)
    flags.DEFINE_integer("seed", 0, "Of every random number.", **to)
    flags.DEFINE_boolean("parity", False, "Choose as the wechsel package 0.0.4 does wherever the default is another.", **to)
    choice(values, "head_bias", "transfer", ("transfer", "zeros"), "What becomes of the bias of the output head")
    choice(values, "weighting", None, ("unique", "wechsel", "legacy"), "How often a dictionary pair counts")
    flags.DEFINE_boolean("normalize", False, "Scale word vectors to length 1 before aligning.", **to)
    flags.DEFINE_boolean("center", False, "Take the mean off the word vectors before aligning.", **to)
    flags.DEFINE_integer("max_words", None, "With wechsel_tfr: use only the most frequent words.", lower_bound=1, **to)
    flags.DEFINE_boolean("overwrite", False, "Replace an existing output.", **to)


def run(values: flags.FlagValues, arguments: list[str]) -> None:
    """Runs the transfer; progress goes to stderr."""
    del arguments
    from wechsel_jax.transfer_job import transfer

    transfer(**{name: values[name].value for name in values})
