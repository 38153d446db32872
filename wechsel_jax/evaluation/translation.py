"""What an encoder-decoder writes: greedily or by beam search, each token read once; and its BLEU."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from wechsel_jax.data.padded import fitting_length
from wechsel_jax.data.pairs import TranslationRows, ends
from wechsel_jax.data.rows import padding_id
from wechsel_jax.errors import UserError, from_extra, one_line
from wechsel_jax.evaluation.loaded import LoadedModel
from wechsel_jax.models import ModelConfig
from wechsel_jax.models.cache import Cache
from wechsel_jax.models.layers import pin
from wechsel_jax.models.vanilla import TransformerFamily, decoder_config
from wechsel_jax.objectives.translation import TranslationObjective

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

# As in transformers: what is not to be chosen lies below everything, and stays a number.
_NEVER = -1.0e9


class Translated(NamedTuple):
    """A translation.

    Attributes:
      text: without special tokens.
      tokens: ids, up to the one that ended it.
      score: log-probability of the tokens; of a beam search divided by their number to the power of the length penalty.
    """

    text: str
    tokens: tuple[int, ...]
    score: float


def translate(
    model: LoadedModel,
    sentences: Sequence[str],
    *,
    beams: int = 1,
    length_penalty: float = 1.0,
    max_tokens: int = 128,
    batch_size: int = 64,
) -> list[Translated]:
    """Translates sentences.

    Args:
      model: of `LoadedModel.open(directory, translation=True)`.
      sentences: in the language of the sources; what is longer than the model reads is cut.
      beams: K, translations that are kept at each step; 1: always the likeliest token. The search is that of transformers, with
        early_stopping=False: candidates are compared by log-probability / length^penalty.
      length_penalty: above 0 favours long translations.
      max_tokens: of a translation; the model's positions if that is fewer.
      batch_size: sentences at once; rounded up to a multiple of the model's devices.

    Returns:
      One translation a sentence, in their order.

    Raises:
      UserError: it is no encoder-decoder, its weights give no numbers, a sentence is empty, or a number is impossible.
    """
    if model.target_tokenizer is None:
        raise UserError(f"{model.directory}: does not translate; expected an encoder-decoder, see docs/translation.md")
    if beams < 1 or max_tokens < 1 or batch_size < 1:
        raise UserError(f"beams {beams}, max_tokens {max_tokens}, batch_size {batch_size}: expected at least 1")
    steps, special = min(max_tokens, model.config.max_length), ends(model.target_tokenizer)
    found: dict[int, Translated] = {}
    for chosen, tokens, mask in sentence_batches(model, sentences, batch_size):
        given = (model.parameters, model.place(tokens), model.place(mask), np.float32(length_penalty))
        written, scores = jax.device_get(search(model.family, model.config, model.dtype, beams, steps, special, *given))
        if np.isnan(scores[: len(chosen)]).any():
            raise model.useless("the score of a token is no number")
        texts = _texts(written[: len(chosen)], special[1], model.target_tokenizer)
        found |= {i: Translated(*text, float(score)) for i, text, score in zip(chosen, texts, scores, strict=False)}
    return [found[i] for i in range(len(sentences))]


def sentence_batches(
    model: LoadedModel, sentences: Sequence[str], batch_size: int, rows: Sequence[Sequence[int]] | None = None
) -> Iterator[tuple[list[int], np.ndarray, np.ndarray]]:
    """Yields the numbers of some sentences, the longest first, their tokens int32 (B, L) and which are real, bool (B, L).

    Args:
      model: whose tokenizer cuts them; what is longer than it reads is cut off.
      sentences: to read.
      batch_size: rounded up to a multiple of the model's devices; there may be fewer sentences than rows.
      rows: their tokens, where another tokenizer than the model's has cut them.

    Raises:
      UserError: a sentence is empty.
    """
    for number, sentence in enumerate(sentences, 1):
        if not sentence.strip():
            raise UserError(f"sentence {number}: is empty; expected text; remove it")
    backend, longest = model.backend, model.config.max_length
    if rows is None:
        backend.enable_truncation(longest)
        rows = [found.ids for found in backend.encode_batch([sentence.strip() for sentence in sentences])]
    count, pad_id = model.rows_for(batch_size), padding_id(None, model.tokenizer)
    order = sorted(range(len(rows)), key=lambda i: (-len(rows[i]), i))
    for start in range(0, len(order), count):
        chosen = order[start : start + count]
        length = fitting_length(len(rows[chosen[0]]), longest)
        tokens, mask = np.full((count, length), pad_id, np.int32), np.zeros((count, length), bool)
        # A row that only fills the batch has one real token, and nobody reads what becomes of it.
        mask[:, 0] = True
        for row, i in enumerate(chosen):
            tokens[row, : len(rows[i])], mask[row, : len(rows[i])] = rows[i], True
        yield chosen, tokens, mask


def greedy_bleu(
    objective: TranslationObjective,
    params: Any,
    batches: Iterable[Mapping[str, jax.Array]],
    rows: TranslationRows,
    tokenizer: "PreTrainedTokenizerFast",
    tokenize: str = "13a",
) -> dict[str, float]:
    """Translates the sources of an evaluation greedily and returns {"bleu"} against their translations as they are written.

    Args:
      objective: of the model.
      params: of the model, on whatever devices.
      batches: of `rows.evaluation_batches`, placed on the devices of `params`.
      rows: what the batches are of.
      tokenizer: of the translations.
      tokenize: see `score_translations`.
    """
    special, texts = ends(tokenizer), {}
    given = (objective.family, objective.config, objective.dtype, 1, rows.length, special)
    for batch in batches:
        written = search(*given, params, batch["tokens"], batch["mask"], np.float32(1))[0]
        numbers, written = jax.device_get((_gathered(batch["row"]), _gathered(written)))
        texts |= {int(i): text for i, (text, _) in zip(numbers, _texts(written, special[1], tokenizer), strict=True) if i >= 0}
    references = [rows.examples[i].target for i in sorted(texts)]
    options = {"lowercase": writes_lowercase(tokenizer), "tokenize": tokenize}
    scores = score_translations([texts[i] for i in sorted(texts)], references, **options)
    return {"bleu": scores["bleu"]}


# Every process of a run reads all of it.
_gathered = jax.jit(pin)


def score_translations(
    hypotheses: Sequence[str], references: Sequence[str], *, lowercase: bool = False, tokenize: str | None = None
) -> dict[str, Any]:
    """Scores translations as they are read, not as the model cuts them.

    Args:
      hypotheses: n translations.
      references: n right ones.
      lowercase: whether case does not count.
      tokenize: what BLEU counts, as sacrebleu calls it: "13a" (words; None is that), "zh" or "char" (characters), ...

    Returns:
      {"bleu", "precisions": percent of the written n-grams of 1 to 4 that are right, "chrf", and sacrebleu's "signature"}.

    Raises:
      UserError: sacrebleu is not installed or knows no such `tokenize`, or there is not one reference for each translation.
    """
    require_sacrebleu("BLEU", tokenize=tokenize)
    from sacrebleu.metrics import BLEU, CHRF

    if len(hypotheses) != len(references) or not references:
        raise UserError(f"{len(hypotheses):,} translations and {len(references):,} references; expected one for each")
    bleu = BLEU(lowercase=lowercase, tokenize=tokenize)
    found = bleu.corpus_score(hypotheses, [references])
    chrf = CHRF(lowercase=lowercase).corpus_score(hypotheses, [references])
    return {"bleu": found.score, "precisions": found.precisions, "chrf": chrf.score, "signature": str(bleu.get_signature())}


def require_sacrebleu(what: str, setting: str = "tokenize", tokenize: str | None = None) -> None:
    """Raises `UserError` where sacrebleu is not installed, which `what` needs, or lacks what `setting` asks for."""
    with from_extra("eval", f"for {what}"):
        from sacrebleu.metrics import BLEU
    if tokenize is not None and tokenize not in BLEU.TOKENIZERS:
        known = ", ".join(sorted(BLEU.TOKENIZERS))
        raise UserError(f"{setting}: {tokenize}: sacrebleu has no such tokenizer; expected one of {known}")
    try:
        BLEU(tokenize=tokenize)
    except (RuntimeError, ImportError) as error:
        # Some need packages of their own.
        raise UserError(f"{setting}: {tokenize}: {one_line(error)}") from None


def writes_lowercase(tokenizer: "PreTrainedTokenizerFast") -> bool:
    """Whether a tokenizer knows no capitals, so that no model can write any."""
    normalizer = tokenizer.backend_tokenizer.normalizer
    # It may put a sign for a space before it, too.
    return normalizer is not None and "A" not in normalizer.normalize_str("A")


def _texts(written: np.ndarray, end: int, tokenizer: "PreTrainedTokenizerFast") -> Iterable[tuple[str, tuple[int, ...]]]:
    """Rows of tokens (n, T) -> (text, tokens up to the end) of each."""
    rows = [row[: row.index(end) + 1] if end in row else row for row in written.tolist()]
    texts = tokenizer.backend_tokenizer.decode_batch(rows, skip_special_tokens=True)
    return [(text.strip(), tuple(row)) for text, row in zip(texts, rows, strict=True)]


@partial(jax.jit, static_argnums=(0, 1, 2, 3, 4, 5))
def search(
    of_model: TransformerFamily,
    config: ModelConfig,
    dtype: str,
    beams: int,
    steps: int,
    special: tuple[int, int],
    parameters: Any,
    tokens: jax.Array,
    mask: jax.Array,
    length_penalty: jax.Array,
) -> tuple[jax.Array, jax.Array]:
    """Finds a likely translation of each source.

    Args:
      of_model: the model's family.
      config: its configuration.
      dtype: what matrix products compute in.
      beams: K; 1: greedy.
      steps: T, the most tokens of a translation.
      special: ids of the tokens that a translation begins and ends with.
      parameters: of the model.
      tokens: int32 (B, L).
      mask: bool (B, L).
      length_penalty: float32 scalar.

    Returns:
      Tokens int32 (B, T), anything behind the end token, and scores float32 (B,), as `Translated` has them.
    """
    begin, end = special
    count = tokens.shape[0]
    memory = of_model.remember(parameters, config, tokens, mask, dtype=jnp.dtype(dtype))
    memory, mask = jnp.repeat(memory, beams, axis=1), jnp.repeat(mask, beams, axis=0)
    cache = Cache.empty(decoder_config(config), count * beams, steps, jnp.dtype(dtype))

    def read(last: jax.Array, cache: Cache) -> tuple[jax.Array, Cache]:
        """last int32 (B K,) -> log-probabilities (B K, V_t) of what follows, and the cache."""
        hidden, cache = of_model.write(parameters, config, last[:, None], cache, memory, mask, dtype=jnp.dtype(dtype))
        scores = of_model.logits(parameters, config, hidden[:, 0], dtype=jnp.dtype(dtype))
        return jax.nn.log_softmax(scores), cache

    last = jnp.full(count * beams, begin, jnp.int32)
    if beams == 1:
        return _greedy(read, end, steps, last, cache)
    return _beam(read, end, steps, count, beams, last, cache, length_penalty)


def _greedy(read: Callable, end: int, steps: int, last: jax.Array, cache: Cache) -> tuple[jax.Array, jax.Array]:
    count = last.shape[0]

    def going(state: tuple) -> jax.Array:
        index, done = state[0], state[-1]
        return (index < steps) & ~jnp.all(done)

    def step(state: tuple) -> tuple:
        index, last, cache, written, scores, done = state
        found, cache = read(last, cache)
        last = jnp.argmax(found, axis=-1).astype(jnp.int32)
        scores += jnp.where(done, 0.0, jnp.max(found, axis=-1))
        return index + 1, last, cache, written.at[:, index].set(last), scores, done | (last == end)

    # Behind the end it goes on writing: `_texts` cuts there.
    start = (jnp.int32(0), last, cache, jnp.full((count, steps), end, jnp.int32), jnp.zeros(count), jnp.zeros(count, bool))
    _, _, _, written, scores, _ = jax.lax.while_loop(going, step, start)
    return written, scores


def _beam(
    read: Callable, end: int, steps: int, count: int, beams: int, last: jax.Array, cache: Cache, penalty: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """Beam search as transformers does it (`GenerationMixin._beam_search`).

    Of the 2 K best continuations, those of the K best that end are finished translations, of which the K best by
    score / length^penalty are kept; the K best that do not end go on. A sentence is done when its best open one, if it ended
    now, would be worse than the worst of K finished ones.
    """

    def take(x: jax.Array, chosen: jax.Array) -> jax.Array:
        """Rows of x (B, n, ...) by their numbers (B, k)."""
        return jnp.take_along_axis(x, chosen.reshape(*chosen.shape, *(1,) * (x.ndim - 2)), axis=1)

    class State(NamedTuple):
        index: jax.Array  # tokens written so far
        last: jax.Array  # (B K,)
        cache: Cache
        open: jax.Array  # (B, K, T)
        open_scores: jax.Array  # (B, K), log-probabilities
        closed: jax.Array  # (B, K, T)
        closed_scores: jax.Array  # (B, K), divided by length^penalty
        is_closed: jax.Array  # bool (B, K)
        improvable: jax.Array  # bool (B, 1)

    def going(state: State) -> jax.Array:
        return (state.index < steps) & jnp.any(state.improvable)

    def step(state: State) -> State:
        found, cache = read(state.last, state.cache)
        size = found.shape[-1]
        scores = found.reshape(count, beams, size) + state.open_scores[:, :, None]
        scores, places = jax.lax.top_k(scores.reshape(count, beams * size), 2 * beams)
        parents, tokens = places // size, (places % size).astype(jnp.int32)
        written = take(state.open, parents).at[:, :, state.index].set(tokens)
        index = state.index + 1
        # The longest translations end without an end token.
        ended = (tokens == end) | (index == steps)
        open_scores, going_on = jax.lax.top_k(scores + ended * _NEVER, beams)
        length = index.astype(jnp.float32) ** penalty
        chosen = ended & (jnp.arange(2 * beams) < beams)
        final = scores / length + ~state.improvable * _NEVER + ~chosen * _NEVER
        closed_scores, kept = jax.lax.top_k(jnp.concatenate([state.closed_scores, final], axis=1), beams)
        is_closed = take(jnp.concatenate([state.is_closed, chosen], axis=1), kept)
        worst = jnp.where(is_closed, closed_scores.min(axis=1, keepdims=True), _NEVER)
        better = jnp.any(open_scores[:, :1] / length > worst, axis=1, keepdims=True)
        rows = (jnp.arange(count)[:, None] * beams + take(parents, going_on)).ravel()
        keys, values = cache.keys[:, rows], cache.values[:, rows]
        return State(
            index=index,
            last=take(tokens, going_on).ravel(),
            cache=Cache(keys, values, cache.position, cache.used),
            open=take(written, going_on),
            open_scores=open_scores,
            closed=take(jnp.concatenate([state.closed, written], axis=1), kept),
            closed_scores=closed_scores,
            is_closed=is_closed,
            improvable=state.improvable & better,
        )

    texts = jnp.full((count, beams, steps), end, jnp.int32)
    # The beams begin alike: only the first one's continuations count.
    first = jnp.where(jnp.arange(beams) == 0, 0.0, _NEVER)
    nothing = jnp.full((count, beams), _NEVER)
    start = State(
        jnp.int32(0),
        last,
        cache,
        texts,
        jnp.broadcast_to(first, (count, beams)),
        texts,
        nothing,
        jnp.zeros((count, beams), bool),
        jnp.ones((count, 1), bool),
    )
    state = jax.lax.while_loop(going, step, start)
    return state.closed[:, 0], state.closed_scores[:, 0]
