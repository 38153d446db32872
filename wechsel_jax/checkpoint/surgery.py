"""Vocabulary surgery: a source checkpoint and a plan become the checkpoint of a model with another vocabulary."""

import dataclasses
import functools
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from wechsel_jax.checkpoint import Checkpoint, VocabularyTensor, write_checkpoint
from wechsel_jax.checkpoint.architectures import padding_shift
from wechsel_jax.checkpoint.model_config import adapt_config
from wechsel_jax.checkpoint.tensors import ComputedTensor, StoredTensor, write_tensors
from wechsel_jax.errors import UserError
from wechsel_jax.initializers import Method, TransferPlan, draw_noise
from wechsel_jax.initializers.full_rand import redraw
from wechsel_jax.initializers.noise import moments
from wechsel_jax.initializers.ofa import factorised_apply
from wechsel_jax.initializers.transforms import Factors
from wechsel_jax.tokens import Vocabulary

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

# A larger table is made a few columns or random rows at a time, so that no float32 copy of it ever is in memory.
_BLOCK_BYTES = 1 << 27
_ROWS_AT_ONCE = 1024
# Kinds of noise whose rows depend on nothing that has to be computed from the whole source table first.
_BLOCKWISE_NOISE = ("initializer_range", "xavier")


@dataclasses.dataclass(frozen=True)
class Surgery:
    """What is done to a checkpoint.

    Attributes:
      checkpoint: the source model.
      plan: where the V_t rows of the new vocabulary come from.
      method: says how random rows are drawn, and whether all other parameters are drawn again.
      source: the V_s old tokens; rows of the source's vocabulary tensors behind them are padding.
      target: the V_t new tokens.
      seed: of every random number.
      parity: draw noise as PyPI wechsel 0.0.4 does.
      head_bias: "transfer" or "zeros".
      shift: by how many rows the position table moves, see `architectures.position_shift`.
      notes: gets a sentence for everything out of the ordinary.
      pad_to: the tables get rows up to the next multiple of it; 0: as many rows as tokens.
      noise: how random rows are drawn, in place of the method's way.
      transform: called as `transform(table (V_t, d), role)` on every finished table; returns one of the same shape.
      latent_dimension: the plan is applied to tables factorised to this rank (OFA); 0: to the tables themselves.
      factorised: the factors of every new table are written too, to `factors-NAME.safetensors`.
    """

    checkpoint: Checkpoint
    plan: TransferPlan
    method: Method
    source: Vocabulary
    target: Vocabulary
    seed: int = 0
    parity: bool = False
    head_bias: str = "transfer"
    shift: int = 0
    notes: list[str] = dataclasses.field(default_factory=list)
    pad_to: int = 0
    noise: str | None = None
    transform: Callable[[np.ndarray, str], np.ndarray] | None = None
    latent_dimension: int = 0
    factorised: bool = False

    @property
    def rows(self) -> int:
        """Rows of the new tables: V_t, or the next multiple of `pad_to`."""
        return -(-len(self.plan) // self.pad_to) * self.pad_to if self.pad_to else len(self.plan)

    @property
    def noise_kind(self) -> str:
        """How random rows are drawn, one of `initializers.NOISES`."""
        return self.noise or self.method.noise

    @property
    def initializer_range(self) -> float:
        """The standard deviation with which the source model was initialised, as its config.json says."""
        config = self.checkpoint.config
        parts = (config.get("text_config") or {}, config)
        # XGLM has its own name for it.
        stated = [part.get("initializer_range", part.get("init_std")) for part in parts]
        return next((value for value in stated if value is not None), 0.02)


def write_target(surgery: Surgery, directory: Path, tokenizer: "PreTrainedTokenizerFast") -> None:
    """Writes config, tokenizer and tensors of the new model; computed tensors are made one at a time.

    A source in shards becomes a target in the same shards.

    Args:
      surgery: what to do to which model; its `notes` get a sentence for everything out of the ordinary, before anything is
        computed.
      directory: an existing directory, usually one of `files.new_directory`.
      tokenizer: the target tokenizer.
    """
    config, generation = _configs(surgery)
    tensors = _tensors(surgery, directory)
    write_checkpoint(directory, config, tensors, tokenizer, generation, surgery.checkpoint.shards)


def _configs(surgery: Surgery) -> tuple[dict, dict | None]:
    """Makes the new config.json and generation_config.json, and says what is out of the ordinary."""
    checkpoint, record, notes = surgery.checkpoint, surgery.checkpoint.record, surgery.notes
    copies = np.flatnonzero(surgery.target.special & (surgery.plan.copy >= 0))
    copied = {int(token): int(surgery.plan.copy[token]) for token in copies}
    spelled = [token for token, source in copied.items() if surgery.target.strings[token] == surgery.source.strings[source]]
    config, more = adapt_config(checkpoint.config, surgery.target, surgery.shift, surgery.rows, copied, spelled)
    notes.extend(more)
    # Some config.json leave the size to the default of the class, which is no longer right.
    inner = config.get("text_config")
    own = inner if isinstance(inner, dict) else config
    own["vocab_size"] = surgery.rows
    if surgery.shift and "max_position_embeddings" not in own:
        table = next(stored for name, stored in checkpoint.tensors.items() if re.fullmatch(record.positions, name))
        own["max_position_embeddings"] = table.shape[0] + surgery.shift
    generation = checkpoint.generation_config
    if generation is not None:
        generation, more = adapt_config(generation, surgery.target, rows=surgery.rows, copied=copied, spelled=spelled)
        notes.extend(f"generation_config.json: {note}" for note in more)
    if record.detected:
        notes.append(
            f"No {checkpoint.architecture} model is known here: {checkpoint.table} was taken for the input table for its "
            "name and shape."
        )
    if not checkpoint.tied and checkpoint.tie_setting and record.tie_setting and not record.more_inputs:
        notes.append("config.json tied the head to the input table, but the file held another head: it is untied now.")
        config["tie_word_embeddings"] = False
    if surgery.shift:
        notes.append(
            f"The pad token's id moved by {surgery.shift}, and the position table with it: every position keeps its row."
        )
    elif moved := padding_shift(record, checkpoint.config, surgery.target):
        notes.append(
            f"The pad token's id moved by {moved}, and this model computes its positions from it: they are others now."
        )
    if surgery.rows > len(surgery.plan):
        notes.append(
            f"The tables have {surgery.rows - len(surgery.plan)} rows of padding after their {len(surgery.plan)} tokens."
        )
    return config, generation


def _tensors(surgery: Surgery, directory: Path) -> dict[str, StoredTensor | ComputedTensor]:
    """Lists the tensors of the new model; each is computed when its turn to be written comes."""
    checkpoint, record = surgery.checkpoint, surgery.checkpoint.record
    found = {tensor.name: tensor for tensor in checkpoint.vocabulary_tensors()}
    copies = checkpoint.tied_copies
    if surgery.head_bias == "zeros" and not any(tensor.role == "bias" for tensor in found.values()):
        surgery.notes.append("The model's head has no bias: --head_bias changes nothing.")
    if surgery.factorised and surgery.rows > len(surgery.plan):
        surgery.notes.append("The factors are of the tokens' rows, without the rows of padding.")
    tensors: dict[str, StoredTensor | ComputedTensor] = {}
    for name, stored in checkpoint.tensors.items():
        if name in found:
            tensor = found[name]
            shape = tensor.shape(stored.shape, surgery.rows)
            if surgery.factorised and tensor.role != "bias" and shape[-1] <= surgery.latent_dimension:
                surgery.notes.append(f"{name} has no more than {surgery.latent_dimension} dimensions: it has no factors.")
            compute = functools.partial(_vocabulary_tensor, surgery, tensor, directory)
            tensors[name] = ComputedTensor(stored.dtype, shape, compute)
        elif name in copies:
            surgery.notes.append(f"{name} repeated the tied input table and was left out.")
        elif surgery.shift and record.position_buffers and re.fullmatch(record.position_buffers, name):
            surgery.notes.append(
                f"{name} followed from the position table's size and was left out; transformers makes it anew."
            )
        else:
            tensors[name] = _inner_tensor(surgery, name, stored)
    return tensors


def _vocabulary_tensor(surgery: Surgery, tensor: VocabularyTensor, directory: Path) -> np.ndarray:
    """Applies the plan to one tensor with a vocabulary axis; the factors, where they are asked for, go to `directory`."""
    stored, size = surgery.checkpoint.tensors[tensor.name], len(surgery.plan)
    shape = tensor.shape(stored.shape, surgery.rows)
    if tensor.role == "bias" and surgery.head_bias == "zeros":
        return np.zeros(shape, stored.dtype)
    whole = tensor.rows(stored.read())
    out = np.empty((surgery.rows, *whole.shape[1:]), whole.dtype)
    result = out[:size]
    if tensor.role != "bias" and surgery.latent_dimension:
        factors = factorised_apply(
            surgery.plan.of_role(tensor.role),
            whole[: len(surgery.source)],
            surgery.latent_dimension,
            kind=surgery.noise_kind,
            seed=surgery.seed,
            name=tensor.role,
            initializer_range=surgery.initializer_range,
            parity=surgery.parity,
        )
        result[:] = factors.dense(out.dtype)
        if surgery.factorised and factors.projection is not None:
            write_factors(directory / f"factors-{tensor.name}.safetensors", factors)
    else:
        _apply(surgery, tensor.role, whole, result)
    if tensor.role != "bias" and surgery.transform is not None:
        result[:] = surgery.transform(result, tensor.role)
    pad = surgery.target.id_with_role("pad")
    if tensor.role == "input" and surgery.method.redraw_inner and pad is not None and surgery.checkpoint.architecture != "gpt2":
        # As in new models of transformers; GPT-2 knows no pad token.
        result[pad] = 0
    if surgery.rows > size:
        # Zeros would give padding a logit of 0, which can be the highest. The mean row's logit is the mean one, and the lowest
        # bias keeps padding below the tokens.
        out[size:] = result.min() if tensor.role == "bias" else moments(result)[0].astype(out.dtype)
    return out.reshape(shape)


def _apply(surgery: Surgery, role: str, whole: np.ndarray, out: np.ndarray) -> None:
    """Writes the V_t rows that the plan makes of a tensor `whole`, (V_s and padding, ...), to `out` (V_t, ...)."""
    plan, matrix = surgery.plan.of_role(role), whole[: len(surgery.source)]
    # By role and not by name: a bias that is stored twice, or a name without its prefix, gets the same noise.
    draw = functools.partial(
        draw_noise,
        whole if surgery.parity else matrix,
        len(plan),
        kind=surgery.noise_kind,
        seed=surgery.seed,
        name=role,
        initializer_range=surgery.initializer_range,
        parity=surgery.parity,
        parity_seed=surgery.method.reference_seed,
    )
    wide = np.dtype(np.float32).itemsize * max(matrix.size, out.size)
    if role == "bias" or wide <= _BLOCK_BYTES:
        out[:] = plan.apply(matrix, draw(where=plan.random) if plan.random.any() else None)
        return
    columns = max(out.shape[1] * _BLOCK_BYTES // wide, 1)
    for begin in range(0, out.shape[1], columns):
        part = np.s_[:, begin : begin + columns]
        # The random rows come last; zeros that take no memory stand for them.
        out[part] = plan.apply(matrix[part], np.broadcast_to(np.zeros((), out.dtype), out[part].shape))
    blocks = -(-wide // _BLOCK_BYTES) if surgery.noise_kind in _BLOCKWISE_NOISE and not surgery.parity else 1
    for ids in np.array_split(np.flatnonzero(plan.random), blocks):
        if len(ids):
            noise = draw(where=np.isin(np.arange(len(plan)), ids))
            for few in np.array_split(ids, -(-len(ids) // _ROWS_AT_ONCE)):
                out[few] = noise[few].astype(out.dtype)


def _inner_tensor(surgery: Surgery, name: str, stored: StoredTensor) -> StoredTensor | ComputedTensor:
    """A tensor without a vocabulary axis: as it is, but for `full_rand` and a position table that moves."""
    record = surgery.checkpoint.record
    shape = stored.shape
    moves = bool(surgery.shift and record.positions and re.fullmatch(record.positions, name))
    if moves:
        shape = (shape[0] + surgery.shift, *shape[1:])
    if surgery.method.redraw_inner:
        return ComputedTensor(stored.dtype, shape, functools.partial(_redrawn, surgery, name, stored, shape))
    if moves:
        return ComputedTensor(stored.dtype, shape, functools.partial(_shifted, stored, surgery.shift))
    return stored


def _redrawn(surgery: Surgery, name: str, stored: StoredTensor, shape: tuple[int, ...]) -> np.ndarray:
    checkpoint = surgery.checkpoint
    layers = checkpoint.config.get("num_hidden_layers") or checkpoint.config.get("n_layer")
    if layers is None and checkpoint.record.base == "gpt2":
        place = checkpoint.directory / "config.json"
        raise UserError(f"{place}: has neither num_hidden_layers nor n_layer; expected the number of layers to draw weights by")
    drawn = redraw(
        name,
        shape,
        stored.dtype,
        seed=surgery.seed,
        initializer_range=surgery.initializer_range,
        layers=layers,
        architecture=checkpoint.record.base,
        padding_row=surgery.target.id_with_role("pad"),
    )
    return stored.read() if drawn is None else drawn


def _shifted(stored: StoredTensor, shift: int) -> np.ndarray:
    """Moves the rows of a position table (P, d) by `shift`; the rows in front of the first position are never read."""
    table = stored.read()
    if shift < 0:
        return table[-shift:]
    return np.concatenate([np.zeros((shift, *table.shape[1:]), table.dtype), table])


def write_factors(path: str | os.PathLike, factors: Factors) -> None:
    """Writes a factorised table as safetensors: float32 `coordinates` (V, D') and `projection` (D', d).

    `path` is written in place; a temporary name is the caller's.
    """
    if factors.projection is None:
        raise ValueError("the table is not factorised")
    write_tensors(path, {"coordinates": factors.coordinates.astype(np.float32), "projection": factors.projection})
