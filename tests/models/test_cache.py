"""Keys and values that are kept, against those that `generate` of `transformers` (torch) keeps, and against keeping none."""

from functools import partial

import jax
import numpy as np
import pytest

from tests.models.helpers import logits, small_model
from wechsel_jax.models.cache import Cache

LENGTHS, NEW = (14, 3, 9), 12


@partial(jax.jit, static_argnums=(0, 1))
def extend(record, config, params, tokens, mask, cache):
    hidden, cache = record.extend(params, config, tokens, mask, cache)
    return record.logits(params, config, hidden), cache


def pad(rows, left):
    """Token ids (B, the longest) and their mask."""
    tokens, mask = np.zeros((len(rows), max(map(len, rows))), np.int32), np.zeros((len(rows), max(map(len, rows))), bool)
    for row, ids in enumerate(rows):
        place = slice(tokens.shape[1] - len(ids), None) if left else slice(len(ids))
        tokens[row, place], mask[row, place] = ids, True
    return tokens, mask


def greedy(record, config, params, tokens, mask, slots):
    """The logits of NEW greedy tokens, (B, NEW, V)."""
    scores, cache = extend(record, config, params, tokens, mask, Cache.empty(config, len(tokens), slots))
    last = mask.shape[1] - 1 - mask[:, ::-1].argmax(axis=1)
    found = [np.asarray(scores)[np.arange(len(tokens)), last]]
    for _ in range(NEW - 1):
        new = found[-1].argmax(axis=-1).astype(np.int32)[:, None]
        scores, cache = extend(record, config, params, new, np.ones_like(new, bool), cache)
        found.append(np.asarray(scores)[:, 0])
    return np.stack(found, axis=1)


# One for each thing that a position or a key depends on; what the others add happens within a position.
NAMES = [
    "gpt2",
    "llama 3, one key head, tied, biases",
    "gemma3 seven layers",
    "xglm odd size, padding among positions, untied",
    *(
        pytest.param(name, marks=pytest.mark.slow)
        for name in ("mistral window", "qwen2 late window, tied", "gemma, one key head", "gemma2 small caps")
    ),
]


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_greedy_continuations_are_those_of_transformers(name):
    """Prompts of differing length, padded on either side; windows are shorter than the prompts, and slots more than needed."""
    torch = pytest.importorskip("torch")
    from tests.models.test_torch_parity import CASES, TOLERANCE, state, torch_model
    from wechsel_jax.models import family

    reference = torch_model(*CASES[name])
    record = family(CASES[name][0])
    config = record.config(reference.config.to_dict())
    params = record.from_hugging_face(state(reference), config)
    rng = np.random.default_rng(2)
    rows = [rng.integers(7, config.vocabulary_size, length) for length in LENGTHS]
    tokens, mask = pad(rows, left=True)
    # Without an end of text, which some of these configurations have of themselves.
    reference.config.eos_token_id = reference.generation_config.eos_token_id = None
    answer = reference.generate(
        torch.tensor(tokens).long(),
        attention_mask=torch.tensor(mask).long(),
        **{"do_sample": False, "use_cache": True, "max_new_tokens": NEW, "pad_token_id": 0},
        **{"output_logits": True, "return_dict_in_generate": True},
    )
    expected = torch.stack(answer.logits, dim=1).numpy()
    assert expected.shape == (len(rows), NEW, config.vocabulary_size) and np.abs(expected).max() > 1.0
    for left in (True, False):
        scores = greedy(record, config, params, *pad(rows, left), slots=tokens.shape[1] + NEW + 3)
        np.testing.assert_allclose(scores, expected, rtol=0, atol=TOLERANCE)
        np.testing.assert_array_equal(scores.argmax(axis=-1), answer.sequences[:, tokens.shape[1] :].numpy())


@pytest.mark.slow
@pytest.mark.parametrize("name", ["gpt2", "gemma3", "xglm"])
def test_texts_in_pieces_with_gaps_are_whole_texts(name):
    """Three pieces with padding between them, one row without a token in the first: as each text alone, without a cache."""
    record, config, params = small_model(name)
    rng = np.random.default_rng(3)
    mask = np.array([[[1, 1, 0, 0], [1, 1, 1, 0], [0, 0, 1, 1]], [[0, 0, 0, 0], [0, 1, 1, 1], [1, 1, 1, 1]]], bool)
    tokens = rng.integers(4, 31, mask.shape).astype(np.int32)
    cache = Cache.empty(config, 2, 12)
    found = []
    for i in range(3):
        scores, cache = extend(record, config, params, tokens[:, i], mask[:, i], cache)
        found.append(np.asarray(scores))
    found = np.stack(found, axis=1)
    assert np.isfinite(found).all()
    for row in range(2):
        text = tokens[row][mask[row]]
        whole = logits(record, config, params, text[None], np.ones((1, len(text)), bool))
        np.testing.assert_allclose(found[row][mask[row]], np.asarray(whole)[0], rtol=0, atol=2e-5)
