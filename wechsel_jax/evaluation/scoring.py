"""How likely a model finds texts: what follows a context, whole documents, and sentences token by token.

`loglikelihoods` and `rolling_loglikelihoods` encode, cut and score as `HFLM` of lm-eval (EleutherAI's harness) does, so that
the numbers can stand beside published ones. `pseudo_loglikelihoods` is what a masked model has in their place.
"""

import math
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from tqdm import tqdm

from wechsel_jax.errors import UserError, printable
from wechsel_jax.evaluation.loaded import LoadedModel
from wechsel_jax.evaluation.perplexity import one_behind
from wechsel_jax.models import Family, ModelConfig
from wechsel_jax.objectives.loss import token_nats
from wechsel_jax.tokens.encoding import around, encode

# A row is what a model reads, where it is asked, and which tokens it is asked for: (ids, positions, targets).
Row = tuple[np.ndarray, Sequence[int], Sequence[int]]

# Tokens of a batch, padding included: a CPU is busy with few, and attention then stays in its cache.
_TOKENS_ON_CPU, _TOKENS_ELSEWHERE = 2048, 32768


def loglikelihoods(
    model: LoadedModel, pairs: Sequence[tuple[str, str]], *, max_length: int = 0, places: Sequence[str] = ()
) -> tuple[np.ndarray, np.ndarray]:
    """What a causal model gives to continuations of contexts.

    Context and continuation are encoded together, after spaces at the end of the context have moved to the continuation. The
    special tokens that the tokenizer puts before a text are added, unless the text brings the first of them; those behind it
    are not, which say that it has ended. Before a continuation without context stands the beginning-of-text token, or where the
    tokenizer has none the end-of-text token. What is too long for the model loses tokens of the context; a continuation without
    one is read in windows, as by `rolling_loglikelihoods`. Pairs that differ in the last token only, as letters of
    multiple-choice questions, are read once.

    Args:
      model: a causal model.
      pairs: n contexts and continuations.
      max_length: tokens that the model reads at most; 0: as many as it can.
      places: where each pair comes from, for errors; may be left out.

    Returns:
      (log-likelihoods in nats, float64 (n,), sums over the tokens of each continuation; bool (n,), whether each of these tokens
      was the model's first guess).

    Raises:
      UserError: the model is not causal, or a continuation has no token of its own, or behind a context more than the model can
        read.
    """
    return encoded_loglikelihoods(
        model, encode_pairs(model, pairs, max_length=max_length, places=places), max_length=max_length
    )


def encoded_loglikelihoods(
    model: LoadedModel, encoded: Sequence[tuple[Sequence[int], Sequence[int]]], *, max_length: int = 0
) -> tuple[np.ndarray, np.ndarray]:
    """`loglikelihoods` of n pairs that `encode_pairs` has encoded."""
    size, windows, owners = _length(model, max_length), [], []
    for number, (context, ids) in enumerate(encoded):
        found = _windows([*context, *ids], size) if len(ids) > size else [(context, ids)]
        windows += found
        owners += [number] * len(found)
    sums, greedy = token_loglikelihoods(model, windows, max_length=size)
    owners = np.array(owners, int)
    # A window that was not the first guess makes its text none.
    return np.bincount(owners, sums, len(encoded)), np.bincount(owners, ~greedy, len(encoded)) == 0


def rolling_loglikelihoods(model: LoadedModel, texts: Sequence[str], *, max_length: int = 0) -> np.ndarray:
    """What a causal model gives to whole texts of any length, each token predicted once.

    As in lm-eval, a text is cut into windows that share one token, the last of which reaches back to be full.

    Args:
      model: a causal model.
      texts: n texts.
      max_length: tokens of a window; 0: as many as the model can read.

    Returns:
      log-likelihoods in nats, float64 (n,).

    Raises:
      UserError: the model is not causal.
    """
    size, prefix, encoded = _length(model, max_length), prefix_token(model), encode_texts(model, texts)
    windows, owners = [], []
    for number, text in enumerate(texts):
        found = _windows([prefix, *encoded[text]], size)
        windows += found
        owners += [number] * len(found)
    found, _ = token_loglikelihoods(model, windows, max_length=size)
    return np.bincount(np.array(owners, int), found, len(texts))


def pseudo_loglikelihoods(
    model: LoadedModel, pairs: Sequence[tuple[str, str]], *, within_word: bool = False, places: Sequence[str] = ()
) -> np.ndarray:
    """What a masked model gives to texts, each token masked alone and predicted from all others (Salazar et al., ACL 2020).

    Args:
      model: a masked model.
      pairs: n contexts, most often "", and continuations; only tokens of the continuation are predicted.
      within_word: mask also the tokens behind the predicted one that belong to its word, so that words of many tokens are not
        found likely just because they are words (Kauf and Ivanova, ACL 2023: "PLL-word-l2r").
      places: where each pair comes from, for errors; may be left out.

    Returns:
      sums of log-likelihoods in nats, float64 (n,); special tokens are neither masked nor counted.

    Raises:
      UserError: the model is causal, the tokenizer has no mask token, or a text has no token or more than the model can read.
    """
    mask = model.vocabulary.id_with_role("mask")
    if model.family.causal or mask is None:
        problem = "a causal model" if model.family.causal else "a model whose tokenizer has no mask token"
        raise UserError(f"{model.directory}: is {problem}; expected a masked language model to mask tokens of")
    # Each but once: in other batches equal rows would differ by rounding, and a tie be none.
    rows: dict[tuple[bytes, int, int], Row] = {}
    owners: list[int] = []
    of_owners: list[tuple[bytes, int, int]] = []
    encodings = model.backend.encode_batch([context + text for context, text in pairs])
    for number, ((context, text), encoding) in enumerate(zip(pairs, encodings, strict=True)):
        ids, words = np.array(encoding.ids, np.int32), encoding.word_ids
        asked = [
            place
            for place, (special, (_, end)) in enumerate(zip(encoding.special_tokens_mask, encoding.offsets, strict=True))
            if not special and end > len(context)
        ]
        _refuse_length(model, text, len(asked), len(ids), model.config.max_length, places[number : number + 1])
        for place in asked:
            hidden = [later for later in asked if later > place and words[later] == words[place]] if within_word else []
            masked = ids.copy()
            masked[[place, *hidden]] = mask
            key = (masked.tobytes(), place, int(ids[place]))
            rows[key] = (masked, [place], ids[[place]])
            owners.append(number)
            of_owners.append(key)
    nats = {key: float(found.sum()) for key, (found, _) in zip(rows, score_rows(model, [*rows.values()]), strict=True)}
    return -np.bincount(np.array(owners, int), [nats[key] for key in of_owners], len(pairs))


def prefix_token(model: LoadedModel) -> int:
    """The id that stands before a text without context: of the beginning of a text, or where there is none of its end.

    Raises:
      UserError: the tokenizer has neither.
    """
    for found in (model.tokenizer.bos_token_id, model.tokenizer.eos_token_id):
        if found is not None:
            return found
    raise UserError(f"{model.directory}: its tokenizer has no bos_token and no eos_token; expected one; name it in its files")


def encode_pairs(
    model: LoadedModel, pairs: Sequence[tuple[str, str]], *, max_length: int = 0, places: Sequence[str] = ()
) -> list[tuple[list[int], list[int]]]:
    """The ids of contexts and of their continuations, as `loglikelihoods` describes; none of them is empty."""
    longest, prefix = _length(model, max_length), prefix_token(model)
    moved = [(context.rstrip(), context[len(context.rstrip()) :] + text) for context, text in pairs]
    joint = encode_texts(model, [part for context, text in moved if context for part in (context, context + text)])
    alone = encode_texts(model, [text for context, text in moved if not context], special_tokens=False)
    encoded = []
    for context, text in moved:
        if context:
            before, whole = joint[context], joint[context + text]
            encoded.append((before, whole[len(before) :]))
        else:
            # Where the text brings the token itself, it is given, not predicted.
            ids = alone[text] if alone[text][:1] == [prefix] else [prefix, *alone[text]]
            encoded.append((ids[:1], ids[1:]))
    for number, ((context, text), (_, ids)) in enumerate(zip(pairs, encoded, strict=True)):
        _refuse_length(model, text, len(ids), len(ids) if context.strip() else 0, longest, places[number : number + 1])
    return encoded


def _windows(ids: Sequence[int], size: int) -> list[tuple[Sequence[int], Sequence[int]]]:
    """All ids but the first as continuations of at most `size` tokens each, behind as much context as they can have."""
    ends = [(start, min(start + size, len(ids))) for start in range(1, len(ids), size)]
    return [(ids[max(0, end - 1 - size) : start], ids[start:end]) for start, end in ends]


def token_loglikelihoods(
    model: LoadedModel, encoded: Sequence[tuple[Sequence[int], Sequence[int]]], *, max_length: int = 0
) -> tuple[np.ndarray, np.ndarray]:
    """`loglikelihoods` of ids: contexts and continuations, each of at least one token."""
    size = _length(model, max_length)
    rows: dict[tuple[int, ...], tuple[list[int], list[int]]] = {}
    places = []
    for context, continuation in encoded:
        ids = (*context, *continuation)[-(size + 1) :]
        positions, targets = rows.setdefault(ids[:-1], ([], []))
        places.append((ids[:-1], slice(len(targets), len(targets) + len(continuation))))
        positions += range(len(ids) - 1 - len(continuation), len(ids) - 1)
        targets += continuation
    scored = score_rows(model, [(np.array(ids, np.int32), *asked) for ids, asked in rows.items()])
    by_ids = dict(zip(rows, scored, strict=True))
    sums = [-float(by_ids[ids][0][part].sum(dtype=np.float64)) for ids, part in places]
    return np.array(sums), np.array([bool(by_ids[ids][1][part].all()) for ids, part in places])


def _length(model: LoadedModel, max_length: int) -> int:
    if not model.family.causal:
        raise UserError(f"{model.directory}: is a masked model; expected a causal one, which predicts what follows a text")
    if not 0 <= max_length <= model.config.max_length:
        raise UserError(f"max_length {max_length}: expected at most {model.config.max_length} tokens, which the model can read")
    return max_length or model.config.max_length


def _refuse_length(model: LoadedModel, text: str, asked: int, tokens: int, longest: int, place: Sequence[str]) -> None:
    shown = printable(text)
    shown = ": ".join([*place, f"the text {shown if len(shown) <= 60 else f'{shown[:57]}...'!r}"])
    if not asked:
        raise UserError(f"{shown}: has no token of its own; expected one that can be predicted; give more text")
    if tokens > longest:
        raise UserError(
            f"{shown}: has {tokens} tokens; expected at most the {longest} that {model.directory} can read; shorten it"
        )


def encode_texts(model: LoadedModel, texts: Sequence[str], special_tokens: bool = True) -> dict[str, list[int]]:
    """The ids of each text, with the tokenizer's special tokens unless the text brings the first; however often it comes.

    Those that the tokenizer puts behind a text are left out: they say that it has ended, and what is asked is how it goes on.
    """
    begins = model.tokenizer.decode(prefix_token(model))
    backend = model.backend
    found: dict[str, list[int]] = {}
    for plain in (False, True):
        # Most tokenizers would put a second token for the beginning before one that the text brings.
        group = [text for text in dict.fromkeys(texts) if text.startswith(begins) == plain]
        added = special_tokens and not plain
        behind = len(around(backend)[1]) if added and group else 0
        found |= {text: list(ids[: len(ids) - behind]) for text, ids in zip(group, encode(backend, group, added), strict=True)}
    return found


def score_rows(model: LoadedModel, rows: Sequence[Row]) -> list[tuple[np.ndarray, np.ndarray]]:
    """(nats float32, whether it was the first guess) of the targets of each row.

    The longest rows come first: memory that does not suffice shows at once. Lengths are rounded up to few sizes, of which each
    compiles one program.
    """
    sizes = [(_round_up(len(ids), 8), _round_up(len(targets), 4)) for ids, _, targets in rows]
    order = sorted(range(len(rows)), key=sizes.__getitem__)
    found: list[Any] = [None] * len(rows)
    budget = _TOKENS_ON_CPU if jax.default_backend() == "cpu" else _TOKENS_ELSEWHERE * model.rows
    # A short list should not be padded to a batch of a long one.
    most = _round_up(math.ceil(len(rows) / model.rows), 1)

    def batches() -> Iterator[tuple[list[int], Any]]:
        while order:
            length = min(sizes[order[-1]][0], model.config.max_length)
            height = min(max(1, budget // length // model.rows), most) * model.rows
            numbers = order[-height:]
            del order[-height:]
            width = max(sizes[number][1] for number in numbers)
            tokens, positions, targets = (np.zeros((height, size), np.int32) for size in (length, width, width))
            mask = np.zeros((height, length), bool)
            # A row that attends to nothing would be no number.
            mask[:, 0] = True
            for place, number in enumerate(numbers):
                ids, asked, wanted = rows[number]
                tokens[place, : len(ids)], mask[place, : len(ids)] = ids, True
                positions[place, : len(asked)], targets[place, : len(wanted)] = asked, wanted
            given = map(model.place, (tokens, mask, positions, targets))
            yield numbers, _nats_at(model.family, model.config, model.dtype, model.parameters, *given)

    with tqdm(total=len(rows), unit="row", disable=None, leave=False) as bar:
        for numbers, arrays in one_behind(batches()):
            for number, nats, right in zip(numbers, *arrays, strict=False):
                count = len(rows[number][2])
                found[number] = (nats[:count], right[:count])
            bar.update(len(numbers))
    if not all(np.isfinite(nats).all() for nats, _ in found):
        raise model.useless("the loss of a token is no finite number")
    return found


def _round_up(size: int, least: int) -> int:
    """The next of 8, 16, 24, 32, 40, 48, 56, 64, 80, 96, ... (least 8): at most a fifth of a long row is padding."""
    step = max(least, 1 << (size - 1).bit_length() >> 3)
    return math.ceil(size / step) * step


@partial(jax.jit, static_argnums=(0, 1, 2))
def _nats_at(
    of_model: Family,
    config: ModelConfig,
    dtype: str,
    parameters: dict[str, Any],
    tokens: jax.Array,
    mask: jax.Array,
    positions: jax.Array,
    targets: jax.Array,
) -> tuple[jax.Array, jax.Array]:
    """The head runs where it is asked only: with a large vocabulary it costs more than the model."""
    # What stands behind a text changes nothing before it in a causal model, whose attention is faster without a mask.
    hidden = of_model.hidden(parameters, config, tokens, None if of_model.causal else mask, dtype=jnp.dtype(dtype))
    hidden = jnp.take_along_axis(hidden, positions[..., None], axis=1)

    def score(head: dict, hidden: jax.Array) -> jax.Array:
        return of_model.logits(head, config, hidden, dtype=jnp.dtype(dtype))

    return token_nats(score, of_model.head(parameters), hidden, targets)
