"""Attention in blocks of queries, as a CPU computes it, against numpy in float64; cuDNN's path is in test_families.py."""

import jax
import jax.numpy as jnp
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


@pytest.mark.slow
@pytest.mark.parametrize("groups", [HEADS, 2, 1])
@pytest.mark.parametrize(("causal", "padded", "limit"), [(True, False, None), (True, True, 5.0), (False, True, None)])
def test_blocks_of_queries_change_nothing(groups, causal, padded, limit):
    rng = np.random.default_rng(groups)
    heads = (HEADS, groups, groups)
    query, key, value = (rng.normal(size=(ROWS, LENGTH, n, SIZE)).astype(np.float32) for n in heads)
    mask = np.ones((ROWS, LENGTH), bool)
    mask[1, LENGTH - 50 * padded :] = False
    visible = jnp.asarray(mask[:, None, None, :]) if padded else None
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


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("rows", [None, 1, ROWS])
def test_cudnn_is_asked_for_what_the_caller_says(causal, rows, monkeypatch):
    """Whatever the mask's shape: one for all rows is no sign of causality. cuDNN takes masks of the whole (L, L) only."""
    rng = np.random.default_rng(0)
    query, key, value = (rng.normal(size=(ROWS, LENGTH, HEADS, SIZE)).astype(np.float32) for _ in range(3))
    mask = np.ones((rows or 1, LENGTH), bool)
    mask[-1, LENGTH - 50 :] = False
    real, asked = jax.nn.dot_product_attention, []

    def plain(*arrays, mask, is_causal, scale, implementation):
        asked.append((None if mask is None else mask.shape[2:], is_causal))
        return real(*arrays, mask=mask, is_causal=is_causal, scale=scale)

    monkeypatch.setattr(jax.nn, "dot_product_attention", plain)
    monkeypatch.setattr(attention, "fits_flash_attention", lambda query, dropout: True)
    visible = None if rows is None else jnp.asarray(mask[:, None, None, :])
    dropout = Dropout(0.1, deterministic=True).bind({})
    mixed = attention.attention(query, key, value, visible, causal=causal, scale=0.3, dropout=dropout)
    seen = np.tril(np.ones((LENGTH, LENGTH), bool)) | (not causal)
    seen = np.broadcast_to(seen if rows is None else seen & mask[:, None, :], (ROWS, LENGTH, LENGTH))
    np.testing.assert_allclose(mixed, reference(query, key, value, seen, 0.3, None), atol=3e-6)
    assert asked == [(None, causal) if rows is None else ((LENGTH, LENGTH), False)]
