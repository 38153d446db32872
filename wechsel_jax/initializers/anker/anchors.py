"""Pairs of tokens of two languages that are taken to mean the same: from a dictionary, and from equal bytes."""

import functools
import unicodedata
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from wechsel_jax.tokens import Vocabulary
from wechsel_jax.tokens.overlap import is_byte_fallback

# Where a pair comes from; `Anchors.rule` holds the position in this list.
RULES = ("dictionary", "equal", "learned")
# Fewer pairs to start from hardly say what corresponds to what.
FEW_ANCHORS = 200
# Fewer words of a dictionary do not show whether a language writes spaces.
_FEW_WORDS = 20


@dataclass(frozen=True)
class Anchors:
    """A pairs of tokens; no token is in two of them.

    Attributes:
      source: int32 (A,).
      target: int32 (A,).
      rule: int8 (A,), where the pair comes from, by position in `RULES`.
    """

    source: np.ndarray
    target: np.ndarray
    rule: np.ndarray

    def __len__(self) -> int:
        return len(self.source)

    def counts(self) -> dict[str, int]:
        """How many pairs come from where."""
        return {name: int((self.rule == place).sum()) for place, name in enumerate(RULES)}

    def joined(self, other: "Anchors") -> "Anchors":
        """These pairs, then those of `other` of which neither token has a pair yet."""
        new = ~np.isin(other.source, self.source) & ~np.isin(other.target, self.target)
        fields = ((getattr(self, name), getattr(other, name)[new]) for name in ("source", "target", "rule"))
        return Anchors(*(np.concatenate(pair) for pair in fields))

    def take(self, where: np.ndarray | slice) -> "Anchors":
        """The pairs that `where` selects."""
        return Anchors(self.source[where], self.target[where], self.rule[where])


@dataclass(frozen=True)
class Candidates:
    """n pairs of tokens that may become anchors; a token may be in several.

    Attributes:
      source: int64 (n,).
      target: int64 (n,).
      rule: int8 (n,), see `RULES`.
      group: int64 (n,), number of the dictionary's source word, without case; -1 where the pair is not of the dictionary.
    """

    source: np.ndarray
    target: np.ndarray
    rule: np.ndarray
    group: np.ndarray

    def take(self, where: np.ndarray) -> "Candidates":
        """The pairs that `where` selects."""
        return Candidates(self.source[where], self.target[where], self.rule[where], self.group[where])


def find_candidates(source: Vocabulary, target: Vocabulary, pairs: Sequence[tuple[str, str]]) -> Candidates:
    """Finds the pairs of tokens that a dictionary or equal bytes suggest.

    An entry of the dictionary stands for its spellings as given, in lower case and with a capital letter, the same on both
    sides as far as case tells, at the start of a word and inside one; both sides must be single tokens. In a language that
    writes no spaces (more than twice as many words of the dictionary are tokens without one before them than with one, and 20
    or more) the token that no space begins is also a translation of one that a space begins. Tokens of equal bytes and equal
    word start are digits, punctuation, names, and words that both languages write the same.

    Args:
      source: V_s tokens.
      target: V_t tokens.
      pairs: (source word, target word); empty where there is no dictionary.

    Returns:
      Distinct pairs; of a pair that both rules find, the dictionary's is kept.
    """
    found: dict[tuple[int, int], tuple[int, int]] = {}
    groups: dict[str, int] = {}
    source_ids, target_ids = _ids(source), _ids(target)
    source_tokens, target_tokens = _finder(source_ids), _finder(target_ids)
    sides = zip((source_tokens, target_tokens), ([pair[side] for pair in pairs] for side in (0, 1)), strict=True)
    unspaced = [_writes_no_spaces(*side) for side in sides]
    # Which token of either word: 0 at the start of a word, 1 inside one.
    places = [(0, 0), (1, 1)]
    if unspaced[0] != unspaced[1]:
        places.append((int(unspaced[0]), int(unspaced[1])))
    for source_word, target_word in pairs:
        group = groups.setdefault(source_word.lower(), len(groups))
        for one, other in _spellings(source_word, target_word):
            # Most words are no token, and their translations need not be looked up.
            if (tokens := source_tokens(one)) != (None, None):
                others = target_tokens(other)
                for here, there in places:
                    if None not in (pair := (tokens[here], others[there])):
                        found.setdefault(pair, (RULES.index("dictionary"), group))
    for raw, target_id in target_ids.items():
        if raw in source_ids:
            found.setdefault((source_ids[raw], target_id), (RULES.index("equal"), -1))
    table = np.array([(*pair, *origin) for pair, origin in sorted(found.items())], np.int64).reshape(-1, 4)
    return Candidates(table[:, 0], table[:, 1], table[:, 2].astype(np.int8), table[:, 3])


def _ids(vocabulary: Vocabulary) -> dict[bytes, int]:
    """Bytes to id; of several tokens the lowest, and one that stands in for a character last, since no text is cut so.

    WordPiece writes "," alike with a space before it and without one, which is how others mostly write it.
    """
    ids: dict[bytes, int] = {}
    fallback: dict[bytes, int] = {}
    for token_id, (raw, special) in enumerate(zip(vocabulary.bytes, vocabulary.special.tolist(), strict=True)):
        if raw and not special:
            mark = vocabulary.strings[token_id] if vocabulary.kind == "wordpiece" else ""
            if len(mark) == 1 and unicodedata.category(mark)[0] in "PS":
                raw = mark.encode()
            (fallback if is_byte_fallback(vocabulary, token_id) else ids).setdefault(raw, token_id)
    return fallback | ids


def _finder(ids: dict[bytes, int]) -> Callable[[str], tuple[int | None, int | None]]:
    """Returns what finds the token of a word at its start and inside one; words come in many entries and spellings."""

    @functools.cache
    def find(word: str) -> tuple[int | None, int | None]:
        raw = word.encode()
        return ids.get(b" " + raw), ids.get(raw)

    return find


def _writes_no_spaces(find: Callable[[str], tuple[int | None, int | None]], words: Iterable[str]) -> bool:
    """Whether far more of the words are tokens that no space begins than tokens that one begins, and not by a few words."""
    begun, inside = 0, 0
    for word in set(words):
        tokens = find(word)
        begun, inside = begun + (tokens[0] is not None), inside + (tokens[1] is not None)
    # As many are of small vocabularies of languages that do write spaces, such as Swahili.
    return inside > 2 * begun and inside >= _FEW_WORDS


def _spellings(source: str, target: str) -> set[tuple[str, str]]:
    """German writes nouns with a capital: "house", "Haus" is an entry as it stands, and "House", "Haus" one in title case."""
    return {(source, target), (source.lower(), target.lower()), (_capital(source), _capital(target)), (source.lower(), target)}


def _capital(word: str) -> str:
    return word[:1].upper() + word[1:]


def choose_anchors(
    candidates: Candidates, source_counts: np.ndarray, target_counts: np.ndarray, *, least_count: int = 1, most: int = 0
) -> Anchors:
    """Chooses pairs one to one, those first whose frequency ranks are most alike.

    The rank is relative: the logarithm of rank / number of tokens that occur. What a text hardly uses says little about
    contexts, so both tokens must occur.

    Args:
      candidates: n pairs.
      source_counts: int (V_s,), how often each token occurs.
      target_counts: int (V_t,).
      least_count: of both tokens.
      most: at most so many anchors, those whose rarer token is most frequent; 0: all.

    Returns:
      The anchors, by source id.
    """
    ranks = _log_ranks(source_counts)[candidates.source], _log_ranks(target_counts)[candidates.target]
    usable = (source_counts[candidates.source] >= least_count) & (target_counts[candidates.target] >= least_count)
    distance = np.abs(ranks[0] - ranks[1])
    order = np.lexsort((candidates.target, candidates.source, ranks[0] + ranks[1], distance))
    taken_source, taken_target = np.zeros(len(source_counts), bool), np.zeros(len(target_counts), bool)
    chosen = []
    for place in order[usable[order]].tolist():
        s, t = candidates.source[place], candidates.target[place]
        if not (taken_source[s] or taken_target[t]):
            taken_source[s] = taken_target[t] = True
            chosen.append(place)
    chosen = np.array(chosen, np.int64)
    if most and len(chosen) > most:
        rarer = np.maximum(ranks[0], ranks[1])[chosen]
        chosen = chosen[np.argsort(rarer, kind="stable")[:most]]
    chosen = chosen[np.argsort(candidates.source[chosen], kind="stable")]
    fields = candidates.source[chosen].astype(np.int32), candidates.target[chosen].astype(np.int32)
    return Anchors(*fields, candidates.rule[chosen])


def _log_ranks(counts: np.ndarray) -> np.ndarray:
    """(V,) log of rank / number of tokens that occur, 1 the most frequent; equal counts have the mean of their ranks."""
    ordered = np.sort(-np.asarray(counts))
    first, last = np.searchsorted(ordered, -counts, "left"), np.searchsorted(ordered, -counts, "right")
    return np.log((first + last + 1) / 2) - np.log(max(int((counts > 0).sum()), 1))
