"""Links between the tokens of sentence pairs: read, joined, scored, and made into one link for each token.

All pairs' links are one array, (K, 2), of places in the first and in the second sentence; `starts` says where pairs begin.
"""

import itertools
import os
import re
from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from wechsel_jax.errors import UserError
from wechsel_jax.text.files import read_lines

SYMMETRIES = ("none", "intersection", "union", "grow-diag", "grow-diag-final", "grow-diag-final-and")
_LINKS = "the links of a pair on each line, as fast_align writes them: 0-0 1-2 2-1"
# "p" stands for a possible link in files of people's links; what fast_align adds behind ":" or " ||| " is its score.
_LINK = re.compile(r"(\d{1,9})([-p?])(\d{1,9})(?::\S*)?")
# Of a place in a sentence, which has at most nine digits.
_PLACE_BITS = 30
_AROUND = tuple(place for place in itertools.product((-1, 0, 1), repeat=2) if place != (0, 0))


@dataclass(frozen=True)
class Links:
    """Links of n pairs.

    Attributes:
      places: int32 (K, 2), in the first and in the second sentence, of all pairs one after the other.
      starts: int64 (n + 1,), where those of a pair begin.
    """

    places: np.ndarray
    starts: np.ndarray

    def of(self, pair: int) -> list[tuple[int, int]]:
        """The links of one pair."""
        return [(int(i), int(j)) for i, j in self.places[self.starts[pair] : self.starts[pair + 1]]]

    @property
    def pairs(self) -> np.ndarray:
        """int64 (K,): the pair of each link."""
        return np.repeat(np.arange(len(self.starts) - 1), np.diff(self.starts))


def read_links(
    path: str | os.PathLike,
    first_sizes: np.ndarray,
    second_sizes: np.ndarray,
    *,
    lines: Sequence[int] | None = None,
    read: int | None = None,
    to: int | None = None,
    sure: bool = False,
) -> Links:
    """Reads links in the format of fast_align, eflomal and Moses ("Pharaoh"): "i-j", i in the first sentence, both from 0.

    fast_align's -r computes the other direction and still writes the first sentence's place first: both are read alike.

    Args:
      path: a line for each line of the parallel text, empty where nothing is linked.
      first_sizes: int (n,), tokens of the first sentences, as the aligner read them.
      second_sizes: int (n,), of the second.
      lines: which lines of the file the n pairs are; all where None.
      read: how many lines there must be; n where None.
      to: 0 or 1, the side whose tokens have at most one link each, as one direction of an aligner has; a file in which only the
        other side's have is refused as that of the other direction. None: any links.
      sure: leave out the possible links of a file of people's, "ipj" and "i?j".

    Raises:
      UserError: the file is missing, has another number of lines, a link is no link or out of range (file and line are named),
        or it is the other direction's.
    """
    lines = range(len(first_sizes)) if lines is None else lines
    expected = len(first_sizes) if read is None else read
    wanted = {line: pair for pair, line in enumerate(lines)}
    # Tuples of Python's numbers would take six times the memory.
    places, starts, number = array("i"), [0], 0
    for number, text in read_lines(path, _LINKS):
        pair = wanted.get(number - 1)
        if pair is None:
            continue
        for item in text.split("|||")[0].split():
            match = _LINK.fullmatch(item)
            if not match:
                raise UserError(f"{path}: line {number}: {item[:20]!r} is no link; expected {_LINKS}; mend the line")
            i, j = int(match[1]), int(match[3])
            if i >= first_sizes[pair] or j >= second_sizes[pair]:
                swapped = "; the other way round it would fit: name the languages in the aligner's order"
                raise UserError(
                    f"{path}: line {number}: link {i}-{j} is out of range of sentences of {first_sizes[pair]} and "
                    f"{second_sizes[pair]} tokens; expected places from 0, of the same tokens (see --units)"
                    + (swapped if j < first_sizes[pair] and i < second_sizes[pair] else "")
                )
            if not sure or match[2] == "-":
                places.extend((i, j))
        starts.append(len(places) // 2)
    if number != expected:
        raise UserError(f"{path}: has {number} lines; expected {expected}, one for each line of the parallel text")
    links = Links(np.asarray(places, np.int32).reshape(-1, 2), np.asarray(starts, np.int64))
    if to is not None:
        owners = links.pairs << _PLACE_BITS
        single = [bool(np.diff(np.sort(owners + links.places[:, side])).all()) for side in (0, 1)]
        if single[1 - to] and not single[to]:
            raise UserError(
                f"{path}: links each token of the {('first', 'second')[1 - to]} sentences at most once, and some of the "
                f"{('second', 'first')[1 - to]} more often; expected the other direction's file (fast_align "
                f"{'without' if to else 'with'} -r); swap the two"
            )
    return links


def last_links(links: Links, to_starts: np.ndarray, to: int) -> np.ndarray:
    """One link for each token of a side: where it has several, the last in the order of `links` (TreLM's rule).

    Args:
      links: of n pairs.
      to_starts: int (n + 1,), where the sentences of that side begin.
      to: 0 or 1, the side.

    Returns:
      int32 (T,): the place in the other sentence, -1 where there is none.
    """
    found = np.full(int(to_starts[-1]), -1, np.int32)
    # Of repeated places, numpy keeps what is assigned last.
    found[np.asarray(to_starts)[links.pairs] + links.places[:, to]] = links.places[:, 1 - to]
    return found


def symmetrize(
    to_second: np.ndarray, first_starts: np.ndarray, to_first: np.ndarray, second_starts: np.ndarray, how: str
) -> Links:
    """Joins the links of both directions (Och and Ney, 2003, section 4; Koehn, Och and Marcu, 2003, section 3.2).

    Args:
      to_second: int (T_0,), for each token of the first sentences the place that it is linked with, -1 for none: what a model
        of the first given the second has found.
      first_starts: int (n + 1,).
      to_first: int (T_1,), for each token of the second sentences.
      second_starts: int (n + 1,).
      how: "intersection", "union", "grow-diag" (the intersection, and from the union what stands next to a link and gives a
        token its first), "grow-diag-final" (and then what gives any token its first) or "grow-diag-final-and" (what gives two
        tokens their first).

    Returns:
      The links, ordered by pair, first and second place.
    """
    n = len(first_starts) - 1
    keys = []
    for links, starts, side in ((to_second, first_starts, 0), (to_first, second_starts, 1)):
        pairs = np.repeat(np.arange(n), np.diff(starts))
        own, other = np.arange(len(links)) - np.asarray(starts)[pairs], np.asarray(links, np.int64)
        both = (own, other) if side == 0 else (other, own)
        # One number for a link, by its token among all first sentences' and by its place in the second: sorted much faster.
        keys.append((((np.asarray(first_starts)[pairs] + both[0]) << _PLACE_BITS) + both[1])[other >= 0])
    found, times = np.unique(np.concatenate(keys), return_counts=True)
    token, second = found >> _PLACE_BITS, found & ((1 << _PLACE_BITS) - 1)
    pair = np.repeat(np.arange(n), np.diff(first_starts))[token]
    union = np.stack([pair, token - np.asarray(first_starts)[pair], second], axis=1)
    if how == "intersection":
        union = union[times == 2]
    elif how != "union":
        bounds = np.searchsorted(union[:, 0], np.arange(n + 1))
        kept = np.concatenate(
            [np.zeros(0, bool), *(_grown(union[a:b, 1:], times[a:b] == 2, how) for a, b in itertools.pairwise(bounds))]
        )
        union = union[kept]
    return Links(union[:, 1:].astype(np.int32), np.searchsorted(union[:, 0], np.arange(n + 1)))


def _grown(union: np.ndarray, sure: np.ndarray, how: str) -> np.ndarray:
    """Which links of one pair's union (K, 2), in order, are kept: bool (K,)."""
    places = [(int(i), int(j)) for i, j in union]
    kept = {place for place, one in zip(places, sure, strict=True) if one}
    rows, columns = {i for i, _ in kept}, {j for _, j in kept}

    def add(allowed: Callable[[int, int], bool]) -> bool:
        before = len(kept)
        for i, j in places:
            if (i, j) not in kept and allowed(i, j):
                kept.add((i, j))
                rows.add(i)
                columns.add(j)
        return len(kept) > before

    def near(i: int, j: int) -> bool:
        return (i not in rows or j not in columns) and any((i + a, j + b) in kept for a, b in _AROUND)

    while add(near):
        pass
    if how == "grow-diag-final":
        add(lambda i, j: i not in rows or j not in columns)
    elif how == "grow-diag-final-and":
        add(lambda i, j: i not in rows and j not in columns)
    return np.asarray([place in kept for place in places], bool)


def alignment_error_rate(found: Links, sure: Links, possible: Links | None = None) -> float:
    """AER (Och and Ney, 2003, section 5.2): 1 - (|A n S| + |A n P|) / (|A| + |S|) over all pairs.

    Args:
      found: A.
      sure: S, links that people agree on.
      possible: P, links that some of them drew; S is part of it. S alone where None.
    """

    def of(links: Links) -> set[tuple[int, int, int]]:
        return {(int(pair), int(i), int(j)) for pair, (i, j) in zip(links.pairs, links.places, strict=True)}

    a, s = of(found), of(sure)
    p = s | of(possible) if possible is not None else s
    return 1 - (len(a & s) + len(a & p)) / max(1, len(a) + len(s))
