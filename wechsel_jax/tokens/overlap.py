"""Which tokens of two vocabularies are the same: one rule for every method, and an account of what each rule found."""

import functools
import string
import unicodedata
from collections import defaultdict
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass

import numpy as np

from wechsel_jax.errors import UserError
from wechsel_jax.tokens import BYTE_TOKEN, ROLES, SAME_ROLE, Vocabulary
from wechsel_jax.tokens.mapping import mapped_ids
from wechsel_jax.tokens.reference_overlap import deepfocus_overlap, ofa_overlap

# How a target token was matched; `Overlap.rule` holds the position in this list. The tightest rule that holds is named.
RULES = ("none", "mapped", "special", "exact", "case", "nospace", "fuzzy", "symbols")
# What a user may ask for, and the rules for ordinary tokens that it includes, tightest first.
OVERLAPS = {"special": (), "exact": ("exact",), "case": ("exact", "case"), "nospace": ("exact", "nospace")}
OVERLAPS["fuzzy"] = ("exact", "nospace", "fuzzy")
# Whose choices to repeat; each with the overlaps that tool has.
PARITIES = {"deepfocus": ("special", "exact", "fuzzy"), "ofa": ("exact", "case", "fuzzy")}


@dataclass(frozen=True)
class Overlap:
    """The tokens that two vocabularies share.

    Attributes:
      source: int32 (V_t,), the source token that is the same as the target token, -1 where there is none.
      rule: int8 (V_t,), by which of `RULES`.
    """

    source: np.ndarray
    rule: np.ndarray

    @property
    def special(self) -> np.ndarray:
        """int32 (V_t,): `source` for special tokens that match and tokens of an explicit mapping, else -1."""
        return np.where((self.rule == RULES.index("special")) | (self.rule == RULES.index("mapped")), self.source, -1)

    @property
    def shared(self) -> np.ndarray:
        """bool (V_t,): the token has a source token, by whatever rule."""
        return self.source >= 0

    def keeping(self, source: Vocabulary) -> "Overlap":
        """The same overlap for a target vocabulary that extends the source's: the first V_s tokens are the source's own.

        A mapping still overrides. Two tokens of the same bytes would otherwise both find the first of them.
        """
        size = len(source)
        held = source.is_token & (self.rule[:size] != RULES.index("mapped"))
        own_rule = np.where(source.special, RULES.index("special"), RULES.index("exact"))
        ids, rule = self.source.copy(), self.rule.copy()
        ids[:size] = np.where(held, np.arange(size), ids[:size])
        rule[:size] = np.where(held, own_rule, rule[:size])
        return Overlap(ids, rule)


def find_overlap(
    source: Vocabulary,
    target: Vocabulary,
    overlap: str = "exact",
    mapping: Sequence[tuple[str, str]] = (),
    *,
    symbols: bool = False,
    parity: str | None = None,
) -> Overlap:
    """Matches tokens by explicit mapping, then as special tokens, then by bytes.

    Args:
      source: V_s tokens.
      target: V_t tokens.
      overlap: one of `OVERLAPS`: how loosely bytes may match; "special" matches no ordinary token.
      mapping: (source token, target token) pairs, as the tokenizers spell them or as `readable` prints them, that override
        everything else.
      symbols: numbers, punctuation, signs and blanks may match as loosely as "fuzzy" allows, whatever `overlap` says (the
        symbol matches of FOCUS; Dobler and de Melo, 2023).
      parity: one of `PARITIES`: match what deepfocus 1.0.1 or OFA's code matches, and choose the source token that it chooses.
        Special tokens are then ordinary strings, as there.

    Returns:
      The shared tokens.

    Raises:
      UserError: an unknown rule or one that `parity` does not have, or a mapped token that its tokenizer does not have.
    """
    _check(overlap, symbols, parity)
    if parity == "deepfocus":
        found, names = deepfocus_overlap(source, target, exact=overlap != "special", fuzzy=overlap == "fuzzy", symbols=symbols)
    elif parity == "ofa":
        found, names = ofa_overlap(source, target, fuzzy=overlap != "exact")
    else:
        found, names = _by_bytes(source, target, overlap, symbols)
    rule = np.array([RULES.index(name) for name in names], np.int8)
    for source_id, target_id in mapped_ids(mapping, source, target):
        found[target_id], rule[target_id] = source_id, RULES.index("mapped")
    return Overlap(found, rule)


def _check(overlap: str, symbols: bool, parity: str | None) -> None:
    if overlap not in OVERLAPS:
        raise UserError(f"overlap {overlap!r}: unknown; expected one of {', '.join(OVERLAPS)}")
    if parity is None:
        return
    if parity not in PARITIES:
        raise UserError(f"parity {parity!r}: unknown for the overlap; expected one of {', '.join(PARITIES)}")
    if overlap not in PARITIES[parity]:
        raise UserError(f"overlap {overlap!r}: {parity} has no such rule; expected one of {', '.join(PARITIES[parity])}")
    if symbols and parity != "deepfocus":
        raise UserError(f"symbols: {parity} has no rule for symbols; leave out one of the two")


def _by_bytes(source: Vocabulary, target: Vocabulary, overlap: str, symbols: bool) -> tuple[np.ndarray, list[str]]:
    """Returns int32 (V_t,) source ids and the rule of each."""
    found = match_special(source, target)
    names = np.where(found >= 0, "special", "none").astype(object)
    for name in OVERLAPS[overlap]:
        same = match(source, target, name)
        new = (found < 0) & (same >= 0)
        found[new], names[new] = same[new], name
    if symbols and overlap != "fuzzy":
        wanted = (found < 0) & _is_symbol(target)
        # Of the fuzzy candidates the most alike is taken: the exact one wherever there is one.
        same = match(source, target, "fuzzy")
        new = wanted & (same >= 0)
        found[new], names[new] = same[new], "symbols"
    return found, names.tolist()


def match(source: Vocabulary, target: Vocabulary, rule: str = "exact") -> np.ndarray:
    """Finds for every target token the source token that is the same piece of text.

    Of several candidates the one is taken that is alike in being a byte-fallback token or not, then in starting a word, then in
    case; then the lowest id. Special tokens and holes match nothing: see `match_special`.

    Args:
      source: V_s tokens.
      target: V_t tokens.
      rule: "exact": same bytes, same word start; "case": the same text but for case, same word start (OFA); "nospace": same
        bytes after one leading space (SALT, appendix A); "fuzzy": nospace without case (FOCUS's fuzzy match).

    Returns:
      int32 (V_t,), source ids, -1 where nothing matches.

    Raises:
      UserError: an unknown rule.
    """
    if rule not in _KEYS:
        raise UserError(f"{rule}: unknown rule for matching tokens; expected one of {', '.join(_KEYS)}")
    candidates: dict[Hashable, list[int]] = defaultdict(list)
    for token_id, key in enumerate(_KEYS[rule](source)):
        if key is not None:
            candidates[key].append(token_id)
    found = np.full(len(target), -1, np.int32)
    for token_id, key in enumerate(_KEYS[rule](target)):
        ids = candidates.get(key) if key is not None else None
        if ids is None:
            continue
        found[token_id] = ids[0] if len(ids) == 1 else min(ids, key=functools.partial(_unlikeness, source, target, token_id))
    return found


def match_special(source: Vocabulary, target: Vocabulary) -> np.ndarray:
    """Finds for every special target token the special source token that does the same.

    That is the one that spells the same string, which says more than a role: the tokenizer of a chat model names <|im_start|>
    as its bos, and its <|endoftext|> still stands between documents. Without one, that with the most roles in common (bos
    counts as cls, eos as sep), then the one whose shared role comes first in `ROLES`, then the lowest id.

    Returns:
      int32 (V_t,), source ids, -1 for ordinary tokens and where nothing matches.
    """
    found = np.full(len(target), -1, np.int32)
    source_ids = [int(token_id) for token_id in np.flatnonzero(source.special)]
    by_string = {source.strings[token_id]: token_id for token_id in reversed(source_ids)}
    # A vocabulary may hold thousands of special tokens (Gemma: 6,000 reserved ones), but few with a role.
    source_roles = {i: _wide_roles(source.roles[i]) for i in source_ids if source.roles[i] & set(ROLES)}
    for token_id in np.flatnonzero(target.special):
        if (named := by_string.get(target.strings[token_id])) is not None:
            found[token_id] = named
            continue
        roles = target.roles[token_id] & set(ROLES)
        shared = {s: [i for i, role in enumerate(ROLES) if role in roles and role in source_roles[s]] for s in source_roles}
        sharing = [s for s in source_roles if shared[s]]
        if sharing:
            found[token_id] = min(sharing, key=lambda s, shared=shared: (-len(shared[s]), shared[s], s))
    return found


def _bare_keys(vocabulary: Vocabulary) -> list[bytes | None]:
    """Bytes after one leading space; None for tokens that match nothing."""
    rows = zip(vocabulary.bytes, vocabulary.word_start.tolist(), vocabulary.special.tolist(), strict=True)
    return [None if special or not raw else raw[1:] if start else raw for raw, start, special in rows]


def _exact_keys(vocabulary: Vocabulary) -> list[Hashable]:
    keys = zip(_bare_keys(vocabulary), vocabulary.word_start.tolist(), strict=True)
    return [None if bare is None else (bare, start) for bare, start in keys]


def _case_keys(vocabulary: Vocabulary) -> list[Hashable]:
    return [key and (_lower(key[0]), key[1]) for key in _exact_keys(vocabulary)]


def _fuzzy_keys(vocabulary: Vocabulary) -> list[Hashable]:
    return [None if bare is None else _lower(bare) for bare in _bare_keys(vocabulary)]


def _lower(raw: bytes) -> bytes:
    try:
        return raw.decode().lower().encode()
    except UnicodeDecodeError:
        return raw


_KEYS: dict[str, Callable[[Vocabulary], list[Hashable]]] = {
    "exact": _exact_keys, "case": _case_keys, "nospace": _bare_keys, "fuzzy": _fuzzy_keys,
}  # fmt: skip


def _unlikeness(source: Vocabulary, target: Vocabulary, target_id: int, source_id: int) -> tuple:
    """Sorts candidates: a tokenizer writes "A" with the token "A" and never with <0x41>, so the two are kept apart first."""
    start = source.word_start[source_id]
    same_start = start == target.word_start[target_id]
    bare = source.bytes[source_id][1:] if start else source.bytes[source_id]
    wanted = target.bytes[target_id][1:] if target.word_start[target_id] else target.bytes[target_id]
    fallback = is_byte_fallback(source, source_id) != is_byte_fallback(target, target_id)
    return fallback, not same_start, bare != wanted, source_id


def is_byte_fallback(vocabulary: Vocabulary, token_id: int) -> bool:
    """Whether the token is one of SentencePiece's <0x00> to <0xFF>."""
    return len(vocabulary.bytes[token_id]) == 1 and BYTE_TOKEN.fullmatch(vocabulary.strings[token_id]) is not None


def _is_symbol(vocabulary: Vocabulary) -> np.ndarray:
    """bool (V,): an ordinary token that is a number, or punctuation and signs only, or blank."""
    return np.array([bare is not None and _symbolic(bare) for bare in _bare_keys(vocabulary)], bool)


def _symbolic(bare: bytes) -> bool:
    try:
        text = bare.decode().strip()
    except UnicodeDecodeError:
        return False
    return text.isnumeric() or all(c in string.punctuation or unicodedata.category(c)[0] in "PS" for c in text)


def _wide_roles(roles: frozenset[str]) -> set[str]:
    return {*roles, *(SAME_ROLE[role] for role in roles if role in SAME_ROLE)}
