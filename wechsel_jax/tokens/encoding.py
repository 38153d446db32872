"""Text to token ids in bounded memory, however long a text is."""

import itertools
import re
from array import array
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

import tokenizers

from wechsel_jax.errors import UserError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

# Texts that a tokenizer gets at once: its own records of a text are 50 to 400 times as large.
_GROUP_CHARACTERS, GROUP_TEXTS = 500_000, 1024
# Characters of a longer text that it gets at once, and of those behind them, for what a tokenizer looks ahead.
_PIECE, _AHEAD = 1 << 18, 1 << 12
# Characters in which the end of a word is looked for.
_LONGEST_WORD = 1 << 20
# The last place in a text where a word may end: before white space, or else before a mark of punctuation, or anywhere.
_ENDS = [re.compile(pattern, re.DOTALL) for pattern in (r".*\S(?=\s)", r".*\w(?=[^\w\s])", r".*\S")]


def plain_backend(tokenizer: "PreTrainedTokenizerFast | tokenizers.Tokenizer") -> tokenizers.Tokenizer:
    """Returns a copy that neither pads nor truncates nor drops merges by chance: a tokenizer.json may ask for all of it."""
    backend = tokenizers.Tokenizer.from_str(getattr(tokenizer, "backend_tokenizer", tokenizer).to_str())
    backend.no_padding()
    backend.no_truncation()
    if getattr(backend.model, "dropout", None):
        backend.model.dropout = None
    return backend


def encode(backend: tokenizers.Tokenizer, texts: Iterable[str], special_tokens: bool) -> Iterator[Sequence[int]]:
    """Yields the ids of each text, those that the tokenizer itself gives it.

    Args:
      backend: of `plain_backend`.
      texts: of any length; long ones are cut, where that changes no token.
      special_tokens: with those that the tokenizer puts around a text.
    """
    for group in _groups(texts):
        if len(group[0]) > _PIECE:
            yield _long(backend, group[0], special_tokens)
        else:
            for encoding in backend.encode_batch_fast(group, add_special_tokens=special_tokens):
                yield encoding.ids


def _groups(texts: Iterable[str]) -> Iterator[list[str]]:
    group: list[str] = []
    characters = 0
    for text in texts:
        long = len(text) > _PIECE
        if group and (long or characters >= _GROUP_CHARACTERS or len(group) == GROUP_TEXTS):
            yield group
            group, characters = [], 0
        if long:
            yield [text]
        else:
            group.append(text)
            characters += len(text)
    if group:
        yield group


def _long(backend: tokenizers.Tokenizer, text: str, special_tokens: bool) -> Sequence[int]:
    """The ids of a long text, piece by piece.

    A tokenizer cuts text into words from left to right, and each word into tokens for itself. So text may be cut between two
    words, if what follows alone begins with the tokens that it has there: a tokenizer may treat the beginning of a text in
    another way. Where no such place is found, the piece becomes twice as long, and in the end takes all the rest.
    """
    before, after = around(backend) if special_tokens else ([], [])
    ids, start, size = array("I", before), 0, _PIECE
    while start + size + _AHEAD < len(text) and size <= _LONGEST_WORD:
        for pattern in _ENDS:
            end = pattern.match(text, start, start + size)
            if end and (taken := _tokens_before(backend, text, start, end.end())):
                ids.extend(taken)
                start, size = end.end(), _PIECE
                break
        else:
            size *= 2
    ids.extend(_encode(backend, text[start:]))
    ids.extend(after)
    return ids


def _tokens_before(backend: tokenizers.Tokenizer, text: str, start: int, end: int) -> list[int]:
    """The ids of text[start:end] as they are where the text goes on; [] where it cannot be cut there."""
    normalize = backend.normalizer.normalize_str if backend.normalizer else str
    word, around = (normalize(text[max(start, end - _AHEAD) : last]) for last in (end, end + _AHEAD))
    if not backend.pre_tokenizer or not around.startswith(word):
        return []
    if all(place[1] != len(word) for _, place in backend.pre_tokenizer.pre_tokenize_str(around)):
        return []
    rest = _encode(backend, text[end : end + _AHEAD])
    ids = _encode(backend, text[start : end + _AHEAD])
    return ids[: -len(rest)] if rest and ids[-len(rest) :] == rest else []


def _encode(backend: tokenizers.Tokenizer, text: str) -> list[int]:
    # Other ways, which also say where a token stands, leave memory behind that is not used again.
    return backend.encode_batch_fast([text], add_special_tokens=False)[0].ids


def some_text(backend: tokenizers.Tokenizer) -> str:
    """A text that has a token: without a token for what is unknown, text of another language has none.

    Raises:
      UserError: there is none.
    """
    texts = itertools.chain("a", (backend.decode([number]) for number in range(backend.get_vocab_size())))
    found = next((text for text in texts if text and _encode(backend, text)), None)
    if found is None:
        raise UserError("the tokenizer makes no token of any text; expected one with tokens; make it again")
    return found


def around(backend: tokenizers.Tokenizer) -> tuple[list[int], list[int]]:
    """The ids that the tokenizer puts before and behind a text."""
    whole = backend.encode(some_text(backend))
    special = [bool(flag) for flag in whole.special_tokens_mask]
    before = len(list(itertools.takewhile(bool, special)))
    after = len(list(itertools.takewhile(bool, special[before:][::-1])))
    return whole.ids[:before], whole.ids[len(special) - after :]
