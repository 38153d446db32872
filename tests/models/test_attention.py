"""Attention in blocks of queries, as a CPU computes it, against numpy in float64; cuDNN's path is in test_families.py."""

import jax
import numpy as np
import pytest

from wechsel_jax.models import attention
from wechsel_jax.models.dropout import Dropout

ROWS, LENGTH, HEADS, SIZE = 2, 128, 4, 8


def reference(query, key, value, visible, scale, limit):
    """float64 (B, L, heads, c), one head after the other."""
    mixed = np.zeros(query.shape)
    for head in range(HEADS):
        group = head * key.shape[2] // HEADS
        scores = scale * np.einsum("bqc,bkc->bqk", query[:, :, head].astype(np.float64), key[:, :, group].astype(np.float64))
        scores = scores if limit is None else limit * np.tanh(scores / limit)
        scores = np.where(visible, scores, -np.inf)
        shares = np.exp(scores - scores.max(axis=-1, keepdims=True))
        mixed[:, :, head] = shares / shares.sum(axis=-1, keepdims=True) @ value[:, :, group].astype(np.float64)
    return mixed


@pytest.mark.parametrize("groups", [HEADS, 2, 1])
@pytest.mark.parametrize(("causal", "padded", "limit"), [(True, False, None), (True, True, 5.0), (False, True, None)])
def test_blocks_of_queries_change_nothing(groups, causal, padded, limit):
    rng = np.random.default_rng(groups)
    heads = (HEADS, groups, groups)
    query, key, value = (rng.normal(size=(ROWS, LENGTH, n, SIZE)).astype(np.float32) for n in heads)
    mask = np.ones((ROWS, LENGTH), bool)
    mask[1, LENGTH - 50 * padded :] = False
    visible = attention.attention_mask(mask if padded else None, LENGTH, causal)
    dropout = Dropout(0.1, deterministic=True).bind({})

    @jax.jit
    def mixed(*arrays):
        return attention.attention(*arrays, visible, causal=causal, scale=0.3, dropout=dropout, limit=limit)

    assert attention.blocks_of_queries(LENGTH) == 4
    seen = np.broadcast_to(mask[:, None, :], (ROWS, LENGTH, LENGTH)) & (np.tril(np.ones((LENGTH, LENGTH), bool)) | (not causal))
    expected = reference(query, key, value, seen, 0.3, limit)
    np.testing.assert_allclose(mixed(query, key, value), expected, atol=3e-6)


def test_lengths_that_do_not_divide_are_one_block():
    assert attention.blocks_of_queries(LENGTH + 1) == 1
    assert attention.blocks_of_queries(16) == 1
