import math

import numpy as np
import pytest
from scipy import stats

from wechsel_jax.errors import UserError
from wechsel_jax.evaluation.bootstrap import bootstrap, paired_bootstrap


def test_the_interval_of_a_mean_is_that_of_scipy():
    right = np.random.default_rng(0).random(400) < 0.7
    found = bootstrap((right, np.ones(400)))
    expected = stats.bootstrap((right.astype(float),), np.mean, method="percentile", n_resamples=4000, rng=1)
    assert found.value == pytest.approx(right.mean())
    assert found[1:] == pytest.approx(tuple(expected.confidence_interval), abs=0.008)


def test_a_ratio_of_sums_is_drawn_as_one():
    rng = np.random.default_rng(1)
    sizes = rng.integers(20, 400, 300).astype(float)
    bits = sizes * rng.normal(2.0, 0.4, 300)
    found = bootstrap((bits, sizes))
    pairs = np.stack([bits, sizes])
    expected = stats.bootstrap(
        (pairs[0], pairs[1]), lambda a, b, axis: a.sum(axis=axis) / b.sum(axis=axis), paired=True, method="percentile",
        n_resamples=4000, rng=2,
    )  # fmt: skip
    assert found.value == pytest.approx(bits.sum() / sizes.sum())
    assert found[1:] == pytest.approx(tuple(expected.confidence_interval), abs=0.01)


def test_pairs_are_compared_on_the_same_draws():
    rng = np.random.default_rng(3)
    hard = rng.normal(size=500)
    one, other = hard + rng.normal(0, 0.1, 500), hard - 0.05 + rng.normal(0, 0.1, 500)
    weights = np.ones(500)
    found = paired_bootstrap((one, weights), (other, weights))
    test = stats.ttest_rel(one, other)
    assert found.value == pytest.approx((one - other).mean())
    assert found[1:3] == pytest.approx(tuple(test.confidence_interval(0.95)), abs=0.003)
    # Apart, the same means would say nothing: the items differ far more than the models.
    assert found.low > 0 and stats.ttest_ind(one, other).pvalue > 0.2
    same = paired_bootstrap((one, weights), (one, weights))
    assert same.value == same.low == same.high == 0


@pytest.mark.parametrize("other", [([1.0], [1.0]), ([], [])])
def test_other_items_are_refused(other):
    with pytest.raises(UserError, match="expected scores of the same items"):
        paired_bootstrap(([1.0, 0.0] if other[0] else [], [1.0, 1.0] if other[0] else []), other)


def test_where_nothing_was_to_be_found_the_score_is_0_as_seqeval_has_it():
    f1 = pytest.importorskip("seqeval.metrics").f1_score
    with pytest.warns(Warning):
        expected = float(f1([["O", "O"]], [["O", "O"]]))
    found = bootstrap(([0.0, 0.0], [0.0, 0.0]))
    assert found.value == expected and np.isnan(found[1:]).all()


def test_draws_without_anything_to_find_do_not_count():
    """Three sentences of a hundred have an entity each: one draw in twenty has none, which says nothing of the model."""
    entities = np.zeros(100)
    entities[:3] = 2
    found = bootstrap(([2.0, 2.0, 0.0, *[0.0] * 97], entities))
    assert found.value == pytest.approx(2 / 3) and (found.low, found.high) == (0.0, 1.0)
    assert bootstrap((entities, entities)) == (1.0, 1.0, 1.0)
    assert paired_bootstrap((entities, entities), (0 * entities, entities / 2)) == (1.0, 1.0, 1.0)


def test_one_item_has_no_interval():
    for found in (bootstrap(([3.0], [2.0])), paired_bootstrap(([3.0], [2.0]), ([1.0], [2.0]))):
        assert found.value in (1.5, 1.0) and math.isnan(found.low) and math.isnan(found.high)
