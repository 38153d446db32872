"""The baselines without word vectors: shared tokens copied, the others drawn or the mean, also against transformers."""

import numpy as np
import pytest

from wechsel_jax.initializers import Side, draw_noise
from wechsel_jax.initializers.multivariate import mean, multivariate
from wechsel_jax.tokens.overlap import find_overlap


@pytest.fixture(scope="module")
def sides(fakes):
    source, target = fakes.vocabulary("t", 40, fakes.roberta_roles), fakes.vocabulary("t", 70, fakes.gpt2_roles)
    return Side(source), Side(target), find_overlap(source, target)


@pytest.mark.parametrize("method", [multivariate, mean])
def test_shared_tokens_are_copied_and_the_rest_is_random(sides, method):
    source, target, overlap = sides
    plan = method(source, target, overlap=overlap)
    plan.validate(40)
    np.testing.assert_array_equal(plan.copy, overlap.source)
    assert plan.copy[0] >= 0 and plan.counts() == {"copied": 36, "mixed": 0, "random": 34}


def test_mean_is_hugging_faces_mean_resizing_without_its_noise(sides):
    torch = pytest.importorskip("torch")
    import transformers

    source, target, overlap = sides
    torch.manual_seed(0)
    config = transformers.GPT2Config(n_layer=1, n_embd=8, n_head=2, n_positions=4, vocab_size=40, initializer_range=1.0)
    model = transformers.GPT2LMHeadModel(config)
    matrix = model.get_input_embeddings().weight.detach().numpy().copy()
    model.resize_token_embeddings(70, mean_resizing=True)
    theirs = model.get_input_embeddings().weight.detach().numpy()[40:]
    plan = mean(source, target, overlap=overlap)
    mine = plan.apply(matrix, draw_noise(matrix, 70, kind="mean", seed=0, name="input", where=plan.random))
    new = np.flatnonzero(plan.random)
    assert (mine[new] == mine[new[0]]).all()
    np.testing.assert_allclose(theirs, np.tile(mine[new[0]], (30, 1)), atol=3e-4)  # 1e-9 C: a deviation of 3e-5
    drawn = draw_noise(matrix, 70, kind="multivariate", seed=0, name="input")
    assert np.abs(drawn[40:] - mine[new[0]]).max() > 1
