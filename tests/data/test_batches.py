from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from wechsel_jax.data import TokenBlocks, evaluation_batches
from wechsel_jax.errors import UserError


def make_blocks(count, length):
    """A stream whose tokens are their own places, so that a batch tells where it came from."""
    return TokenBlocks(Path("stream"), length, np.arange(count, dtype=np.uint32), max(1, count), "")


streams = st.integers(1, 40).flatmap(lambda length: st.tuples(st.integers(length, 400), st.just(length)))


@settings(deadline=None, max_examples=50)
@given(stream=streams, batch_size=st.integers(1, 12), seed=st.integers(0, 2**32), epochs=st.integers(1, 3))
def test_every_epoch_holds_every_block_once(stream, batch_size, seed, epochs):
    blocks = make_blocks(*stream)
    needed = epochs * len(blocks)
    rows = [blocks.batch(step, batch_size, seed)["tokens"] for step in range(-(-needed // batch_size))]
    starts = np.concatenate(rows)[:needed]
    assert starts.dtype == np.int32
    assert np.array_equal(starts, starts[:, :1] + np.arange(blocks.length))
    for epoch in np.split(starts[:, 0], epochs):
        assert sorted(epoch.tolist()) == list(range(0, len(blocks) * blocks.length, blocks.length))


@settings(deadline=None, max_examples=50)
@given(
    stream=streams,
    hosts=st.integers(1, 4),
    rows=st.integers(1, 5),
    step=st.integers(0, 10**9),
    seed=st.integers(0, 2**32),
)
def test_hosts_make_up_the_same_batch(stream, hosts, rows, step, seed):
    blocks, size = make_blocks(*stream), hosts * rows
    whole = blocks.batch(step, size, seed)["tokens"]
    parts = [blocks.batch(step, size, seed, slice(i * rows, (i + 1) * rows))["tokens"] for i in range(hosts)]
    assert np.array_equal(np.concatenate(parts), whole)
    interleaved = [blocks.batch(np.int32(step), size, seed, slice(i, None, hosts))["tokens"] for i in range(hosts)]
    assert np.array_equal(np.stack(interleaved, 1).reshape(whole.shape), whole)


def test_steps_seeds_and_epochs_differ():
    blocks = make_blocks(6400, 10)
    first = blocks.batch(0, 64, seed=0)["tokens"]
    assert np.array_equal(blocks.batch(0, 64, seed=0)["tokens"], first)
    for step, seed in ((1, 0), (10, 0), (0, 1)):
        assert not np.array_equal(blocks.batch(step, 64, seed)["tokens"], first)


@settings(deadline=None, max_examples=50)
@given(stream=streams, batch_size=st.integers(1, 12), causal=st.booleans())
def test_an_evaluation_counts_every_token_once(stream, batch_size, causal):
    count, length = stream
    if causal and length == 1:
        return
    blocks = make_blocks(count, length)
    batches = list(evaluation_batches(blocks, batch_size, causal))
    counted = Counter()
    for batch in batches:
        tokens, weights, mask = batch["tokens"], batch["weights"], batch["mask"]
        assert tokens.shape == weights.shape == mask.shape == (batch_size, length)
        assert (tokens.dtype, weights.dtype, mask.dtype) == (np.int32, np.float32, bool)
        assert set(np.unique(weights)) <= {0.0, 1.0}
        assert np.all(tokens[~mask] == 0) and np.all(weights[~mask] == 0)
        assert not mask[weights.sum(axis=1) == 0].any()
        counted.update(tokens[weights > 0].tolist())
        if causal:
            row, column = np.nonzero(weights)
            assert np.all(column > 0)
            # The token before a predicted one is the one before it in the stream, and is real.
            assert np.array_equal(tokens[row, column - 1] + 1, tokens[row, column])
            assert np.all(mask[row, column - 1])
    assert counted == Counter(range(1 if causal else 0, count))
    total = sum(batch["weights"].sum(dtype=np.float64) for batch in batches)
    assert total == (count - 1 if causal else count)
    # No batch is padding alone.
    assert all(batch["mask"].any() for batch in batches) and (not causal or count == 1 or batches)


def test_windows_by_hand():
    causal = list(evaluation_batches(make_blocks(8, 4), 2, causal=True))
    assert [batch["tokens"].tolist() for batch in causal] == [[[0, 1, 2, 3], [3, 4, 5, 6]], [[6, 7, 0, 0], [0] * 4]]
    assert causal[1]["weights"].tolist() == [[0, 1, 0, 0], [0] * 4]
    assert causal[1]["mask"].tolist() == [[True, True, False, False], [False] * 4]
    masked = list(evaluation_batches(make_blocks(8, 5), 3, causal=False))
    assert [batch["tokens"].tolist() for batch in masked] == [[[0, 1, 2, 3, 4], [5, 6, 7, 0, 0], [0] * 5]]
    assert masked[0]["weights"].sum() == masked[0]["mask"].sum() == 8


@pytest.mark.parametrize("limit", [1, 2, 100])
def test_a_limit_keeps_the_first_batches(limit):
    blocks = make_blocks(100, 5)
    everything = list(evaluation_batches(blocks, 4, causal=True))
    limited = list(evaluation_batches(blocks, 4, causal=True, limit=limit))
    assert len(limited) == min(limit, len(everything))
    assert all(np.array_equal(a["tokens"], b["tokens"]) for a, b in zip(limited, everything, strict=False))


@pytest.mark.parametrize(("length", "rows", "limit"), [(1, 4, None), (5, 0, None), (5, 4, 0)])
def test_an_evaluation_of_nothing_is_refused_at_once(length, rows, limit):
    with pytest.raises(UserError, match="stream: "):
        evaluation_batches(make_blocks(10, length), rows, causal=True, limit=limit)
