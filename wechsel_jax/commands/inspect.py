"""Shows what a model directory or a transfer holds, and how good a transfer is before any training.

  wechsel-jax inspect german-gpt2/ --text=german.txt
  wechsel-jax inspect german-gpt2/ --tokens=Ġfür,heit
  wechsel-jax inspect german-gpt2/transfer_plan.npz
  wechsel-jax inspect runs/german --before=german-gpt2/            # how far training has moved the embeddings
  wechsel-jax inspect --vectors=english.bin,german.bin --dictionary=english-german.tsv

A token is given as the tokenizer spells it, or as this command prints it ("Ġ" or "▁" for the start of a word).
The verdict at the end says in plain words what looks off.
"""

import json
import math
from pathlib import Path
from typing import Any

from absl import flags

from wechsel_jax.commands import picked
from wechsel_jax.errors import UserError
from wechsel_jax.records.names import RECORD_FILE
from wechsel_jax.records.run import exported_model

ARGUMENTS = "DIR"
# Flags that name what is to be inspected in place of a directory.
INSTEAD = ("plan", "vectors")


def define(values: flags.FlagValues) -> None:
    """Defines the flags."""
    flags.DEFINE_list("tokens", [], "Tokens to show the origin of, of a transferred model.", flag_values=values)
    flags.DEFINE_string("source", None, "The source model, where it has moved since the transfer.", flag_values=values)
    flags.DEFINE_boolean("all", False, "List every tensor.", flag_values=values)
    flags.DEFINE_string("text", None, "Text of the target language, for the perplexity before training.", flag_values=values)
    to = {"lower_bound": 0, "flag_values": values}
    limit = "How many tokens of --text to read."
    flags.DEFINE_integer("tokens_limit", 20_000, limit, upper_bound=1 << 40, **(to | {"lower_bound": 2}))
    flags.DEFINE_integer("samples", 10, "How many random tokens to show the origin of.", upper_bound=10**6, **to)
    flags.DEFINE_integer("seed", 0, "Of the random tokens and of masks.", upper_bound=2**32 - 1, **to)
    flags.DEFINE_string("plan", None, "A transfer_plan.npz, instead of the directory's or alone.", flag_values=values)
    flags.DEFINE_list("vectors", [], "Word vectors of source and target, to be scored before a transfer.", flag_values=values)
    flags.DEFINE_string("dictionary", None, 'Word pairs for --vectors, or "identical".', flag_values=values)
    before = "What the training of the model began with; the embeddings are compared with it."
    flags.DEFINE_string("before", None, before, flag_values=values)
    flags.DEFINE_boolean("json", False, "Print the score as one JSON object, and nothing else.", flag_values=values)


def run(values: flags.FlagValues, arguments: list[str]) -> None:
    """Prints the checkpoint, then the score with its verdict, then the tokens."""
    from wechsel_jax.report.score import lines, origin_line, verdict_lines

    directory = _directory(arguments[0]) if arguments else None
    facts = _facts(values, directory)
    if values.json:
        print(json.dumps(facts, ensure_ascii=False, allow_nan=False))
        return
    if directory is not None and (directory / "config.json").exists():
        _print_checkpoint(directory, values.all)
    print(*lines(facts), sep="\n")
    if directory is not None and (directory / RECORD_FILE).exists():
        _print_rules(directory)
    for token in facts.get("tokens") or ():
        print(origin_line(token))
    print(*verdict_lines(facts), sep="\n")


def _directory(argument: str) -> Path:
    """The place that was named: a directory, what a run exported, a plan's file, or a hub id, whose files are fetched."""
    from wechsel_jax.checkpoint import Checkpoint

    return Path(exported_model(argument)) if Path(argument).exists() else Checkpoint.open(argument).directory


def _facts(values: flags.FlagValues, directory: Path | None) -> dict[str, Any]:
    """The score of whatever was named."""
    from wechsel_jax.inspection import origins, score, score_vectors
    from wechsel_jax.inspection.drift import drift

    _refuse_without_effect(values, directory)
    if values.vectors:
        if len(values.vectors) != 2 or not values.dictionary or directory is not None:
            raise UserError(
                "--vectors: expected two files, of the source and of the target language, and --dictionary, and no directory"
            )
        return score_vectors(*values.vectors, values.dictionary, seed=values.seed, samples=values.samples)
    if directory is None and values.plan is None:
        raise UserError("expected a directory, --plan or --vectors; see wechsel-jax inspect --help")
    place = Path(values.plan) if directory is None else directory
    plan = values.plan if directory is not None else None
    found = score(place, plan=plan, **picked(values, "text", "source", "tokens_limit", "seed", "samples"))
    if values.before:
        if place.is_file():
            raise UserError("--before: expected a model directory to compare with it, not a plan")
        found["drift"] = drift(place, values.before, **picked(values, "source", "seed", "samples"))
    if values.tokens:
        # The tokens of a plan alone are those of the model that it lies beside.
        home, plan = (place.parent, place) if place.is_file() else (place, plan)
        found["tokens"] = origins(home, values.tokens, plan=plan, source=values.source)
    return found


def _refuse_without_effect(values: flags.FlagValues, directory: Path | None) -> None:
    reasons = {}
    if values.vectors:
        reasons |= dict.fromkeys(("tokens", "source", "text", "plan", "before"), "has no effect with --vectors")
    else:
        reasons["dictionary"] = "is for --vectors"
        if directory is None or directory.is_file():
            reasons |= dict.fromkeys(("samples", "seed"), "has no effect on a plan alone")
            if not values.tokens:
                reasons["source"] = "has no effect on a plan alone"
    if not values.text:
        reasons["tokens_limit"] = "is for --text"
    if directory is None or values.json:
        reasons["all"] = "lists the tensors of a directory, and none with --json"
    for name in (name for name in reasons if values[name].present):
        raise UserError(f"--{name}: {reasons[name]}; leave it out")


def _print_checkpoint(path: Path, every: bool) -> None:
    from wechsel_jax.checkpoint import Checkpoint
    from wechsel_jax.tokens import ROLES, Vocabulary, load_tokenizer

    checkpoint = Checkpoint.open(path)
    parameters = sum(math.prod(stored.shape) for stored in checkpoint.tensors.values())
    print(f"model: {checkpoint.architecture}, {len(checkpoint.tensors)} tensors, {parameters:,} elements")
    head = "tied head" if checkpoint.tied else "head not tied"
    print(f"vocabulary: {checkpoint.vocabulary_size:,} rows of {checkpoint.hidden_size}, {head}")
    shown = {tensor.name: tensor.role for tensor in checkpoint.vocabulary_tensors()}
    for name in checkpoint.names() if every else shown:
        stored = checkpoint.tensors[name]
        print(f"  {name}: {stored.code} {list(stored.shape)}{' (' + shown[name] + ')' if name in shown else ''}")
    vocabulary = Vocabulary.from_tokenizer(load_tokenizer(checkpoint.directory))
    print(f"tokenizer: {len(vocabulary):,} tokens, {vocabulary.kind}")
    for role in ROLES:
        token_id = vocabulary.id_with_role(role)
        if token_id is not None:
            print(f"  {role}: {token_id} {vocabulary.strings[token_id]}")


def _print_rules(directory: Path) -> None:
    from wechsel_jax.records import TransferRecord

    record = TransferRecord.read(directory)
    print("rules:")
    for sentence in [*record.behaviour, *record.notes]:
        print(f"  {sentence}")
