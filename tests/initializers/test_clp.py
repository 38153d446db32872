"""CLP-Transfer against PyPI langsfer and against its formula."""

import dataclasses
import re
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from wechsel_jax.errors import UserError
from wechsel_jax.initializers import Side, TransferPlan
from wechsel_jax.initializers.clp import clp, clp_nearest
from wechsel_jax.inspection.origins import origin
from wechsel_jax.tokens import Vocabulary
from wechsel_jax.tokens.overlap import Overlap, find_overlap

SOURCES, TARGETS, SHARED, HELPER, HIDDEN = 150, 220, 90, 24, 16
# langsfer demands numpy below 2 and transformers below 5, so no extra can install it; these are its rows. To make them again:
# pip install --no-deps langsfer==0.1.0 more-itertools && python -m tests.initializers.test_clp
LANGSFER = Path(__file__).with_name("clp_langsfer.npy")


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


def langsfer_rows(tokenizer: type) -> np.ndarray:
    """What PyPI langsfer 0.1.0 makes of the problem, float64 (TARGETS, HIDDEN)."""
    from langsfer.high_level import clp_transfer

    source, target, _, matrix = make_problem(common=0.3)
    rows = dict(zip(target.vocabulary.strings, target.embeddings.astype(np.float64), strict=True))
    helper = SimpleNamespace(embeddings_matrix=target.embeddings, get_vector_for_token=rows.__getitem__)
    tokenizers = []
    for side in (source, target):
        made = tokenizer(side.vocabulary)
        made.convert_tokens_to_ids = lambda tokens, ids=made.vocab: [ids[token] for token in tokens]
        tokenizers.append(made)
    return clp_transfer(tokenizers[0], matrix.astype(np.float64), tokenizers[1], helper).initialize(seed=0)


def test_equals_langsfer():
    source, target, overlap, matrix = make_problem(common=0.3)
    assert overlap.shared.sum() == SHARED
    plan = clp(source, target, overlap=overlap)
    result = plan.apply(matrix)
    np.testing.assert_array_equal(result[overlap.shared], matrix[overlap.source[overlap.shared]])
    assert plan.counts() == {"copied": SHARED, "mixed": TARGETS - SHARED, "random": 0}
    assert (plan.coordinates @ plan.basis < 0).any()
    np.testing.assert_allclose(result, np.load(LANGSFER), atol=2e-5, rtol=2e-5)


def test_the_kept_rows_are_langsfers(fakes):
    pytest.importorskip("langsfer")
    np.testing.assert_allclose(np.load(LANGSFER), langsfer_rows(fakes.Tokenizer), rtol=1e-12)


def cosines(target, overlap):
    unit = target.embeddings / np.linalg.norm(target.embeddings.astype(np.float64), axis=1, keepdims=True)
    return unit[~overlap.shared] @ unit[overlap.shared].T


@pytest.mark.parametrize("common", [0.0, 0.3])
def test_is_the_formula(common):
    """Also with similarities around zero, whose sums are small against them."""
    source, target, overlap, matrix = make_problem(common=common)
    plan = clp(source, target, overlap=overlap)
    similarity = cosines(target, overlap)
    total = similarity.sum(axis=1, keepdims=True)
    expected = similarity @ matrix[overlap.source[overlap.shared]] / total
    assert (similarity < 0).any() and (common or np.abs(similarity / total).max() > 3)
    np.testing.assert_allclose(plan.apply(matrix)[~overlap.shared], expected, rtol=1e-5, atol=1e-5)
    bias = matrix[:, 0]
    np.testing.assert_allclose(plan.apply(bias)[~overlap.shared], expected[:, 0], rtol=1e-5, atol=1e-5)
    weights = plan.coordinates.astype(np.float64) @ plan.basis
    np.testing.assert_allclose(weights[~overlap.shared].sum(axis=1), 1, atol=1e-5)
    plan.validate(SOURCES)


def test_a_source_token_of_several_anchors_has_their_weights_together():
    source, target, overlap, matrix = make_problem(common=0.3)
    loose = Overlap(np.where(overlap.shared, overlap.source % 60, -1).astype(np.int32), overlap.rule)
    similarity = cosines(target, overlap)
    expected = similarity @ matrix[loose.source[loose.shared]] / similarity.sum(axis=1, keepdims=True)
    result = clp(source, target, overlap=loose).apply(matrix)
    np.testing.assert_allclose(result[~loose.shared], expected, rtol=1e-5, atol=1e-5)


def test_special_tokens_that_are_shared_take_part():
    source, target, overlap, _ = make_problem()
    roles = tuple(frozenset({"unk"}) if i == 0 else frozenset() for i in range(TARGETS))
    special = dataclasses.replace(target.vocabulary, roles=roles)
    assert special.special[0] and overlap.shared[0]
    plan = clp(source, Side(special, None, target.embeddings), overlap=overlap)
    assert plan.basis[:, overlap.source[0]].any()
    nearest = clp_nearest(source, Side(special, None, target.embeddings), overlap=overlap, neighbors=SHARED)
    assert overlap.source[0] not in nearest.neighbors[nearest.weights > 0]


def test_similarities_whose_sum_is_zero_make_noise():
    source, target, overlap, _ = make_problem()
    helper = target.embeddings.copy()
    shared = np.flatnonzero(overlap.shared)
    helper[shared[1::2]] = -helper[shared[::2]]
    plan = clp(source, Side(target.vocabulary, None, helper), overlap=overlap)
    assert plan.counts() == {"copied": SHARED, "mixed": 0, "random": TARGETS - SHARED}
    plan.validate(SOURCES)


def test_similarities_that_nearly_cancel_are_said():
    source, target, overlap, _ = make_problem()
    helper, said = target.embeddings.copy(), []
    shared = np.flatnonzero(overlap.shared)
    helper[shared[1::2]] = -helper[shared[::2]] * 1.0001 + 1e-4
    clp(source, Side(target.vocabulary, None, helper), overlap=overlap, notes=said.append)
    assert len(said) == 1 and re.match(r"The similarities of \d+ tokens .* cancel", said[0])
    said.clear()
    clp(source, Side(target.vocabulary, None, np.abs(target.embeddings)), overlap=overlap, notes=said.append)
    assert said == []


def test_the_largest_weights_are_named(tmp_path):
    source, target, overlap, _ = make_problem(common=0.3)
    plan = clp(source, target, overlap=overlap)
    similarity = cosines(target, overlap)
    for t, row in list(zip(np.flatnonzero(~overlap.shared), similarity / similarity.sum(axis=1, keepdims=True), strict=True))[
        :9
    ]:
        order = np.argsort(-np.abs(row))[:10]
        ids, weights = plan.sources(t)
        np.testing.assert_array_equal(ids, overlap.source[overlap.shared][order])
        np.testing.assert_allclose(weights, row[order], rtol=1e-4)
        found = origin(plan, source.vocabulary, target.vocabulary, t)
        assert found["how"] == "mixed" and [name for name, _ in found["sources"]] == [source.vocabulary.strings[i] for i in ids]
    assert not len(plan.sources(int(np.flatnonzero(overlap.shared)[0]))[0])
    plan.save(tmp_path / "plan.npz")
    loaded = TransferPlan.load(tmp_path / "plan.npz")
    assert loaded.counts() == plan.counts() and loaded.basis.tobytes() == plan.basis.tobytes()


def test_nearest_is_the_mean_of_the_most_similar():
    source, target, overlap, matrix = make_problem()
    result = clp_nearest(source, target, overlap=overlap, neighbors=7).apply(matrix)
    anchors = overlap.source[overlap.shared]
    for t, similarity in zip(np.flatnonzero(~overlap.shared), cosines(target, overlap), strict=True):
        best = np.argsort(-similarity)[:7]
        weights = np.maximum(similarity[best], 0)
        np.testing.assert_allclose(result[t], weights / weights.sum() @ matrix[anchors[best]], atol=1e-5)


def test_dissimilar_tokens_have_no_say():
    source, target, overlap, _ = make_problem(common=0.0)
    plan = clp_nearest(source, target, overlap=overlap, neighbors=SHARED)
    similarity = cosines(target, overlap)
    np.testing.assert_array_equal((plan.weights[~overlap.shared] > 0).sum(axis=1), (similarity > 0).sum(axis=1))
    np.testing.assert_allclose(plan.weights[~overlap.shared].sum(axis=1), 1, rtol=1e-6)
    assert (plan.weights >= 0).all() and (similarity < 0).any()


@pytest.mark.parametrize("method", [clp, clp_nearest])
def test_a_token_that_the_helper_lacks_is_noise_and_no_anchor(method):
    source, target, overlap, _ = make_problem()
    helper = target.embeddings.copy()
    helper[[2, 200]] = 0
    plan = method(source, Side(target.vocabulary, None, helper), overlap=overlap)
    np.testing.assert_array_equal(np.flatnonzero(plan.random), [200])
    used = plan.neighbors[plan.weights != 0] if plan.basis is None else np.flatnonzero(plan.basis.any(axis=0))
    assert overlap.source[2] not in used and len(used) and plan.copy[2] == overlap.source[2]


@pytest.mark.parametrize("method", [clp, clp_nearest])
def test_mistakes_are_named(method):
    source, target, overlap, _ = make_problem()
    nothing = Overlap(np.full(TARGETS, -1, np.int32), np.zeros(TARGETS, np.int8))
    with pytest.raises(UserError, match="shared token"):
        method(source, target, overlap=nothing)
    with pytest.raises(UserError, match="no helper model"):
        method(source, Side(target.vocabulary), overlap=overlap)
    every = Overlap(np.arange(TARGETS, dtype=np.int32) % SOURCES, np.full(TARGETS, 3, np.int8))
    assert method(source, target, overlap=every).counts()["copied"] == TARGETS


def test_progress_and_the_number_of_neighbors():
    source, target, overlap, _ = make_problem()
    seen = []
    clp_nearest(source, target, overlap=overlap, progress=lambda *done: seen.append(done))
    assert seen[-1] == (TARGETS - SHARED,) * 2
    with pytest.raises(UserError, match="neighbors 0"):
        clp_nearest(source, target, overlap=overlap, neighbors=0)


if __name__ == "__main__":
    from tests.initializers.conftest import FakeTokenizer

    np.save(LANGSFER, langsfer_rows(FakeTokenizer))
