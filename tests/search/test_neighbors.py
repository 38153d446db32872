"""The search against numpy in float64 and longer, on ordinary and on hostile inputs, over block sizes and device counts."""

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from wechsel_jax.errors import UserError
from wechsel_jax.search import neighbors, rescoring
from wechsel_jax.search.neighbors import nearest_neighbors

LAYOUTS = [
    (512, 8192, 1, "float32"),
    (512, 8192, 8, "bfloat16"),
    (64, 1024, 1, "bfloat16"),
    (7, 2048, 8, "float32"),
    (1, 100, 1, "float32"),
    (512, 8192, 8, None),
]


def cosines(queries: np.ndarray, keys: np.ndarray) -> np.ndarray:
    queries, keys = (x.astype(np.longdouble) for x in (queries, keys))
    scale = np.sqrt((queries**2).sum(1))[:, None] * np.sqrt((keys**2).sum(1))
    return np.where(scale > 0, (queries @ keys.T) / np.where(scale > 0, scale, 1), 0)


def assert_exact(queries, keys, k, similarity, ids, candidates=None, tolerance=1e-14):
    """No skipped key is better than a chosen one, the order descends, and twins come lowest id first."""
    score = cosines(queries, keys)
    allowed = np.ones(len(keys), bool) if candidates is None else candidates
    chosen = np.take_along_axis(score, ids.astype(int), 1)
    assert similarity.dtype == np.float32 and ids.dtype == np.int32 and ids.shape == (len(queries), k)
    np.testing.assert_allclose(similarity, chosen.astype(np.float64), atol=1e-7, rtol=0)
    assert (np.diff(chosen, axis=1) <= tolerance).all()
    twins = {}
    for i, key in enumerate(keys):
        twins.setdefault((key + 0.0).tobytes(), []).append(i) if allowed[i] else None
    twin_lists = {i: np.array(group) for group in twins.values() for i in group}
    for row in range(len(queries)):
        assert len(set(ids[row])) == k and allowed[ids[row]].all()
        rest = allowed.copy()
        rest[ids[row]] = False
        assert not rest.any() or score[row][rest].max() <= chosen[row, -1] + tolerance
        for place, i in enumerate(ids[row]):
            before = twin_lists[i][twin_lists[i] < i]
            assert np.isin(before, ids[row, :place]).all()


def search_everywhere(queries, keys, k, layouts=LAYOUTS, **options):
    results = []
    for target_block, source_block, devices, product in layouts:
        blocks = {"target_block": target_block, "source_block": source_block, "product": product}
        blocks["devices"] = jax.devices()[:devices]
        results.append(nearest_neighbors(queries, keys, k, **blocks, **options))
    for similarity, ids in results[1:]:
        np.testing.assert_array_equal(ids, results[0][1])
        np.testing.assert_array_equal(similarity.view(np.uint32), results[0][0].view(np.uint32))
    return results[0]


@pytest.fixture
def generator():
    return np.random.default_rng(7)


@pytest.mark.slow
@pytest.mark.parametrize("dimension", [1, 2, 37, 300])
def test_equals_brute_force(generator, dimension):
    queries = generator.standard_normal((53, dimension)).astype(np.float32)
    keys = generator.standard_normal((3001, dimension)).astype(np.float32)
    assert_exact(queries, keys, 10, *search_everywhere(queries, keys, 10))


def test_hundreds_of_twins_come_in_order_of_id(generator):
    rows = generator.standard_normal((5, 33)).astype(np.float32)
    which = generator.integers(5, size=1500)
    queries = generator.standard_normal((20, 33)).astype(np.float32)
    keys = rows[which]
    similarity, ids = search_everywhere(queries, keys, 400)
    expected = np.argsort(-cosines(queries, rows)[:, which], axis=1, kind="stable")[:, :400]
    np.testing.assert_array_equal(ids, expected)
    assert_exact(queries, keys, 400, similarity, ids)


def test_twins_of_an_earlier_and_a_later_key_interleave():
    a, b = np.array([1, 0], np.float32), np.array([0, 1], np.float32)
    keys = np.stack([a, b, a, b, a, b, -a, 2 * a])
    similarity, ids = nearest_neighbors(np.array([[1, 1]], np.float32), keys, 6)
    assert ids.tolist() == [[0, 1, 2, 3, 4, 5]] and len(set(similarity[0])) == 1


def test_neighbors_one_rounding_apart_are_found_by_searching_again(generator, monkeypatch):
    base = generator.standard_normal(41).astype(np.float32)
    keys = np.tile(base, (1200, 1))
    for key in keys:
        changed = generator.integers(41, size=generator.integers(1, 6))
        key[changed] = np.nextafter(key[changed], generator.choice(np.float32([-9, 9])))
    queries = np.concatenate([np.tile(base, (2, 1)), generator.standard_normal((12, 41)).astype(np.float32)])
    queries[1, 0] *= 1.5
    searched = []
    exact = neighbors.exact_search
    monkeypatch.setattr(neighbors, "exact_search", lambda q, *rest: searched.append(len(q)) or exact(q, *rest))
    similarity, ids = search_everywhere(queries, keys, 10)
    assert sum(searched) >= len(queries)
    assert_exact(queries, keys, 10, similarity, ids)


def test_neighbors_crowded_into_one_chunk_are_found(generator):
    """Every eighth key is near the query, so one chunk of eight has more to give than its share."""
    queries = np.eye(4, dtype=np.float32)[:2]
    keys = generator.standard_normal((8 * 1024, 4)).astype(np.float32)
    keys[3::8] = queries[0] + generator.standard_normal((1024, 4)).astype(np.float32) * np.float32(0.01)
    similarity, ids = search_everywhere(queries, keys, 30, [(512, 1024, 1, "float32"), (512, 1024, 2, "bfloat16")])
    assert (ids[0] % 8 == 3).all()
    assert_exact(queries, keys, 30, similarity, ids)


@pytest.mark.parametrize("product", ["float32", "bfloat16"])
def test_nominations_as_wrong_as_the_bound_allows_are_repaired(generator, monkeypatch, product):
    """Whatever the hardware adds within the bound, the neighbors stay."""
    queries = generator.standard_normal((30, 16)).astype(np.float32)
    keys = np.repeat(generator.standard_normal((150, 16)).astype(np.float32), 20, axis=0)
    keys += generator.standard_normal(keys.shape).astype(np.float32) * np.float32(1e-5)
    expected = nearest_neighbors(queries, keys, 10, product="float32")
    allowed = rescoring.accumulation_error(16)

    def wrong(mesh, count):
        def nominate(queries_TxM, keys_CxMxS, penalty_CxS):
            product = np.asarray(queries_TxM, np.float32) @ np.concatenate(list(np.asarray(keys_CxMxS, np.float32)), axis=1)
            product += generator.uniform(-0.9, 0.9, product.shape).astype(np.float32) * np.float32(allowed)
            product += np.asarray(penalty_CxS).reshape(-1)
            ids = np.argsort(-product, axis=1)[:, :count]
            values = np.take_along_axis(product, ids, 1)
            return values, ids, values[:, -1]

        return nominate

    monkeypatch.setattr(neighbors, "_nominator", wrong)
    similarity, ids = nearest_neighbors(queries, keys, 10, product=product, devices=jax.devices()[:1])
    np.testing.assert_array_equal(ids, expected[1])
    np.testing.assert_array_equal(similarity, expected[0])
    assert_exact(queries, keys, 10, similarity, ids)


def test_the_error_bound_of_each_product_holds(generator):
    for product in ("float32", "bfloat16"):
        for dimension in (3, 64, 300):
            queries, keys = (generator.standard_normal((n, dimension)).astype(np.float32) for n in (200, 500))
            keys[:40] = queries[:40]
            search = neighbors.Search(rescoring.Index(keys), 10, 512, 512, tuple(jax.devices()[:1]), product)
            stored, error = search._stored(queries, rescoring.row_norms(queries), 512)
            values, ids, _ = (np.asarray(x)[:200] for x in search._nominate(stored, search._keys, search._penalty))
            off = np.abs(values - np.take_along_axis(cosines(queries, keys), ids, 1).astype(np.float64)).max(axis=1)
            bound = error + (1 + error) * search._key_error + rescoring.accumulation_error(dimension)
            assert (off < bound).all()
            assert bound.max() < (1e-3 if product == "float32" else 8e-3)


@pytest.mark.slow
def test_rows_of_zeros_and_candidates(generator):
    keys = generator.standard_normal((1100, 12)).astype(np.float32)
    zeros = generator.random(1100) < 0.3
    keys[zeros] = 0
    keys[np.flatnonzero(zeros)[3]] = -0.0
    queries = generator.standard_normal((25, 12)).astype(np.float32)
    queries[[3, 7]] = 0
    assert_exact(queries, keys, 900, *search_everywhere(queries, keys, 900))
    similarity, ids = search_everywhere(queries, keys, 10, candidates=~zeros)
    assert_exact(queries, keys, 10, similarity, ids, candidates=~zeros)
    np.testing.assert_array_equal(ids[[3, 7]], np.tile(np.flatnonzero(~zeros)[:10], (2, 1)))
    assert not similarity[[3, 7]].any()


def test_all_keys_zero_or_all_queries_zero():
    zeros = np.zeros((4, 3), np.float32)
    for queries, keys in ((zeros, np.eye(3, dtype=np.float32)), (np.eye(3, dtype=np.float32), zeros), (zeros, zeros)):
        similarity, ids = nearest_neighbors(queries, keys, 2)
        assert ids.tolist() == [[0, 1]] * len(queries) and not similarity.any()


def test_extreme_lengths_do_not_overflow(generator):
    queries = generator.standard_normal((9, 20)).astype(np.float32) * np.float32(1e30)
    keys = generator.standard_normal((64, 20)).astype(np.float32) * np.float32(1e-30)
    assert_exact(queries, keys, 5, *nearest_neighbors(queries, keys, 5))


@pytest.mark.slow
@pytest.mark.parametrize("targets,sources,k", [(1, 1, 1), (3, 2, 2), (17, 19, 19), (5, 1031, 3)])
def test_small_and_odd_sizes(generator, targets, sources, k):
    queries = generator.standard_normal((targets, 5)).astype(np.float32)
    keys = generator.standard_normal((sources, 5)).astype(np.float32)
    layouts = [(512, 8192, 8, None), (3, 1000, 1, "bfloat16")]
    layouts += [(1, 1, 1, "bfloat16"), (2, 3, 8, "float32")] if sources < 100 else []
    assert_exact(queries, keys, k, *search_everywhere(queries, keys, k, layouts))


def test_no_query_at_all():
    similarity, ids = nearest_neighbors(np.zeros((0, 4), np.float32), np.ones((3, 4), np.float32), 2)
    assert similarity.shape == ids.shape == (0, 2)


@pytest.mark.slow
@settings(max_examples=40, deadline=None)
@given(st.data())
def test_signs_have_exact_ties_in_order_of_id(data):
    """Vectors of signs all have one length, so integers tell every tie."""
    seed = data.draw(st.integers(0, 2**32 - 1))
    k = data.draw(st.integers(1, 24))
    generator = np.random.default_rng(seed)
    queries, keys = (generator.choice(np.float32([-1, 1]), (n, 5)) for n in (16, 128))
    similarity, ids = nearest_neighbors(queries, keys, k)
    np.testing.assert_array_equal(ids, np.argsort(-(queries @ keys.T), axis=1, kind="stable")[:, :k])
    np.testing.assert_allclose(similarity, np.take_along_axis(queries @ keys.T, ids, 1) / 5, atol=1e-7)


def test_the_rescoring_of_a_pair_never_depends_on_its_company(generator):
    index = rescoring.Index(generator.standard_normal((700, 301)).astype(np.float32))
    queries = generator.standard_normal((40, 301)).astype(np.float32)
    rows, ids = (x.reshape(-1) for x in np.meshgrid(np.arange(40), np.arange(700), indexing="ij"))
    together = index.scores(queries, rows, ids)
    picked = generator.choice(len(rows), 300, replace=False)
    alone = [index.scores(queries[rows[p] : rows[p] + 1], np.array([0]), ids[p : p + 1])[0] for p in picked]
    np.testing.assert_array_equal(np.array(alone).view(np.uint64), together[picked].view(np.uint64))


def test_progress_ends_at_the_total(generator):
    calls = []
    queries = generator.standard_normal((20, 4)).astype(np.float32)
    nearest_neighbors(queries, queries, 2, target_block=4, devices=jax.devices()[:1], progress=lambda *c: calls.append(c))
    assert calls == [(4, 20), (8, 20), (12, 20), (16, 20), (20, 20)]


def test_mistakes_are_named():
    good = np.ones((3, 2), np.float32)
    with pytest.raises(UserError, match="only 3 source tokens"):
        nearest_neighbors(good, good, 4)
    with pytest.raises(UserError, match="only 1 source tokens"):
        nearest_neighbors(good, good, 2, candidates=np.array([True, False, False]))
    with pytest.raises(UserError, match="2 dimensions, the source vectors 3"):
        nearest_neighbors(good, np.ones((3, 3)), 1)
    bad = good.copy()
    bad[1, 1] = np.nan
    with pytest.raises(UserError, match="target vector 1: holds NaN"):
        nearest_neighbors(bad, good, 1)
    with pytest.raises(UserError, match="source vector 0: holds NaN or infinity"):
        nearest_neighbors(good, good.astype(np.float64) * 1e300, 1)
    with pytest.raises(ValueError, match="must be positive"):
        nearest_neighbors(good, good, 1, target_block=0)
