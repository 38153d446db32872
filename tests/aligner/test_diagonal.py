"""The aligner against fast_align's model as its paper writes it, token by token, and against two public implementations."""

import itertools
import math
import re

import numpy as np
import pytest
from scipy.special import digamma

from wechsel_jax.aligner import DiagonalSettings, align_diagonal, read_links, symmetrize
from wechsel_jax.errors import UserError
from wechsel_jax.text.parallel import read_pairs

SENTENCES = [
    ("das haus ist klein", "the house is small"),
    ("das haus", "the house"),
    ("das buch ist das buch", "the book is the book"),
    ("ein buch", "a book"),
    ("klein ist ein haus nicht", "a house is not that small"),
]


def encoded(sentences: list[list[str]]) -> tuple[np.ndarray, np.ndarray]:
    numbers: dict[str, int] = {}
    tokens = [numbers.setdefault(word, len(numbers)) for sentence in sentences for word in sentence]
    return np.asarray(tokens), np.cumsum([0, *map(len, sentences)])


def linked(links: np.ndarray, starts: np.ndarray) -> set[tuple[int, int, int]]:
    """(pair, source place, target place)."""
    return {
        (pair, int(i), j) for pair, (a, b) in enumerate(itertools.pairwise(starts)) for j, i in enumerate(links[a:b]) if i >= 0
    }


def by_hand(source: list[list[str]], target: list[list[str]], iterations: int, null: float = 0.08, alpha: float = 0.01):
    """Dyer et al. (2013), section 3, and the loops of fast_align.cc: -d -o -v."""
    words = {word for sentence in target for word in sentence}
    table = {}
    tension, count = 4.0, sum(map(len, target))

    def scores(one: list[str], other: list[str], j: int) -> list[float]:
        weights = [math.exp(-tension * abs((j + 1) / len(other) - i / len(one))) for i in range(1, len(one) + 1)]
        places = [null, *((1 - null) * weight / sum(weights) for weight in weights)]
        return [p * table.get((word, other[j]), 1 / len(words)) for p, word in zip(places, [None, *one], strict=True)]

    for iteration in range(iterations):
        counts, seen = {}, 0.0
        for one, other in zip(source, target, strict=True):
            for j in range(len(other)):
                found = scores(one, other, j)
                for i, (word, score) in enumerate(zip([None, *one], found, strict=True)):
                    counts[word, other[j]] = counts.get((word, other[j]), 0.0) + score / sum(found)
                    seen -= score / sum(found) * abs(j / len(other) - i / len(one)) if i else 0.0
        for _ in range(8 if iteration else 0):
            expected = 0.0
            for one, other in zip(source, target, strict=True):
                for j in range(1, len(other) + 1):
                    far = [abs(j / len(other) - i / len(one)) for i in range(1, len(one) + 1)]
                    weights = [math.exp(-tension * each) for each in far]
                    expected -= sum(w * f for w, f in zip(weights, far, strict=True)) / sum(weights)
            tension = min(max(tension + 20 * (seen - expected) / count, 0.1), 14.0)
        totals = {}
        for (word, _), value in counts.items():
            totals[word] = totals.get(word, 0.0) + value + alpha
        table = {key: math.exp(digamma(value + alpha) - digamma(totals[key[0]])) for key, value in counts.items()}
    links = set()
    for pair, (one, other) in enumerate(zip(source, target, strict=True)):
        for j in range(len(other)):
            found = scores(one, other, j)
            if best := max(range(len(found)), key=lambda i: (found[i], -i)):
                links.add((pair, best - 1, j))
    return links, tension


@pytest.mark.parametrize("iterations", [1, 2, 4])
def test_it_is_the_model_of_the_paper(iterations):
    source, target = ([pair[side].split() for pair in SENTENCES] for side in (0, 1))
    expected, tension = by_hand(source, target, iterations)
    settings = DiagonalSettings(iterations=iterations)
    found = align_diagonal(*encoded(source), *encoded(target), settings)
    assert found.tension == pytest.approx(tension, rel=1e-9)
    assert linked(found.links, encoded(target)[1]) == expected


def test_maximum_likelihood_never_falls():
    source, target = (encoded([pair[side].split() for pair in SENTENCES * 3]) for side in (0, 1))
    found = align_diagonal(*source, *target, DiagonalSettings(iterations=8, alpha=0, fit_tension=False))
    assert all(after >= before for before, after in itertools.pairwise(found.log_likelihood))
    assert found.log_likelihood[-1] > found.log_likelihood[0] + 1


def test_sentences_without_words_have_no_links():
    found = align_diagonal(np.asarray([1, 2]), np.asarray([0, 0, 2]), np.asarray([5, 6, 7]), np.asarray([0, 2, 3]))
    assert found.links[:2].tolist() == [-1, -1]
    assert len(align_diagonal(np.zeros(0, int), np.zeros(1, int), np.zeros(0, int), np.zeros(1, int)).links) == 0


def test_sentences_without_another_side_change_nothing():
    source, target = ([pair[side].split() for pair in SENTENCES] for side in (0, 1))
    alone = align_diagonal(*encoded(source), *encoded(target))
    beside = align_diagonal(*encoded([*source, [], ["haus"]]), *encoded([*target, ["the", "house"] * 20, []]))
    assert beside.tension == pytest.approx(alone.tension, rel=1e-9)
    assert beside.log_likelihood == pytest.approx(alone.log_likelihood, rel=1e-9)
    assert beside.links[: len(alone.links)].tolist() == alone.links.tolist()


@pytest.fixture(scope="module")
def real(data_directory):
    pairs = read_pairs([data_directory / "parallel" / "en-de.tatoeba2021.tsv.xz"], ("en", "de"))
    split = [[re.findall(r"\w+|[^\w\s]", text.lower()) for text in side[:2000]] for side in (pairs.first, pairs.second)]
    sides = [encoded(side) for side in split]
    forward = align_diagonal(*sides[0], *sides[1]).links
    return split, sides, forward, align_diagonal(*sides[1], *sides[0]).links


def agreement(one: set, other: set) -> float:
    return 2 * len(one & other) / (len(one) + len(other))


@pytest.fixture(scope="module")
def of_thot(real):
    """SIL's thot has fast_align's model, whose tension it fits a little differently."""
    alignment = pytest.importorskip("thot.alignment")
    (first, second), *_ = real
    model = alignment.FastAlignModel()
    for pair in zip(first, second, strict=True):
        model.add_sentence_pair(*pair)
    model.start_training()
    for _ in range(4):
        model.train()
    model.end_training()
    return {
        (pair, i, j)
        for pair, (_, matrix) in enumerate(model.get_best_alignments(first, second))
        for i in range(matrix.row_length)
        for j in range(matrix.column_length)
        if matrix[i, j]
    }


def test_a_pair_too_long_to_be_two_sentences_is_refused_before_it_fills_the_memory():
    """Each token of one side stands beside each of the other."""
    starts = np.array([0, 2, 2 + (1 << 15)])
    tokens = np.arange(starts[-1])
    with pytest.raises(UserError, match=r"line 7: a pair of 32,768 and 32,768 tokens; expected two sentences, of 2,048"):
        align_diagonal(tokens, starts, tokens, starts, place=lambda pair: f"text.tsv: line {7 * pair}")


def test_real_links_are_those_of_thot(real, of_thot):
    _, sides, forward, _ = real
    assert agreement(linked(forward, sides[1][1]), of_thot) > 0.99


def test_real_links_of_both_directions_are_those_of_fast_align(real, tmp_path):
    """SYSTRAN's build of fast_align joins the directions with grow-diag-final-and; it leaves rare words out of its tables."""
    systran = pytest.importorskip("systran_align")
    (first, second), sides, forward, backward = real
    lines = (f"{' '.join(one)} ||| {' '.join(two)}\n" for one, two in zip(first, second, strict=True))
    (tmp_path / "text").write_text("".join(lines), encoding="utf-8")
    names = [str(tmp_path / name) for name in ("text", "forward", "backward")]
    options = {"favor_diagonal": True, "optimize_tension": True, "variational_bayes": True, "beam_threshold": -1000}
    systran.generate_alignment_probabilities(*names, iterations=5, **options)
    found = systran.Aligner(*names[1:]).align_batch(first, second)
    theirs = {(pair, i, j) for pair, one in enumerate(found) for i, j in one["alignments"]}
    ours = symmetrize(backward, sides[0][1], forward, sides[1][1], "grow-diag-final-and")
    ours = {(int(pair), int(i), int(j)) for pair, (i, j) in zip(ours.pairs, ours.places, strict=True)}
    assert agreement(ours, theirs) > 0.975


@pytest.mark.slow
def test_real_links_are_as_near_to_those_of_eflomal_as_fast_aligns(real, of_thot, tmp_path):
    """Of the links that both directions of another, better model have."""
    pytest.importorskip("eflomal")
    from wechsel_jax.aligner.eflomal import align_eflomal

    _, sides, forward, _ = real
    split = [np.split(tokens, starts[1:-1]) for tokens, starts in sides]
    sizes = [np.diff(starts) for _, starts in sides]
    read = [read_links(path, *sizes, to=to) for to, path in zip((1, 0), align_eflomal(*split, tmp_path), strict=True)]
    sets = [{(int(pair), int(i), int(j)) for pair, (i, j) in zip(one.pairs, one.places, strict=True)} for one in read]
    sure = sets[0] & sets[1]
    ours = linked(forward, sides[1][1])
    assert len(ours & sure) / len(sure) > 0.8
    assert len(ours & sure) > 0.99 * len(of_thot & sure)
