"""Shows what a file of word vectors holds, and the words nearest to some.

wechsel-jax vectors inspect german.bin --words=Haus,Hund
"""

from absl import flags

from wechsel_jax.errors import UserError

ARGUMENTS = "FILE"
_FIRST = 20


def define(values: flags.FlagValues) -> None:
    """Defines the flags."""
    flags.DEFINE_list("words", [], "Words to show the nearest words of.", flag_values=values)
    flags.DEFINE_integer("neighbors", 10, "How many nearest words.", lower_bound=1, upper_bound=1 << 20, flag_values=values)
    searched = "How many of the most frequent words are searched."
    flags.DEFINE_integer("max_words", 50_000, searched, lower_bound=1, upper_bound=1 << 31, flag_values=values)


def run(values: flags.FlagValues, arguments: list[str]) -> None:
    """Prints the facts, then a line for each word."""
    for name in ("neighbors", "max_words"):
        if values[name].present and not values.words:
            raise UserError(f"--{name}: is for the neighbors of --words; expected that, or leave it out")
    from wechsel_jax.vectors import load_vectors

    words = load_vectors(arguments[0])
    print(f"words: {len(words.words)}")
    print(f"dimensions: {words.dim}")
    print(f"character n-grams: {'yes' if words.has_subwords else 'no'}")
    print(f"counts: {'yes, ' + str(int(words.counts.sum())) + ' running words' if words.counts is not None else 'no'}")
    print(f"most frequent: {' '.join(words.words[i] for i in range(min(_FIRST, len(words.words))))}")
    if values.words:
        _print_nearest(words, values)


def _print_nearest(words, values: flags.FlagValues) -> None:
    import numpy as np

    from wechsel_jax.search import nearest_neighbors

    queries = words.lookup(values.words)
    for word, vector in zip(values.words, queries, strict=True):
        if not vector.any():
            raise UserError(f"{word}: has no vector; expected a word of the file")
    searched = min(values.max_words, len(words.words))
    # One more than asked for: a word is nearest to itself.
    similarity, ids = nearest_neighbors(queries, words.rows(np.arange(searched)), min(values.neighbors + 1, searched))
    known = {*values.words}.intersection(words.words)
    for word, scores, row in zip(values.words, similarity, ids, strict=True):
        found = [(words.words[i], score) for i, score in zip(row, scores, strict=True) if words.words[i] != word]
        how = "" if word in known else " (not in the file, by its n-grams)"
        print(f"{word}{how}: " + ", ".join(f"{other} {score:.3f}" for other, score in found[: values.neighbors]))
