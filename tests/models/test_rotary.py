"""Rotary positions against `transformers`, and the property that makes them positions."""

import numpy as np
import pytest

from wechsel_jax.models.rotary import Rope, read_rope, rotate

LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
CASES = [
    {"rope_theta": 10_000.0},
    {"rope_theta": 500_000.0, "original_max_position_embeddings": 8192, **LLAMA3},
    {"rope_theta": 10_000.0, "original_max_position_embeddings": 64, **LLAMA3, "factor": 32.0},
    {"rope_theta": 1e6, "rope_type": "linear", "factor": 4.0},
]


@pytest.mark.parametrize("stated", CASES)
@pytest.mark.parametrize("head_size", [6, 64, 256])
def test_frequencies_are_those_of_transformers(stated, head_size):
    """Most are the same bits: at position 8,000 one bit of a frequency would turn a pair by 5e-4."""
    modeling = pytest.importorskip("transformers.models.llama.modeling_llama")
    config = modeling.LlamaConfig(head_dim=head_size, rope_parameters={"rope_type": "default", **stated})
    expected = modeling.LlamaRotaryEmbedding(config).inv_freq.numpy()
    ours = read_rope(stated, 1.0, 99).inverse_frequencies(head_size)
    np.testing.assert_allclose(ours, expected, rtol=3e-7)
    assert np.mean(ours == expected) > 0.8


def test_older_names_and_defaults():
    assert read_rope({"type": "linear", "factor": 3}, 7.0, 99) == Rope(7.0, "linear", 3.0)
    assert read_rope({}, 7.0, 99) == Rope(7.0)
    assert read_rope(LLAMA3, 7.0, 99).original_length == 99


def test_scores_depend_on_the_distance_only():
    rng = np.random.default_rng(0)
    query, key = rng.normal(size=(2, 1, 1, 1, 8)).astype(np.float32)
    cos, sin = Rope(100.0).cos_sin(8, np.arange(30))
    rows = [np.asarray(rotate(np.repeat(x, 30, axis=1), cos, sin))[0, :, 0] for x in (query, key)]
    scores = rows[0] @ rows[1].T
    for distance in range(10):
        assert np.ptp(np.diagonal(scores, -distance)) < 1e-5
    assert np.ptp(scores[:, 0]) > 0.1
    np.testing.assert_allclose(np.linalg.norm(rows[0], axis=1), np.linalg.norm(query), rtol=1e-5)
