"""Vocabulary surgery: a source checkpoint and a plan become the checkpoint of a model with another vocabulary."""

import dataclasses
import functools
import re
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from wechsel_jax.architectures import adapt_config
from wechsel_jax.checkpoint import Checkpoint, write_checkpoint
from wechsel_jax.initializers import Method, TransferPlan, draw_noise
from wechsel_jax.initializers.full_rand import redraw
from wechsel_jax.tensors import ComputedTensor, StoredTensor
from wechsel_jax.tokens import Vocabulary
from wechsel_jax.transfer_record import row_norms

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

HEAD_BIAS = ("transfer", "zeros")


@dataclasses.dataclass(frozen=True)
class Surgery:
    """What is done to a checkpoint.

    Attributes:
      checkpoint: the source model.
      plan: where the V_t rows of the new vocabulary come from.
      method: says how random rows are drawn, and whether all other parameters are drawn again.
      source_size: V_s, the rows of the source's vocabulary tensors that belong to tokens; what follows is padding.
      target: the V_t new tokens.
      seed: of every random number.
      parity: draw noise as PyPI wechsel 0.0.4 does.
      head_bias: "transfer" or "zeros".
      shift: by how many rows the position table moves, see `architectures.position_shift`.
      notes: gets a sentence for everything out of the ordinary.
    """

    checkpoint: Checkpoint
    plan: TransferPlan
    method: Method
    source_size: int
    target: Vocabulary
    seed: int = 0
    parity: bool = False
    head_bias: str = "transfer"
    shift: int = 0
    notes: list[str] = dataclasses.field(default_factory=list)


def write_target(surgery: Surgery, directory: Path, tokenizer: "PreTrainedTokenizerFast") -> dict[str, dict[str, float]]:
    """Writes config, tokenizer and tensors of the new model; computed tensors are made one at a time.

    Args:
      surgery: what to do to which model; its `notes` get a sentence for everything out of the ordinary.
      directory: an existing directory, usually one of `files.new_directory`.
      tokenizer: the target tokenizer.

    Returns:
      {"source", "target"}: mean and standard deviation of the lengths of the input table's rows.
    """
    checkpoint = surgery.checkpoint
    config, notes = adapt_config(checkpoint.config, surgery.target, surgery.shift)
    generation = checkpoint.generation_config
    if generation is not None:
        generation, more = adapt_config(generation, surgery.target)
        notes += [f"generation_config.json: {note}" for note in more]
    if not checkpoint.tied and config.get("tie_word_embeddings", True):
        notes.append("config.json tied the head to the input table, but the file held another head: it is untied now.")
        config["tie_word_embeddings"] = False
    if surgery.shift:
        notes.append(
            f"The pad token's id moved by {surgery.shift}, and the position table with it: every position keeps its row."
        )
    surgery.notes.extend(notes)
    norms = {"source": row_norms(checkpoint.read(checkpoint.table)[: surgery.source_size])}
    write_checkpoint(directory, config, _tensors(surgery, norms), tokenizer, generation)
    return norms


def _tensors(surgery: Surgery, norms: dict) -> dict[str, StoredTensor | ComputedTensor]:
    """Lists the tensors of the new model; each is computed when its turn to be written comes."""
    checkpoint, record = surgery.checkpoint, surgery.checkpoint.record
    roles = {tensor.name: tensor.role for tensor in checkpoint.vocabulary_tensors()}
    copies = checkpoint.tied_copies()
    tensors: dict[str, StoredTensor | ComputedTensor] = {}
    for name, stored in checkpoint.tensors.items():
        if name in roles:
            compute = functools.partial(_vocabulary_tensor, surgery, name, roles[name], norms)
            tensors[name] = ComputedTensor(stored.dtype, (len(surgery.plan), *stored.shape[1:]), compute)
        elif name in copies:
            surgery.notes.append(f"{name} repeated the tied input table and was left out.")
        elif surgery.shift and record.position_buffers and _matches(record.position_buffers, name):
            surgery.notes.append(
                f"{name} followed from the position table's size and was left out; transformers makes it anew."
            )
        else:
            tensors[name] = _inner_tensor(surgery, name, stored)
    return tensors


def _vocabulary_tensor(surgery: Surgery, name: str, role: str, norms: dict) -> np.ndarray:
    """Applies the plan to one tensor with a vocabulary axis."""
    stored, plan = surgery.checkpoint.tensors[name], surgery.plan
    if role == "bias" and surgery.head_bias == "zeros":
        return np.zeros(len(plan), stored.dtype)
    whole = stored.read()
    matrix = whole[: surgery.source_size]
    noise = None
    if plan.random.any():
        # By role and not by name: a bias that is stored twice, or a name without its prefix, gets the same noise.
        noise = draw_noise(
            whole if surgery.parity else matrix,
            len(plan),
            kind=surgery.method.noise,
            seed=surgery.seed,
            name=role,
            initializer_range=surgery.checkpoint.config.get("initializer_range", 0.02),
            parity=surgery.parity,
            where=plan.random,
        )
    result = plan.apply(matrix, noise)
    pad = surgery.target.id_with_role("pad")
    if role == "input" and surgery.method.redraw_inner and surgery.checkpoint.record.positions and pad is not None:
        # A model whose positions start behind the pad token has zeros in that token's row when it is new.
        result[pad] = 0
    if role == "input":
        norms["target"] = row_norms(result)
    return result


def _inner_tensor(surgery: Surgery, name: str, stored: StoredTensor) -> StoredTensor | ComputedTensor:
    """A tensor without a vocabulary axis: as it is, but for `full_rand` and a position table that moves."""
    record = surgery.checkpoint.record
    shape = stored.shape
    moves = bool(surgery.shift and _matches(record.positions, name))
    if moves:
        shape = (shape[0] + surgery.shift, *shape[1:])
    if surgery.method.redraw_inner:
        return ComputedTensor(stored.dtype, shape, functools.partial(_redrawn, surgery, name, stored, shape))
    if moves:
        return ComputedTensor(stored.dtype, shape, functools.partial(_shifted, stored, surgery.shift))
    return stored


def _redrawn(surgery: Surgery, name: str, stored: StoredTensor, shape: tuple[int, ...]) -> np.ndarray:
    config = surgery.checkpoint.config
    drawn = redraw(
        name,
        shape,
        stored.dtype,
        seed=surgery.seed,
        initializer_range=config.get("initializer_range", 0.02),
        layers=config.get("num_hidden_layers") or config.get("n_layer"),
        architecture=surgery.checkpoint.record.base,
        padding_row=surgery.target.id_with_role("pad"),
    )
    return stored.read() if drawn is None else drawn


def _shifted(stored: StoredTensor, shift: int) -> np.ndarray:
    """Moves the rows of a position table (P, d) by `shift`; the rows in front of the first position are never read."""
    table = stored.read()
    if shift < 0:
        return table[-shift:]
    return np.concatenate([np.zeros((shift, *table.shape[1:]), table.dtype), table])


def _matches(pattern: str, name: str) -> bool:
    return bool(pattern) and re.fullmatch(pattern, name) is not None
