"""Sparsemax neighbors against entmax and against numpy over the full matrix, over block sizes and device counts."""

import entmax
import jax
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from wechsel_jax.errors import UserError
from wechsel_jax.search import sparsemax
from wechsel_jax.search.sparsemax import sparsemax_neighbors, thresholds

LAYOUTS = [(512, 8192, 1, "float32"), (7, 1024, 8, "bfloat16"), (64, 300, 1, "float32")]


def cosines(queries, keys):
    queries, keys = (x.astype(np.float64) for x in (queries, keys))
    scale = np.linalg.norm(queries, axis=1)[:, None] * np.linalg.norm(keys, axis=1)
    return np.where(scale > 0, queries @ keys.T / np.where(scale > 0, scale, 1), 0)


def reference(scores):
    """Weights and thresholds of full rows, float64."""
    ordered = -np.sort(-scores, axis=1)
    number = np.arange(1, scores.shape[1] + 1)
    support = (1 + number * ordered > ordered.cumsum(1)).sum(1)
    tau = (np.take_along_axis(ordered.cumsum(1), support[:, None] - 1, 1)[:, 0] - 1) / support
    return np.maximum(scores - tau[:, None], 0), tau


def dense(ids, weights, count):
    out = np.zeros((len(ids), count))
    np.add.at(out, (np.arange(len(ids))[:, None], ids), weights)
    return out


def weigh_everywhere(queries, keys, layouts=LAYOUTS, **options):
    results = []
    for target_block, source_block, devices, product in layouts:
        blocks = {"target_block": target_block, "source_block": source_block, "product": product}
        results.append(sparsemax_neighbors(queries, keys, devices=jax.devices()[:devices], **blocks, **options))
    for ids, weights in results[1:]:
        np.testing.assert_array_equal(ids, results[0][0])
        np.testing.assert_array_equal(weights.view(np.uint32), results[0][1].view(np.uint32))
    return results[0]


def assert_exact(queries, keys, ids, weights, scale=1.0, candidates=None):
    """Weights, support and order are those of the full matrix; no id appears twice; what is padded is zero."""
    scores = scale * cosines(queries, keys)
    scores = scores if candidates is None else np.where(candidates, scores, -np.inf)
    expected, tau = reference(scores)
    expected[~queries.any(axis=1)] = 0
    full = dense(ids, weights, len(keys))
    assert ids.dtype == np.int32 and weights.dtype == np.float32
    np.testing.assert_allclose(full, expected, atol=1e-6, rtol=0)
    sure = (np.abs(scores - tau[:, None]) > 1e-6) & queries.any(axis=1)[:, None]
    np.testing.assert_array_equal((full > 0)[sure], (expected > 0)[sure])
    np.testing.assert_array_equal((full > 0).sum(axis=1), (weights > 0).sum(axis=1))
    assert weights.shape[1] == (weights > 0).sum(axis=1).max(initial=0)
    assert not ids[weights == 0].any() and (weights >= 0).all()
    assert (np.diff(weights, axis=1) <= 0).all()


@pytest.fixture
def generator():
    return np.random.default_rng(5)


@pytest.mark.slow
@pytest.mark.parametrize("scale", [0.1, 1.0, 10.0])
def test_equals_entmax(generator, scale):
    queries, keys = (generator.standard_normal((n, 40)).astype(np.float32) for n in (700, 3000))
    ids, weights = sparsemax_neighbors(queries, keys, scale=scale)
    expected = entmax.sparsemax(torch.from_numpy(scale * cosines(queries, keys)), dim=-1).numpy()
    np.testing.assert_allclose(dense(ids, weights, len(keys)), expected, atol=1e-6, rtol=0)
    assert_exact(queries, keys, ids, weights, scale)


@pytest.mark.slow
@pytest.mark.parametrize(("dimension", "scale"), [(2, 1.0), (37, 0.02), (128, 1.0), (64, 30.0)])
def test_every_layout_gives_the_same_bits(generator, dimension, scale):
    queries, keys = (generator.standard_normal((n, dimension)).astype(np.float32) for n in (60, 900))
    queries[7] = 0
    ids, weights = weigh_everywhere(queries, keys, scale=scale)
    assert_exact(queries, keys, ids, weights, scale)
    assert not weights[7].any()


@pytest.mark.slow
def test_rows_with_few_and_with_many_neighbors_together(generator):
    """Half of the queries lie in a crowd of 700 keys of almost one direction, the other half far from it."""
    crowd = np.eye(48, dtype=np.float32)[0] + generator.standard_normal((700, 48)).astype(np.float32) * np.float32(0.003)
    keys = np.concatenate([crowd, generator.standard_normal((2000, 48)).astype(np.float32)])
    queries = generator.standard_normal((40, 48)).astype(np.float32)
    queries[::2] = crowd[:20]
    order = generator.permutation(len(keys))
    ids, weights = weigh_everywhere(queries, keys[order])
    assert_exact(queries, keys[order], ids, weights)
    support = (weights > 0).sum(axis=1)
    assert support[::2].min() > 500 and support[1::2].max() < 100


def test_equal_keys_have_equal_weights(generator):
    """Of twins (some of them longer) none is preferred, even where the threshold is decided among them."""
    rows = generator.integers(-3, 4, (40, 6)).astype(np.float32)
    which = generator.integers(40, size=900)
    keys = rows[which]
    queries = generator.standard_normal((30, 6)).astype(np.float32)
    ids, weights = weigh_everywhere(queries, keys)
    assert_exact(queries, keys, ids, weights)
    full = dense(ids, weights, len(keys))
    for group in range(40):
        members = full[:, which == group]
        assert (members == members[:, :1]).all()
    tied = (weights[:, 1:] == weights[:, :-1]) & (weights[:, 1:] > 0)
    assert tied.any() and (np.diff(ids, axis=1)[tied] > 0).all()


def test_candidates_and_keys_of_zeros(generator):
    queries, keys = (generator.standard_normal((n, 9)).astype(np.float32) for n in (30, 500))
    keys[::3] = 0
    candidates = generator.random(500) < 0.6
    ids, weights = weigh_everywhere(queries, keys, candidates=candidates)
    assert_exact(queries, keys, ids, weights, candidates=candidates)
    opposite = -np.abs(queries)
    ids, weights = weigh_everywhere(opposite, np.abs(keys))
    assert_exact(opposite, np.abs(keys), ids, weights)
    assert (weights > 0).sum(axis=1).min() >= 167


def test_all_keys_have_weight(generator):
    queries, keys = (generator.standard_normal((n, 10)).astype(np.float32) for n in (9, 310))
    ids, weights = weigh_everywhere(queries, keys, [(512, 8192, 1, "float32"), (4, 70, 2, "bfloat16")], scale=1e-4)
    assert weights.shape[1] == 310
    assert_exact(queries, keys, ids, weights, 1e-4)


def test_one_key_and_no_query():
    ids, weights = sparsemax_neighbors(np.array([[1, 0], [0, 0], [-3, 1]], np.float32), np.array([[2, 0]], np.float32))
    assert ids.tolist() == [[0], [0], [0]] and weights.tolist() == [[1], [0], [1]]
    for queries in (np.zeros((0, 2), np.float32), np.zeros((4, 2), np.float32)):
        ids, weights = sparsemax_neighbors(queries, np.ones((3, 2), np.float32))
        assert ids.shape == weights.shape == (len(queries), 0)


@pytest.mark.slow
def test_the_first_number_of_nominees_changes_nothing(generator, monkeypatch):
    queries, keys = (generator.standard_normal((n, 30)).astype(np.float32) for n in (200, 1500))
    expected = sparsemax_neighbors(queries, keys)
    for first, factor, sample, block in ((1, 2, 16, 1 << 20), (1000, 4, 512, 4096), (7, 3, 1, 64)):
        settings = {"_FIRST": first, "_FACTOR": factor, "_SAMPLE": sample, "_NOMINEES_PER_BLOCK": block}
        for name, value in settings.items():
            monkeypatch.setattr(sparsemax, name, value)
        found = sparsemax_neighbors(queries, keys)
        np.testing.assert_array_equal(found[0], expected[0])
        np.testing.assert_array_equal(found[1].view(np.uint32), expected[1].view(np.uint32))


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 2**32 - 1), st.sampled_from([0.3, 1.0, 4.0]))
def test_properties(seed, scale):
    """Weights are shares of one; another order of keys gives each key the same weight; longer vectors change nothing."""
    generator = np.random.default_rng(seed)
    queries, keys = (generator.choice(np.float32([-2, -1, 1, 2]), (n, 4)) for n in (16, 64))
    ids, weights = sparsemax_neighbors(queries, keys, scale=scale)
    assert (weights >= 0).all()
    np.testing.assert_allclose(weights.sum(axis=1, dtype=np.float64), 1, atol=1e-6)
    assert_exact(queries, keys, ids, weights, scale)
    order = generator.permutation(64)
    again = dense(*sparsemax_neighbors(4 * queries, keys[order], scale=scale), 64)
    np.testing.assert_allclose(again, dense(ids, weights, 64)[:, order], atol=1e-7, rtol=0)


def test_thresholds_by_hand():
    scores = np.array([[0.9, 0.5, 0.1, -np.inf], [2.0, 0.5, 0.1, 0.0], [0.2, 0.2, 0.2, 0.2]])
    np.testing.assert_allclose(thresholds(scores), [0.2, 1.0, -0.05], atol=1e-15)
    counts = np.array([[1, 3, 1, 1], [2, 1, 1, 1], [1, 1, 1, 1]])
    np.testing.assert_allclose(thresholds(scores, counts), [(0.9 + 1.5 - 1) / 4, 1.5, -0.05], atol=1e-15)


def test_progress_ends_at_the_total(generator):
    calls = []
    queries = generator.standard_normal((600, 8)).astype(np.float32)
    sparsemax_neighbors(queries, queries[:300], progress=lambda *c: calls.append(c))
    assert calls[-1] == (600, 600) and calls == sorted(calls)


def test_mistakes_are_named():
    good = np.ones((3, 2), np.float32)
    with pytest.raises(UserError, match="no source token can be a neighbor"):
        sparsemax_neighbors(good, good, candidates=np.zeros(3, bool))
    for scale in (0.0, -1.0, np.inf, np.nan):
        with pytest.raises(UserError, match="expected a positive number"):
            sparsemax_neighbors(good, good, scale=scale)
    with pytest.raises(UserError, match="2 dimensions, the source vectors 3"):
        sparsemax_neighbors(good, np.ones((3, 3)))
    with pytest.raises(ValueError, match="must be positive"):
        sparsemax_neighbors(good, good, source_block=0)
    with pytest.raises(ValueError, match="product must be"):
        sparsemax_neighbors(good, good, product="float16")
