"""Brings the word vectors of two languages into one space, and says how well that went.

  wechsel-jax vectors align --source=en.bin --target=de.bin --dictionary=german.tsv \\
    --source_output=en.aligned.npz --target_output=de.aligned.npz

Without a dictionary: --dictionary=identical --refine=5 where the languages share words, else --method=adversarial
--start=similarities --epochs=0 --normalize --center --refine=5 (minutes), or the training itself, --method=adversarial
--refine=5 (hours on a CPU unless --hidden, --epochs and --iterations are lower; it needs much and similar text in both
languages). A dictionary given with --method=adversarial only measures. The outputs hold whole words only; without them the
alignment is measured and nothing is written.
"""

from pathlib import Path

from absl import flags

from wechsel_jax.commands import choice
from wechsel_jax.errors import UserError
from wechsel_jax.files import refuse_existing

REQUIRED = ("source", "target")
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
    flags.DEFINE_integer("refine", 0, "Rounds of refinement on translations that the vectors propose.", lower_bound=0, **to)
    flags.DEFINE_boolean("csls", False, "Measure precision at 1 by CSLS as well.", **to)
    flags.DEFINE_float("held_out", 0.1, "Share of the source words that precision at 1 is measured on.", **to)
    flags.DEFINE_integer("seed", 0, "Chooses the held-out words and the draws of adversarial training.", lower_bound=0, **to)
    flags.DEFINE_integer("max_words", None, "Use only this many of the most frequent words.", lower_bound=1, **to)
    flags.DEFINE_boolean("overwrite", False, "Replace existing outputs.", **to)
    choice(values, "start", "identity", ("identity", "similarities"), "Adversarial: the map that training begins with")
    flags.DEFINE_integer("epochs", 5, "Adversarial: epochs; 0 takes --start=similarities as it is.", lower_bound=0, **to)
    flags.DEFINE_integer("iterations", 31_250, "Adversarial: steps of the map in an epoch.", lower_bound=1, **to)
    flags.DEFINE_integer("hidden", 2048, "Adversarial: width of the discriminator's layers.", lower_bound=1, **to)
    flags.DEFINE_integer("most_frequent", 75_000, "Adversarial: words that are drawn; 0: all.", lower_bound=0, **to)
    flags.DEFINE_integer("restarts", 1, "Adversarial: trainings, of which the best is kept.", lower_bound=1, **to)


def run(values: flags.FlagValues, arguments: list[str]) -> None:
    """Aligns, writes what was asked for, and prints the report."""
    del arguments
    _check(values)
    import numpy as np

    from wechsel_jax.vectors import load_vectors, read_dictionary, save_vectors

    pairs = values.dictionary if values.dictionary in ("identical", None) else read_dictionary(values.dictionary)
    source, target = load_vectors(values.source, values.max_words), load_vectors(values.target, values.max_words)
    alignment = _aligned(values, source, target, pairs)
    sides = ((source, alignment.map_source, values.source_output), (target, alignment.map_target, values.target_output))
    for words, mapped, output in sides:
        if output:
            save_vectors(output, words.words, mapped(words.rows(np.arange(len(words.words)))), words.counts)
            print(f"{output}: {len(words.words)} words")
    for name, value in alignment.report.items():
        if isinstance(value, list):
            for entry in value:
                print(f"{name}: " + ", ".join(f"{key} {_short(item)}" for key, item in entry.items()))
        else:
            print(f"{name}: {_short(value)}")


def _check(values: flags.FlagValues) -> None:
    outputs = [output for output in (values.source_output, values.target_output) if output]
    for output in outputs:
        refuse_existing(output, values.overwrite, [values.source, values.target, values.dictionary])
    if len(outputs) > len({Path(output).resolve() for output in outputs}):
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


def _aligned(values: flags.FlagValues, source, target, pairs):
    options = {name: values[name].value for name in ("normalize", "center", "seed", "csls")}
    if values.method == "procrustes":
        from wechsel_jax.vectors import align

        return align(
            source, target, pairs, weighting=values.weighting, held_out=values.held_out, refine=values.refine, **options
        )
    from wechsel_jax.vectors.adversarial import AdversarialSettings, adversarial_align
    from wechsel_jax.vectors.refinement import Refinement

    settings = AdversarialSettings(
        **{name: values[name].value for name in _ADVERSARIAL}, refinement=Refinement(rounds=values.refine)
    )
    return adversarial_align(source, target, settings, pairs=pairs, progress=print, **options)


def _short(value: object) -> str:
    return f"{value:.4g}" if isinstance(value, float) else f"{value}"
