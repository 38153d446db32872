"""Counting contexts, and positive PMI of them, against loops in Python and numpy in float64."""

import math

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given, settings
from scipy.sparse import csr_array

from wechsel_jax.initializers.anker.contexts import context_counts, count_neighbors, positive_pmi

SIZE = 7


def counted_by_hand(ids, window):
    unit, expected = math.lcm(*range(1, window + 1)), np.zeros((SIZE, SIZE), np.int64)
    for i, first in enumerate(ids):
        for offset in range(1, window + 1):
            between = ids[i : i + offset + 1]
            if len(between) == offset + 1 and (np.asarray(between) >= 0).all():
                expected[first, between[-1]] += unit // offset
    return expected


@given(st.lists(st.integers(-1, SIZE - 1), max_size=60), st.integers(1, 5), st.sampled_from([1, 2, 3, 7, 16, 1000]))
@settings(max_examples=80, deadline=None)
def test_counts_are_those_of_a_loop_whatever_the_blocks(ids, window, block):
    counts = count_neighbors(np.array(ids, np.int32), SIZE, window=window, block=block)
    np.testing.assert_array_equal(counts.toarray(), counted_by_hand(ids, window))
    assert counts.dtype == np.int64 and counts.has_sorted_indices


@pytest.mark.parametrize("rows", [[4, 0, 2], [3], [6, 5, 4, 3, 2, 1, 0]])
def test_contexts_before_come_first(rows):
    dense = np.random.default_rng(0).integers(0, 5, (SIZE, SIZE))
    columns = np.array([5, 1, 3, 0])
    found = context_counts(csr_array(dense.T), csr_array(dense), np.array(rows), columns).toarray()
    np.testing.assert_array_equal(found[:, :4], dense.T[np.ix_(rows, columns)])
    np.testing.assert_array_equal(found[:, 4:], dense[np.ix_(rows, columns)])


@pytest.mark.parametrize("smoothing", [1.0, 0.75])
def test_pmi_is_that_of_numpy(smoothing):
    generator = np.random.default_rng(1)
    contexts = generator.integers(0, 9, (6, 10)) * (generator.random((6, 10)) < 0.6)
    contexts[2], contexts[:, 3] = 0, 0
    totals = contexts.sum(axis=0) + np.where(np.arange(10) == 3, 0, 4)
    expected = np.zeros((6, 10))
    for side in (slice(0, 5), slice(5, 10)):
        part, total = contexts[:, side].astype(np.float64), totals[side].astype(np.float64)
        smooth = total**smoothing / (total**smoothing).sum()
        with np.errstate(divide="ignore", invalid="ignore"):
            pmi = np.log(part / part.sum(axis=1, keepdims=True) / smooth)
        expected[:, side] = np.where(part > 0, np.maximum(pmi, 0), 0)
    found = positive_pmi(csr_array(contexts), totals, smoothing=smoothing)
    assert found.dtype == np.float32 and (found.data > 0).all()
    np.testing.assert_allclose(found.toarray(), expected, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("size", [1 << 16, (1 << 16) + 1, 300_000])
def test_the_last_tokens_of_a_large_vocabulary_are_told_apart(size):
    ids = np.array([size - 1, size - 2, size - 1, 0, size - 1, -1, 0, size - 1], np.int32)
    counts = count_neighbors(ids, size, window=1)
    found = {(int(i), int(j)): int(n) for i, j, n in zip(*counts.tocoo().coords, counts.tocoo().data, strict=True)}
    last = size - 1
    assert found == {(last, size - 2): 1, (size - 2, last): 1, (last, 0): 1, (0, last): 2}
