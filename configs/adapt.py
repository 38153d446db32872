"""One dial: a pretrained model becomes one of a new language; how many tokens it trains on, or hours, decide all the rest.

Command:  python -m train.compare --config=configs/adapt.py:source=gpt2,text=mine.txt,tokens=50M --workdir=runs/mine
          The same command goes on where it stopped; the model is runs/mine/auto/export. Without arguments: the bundled English
          GPT-2 and German text. Behind the colon, with commas between:
            source=        directory or hub id of the model
            text=          of the new language: a file, a pattern, a data set
            tokens=        to train on: 2M, 50M, 1B; at least 40,960
            hours=, like=  instead: as many tokens as so many hours have at the speed of a run that has ended, of the same model
                           on the same machine: hours=8,like=runs/try/auto; larger batches are rather faster
            validation=    held-out text; else a part of `text`, which training does not see, but tokenizer and transfer do
            source_text=   of the source's language; by default a bundled English excerpt of 2 MB, and 16 MB are better
            tokenizer=     directory of a finished one; else one is made
            dictionary=, source_vectors=, target_vectors=    make the start better, or other methods possible
            method=        auto (anker, or fvt for a source that reads the language) or any of `wechsel-jax transfer`
            probe=         with method=auto: 50 trains so many steps by `recipe` from each method that fits, and takes the best
            recipe=        auto: muon_soap, or shared where Muon would cost a small step more than it is worth; or any of
                           muon_soap, muon_shared, shared, muon, two_rates, adamw (docs/recipe.md); wechsel: the WECHSEL paper's
                           method, optimizer, rate and schedule, without the soft targets that the others have in short runs
            seed=
          Longer afterwards, from where the decay began, so warm-up and stable part are not paid again (not by recipe=wechsel):
          python -m train.pretrain --config=configs/adapt.py:longer=runs/mine/auto,tokens=100M --workdir=runs/mine-100M
          (or hours=, without like=: so many more)
Cost:     of the training, `tokens` tokens, rounded up to an even number of steps; minutes for tokenizer and transfer before it.
Expected: docs/recipe.md.

Any setting may still be given by itself: --config.training.batch_size=64, --config.tokenizer.vocabulary_size=16384.
"""

import math
import os
import re
from collections.abc import Sequence
from pathlib import Path

from ml_collections import ConfigDict

from configs.recipe import RATES, SHARE
from wechsel_jax import demo
from wechsel_jax.checkpoint import Checkpoint
from wechsel_jax.comparison import default_config
from wechsel_jax.comparison.settings import needs
from wechsel_jax.errors import UserError
from wechsel_jax.files import require_directory
from wechsel_jax.files.json import read_json
from wechsel_jax.initializers import AUTO, METHODS
from wechsel_jax.models import family
from wechsel_jax.records import read_run
from wechsel_jax.records.compute import compute
from wechsel_jax.text.files import is_compressed
from wechsel_jax.text.sources import Source, find_sources
from wechsel_jax.tokens import load_tokenizer
from wechsel_jax.training import config_arguments, one_phase
from wechsel_jax.training import default_config as default_training
from wechsel_jax.training.groups import DEFAULT, RECIPES, assign, read_groups
from wechsel_jax.training.muon import orthogonal_flops
from wechsel_jax.training.schedules import stable_phase

# Tokens in a step, 0.58 * tokens ** 0.571 (Li et al., 2025, arXiv 2503.04715, of pretraining): 2,048 for the 1.6 million (800
# steps) that the rates below were found with, and no fewer, which would want lower rates. To the nearest power of two, which
# any number of devices can share.
STEP, STEP_EXPONENT, LEAST_STEP, MOST_STEP = 0.58, 0.571, 1 << 11, 1 << 19
# What a run trains on: no fewer than the checkpoints have steps.
LEAST, MOST_TOKENS = 20 * LEAST_STEP, 10**13
# At least so many rows in a step, since neighbouring tokens say much the same; rows no shorter and no longer than this.
ROWS, SHORTEST, LONGEST = 16, 128, 1024
# A step is computed in parts of so many tokens: memory follows the part, not the step.
PART = 1 << 14
# `RATES` are the body's highest at this width, tuned in runs of 200 and 800 steps; `RECIPES` says how much faster tables learn.
# In inverse proportion to the width, as maximal-update parametrisation has it for Adam (Yang et al., 2022, arXiv 2203.03466)
# and Muon here is scaled like Adam: a rule, not a measurement of ours.
WIDTH = 256
# What Muon may add to the FLOPs of a step: a third, for which it saves about a quarter of the steps (docs/recipe.md). Its cost
# is that of the matrices alone, so small steps of wide models pay several times as much.
MUON_COST, WITHOUT_MUON = 1 / 3, "shared"
# The WECHSEL paper's for causal and masked models (table 6): one rate, for every size.
PAPER = {True: 5e-4, False: 1e-4}
# Short runs want a long warm-up (benchmarks/demo_tuning.json), and for Adam's second moment 2 / (1 - b2) = 100 steps are enough
# (Ma & Yarats, 2021, arXiv 1910.04209). In steps, so that a longer run begins as this one did.
WARMUP, MOST_WARMUP = 0.3, 240
# The rate stays at its highest until the second half: `longer` goes on from there. (Over the last fifth alone, and with half as
# many tokens in a step, a run of 400,000 tokens ended behind AdamW with one rate.)
DECAY = 0.5
# Causal models that train on at most so many tokens, about as many as was tried (docs/recipe.md), have soft targets. These fall
# to nothing in the steps of the run, also where a longer one goes on from it.
SOFT_TOKENS = 2_000_000
# Of the run: evaluations, and checkpoints, about so many; the one at the decay's beginning stays.
EVALUATIONS, CHECKPOINTS = 10, 20
# An evaluation reads 2 % of `tokens`, so that all together cost 7 % of the training; more than 2**20 says no more.
EVALUATED, LEAST_EVALUATED, MOST_EVALUATED = 0.02, 1 << 14, 1 << 20
# Held out: 2 MiB, at most 2 % of the text; of a data set, whose size is not known beforehand, 0.1 %.
HELD_OUT, MOST_HELD_OUT, UNKNOWN_HELD_OUT = 1 << 21, 0.02, 0.001
# Bytes of text for each token of the vocabulary, some 100 occurrences on average (480 in the demonstration): fewer, and rows of
# rare tokens stay as they were; and no more tokens than published models of one language need.
BYTES_OF_TOKEN, LEAST_VOCABULARY, MOST_VOCABULARY = 400, 1 << 9, 1 << 15
# What compression makes of text, and the most bytes that a token stands for on average (Thai): more are not prepared.
COMPRESSION, LONGEST_TOKEN = 3, 16


def get_config(arguments: str = "") -> ConfigDict:
    chosen = config_arguments(
        arguments,
        source=demo.path("english-gpt2"),
        text="",
        tokens="",
        hours=float,
        like="",
        validation="",
        source_text=demo.path("english.train.txt.xz"),
        tokenizer="",
        dictionary="",
        source_vectors="",
        target_vectors="",
        method="",
        probe=0,
        recipe=(AUTO, *RECIPES, "wechsel"),
        seed=0,
        longer="",
    )
    if empty := next((part for part in arguments.split(",") if part.endswith("=")), ""):
        # Without it the bundled model or text would be taken.
        raise UserError(f"--config: {empty} has no value (of an unset variable of the shell?); expected one, or leave it out")
    if chosen["hours"] is not None and chosen["tokens"]:
        raise UserError("--config: tokens= beside hours=: each says how long the run is; expected one of the two")
    if (chosen["hours"] is None) != (not chosen["like"]) and not chosen["longer"]:
        if chosen["hours"] is None:
            raise UserError(f"--config: like={chosen['like']}: its speed is for hours=, which is missing; expected both")
        raise UserError(
            f"--config: hours={chosen['hours']:g}: at what speed? expected like=, a run of the same model on the same "
            "machine that has ended; give tokens=300k instead and another --workdir=TRY first, and then add like=TRY/auto"
        )
    if chosen["longer"]:
        names = [part.split("=")[0] for part in arguments.split(",") if part]
        if others := [name for name in names if name not in ("longer", "tokens", "hours")]:
            raise UserError(
                f"--config: {others[0]}= beside longer=: the run has that already; expected tokens= or hours= alone"
            )
        return longer(chosen["longer"], chosen["tokens"], chosen["hours"])
    recipe, method = chosen["recipe"], chosen["method"]
    if chosen["like"]:
        tokens = tokens_of(chosen["hours"], chosen["like"])
        if not LEAST <= tokens <= MOST_TOKENS:
            raise UserError(
                f"--config: hours={chosen['hours']:g}: are {tokens:,} tokens at the speed of {chosen['like']}; expected "
                f"{LEAST:,} to {MOST_TOKENS:,}"
            )
    else:
        tokens = read_tokens(chosen["tokens"] or "300k")
    method = method or ("wechsel" if recipe == "wechsel" else AUTO)
    if method not in (AUTO, *METHODS):
        raise UserError(f"--config: method={method}: expected {AUTO} or one of {', '.join(METHODS)}")
    if chosen["probe"] and method != AUTO:
        raise UserError(f"--config: probe={chosen['probe']}: the method is named ({method}); expected one of the two")
    if not chosen["text"]:
        # The bundled German, so that the file runs as it is.
        if chosen["source"] != demo.path("english-gpt2"):
            raise UserError("--config: text= is missing; expected text of the new language behind the colon")
        chosen["text"] = demo.path("german.train.txt.xz")
    checkpoint = Checkpoint.open(chosen["source"])
    of_model = family(checkpoint.config.get("model_type"))
    size = text_size(find_sources([chosen["text"]]))

    config = default_config()
    config.seed, config.source, config.probe_steps = chosen["seed"], chosen["source"], chosen["probe"]
    config.text.train, config.text.source = (chosen["text"],), (chosen["source_text"],)
    config.text.validation = (chosen["validation"],) if chosen["validation"] else ()
    config.tokenizer.directory = chosen["tokenizer"]
    config.tokenizer.vocabulary_size = min(MOST_VOCABULARY, max(LEAST_VOCABULARY, below(size / BYTES_OF_TOKEN)))
    config.tokenizer.style = "gpt2" if of_model.causal else "roberta"
    config.tokenizer.algorithm = "wordpiece" if of_model.name == "bert" else "byte_bpe"
    vectors = {name: chosen[name] for name in ("source_vectors", "target_vectors") if chosen[name]}
    config.vectors.source, config.vectors.target = chosen["source_vectors"], chosen["target_vectors"]
    config.vectors.native, config.vectors.train_here = chosen["target_vectors"], not vectors
    both = method != AUTO and "dictionary" in METHODS[method].needs
    config.dictionary = chosen["dictionary"] or ("identical" if both else "")
    config.methods, config.variants = (method,), ConfigDict({method: {"method": method, **vectors}})
    for name in ("source_vectors", "target_vectors") if method != AUTO and vectors else ():
        if name in needs(config, method) and name not in vectors:
            raise UserError(
                f"--config: {name}= is missing beside {next(iter(vectors))}=, and {method} reads both; expected both, or "
                "neither to have them trained here"
            )

    training = config.training
    set_length(training, tokens, of_model.config(checkpoint.config).max_length)
    training.objective = "clm" if of_model.causal else "mlm"
    if recipe == AUTO:
        given = chosen["tokenizer"]
        vocabulary_size = len(load_tokenizer(given)) if given else config.tokenizer.vocabulary_size
        recipe = DEFAULT if muon_cost(checkpoint, training, vocabulary_size) <= MUON_COST else WITHOUT_MUON
    training.model.dropout = 0.0
    held_out = float(f"{min(MOST_HELD_OUT, HELD_OUT / size or UNKNOWN_HELD_OUT):.2g}")
    training.data.validation_fraction = 0.0 if chosen["validation"] else held_out
    training.data.max_bytes = LONGEST_TOKEN * tokens if size > LONGEST_TOKEN * tokens else 0
    if recipe == "wechsel":
        training.optimizer.peak_learning_rate, training.optimizer.clip_norm = PAPER[of_model.causal], None
        training.phases = one_phase(warmup=0.1)
    else:
        training.optimizer.peak_learning_rate = RATES[recipe] * WIDTH / checkpoint.hidden_size
        training.optimizer.groups = RECIPES[recipe]
        warmup = min(MOST_WARMUP, round(WARMUP * training.steps))
        training.phases = stable_phase(warmup, decay_fraction=DECAY)
        if of_model.causal and tokens <= SOFT_TOKENS:
            training.soft_targets.update({"share": SHARE, "steps": training.steps})
    return config


def muon_cost(checkpoint: Checkpoint, training: ConfigDict, vocabulary_size: int) -> float:
    """What Muon adds to the FLOPs of a step of this length, as a share of those without it."""
    of_model = family(checkpoint.config.get("model_type"))
    model = of_model.config({**checkpoint.config, "vocab_size": vocabulary_size})
    shapes = of_model.shapes(model)
    axes = assign(read_groups(RECIPES["muon"]), of_model, model, shapes).axes
    step = of_model.flops_per_token(model, training.block_length) * training.batch_size * training.block_length
    return orthogonal_flops(axes, shapes) / step


def set_length(training: ConfigDict, tokens: int, positions: int) -> None:
    """Sets what follows from the number of tokens alone: steps, batches, and what happens how often."""
    step = nearest(min(MOST_STEP, max(LEAST_STEP, STEP * tokens**STEP_EXPONENT)))
    training.block_length = min(positions, LONGEST, max(SHORTEST, step // ROWS))
    training.batch_size = below(step / training.block_length)
    training.accumulation = max(1, training.batch_size // below(PART / training.block_length))
    step = training.batch_size * training.block_length
    set_checkpoints(training, tokens)
    training.eval_every = round(training.steps / EVALUATIONS)
    training.eval_batches = math.ceil(min(MOST_EVALUATED, max(LEAST_EVALUATED, EVALUATED * tokens)) / step)


def set_checkpoints(training: ConfigDict, tokens: int) -> None:
    """Sets the steps for a batch of known size, and the checkpoints, of which the one where the decay begins is kept."""
    # Even, so that a half is whole.
    training.steps = 2 * math.ceil(tokens / (training.batch_size * training.block_length) / 2)
    training.checkpoint_every = round(training.steps / CHECKPOINTS)
    training.keep_every = training.steps - round(DECAY * training.steps)


def tokens_of(hours: float, run: str) -> int:
    """The tokens that an earlier run would train on in so many hours, at its mean speed with all that it did beside."""
    if hours <= 0:
        raise UserError(f"--config: hours={hours:g}: expected more than 0")
    record = read_run(Path(require_directory(run, "the run of one method")))
    used = compute(record)
    # The speed of one that still runs would be another when the same command is given again.
    if used is None or not record.tokens or record.unfinished:
        raise UserError(
            f"--config: {run}: holds no training on text that has ended, whose speed could count; expected the run of one "
            f"method{such_as(run)}"
        )
    return int(hours * 3600 * record.tokens / used.seconds)


def such_as(directory: str) -> str:
    """What a message adds where a comparison was named instead of one of its runs."""
    runs = sorted(Path(directory).glob("*/metrics.jsonl"))
    return f", such as {runs[0].parent}" if runs else ""


def longer(run: str, given: str, hours: float | None) -> ConfigDict:
    """The settings of a run that goes on from where the decay of another one began, to so many tokens or for so many hours."""
    recorded = read_json(require_directory(run, "the run of one method") / "config.json", "the settings of a run", "name a run")
    if not {"steps", "model", "optimizer"} <= recorded.keys():
        raise UserError(f"--config: longer={run}: holds no training; expected the run of one method{such_as(run)}")
    config = default_training()
    with config.unlocked(), config.ignore_type():
        config.update(recorded)
    steps, every = config.steps, config.keep_every
    # Where the decay begins, or the last checkpoint before that where the steps were given by hand.
    kept = (steps - round(DECAY * steps)) // every * every if every else 0
    if not kept:
        raise UserError(
            f"--config: longer={run}: has no checkpoint that stays before its decay (its keep_every is {every}), to go on "
            "from; expected a run with the keep_every of configs/adapt.py; train it anew"
        )
    step = config.batch_size * config.block_length
    if hours is None and not given:
        raise UserError(f"--config: longer={run}: for how long? expected tokens=, more than its {steps * step:,}, or hours=")
    tokens = read_tokens(given) if hours is None else kept * step + tokens_of(hours, run)
    set_checkpoints(config, tokens)
    if config.steps <= steps or tokens > MOST_TOKENS:
        named = f"tokens={given}" if hours is None else f"hours={hours:g}: with the {kept * step:,} before its decay {tokens:,}"
        raise UserError(f"--config: {named}: {run} trains on {steps * step:,}; expected more, up to {MOST_TOKENS:,}")
    config.fork = os.fspath(Path(run) / "checkpoints" / str(kept))
    return config


def read_tokens(given: str) -> int:
    """A number such as 300k, 2M or 1.5B."""
    match = re.fullmatch(r"(\d{1,18}(?:\.\d+)?)([kmb]?)", given, re.ASCII | re.IGNORECASE)
    tokens = round(float(match[1]) * {"": 1, "k": 1e3, "m": 1e6, "b": 1e9}[match[2].lower()]) if match else 0
    if not LEAST <= tokens <= MOST_TOKENS:
        raise UserError(
            f"--config: tokens={given}: expected a number of at least {LEAST:,} ({LEAST // LEAST_STEP} steps of "
            f"{LEAST_STEP:,}), such as 300k, 2M or 1B"
        )
    return tokens


def text_size(sources: Sequence[Source]) -> float:
    """Bytes of a text, about; of data sets, which are not looked into, very many."""
    if any(source.kind in ("saved", "hub") for source in sources):
        return math.inf
    packed = [source.kind == "parquet" or is_compressed(source.place) for source in sources]
    return max(1, sum(source.size * (COMPRESSION if one else 1) for source, one in zip(sources, packed, strict=True)))


def below(value: float) -> int:
    """The largest power of two that is no larger."""
    return 1 << 62 if value == math.inf else 1 << max(0, int(value).bit_length() - 1)


def nearest(value: float) -> int:
    """The power of two whose ratio to the value is nearest 1."""
    return 1 << round(math.log2(value))
