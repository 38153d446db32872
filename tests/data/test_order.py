import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from wechsel_jax.data import permuted

sizes, seeds, epochs = st.integers(1, 5000), st.integers(-(2**70), 2**70), st.integers(0, 2**40)


@settings(deadline=None)
@given(size=sizes, seed=seeds, epoch=epochs)
def test_it_is_a_bijection(size, seed, epoch):
    assert np.array_equal(np.sort(permuted(np.arange(size), size, seed, epoch)), np.arange(size))


@pytest.mark.parametrize("size", [4**k + d for k in range(1, 9) for d in (-1, 0, 1)])
def test_it_is_a_bijection_around_powers_of_four(size):
    assert np.array_equal(np.sort(permuted(np.arange(size), size, 0)), np.arange(size))


@settings(deadline=None)
@given(size=st.integers(1, 2**62), seed=seeds, data=st.data())
def test_an_index_alone_goes_where_it_goes_among_others(size, seed, data):
    indices = data.draw(st.lists(st.integers(0, size - 1), min_size=1, max_size=8, unique=True))
    together = permuted(np.asarray(indices), size, seed)
    assert [int(permuted(np.asarray([index]), size, seed)[0]) for index in indices] == together.tolist()
    assert len(set(together.tolist())) == len(indices)
    assert all(0 <= place < size for place in together.tolist())


@settings(deadline=None)
@given(size=st.integers(300, 5000), seed=st.integers(0, 2**32), epoch=epochs)
def test_seeds_and_epochs_have_orders_of_their_own(size, seed, epoch):
    orders = [permuted(np.arange(size), size, *pair) for pair in ((seed, epoch), (seed, epoch + 1), (seed + 1, epoch))]
    orders.append(np.arange(size))
    for one, other in itertools.combinations(orders, 2):
        # Two random permutations agree in one place on average; 12 or more have a probability below 1e-9.
        assert np.sum(one == other) < 12


@pytest.mark.parametrize(("size", "draws"), [(2, 200), (3, 300), (4, 720)])
def test_all_orders_of_few_items_are_equally_likely(size, draws):
    counts = dict.fromkeys(itertools.permutations(range(size)), 0)
    for seed, epoch in itertools.product(range(draws // 20), range(20)):
        counts[tuple(permuted(np.arange(size), size, seed, epoch).tolist())] += 1
    assert stats.chisquare(list(counts.values())).pvalue > 1e-4


@pytest.mark.parametrize("size", [1000, 65536, 100_003])
def test_the_order_looks_random(size):
    order = permuted(np.arange(size), size, seed=7)
    assert abs(stats.spearmanr(np.arange(size), order).statistic) < 4.5 / np.sqrt(size)
    assert abs(stats.pearsonr(order[:-1], order[1:]).statistic) < 4.5 / np.sqrt(size)
    # Which tenth of the data a tenth of the epoch comes from.
    table = np.histogram2d(np.arange(size), order, bins=10)[0]
    assert stats.chi2_contingency(table).pvalue > 1e-4


def test_the_order_is_the_same_everywhere_and_always():
    # A run that was begun with another version must go on with the same batches. To regenerate:
    # python -c "import numpy as np; from wechsel_jax.data import permuted; print(permuted(np.arange(12), 12, 0).tolist())"
    # and likewise with np.arange(4), 10**12, 5, 3.
    assert permuted(np.arange(12), 12, seed=0).tolist() == [3, 10, 9, 6, 8, 0, 7, 1, 2, 5, 4, 11]
    assert permuted(np.arange(4), 10**12, seed=5, epoch=3).tolist() == [636593566199, 327872972984, 111052898774, 91746684228]


@pytest.mark.parametrize(("indices", "size"), [([0], 0), ([3], 3), ([-1], 3), ([0], 2**62 + 1)])
def test_what_is_out_of_range_is_refused(indices, size):
    with pytest.raises(ValueError, match="expected"):
        permuted(np.asarray(indices), size, 0)
