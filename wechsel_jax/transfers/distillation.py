"""Fits the input rows of new tokens to a source model that reads the language: after a new token it shall know what it knew.

Token Distillation (Dobler, Elliott and de Melo, 2025): where the source model has read the several tokens of a phrase, it has
put them together in its layers, which no mean of their rows does. The row of the one new token that stands for the phrase is
moved by gradient steps until the model's last hidden states behind it are what they are behind the old tokens.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from wechsel_jax.checkpoint import Checkpoint
from wechsel_jax.errors import UserError
from wechsel_jax.text.files import LONGEST_DOCUMENT
from wechsel_jax.tokens import Vocabulary
from wechsel_jax.tokens.text import BOUNDARY, read_token_ids
from wechsel_jax.transfers.calibration import require_family
from wechsel_jax.transfers.samples import held_apart

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

    from wechsel_jax.models import Family, ModelConfig

# Old tokens of a snippet, as in the paper.
_LENGTH = 50
_BATCH = 32
# Of the root mean square of the source's rows, per step.
_RATE = 0.01
_MOST_HELD_OUT = 8 * _BATCH


class Snippets(NamedTuple):
    """Text in which a phrase of old tokens stands that one new token writes.

    Attributes:
      tokens: int32 (N, L), old tokens; zeros behind the end.
      length: int32 (N,), of the text.
      start: int32 (N,), where the phrase begins.
      size: int32 (N,), its old tokens.
      token: int32 (N,), the new token.
    """

    tokens: np.ndarray
    length: np.ndarray
    start: np.ndarray
    size: np.ndarray
    token: np.ndarray

    def take(self, places: np.ndarray) -> "Snippets":
        """Those at `places`, int (n,)."""
        return Snippets(*(field[places] for field in self))


def causal_family(source: Checkpoint, setting: str) -> "tuple[Family, ModelConfig]":
    """Returns the implementation of the source model, which is run because of `setting`.

    Raises:
      UserError: there is none, it does not read this checkpoint, or is of models that do not predict the next token.
    """
    family, config = require_family(source, setting)
    if not family.causal:
        raise UserError(f"{setting}: a {source.architecture} model does not predict the next token; expected one that does")
    return family, config


def find_snippets(
    ids: np.ndarray, phrases: Mapping[int, np.ndarray], most: int, length: int = _LENGTH, begin: int | None = None
) -> Snippets:
    """Finds the phrases in a text, each at most `most` times, evenly chosen.

    Args:
      ids: int32 (n,), old tokens; `BOUNDARY` follows each document.
      phrases: new token -> the old tokens that stand for it, two at least.
      most: snippets of a phrase.
      length: L without `begin`, old tokens of a snippet, with the phrase in the middle where the document goes on.
      begin: a token to put in front of each.

    Returns:
      The snippets, by new token and place.
    """
    hits: list[np.ndarray] = []
    by_size: dict[int, list[int]] = {}
    for token, phrase in phrases.items():
        if 1 < len(phrase) < length:
            by_size.setdefault(len(phrase), []).append(token)
    for size, tokens in by_size.items():
        if size > len(ids):
            continue
        patterns = np.stack([phrases[token] for token in tokens])
        # Equal sums of powers are looked at one by one: products that run over are no harm.
        powers = np.cumprod(np.full(size, 0x9E3779B97F4A7C15, np.uint64))
        sums = patterns.astype(np.uint64) @ powers
        order = np.argsort(sums, kind="stable")
        windows = np.lib.stride_tricks.sliding_window_view(ids, size)
        found = np.zeros(len(windows), np.uint64)
        for place, power in enumerate(powers):
            found += ids[place : place + len(windows)].astype(np.uint64) * power
        low, high = (np.searchsorted(sums[order], found, side) for side in ("left", "right"))
        for shift in range(int((high - low).max(initial=0))):
            where = np.flatnonzero(low + shift < high)
            which = order[low[where] + shift]
            same = (windows[where] == patterns[which]).all(axis=1)
            hits.append(np.column_stack([np.array(tokens)[which[same]], where[same], np.full(same.sum(), size)]))
    found = np.concatenate(hits) if hits else np.zeros((0, 3), np.int64)
    found = found[np.lexsort((found[:, 1], found[:, 0]))]
    _, first, count = np.unique(found[:, 0], return_index=True, return_counts=True)
    rank, count = np.arange(len(found)) - np.repeat(first, count), np.repeat(count, count)
    kept = np.minimum(count, most)
    token, place, size = found[(rank + 1) * kept // count > rank * kept // count].T
    ends = np.flatnonzero(ids == BOUNDARY)
    document = np.searchsorted(ends, place)
    opening = np.concatenate([[0], ends + 1])[document]
    closing = np.concatenate([ends, [len(ids)]])[document]
    left = np.maximum(opening, np.minimum(place - (length - size) // 2, closing - length))
    right = np.minimum(left + length, closing)
    columns = left[:, None] + np.arange(length)
    tokens = np.where(columns < right[:, None], ids[np.minimum(columns, len(ids) - 1)], 0)
    more = 0 if begin is None else 1
    if more:
        tokens = np.insert(tokens, 0, begin, axis=1)
    numbers = (right - left + more, place - left + more, size, token)
    return Snippets(tokens.astype(np.int32), *(values.astype(np.int32) for values in numbers))


def distill(
    directory: Path,
    source: Checkpoint,
    tokenizer: "PreTrainedTokenizerFast",
    vocabulary: Vocabulary,
    phrases: Sequence[np.ndarray],
    text: tuple[str, ...],
    *,
    snippets: int,
    text_bytes: int = 0,
    text_field: str = "text",
    max_document_bytes: int = LONGEST_DOCUMENT,
    seed: int = 0,
    log: Callable[[str], None] = lambda line: None,
) -> dict[str, Any]:
    """Fits input rows of a model that a transfer just wrote, and changes its table in place where that helps.

    For each new token, snippets of 50 old tokens are taken in which the old tokens of its text stand. The source model reads
    each as it is, and once more with the new token in their place; the mean squared difference of its last hidden states, from
    the phrase's last token on, is made small by Adam, one pass over the snippets, 32 of them a step. Only the rows of the new
    tokens move, from where the transfer put them. The rate is a hundredth of the root mean square of the source's rows: ours,
    where the paper has 1e-4 for its models. A tenth of the snippets is held out, and the rows are kept if it agrees.

    Output rows of their own stay as they are. Where the table is tied, rows move as output rows too, of which the hidden states
    say nothing (the paper's are of input rows alone).

    Args:
      directory: the written model; nobody else reads it yet.
      source: the source model, which reads the language and is causal.
      tokenizer: of the source.
      vocabulary: its V_s tokens.
      phrases: V_t arrays of source ids, what the source tokenizer makes of each new token's text; those of fewer than two are
        left out.
      text: text of the target language.
      snippets: at most so many of a token.
      text_bytes: how many bytes of text are read, evenly chosen; 0: all.
      text_field: which field holds the text of JSON lines and tables.
      max_document_bytes: text with a longer line or row is refused.
      seed: of the order of the snippets.
      log: called with a line now and then.

    Returns:
      {"tokens": how many were fitted, "snippets", "held_out", "flops" of the steps' matrix products, "loss": before and after
      on held-out snippets, "kept"}.

    Raises:
      UserError: as `causal_family`, there is no phrase, or hardly one occurs in the text.
    """
    # With the models, in the extra `train`.
    import optax

    family, config = causal_family(source, "distill")
    length = min(_LENGTH, config.max_length - 1)
    wanted = {token: np.asarray(phrase, np.int32) for token, phrase in enumerate(phrases) if len(phrase) > 1}
    if not wanted:
        raise UserError(
            "distill: the source writes each new token with one of its own; expected some with several; leave distill out"
        )
    ids = read_token_ids(tokenizer, text, text_bytes, text_field, max_document_bytes)
    found = find_snippets(ids, wanted, snippets, length, vocabulary.id_with_role("bos"))
    if len(found.token) < 2:
        raise UserError(
            f"{', '.join(text)}: hardly any of the {len(wanted)} tokens that the source writes with several of its own stands "
            "in it; expected text of the target language; give more of it"
        )
    tokens, index = np.unique(found.token, return_inverse=True)
    found = found._replace(token=index.astype(np.int32))
    parts = held_apart(np.random.default_rng(seed).permutation(len(index)), _MOST_HELD_OUT)
    written = Checkpoint.open(directory)
    stored = written.tensors[written.table]
    table = np.array(stored.read())
    parameters = family.from_hugging_face(source.arrays(), config)
    old = np.asarray(parameters["token_embedding"]["embedding"], np.float32)
    model = jax.device_put(parameters)
    start = jnp.asarray(table[tokens], jnp.float32)
    judged, batches = (
        # The last one is filled up with the first snippets.
        [found.take(places) for places in np.resize(part, (-(-len(part) // _BATCH), _BATCH))]
        for part in parts
    )
    optimizer = optax.adam(_RATE * float(np.sqrt(np.square(old, dtype=np.float64).mean())))

    def loss(rows: jax.Array) -> float:
        return float(np.mean([_loss(rows, family, config, model, *batch) for batch in judged]))

    rows, state, before = start, optimizer.init(start), loss(start)
    for number, batch in enumerate(batches, 1):
        rows, state, value = _step(optimizer, family, config, rows, state, model, *batch)
        if number % 50 == 0 or number == len(batches):
            log(f"  step {number} of {len(batches)}: loss {float(value):.4f}")
    after = loss(rows)
    kept = after < before
    if kept:
        table[tokens] = np.asarray(rows).astype(table.dtype)
        stored.overwrite(table)
    # Of the source's forward pass and of that with the new tokens, whose gradients are of rows alone.
    each = family.flops_per_token(config, found.tokens.shape[1], 0.0) / 3
    each += family.flops_per_token(config, found.tokens.shape[1], 0.0, frozen=True)
    counts = {
        "tokens": len(np.unique(found.token[parts[1]])),
        "snippets": len(parts[1]),
        "held_out": len(parts[0]),
        "flops": len(batches) * _BATCH * found.tokens.shape[1] * each,
    }
    return {**counts, "loss": [before, after], "kept": kept}


@partial(jax.jit, static_argnums=(0, 1, 2))
def _step(optimizer, family, config, rows, state, model, *batch):
    value, gradient = jax.value_and_grad(distance)(rows, family, config, model, *batch)
    updates, state = optimizer.update(gradient, state)
    return rows + updates, state, value


def distance(
    rows: jax.Array,
    family: "Family",
    config: "ModelConfig",
    model: Any,
    tokens: jax.Array,
    length: jax.Array,
    start: jax.Array,
    size: jax.Array,
    token: jax.Array,
) -> jax.Array:
    """How far the hidden states behind new tokens are from those behind the old ones: the mean over positions and dimensions.

    Args:
      rows: (n, d), of the new tokens.
      family: of the model.
      config: of the model.
      model: its parameters, with V_s rows.
      tokens: int32 (B, L), see `Snippets`, as the next three are.
      length: int32 (B,).
      start: int32 (B,).
      size: int32 (B,).
      token: int32 (B,), which of the n rows stands for the phrase.
    """
    places = jnp.arange(tokens.shape[1])
    behind = places >= start[:, None]
    # What stands where in the shorter text.
    old = jnp.minimum(jnp.where(behind, places + size[:, None] - 1, places), tokens.shape[1] - 1)
    table = model["token_embedding"]["embedding"]
    inputs = table[jnp.take_along_axis(tokens, old, axis=1)]
    inputs = jnp.where((places == start[:, None])[..., None], rows[token][:, None], inputs)
    teacher, student = (family.hidden(*from_vectors(config, model, vectors)) for vectors in (table[tokens], inputs))
    wanted = jnp.take_along_axis(jax.lax.stop_gradient(teacher), old[..., None], axis=1)
    counted = behind & (places + size[:, None] - 1 < length[:, None])
    return (jnp.square(student - wanted).mean(axis=-1) * counted).sum() / counted.sum()


_loss = jax.jit(distance, static_argnums=(1, 2))


def from_vectors(config: "ModelConfig", model: Any, vectors: jax.Array) -> "tuple[Any, ModelConfig, jax.Array]":
    """A model that reads rows `vectors` (B, L, d), each a token of its own: its parameters, its configuration, its tokens."""
    rows, length, dimension = vectors.shape
    own = {**model, "token_embedding": {"embedding": vectors.reshape(rows * length, dimension)}}
    return own, config.override(vocabulary_size=rows * length), jnp.arange(rows * length).reshape(rows, length)
