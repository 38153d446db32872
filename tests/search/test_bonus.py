"""The bonus for tokens that both begin a word: against numpy in float64, and as every method that mixes has it."""

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from wechsel_jax.errors import UserError
from wechsel_jax.initializers import METHODS, Side
from wechsel_jax.search.columns import Bonus
from wechsel_jax.search.neighbors import nearest_neighbors
from wechsel_jax.search.sparsemax import sparsemax_neighbors
from wechsel_jax.tokens import Vocabulary
from wechsel_jax.tokens.overlap import find_overlap

LAYOUTS = [(512, 8192, 1, "float32"), (7, 1024, 8, "bfloat16"), (64, 300, 8, "float32")]
TOKENS, WIDTH = 240, 12


def boosted(queries, keys, bonus):
    """Cosines in float64, zeros for rows of zeros, plus the bonus."""
    units = [x / np.maximum(np.linalg.norm(x, axis=1, keepdims=True), 1e-300) for x in (np.float64(queries), np.float64(keys))]
    return units[0] @ units[1].T + bonus.amount * (bonus.queries[:, None] == bonus.keys)


def everywhere(search, *arrays, **options):
    """The result on several block sizes, device counts and products, which must agree to the bit."""
    found = [
        search(*arrays, target_block=t, source_block=s, devices=jax.devices()[:d], product=p, **options)
        for t, s, d, p in LAYOUTS
    ]
    for other in found[1:]:
        for one, two in zip(found[0], other, strict=True):
            np.testing.assert_array_equal(one.view(np.uint32), two.view(np.uint32))
    return found[0]


def make_problem(seed=0, targets=150, sources=1300, dimension=40):
    """Vectors with twins that differ in their flag, rows of zeros on both sides, and flags."""
    generator = np.random.default_rng(seed)
    queries, keys = (generator.standard_normal((n, dimension)).astype(np.float32) for n in (targets, sources))
    keys[1::7] = keys[0::7][: len(keys[1::7])]
    queries[3], keys[50] = 0, 0
    flags = [generator.random(n) < 0.4 for n in (targets, sources)]
    return queries, keys, flags, generator.random(sources) < 0.8


@pytest.mark.parametrize("amount", [0.1, 3.0])
@pytest.mark.parametrize("all_keys", [True, False])
def test_neighbors_equal_brute_force(amount, all_keys):
    queries, keys, flags, candidates = make_problem()
    bonus = Bonus(amount, *flags)
    given = None if all_keys else candidates
    similarity, ids = everywhere(nearest_neighbors, queries, keys, 10, bonus=bonus, candidates=given)
    scores = np.where(True if all_keys else candidates, boosted(queries, keys, bonus), -np.inf)
    # A query of zeros is compared with nothing.
    scores[3] = np.minimum(scores[3], 0)
    np.testing.assert_allclose(similarity, -np.sort(-scores, axis=1)[:, :10], atol=1e-6)
    np.testing.assert_allclose(np.take_along_axis(scores, ids.astype(int), 1), similarity, atol=1e-6)
    assert (np.diff(similarity, axis=1) <= 0).all() and all(len(set(row)) == 10 for row in ids)
    allowed = np.ones(len(keys), bool) if all_keys else candidates
    np.testing.assert_array_equal(ids[3], np.flatnonzero(allowed)[:10])
    assert not similarity[3].any()


def test_all_ids_equal_those_of_the_full_matrix():
    """Where no two similarities are within rounding of each other; and keys of zeros have similarity 0, and the bonus."""
    generator = np.random.default_rng(8)
    queries, keys = (generator.standard_normal((n, 50)).astype(np.float32) for n in (300, 3000))
    keys[::40] = 0
    bonus = Bonus(0.1, generator.random(300) < 0.5, generator.random(3000) < 0.5)
    scores = boosted(queries, keys, bonus)
    similarity, ids = nearest_neighbors(queries, keys, 10, bonus=bonus)
    expected = np.argsort(-scores, axis=1, kind="stable")[:, :10]
    np.testing.assert_array_equal(ids, expected)
    np.testing.assert_allclose(similarity, np.take_along_axis(scores, expected, 1), atol=1e-6, rtol=0)
    similarity, ids = nearest_neighbors(queries, keys, 75, bonus=bonus, candidates=~keys.any(axis=1))
    agrees = np.take_along_axis(bonus.queries[:, None] == bonus.keys, ids.astype(int), 1)
    np.testing.assert_allclose(similarity, np.where(agrees, 0.1, 0), atol=1e-6, rtol=0)
    assert all((np.diff(row[same]) > 0).all() for row, same in zip(ids, agrees, strict=True))


@pytest.mark.slow
@settings(max_examples=30, deadline=None)
@given(st.integers(0, 2**32 - 1), st.integers(1, 60), st.sampled_from([0.4, 0.8, 2.0]))
def test_a_bonus_that_lifts_keys_onto_others(seed, k, amount):
    """Vectors of five signs have cosines that are multiples of 0.4: the bonus lifts some onto others exactly."""
    generator = np.random.default_rng(seed)
    queries, keys = (generator.choice(np.float32([-1, 1]), (n, 5)) for n in (9, 60))
    flags = [generator.random(n) < 0.5 for n in (9, 60)]
    _, ids = nearest_neighbors(queries, keys, k, bonus=Bonus(amount, *flags))
    fifths = np.round(queries @ keys.T).astype(int) + round(5 * amount) * (flags[0][:, None] == flags[1])
    chosen = np.take_along_axis(fifths, ids.astype(int), 1)
    np.testing.assert_array_equal(chosen, -np.sort(-fifths, axis=1)[:, :k])


@pytest.mark.parametrize(("amount", "scale"), [(0.5, 1.0), (0.1, 10.0)])
def test_sparsemax_equals_the_full_matrix(amount, scale):
    queries, keys, flags, candidates = make_problem(1)
    bonus = Bonus(amount, *flags)
    ids, weights = everywhere(sparsemax_neighbors, queries, keys, scale=scale, bonus=bonus, candidates=candidates)
    scores = np.where(candidates, scale * boosted(queries, keys, bonus), -np.inf)
    ordered = -np.sort(-scores, axis=1)[:, : candidates.sum()]
    number = np.arange(1, ordered.shape[1] + 1)
    support = (1 + number * ordered > ordered.cumsum(1)).sum(1)
    tau = (np.take_along_axis(ordered.cumsum(1), support[:, None] - 1, 1) - 1) / support[:, None]
    expected = np.maximum(scores - tau, 0)
    expected[3] = 0
    full = np.zeros(expected.shape)
    np.add.at(full, (np.arange(len(ids))[:, None], ids), weights)
    np.testing.assert_allclose(full, expected, atol=1e-6)
    assert not weights[3].any() and (np.diff(weights, axis=1) <= 0).all() and weights.shape[1] == (weights > 0).sum(1).max()


@pytest.mark.parametrize("search", [lambda *x, **o: nearest_neighbors(*x, 10, **o), sparsemax_neighbors])
def test_a_bonus_that_changes_nothing_leaves_the_bits(search):
    queries, keys, flags, _ = make_problem(2)
    plain = search(queries, keys)
    for bonus in (Bonus(0.0, *flags), None):
        for one, two in zip(plain, search(queries, keys, bonus=bonus), strict=True):
            assert one.tobytes() == two.tobytes()
    # All keys have one flag and no query has it: one search of all keys, and nothing is added.
    other = Bonus(0.7, np.zeros(len(queries), bool), np.ones(len(keys), bool))
    nonzero = queries.any(axis=1)
    for one, two in zip(plain, search(queries, keys, bonus=other), strict=True):
        np.testing.assert_allclose(one[nonzero], two[nonzero], atol=1e-7)


def test_progress_ends_at_the_total():
    queries, keys, flags, _ = make_problem(3)
    for search in (lambda **o: nearest_neighbors(queries, keys, 5, **o), lambda **o: sparsemax_neighbors(queries, keys, **o)):
        calls = []
        search(bonus=Bonus(0.1, *flags), target_block=32, progress=lambda *call, told=calls: told.append(call))
        assert calls[-1][0] == calls[-1][1] and calls == sorted(calls) and len({total for _, total in calls}) == 1


def test_mistakes_are_named():
    queries, keys, flags, _ = make_problem(4)
    with pytest.raises(UserError, match=r"word_start -0\.1: expected a number of at least 0"):
        nearest_neighbors(queries, keys, 5, bonus=Bonus(-0.1, *flags))
    with pytest.raises(UserError, match="only 1300 source tokens"):
        nearest_neighbors(queries, keys, 1301, bonus=Bonus(0.1, *flags))
    with pytest.raises(ValueError, match="flags must be bool"):
        nearest_neighbors(queries, keys, 5, bonus=Bonus(0.1, flags[1], flags[0]))
    with pytest.raises(UserError, match="no source token can be a neighbor"):
        sparsemax_neighbors(queries, keys, bonus=Bonus(0.1, *flags), candidates=np.zeros(len(keys), bool))


def make_sides():
    """Half of the tokens begin a word; a fifth are shared; each has a word vector and a helper's row."""
    generator = np.random.default_rng(6)
    sides = []
    for prefix in ("s", "t"):
        words = [f"{prefix if i % 5 else 'both'}{i}" for i in range(TOKENS)]
        strings = tuple("Ġ" + word if i % 2 else word for i, word in enumerate(words))
        raw = tuple(string.replace("Ġ", " ").encode() for string in strings)
        starts = np.array([text.startswith(b" ") for text in raw])
        vocabulary = Vocabulary(strings, raw, starts, (frozenset(),) * TOKENS, "byte_bpe")
        vectors, helper = generator.standard_normal((2, TOKENS, WIDTH)).astype(np.float32)
        sides.append(Side(vocabulary, vectors, helper + np.float32(0.5)))
    return sides


@pytest.mark.parametrize("name", ["wechsel", "wechsel_tfr", "ofa", "focus", "clp_nearest"])
def test_every_method_that_mixes_prefers_tokens_that_agree(name):
    source, target = make_sides()
    overlap = find_overlap(source.vocabulary, target.vocabulary)
    plans = [METHODS[name].plan(source, target, overlap=overlap, word_start=amount) for amount in (0.0, 0.2, 5.0)]
    default = METHODS[name].plan(source, target, overlap=overlap)
    for name in ("copy", "neighbors", "weights", "random"):
        assert getattr(plans[0], name).tobytes() == getattr(default, name).tobytes()

    def agreement(plan):
        agrees = source.vocabulary.word_start[plan.neighbors] == target.vocabulary.word_start[:, None]
        return float((plan.weights * agrees)[plan.is_mixed].sum() / plan.weights[plan.is_mixed].sum())

    shares = [agreement(plan) for plan in plans]
    assert shares[0] < 0.7 and shares[0] + 0.1 < shares[1] < 1 and shares[2] > 0.999, shares
    for plan in plans:
        plan.validate(TOKENS)


def test_wechsel_equals_its_formula_with_the_bonus():
    source, target = make_sides()
    bonus = Bonus(0.2, target.vocabulary.word_start, source.vocabulary.word_start)
    matrix = np.random.default_rng(7).standard_normal((TOKENS, 5)).astype(np.float32)
    scores = boosted(target.vectors, source.vectors, bonus)
    for weights in ("softmax", "sparsemax"):
        rows = METHODS["wechsel"].plan(source, target, word_start=0.2, weights=weights, neighbors=7).apply(matrix)
        if weights == "softmax":
            kept = np.where(scores >= -np.sort(-scores, axis=1)[:, 6:7], np.exp(scores / 0.1), 0)
            expected = kept / kept.sum(axis=1, keepdims=True)
        else:
            ordered = -np.sort(-scores / 0.1, axis=1)
            number = np.arange(1, TOKENS + 1)
            support = (1 + number * ordered > ordered.cumsum(1)).sum(1)[:, None]
            tau = (np.take_along_axis(ordered.cumsum(1), support - 1, 1) - 1) / support
            expected = np.maximum(scores / 0.1 - tau, 0)
        np.testing.assert_allclose(rows, expected @ matrix, atol=1e-5)
