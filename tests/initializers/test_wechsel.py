"""WECHSEL against PyPI wechsel 0.0.4, tie-aware, and its properties."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from wechsel_jax.errors import UserError
from wechsel_jax.initializers import Side, TransferPlan, draw_noise
from wechsel_jax.initializers.wechsel import nearest_similarity, softmax, wechsel

reference = pytest.importorskip("wechsel")


class FakeVectors:
    """Word vectors by token string, as `WECHSEL.apply` asks for them."""

    def __init__(self, side: Side):
        self._vectors = dict(zip(side.vocabulary.strings, side.vectors.astype(np.float64), strict=True))
        self._dimension = side.vectors.shape[1]

    def get_words_and_freqs(self):
        return [], []

    def get_dimension(self):
        return self._dimension

    def has_subword_info(self):
        return True

    def get_word_vector(self, word):
        return self._vectors[word]


def make_sides(fakes, roles="gpt2_roles", seed=0, sources=2100, targets=1300, dimension=30):
    """Vectors with rows of zeros and with twins on both sides, as real vocabularies have."""
    generator = np.random.default_rng(seed)
    sides = []
    for prefix, size in (("s", sources), ("t", targets)):
        vectors = generator.standard_normal((size, dimension)).astype(np.float32)
        twins = generator.choice(np.arange(20, size), (size // 5, 2))
        vectors[twins[:, 0]] = vectors[twins[:, 1]]
        vectors[generator.choice(size, size // 25, replace=False)] = 0
        sides.append(Side(fakes.vocabulary(prefix, size, getattr(fakes, roles)), vectors))
    return sides


def clear_of_ties(source: Side, target: Side, k: int) -> np.ndarray:
    """bool (V_t,): the k-th and the next similarity differ, so that every correct search finds the same neighbors."""
    norms = [np.maximum(np.linalg.norm(side.vectors.astype(np.float64), axis=1), 1e-30)[:, None] for side in (source, target)]
    ordered = -np.sort(-(target.vectors / norms[1] @ (source.vectors / norms[0]).T), axis=1)
    return ordered[:, k - 1] - ordered[:, k] > 1e-6


@pytest.mark.parametrize("roles", ["gpt2_roles", "roberta_roles"])
def test_equals_the_package(fakes, roles):
    source, target = make_sides(fakes, roles)
    matrix = np.random.default_rng(9).standard_normal((2100, 16)).astype(np.float32)
    package = reference.WECHSEL.__new__(reference.WECHSEL)
    package.source_embeddings, package.target_embeddings = FakeVectors(source), FakeVectors(target)
    package.source_transform = package.target_transform = lambda vectors: vectors
    expected, info = package.apply(fakes.Tokenizer(source.vocabulary), fakes.Tokenizer(target.vocabulary), matrix)

    plan = wechsel(source, target, parity=True)
    result = plan.apply(matrix, draw_noise(matrix, len(plan), kind="source", seed=0, name="wte", parity=True))
    clear = clear_of_ties(source, target, 10)
    assert clear.mean() > 0.7 and not clear.all()
    compared = clear | ~plan.is_mixed
    np.testing.assert_allclose(result[compared], expected[compared], atol=2e-5, rtol=0)

    specials = [i for i, marks in enumerate(target.vocabulary.roles) if marks]
    np.testing.assert_array_equal(result[specials], matrix[specials])
    np.testing.assert_array_equal(result[plan.random], expected[plan.random])
    ordinary = {target.vocabulary.strings[i] for i in np.flatnonzero(plan.random)}
    assert ordinary == set(info.not_found) - set(getattr(fakes, roles)) and len(ordinary) > 20
    for i in np.flatnonzero(clear & plan.is_mixed):
        tokens, weights, similarities = info.sources[target.vocabulary.strings[i]]
        assert {source.vocabulary.strings[j] for j in plan.neighbors[i]} == set(tokens)
        np.testing.assert_allclose(plan.weights[i], weights, atol=2e-6)
        assert similarities[0] == pytest.approx(np.max(similarities))


def test_ties_at_the_last_place_are_equally_similar(fakes):
    """Where package and plan chose differently, their neighbors' similarities agree one by one."""
    source, target = make_sides(fakes, seed=4)
    tokenizers = [fakes.Tokenizer(side.vocabulary) for side in (source, target)]
    vectors = [side.vectors.astype(np.float64) for side in (source, target)]
    matrix = np.zeros((2100, 2), np.float32)
    options = {"neighbors": 5, "temperature": 0.5}
    _, _, sources = reference.create_target_embeddings(*vectors, *tokenizers, matrix, **options, verbose=False)
    plan = wechsel(source, target, **options, parity=True)
    different = 0
    for i in np.flatnonzero(plan.is_mixed):
        tokens, weights, similarities = sources[target.vocabulary.strings[i]]
        different += {source.vocabulary.strings[j] for j in plan.neighbors[i]} != set(tokens)
        rows, query = vectors[0][plan.neighbors[i]], vectors[1][i]
        mine = rows @ query / np.maximum(np.linalg.norm(rows, axis=1) * np.linalg.norm(query), 1e-30)
        np.testing.assert_allclose(mine, similarities, atol=1e-12)
        np.testing.assert_allclose(plan.weights[i], weights, atol=2e-6)
    assert different > 0


def test_the_default_ignores_source_tokens_without_a_vector(fakes):
    source, target = make_sides(fakes, sources=40, targets=60, dimension=2)
    default, parity = wechsel(source, target, neighbors=25), wechsel(source, target, neighbors=25, parity=True)
    assert source.has_vector[default.neighbors[default.is_mixed]].all()
    assert not source.has_vector[parity.neighbors[parity.is_mixed]].all()


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 2**32 - 1), st.floats(0.01, 10))
def test_the_plan_is_convex(fakes, seed, temperature):
    source, target = make_sides(fakes, "roberta_roles", seed, sources=64, targets=64, dimension=4)
    plan = wechsel(source, target, neighbors=7, temperature=temperature)
    plan.validate(64)
    mixed = plan.is_mixed
    assert (plan.weights >= 0).all() and (np.diff(plan.weights[mixed], axis=1) <= 0).all()
    np.testing.assert_allclose(plan.weights[mixed].sum(1), 1, atol=1e-6)
    np.testing.assert_array_equal(plan.random, ~target.has_vector & (plan.copy < 0))
    similarity = nearest_similarity(plan, source, target)
    assert similarity.shape == (mixed.sum(),) and (np.abs(similarity) <= 1 + 1e-6).all()


@settings(max_examples=15, deadline=None)
@given(st.integers(0, 2**32 - 1))
def test_the_plan_follows_a_permutation_of_the_tokens(fakes, seed):
    generator = np.random.default_rng(seed)
    sides = [Side(fakes.vocabulary(p, 64, {}), generator.standard_normal((64, 6)).astype(np.float32)) for p in "st"]
    orders = [generator.permutation(64) for _ in sides]
    moved = [Side(s.vocabulary, s.vectors[order]) for s, order in zip(sides, orders, strict=True)]
    plan, permuted = wechsel(*sides, neighbors=5), wechsel(*moved, neighbors=5)
    np.testing.assert_array_equal(orders[0][permuted.neighbors], plan.neighbors[orders[1]])
    np.testing.assert_array_equal(permuted.weights, plan.weights[orders[1]])


def test_the_similarity_counts_tokens_that_were_compared(fakes):
    """Not those whose row comes from a token of the same bytes or from other vectors: they have a neighbor, and no vector."""
    vectors = np.eye(8, dtype=np.float32)
    source, target = (Side(fakes.vocabulary(name, 8, {}), vectors.copy()) for name in "st")
    target.vectors[4:] = 0
    plan = TransferPlan.mixed(np.arange(8)[:, None], np.ones((8, 1)))
    np.testing.assert_allclose(nearest_similarity(plan, source, target), np.ones(4))
    source.vectors[0] = 0
    np.testing.assert_allclose(nearest_similarity(plan, Side(source.vocabulary, source.vectors), target), np.ones(3))


def test_a_low_temperature_does_not_overflow():
    weights = softmax(np.array([[0.9, 0.8], [-0.2, -0.2]], np.float32), 1e-5)
    assert weights.tolist() == [[1, 0], [0.5, 0.5]]


def test_mistakes_are_named(fakes):
    source, target = make_sides(fakes, sources=30, targets=30)
    with pytest.raises(UserError, match="temperature 0"):
        wechsel(source, target, temperature=0)
    with pytest.raises(UserError, match="use fewer neighbors"):
        wechsel(source, target, neighbors=31)
