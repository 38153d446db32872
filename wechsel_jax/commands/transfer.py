"""Gives a model a new vocabulary: a directory that transformers loads, with the plan of where every token came from.

  wechsel-jax transfer --source=gpt2/ --target_tokenizer=german/ --output=german-gpt2/ \\
    --source_text=english.txt --target_text=german.txt --dictionary=german.tsv
  wechsel-jax transfer --source=gpt2/ --target_tokenizer=german/ --output=german-gpt2/ --method=wechsel \\
    --source_vectors=cc.en.300.bin --target_vectors=cc.de.300.bin --dictionary=german.tsv
  wechsel-jax transfer --source=gpt2/ --target_tokenizer=german/ --output=german-gpt2/ --method=focus \\
    --target_vectors=german-tokens.bin
  wechsel-jax transfer --source=llama/ --target_tokenizer=gbert/ --output=german-llama/ --method=salt \\
    --helper=gbert/ --target_vectors=cc.de.300.bin
"""

from absl import flags

from wechsel_jax.commands import choice, longest_document, number

REQUIRED = ("source", "target_tokenizer", "output")
# Written out because importing the methods takes a second; a test compares them with what they name.
METHOD_NAMES = (
    "wechsel", "wechsel_tfr", "anker", "ofa", "focus", "salt", "omp", "clp", "fvt", "mean", "multivariate", "trans_inner",
    "trans_inner_shuffle", "full_rand",
)  # fmt: skip
ALIGNMENTS = ("procrustes", "adversarial", "similarities")
OVERLAPS = ("special", "exact", "nospace", "fuzzy")
NOISES = ("source", "source_sample", "multivariate", "mean", "xavier", "initializer_range")
STANDARDIZATIONS = ("xavier", "pretrained_xavier", "xavier_pretrained")
SHUFFLES = ("rows_columns", "elements")


def define(values: flags.FlagValues) -> None:
    """Defines the flags of `transfers.job.transfer`."""
    to = {"flag_values": values}
    flags.DEFINE_string("source", None, "Model directory (config.json, model.safetensors, tokenizer) or hub id.", **to)
    flags.DEFINE_string("target_tokenizer", None, "Directory, tokenizer.json or hub id of the new tokenizer.", **to)
    flags.DEFINE_string("output", None, "Directory to write.", **to)
    flags.DEFINE_boolean("overwrite", False, "Replace an existing output.", **to)
    made = "How the new embeddings are made; by default by anker where text is given, by wechsel where word vectors are"
    choice(values, "method", None, METHOD_NAMES, made)
    flags.DEFINE_integer("seed", 0, "Of every random number.", lower_bound=0, upper_bound=2**32 - 1, **to)
    flags.DEFINE_boolean("parity", False, "Choose as the method's reference implementation does wherever ours differs.", **to)
    _define_inputs(values)
    _define_mixture(values)
    _define_tables(values)


def _define_inputs(values: flags.FlagValues) -> None:
    """What the method compares tokens by."""
    to = {"flag_values": values}
    flags.DEFINE_string("source_vectors", None, "Word vectors of the source language: .bin, .vec, .txt or .npz.", **to)
    flags.DEFINE_string("target_vectors", None, "Word vectors of the target language.", **to)
    flags.DEFINE_string(
        "dictionary",
        None,
        "File of word pairs; 'identical': words spelled the same; 'none': the vectors share a space already.",
        **to,
    )
    flags.DEFINE_multi_string("source_text", [], "Text of the source language, for anker; may be given several times.", **to)
    flags.DEFINE_multi_string("target_text", [], "Text of the target language, for anker.", **to)
    size = "Bytes of text a language that anker reads; 0: all."
    flags.DEFINE_integer("text_bytes", 16 << 20, size, lower_bound=0, upper_bound=1 << 40, **to)
    flags.DEFINE_string("text_field", "text", "Of JSON lines and tables, the field that holds the text.", **to)
    longest_document(values)
    flags.DEFINE_integer("window", 4, "How far from a token anker's contexts reach.", lower_bound=1, upper_bound=20, **to)
    flags.DEFINE_integer("rounds", 1, "Of anker's self-learning.", lower_bound=0, upper_bound=100, **to)
    flags.DEFINE_integer("dimensions", 128, "Of anker's vectors.", lower_bound=1, upper_bound=1024, **to)
    flags.DEFINE_string("helper", None, "A model of the target language (directory or hub id), for salt, omp and clp.", **to)
    choice(values, "token_vectors", None, ("ngram", "tfr", "native"), "How word vectors become token vectors")
    choice(values, "alignment", "procrustes", ALIGNMENTS, "How the two languages' vectors are aligned")
    refinement = "Rounds of CSLS refinement after the alignment."
    flags.DEFINE_integer("refine", 0, refinement, lower_bound=0, upper_bound=1000, **to)
    choice(values, "weighting", None, ("unique", "wechsel", "legacy"), "How often a dictionary pair counts")
    flags.DEFINE_boolean("normalize", False, "Scale word vectors to length 1 before aligning.", **to)
    flags.DEFINE_boolean("center", False, "Take the mean off the word vectors before aligning.", **to)
    frequent = "With tfr token vectors: use only so many of the most frequent words."
    flags.DEFINE_integer("max_words", None, frequent, lower_bound=1, upper_bound=1 << 31, **to)
    choice(values, "overlap", None, OVERLAPS, "Which tokens count as shared, and are copied")
    flags.DEFINE_boolean("symbols", False, "Numbers, punctuation and blanks match as loosely as fuzzy allows.", **to)
    flags.DEFINE_multi_string("map", [], "SOURCE:TARGET, a pair of tokens that overrides the overlap", **to)


def _define_mixture(values: flags.FlagValues) -> None:
    """How source rows are chosen and weighed."""
    to = {"flag_values": values}
    flags.DEFINE_integer("neighbors", 10, "Source tokens that make one target token.", lower_bound=1, upper_bound=1 << 20, **to)
    number(values, "temperature", 0.1, "Of the softmax over similarities.", 1e-6, 1e6)
    choice(values, "weights", "softmax", ("softmax", "sparsemax"), "How wechsel weighs source tokens")
    flags.DEFINE_boolean("regression", True, "anker predicts rows from contexts and frequency; else it mixes only.", **to)
    number(values, "word_start", None, "Bonus to the similarity of tokens that both begin a word, or both do not.", 0.0, 100.0)
    flags.DEFINE_integer(
        "atoms", 64, "Most source tokens that omp makes one token of.", lower_bound=1, upper_bound=1 << 20, **to
    )
    number(values, "ridge", 0.0, "Added to the diagonal of salt's least squares.", 0.0, 1e6)
    choice(values, "noise", None, NOISES, "Distribution of random rows")


def _define_tables(values: flags.FlagValues) -> None:
    """What is done to whole tables."""
    to = {"flag_values": values}
    rank = "Rank to factorise the source tables to first, as OFA does; 0: not at all."
    flags.DEFINE_integer("latent_dimension", 0, rank, lower_bound=0, upper_bound=1 << 20, **to)
    flags.DEFINE_boolean("factorised", False, "Write the factors too, where there is a latent_dimension.", **to)
    choice(values, "standardize", None, STANDARDIZATIONS, "Change the spread of the finished table (Kim et al.)")
    choice(values, "shuffle", None, SHUFFLES, "Shuffle the finished table (Kim et al.)")
    choice(values, "head_bias", "transfer", ("transfer", "zeros"), "What becomes of the bias of the output head")
    choice(values, "calibrate", "none", ("none", "unigram"), "Fit average predictions to the frequencies in target_text")
    multiple = "Add rows until the vocabulary is a multiple of this; 0: none."
    flags.DEFINE_integer("pad_to", 0, multiple, lower_bound=0, upper_bound=1 << 16, **to)
    flags.DEFINE_boolean("keep_source", False, "Keep every source token, and append the target tokenizer's new ones.", **to)


def run(values: flags.FlagValues, arguments: list[str]) -> None:
    """Runs the transfer; progress goes to stderr."""
    del arguments
    from wechsel_jax.transfers.job import transfer

    transfer(**{name: values[name].value for name in values})
