"""Labelled examples of a run: what its settings leave to the data, and the rows that it trains on."""

import copy
import dataclasses
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ml_collections import ConfigDict

from wechsel_jax.checkpoint import Checkpoint
from wechsel_jax.data.examples import Example, Task, find_labels, read_examples
from wechsel_jax.data.manifest import MANIFEST
from wechsel_jax.data.pairs import encode_pairs
from wechsel_jax.data.rows import encode_examples, padding_id
from wechsel_jax.errors import UserError
from wechsel_jax.evaluation.label_scores import has_entities, require_seqeval
from wechsel_jax.evaluation.translation import require_sacrebleu
from wechsel_jax.files.json import record_json
from wechsel_jax.models.heads import stated_head
from wechsel_jax.records.run import SIDES
from wechsel_jax.text.parallel import BESIDE
from wechsel_jax.text.sources import find_sources, identify
from wechsel_jax.training.run_data import Data
from wechsel_jax.training.run_spec import named_model


def examples_of(config: ConfigDict) -> dict[str, list[Example]]:
    """Reads the examples of a run, by side.

    Args:
      config: settings of the run, whose objective is none of language models.

    Raises:
      UserError: as `read_examples`.
    """
    texts, columns, skip = (tuple(config.task[name]) for name in ("texts", "columns", "skip"))
    task = Task(config.objective, texts, config.task.label, columns, skip)
    return {side: read_examples(config.data[side], task) for side in SIDES}


def open_labelled(config: ConfigDict, workdir: Path, say: Callable[[str], None]) -> tuple[ConfigDict, Data]:
    """Reads and encodes the examples of a run, all of them in memory.

    Args:
      config: settings of the run, whose objective is none of language models.
      workdir: of the run.
      say: shows one line to the user.

    Returns:
      The settings with the labels and, where `epochs` is set, the steps that follow from the data; and the data.

    Raises:
      UserError: a file or an example is not what it should be, the labels do not fit, or the model cannot have such a head.
    """
    if config.objective == "translation":
        return _open_pairs(config, workdir, say)
    examples = examples_of(config)
    config = copy.deepcopy(config)
    if len(config.task.labels) == 1:
        raise UserError(f"task.labels: has {config.task.labels[0]!r} alone; expected all labels of data.train, or none")
    if config.objective == "answers":
        config.task.labels = ()
    elif not config.task.labels:
        found = find_labels(examples["train"], config.objective)
        stated = stated_head(Checkpoint.open(config.model.checkpoint).config) if config.model.checkpoint else None
        known = stated is not None and stated[0] == config.objective and {*found} <= {*stated[1]}
        config.task.labels = stated[1] if known else found
    elif config.objective in ("parsing", "roles") and (
        new := {*find_labels(examples["train"], config.objective)} - {*config.task.labels}
    ):
        # Of other trees and predicates one that is not known is only missed.
        raise UserError(f"task.labels: lacks {min(new)!r}; expected all labels of data.train; add it, or set none")
    if len(config.task.labels) == 1:
        raise UserError(
            f"data.train: all examples of {', '.join(config.data.train)} have the label {config.task.labels[0]!r}; expected at "
            "least two labels; see task.label"
        )
    if config.objective == "roles" or (config.objective == "tagging" and has_entities(config.task.labels)):
        require_seqeval("objective")
    model = named_model(config)
    rows = {
        side: encode_examples(
            examples[side],
            model.tokenizer,
            form=config.objective,
            labels=tuple(config.task.labels),
            length=config.block_length,
            pad_id=padding_id(model.hf_config["pad_token_id"], model.tokenizer),
            segments=model.config.type_vocabulary_size > 1,
            stride=config.task.stride,
            directory=workdir / "data" / side,
        )
        for side in SIDES
    }
    return _with_steps(config, rows, say), Data(**rows)


def _open_pairs(config: ConfigDict, workdir: Path, say: Callable[[str], None]) -> tuple[ConfigDict, Data]:
    examples = examples_of(config)
    if config.task.bleu:
        require_sacrebleu("task.bleu", "task.tokenize", config.task.tokenize)
    model = named_model(config)
    rows = {
        side: encode_pairs(
            examples[side],
            model.tokenizer,
            model.target_tokenizer,
            length=config.block_length,
            directory=workdir / "data" / side,
        )
        for side in SIDES
    }
    return _with_steps(copy.deepcopy(config), rows, say), Data(**rows)


def _with_steps(config: ConfigDict, rows: dict[str, Any], say: Callable[[str], None]) -> ConfigDict:
    """Sets the steps that follow from `epochs` and how batches are drawn, and says what is cut."""
    for side, made in rows.items():
        if made.cut:
            share = f"{made.cut:,} of {len(made.examples):,} texts"
            say(f"data.{side}: {share} have more than {config.block_length} tokens and are cut")
    rows["train"] = dataclasses.replace(rows["train"], group_by_length=config.task.group_by_length)
    if config.epochs:
        config.steps = max(1, math.ceil(config.epochs * len(rows["train"]) / config.batch_size))
    return config


def record_labelled(config: ConfigDict, data: Data) -> None:
    """Writes what the rows were made of into their directories, as `prepare` does for text."""
    for side, rows in zip(SIDES, data, strict=True):
        manifest = {
            "inputs": identify(find_sources([file for name in config.data[side] for file in str(name).split(BESIDE)]), 1)[1],
            "documents": len(rows.examples),
            "tokens": int(rows.tokens.size),
            "sha256": rows.fingerprint,
        }
        record_json(rows.directory / MANIFEST, manifest)
