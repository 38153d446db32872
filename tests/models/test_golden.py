"""Logits of tiny models against stored answers of `transformers` (torch), so that parity is watched without torch too."""

import numpy as np
import pytest

from tests.models.helpers import logits, small_model
from tests.models.make_golden import CONFIGS, GOLDEN, fill, inputs


@pytest.mark.slow
@pytest.mark.parametrize("name", CONFIGS)
def test_logits_equal_the_stored_ones(name):
    record, config, params = small_model(name)
    shapes = {key: value.shape for key, value in record.to_hugging_face(params, config).items()}
    params = record.from_hugging_face({key: fill(key, shape) for key, shape in shapes.items()}, config)
    tokens, mask = inputs(CONFIGS[name].get("pad_token_id", 0))
    scores = np.asarray(logits(record, config, params, tokens, mask))
    with np.load(GOLDEN) as golden:
        expected = golden[name]
    assert np.abs(expected).max() > 1.0
    np.testing.assert_allclose(scores[mask], expected, rtol=0, atol=2e-5)
