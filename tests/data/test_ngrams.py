"""The n-gram model against nltk's Kneser-Ney, and what batches get from it."""

import numpy as np
import pytest
from nltk.lm import Vocabulary
from nltk.lm.models import InterpolatedLanguageModel
from nltk.lm.smoothing import KneserNey
from nltk.util import everygrams

from wechsel_jax.data import ngrams
from wechsel_jax.data.ngrams import NgramModel, SoftTargets

V = 12


def text(size, seed):
    """Tokens of which each depends on the two before it, some far more frequent than others."""
    generator = np.random.default_rng(seed)
    follows = np.random.default_rng(0).dirichlet(np.full(V, 0.2), (V, V))
    tokens = [0, 1]
    for _ in range(size):
        tokens.append(int(generator.choice(V, p=follows[tokens[-2], tokens[-1]])))
    return np.array(tokens, np.uint16)


TEXT, HELD_OUT = text(1500, 1), text(200, 2)


class PerOrder(KneserNey):
    """nltk takes one discount; here each order has its own (Ney et al., 1994)."""

    def __init__(self, vocabulary, counter, order, **kwargs):
        super().__init__(vocabulary, counter, order, **kwargs)
        self.of_length = {}

    def alpha_gamma(self, word, context):
        if len(context) not in self.of_length:
            grams = [(*before, after) for before, found in self.counts[len(context) + 1].items() for after in found]
            if len(context) + 1 == self._order:
                counts = [self.counts[gram[:-1]][gram[-1]] for gram in grams]
            else:
                counts = [self._continuation_counts(gram[-1], gram[:-1])[0] for gram in grams]
            once, twice = counts.count(1), counts.count(2)
            self.of_length[len(context)] = once / (once + 2 * twice)
        self.discount = self.of_length[len(context)]
        return super().alpha_gamma(word, context)


def words(tokens):
    """nltk has words where we have numbers."""
    return tuple(chr(ord("a") + int(token)) for token in tokens)


@pytest.fixture(scope="module")
def reference():
    def model(order):
        found = InterpolatedLanguageModel(
            PerOrder, order, params={"order": order}, vocabulary=Vocabulary(words(range(V)), unk_cutoff=1)
        )
        found.fit([list(everygrams(words(TEXT), max_len=order))])
        return found

    return {order: model(order) for order in (2, 3, 4)}


@pytest.mark.parametrize("order", [2, 3, 4])
def test_perplexity_is_nltks(reference, order):
    tokens = words(HELD_OUT)
    scores = [reference[order].unmasked_score(tokens[i], tokens[max(0, i - order + 1) : i]) for i in range(1, len(tokens))]
    found = NgramModel.of(TEXT, V, order).perplexity(HELD_OUT)
    assert found == pytest.approx(np.exp(-np.log(scores).mean()), rel=1e-5)
    assert found < 0.8 * NgramModel.of(TEXT, V, 2).perplexity(HELD_OUT) or order == 2


@pytest.mark.parametrize("order", [2, 3])
def test_what_is_expected_is_nltks_distribution(reference, order):
    """All continuations, and what they leave to tokens in general, are the whole distribution after each token of a row."""
    model, rows = NgramModel.of(TEXT, V, order), HELD_OUT[:40].reshape(4, 10)
    tokens, shares = model.expected(rows, V)
    assert tokens.shape == shares.shape == (4, 10, V * (order - 1)) and tokens.dtype == np.int32
    for row, place in np.ndindex(rows.shape):
        found = np.bincount(tokens[row, place], shares[row, place].astype(np.float64), V)
        assert 0 < found.sum() < 1
        found += (1 - found.sum()) * model.unigrams
        context = words(rows[row, max(0, place - order + 2) : place + 1])
        assert found == pytest.approx([reference[order].unmasked_score(word, context) for word in words(range(V))], abs=1e-6)


def test_the_most_frequent_continuations_come_first():
    model = NgramModel.of(TEXT, V, 3)
    all_tokens, all_shares = model.expected(HELD_OUT[None, :60], V)
    tokens, shares = model.expected(HELD_OUT[None, :60], 2)
    for level in (0, 1):
        few, every = slice(2 * level, 2 * level + 2), slice(V * level, V * level + V)
        assert np.array_equal(shares[..., few], -np.sort(-all_shares[..., every])[..., :2])
        assert np.array_equal(tokens[..., few], all_tokens[..., every][..., :2])


def test_contexts_that_did_not_occur_leave_all_to_shorter_ones():
    model = NgramModel.of(np.array([0, 1, 2, 0, 1, 3, 0, 1, 2, 0, 2], np.uint16), 5, 3)
    tokens, shares = model.expected(np.array([[2, 1, 4]]), 3)
    # "2 1" never occurs, so what follows is what follows "1"; 4 never occurs at all.
    tokens_of_one, shares_of_one = model.expected(np.array([[1]]), 3)
    assert np.array_equal(shares[0, 1], shares_of_one[0, 0]) and np.array_equal(tokens[0, 1], tokens_of_one[0, 0])
    assert not shares[0, 2].any()
    assert np.isfinite(model.perplexity(np.array([2, 1, 4, 4, 0])))


def test_of_a_long_text_stretches_are_counted(monkeypatch):
    monkeypatch.setattr(ngrams, "_MOST_TOKENS", 600)
    monkeypatch.setattr(ngrams, "_STRETCH", 100)
    model = NgramModel.of(TEXT, V, 3)
    monkeypatch.setattr(ngrams, "_MOST_TOKENS", 1 << 24)
    whole = NgramModel.of(TEXT, V, 3)
    assert model.levels[1].starts[-1] < whole.levels[1].starts[-1]
    assert whole.perplexity(HELD_OUT) < model.perplexity(HELD_OUT) < 1.5 * whole.perplexity(HELD_OUT)


@pytest.mark.parametrize("tokens", [[3, 3], [3, 3, 3, 3]])
def test_tiny_texts(tokens):
    model = NgramModel.of(np.array(tokens, np.uint16), 5, 4)
    ids, shares = model.expected(np.array([[3, 3]]), 2)
    assert ids.shape == shares.shape and np.isfinite(shares).all() and shares.sum(-1).max(initial=0) <= 1


def test_batches_have_the_share_of_their_step():
    class Data:
        def batch(self, step, batch_size, seed, rows):
            return {"tokens": HELD_OUT[step : step + 20].reshape(2, 10).astype(np.int32)[rows]}

    model = NgramModel.of(TEXT, V, 3)
    soft = SoftTargets(Data(), model, 4, lambda step: 0.5 if step == 3 else 0.0)
    batch, rows = soft.batch(3, 2, 0), soft.batch(3, 2, 0, np.array([1]))
    tokens, shares = model.expected(batch["tokens"], 4)
    assert np.array_equal(batch["soft_tokens"], tokens) and np.allclose(batch["soft_weights"], shares / 2)
    assert np.array_equal(rows["soft_weights"], batch["soft_weights"][1:])
    # Without a share of its step nothing is looked up.
    assert {*soft.batch(4, 2, 0)} == {"tokens"}
