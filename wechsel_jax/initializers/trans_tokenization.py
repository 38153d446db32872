"""Trans-Tokenization: a new token is the mean of the source tokens that parallel text translates it into."""

import math
import re
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Annotated, NamedTuple
from unicodedata import category

import numpy as np
from scipy.sparse import csr_array

from wechsel_jax.aligner import DiagonalSettings, align_diagonal
from wechsel_jax.errors import UserError
from wechsel_jax.initializers.method import Method, Setting
from wechsel_jax.initializers.plan import Side, TransferPlan
from wechsel_jax.initializers.regression import Predicted, regressed_by_counts
from wechsel_jax.records import work
from wechsel_jax.tokens import Vocabulary
from wechsel_jax.tokens.overlap import Overlap, find_overlap

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

# fast_align -I 7, whose last iteration only writes the links, without -d, -o and -v: IBM's model 1.
_MODEL = DiagonalSettings(iterations=6, null=None, tension=0.0, fit_tension=False, alpha=0.0)
# fast_align's beam (-t): of a source word's translations, those of at least the power of the best one's probability.
_BEAM = 4
# What a token that stands for tokens without a translation gives to each of them; twice as much by source tokens that begin a
# word.
_PART = 1000
# Source tokens of a row.
_MOST = 256
_NUMBER = re.compile(rb" ?[0-9]{1,4}")


class Translations(NamedTuple):
    """Words that parallel text translates into each other.

    Attributes:
      source: N words as the source tokenizer cuts them, ids of tokens.
      target: the N words that they were aligned with, as the target tokenizer cuts them.
      counts: float64 (N,), how often: the expectation of the alignment model.
    """

    source: list[tuple[int, ...]]
    target: list[tuple[int, ...]]
    counts: np.ndarray


def find_translations(
    source_tokenizer: "PreTrainedTokenizerFast",
    target_tokenizer: "PreTrainedTokenizerFast",
    source_texts: Sequence[str],
    target_texts: Sequence[str],
    log: Callable[[str], None] | None = None,
    place: Callable[[int], str] = "pair {}".format,
) -> Translations:
    """Aligns the words of parallel text by IBM's model 1, as the package trans-tokenizers has fast_align do it.

    A word is a run of tokens with letters where they meet. (The package looks for letters in the tokens' spellings, which in
    byte-level tokenizers are not those of the text; here they are the text's, and vowel signs count as letters.) A model of six
    expectations gives each source word a distribution over target words; of these stay the ones that have at least the fourth
    power of the best one's probability, which is fast_align's beam.

    Args:
      source_tokenizer: of the source model.
      target_tokenizer: the new one.
      source_texts: n sentences.
      target_texts: their translations.
      log: called with progress lines.
      place: says where a pair of sentences stands, for errors.

    Returns:
      The pairs of words within the beam, with their expected counts.

    Raises:
      UserError: a pair is too long to be two sentences.
    """
    texts = ((source_tokenizer, source_texts), (target_tokenizer, target_texts))
    words: list[list[tuple[int, ...]]] = []
    flat, starts = [], []
    for tokenizer, sentences in texts:
        numbers: dict[tuple[int, ...], int] = {}
        cut = [[numbers.setdefault(word, len(numbers)) for word in found] for found in _words(tokenizer, sentences)]
        words.append(list(numbers))
        starts.append(np.cumsum([0, *map(len, cut)]))
        flat.append(np.fromiter((number for sentence in cut for number in sentence), np.int64, starts[-1][-1]))
    found = align_diagonal(flat[0], starts[0], flat[1], starts[1], _MODEL, progress=log, place=place)
    (first, second), counts = found.entries[found.entries[:, 0] >= 0].T, found.counts[found.entries[:, 0] >= 0]
    probability = counts / np.bincount(first, counts, len(words[0]))[first]
    best = np.zeros(len(words[0]))
    np.maximum.at(best, first, probability)
    kept = np.flatnonzero(probability >= best[first] ** _BEAM)
    return Translations([words[0][i] for i in first[kept]], [words[1][i] for i in second[kept]], counts[kept])


def _words(tokenizer: "PreTrainedTokenizerFast", texts: Sequence[str]) -> Iterator[list[tuple[int, ...]]]:
    """Yields the words of each text."""
    from wechsel_jax.tokens.encoding import GROUP_TEXTS, plain_backend  # which brings the tokenizers library

    backend = plain_backend(tokenizer)
    for begin in range(0, len(texts), GROUP_TEXTS):
        group = texts[begin : begin + GROUP_TEXTS]
        work.text(group)
        for text, encoding in zip(group, backend.encode_batch(group, add_special_tokens=False), strict=True):
            words: list[list[int]] = []
            open_until = -1
            for token, (start, end) in zip(encoding.ids, encoding.offsets, strict=True):
                if start <= open_until and start < end and _is_letter(text[start]):
                    words[-1].append(token)
                else:
                    words.append([token])
                open_until = end if start < end and _is_letter(text[end - 1]) else -1
            yield [*map(tuple, words)]


def _is_letter(character: str) -> bool:
    return character.isalpha() or category(character)[0] == "M"


def trans_tokenization(
    source: Side,
    target: Side,
    *,
    overlap: Overlap,
    pieces: Sequence[np.ndarray],
    translations: Translations,
    least_count: Annotated[int, Setting("Words that were aligned less often say nothing", 1, 1 << 30)] = 10,
    regression: Predicted = False,
    notes: Callable[[str], None] | None = None,
) -> TransferPlan:
    """Each row is the mean of the source rows that its token is translated into (Remy et al., 2024: Trans-Tokenization).

    Where the paper leaves a rule open, it is that of its authors' package, trans-tokenizers 0.1.4. Counts, rounded down, go
    from words to their tokens: of two words of one token each, the whole count; of others, one half to all pairs of their
    tokens alike, and one half to the pairs that stand side by side when both words are stretched to the same length. A token of
    the same bytes as a source token counts once more for that one, and a number of up to four digits for its first piece. The
    weights of a row are the counts divided by their sum.

    A token without counts gets those of the tokens that begin with it and of the longest tokens in it, each scaled to a sum of
    1,000, and twice that for source tokens that begin a word.

    Other than in the package: a token begins a word whatever the tokenizer's mark of that is (the package knows "▁" only);
    tokens are compared as bytes; those that got counts from others do not pass them on (there, in an order that is not fixed);
    special tokens are copied and take no other part; a row has its 256 most probable source tokens, since a plan is
    as wide as its widest row; and what has no counts then is random instead of the unknown token's row, which many models do
    not have.

    Args:
      source: V_s tokens; neither vectors nor embeddings are read.
      target: V_t tokens.
      overlap: shared tokens, which are copied: special ones, unless the user says otherwise.
      pieces: V_t arrays of source ids, what the source tokenizer makes of each target token's text.
      translations: of words, see `find_translations`.
      least_count: pairs of words with fewer counts are left out.
      regression: rows that are not copied are those of `regressed_by_counts`.
      notes: called with a sentence about how much was found.

    Returns:
      A convex plan, the most probable source token first; tokens without counts are random.

    Raises:
      UserError: no pair of words has counts enough.
    """
    enough = np.flatnonzero(np.floor(translations.counts) >= least_count)
    if not len(enough):
        raise UserError(
            f"trans_tokenization: no pair of words was aligned {least_count} times; expected more parallel text, or a smaller "
            "least_count"
        )
    found: list[tuple[int, int, int]] = []
    for i in enough:
        old, new, count = translations.source[i], translations.target[i], int(translations.counts[i])
        if len(old) == len(new) == 1:
            found.append((new[0], old[0], count))
            continue
        half, stretch = max(1, count // 2), math.gcd(len(old), len(new))
        found += [(token, other, max(1, half // len(old))) for token in new for other in old]
        beside, share = range(len(old) * len(new) // stretch), max(1, half // (len(old) // stretch))
        found += [(new[place * stretch // len(old)], old[place * stretch // len(new)], share) for place in beside]
    same = find_overlap(source.vocabulary, target.vocabulary, "exact").source
    found += [(row, same[row], 1) for row in np.flatnonzero(same >= 0)]
    numbers = (row for row, raw in enumerate(target.vocabulary.bytes) if _NUMBER.fullmatch(raw) and len(pieces[row]))
    found += [(row, pieces[row][0], 1) for row in numbers]
    rows, columns, values = np.array(found, np.int64).T
    plain = ~(target.vocabulary.special[rows] | source.vocabulary.special[columns])
    shape = len(target.vocabulary), len(source.vocabulary)
    counts = csr_array((values[plain], (rows[plain], columns[plain])), shape=shape)
    aligned = np.diff(counts.indptr) > 0
    plan = _mixed(_with_parts(counts, source.vocabulary, target.vocabulary))
    if notes is not None:
        left = int((~aligned & plan.is_mixed).sum())
        notes(
            f"{len(enough)} pairs of words were aligned {least_count} times or more. With equal bytes and numbers they tell of "
            f"{int(aligned.sum())} target tokens, which stand for {left} that they are parts or extensions of."
        )
    plan = plan.with_copies(overlap.source)
    return regressed_by_counts(plan, source, target, notes) if regression else plan


def _with_parts(counts: csr_array, source: Vocabulary, target: Vocabulary) -> csr_array:
    """The counts (V_t, V_s), with those of the tokens that have none from the tokens that hold them or that they hold."""
    known = {}
    for row in np.flatnonzero(np.diff(counts.indptr)):
        known.setdefault(target.bytes[row], []).append(row)
    ordered, weight = sorted(known), _PART * (1 + source.word_start.astype(np.int64))
    rows, columns, values = [], [], []
    for row in np.flatnonzero((np.diff(counts.indptr) == 0) & ~target.special):
        raw = target.bytes[row]
        if not raw:
            continue
        found: list[bytes] = []
        for size in range(len(raw) - 1, 0, -1):
            inside = dict.fromkeys(raw[i : i + size] for i in range(len(raw) - size + 1))
            found += [part for part in inside if part in known and not any(part in larger for larger in found)]
        longer = bisect_left(ordered, raw)
        while longer < len(ordered) and ordered[longer].startswith(raw):
            found.append(ordered[longer])
            longer += 1
        for part in (row for text in found for row in known[text]):
            place = slice(counts.indptr[part], counts.indptr[part + 1])
            ids, own = counts.indices[place], counts.data[place]
            rows.append(np.full(len(ids), row)), columns.append(ids)
            values.append(np.maximum(1, weight[ids] * own // own.sum()))
    if not rows:
        return counts
    place = np.concatenate(rows), np.concatenate(columns)
    return csr_array(counts + csr_array((np.concatenate(values), place), shape=counts.shape))


def _mixed(counts: csr_array) -> TransferPlan:
    """Rows in proportion to their 256 largest counts, equal ones by id; noise where there are none."""
    rows = counts.shape[0]
    row = np.repeat(np.arange(rows), np.diff(counts.indptr))
    kept = np.arange(len(row)) - counts.indptr[row] < _MOST
    largest = np.lexsort((counts.indices, -counts.data, row))[kept]
    row, own = row[kept], counts.data[largest]
    return TransferPlan.of_pairs(rows, row, counts.indices[largest], own / np.bincount(row, own, rows)[row])


TRANS_TOKENIZATION = Method(
    name="trans_tokenization",
    label="Trans-Tokenization",
    color=16,
    features="",
    plan=trans_tokenization,
    paper="Remy, Delobelle, Avetisyan, Khabibullina, de Lhoneux and Demeester, 2024: Trans-Tokenization",
    citation="""@inproceedings{remy-etal-2024-trans,
  title = {Trans-Tokenization and Cross-lingual Vocabulary Transfers: Language Adaptation of {LLMs} for Low-Resource {NLP}},
  author = {Remy, Fran{\\c{c}}ois and Delobelle, Pieter and Avetisyan, Hayastan and Khabibullina, Alfiya and de Lhoneux, \
Miryam and Demeester, Thomas},
  booktitle = {First Conference on Language Modeling},
  year = {2024},
}""",
    summary="the mean of the source tokens that parallel text translates the token into",
    rules=lambda settings: [
        "Words of the parallel text were aligned by IBM's model 1; pairs of words that were aligned {least_count} times or "
        "more give their counts to their tokens.".format(**settings),
        "A token that occurs in no such pair gets the counts of the tokens that begin with it and of the longest ones in it.",
    ],
)
