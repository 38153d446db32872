"""GloVe against torch's gradients and AdaGrad, and against the matrix that it factorises."""

import numpy as np
import pytest
import torch
from scipy.sparse import csr_array

from wechsel_jax.vectors.glove import glove_vectors


def counts_of(size, seed=0, rank=3, density=0.3):
    """Symmetric counts around the ceiling, whose logarithms are products of vectors; the first two tokens have none."""
    generator = np.random.default_rng(seed)
    vectors = generator.standard_normal((size, rank))
    full = np.exp(vectors @ vectors.T / 2 + 1.5) * np.triu(generator.random((size, size)) < density)
    full[:2] = full[:, :2] = 0
    return csr_array(np.maximum(full, full.T))


def torch_vectors(counts, generator, dim, epochs):
    """All pairs at once: torch derives the gradients of the loss as the paper writes it, and makes AdaGrad's steps."""
    order = generator.permutation(np.flatnonzero(counts.toarray().any(axis=1)))
    matrix = torch.tensor(counts.toarray()[np.ix_(order, order)])
    weight, logs, pairs = (matrix / 10).pow(0.75).clamp(max=1), matrix.clamp(min=1e-30).log(), int((matrix > 0).sum())
    first = [generator.random((len(order), dim + 1)) - 0.5 for _ in range(2)]
    roles = [torch.tensor((each / dim).astype(np.float32).astype(np.float64), requires_grad=True) for each in first]
    optimizer, losses = torch.optim.Adagrad(roles, lr=0.15, initial_accumulator_value=1e-12, eps=0), []
    for _ in range(epochs):
        optimizer.zero_grad()
        (w, b), (c, d) = ((role[:, :-1], role[:, -1]) for role in roles)
        loss = (weight * (w @ c.T + b[:, None] + d - logs) ** 2).sum() / 2
        losses.append(loss.item() / pairs)
        loss.backward()
        optimizer.step()
    vectors = np.zeros((counts.shape[0], dim))
    vectors[order] = (roles[0] + roles[1]).detach()[:, :-1]
    return vectors, losses


def test_a_step_is_adagrads_on_torchs_gradients():
    counts, told = counts_of(40), []
    made = glove_vectors(counts, np.random.default_rng(5), dim=4, epochs=6, progress=lambda *line: told.append(line))
    expected, losses = torch_vectors(counts, np.random.default_rng(5), 4, 6)
    assert counts.data.min() < 10 < counts.data.max() and made.dtype == np.float32
    np.testing.assert_allclose(made, expected, atol=2e-5)
    assert [epoch for epoch, _ in told] == [1, 2, 3, 4, 5, 6]
    np.testing.assert_allclose([loss for _, loss in told], losses, rtol=1e-5)
    assert not made[:2].any() and made[2:].any(axis=1).all()


def test_blocks_of_tokens_reach_a_lower_loss_than_all_at_once():
    """Four blocks, the last of them short: as many epochs make four times the steps."""
    counts, told = counts_of(450, density=0.5), []
    glove_vectors(counts, np.random.default_rng(0), dim=8, epochs=20, progress=lambda epoch, loss: told.append(loss))
    whole = torch_vectors(counts, np.random.default_rng(0), 8, 20)[1]
    assert told[-1] < 0.9 * whole[-1] < 0.2 * whole[0]


def test_the_same_generator_gives_the_same_bytes():
    counts = counts_of(300)
    made = [glove_vectors(counts, np.random.default_rng(seed), dim=5, epochs=2).tobytes() for seed in (1, 1, 2)]
    assert made[0] == made[1] != made[2]


@pytest.mark.parametrize("size", [0, 3])
def test_no_pairs_at_all(size):
    assert glove_vectors(csr_array((size, size)), np.random.default_rng(0), dim=4).tolist() == [[0.0] * 4] * size
