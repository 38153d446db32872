"""Parallel text to pairs with links on disk: read, tokenised, aligned in both directions and written whole.

Everything is in memory at once: about 1 kB for each pair, and with the aligner "diagonal" what `align_diagonal` says.
"""

import hashlib
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import tokenizers

from wechsel_jax.aligner.diagonal import align_diagonal
from wechsel_jax.aligner.eflomal import align_eflomal
from wechsel_jax.aligner.links import SYMMETRIES, Links, alignment_error_rate, last_links, read_links, symmetrize
from wechsel_jax.data.parallel import NO_ALIGNER, Sentences, vocabulary_hash, write_pairs
from wechsel_jax.data.selection import TRAIN, VALIDATION, facts, side_of
from wechsel_jax.errors import UserError
from wechsel_jax.files import new_directory, refuse_directory, temporary_directory
from wechsel_jax.records.run import SIDES
from wechsel_jax.text.files import LONGEST_DOCUMENT
from wechsel_jax.text.parallel import BESIDE, Pairs, language_codes, read_pairs
from wechsel_jax.text.sources import find_sources, identify
from wechsel_jax.tokens import load_tokenizer
from wechsel_jax.tokens.encoding import GROUP_TEXTS, around, encode, plain_backend
from wechsel_jax.tokens.extension import place_beside

ALIGNERS = ("diagonal", "eflomal", NO_ALIGNER)
UNITS = ("tokens", "words", "special_tokens")
# Of a word on average; whole sentences without spaces have more.
_MOST_TOKENS = 8


def align_pairs(
    texts: Sequence[str | os.PathLike],
    tokenizer: str | os.PathLike,
    output: str | os.PathLike,
    *,
    languages: Sequence[str] = (),
    first_tokenizer: str | os.PathLike | None = None,
    aligner: str = "diagonal",
    units: str = "tokens",
    symmetry: str = "none",
    links: Sequence[str | os.PathLike] = (),
    gold: str | os.PathLike | None = None,
    validation_fraction: float = 0.0,
    drop_empty: bool = False,
    max_document_bytes: int = LONGEST_DOCUMENT,
    overwrite: bool = False,
    log: Callable[[str], None] = lambda line: None,
) -> dict[str, dict[str, Any]]:
    """Writes what `ParallelRows.open` reads.

    Args:
      texts: parallel text, see `read_pairs`.
      tokenizer: of both languages: a directory, a tokenizer.json or a hub id.
      output: the directory to write; it appears whole or not at all.
      languages: codes of the first and the second sentences; found in names such as en-de.tsv where none are given.
      first_tokenizer: of the first language, where `tokenizer` is that of the second alone: they share no token, see
        `place_beside`.
      aligner: "diagonal" (`align_diagonal`; the same links every time), "eflomal" (the package; others each time) or "none": no
        links, for text of two languages that is not parallel, or for objectives that read none.
      units: what is linked: "tokens" as TreLM does it, or "words" with white space between them, of which token k of n is
        linked with token k m // n of the m of the other word; "special_tokens", for links from files, are tokens with the
        special ones around a sentence.
      symmetry: how both directions are joined, one of `SYMMETRIES`; "none": the tokens of either side have their own link, as
        in TreLM. Where a token has several links, the last counts.
      links: files of another aligner instead: one, for both directions; or two, that of fast_align and that of its -r.
      gold: people's links of the units, to count the error rate on (`alignment_error_rate`) of the one link that each unit of a
        side is left with: a line for each line of the text, as `read_links` has them, "1p2" for possible ones; pairs of empty
        lines are not counted.
      validation_fraction: share of the pairs that becomes output/validation, the others output/train; by their text alone.
      drop_empty: leave out pairs of which one side is blank; otherwise they are refused.
      max_document_bytes: a longer line is refused.
      overwrite: replace what this function wrote.
      log: called with progress lines.

    Returns:
      What pairs.json says, for "" or for "train" and "validation"; with `gold` "aligner" has "gold": the "pairs" that are
      counted and the "error_rates" of the links of the first and of the second sentences' units.

    Raises:
      UserError: as `read_pairs` and `read_links`; the tokenizer has no padding token, a package is missing, a side of the split
        is empty, or `gold` has no sure links.
    """
    output = Path(output)
    for name, value, known in (("aligner", aligner, ALIGNERS), ("units", units, UNITS), ("symmetry", symmetry, SYMMETRIES)):
        if value not in known:
            raise UserError(f"{name} {value!r}: unknown; expected one of {', '.join(known)}")
    if not 0 <= validation_fraction < 1:
        raise UserError(f"validation_fraction: is {validation_fraction}; expected a share from 0 to less than 1")
    if len(links) > 2 or (len(links) == 1 and symmetry != "none"):
        raise UserError(f"links: {len(links)} files and symmetry {symmetry!r}; expected one with 'none', or both directions'")
    if gold is not None and aligner == NO_ALIGNER and not links:
        raise UserError(f"gold {gold}: there are no links to compare with it; leave it out, or choose another aligner")
    if units == "special_tokens" and not links:
        raise UserError("units 'special_tokens': is for links from files; expected 'tokens' or 'words', or files of links")
    files = [part for name in texts for part in os.fspath(name).split(BESIDE)]
    read = [*files, *links, tokenizer, *(one for one in (first_tokenizer, gold) if one is not None)]
    refuse_directory(output, "align", overwrite, read)
    codes = language_codes(languages, texts)
    loaded = load_tokenizer(tokenizer)
    if loaded.pad_token_id is None:
        raise UserError(f"{tokenizer}: has no padding token, which stands for what is not linked; name one in its files")
    log("reading the parallel text")
    pairs = read_pairs(texts, codes, drop_empty=drop_empty, longest=max_document_bytes)
    backend, behind = plain_backend(loaded), 0
    before, after = around(backend)
    backends = [backend, backend]
    if first_tokenizer is not None:
        first = load_tokenizer(first_tokenizer)
        loaded, behind = place_beside(loaded, first)
        backend, backends = plain_backend(loaded), [plain_backend(first), backend]
    log("tokenising")
    given = zip(backends, (pairs.first, pairs.second), (behind, 0), strict=True)
    sides = tuple(_encoded(one, text, units == "words", more) for one, text, more in given)
    for code, side in zip(codes, sides, strict=True):
        each = side.tokens.tokens.size / max(1, side.units.tokens.size)
        if each > _MOST_TOKENS:
            raise UserError(
                f"units 'words': what is between white space of {code} has {each:.0f} tokens on average; expected a language "
                "that is written with spaces between words; use units 'tokens'"
            )
    usable = np.stack([side.tokens.sizes > 0 for side in sides]).all(axis=0)
    chosen = {"": usable}
    if validation_fraction:
        joined = [f"{one}\t{two}" for one, two in zip(pairs.first, pairs.second, strict=True)]
        held_out = side_of(facts(joined), validation_fraction)
        chosen = {name: usable & (held_out == side) for name, side in zip(SIDES, (TRAIN, VALIDATION), strict=True)}
    for name, rows in chosen.items():
        if not rows.any():
            what = f"validation_fraction {validation_fraction}: leaves no pair for {name}" if name else f"{texts[0]}: no token"
            raise UserError(f"{what}; expected another share, or more text")
    extra = len(before) + len(after) if units == "special_tokens" else 0
    drawn = () if gold is None else _drawn(gold, pairs, [side.units.sizes + extra for side in sides])
    log("aligning")
    found = _found(pairs, sides, aligner, symmetry, links, extra, output, log)
    rates = [_error_rate(found[to], sides[to].units.sizes + extra, to, *drawn) for to in (0, 1) if gold is not None]
    if extra:
        found = [_without(one, sides, to, len(before), extra) for to, one in enumerate(found)]
    if units == "words":
        found = [_of_tokens(one, sides[to], sides[1 - to]) for to, one in enumerate(found)]
    size = max(backend.get_vocab(with_added_tokens=True).values()) + 1
    described = {
        "languages": list(codes),
        "vocabulary_size": size,
        **{"before": before, "after": after, "pad_id": loaded.pad_token_id},
        "tokenizer": {
            "name": Path(tokenizer).name,
            "sha256": hashlib.sha256(loaded.backend_tokenizer.to_str().encode()).hexdigest(),
            "vocabulary": vocabulary_hash(backend, size),
        },
        "inputs": identify(find_sources(files), 1)[1],
        "aligner": {"name": "files" if links else aligner, "units": units, "symmetry": symmetry},
        "validation_fraction": validation_fraction,
        "versions": {"tokenizers": tokenizers.__version__},
    }
    if first_tokenizer is not None:
        described["tokenizer"]["first"] = Path(first_tokenizer).name
    if gold is not None:
        counted = int((np.diff(drawn[1].starts) > 0).sum())
        inputs = identify(find_sources([gold]), 1)[1]
        described["aligner"]["gold"] = {"pairs": counted, "error_rates": rates, "inputs": inputs}
    if links:
        described["aligner"]["links"] = identify(find_sources(list(links)), 1)[1]
    described["dropped"] = {
        "blank": pairs.blank,
        "one_sided": pairs.one_sided,
        "without_tokens": int((~usable).sum()),
    }
    with new_directory(output, "align", overwrite) as directory:
        written = {}
        for name, rows in chosen.items():
            (directory / name).mkdir(exist_ok=True)
            kept = [_selected(side.tokens, one, rows) for side, one in zip(sides, found, strict=True)]
            written[name] = write_pairs(directory / name, *zip(*kept, strict=True), described)
    return written


class _Encoded(NamedTuple):
    """One side of the pairs.

    Attributes:
      tokens: of the sentences.
      units: what is aligned: the tokens, or numbers of the words.
      words: int64 (T,), for words: which word of the sentence each token is of; empty for tokens.
    """

    tokens: Sentences
    units: Sentences
    words: np.ndarray


def _joined(parts: Sequence[Sequence[int]]) -> Sentences:
    starts = np.cumsum([0, *map(len, parts)]).astype(np.int64)
    return Sentences(np.fromiter((token for part in parts for token in part), np.int64, starts[-1]), starts)


def _encoded(backend: tokenizers.Tokenizer, texts: Sequence[str], words: bool, more: int) -> _Encoded:
    """Tokens with `more` added to their ids."""
    if not words:
        tokens = _joined([[i + more for i in ids] for ids in encode(backend, texts, special_tokens=False)])
        return _Encoded(tokens, tokens, np.zeros(0, np.int64))
    numbers: dict[str, int] = {}
    ids, units, owners = [], [], []
    for start in range(0, len(texts), GROUP_TEXTS):
        group = texts[start : start + GROUP_TEXTS]
        for text, found in zip(group, backend.encode_batch(group, add_special_tokens=False), strict=True):
            spread = text.lower().split()
            units.append([numbers.setdefault(word, len(numbers)) for word in spread])
            ids.append([i + more for i in found.ids])
            # Lower case may be longer; where words begin is of the text itself. By a token's last character: its first may be
            # the space before the word.
            characters = np.fromiter(map(str.isspace, text), bool, len(text))
            begins = np.flatnonzero(~characters & np.concatenate([[True], characters])[:-1])
            last = np.asarray(found.offsets, np.int64).reshape(-1, 2)[:, 1] - 1
            owners.append(np.maximum(np.searchsorted(begins, last, side="right") - 1, 0))
    return _Encoded(_joined(ids), _joined(units), np.concatenate(owners))


def _found(
    pairs: Pairs,
    sides: Sequence[_Encoded],
    aligner: str,
    symmetry: str,
    links: Sequence[str | os.PathLike],
    extra: int,
    output: Path,
    log: Callable[[str], None],
) -> list[np.ndarray]:
    """For the units of either side (U,), `extra` more in each sentence, the place of the unit linked with, -1 for none."""
    sizes = [side.units.sizes + extra for side in sides]
    starts = [np.concatenate([[0], np.cumsum(one)]) for one in sizes]
    if links:
        paths, options = list(links), {"lines": pairs.lines, "read": pairs.read}
        if len(paths) == 1:
            read = read_links(paths[0], *sizes, **options)
            return [last_links(read, starts[to], to) for to in (0, 1)]
        found = [
            last_links(read_links(path, *sizes, to=to, **options), starts[to], to)
            for to, path in ((1, paths[0]), (0, paths[1]))
        ]
        found = found[::-1]
    elif aligner == "eflomal":
        with temporary_directory(output) as directory:
            split = [np.split(side.units.tokens, side.units.starts[1:-1]) for side in sides]
            forward, backward = align_eflomal(*split, directory)
            found = [last_links(read_links(path, *sizes), starts[to], to) for to, path in ((0, backward), (1, forward))]
    elif aligner == NO_ALIGNER:
        return [np.full(side.units.tokens.size, -1, np.int64) for side in sides]
    else:
        found = []
        for to in (0, 1):
            log(f"the links of the {('first', 'second')[to]} sentences")
            source, target = sides[1 - to].units, sides[to].units
            found.append(align_diagonal(*source, *target, progress=log, place=pairs.place).links)
    if symmetry != "none":
        joined = symmetrize(found[0], starts[0], found[1], starts[1], symmetry)
        found = [last_links(joined, starts[to], to) for to in (0, 1)]
    return found


def _drawn(gold: str | os.PathLike, pairs: Pairs, sizes: Sequence[np.ndarray]) -> tuple[Links, Links]:
    """Links that people drew: those that they are sure of, and all."""
    sure, every = (read_links(gold, *sizes, lines=pairs.lines, read=pairs.read, sure=one) for one in (True, False))
    if not len(sure.places):
        raise UserError(f"{gold}: no link that people are sure of; expected some, as 0-0 1-2, on the lines of their pairs")
    return sure, every


def _error_rate(found: np.ndarray, sizes: np.ndarray, to: int, sure: Links, every: Links) -> float:
    """The error rate of the links of a side's units, on the pairs that people have linked."""
    linked = np.diff(every.starts) > 0
    pair, own = _places(Sentences(found, np.concatenate([[0], np.cumsum(sizes)])))
    kept = (found >= 0) & linked[pair]
    places = np.stack([own, found] if to == 0 else [found, own], axis=1)[kept]
    starts = np.concatenate([[0], np.cumsum(np.bincount(pair[kept], minlength=len(sizes)))])
    return alignment_error_rate(Links(places, starts), sure, every)


def _without(found: np.ndarray, sides: Sequence[_Encoded], to: int, before: int, extra: int) -> np.ndarray:
    """Links of tokens, of those of tokens with `before` special ones before a sentence and `extra` around it."""
    pairs, own = _places(sides[to].tokens)
    kept = found[sides[to].tokens.starts[pairs] + pairs * extra + before + own] - before
    return np.where((kept >= 0) & (kept < sides[1 - to].tokens.sizes[pairs]), kept, -1)


def _of_tokens(found: np.ndarray, target: _Encoded, source: _Encoded) -> np.ndarray:
    """Links of tokens from those of their words: of n and m tokens, k goes to k m // n."""

    def spans(side: _Encoded) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """The word of each token, and each word's first token and number of tokens."""
        pairs, own = _places(side.tokens)
        word = side.units.starts[pairs] + side.words
        first = np.full(side.units.tokens.size, np.iinfo(np.int64).max)
        np.minimum.at(first, word, own)
        return word, first, np.bincount(word, minlength=side.units.tokens.size)

    (word, first, count), (_, source_first, source_count) = spans(target), spans(source)
    pairs, own = _places(target.tokens)
    linked = found[word]
    other = source.units.starts[pairs] + np.maximum(linked, 0)
    place = source_first[other] + (own - first[word]) * source_count[other] // count[word]
    return np.where((linked >= 0) & (source_count[other] > 0), place, -1)


def _places(side: Sentences) -> tuple[np.ndarray, np.ndarray]:
    """The pair of each token, and its place in the sentence."""
    pairs = np.repeat(np.arange(len(side.starts) - 1), side.sizes)
    return pairs, np.arange(len(pairs)) - side.starts[pairs]


def _selected(side: Sentences, links: np.ndarray, rows: np.ndarray) -> tuple[Sentences, np.ndarray]:
    """The sentences of the pairs that `rows`, bool (n,), selects, and their links."""
    kept = np.repeat(rows, side.sizes)
    return Sentences(side.tokens[kept], np.concatenate([[0], np.cumsum(side.sizes[rows])])), links[kept]
