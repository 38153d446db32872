"""Makes parallel text into pairs of sentences whose tokens are linked, for TreLM's transfer training.

  wechsel-jax align --input=en-de.tsv --tokenizer=joint/ --output=pairs/
  wechsel-jax align --input=train.en::train.de --languages=en,de --tokenizer=joint/ --output=pairs/ --aligner=eflomal
  wechsel-jax align --input=en-zh.txt.zip --languages=en,zh --tokenizer=joint/ --output=pairs/ --validation_fraction=0.01
  wechsel-jax align --input=en-de.tsv --tokenizer=joint/ --output=pairs/ --links=forward.align,reverse.align

The first language is the source model's, the second the new one. Training reads the result: --config.data.train='("pairs",)'
(with --validation_fraction, "pairs/train" and "pairs/validation").
"""

from absl import flags

from wechsel_jax.commands import choice, longest_document, number

REQUIRED = ("input", "tokenizer", "output")


def define(values: flags.FlagValues) -> None:
    """Defines the flags of `data.align.align_pairs`."""
    to = {"flag_values": values}
    texts = (
        "Parallel text, with commas between: files with two columns (a tab or ' ||| '), FIRST::SECOND (two files with a "
        "sentence a line), archives of OPUS (.zip); plain or .gz, .xz, .bz2, .zst"
    )
    flags.DEFINE_list("input", [], texts, **to)
    codes = "Codes of the first and the second language, e.g. en,de; found in names such as en-de.tsv."
    flags.DEFINE_list("languages", [], codes, **to)
    flags.DEFINE_string("tokenizer", None, "Of both languages: a directory, a tokenizer.json or a hub id.", **to)
    apart = "Of the first language, where --tokenizer is of the second alone: separate vocabularies, see docs/trelm.md."
    flags.DEFINE_string("first_tokenizer", None, apart, **to)
    flags.DEFINE_string("output", None, "Directory to write.", **to)
    known = (
        "What finds the links (diagonal: fast_align's model; eflomal: the package, other links each time; none: no links, for "
        "text that is not parallel)"
    )
    choice(values, "aligner", "diagonal", ("diagonal", "eflomal", "none"), known)
    linked = "What is linked (words: with white space between them; special_tokens: in files of links, as TreLM has them)"
    choice(values, "units", "tokens", ("tokens", "words", "special_tokens"), linked)
    joined = ("none", "intersection", "union", "grow-diag", "grow-diag-final", "grow-diag-final-and")
    choice(values, "symmetry", "none", joined, "How the links of both directions are joined")
    links = "Files of links (0-0 1-2) instead of an aligner: one, or fast_align's and its -r's with a comma between."
    flags.DEFINE_list("links", [], links, **to)
    gold = "Links that people drew, of --units: a line for each line of text (0-0 1p2); prints the error rate (AER)."
    flags.DEFINE_string("gold", None, gold, **to)
    held_out = "Share of the pairs that becomes OUTPUT/validation; the others become OUTPUT/train."
    number(values, "validation_fraction", 0.0, held_out, 0.0, 1.0)
    flags.DEFINE_boolean("drop_empty", False, "Leave out pairs of which one side is blank, which are refused otherwise.", **to)
    longest_document(values)
    flags.DEFINE_boolean("overwrite", False, "Replace an existing output.", **to)


def run(values: flags.FlagValues, arguments: list[str]) -> None:
    """Aligns, and says how many pairs there are and how many of their tokens are linked."""
    del arguments
    import functools
    import sys
    from pathlib import Path

    from wechsel_jax.data.align import align_pairs
    from wechsel_jax.errors import UserError

    if values.links and values["aligner"].present:
        raise UserError("--aligner: has no effect with --links; leave it out")
    if values.aligner == "none" and not values.links:
        for name in ("symmetry", "units"):
            if values[name].present:
                raise UserError(f"--{name}: has no effect with --aligner=none, which makes no links; leave it out")
    options = {name: values[name].value for name in values if name not in ("input", "tokenizer", "output")}
    tell = functools.partial(print, file=sys.stderr)
    written = align_pairs(values.input, values.tokenizer, values.output, log=tell, **options)
    for side, facts in written.items():
        first, second = facts["languages"]
        shares = " and ".join(
            f"{share:.0%} of {tokens:,} tokens of {code}"
            for share, tokens, code in zip(facts["linked"], facts["tokens"], (first, second), strict=True)
        )
        print(f"{Path(values.output) / side}: {facts['pairs']:,} pairs; linked are {shares}")
    if "gold" in facts["aligner"]:
        known = facts["aligner"]["gold"]
        rates = ", ".join(f"{rate:.1%} of {code}" for rate, code in zip(known["error_rates"], (first, second), strict=True))
        print(f"alignment error rate on {known['pairs']:,} pairs that people linked: {rates}")
    for reason, count in facts["dropped"].items():
        if count:
            print(f"left out ({reason.replace('_', ' ')}): {count:,} pairs")
