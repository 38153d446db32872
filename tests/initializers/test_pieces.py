"""FVT and the asymmetric start against plain loops in float64, with a real tokenizer's pieces, and what they refuse."""

import dataclasses

import numpy as np
import pytest

from wechsel_jax.errors import UserError
from wechsel_jax.initializers import Side, TransferPlan, draw_noise
from wechsel_jax.initializers.pieces import asymmetric, fvt
from wechsel_jax.tokens import Vocabulary, load_tokenizer
from wechsel_jax.tokens.overlap import Overlap, find_overlap


def overlap_of(copies, rows):
    source = np.full(rows, -1, np.int32)
    for target_id, source_id in copies.items():
        source[target_id] = source_id
    return Overlap(source, np.where(source >= 0, 3, 0).astype(np.int8))


def loop(matrix, pieces, overlap, special, noise):
    """One token after the other, as the paper has it."""
    out = noise.astype(np.float64)
    for i, ids in enumerate(pieces):
        kept = [matrix[j].astype(np.float64) for j in ids if not special[j]]
        if overlap.source[i] >= 0:
            out[i] = matrix[overlap.source[i]]
        elif kept:
            out[i] = np.mean(kept, axis=0)
    return out


def test_equals_a_loop(fakes):
    generator = np.random.default_rng(0)
    source, target = Side(fakes.vocabulary("s", 30, fakes.roberta_roles)), Side(fakes.vocabulary("t", 200, {}))
    pieces = [generator.integers(30, size=generator.integers(0, 7)) for _ in range(200)]
    pieces[7], pieces[8], pieces[9] = np.full(40, 11), np.array([3, 3]), np.array([3, 12])  # 3 is <unk>
    overlap = overlap_of({0: 4, 5: 29, 50: 6}, 200)
    plan = fvt(source, target, overlap=overlap, pieces=tuple(pieces))
    plan.validate(30)
    matrix = generator.standard_normal((30, 8)).astype(np.float32)
    noise = draw_noise(matrix, 200, kind="source", seed=0, name="input")
    expected = loop(matrix, pieces, overlap, source.vocabulary.special, noise)
    np.testing.assert_allclose(plan.apply(matrix, noise), expected, atol=1e-6)
    assert plan.random[8] and plan.neighbors[7, 0] == 11 and plan.weights[7].tolist()[:2] == [1, 0]
    assert plan.neighbors[9].tolist()[:2] == [12, 0] and plan.weights.shape[1] <= 6
    assert 20 < plan.counts()["random"] < 60
    np.testing.assert_allclose(plan.weights[plan.is_mixed].sum(axis=1), 1, atol=1e-6)


def test_no_pieces_at_all(fakes):
    source, target = Side(fakes.vocabulary("s", 30, {})), Side(fakes.vocabulary("t", 4, {}))
    plan = fvt(source, target, overlap=overlap_of({1: 2}, 4), pieces=(np.array([], int),) * 4)
    assert plan.copy.tolist() == [-1, 2, -1, -1] and plan.random.tolist() == [True, False, True, True]


def test_wrong_pieces_are_refused(fakes):
    source, target = Side(fakes.vocabulary("s", 30, {})), Side(fakes.vocabulary("t", 2, {}))
    overlap = overlap_of({}, 2)
    with pytest.raises(UserError, match="one array for each of the 2 target tokens"):
        fvt(source, target, overlap=overlap, pieces=(np.array([1]),))
    for wrong in (30, -1):
        with pytest.raises(UserError, match=f"a piece has the id {wrong}; expected ids below 30"):
            fvt(source, target, overlap=overlap, pieces=(np.array([1]), np.array([wrong])))


def test_real_tokenizers(data_directory):
    tokenizer = load_tokenizer(data_directory / "tokenizers" / "gpt2")
    vocabulary = Vocabulary.from_tokenizer(tokenizer)
    words = ("straße", " Häuser", " the", "<|endoftext|>")
    raw = tuple(word.encode() for word in words)
    roles = (frozenset(), frozenset(), frozenset(), frozenset({"eos"}))
    target = Vocabulary(words, raw, np.array([False, True, True, False]), roles, "byte_bpe")
    pieces = [np.array(tokenizer.encode(word, add_special_tokens=False)) for word in words[:3]] + [np.array([], int)]
    overlap = find_overlap(vocabulary, target)
    plan = fvt(Side(vocabulary), Side(target), overlap=overlap, pieces=pieces)
    assert plan.copy.tolist()[:2] == [-1, -1] and plan.copy[2] == pieces[2][0] and vocabulary.strings[plan.copy[3]] == words[3]
    for row in (0, 1):
        used = plan.neighbors[row][plan.weights[row] > 0]
        assert sorted(used) == sorted(set(pieces[row].tolist()))
        np.testing.assert_allclose(plan.weights[row].sum(), 1, atol=1e-6)


def length_weighted(matrix, pieces, source, special):
    """The mean of a token's pieces, each as often as its text has bytes."""
    kept = [j for j in pieces if not special[j]]
    lengths = [len(source.vocabulary.bytes[j]) for j in kept]
    return sum(length * matrix[j].astype(np.float64) for length, j in zip(lengths, kept, strict=True)) / sum(lengths)


@pytest.mark.parametrize("tied", [True, False])
def test_the_asymmetric_start_equals_a_loop(fakes, tmp_path, tied):
    generator = np.random.default_rng(1)
    table, head = generator.standard_normal((2, 30, 8)).astype(np.float32) * np.float32([[[1]], [[3]]])
    bias = generator.standard_normal(30).astype(np.float32)
    vocabulary = fakes.vocabulary("s", 30, fakes.roberta_roles)
    source, target = Side(vocabulary, embeddings=table, head=None if tied else head), Side(fakes.vocabulary("t", 50, {}))
    assert len({len(raw) for raw in vocabulary.bytes[5:]}) > 1
    pieces = [generator.integers(30, size=generator.integers(0, 5)) for _ in range(50)]
    overlap = overlap_of({3: 9}, 50)
    plan = asymmetric(source, target, overlap=overlap, pieces=pieces)
    plan.validate(30)
    plan.save(tmp_path / "plan.npz")
    plan = TransferPlan.load(tmp_path / "plan.npz")
    special, mixed = vocabulary.special, np.flatnonzero(plan.is_mixed)
    noise = np.zeros((50, 8), np.float32)
    plain = loop(table, pieces, overlap, special, noise)[mixed]
    weighted = np.stack([length_weighted(head, pieces[i], source, special) for i in mixed])
    for role, matrix, rows in (("input", table, plain), ("head", head, weighted)):
        if role == "head" and tied:
            continue
        made = plan.of_role(role).apply(matrix, noise)
        norm = np.mean([np.linalg.norm(matrix[i].astype(np.float64)) for i in range(30) if not special[i]])
        np.testing.assert_allclose(made[mixed], rows * norm / np.linalg.norm(rows, axis=1, keepdims=True), atol=1e-5)
        np.testing.assert_array_equal(made[3], matrix[9])
    expected = [length_weighted(bias, pieces[i], source, special) for i in mixed]
    np.testing.assert_allclose(plan.of_role("bias").apply(bias, noise[:, 0])[mixed], expected, atol=1e-6)
    assert (plan.with_noise(np.ones(50, bool)).head_weights == 0).all()


def test_weights_of_a_head_that_do_not_fit_are_refused(fakes):
    plan = TransferPlan.mixed([[0, 1]], [[0.5, 0.5]])
    for shape, value, message in (((1, 1), 1, "unlike weights"), ((1, 2), np.nan, "not finite")):
        with pytest.raises(ValueError, match=message):
            dataclasses.replace(plan, head_weights=np.full(shape, value, np.float32)).validate(2)
    copied = dataclasses.replace(plan.with_copies(np.array([1])), head_weights=np.ones((1, 2), np.float32))
    with pytest.raises(ValueError, match="is copied or random, and has weights of the head"):
        copied.validate(2)
