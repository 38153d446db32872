"""FOCUS against PyPI deepfocus 1.0.1 on real tokenizers, and against numpy in float64."""

import entmax
import numpy as np
import pytest
import torch
from deepfocus import focus as reference
from hypothesis import given, settings
from hypothesis import strategies as st

from wechsel_jax.errors import UserError
from wechsel_jax.initializers import METHODS, draw_noise
from wechsel_jax.initializers.focus import focus
from wechsel_jax.initializers.plan import Side, TransferPlan
from wechsel_jax.tokens import Vocabulary, load_tokenizer
from wechsel_jax.tokens.overlap import RULES, Overlap, find_overlap

WIDTH = 24


@pytest.fixture(scope="module", params=["sw/bpe-50k", "de/xlmr-unigram-50k"])
def real(request, data_directory):
    """(source tokenizer, target tokenizer, {target token: vector} of as many tokens as deepfocus can do in seconds)."""
    source = load_tokenizer(data_directory / "tokenizers" / "roberta")
    target = load_tokenizer(data_directory / "tokenizers" / request.param)
    generator = np.random.default_rng(3)
    strings = [target.convert_ids_to_tokens(i) for i in range(len(target))]
    chosen = {*generator.permutation(len(strings))[:800].tolist(), *target.all_special_ids[:3]}
    vectors = {strings[i]: generator.standard_normal(20).astype(np.float32) for i in sorted(chosen)}
    return source, target, vectors


def run_reference(monkeypatch, source, target, vectors, matrix):
    """(target embeddings (V_t, d), {target id: source id of the first match}) as deepfocus makes them of these vectors."""
    matched = {}
    find = reference.get_overlapping_tokens

    def remember(**options):
        overlap, new = find(**options)
        matched.update({token.target.id: token.source[0].id for token in overlap.values()})
        return overlap, new

    monkeypatch.setattr(reference, "get_overlapping_tokens", remember)
    monkeypatch.setattr(reference, "load_target_token_embedding", lambda **_: vectors)
    table = torch.from_numpy(matrix)
    out = reference.FOCUS(target, source, table, target_training_data_path="given", verbosity="silent")
    return out.numpy(), matched


@pytest.mark.slow
def test_equals_deepfocus(monkeypatch, real):
    source, target, vectors = real
    sides = [Side(Vocabulary.from_tokenizer(tokenizer)) for tokenizer in (source, target)]
    size = len(sides[1].vocabulary)
    matrix = np.random.default_rng(0).standard_normal((len(sides[0].vocabulary), WIDTH)).astype(np.float32)
    expected, matched = run_reference(monkeypatch, source, target, vectors, matrix)
    known = np.zeros((size, 20), np.float32)
    for i, string in enumerate(sides[1].vocabulary.strings):
        known[i] = vectors.get(string, 0)
    theirs = np.full(size, -1, np.int32)
    theirs[list(matched)] = list(matched.values())
    overlap = find_overlap(sides[0].vocabulary, sides[1].vocabulary, parity="deepfocus")
    np.testing.assert_array_equal(overlap.source, theirs)
    plan = focus(sides[0], Side(sides[1].vocabulary, known), overlap=overlap, parity=True)
    assert plan.random.sum() > 1000 and plan.is_mixed.sum() > 300
    np.testing.assert_array_equal(plan.random, (theirs < 0) & ~known.any(axis=1))
    made = plan.apply(matrix, np.zeros_like(expected))
    np.testing.assert_array_equal(made[theirs >= 0], expected[theirs >= 0])
    np.testing.assert_allclose(made[plan.is_mixed], expected[plan.is_mixed], atol=1e-5, rtol=0)

    options = {"parity": True, "parity_seed": METHODS["focus"].reference_seed, "where": plan.random}
    noise = draw_noise(matrix, size, kind=METHODS["focus"].noise, seed=0, name="input", **options)
    np.testing.assert_allclose(noise[plan.random], expected[plan.random], atol=1e-5, rtol=0)

    # The same tokens are shared by our rule, but for what deepfocus compares after decoding has lost something.
    ours = find_overlap(sides[0].vocabulary, sides[1].vocabulary)
    lossy = np.array(["\ufffd" in target.decode(i) or not target.decode(i).strip() for i in range(size)])
    np.testing.assert_array_equal(ours.source[~lossy], theirs[~lossy])
    assert 0 < (ours.source != theirs).sum() < 200


def toy(seed=0, sources=60, targets=90, shared=40, dimension=5):
    generator = np.random.default_rng(seed)
    roles = (frozenset({"eos"}), *[frozenset()] * (max(sources, targets) - 1))

    def vocabulary(prefix, size):
        strings = tuple(f"{prefix}{i}" for i in range(size))
        return Vocabulary(strings, tuple(s.encode() for s in strings), np.zeros(size, bool), roles[:size], "byte_bpe")

    found = np.full(targets, -1, np.int32)
    found[:shared] = generator.permutation(sources - 1)[:shared] + 1
    found[0] = 0
    vectors = generator.standard_normal((targets, dimension)).astype(np.float32)
    vectors[5::7] = 0
    rule = np.where(found >= 0, RULES.index("exact"), 0).astype(np.int8)
    rule[0] = RULES.index("special")
    return Side(vocabulary("s", sources)), Side(vocabulary("t", targets), vectors), Overlap(found, rule)


def brute_force(target, overlap, matrix, anchors):
    unit = target.vectors.astype(np.float64) / np.maximum(np.linalg.norm(target.vectors, axis=1, keepdims=True), 1e-30)
    weights = entmax.sparsemax(torch.from_numpy(unit @ unit[anchors].T), dim=-1).numpy()
    return weights @ matrix[overlap.source[anchors]]


@pytest.mark.parametrize("parity", [False, True])
def test_equals_numpy(parity):
    source, target, overlap = toy()
    matrix = np.random.default_rng(1).standard_normal((60, 8))
    plan = focus(source, target, overlap=overlap, parity=parity)
    plan.validate(60)
    anchors = np.flatnonzero(overlap.shared & target.has_vector)
    expected = brute_force(target, overlap, matrix, anchors if parity else anchors[anchors > 0])
    np.testing.assert_array_equal(plan.copy, overlap.source)
    np.testing.assert_array_equal(plan.random, ~overlap.shared & ~target.has_vector)
    made = plan.apply(matrix.astype(np.float32), np.zeros((90, 8), np.float32))
    np.testing.assert_allclose(made[plan.is_mixed], expected[plan.is_mixed], atol=1e-5, rtol=0)
    uses_special = ((plan.neighbors == 0) & (plan.weights > 0)).any()
    assert uses_special == parity


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 2**32 - 1))
def test_anchors_of_one_source_row_add_up(seed):
    """Each neighbor stands once, with the weight of all its anchors."""
    source, target, overlap = toy(seed)
    few = np.where(overlap.shared, overlap.source % 6, -1).astype(np.int32)
    plan = focus(source, target, overlap=Overlap(few, overlap.rule), parity=True)
    plan.validate(60)
    assert (plan.weights >= 0).all() and (np.diff(plan.weights, axis=1) <= 0).all()
    np.testing.assert_allclose(plan.weights[plan.is_mixed].sum(axis=1, dtype=np.float64), 1, atol=1e-6)
    for row in np.flatnonzero(plan.is_mixed):
        used = plan.neighbors[row][plan.weights[row] > 0]
        assert len(set(used)) == len(used)
    separate = focus(source, target, overlap=overlap, parity=True)
    matrix = np.random.default_rng(seed).standard_normal((60, 4)).astype(np.float32)
    matrix = matrix[np.arange(60) % 6]
    noise = np.zeros((90, 4), np.float32)
    np.testing.assert_allclose(plan.apply(matrix, noise), separate.apply(matrix, noise), atol=1e-5, rtol=0)


def test_a_source_token_that_is_special_is_no_anchor():
    source, target, overlap = toy()
    found = overlap.source.copy()
    found[3], found[0] = 0, -1
    plan = focus(source, target, overlap=Overlap(found, overlap.rule))
    assert plan.copy[3] == 0 and not ((plan.neighbors == 0) & (plan.weights > 0)).any()


def test_nothing_new_and_no_vector_at_all():
    source, target, overlap = toy(shared=90, sources=120)
    plan = focus(source, target, overlap=overlap)
    assert plan.counts() == {"copied": 90, "mixed": 0, "random": 0}
    assert isinstance(plan, TransferPlan)


def test_mistakes_are_named():
    source, target, overlap = toy()
    with pytest.raises(UserError, match="no vectors; expected vectors of the target tokens"):
        focus(source, Side(target.vocabulary), overlap=overlap)
    only_special = np.zeros_like(target.vectors)
    only_special[[0, 80]] = 1
    with pytest.raises(UserError, match="none of the 40 shared tokens has a vector"):
        focus(source, Side(target.vocabulary, only_special), overlap=overlap)
    assert focus(source, Side(target.vocabulary, only_special), overlap=overlap, parity=True).counts()["mixed"] == 1
