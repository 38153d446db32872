"""OFA against a float64 account of what cisnlp/ofa does: shared tokens, neighbors, coordinates, noise."""

import ml_dtypes
import numpy as np
import pytest

from wechsel_jax.errors import UserError
from wechsel_jax.initializers import METHODS, Side, draw_noise
from wechsel_jax.initializers.ofa import factorised_apply, ofa
from wechsel_jax.tokens import Vocabulary
from wechsel_jax.tokens.overlap import RULES, find_overlap
from wechsel_jax.tokens.reference_overlap import ofa_overlap

M, D = 12, 16


@pytest.fixture(scope="module")
def sides(fakes):
    """90 target tokens, 30 of them shared with 120 source tokens; some on both sides without a vector."""
    generator = np.random.default_rng(0)
    source = fakes.vocabulary("t", 120, fakes.roberta_roles)
    shared = fakes.vocabulary("t", 30, fakes.roberta_roles)
    strings = (*shared.strings, *(f"new{i}" for i in range(60)))
    roles = (*shared.roles, *(frozenset(),) * 60)
    target = Vocabulary(strings, tuple(s.encode() for s in strings), np.zeros(90, bool), roles, "byte_bpe")
    vectors = [generator.standard_normal((n, M)).astype(np.float32) for n in (120, 90)]
    vectors[0][10:14] = 0
    vectors[1][[3, 40, 41]] = 0
    return Side(source, vectors[0]), Side(target, vectors[1])


@pytest.fixture(scope="module")
def matrix():
    return (np.random.default_rng(1).standard_normal((120, D)) * 0.9 ** np.arange(D)).astype(np.float32)


def expected_rows(source, target, shared, table, noise, neighbors=10, temperature=0.1, all_sources=True):
    """The target's rows of any source table, one token after the other in float64."""
    keys = source.vectors.astype(np.float64)
    keys /= np.maximum(np.linalg.norm(keys, axis=1, keepdims=True), 1e-30)
    out = np.array(noise, np.float64)
    for i, query in enumerate(target.vectors.astype(np.float64)):
        if shared[i] >= 0:
            out[i] = table[shared[i]]
        elif query.any():
            similarity = keys @ (query / np.linalg.norm(query))
            allowed = np.arange(len(keys)) if all_sources else np.flatnonzero(source.vectors.any(axis=1))
            best = allowed[np.argsort(-similarity[allowed], kind="stable")[:neighbors]]
            weights = np.exp(similarity[best] / temperature)
            out[i] = (weights / weights.sum()) @ table[best]
    return out


@pytest.mark.parametrize("dimensions", [None, 5])
def test_parity_equals_the_reference_account(sides, matrix, dimensions):
    source, target = sides
    overlap = find_overlap(source.vocabulary, target.vocabulary, "fuzzy", parity="ofa")
    plan = ofa(source, target, overlap=overlap, parity=True, neighbors=117)  # 117: tokens without a vector must be neighbors
    u, s, vh = np.linalg.svd(matrix.astype(np.float64), full_matrices=False)
    k = dimensions or D
    coordinates, primitives = (u[:, :k], s[:k, None] * vh[:k]) if dimensions else (matrix.astype(np.float64), np.eye(D))
    noise = np.random.RandomState(114514).normal(coordinates.mean(0), coordinates.std(0), (90, k))
    expected = expected_rows(source, target, overlap.source, coordinates, noise, 117)
    found = factorised_apply(plan, matrix, dimensions, parity=True)
    assert found.coordinates.shape == (90, k) and plan.counts() == {"copied": 30, "mixed": 58, "random": 2}
    fixed = ~plan.random  # the noise of coordinates follows the signs that a decomposition leaves open
    np.testing.assert_allclose(found.dense()[fixed], (expected @ primitives)[fixed], atol=1e-5)
    if dimensions:
        sign = np.sign((found.projection * vh[:k]).sum(axis=1))
        np.testing.assert_allclose(found.coordinates[fixed], (expected * sign)[fixed], atol=1e-5)
        signed = np.random.RandomState(114514).normal((coordinates * sign).mean(0), coordinates.std(0), (90, k))
        np.testing.assert_allclose(found.coordinates[plan.random], signed[plan.random], atol=1e-5)
    else:
        np.testing.assert_allclose(found.coordinates, expected, atol=1e-5)


def test_the_default_takes_shared_tokens_as_given_and_neighbors_with_vectors(sides, matrix):
    source, target = sides
    overlap = find_overlap(source.vocabulary, target.vocabulary)
    plan = ofa(source, target, overlap=overlap)
    plan.validate(120)
    np.testing.assert_array_equal(plan.copy, overlap.source)
    assert plan.copy[3] >= 0 and np.flatnonzero(plan.random).tolist() == [40, 41]
    assert not np.isin(plan.neighbors[plan.is_mixed], [10, 11, 12, 13]).any()
    np.testing.assert_allclose(plan.weights[plan.is_mixed].sum(axis=1), 1, atol=1e-6)
    noise = draw_noise(matrix, 90, kind="source", seed=0, name="input")
    expected = expected_rows(source, target, overlap.source, matrix.astype(np.float64), noise, all_sources=False)
    np.testing.assert_allclose(plan.apply(matrix, noise), expected, atol=1e-5)
    special = ofa(source, target, overlap=find_overlap(source.vocabulary, target.vocabulary, "special"))
    assert special.counts() == {"copied": 5, "mixed": 83, "random": 2}


def test_noise_is_drawn_in_the_space_of_coordinates(sides, matrix):
    source, target = sides
    plan = ofa(source, target, overlap=find_overlap(source.vocabulary, target.vocabulary))
    every = plan.with_noise(np.ones(90, bool))
    factors = factorised_apply(every, matrix, 4, seed=3, name="head")
    whole = factorised_apply(plan, matrix, 4, seed=3, name="head")
    np.testing.assert_array_equal(whole.coordinates[plan.random], factors.coordinates[plan.random])
    assert np.linalg.matrix_rank(factors.dense(), tol=1e-4) == 4
    other = factorised_apply(every, matrix, 4, seed=4, name="head").coordinates
    assert not np.isin(other, factors.coordinates).any()


def test_a_bfloat16_table_and_one_that_is_not_factorised(sides, matrix):
    source, target = sides
    plan = ofa(source, target, overlap=find_overlap(source.vocabulary, target.vocabulary))
    table = matrix.astype(ml_dtypes.bfloat16)
    factors = factorised_apply(plan, table, "full")
    assert factors.projection is None and factors.dense().dtype == table.dtype
    assert factors.dense()[plan.copy >= 0].tobytes() == table[plan.copy[plan.copy >= 0]].tobytes()
    assert factorised_apply(plan, table, 3).dense(table.dtype).dtype == table.dtype


def _vocabulary(kind, *strings):
    raw = tuple(string.replace("Ġ", " ").encode() for string in strings)
    return Vocabulary(strings, raw, np.array([r.startswith(b" ") for r in raw]), (frozenset(),) * len(strings), kind)


def test_the_references_overlap():
    source = _vocabulary("byte_bpe", "a", "Haus", "HAUS", "Ġhaus", "", "Ġb", "Ġb", "x")
    target = _vocabulary("byte_bpe", "haus", "A", "a", "Ġb", "Ġb", "", "X", "ĠHaus", "Haus")
    # "haus": of "HAUS" < "Haus" the last; "A": source id 0 is never found without its case; of twins the higher id.
    assert ofa_overlap(source, target)[0].tolist() == [1, -1, 0, -1, 6, -1, 7, 3, 1]
    # The reference tells the kinds apart by more than a hundred tokens with a mark.
    pieces = _vocabulary("sentencepiece", "▁haus", "▁b", "a", *(f"▁p{i}" for i in range(101)))
    words = _vocabulary("wordpiece", "haus", "##a", "##b", *(f"##w{i}" for i in range(101)))
    assert ofa_overlap(pieces, words)[0][:3].tolist() == [0, 2, -1]
    assert ofa_overlap(words, pieces)[0][:3].tolist() == [0, -1, 1]
    later = _vocabulary("sentencepiece", "x", "▁haus", *(f"▁l{i}" for i in range(101)))
    assert ofa_overlap(later, words)[0][:3].tolist() == [1, -1, -1]


def test_no_copy_crosses_the_start_of_a_word():
    """The default shares text with its space, as the reference does: "haus" inside a word is not " haus"."""
    source = _vocabulary("byte_bpe", "a", "Haus", "Ġhaus", "Ġb", "x", "Ärger")
    target = _vocabulary("byte_bpe", "haus", "Ġhaus", "ĠHAUS", "B", "ĠB", "ärger", "Ġx", "X")
    overlap = find_overlap(source, target, METHODS["ofa"].overlap)
    assert overlap.source.tolist() == [1, 2, 2, -1, 3, 5, -1, 4]
    assert [RULES[rule] for rule in overlap.rule] == ["case", "exact", "case", "none", "case", "case", "none", "case"]
    generator = np.random.default_rng(2)
    sides = [Side(v, generator.standard_normal((len(v), M)).astype(np.float32)) for v in (source, target)]
    plan = ofa(*sides, overlap=overlap, neighbors=3)
    copied = plan.copy >= 0
    assert copied.sum() == 6 and (source.word_start[plan.copy] == target.word_start)[copied].all()
    reference = find_overlap(source, target, METHODS["ofa"].overlap, parity="ofa")
    np.testing.assert_array_equal(reference.source, find_overlap(source, target, "fuzzy", parity="ofa").source)
    np.testing.assert_array_equal(reference.source, overlap.source)


def test_wrong_settings_are_refused(sides):
    source, target = sides
    overlap = find_overlap(source.vocabulary, target.vocabulary)
    for options in ({"temperature": 0}, {"neighbors": 0}, {"neighbors": 117}):
        with pytest.raises(UserError, match=r"above zero|use fewer neighbors"):
            ofa(source, target, overlap=overlap, **options)
