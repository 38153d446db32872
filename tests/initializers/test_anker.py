"""Anker's plan against numpy in float64, and what becomes of shared tokens and of tokens without a vector."""

import numpy as np
import pytest

from wechsel_jax.errors import UserError
from wechsel_jax.initializers import Side
from wechsel_jax.initializers.anker import anker
from wechsel_jax.initializers.wechsel import wechsel
from wechsel_jax.tokens import Vocabulary
from wechsel_jax.tokens.overlap import RULES, Overlap

S, T, M = 60, 50, 12


def vocabulary(prefix: str, size: int) -> Vocabulary:
    strings = tuple(f"{'Ġ' if i % 3 else ''}{prefix}{i}" for i in range(size))
    starts = np.array([string.startswith("Ġ") for string in strings])
    return Vocabulary(strings, tuple(s.encode() for s in strings), starts, (frozenset(),) * size, "byte_bpe")


def shared(pairs: dict[int, int], rule: str = "exact") -> Overlap:
    source, rules = np.full(T, -1, np.int32), np.zeros(T, np.int8)
    for target_id, source_id in pairs.items():
        source[target_id], rules[target_id] = source_id, RULES.index(rule)
    return Overlap(source, rules)


@pytest.fixture
def sides() -> tuple[Side, Side]:
    generator = np.random.default_rng(0)
    made = []
    for prefix, size in (("s", S), ("t", T)):
        vectors = generator.standard_normal((size, M)).astype(np.float32)
        vectors[size - 4 :] = 0
        counts = generator.zipf(1.3, size).clip(max=10_000)
        made.append(Side(vocabulary(prefix, size), vectors, counts=counts))
    return tuple(made)


def scores_by_hand(source: Side, target: Side, word_start: float, frequency: float) -> np.ndarray:
    a, b = target.vectors.astype(np.float64), source.vectors.astype(np.float64)
    with np.errstate(invalid="ignore"):
        cosine = (a / np.linalg.norm(a, axis=1, keepdims=True)) @ (b / np.linalg.norm(b, axis=1, keepdims=True)).T
    logs = [np.log((side.counts + 1) / (side.counts + 1).sum()) for side in (target, source)]
    same = target.vocabulary.word_start[:, None] == source.vocabulary.word_start
    return cosine + word_start * same - frequency * np.abs(logs[0][:, None] - logs[1])


@pytest.mark.parametrize(("word_start", "frequency"), [(0.1, 0.1), (0.0, 0.3), (0.4, 0.0)])
def test_weights_are_those_of_numpy(sides, word_start, frequency):
    source, target = sides
    # So many neighbors that no source token is left out before frequency decides.
    plan = anker(source, target, overlap=shared({}), neighbors=12, word_start=word_start, frequency=frequency)
    expected = scores_by_hand(source, target, word_start, frequency)
    rows = np.flatnonzero(target.has_vector)
    for row in rows:
        order = np.argsort(-np.where(source.has_vector, expected[row], -np.inf))[:12]
        np.testing.assert_array_equal(plan.neighbors[row], order)
        weights = np.exp(expected[row, order] / 0.1)
        np.testing.assert_allclose(plan.weights[row], weights / weights.sum(), rtol=1e-4)
    np.testing.assert_array_equal(plan.random, ~target.has_vector)
    plan.validate(S)


def test_without_its_own_terms_it_is_wechsel(sides):
    plan = anker(*sides, overlap=shared({}), word_start=0.0, frequency=0.0)
    expected = wechsel(*sides)
    np.testing.assert_array_equal(plan.neighbors, expected.neighbors)
    np.testing.assert_allclose(plan.weights, expected.weights, rtol=1e-6)


def test_a_shared_token_is_copied_where_contexts_and_frequency_agree(sides):
    source, target = sides
    target.vectors[[1, 2, 4]] = source.vectors[[7, 8, 10]]
    source.counts[[7, 8, 10]], target.counts[[1, 2, 4]] = 50, 50
    source.counts[8] = 5000
    source.counts[9] = target.counts[5] = 50
    # 1: agrees; 2: as similar, but a hundred times as frequent; 5: as frequent, but of other contexts.
    plan = anker(source, target, overlap=shared({1: 7, 2: 8, 5: 9}))
    assert plan.copy[1] == 7 and set(np.flatnonzero(plan.copy >= 0)) == {1}
    for rule in ("special", "mapped"):
        always = anker(source, target, overlap=shared({2: 8, 5: 9}, rule))
        assert always.copy[2] == 8 and always.copy[5] == 9


def test_a_shared_token_that_the_text_does_not_show_is_copied_unless_its_twin_is_frequent(sides):
    source, target = sides
    rare, other = T - 1, T - 2
    target.counts[[rare, other]] = 0
    source.counts[3], source.counts[4] = 1, 10_000
    plan = anker(source, target, overlap=shared({rare: 3, other: 4}))
    # What is the share of one occurrence in a small text is a matter of the texts' sizes.
    assert plan.copy[rare] == 3 and plan.copy[other] == -1 and plan.random[other]


def test_other_vectors_stand_in_where_there_is_no_vector(sides):
    generator = np.random.default_rng(4)
    source, target = (
        Side(side.vocabulary, side.vectors, counts=side.counts, other_vectors=generator.standard_normal((n, 5), np.float32))
        for side, n in zip(sides, (S, T), strict=True)
    )
    target.other_vectors[T - 1] = 0
    plan = anker(source, target, overlap=shared({}), word_start=0.1)
    plain = anker(*sides, overlap=shared({}), word_start=0.1)
    others = Side(source.vocabulary, source.other_vectors), Side(target.vocabulary, target.other_vectors)
    expected = wechsel(*others, word_start=0.1)
    for row in range(T):
        wanted = plain if target.has_vector[row] else expected
        np.testing.assert_array_equal(plan.neighbors[row], wanted.neighbors[row])
        np.testing.assert_array_equal(plan.weights[row], wanted.weights[row])
    assert np.flatnonzero(plan.random).tolist() == [T - 1]


def test_mistakes(sides):
    for wrong in ({"temperature": 0}, {"neighbors": 0}, {"frequency": -1.0}):
        with pytest.raises(UserError, match="expected positive"):
            anker(*sides, overlap=shared({}), **wrong)
    empty = Side(sides[0].vocabulary, np.zeros((S, M), np.float32), counts=np.zeros(S, int))
    with pytest.raises(UserError, match="no source token has a vector"):
        anker(empty, sides[1], overlap=shared({}))
