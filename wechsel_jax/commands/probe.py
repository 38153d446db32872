"""Trains each of several starts for some steps, with each of several rates, and says which came furthest.

  wechsel-jax probe out/anker out/wechsel --text=german.txt --workdir=runs/probe
  wechsel-jax probe a=out/1 b=out/2 --text='corpus/*.jsonl.zst' --text_bytes=64MiB --recipes=adamw,muon --workdir=runs/probe

How a model scores before any training does not tell how it trains; fifty steps tell more. A start is a directory that
`wechsel-jax transfer` wrote, or any other model. Each run has a schedule of its own (warm-up, then down to 0), so the best rate
is one of short runs, and longer ones want a lower one. Prints the curves and the choice; `wechsel-jax report DIR` draws them.
The same command again goes on where it stopped.
"""

import math

from absl import flags

from wechsel_jax.commands import longest_document, picked, size, sources, text_field
from wechsel_jax.commands.evaluate import named
from wechsel_jax.errors import UserError, from_extra

REQUIRED = ("text", "workdir")
ARGUMENTS = "START..."


def define(values: flags.FlagValues) -> None:
    """Defines the flags of `training.probe.probe`."""
    count = {"lower_bound": 1, "upper_bound": 1 << 30, "flag_values": values}
    sources(values, "text", "What to train on")
    sources(values, "validation", "Held-out text; by default 2 % of the documents")
    size(values, "text_bytes", "0", "Read a random sample of documents of at most this size, e.g. 64MiB; 0: all.")
    text_field(values)
    longest_document(values)
    flags.DEFINE_string("workdir", None, "The directory to work in: new, empty or this command's own.", flag_values=values)
    flags.DEFINE_list("rates", ["1e-3", "3e-3"], "Highest learning rates.", flag_values=values)
    recipes = (
        "Optimizers: adamw, two_rates (AdamW, embeddings faster), muon (for the matrices of the layers); shared, muon_shared "
        "(adamw and muon, and tokens' rows also move together); muon_soap (muon_shared with SOAP for the embeddings)."
    )
    flags.DEFINE_list("recipes", ["muon_soap"], recipes, flag_values=values)
    flags.DEFINE_integer("steps", 50, "Of each run.", **count)
    flags.DEFINE_integer("batch_size", 16, "Rows in a step.", **count)
    flags.DEFINE_integer("block_length", 128, "Tokens in a row; of a model with fewer positions as many as these.", **count)
    size(values, "eval_bytes", "128KiB", "Held-out text that an evaluation reads, the same of all starts; 0: all.")
    flags.DEFINE_integer("seed", 0, "Of the order of the text.", lower_bound=0, upper_bound=(1 << 31) - 1, flag_values=values)


def run(values: flags.FlagValues, arguments: list[str]) -> None:
    """Prints the curves and the choice."""
    try:
        rates = [float(rate) for rate in values.rates]
    except ValueError:
        rates = [math.nan]
    if not all(0 < rate < math.inf for rate in rates):
        raise UserError(f"--rates={','.join(values.rates)}: expected learning rates above 0, such as 1e-3,3e-3")
    starts = named(arguments, "start")
    with from_extra("train", "to train models"):
        from wechsel_jax.training.probe import probe
    names = ("validation", "recipes", "steps", "batch_size", "block_length", "eval_bytes", "seed", "text_bytes")
    settings = picked(values, *names, "text_field", "max_document_bytes")
    probe(starts, values.text, values.workdir, rates=rates, **settings)
    print(f"report: wechsel-jax report {values.workdir}")
