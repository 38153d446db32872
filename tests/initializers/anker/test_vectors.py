"""Vectors of anchored contexts: the decomposition against numpy, and two languages that are known to be one."""

import dataclasses

import numpy as np
import pytest
from scipy.sparse import csr_array

from wechsel_jax.errors import UserError
from wechsel_jax.initializers.anker import vectors
from wechsel_jax.initializers.anker.anchors import Candidates
from wechsel_jax.initializers.anker.contexts import count_neighbors
from wechsel_jax.initializers.anker.decomposition import decompose
from wechsel_jax.initializers.anker.vectors import Counted, anchored_vectors

WORDS = 120
SETTINGS = {"dimensions": 24, "rounds": 2}


@pytest.fixture(autouse=True)
def few_words(monkeypatch):
    """Of so few words some shall be rare, and none is held out where that is not asked for."""
    monkeypatch.setattr(vectors, "_FREQUENT", 100)
    monkeypatch.setattr(vectors, "_HELD_OUT", 0.0)


def text(seed: int, tokens: int = 60_000) -> np.ndarray:
    """A walk between words: each has a few that like to follow it, frequent ones more often."""
    followers = np.random.default_rng(0).integers(0, WORDS, (WORDS, 6))
    frequent = np.minimum(np.random.default_rng(1).zipf(1.3, (WORDS, 6)), WORDS) - 1
    followers = np.where(np.arange(6) < 2, frequent, followers)
    generator = np.random.default_rng(seed)
    choices, ids = generator.integers(0, 6, tokens), np.zeros(tokens, np.int32)
    for i in range(1, tokens):
        ids[i] = followers[ids[i - 1], choices[i]] if i % 50 else generator.integers(WORDS)
    return ids


def counted(ids: np.ndarray) -> Counted:
    return Counted(np.bincount(ids, minlength=WORDS), count_neighbors(ids, WORDS), np.ones(WORDS, bool))


@pytest.fixture(scope="module")
def languages() -> tuple[Counted, Counted, np.ndarray]:
    """One language, and another that is the same with other ids: permutation[i] means what i means."""
    permutation = np.random.default_rng(5).permutation(WORDS)
    return counted(text(2)), counted(permutation[text(3)]), permutation


def pairs_of(source: np.ndarray, target: np.ndarray) -> Candidates:
    return Candidates(source, target, np.zeros(len(source), np.int8), np.arange(len(source)))


def found(made, permutation: np.ndarray, known: np.ndarray) -> float:
    """How many of the tokens that are no anchor have their twin as the nearest."""
    unit = [side / np.maximum(np.linalg.norm(side, axis=1, keepdims=True), 1e-9) for side in (made.source, made.target)]
    nearest = (unit[0] @ unit[1].T).argmax(axis=1)
    rest = np.setdiff1d(np.flatnonzero(made.source.any(axis=1)), known)
    return float((nearest[rest] == permutation[rest]).mean())


def test_decomposition_is_numpys():
    generator = np.random.default_rng(0)
    matrix = (generator.standard_normal((80, 8)) * 0.6 ** np.arange(8)) @ generator.standard_normal((8, 40))
    matrix += 1e-3 * generator.standard_normal(matrix.shape)
    axes, values = decompose(csr_array(matrix.astype(np.float32)), 5)
    _, expected, right = np.linalg.svd(matrix)
    np.testing.assert_allclose(values, expected[:5], rtol=1e-4)
    np.testing.assert_allclose(np.abs(axes.T @ right[:5].T), np.eye(5), atol=1e-2)
    assert decompose(csr_array(matrix.astype(np.float32)), 500)[0].shape == (40, 40)


@pytest.mark.parametrize(("rows", "columns", "rank"), [(1500, 1400, 100), (750, 700, 700)])
def test_a_large_decomposition_is_numpys_too(rows, columns, rank):
    """Singular values that fall as slowly as those of contexts do, also where there are not even as many as asked for."""
    generator = np.random.default_rng(1)
    left, right = (np.linalg.qr(generator.standard_normal((size, 200)))[0] for size in (rows, columns))
    values = 8 * np.arange(1, 201.0) ** -0.5
    matrix = (left * values) @ right.T
    axes, found = decompose(csr_array(matrix.astype(np.float32)), rank)
    lost = 100 - np.square(axes[:, :100].T.astype(np.float64) @ right[:, :100]).sum()
    assert lost < 0.5
    np.testing.assert_allclose(found[:100], values[:100], rtol=1e-3)
    assert found[200:].max(initial=0) < 0.05 and np.isfinite(axes).all()


def test_tokens_that_are_no_anchors_find_their_twins_and_self_learning_finds_more(languages):
    source, target, permutation = languages
    known = np.argsort(-source.tokens)[:40:2]
    few = pairs_of(known, permutation[known])
    without = anchored_vectors(source, target, few, dimensions=24, rounds=0)
    learned = anchored_vectors(source, target, few, **SETTINGS)
    assert found(without, permutation, known) > 0.5
    assert found(learned, permutation, known) > found(without, permutation, known)
    right = permutation[learned.anchors.source] == learned.anchors.target
    assert len(right) > len(known) + 20 and right.mean() > 0.9
    assert learned.report["rounds"][0]["learned"] == 0
    assert learned.report["anchors"]["learned"] == learned.report["rounds"][-1]["learned"] == len(right) - len(known)


def test_shuffled_pairs_find_nothing(languages):
    source, target, permutation = languages
    known = np.argsort(-source.tokens)[:40]
    shuffled = permutation[np.random.default_rng(0).permutation(known)]
    assert found(anchored_vectors(source, target, pairs_of(known, shuffled), **SETTINGS), permutation, known) < 0.1


def test_precision_is_measured_on_words_that_were_held_out(languages, monkeypatch):
    source, target, permutation = languages
    known = np.argsort(-source.tokens)[:80]
    monkeypatch.setattr(vectors, "_HELD_OUT", 0.25)
    report = anchored_vectors(source, target, pairs_of(known, permutation[known]), **SETTINGS).report
    assert report["held_out_words"] == 20 and report["precision_at_1"] > 0.5 and report["precision_at_1_csls"] > 0.5
    wrong = np.roll(permutation[known], 7)
    report = anchored_vectors(source, target, pairs_of(known, wrong), **SETTINGS).report
    assert report["precision_at_1"] < 0.2


def test_the_same_bytes_again_and_rare_or_unusable_tokens_have_none(languages, monkeypatch):
    source, target, permutation = languages
    known = np.argsort(-source.tokens)[:40]
    unusable = int(np.argsort(-source.tokens)[50])
    source = dataclasses.replace(source, usable=np.arange(WORDS) != unusable)
    monkeypatch.setattr(vectors, "_LEAST_COUNT", 200)
    once, again = (anchored_vectors(source, target, pairs_of(known, permutation[known]), **SETTINGS) for _ in range(2))
    assert once.source.tobytes() == again.source.tobytes() and once.target.tobytes() == again.target.tobytes()
    np.testing.assert_array_equal(once.source.any(axis=1), (source.tokens >= 200) & source.usable)


def test_without_a_pair_there_is_one_line(languages):
    source, target, _ = languages
    nothing = pairs_of(np.zeros(0, np.int64), np.zeros(0, np.int64))
    with pytest.raises(UserError, match="none of the 0 pairs"):
        anchored_vectors(source, target, nothing, **SETTINGS)
