"""Pairs of tokens that a user equates by hand: `--map=SOURCE:TARGET`."""

from collections.abc import Sequence

from wechsel_jax.errors import UserError
from wechsel_jax.tokens import Vocabulary, readable

_EXPECTED = "expected SOURCE_TOKEN:TARGET_TOKEN"
_ADVICE = (
    'expected one of its tokens as tokenizer.json spells it, or readable as in "Ġfür"; a word inside a text may be several'
)


def parse_mapping(values: Sequence[str], source: Vocabulary, target: Vocabulary) -> list[tuple[str, str]]:
    """Reads the values of `--map`.

    A value is one pair "SOURCE:TARGET" or several with commas between them. A value that can be read as one pair is one pair,
    so that "," and ":" can be mapped too.

    Args:
      values: what the user wrote; tokens as the tokenizer spells them or as `readable` prints them ("Ġfür").
      source: V_s tokens.
      target: V_t tokens.

    Returns:
      (source token, target token) pairs, as the tokenizers spell them.

    Raises:
      UserError: a value without ":", a token that its tokenizer does not have, a value that can be read in several ways, or a
        target token that is mapped to two source tokens.
    """
    spellings = _Spellings(source), _Spellings(target)
    chosen: dict[int, int] = {}
    for value in values:
        splits = _splits(value, *spellings)
        parts = [value] if splits or "," not in value else [part for part in value.split(",") if part]
        for part in parts:
            source_id, target_id = _pair(part, *spellings)
            if chosen.setdefault(target_id, source_id) != source_id:
                raise UserError(
                    f"map {part}: target token {target.strings[target_id]!r} is mapped to "
                    f"{source.strings[chosen[target_id]]!r} already; expected one source token for it; leave out one of the two"
                )
    return [(source.strings[source_id], target.strings[target_id]) for target_id, source_id in chosen.items()]


def mapped_ids(mapping: Sequence[tuple[str, str]], source: Vocabulary, target: Vocabulary) -> list[tuple[int, int]]:
    """Returns the ids of (source token, target token) pairs.

    Raises:
      UserError: a token that its tokenizer does not have.
    """
    if not mapping:
        return []
    spellings = _Spellings(source), _Spellings(target)
    found = []
    for pair in mapping:
        ids = tuple(side.find(token) for side, token in zip(spellings, pair, strict=True))
        for name, token, token_id in zip(("source", "target"), pair, ids, strict=True):
            if token_id is None:
                raise UserError(f"map {pair[0]}:{pair[1]}: the {name} tokenizer has no token {token!r}; {_ADVICE}")
        found.append(ids)
    return found


class _Spellings:
    """Finds tokens by how they are spelled; the readable spelling is looked at only where the tokenizer's own is not known."""

    def __init__(self, vocabulary: Vocabulary):
        self.vocabulary = vocabulary
        self.own = {token: i for i, token in enumerate(vocabulary.strings) if token}
        self.printed: dict[str, int] | None = None

    def find(self, token: str) -> int | None:
        if token in self.own:
            return self.own[token]
        if self.printed is None:
            ids = reversed(self.own.values())
            self.printed = {readable(self.vocabulary, i): i for i in ids}
        return self.printed.get(token)


def _splits(value: str, source: _Spellings, target: _Spellings) -> list[tuple[int, int]]:
    """Every way to read `value` as two known tokens around a colon."""
    found = []
    for place in (i for i, character in enumerate(value) if character == ":"):
        ids = source.find(value[:place]), target.find(value[place + 1 :])
        if None not in ids:
            found.append(ids)
    return found


def _pair(part: str, source: _Spellings, target: _Spellings) -> tuple[int, int]:
    splits = _splits(part, source, target)
    if len(splits) == 1:
        return splits[0]
    if splits:
        ways = " or ".join(f"{source.vocabulary.strings[s]!r} with {target.vocabulary.strings[t]!r}" for s, t in splits)
        raise UserError(f"map {part}: can be read as {ways}; {_EXPECTED} that can be read in one way; map another spelling")
    if ":" not in part:
        raise UserError(f"map {part}: has no colon; {_EXPECTED}, e.g. --map='<|endoftext|>:</s>'")
    if part.count(":") > 1:
        raise UserError(f"map {part}: no split at a colon gives a source token and a target token; {_EXPECTED}; {_ADVICE}")
    left, right = part.split(":")
    side, token = ("source", left) if source.find(left) is None else ("target", right)
    raise UserError(f"map {part}: the {side} tokenizer has no token {token!r}; {_ADVICE}")
