"""Text that a causal model writes: greedy or drawn, in batches, each token read once."""

import codecs
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from wechsel_jax.data.padded import fitting_length
from wechsel_jax.errors import UserError
from wechsel_jax.evaluation.loaded import LoadedModel
from wechsel_jax.files.json import is_number
from wechsel_jax.models import Family, ModelConfig
from wechsel_jax.models.cache import Cache
from wechsel_jax.tokens.encoding import around, encode

# New tokens for which a cache has slots at first: each step reads all slots, and most texts end before `max_tokens`.
_FIRST_SLOTS = 128
# In the place of a token where the model gives no numbers.
NOTHING = -1
# Fields of generation_config.json that change what transformers writes and that are not read here, and what is as good as none.
_UNREAD = {
    "no_repeat_ngram_size": 0,
    "num_beams": 1,
    "min_length": 0,
    "min_new_tokens": 0,
    "bad_words_ids": [],
    "suppress_tokens": [],
    "begin_suppress_tokens": [],
}
_UNREAD_IN_DRAWS = {"min_p": 0, "typical_p": 1, "epsilon_cutoff": 0, "eta_cutoff": 0}


@dataclass(frozen=True)
class Generated:
    """What a model wrote after one prompt.

    Attributes:
      text: so that prompt + text is the whole; without special tokens, and without the stop string and what follows it.
      tokens: ids of all new tokens, up to the one that ended the text.
      prompt_tokens: how many tokens the prompt has.
      end: "eos" (an end-of-text token), "stop" (a stop string), "length" (`max_tokens`) or "full" (the model's last position).
    """

    text: str
    tokens: tuple[int, ...]
    prompt_tokens: int
    end: str


def generate(
    model: LoadedModel,
    prompts: Sequence[str | Sequence[int]],
    *,
    max_tokens: int = 100,
    temperature: float = 0.0,
    top_k: int = 0,
    top_p: float = 1.0,
    repetition_penalty: float = 1.0,
    stop: Sequence[str] = (),
    seed: int = 0,
    batch_size: int = 16,
    on_text: Callable[[int, str], None] | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> list[Generated]:
    """Continues prompts.

    Token t after prompt i is drawn with the key of (seed, i, t), so it depends on no other prompt, on no batch size and on no
    number of devices, but for the rounding of the logits. Prompts of similar length share a batch, and lengths are rounded up
    to few sizes, so that few programs are compiled.

    Args:
      model: a causal one.
      prompts: texts, which get the tokens that the tokenizer puts before a text and not those behind it, or ids as they are.
        An empty text begins with the model's begin-of-text token.
      max_tokens: new tokens of each at most.
      temperature: what logits are divided by; 0: the likeliest token, always.
      top_k: tokens are drawn from so many likeliest ones (Fan et al., 2018); 0: from all.
      top_p: of these from the fewest likeliest ones whose probabilities reach this sum (Holtzman et al., 2020); 1: all.
      repetition_penalty: logits of tokens that the prompt or the text holds are divided by it, those below 0 multiplied (Keskar
        et al., 2019), before all else; 1: as they are.
      stop: strings that end a text, wherever they begin in what was written; the first one counts, and is left out.
      seed: of the draws.
      batch_size: prompts at once; rounded up to a multiple of the model's devices.
      on_text: told (number of the prompt, what was added to its text) as soon as it is certain: half a character waits for the
        other half, and what may become a stop string waits too.
      progress: told (prompts that are done, all prompts) after each batch.

    Returns:
      One result a prompt, in their order.

    Raises:
      UserError: the model is a masked one, a prompt leaves it no position, or a number is impossible.
    """
    _check(model, max_tokens, temperature, top_k, top_p, repetition_penalty, stop, batch_size)
    choosing = _Choosing(temperature, int(top_k), top_p, repetition_penalty)
    rows = _rows(model, prompts)
    longest = model.config.max_length
    for number, ids in enumerate(rows):
        if len(ids) >= longest:
            raise UserError(
                f"prompt {number + 1}: has {len(ids):,} tokens, and the model reads {longest:,} at once; expected at least one "
                "less; shorten it"
            )
    ends = end_tokens(model)
    writers = [
        _Writer(model, ids, max_tokens, ends, stop, None if on_text is None else partial(on_text, number))
        for number, ids in enumerate(rows)
    ]
    largest = model.rows_for(batch_size)
    # The longest first: where memory is too small, that shows at once.
    order = sorted(range(len(rows)), key=lambda i: (-len(rows[i]), i))
    for start in range(0, len(order), largest):
        numbers = order[start : start + largest]
        _write(model, [rows[i] for i in numbers], numbers, [writers[i] for i in numbers], largest, choosing, seed)
        if progress is not None:
            progress(min(start + largest, len(order)), len(order))
    return [writer.result() for writer in writers]


def end_tokens(model: LoadedModel) -> frozenset[int]:
    """The ids that end a text: those of generation_config.json, else those of config.json, else the tokenizer's.

    Raises:
      UserError: a file gives something else than ids.
    """
    size = model.config.vocabulary_size
    config = json.loads((model.directory / "config.json").read_text(encoding="utf-8"))
    for name, fields in (("generation_config.json", model.generation_config), ("config.json", config)):
        ids = fields.get("eos_token_id")
        if ids is not None:
            ids = ids if isinstance(ids, list) else [ids]
            if not all(type(token_id) is int and 0 <= token_id < size for token_id in ids):
                raise UserError(f"{model.directory / name}: eos_token_id is {ids}; expected ids from 0 to {size - 1}")
            return frozenset(ids)
    token_id = model.vocabulary.id_with_role("eos")
    return frozenset() if token_id is None else frozenset([token_id])


def asked_number(model: LoadedModel, name: str, otherwise: float) -> float:
    """A number that generation_config.json gives, or `otherwise`; raises `UserError` where it gives something else."""
    value = model.generation_config.get(name)
    if value is None:
        return otherwise
    if not is_number(value):
        place = model.directory / "generation_config.json"
        raise UserError(f"{place}: {name} is {value!r}; expected a number; mend it, or give --{name}")
    return value


def unread(model: LoadedModel, drawing: bool) -> str:
    """A note of what generation_config.json asks for that `generate` does not do; "" where that is nothing."""
    known = _UNREAD | (_UNREAD_IN_DRAWS if drawing else {})
    left = [name for name, none in known.items() if model.generation_config.get(name) not in (None, none)]
    return f"generation_config.json sets {', '.join(left)}, which is not read here" if left else ""


def require_causal(model: LoadedModel) -> None:
    """Refuses a model that writes no text."""
    if not model.family.causal:
        raise UserError(
            f"{model.directory}: a {model.family.name} model fills masks and writes no text; expected a causal model, such as "
            "a gpt2"
        )


def _check(
    model: LoadedModel,
    max_tokens: int,
    temperature: float,
    top_k: int,
    top_p: float,
    repetition_penalty: float,
    stop: Sequence[str],
    batch_size: int,
) -> None:
    require_causal(model)
    if max_tokens < 1 or batch_size < 1:
        raise UserError(f"max_tokens {max_tokens}, batch_size {batch_size}: expected at least 1")
    # Neither holds for NaN. Logits that are divided by less would become infinite.
    if temperature != 0 and not 1e-6 <= temperature < float("inf"):
        raise UserError(f"temperature: is {temperature}; expected 0 (always the likeliest token), or 0.000001 or more")
    if top_k < 0:
        raise UserError(f"top_k: is {top_k}; expected 1 or more, or 0 (all tokens)")
    if not 1e-6 <= repetition_penalty < float("inf"):
        raise UserError(f"repetition_penalty: is {repetition_penalty}; expected 0.000001 or more; 1 changes nothing")
    if not 0 < top_p <= 1:
        raise UserError(f"top_p: is {top_p}; expected more than 0 and at most 1 (all tokens)")
    if "" in stop:
        raise UserError("stop: holds an empty string, which is everywhere; expected text; leave it out")


def _rows(model: LoadedModel, prompts: Sequence[str | Sequence[int]]) -> list[Sequence[int]]:
    """The ids of prompts."""
    backend, vocabulary, size = model.backend, model.vocabulary, model.config.vocabulary_size
    # What a tokenizer puts behind a text says that the text has ended.
    behind = len(around(backend)[1])
    texts = encode(backend, [prompt for prompt in prompts if isinstance(prompt, str)], special_tokens=True)
    begin = next((token_id for role in ("bos", "eos") if (token_id := vocabulary.id_with_role(role)) is not None), None)
    rows = []
    for number, prompt in enumerate(prompts):
        if isinstance(prompt, str):
            ids = next(texts)
            ids = ids[: len(ids) - behind]
        else:
            ids = prompt
            wrong = next((token_id for token_id in ids if not 0 <= token_id < size), None)
            if wrong is not None:
                raise UserError(f"prompt {number + 1}: token {wrong}; expected ids from 0 to {size - 1}")
        if not len(ids) and begin is None:
            raise UserError(f"{model.directory}: its tokenizer has no begin-of-text token; expected prompts that are not empty")
        rows.append(ids if len(ids) else [begin])
    return rows


def _write(
    model: LoadedModel,
    rows: Sequence[Sequence[int]],
    numbers: Sequence[int],
    writers: Sequence["_Writer"],
    largest: int,
    choosing: "_Choosing",
    seed: int,
) -> None:
    """Continues the prompts of one batch until each text has ended."""
    count = model.rows
    while count < len(rows):
        count *= 2
    count = min(count, largest)
    length, steps = fitting_length(max(map(len, rows))), max(writer.limit for writer in writers)
    # On the left, so that the last column holds the last token of every prompt; rows that only fill the batch are all padding.
    tokens, mask = np.zeros((count, length), np.int32), np.zeros((count, length), bool)
    for row, ids in enumerate(rows):
        tokens[row, length - len(ids) :], mask[row, length - len(ids) :] = ids, True
    drawn = np.zeros(count, np.uint32)
    drawn[: len(numbers)] = numbers
    size, drawing = model.config.vocabulary_size, choosing.temperature > 0
    static = (model.family, model.config, model.dtype, drawing, min(choosing.top_k, size) * drawing, choosing.top_p < 1)
    slots = fitting_length(length + min(steps, _FIRST_SLOTS))
    cache = _empty_cache(model.config, model.dtype, model.mesh, count, slots)
    tokens, mask, one, drawn = map(model.place, (tokens, mask, np.ones((count, 1), bool), drawn))
    seen = None
    if choosing.repetition_penalty != 1:
        seen = np.zeros((count, size), bool)
        for row, ids in enumerate(rows):
            seen[row, np.asarray(ids)] = True
        seen = model.place(seen)
    key, settings = jax.random.key(seed), _Choosing(*map(np.float32, choosing))
    new, cache, seen = _next_tokens(*static, model.parameters, tokens, mask, cache, seen, key, drawn, np.int32(0), settings)
    for index in range(1, steps + 1):
        # The devices make the next token while the host reads this one.
        ahead = None
        if index < steps:
            if length + index > slots:
                slots = min(2 * slots, fitting_length(length + steps))
                cache = _grown(cache, slots)
            at = np.int32(index)
            ahead, cache, seen = _next_tokens(*static, model.parameters, new, one, cache, seen, key, drawn, at, settings)
        for writer, token_id in zip(writers, np.asarray(new)[:, 0].tolist(), strict=False):
            if token_id == NOTHING and not writer.end:
                raise model.useless("the score of a token is no number")
            writer.add(token_id)
        if all(writer.end for writer in writers):
            return
        new = ahead


@partial(jax.jit, static_argnums=(0, 1, 2, 3, 4))
def _empty_cache(config: ModelConfig, dtype: str, mesh: Mesh, rows: int, slots: int) -> Cache:
    cache = Cache.empty(config, rows, slots, jnp.dtype(dtype))
    of_rows = PartitionSpec(None, "data")
    specs = Cache(of_rows, of_rows, PartitionSpec("data"), PartitionSpec())
    return jax.lax.with_sharding_constraint(cache, jax.tree.map(partial(NamedSharding, mesh), specs))


_grown = jax.jit(Cache.grown, static_argnums=1)


class _Choosing(NamedTuple):
    """How a token follows from scores; see `generate`."""

    temperature: float
    top_k: float
    top_p: float
    repetition_penalty: float


@partial(jax.jit, static_argnums=(0, 1, 2, 3, 4, 5), donate_argnames=("cache", "seen"))
def _next_tokens(
    of_model: Family,
    config: ModelConfig,
    dtype: str,
    drawing: bool,
    top_k: int,
    cutting: bool,
    parameters: dict[str, Any],
    tokens: jax.Array,
    mask: jax.Array,
    cache: Cache,
    seen: jax.Array | None,
    key: jax.Array,
    numbers: jax.Array,
    index: jax.Array,
    choosing: _Choosing,
) -> tuple[jax.Array, Cache, jax.Array | None]:
    """Reads tokens (B, L), prompts or one new token of each.

    Returns what follows each row's last, (B, 1), the cache, and which tokens each row has then, (B, V), or None.
    """
    hidden, cache = of_model.extend(parameters, config, tokens, mask, cache, dtype=jnp.dtype(dtype))
    scores = of_model.logits(parameters, config, hidden[:, -1], dtype=jnp.dtype(dtype))
    if seen is not None:
        penalty = choosing.repetition_penalty
        scores = jnp.where(seen, jnp.where(scores < 0, scores * penalty, scores / penalty), scores)
    if drawing:
        scores = scores / choosing.temperature
        if top_k:
            scores = jnp.where(scores < jax.lax.top_k(scores, top_k)[0][:, -1:], -jnp.inf, scores)
        if cutting:
            scores = likeliest(scores, choosing.top_p)
        keys = jax.vmap(lambda number: jax.random.fold_in(jax.random.fold_in(key, number), index))(numbers)
        found = jax.vmap(jax.random.categorical)(keys, scores)[:, None]
    else:
        found = scores.argmax(axis=-1, keepdims=True)
    # NaN counts as the largest.
    found = jnp.where(jnp.isnan(jnp.take_along_axis(scores, found, axis=-1)), NOTHING, found)
    if seen is not None:
        seen = seen.at[jnp.arange(len(found))[:, None], found].set(True)
    return found.astype(jnp.int32), cache, seen


def likeliest(scores: jax.Array, top_p: jax.Array) -> jax.Array:
    """Sets all scores (..., V) to minus infinity but those of the fewest likeliest tokens whose probabilities sum to top_p."""
    ordered = jnp.sort(scores, axis=-1, descending=True)
    probabilities = jax.nn.softmax(ordered, axis=-1)
    before = jnp.cumsum(probabilities, axis=-1) - probabilities
    lowest = jnp.where(before < top_p, ordered, jnp.inf).min(axis=-1, keepdims=True)
    return jnp.where(scores < lowest, -jnp.inf, scores)


class _Writer:
    """The text after one prompt, token by token."""

    def __init__(
        self,
        model: LoadedModel,
        prompt: Sequence[int],
        max_tokens: int,
        ends: frozenset[int],
        stop: Sequence[str],
        tell: Callable[[str], None] | None,
    ):
        self._vocabulary, self._ends, self._stop, self._tell = model.vocabulary, ends, stop, tell
        left = model.config.max_length - len(prompt)
        self.limit, self._at_limit = (left, "full") if left < max_tokens else (max_tokens, "length")
        self.end, self._prompt_tokens = "", len(prompt)
        self._tokens, self._text, self._told = [], "", 0
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        # At the beginning of a text the space may be the tokenizer's own.
        self._bare = self._vocabulary.prefix_space and not self._vocabulary.join(prompt)

    def add(self, token_id: int) -> None:
        """Takes the next token; one after the end is ignored."""
        if self.end:
            return
        self._tokens.append(token_id)
        ended = token_id in self._ends
        self.end = "eos" if ended else self._at_limit if len(self._tokens) == self.limit else ""
        vocabulary = self._vocabulary
        # A model may have more rows than its tokenizer has tokens.
        ordinary = not ended and token_id < len(vocabulary) and not vocabulary.special[token_id]
        piece = vocabulary.bytes[token_id] if ordinary else b""
        if piece and self._bare:
            piece, self._bare = piece.removeprefix(b" "), False
        before = len(self._text)
        self._text += self._decoder.decode(piece, final=bool(self.end))
        found = [self._text.find(string, max(0, before - len(string) + 1)) for string in self._stop]
        found = [place for place in found if place >= 0]
        if found:
            self.end, self._text = "stop", self._text[: min(found)]
        certain = len(self._text)
        if not self.end:
            certain -= max((_overlap(self._text, string) for string in self._stop), default=0)
        if self._tell is not None and certain > self._told:
            self._tell(self._text[self._told : certain])
            self._told = certain

    def result(self) -> Generated:
        return Generated(self._text, tuple(self._tokens), self._prompt_tokens, self.end)


def _overlap(text: str, stop: str) -> int:
    """How many of the last characters of a text may be the beginning of a stop string."""
    return next((n for n in range(min(len(text), len(stop) - 1), 0, -1) if text.endswith(stop[:n])), 0)
