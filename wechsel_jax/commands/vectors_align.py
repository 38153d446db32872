"""Brings the word vectors of two languages into one space, and says how well that went.

  wechsel-jax vectors align --source=en.bin --target=de.bin --dictionary=german.tsv \\
    --source_output=en.aligned.npz --target_output=de.aligned.npz

Without a dictionary: --dictionary=identical --refine=5 where the languages share words, else --method=adversarial
--start=similarities --epochs=0 --normalize --center --refine=5 (minutes), or the training itself, --method=adversarial
--refine=5 (hours on a CPU unless --hidden, --epochs and --iterations are lower; it needs much and similar text in both
languages). A dictionary given with --method=adversarial only measures. The outputs hold whole words only; without them the
alignment is measured and nothing is written.
"""

import os
from pathlib import Path

from absl import flags

from wechsel_jax.commands import choice, number, picked
from wechsel_jax.errors import UserError, naming
from wechsel_jax.files import refuse_file

REQUIRED = ("source", "target")
# An entry may have several spellings.
_NAMES = {
    "pairs_given": "entries of the dictionary",
    "pairs_found": "entries with vectors on both sides",
    "pairs": "pairs of words with vectors",
}
_ADVERSARIAL = ("start", "epochs", "iterations", "hidden", "most_frequent", "restarts")


def define(values: flags.FlagValues) -> None:
    """Defines the flags of `vectors.align`, of `vectors.adversarial.adversarial_align` and the files."""
    to = {"flag_values": values}
    flags.DEFINE_string("source", None, "Word vectors of the source language.", **to)
    flags.DEFINE_string("target", None, "Word vectors of the target language.", **to)
    flags.DEFINE_string("dictionary", None, "File of word pairs, or 'identical': words spelled the same.", **to)
    flags.DEFINE_string("source_output", None, ".npz file for the source vectors in the shared space.", **to)
    flags.DEFINE_string("target_output", None, ".npz file for the target vectors in the shared space.", **to)
    choice(values, "method", "procrustes", ("procrustes", "adversarial"), "How the map is found")
    choice(values, "weighting", "unique", ("unique", "wechsel", "legacy"), "How often a dictionary pair counts")
    flags.DEFINE_boolean("normalize", False, "Scale vectors to length 1 first.", **to)
    flags.DEFINE_boolean("center", False, "Take the mean off the vectors first.", **to)
    refinement = "Rounds of refinement on translations that the vectors propose."
    flags.DEFINE_integer("refine", 0, refinement, lower_bound=0, upper_bound=1000, **to)
    flags.DEFINE_boolean("csls", False, "Measure precision at 1 by CSLS as well.", **to)
    number(values, "held_out", 0.1, "Share of the source words that precision at 1 is measured on, below 1.", 0.0, 1.0)
    draws = "Chooses the held-out words and the draws of adversarial training."
    flags.DEFINE_integer("seed", 0, draws, lower_bound=0, upper_bound=2**32 - 1, **to)
    frequent = "Use only this many of the most frequent words."
    flags.DEFINE_integer("max_words", None, frequent, lower_bound=1, upper_bound=1 << 31, **to)
    flags.DEFINE_boolean("overwrite", False, "Replace existing outputs.", **to)
    choice(values, "start", "identity", ("identity", "similarities"), "Adversarial: the map that training begins with")
    for name, default, least, most, summary in (
        ("epochs", 5, 0, 10_000, "epochs; 0 takes --start=similarities as it is"),
        ("iterations", 31_250, 1, 10**8, "steps of the map in an epoch"),
        ("hidden", 2048, 1, 1 << 14, "width of the discriminator's layers"),
        ("most_frequent", 75_000, 0, 1 << 31, "words that are drawn; 0: all"),
        ("restarts", 1, 1, 1000, "trainings, of which the best is kept"),
    ):
        flags.DEFINE_integer(name, default, f"Adversarial: {summary}.", lower_bound=least, upper_bound=most, **to)


def run(values: flags.FlagValues, arguments: list[str]) -> None:
    """Aligns, writes what was asked for, and prints the report."""
    del arguments
    _check(values)
    import numpy as np

    from wechsel_jax.vectors import load_vectors, read_dictionary, save_vectors

    pairs = values.dictionary if values.dictionary in ("identical", None) else read_dictionary(values.dictionary)
    source, target = load_vectors(values.source, values.max_words), load_vectors(values.target, values.max_words)
    alignment = _aligned(values, source, target, pairs)
    # Once more: what somebody wrote there meanwhile, which may be hours, is as dear.
    _refuse_outputs(values)
    sides = ((source, alignment.map_source, values.source_output), (target, alignment.map_target, values.target_output))
    for side, mapped, output in sides:
        if output:
            # fastText cuts long words, also within a character; without that piece of one, a word may be another again.
            first = {word: row for row, word in reversed([*enumerate(side.words)])}
            rows = np.array(sorted(first.values()))
            counts = None if side.counts is None else side.counts[rows]
            save_vectors(output, [side.words[row] for row in rows], mapped(side.rows(rows)), counts)
            print(f"{output}: {len(rows)} words")
    for name, value in alignment.report.items():
        if isinstance(value, list):
            for entry in value:
                print(f"{name}: " + ", ".join(f"{key} {_short(item)}" for key, item in entry.items()))
        elif value is not None:
            print(f"{_NAMES.get(name, name)}: {_short(value)}")


def _refuse_outputs(values: flags.FlagValues) -> list[str]:
    outputs = [output for output in (values.source_output, values.target_output) if output]
    for output in outputs:
        refuse_file(output, _is_archive, "vectors align", values.overwrite, [values.source, values.target, values.dictionary])
    return outputs


def _check(values: flags.FlagValues) -> None:
    outputs = _refuse_outputs(values)
    if len(outputs) > len({os.path.realpath(output) for output in outputs}):
        raise UserError(f"--target_output: {outputs[1]} is the file of --source_output; expected another one")
    adversarial = values.method == "adversarial"
    if not adversarial and values.dictionary is None:
        raise UserError("--dictionary: missing; expected a file of word pairs or 'identical', or use --method=adversarial")
    if adversarial and values.dictionary == "identical":
        raise UserError(
            "--dictionary: 'identical' with --method=adversarial; expected a file of word pairs, to measure with, or nothing"
        )
    # An option that would change nothing is a mistake that the user should hear of.
    for name in ("weighting", "held_out") if adversarial else _ADVERSARIAL:
        if values[name].present:
            raise UserError(f"--{name}: has no effect with --method={values.method}; leave it out")


def _is_archive(path: Path) -> bool:
    import zipfile

    with zipfile.ZipFile(path) as archive:
        return {"words.npy", "lengths.npy", "vectors.npy"} <= {*archive.namelist()}


def _aligned(values: flags.FlagValues, source, target, pairs):
    import functools
    import sys

    options = picked(values, "normalize", "center", "seed", "csls")
    if values.method == "procrustes":
        from wechsel_jax.vectors import align

        with naming(f"{values.dictionary}: "):
            return align(source, target, pairs, **picked(values, "weighting", "held_out", "refine"), **options)
    from wechsel_jax.vectors.adversarial import AdversarialSettings, adversarial_align
    from wechsel_jax.vectors.refinement import Refinement

    settings = AdversarialSettings(**picked(values, *_ADVERSARIAL), refinement=Refinement(rounds=values.refine))
    tell = functools.partial(print, file=sys.stderr)
    return adversarial_align(source, target, settings, pairs=pairs, progress=tell, **options)


def _short(value: object) -> str:
    return f"{value:.4g}" if isinstance(value, float) else f"{value}"
