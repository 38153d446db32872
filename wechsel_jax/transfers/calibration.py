"""Calibrates a model that a transfer just wrote: its average prediction becomes the tokens' frequencies in target text.

The offsets go where they change least: into the bias of the head, else into the rows of an untied head, else into the tied
table. There they change the model's inputs too, so hidden states are computed again and the offsets fitted again. What is kept
is what lowers the loss on text that nothing was fitted on.
"""

import dataclasses
import math
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from wechsel_jax.checkpoint import Checkpoint
from wechsel_jax.checkpoint.tensors import StoredTensor
from wechsel_jax.errors import UserError, naming
from wechsel_jax.records import work
from wechsel_jax.search.threads import one_thread
from wechsel_jax.text.files import LONGEST_DOCUMENT
from wechsel_jax.tokens import Vocabulary
from wechsel_jax.tokens.text import read_token_ids
from wechsel_jax.transfers.samples import Sample, split_text
from wechsel_jax.transfers.unigram import constant_direction, cross_entropy, fit_offsets

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

    from wechsel_jax.models import Family, ModelConfig

# Rows of text that the model reads at once, and rows of the table that are changed at once.
_BATCH, _ROWS_AT_ONCE = 8, 4096
# Of the direction, by whether the head is tied: a shorter one changes the inputs less (see `constant_direction`).
_RIDGE = {True: 1.0, False: 1e-3}
# Fits, since those of a tied head change the hidden states, and steps of each.
_ROUNDS = {True: 3, False: 1}
_STEPS = {True: 6, False: 12}
# Of the way from the old offsets to the fitted ones: the first that lowers the held-out loss by so many nats is kept.
_FRACTIONS = (1.0, 0.5, 0.25)
_GAIN = 1e-4


def require_family(checkpoint: Checkpoint, setting: str = "calibrate") -> "tuple[Family, ModelConfig]":
    """Returns the implementation of a model that has to be run, because of `setting`.

    Raises:
      UserError: there is none, or it does not read this checkpoint.
    """
    from wechsel_jax.models.registry import FAMILIES

    known = ", ".join(sorted(FAMILIES))
    if checkpoint.architecture not in FAMILIES:
        raise UserError(
            f"{setting}: no {checkpoint.architecture} model is implemented here, so it cannot be run; expected one of {known}; "
            f"leave {setting} out"
        )
    family = FAMILIES[checkpoint.architecture]
    with naming(f"{setting}: "):
        config = family.config(checkpoint.config, dropout=0.0)
        family.from_hugging_face(checkpoint.arrays(), config, lazy=True)
    return family, config


@dataclasses.dataclass(frozen=True)
class Score:
    """The head of a model as `unigram.fit_offsets` and `unigram.cross_entropy` call it."""

    family: "Family"
    config: "ModelConfig"

    def __call__(self, parameters: Any, hidden: jax.Array) -> jax.Array:
        return self.family.logits(parameters, self.config, hidden)


@one_thread()
def calibrate(
    directory: Path,
    tokenizer: "PreTrainedTokenizerFast",
    vocabulary: Vocabulary,
    text: tuple[str, ...],
    *,
    text_bytes: int = 0,
    text_field: str = "text",
    max_document_bytes: int = LONGEST_DOCUMENT,
    seed: int = 0,
    log: Callable[[str], None] = lambda line: None,
) -> dict:
    """Fits offsets to a model directory and changes its head in place, or leaves it as it is where that does not help.

    Args:
      directory: a model whose table has a row for each of the V tokens; nobody else reads it yet.
      tokenizer: of the model.
      vocabulary: its tokens.
      text: text files in the language of the tokenizer.
      text_bytes: how many bytes of them are read, evenly chosen; 0: all.
      text_field: which holds the text of JSON lines and tables.
      max_document_bytes: text with a longer line, row or document is refused.
      seed: of the masks.
      log: called with a line a round.

    Returns:
      What transfer.json holds: "form" ("bias", "head rows" or "tied rows"), "tokens" counted, "positions" and "held_out"
      positions, "loss" and "perplexity" before and after on held-out text, "divergence" of the average prediction from the
      frequencies before and after (nats), "rounds" (held-out losses), and the "offsets" kept (mean and deviation over the
      text, and the largest).

    Memory is that of the parameters in float32 and of three more copies of the table, of the text's ids, of the hidden states
    of 12,288 positions, and of a few blocks of logits (64 MiB each).

    Raises:
      UserError: the architecture cannot be calibrated, or there is too little text.
    """
    checkpoint = Checkpoint.open(directory)
    family, config = require_family(checkpoint)
    ids = read_token_ids(tokenizer, text, text_bytes, text_field, max_document_bytes)
    fitted, held_out, counts = split_text(ids, tokenizer, vocabulary, family.causal, config.max_length, seed, ", ".join(text))
    parameters = family.from_hugging_face(checkpoint.arrays(), config)
    model = _Model(family, config, parameters, _stored(checkpoint, config)[0].dtype)
    size = config.vocabulary_size
    wanted = np.zeros(size)
    wanted[: len(counts)] = counts / counts.sum()
    # Rows of padding have no token that reads them, and shall never be guessed.
    free = np.ones(size, bool)
    if model.form != "bias":
        free[: len(vocabulary)] = ~vocabulary.special | (counts > 0)
    found = _search(model, fitted, held_out, wanted, free, float(counts.sum()), log)
    if found["offsets"].any():
        module, name = model.table
        for stored in _stored(checkpoint, config):
            stored.overwrite(np.asarray(found["parameters"][module][name]))
    offsets = found["offsets"]
    mean = float(wanted @ offsets)
    return {
        "form": model.form,
        "tokens": int(counts.sum()),
        "positions": int(fitted.positions.size),
        "held_out": int(held_out.positions.size),
        "loss": found["loss"],
        "perplexity": [math.exp(value) if value < 700 else None for value in found["loss"]],
        "divergence": found["divergence"],
        "rounds": found["rounds"],
        "offsets": {
            "mean": mean,
            "std": math.sqrt(float(wanted @ (offsets - mean) ** 2)),
            "largest": float(np.abs(offsets).max()),
        },
    }


@dataclasses.dataclass(frozen=True)
class _Model:
    """A model, its parameters, and the type that its head is stored in."""

    family: "Family"
    config: "ModelConfig"
    parameters: dict
    dtype: np.dtype

    @property
    def form(self) -> str:
        if "bias" in self.parameters.get("head", {}):
            return "bias"
        return "tied rows" if self.config.tied else "head rows"

    @property
    def table(self) -> tuple[str, str]:
        """Where the parameter is that the offsets change."""
        return {"bias": ("head", "bias"), "head rows": ("head", "embedding")}.get(self.form, ("token_embedding", "embedding"))

    def changed(self, offsets: np.ndarray, direction: np.ndarray | None) -> dict:
        """The parameters with offsets (V,), as they can be stored."""
        module, name = self.table
        new = np.array(self.parameters[module][name], np.float32)
        # Rows without an offset keep their bits.
        for rows in np.array_split(np.flatnonzero(offsets), -(-len(offsets) // _ROWS_AT_ONCE)):
            change = offsets[rows] if direction is None else offsets[rows, None] * direction
            new[rows] = (new[rows] + change).astype(self.dtype)
        return {**self.parameters, module: {**self.parameters[module], name: new}}

    def hidden(self, parameters: dict, sample: Sample) -> np.ndarray:
        """Hidden states (R * M, d) where the sample predicts."""
        return hidden_states(self.family, self.config, parameters, sample.tokens, sample.positions)


def hidden_states(
    family: "Family", config: "ModelConfig", parameters: dict, tokens: np.ndarray, positions: np.ndarray
) -> np.ndarray:
    """Runs a model over int32 tokens (R, L); returns its hidden states (R * M, d) at positions (R, M)."""
    # A third of a training step's.
    work.flops(tokens.size * family.flops_per_token(config, tokens.shape[1], 0.0) / 3)
    on_device = jax.device_put(parameters)
    out = []
    for begin in range(0, len(tokens), _BATCH):
        rows = tokens[begin : begin + _BATCH]
        padded = np.pad(rows, ((0, _BATCH - len(rows)), (0, 0)), "edge")
        states = np.asarray(_hidden(family, config, on_device, padded))[: len(rows)]
        out.append(np.take_along_axis(states, positions[begin : begin + _BATCH][:, :, None], axis=1))
    return np.concatenate(out).reshape(-1, config.hidden_size)


@partial(jax.jit, static_argnums=(0, 1))
def _hidden(family: "Family", config: "ModelConfig", parameters: dict, tokens: jax.Array) -> jax.Array:
    return family.hidden(parameters, config, tokens)


def _search(
    model: _Model, fitted: Sample, held_out: Sample, wanted: np.ndarray, free: np.ndarray, tokens: float, log: Callable
) -> dict:
    """Fits offsets, a few times where they change the hidden states, and keeps what the held-out text agrees with."""
    score, size, tied = Score(model.family, model.config), len(wanted), model.form == "tied rows"
    head = jax.device_put(model.family.head(model.parameters))
    states, judged = model.hidden(model.parameters, fitted), model.hidden(model.parameters, held_out)
    direction = None if model.form == "bias" else constant_direction(states, _RIDGE[tied])

    def loss(parameters: dict) -> float:
        seen = model.hidden(parameters, held_out) if tied else judged
        return cross_entropy(score, jax.device_put(model.family.head(parameters)), seen, held_out.targets, size=size)

    def divergence(parameters: dict, states: np.ndarray) -> float:
        average = fit_offsets(score, jax.device_put(model.family.head(parameters)), states, wanted, steps=0).average
        known = wanted > 0
        return float(wanted[known] @ np.log(wanted[known] / np.maximum(average[known], 1e-30)))

    best, offsets, parameters = loss(model.parameters), np.zeros(size), model.parameters
    first, rounds = (best, divergence(parameters, states)), []
    for _ in range(_ROUNDS[tied]):
        slopes = None if direction is None else states @ direction
        fit = fit_offsets(
            score, head, states, wanted, slopes=slopes, start=offsets, free=free, tokens=tokens, steps=_STEPS[tied]
        ).offsets
        if tied:
            # All scores may move together: so that frequent tokens, which the inputs are made of, move least.
            fit = np.where(free, fit - wanted @ fit, 0.0)
        for fraction in _FRACTIONS:
            tried = offsets + fraction * (fit - offsets)
            changed = model.changed(tried, direction)
            rounds.append({"fraction": fraction, "loss": loss(changed)})
            log(f"  {fraction:.0%} of the offsets: held-out loss {rounds[-1]['loss']:.3f} ({best:.3f} before)")
            if rounds[-1]["loss"] < best - _GAIN:
                break
        else:
            break
        best, offsets, parameters = rounds[-1]["loss"], tried, changed
        states = model.hidden(parameters, fitted) if tied else states
    last = (best, divergence(parameters, states))
    pairs = {name: [first[i], last[i]] for i, name in enumerate(("loss", "divergence"))}
    return {**pairs, "offsets": offsets, "parameters": parameters, "rounds": rounds}


def _stored(checkpoint: Checkpoint, config: "ModelConfig") -> list[StoredTensor]:
    """The stored tensors that hold the offsets; a bias may be stored twice."""
    by_role: dict[str, list[StoredTensor]] = {}
    for tensor in checkpoint.vocabulary_tensors():
        by_role.setdefault(tensor.role, []).append(checkpoint.tensors[tensor.name])
    return by_role.get("bias") or by_role["input" if config.tied else "head"]
