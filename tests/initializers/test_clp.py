"""CLP-Transfer against PyPI langsfer and against its formula."""

from types import SimpleNamespace

import numpy as np
import pytest

from wechsel_jax.errors import UserError
from wechsel_jax.initializers import Side
from wechsel_jax.initializers import clp as clp_module
from wechsel_jax.initializers.clp import clp
from wechsel_jax.tokens import Vocabulary
from wechsel_jax.tokens.overlap import Overlap, find_overlap

SOURCES, TARGETS, SHARED, HELPER, HIDDEN = 150, 220, 90, 24, 16


def make_problem(seed=0, common=1.0):
    """Tokens t0 ... t89 in both vocabularies; helper rows around a common direction, as BERT's are."""
    generator = np.random.default_rng(seed)
    sides = []
    for prefix, size in (("s", SOURCES), ("n", TARGETS)):
        shared = [f"t{i}" for i in generator.permutation(SHARED)]
        strings = (*shared, *(f"{prefix}{i}" for i in range(size - SHARED)))
        sides.append(
            Vocabulary(strings, tuple(s.encode() for s in strings), np.zeros(size, bool), (frozenset(),) * size, "byte_bpe")
        )
    helper = generator.standard_normal((TARGETS, HELPER)) + common * generator.standard_normal(HELPER)
    source, target = Side(sides[0]), Side(sides[1], None, helper.astype(np.float32))
    matrix = generator.standard_normal((SOURCES, HIDDEN)).astype(np.float32)
    return source, target, find_overlap(source.vocabulary, target.vocabulary), matrix


def test_parity_equals_langsfer(fakes):
    high_level = pytest.importorskip("langsfer.high_level")
    source, target, overlap, matrix = make_problem(common=0.3)
    assert overlap.shared.sum() == SHARED
    rows = dict(zip(target.vocabulary.strings, target.embeddings.astype(np.float64), strict=True))
    helper = SimpleNamespace(embeddings_matrix=target.embeddings, get_vector_for_token=rows.__getitem__)
    tokenizers = []
    for side in (source, target):
        tokenizer = fakes.Tokenizer(side.vocabulary)
        tokenizer.convert_tokens_to_ids = lambda tokens, ids=tokenizer.vocab: [ids[token] for token in tokens]
        tokenizers.append(tokenizer)
    expected = high_level.clp_transfer(tokenizers[0], matrix.astype(np.float64), tokenizers[1], helper).initialize(seed=0)
    plan = clp(source, target, overlap=overlap, parity=True)
    result = plan.apply(matrix)
    np.testing.assert_array_equal(result[overlap.shared], matrix[overlap.source[overlap.shared]])
    assert plan.counts() == {"copied": SHARED, "mixed": TARGETS - SHARED, "random": 0} and (plan.weights < 0).any()
    np.testing.assert_allclose(result, expected, atol=2e-5, rtol=2e-5)


def cosines(target, overlap):
    unit = target.embeddings / np.linalg.norm(target.embeddings.astype(np.float64), axis=1, keepdims=True)
    return unit[~overlap.shared] @ unit[overlap.shared].T


def test_parity_is_the_formula():
    source, target, overlap, matrix = make_problem(common=0.3)
    result = clp(source, target, overlap=overlap, parity=True).apply(matrix)
    similarity = cosines(target, overlap)
    expected = similarity @ matrix[overlap.source[overlap.shared]] / similarity.sum(axis=1, keepdims=True)
    assert (similarity < 0).any()
    np.testing.assert_allclose(result[~overlap.shared], expected, atol=1e-5)


def test_default_is_the_mean_of_the_most_similar():
    source, target, overlap, matrix = make_problem()
    result = clp(source, target, overlap=overlap, neighbors=7).apply(matrix)
    anchors = overlap.source[overlap.shared]
    for t, similarity in zip(np.flatnonzero(~overlap.shared), cosines(target, overlap), strict=True):
        best = np.argsort(-similarity)[:7]
        weights = np.maximum(similarity[best], 0)
        np.testing.assert_allclose(result[t], weights / weights.sum() @ matrix[anchors[best]], atol=1e-5)


def test_dissimilar_tokens_have_no_say():
    source, target, overlap, _ = make_problem(common=0.0)
    plan = clp(source, target, overlap=overlap, neighbors=SHARED)
    similarity = cosines(target, overlap)
    np.testing.assert_array_equal((plan.weights[~overlap.shared] > 0).sum(axis=1), (similarity > 0).sum(axis=1))
    np.testing.assert_allclose(plan.weights[~overlap.shared].sum(axis=1), 1, rtol=1e-6)
    assert (plan.weights >= 0).all() and (similarity < 0).any()


@pytest.mark.parametrize("parity", [False, True])
def test_a_token_that_the_helper_lacks_is_noise_and_no_anchor(parity):
    source, target, overlap, _ = make_problem()
    helper = target.embeddings.copy()
    helper[[2, 200]] = 0
    plan = clp(source, Side(target.vocabulary, None, helper), overlap=overlap, parity=parity)
    np.testing.assert_array_equal(np.flatnonzero(plan.random), [200])
    assert overlap.source[2] not in plan.neighbors[plan.weights != 0] and plan.copy[2] == overlap.source[2]


def test_dense_plans_have_a_limit(monkeypatch):
    source, target, overlap, _ = make_problem()
    monkeypatch.setattr(clp_module, "_DENSE", TARGETS * SHARED)
    clp(source, target, overlap=overlap, parity=True)
    monkeypatch.setattr(clp_module, "_DENSE", TARGETS * SHARED - 1)
    with pytest.raises(UserError, match="220 tokens x 90 shared tokens are 19,800 weights"):
        clp(source, target, overlap=overlap, parity=True)
    clp(source, target, overlap=overlap)


@pytest.mark.parametrize("parity", [False, True])
def test_progress_and_mistakes(parity):
    source, target, overlap, _ = make_problem()
    seen = []
    clp(source, target, overlap=overlap, parity=parity, progress=lambda *done: seen.append(done))
    assert seen[-1] == (TARGETS - SHARED,) * 2
    nothing = Overlap(np.full(TARGETS, -1, np.int32), np.zeros(TARGETS, np.int8))
    with pytest.raises(UserError, match="shared token"):
        clp(source, target, overlap=nothing, parity=parity)
    with pytest.raises(UserError, match="no helper model"):
        clp(source, Side(target.vocabulary), overlap=overlap, parity=parity)
    with pytest.raises(UserError, match="neighbors 0"):
        clp(source, target, overlap=overlap, parity=parity, neighbors=0)
    every = Overlap(np.arange(TARGETS, dtype=np.int32) % SOURCES, np.full(TARGETS, 3, np.int8))
    assert clp(source, target, overlap=every, parity=parity).counts()["copied"] == TARGETS
