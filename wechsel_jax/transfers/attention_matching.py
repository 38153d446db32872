"""Fits the input rows of new tokens to a source model that reads the language: it shall attend as with its own tokens.

Attention influence modelling (Haltiuk and Smywinski-Pohl, 2025, "Model-Aware Tokenizer Transfer"): both tokenizations of a text
are cut into the same segments, and what each segment adds to the attention's output behind each later one, value states times
attention probabilities, is matched by gradient steps on the input rows. A layer a third of the way up says enough, so only the
layers below it are run.
"""

import itertools
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from tokenizers import processors

from wechsel_jax.checkpoint import Checkpoint
from wechsel_jax.errors import UserError
from wechsel_jax.text.files import LONGEST_DOCUMENT
from wechsel_jax.tokens import Vocabulary
from wechsel_jax.tokens.encoding import around, plain_backend
from wechsel_jax.tokens.text import read_texts
from wechsel_jax.transfers.distillation import causal_family, from_vectors
from wechsel_jax.transfers.samples import held_apart

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

    from wechsel_jax.models import Family, ModelConfig

_LENGTH, _BATCH = 128, 16
# Of the root mean square of the source's rows, per step.
_RATE = 0.01
_MOST_HELD_OUT = 4 * _BATCH
# Of the layers: the authors find no more in those above.
_DEPTH = 1 / 3
# Text that is read for a token of the steps, at most; of what is more, parts from everywhere.
_BYTES = 8
# Characters of a document that are read as one, and documents that are encoded at once.
_PIECE, _GROUP = 1 << 14, 64


class Rows(NamedTuple):
    """Text in two tokenizations, cut into the same segments.

    Attributes:
      old: int32 (N, L), tokens of the source, zeros behind the end.
      new: int32 (N, L), tokens of the target, likewise.
      old_segment: int32 (N, L), the segment of each old token; -1: a special token, or none.
      new_segment: int32 (N, L), of each new one.
      old_last: int32 (N, L), by segment where its last old token stands; -1: there is no such segment.
      new_last: int32 (N, L), the same of new ones.
    """

    old: np.ndarray
    new: np.ndarray
    old_segment: np.ndarray
    new_segment: np.ndarray
    old_last: np.ndarray
    new_last: np.ndarray

    def take(self, places: np.ndarray) -> "Rows":
        """Those at `places`, int (n,)."""
        return Rows(*(field[places] for field in self))


class Tokens(NamedTuple):
    """Documents one behind the other: ids int32 (n,), and the stretch of text [start, stop) of each, int64 (n,)."""

    ids: np.ndarray
    start: np.ndarray
    stop: np.ndarray


def tokens_in_text(tokenizer: "PreTrainedTokenizerFast", documents: Iterable[str], end: int | None) -> Tokens:
    """Encodes documents; characters are counted on from one to the next, and one more stands for `end`, where there is one."""
    backend, base, parts = plain_backend(tokenizer), 0, []
    # A byte-level one may leave the space out of the stretch of the token that holds it.
    backend.post_processor = processors.TemplateProcessing(single="$A", pair="$A $B", special_tokens=[])
    documents = iter(documents)
    while group := list(itertools.islice(documents, _GROUP)):
        for document, encoding in zip(group, backend.encode_batch(group, add_special_tokens=False), strict=True):
            places = np.array(encoding.offsets, np.int64).reshape(-1, 2) + base
            base += len(document) + 1
            last = np.array([[base - 1, base]] if end is not None else [], np.int64).reshape(-1, 2)
            parts.append((np.array([*encoding.ids, *([end] * len(last))], np.int32), np.concatenate([places, last])))
    ids, places = (np.concatenate(part) for part in zip(*parts, strict=True))
    return Tokens(ids, *places.T)


def segments(old: Tokens, new: Tokens) -> tuple[np.ndarray, np.ndarray]:
    """Numbers the shortest stretches of text at whose ends both tokenizations have an end, in the order of the text.

    A tokenizer may leave characters out: what it has no token for belongs to the next stretch, at the end to the last one.

    Returns:
      int (n_old,) and int (n_new,), the stretch of each token. Each stretch has tokens of both.
    """
    start, stop = np.concatenate([old.start, new.start]), np.concatenate([old.stop, new.stop])
    order = np.argsort(start, kind="stable")
    reached = np.maximum.accumulate(stop[order])
    begins = np.concatenate([[True], start[order][1:] >= reached[:-1]])[: len(start)]
    number = np.empty(len(start), np.int64)
    number[order] = np.cumsum(begins) - 1
    of_old, of_new = number[: len(old.ids)], number[len(old.ids) :]
    both = np.zeros((2, begins.sum()), bool)
    both[0, of_old], both[1, of_new] = True, True
    matched = both.all(axis=0)
    kept = np.minimum(np.cumsum(matched) - matched, max(matched.sum() - 1, 0))
    return kept[of_old], kept[of_new]


def cut_rows(old: Tokens, new: Tokens, length: int, before: tuple[Sequence[int], Sequence[int]]) -> Rows:
    """Cuts a text into rows of whole segments, as many as fit.

    Args:
      old: of the source.
      new: of the target.
      length: L, tokens of a row in either tokenization.
      before: special tokens in front of each row, old and new ones.

    Returns:
      The rows; a segment that is longer than a row is left out.
    """
    of_old, of_new = segments(old, new)
    sides = ((old, of_old, before[0]), (new, of_new, before[1]))
    count = min(of_old.max(initial=-1), of_new.max(initial=-1)) + 1
    # Where the tokens of each segment begin, and where those of the last one end.
    edges = [np.searchsorted(number, np.arange(count + 1)) for _, number, _ in sides]
    room = [length - len(special) for _, _, special in sides]
    rows, first = [], 0
    while first < count:
        last = min(int(np.searchsorted(edge, edge[first] + most, "right")) - 1 for edge, most in zip(edges, room, strict=True))
        if last > first:
            rows.append((first, last))
        first = max(last, first + 1)
    fields = [np.full((len(rows), length), fill, np.int32) for fill in (0, 0, -1, -1, -1, -1)]
    for i, (first, last) in enumerate(rows):
        for side, (tokens, number, special) in enumerate(sides):
            part = slice(edges[side][first], edges[side][last])
            size = len(special) + len(tokens.ids[part])
            fields[side][i, :size] = [*special, *tokens.ids[part]]
            fields[2 + side][i, len(special) : size] = number[part] - first
            fields[4 + side][i, : last - first] = edges[side][first + 1 : last + 1] - edges[side][first] + len(special) - 1
    return Rows(*fields)


def match_attention(
    directory: Path,
    source: Checkpoint,
    tokenizers: tuple["PreTrainedTokenizerFast", "PreTrainedTokenizerFast"],
    vocabularies: tuple[Vocabulary, Vocabulary],
    moving: np.ndarray,
    text: tuple[str, ...],
    *,
    steps: int,
    text_bytes: int = 0,
    text_field: str = "text",
    max_document_bytes: int = LONGEST_DOCUMENT,
    seed: int = 0,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> dict[str, Any]:
    """Fits input rows of a model that a transfer just wrote, and changes its table in place where that helps.

    The source model reads a text with its own tokens, and once more with the new ones. For each head of layer N / 3 (rounded
    up), and for segments j <= i, the sum over the tokens of j of attention probability times value, behind the last token of
    i, is made alike by Adam: the mean squared difference over pairs, heads and features ("aim" with "mse" of the authors'
    code). A step reads 16 rows of 128 tokens at most, documents one behind the other. Only the rows of new tokens that the
    text shows move, from where the transfer put them. The rate is a hundredth of the root mean square of the source's rows:
    ours, where the authors have 1e-4 for their models. A tenth of the text is held out, and the rows are kept if it agrees.

    Output rows of their own stay as they are (the authors train them beside, by the next token); where the table is tied, rows
    move as output rows too, which the authors find enough.

    Args:
      directory: the written model; nobody else reads it yet.
      source: the source model, which reads the language and is causal.
      tokenizers: of the source and of the target.
      vocabularies: of the source, V_s tokens, and of the target, V_t.
      moving: bool (V_t,), the tokens whose rows may move.
      text: text of the target language.
      steps: how many; text that ends before them is read again, in another order.
      text_bytes: how many bytes of text are read, evenly chosen; 0: as many as the steps need.
      text_field: which field holds the text of JSON lines and tables.
      max_document_bytes: text with a longer line or row is refused.
      seed: of the order of the text.
      progress: called with (done, steps) after each.

    Returns:
      {"tokens": how many rows were fitted, "steps", "read": new tokens that the steps read, "layers", "flops" of the matrix
      products, about, "loss": before and after on held-out text, "kept"}.

    Raises:
      UserError: as `causal_family`, or there is too little text, or it shows no token that may move.
    """
    # With the models, in the extra `train`.
    import optax

    family, config = causal_family(source, "match_attention")
    layers, length = int(np.ceil(_DEPTH * config.layers)), min(_LENGTH, config.max_length)
    wanted = steps * _BATCH * length * _BYTES
    parts = read_texts(text, min(text_bytes or wanted, wanted), text_field, max_document_bytes)
    # A tokenizer's record of a text is many times as large.
    documents = [text[i : i + _PIECE] for part in parts for text in part for i in range(0, len(text), _PIECE)]
    both = [
        tokens_in_text(tokenizer, documents, vocabulary.id_with_role("eos"))
        for tokenizer, vocabulary in zip(tokenizers, vocabularies, strict=True)
    ]
    found = cut_rows(*both, length, tuple(around(plain_backend(tokenizer))[0] for tokenizer in tokenizers))
    if len(found.new) < 2:
        raise UserError(
            f"{', '.join(text)}: {len(found.new)} rows of {length} tokens; expected at least 2 to match attention on; give "
            "more target_text, or leave match_attention out"
        )
    generator = np.random.default_rng(seed)
    judged, fitted = held_apart(generator.permutation(len(found.new)), _MOST_HELD_OUT)
    shown = np.unique(found.new[fitted][found.new_segment[fitted] >= 0])
    tokens = shown[moving[shown]]
    if not len(tokens):
        raise UserError(
            f"{', '.join(text)}: shows no token whose row may move: all were copied; expected text of the target language; "
            "leave match_attention out"
        )
    written = Checkpoint.open(directory)
    stored = written.tensors[written.table]
    table = np.array(stored.read())
    parameters = family.from_hugging_face(source.arrays(), config)
    model = jax.device_put(parameters)
    # Which of the rows stands for a token; -1: that of the table.
    place, reached = np.full(len(table), -1, np.int32), np.zeros(len(table), bool)
    place[tokens] = np.arange(len(tokens))
    fixed = jnp.asarray(table, jnp.float32)
    rows = jnp.asarray(table[tokens], jnp.float32)
    old = np.asarray(parameters["token_embedding"]["embedding"], np.float64)
    optimizer = optax.adam(_RATE * float(np.sqrt(np.square(old).mean())))

    def batches(places: np.ndarray) -> list[Rows]:
        # The last one is filled up with the first rows.
        return [found.take(part) for part in np.resize(places, (-(-len(places) // _BATCH), _BATCH))]

    def loss(rows: jax.Array) -> float:
        return float(np.mean([_loss(rows, family, config, layers, model, fixed, place, batch) for batch in batches(judged)]))

    before, state = loss(rows), optimizer.init(rows)
    number = read = 0
    while number < steps:
        for batch in batches(generator.permutation(fitted))[: steps - number]:
            rows, state = _step(optimizer, family, config, layers, rows, state, model, fixed, place, batch)
            # Steps that are only queued are not done.
            jax.block_until_ready(rows)
            seen = batch.new[batch.new_segment >= 0]
            reached[seen] = True
            number, read = number + 1, read + len(seen)
            progress(number, steps)
    after = loss(rows)
    kept = after < before
    if kept:
        table[tokens] = np.asarray(rows).astype(table.dtype)
        stored.overwrite(table)
    few = config.override(layers=layers, windowed=config.windowed[:layers])
    # Of the student, of the teacher's forward pass, and of the products of `distance`, forward and backward.
    flops = family.flops_per_token(few, length, 0.0, frozen=True) + family.flops_per_token(few, length, 0.0) / 3
    flops += 18.0 * config.heads * length * (config.head_features + length)
    counts = {
        "tokens": int(reached[tokens].sum()),
        "steps": steps,
        "read": read,
        "layers": layers,
        "flops": steps * _BATCH * length * flops,
    }
    return {**counts, "loss": [before, after], "kept": kept}


def distance(
    rows: jax.Array,
    family: "Family",
    config: "ModelConfig",
    layers: int,
    model: Any,
    table: jax.Array,
    place: jax.Array,
    text: Rows,
) -> jax.Array:
    """How far what segments add behind later ones is from what they add in the source's own tokens.

    With a of a query, old and new, V the values, and M true where two tokens are of one segment, the sum over segments j of
    |sum over k of j of a_k v_k - a'_k v'_k|^2 is a (VV' o M) a - 2 a (VV'_new o M) a_new + a_new (V_new V_new' o M) a_new: no
    array has pairs of segments and features at once.

    Args:
      rows: (n, d), of the new tokens that move.
      family: of the model.
      config: of the model.
      layers: how many are run; the last one is looked at.
      model: its parameters, with V_s rows.
      table: (V_t, d), rows of the target that do not move.
      place: int32 (V_t,), which of the n rows a token has; -1: that of the table.
      text: B rows of text.

    Returns:
      The mean over pairs of segments, heads and features.
    """
    moves = place[text.new]
    vectors = jnp.where((moves >= 0)[..., None], rows[jnp.maximum(moves, 0)], table[text.new])
    old, old_values = jax.lax.stop_gradient(family.attended(model, config, text.old, layers))
    new, new_values = family.attended(*from_vectors(config, model, vectors), layers)
    there = text.old_last >= 0
    # What the last token of each segment attends to.
    old = jnp.take_along_axis(old, jnp.maximum(text.old_last, 0)[:, None, :, None], axis=2)
    new = jnp.take_along_axis(new, jnp.maximum(text.new_last, 0)[:, None, :, None], axis=2)

    def product(left, left_values, left_segment, right, right_values, right_segment):
        same = (left_segment[:, :, None] == right_segment[:, None, :]) & (left_segment >= 0)[:, :, None]
        gram = jnp.einsum("bhkc,bhlc->bhkl", left_values, right_values, precision="highest") * same[:, None]
        return jnp.einsum("bhik,bhkl,bhil->bhi", left, gram, right, precision="highest")

    olds, news = (old, old_values, text.old_segment), (new, new_values, text.new_segment)
    squares = (product(*olds, *olds) - 2 * product(*olds, *news) + product(*news, *news)) * there[:, None]
    count = there.sum(axis=1)
    # Nearly equal, they may differ by less than the sums round.
    return jnp.maximum(squares.sum(), 0.0) / ((count * (count + 1) // 2).sum() * config.heads * config.head_features)


_loss = jax.jit(distance, static_argnums=(1, 2, 3))


@partial(jax.jit, static_argnums=(0, 1, 2, 3))
def _step(optimizer, family, config, layers, rows, state, model, table, place, batch):
    gradient = jax.grad(distance)(rows, family, config, layers, model, table, place, batch)
    updates, state = optimizer.update(gradient, state)
    return rows + updates, state
