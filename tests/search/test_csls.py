"""CSLS and refinement against numpy in float64, written as in the paper, with the whole matrix."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from wechsel_jax.errors import UserError
from wechsel_jax.search.csls import csls_neighbors, neighborhood_mean
from wechsel_jax.vectors.refinement import Refinement, procrustes, propose, refine_rotation


def cosines(a, b):
    a, b = a.astype(np.float64), b.astype(np.float64)
    return (a / np.linalg.norm(a, axis=1, keepdims=True)) @ (b / np.linalg.norm(b, axis=1, keepdims=True)).T


def whole_csls(source, target, neighborhood=10):
    similarity = cosines(source, target)
    to_target = np.sort(similarity, axis=1)[:, -neighborhood:].mean(axis=1)
    to_source = np.sort(similarity, axis=0)[-neighborhood:].mean(axis=0)
    return 2 * similarity - to_target[:, None] - to_source[None], to_target, to_source


def two_spaces(seed=0, source=300, target=260, dim=12):
    """Crowded spaces: many target vectors around a few directions, so that r differs from word to word."""
    rng = np.random.default_rng(seed)
    hubs = rng.normal(size=(4, dim))
    both = [rng.normal(size=(n, dim)) + 2 * hubs[rng.integers(4, size=n)] * rng.random((n, 1)) for n in (source, target)]
    return [side.astype(np.float32) * rng.uniform(0.5, 3, size=(len(side), 1)).astype(np.float32) for side in both]


@pytest.mark.parametrize("k", [1, 5])
def test_scores_and_ids_are_those_of_the_whole_matrix(k):
    source, target = two_spaces()
    expected, to_target, to_source = whole_csls(source, target)
    means = neighborhood_mean(source, target), neighborhood_mean(target, source)
    np.testing.assert_allclose(means[0], to_target, atol=1e-6)
    np.testing.assert_allclose(means[1], to_source, atol=1e-6)
    scores, ids = csls_neighbors(source, target, k, key_mean=means[1], query_mean=means[0])
    order = np.argsort(-expected, axis=1, kind="stable")[:, :k]
    np.testing.assert_array_equal(ids, order)
    np.testing.assert_allclose(scores, np.take_along_axis(expected, order, axis=1), atol=2e-6)
    # The problem is one where cosine answers otherwise.
    assert (cosines(source, target).argmax(axis=1) != ids[:, 0]).mean() > 0.1
    without, same = csls_neighbors(source, target, k, key_mean=means[1])
    np.testing.assert_array_equal(same, ids)
    np.testing.assert_allclose(without - means[0][:, None], scores, atol=2e-6)


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 10**6), neighborhood=st.sampled_from([1, 10, 400]))
def test_the_best_key_is_right_to_rounding(seed, neighborhood):
    source, target = two_spaces(seed, 40, 60, 5)
    expected, _, to_source = whole_csls(source, target, neighborhood)
    mean = neighborhood_mean(target, source, neighborhood=neighborhood)
    np.testing.assert_allclose(mean, to_source, atol=1e-6)
    _, ids = csls_neighbors(source, target, key_mean=mean)
    chosen = np.take_along_axis(expected, ids, axis=1)[:, 0]
    assert (chosen >= expected.max(axis=1) - 1e-5).all()


def test_equal_keys_go_to_the_lower_id_and_empty_ones_to_nobody():
    source, target = two_spaces(1, 30, 20)
    doubled = np.concatenate([np.zeros((2, 12), np.float32), target, target, np.zeros((3, 12), np.float32)])
    mean = neighborhood_mean(doubled, source)
    assert not mean[[0, 1, -1, -2, -3]].any()
    _, ids = csls_neighbors(source, doubled, key_mean=mean)
    assert ids.min() >= 2
    assert ids.max() < 22
    np.testing.assert_array_equal(ids - 2, csls_neighbors(source, target, key_mean=mean[2:22])[1])


@pytest.mark.parametrize("direction", ["mutual", "source", "target"])
def test_proposals_are_those_of_the_whole_matrix(direction):
    source, target = two_spaces(2)
    expected, _, _ = whole_csls(source, target)
    forward, backward = expected.argmax(axis=1), expected.argmax(axis=0)
    pairs = {
        "source": [(s, t) for s, t in enumerate(forward)],
        "target": [(s, t) for t, s in enumerate(backward)],
        "mutual": [(s, t) for s, t in enumerate(forward) if backward[t] == s],
    }[direction]
    left, right, criterion = propose(source, target, Refinement(direction=direction, criterion_words=100))
    assert list(zip(left.tolist(), right.tolist(), strict=True)) == pairs
    similarity = cosines(source, target)
    chosen = [similarity[s, t] for s, t in enumerate(forward[:100]) if t < 100]
    assert 10 < len(chosen) < 100
    assert criterion == pytest.approx(np.mean(chosen), abs=1e-6)


def whole_refinement(source, target, rotation, rounds, criterion_words):
    criteria, rotations = [], [rotation]
    for number in range(rounds + 1):
        expected, _, _ = whole_csls(source @ rotation, target)
        forward, backward = expected.argmax(axis=1), expected.argmax(axis=0)
        similarity = cosines(source @ rotation, target)
        words = [s for s in range(min(criterion_words, len(source))) if forward[s] < criterion_words]
        criteria.append(np.mean([similarity[s, forward[s]] for s in words]))
        pairs = [(s, t) for s, t in enumerate(forward) if backward[t] == s]
        a, b = source[[s for s, _ in pairs]].astype(np.float64), target[[t for _, t in pairs]].astype(np.float64)
        u, _, vt = np.linalg.svd(a.T @ b)
        if number < rounds:
            rotation = u @ vt
            rotations.append(rotation)
    return rotations[int(np.argmax(criteria))], criteria


def translated(seed=0, words=400, dim=16, noise=0.25):
    """Target words in another order, rotated and noisy; a rotation that is somewhat off; the true one."""
    rng = np.random.default_rng(seed)
    source = rng.normal(size=(words, dim)) * rng.uniform(0.3, 2, size=dim)
    turn = np.linalg.qr(rng.normal(size=(dim, dim)))[0]
    order = rng.permutation(words)
    target = (source @ turn + noise * rng.normal(size=source.shape))[order]
    start = np.linalg.qr(turn + 0.22 * rng.normal(size=turn.shape))[0]
    start *= np.sign((start * turn).sum(axis=0))
    return source.astype(np.float32), target.astype(np.float32), order, start, turn


def test_refinement_is_numpys_round_by_round():
    source, target, order, start, turn = translated()
    refined = refine_rotation(source, target, start, Refinement(rounds=3, criterion_words=350))
    expected, criteria = whole_refinement(source, target, start, 3, 350)
    np.testing.assert_allclose([entry["criterion"] for entry in refined.history], criteria, atol=1e-5)
    np.testing.assert_allclose(refined.rotation, expected, atol=1e-5)
    assert refined.round == int(np.argmax(criteria))
    assert refined.criterion == max(entry["criterion"] for entry in refined.history)
    assert [entry["round"] for entry in refined.history] == [0, 1, 2, 3]
    np.testing.assert_allclose(refined.rotation @ refined.rotation.T, np.eye(16), atol=1e-9)

    def right(rotation):
        return (order[cosines(source @ rotation, target).argmax(axis=1)] == np.arange(400)).mean()

    assert right(start) < 0.7
    assert right(refined.rotation) > right(start) + 0.15
    assert np.abs(refined.rotation - turn).max() < np.abs(start - turn).max() / 2


def test_the_best_round_is_kept_even_if_it_is_the_first():
    """Proposals among words after `criterion_words` pull the rotation away from the words that the criterion looks at."""
    rng = np.random.default_rng(0)
    source, turn = rng.normal(size=(300, 8)).astype(np.float32), np.linalg.qr(rng.normal(size=(8, 8)))[0]
    target = np.concatenate([source[:20], source[20:] @ turn]).astype(np.float32)
    refined = refine_rotation(source, target, np.eye(8), Refinement(rounds=2, criterion_words=20))
    assert refined.round == 0
    np.testing.assert_array_equal(refined.rotation, np.eye(8))
    assert all(entry["criterion"] < refined.criterion for entry in refined.history[1:])


def test_only_frequent_words_with_vectors_take_part():
    source, target, _, start, _ = translated(3)
    expected = refine_rotation(source[:100], target[:100], start, Refinement(rounds=2))
    holes = np.zeros((1, 16), np.float32)
    padded = np.concatenate([source[:60], holes, source[60:]]), np.concatenate([target[:10], holes, target[10:]])
    found = refine_rotation(*padded, start, Refinement(rounds=2, max_rank=101))
    np.testing.assert_array_equal(found.rotation, expected.rotation)
    assert found.history == expected.history


def test_procrustes_is_orthogonal_and_best():
    source, target, _, _, _ = translated(4)
    best = procrustes(source, target)
    np.testing.assert_allclose(best @ best.T, np.eye(16), atol=1e-10)
    residual = np.linalg.norm(source @ best - target)
    for seed in range(5):
        other = np.linalg.qr(best + 0.05 * np.random.default_rng(seed).normal(size=best.shape))[0]
        other *= np.sign((other * best).sum(axis=0))
        assert np.linalg.norm(source @ other - target) > residual


def test_mistakes_are_named():
    with pytest.raises(UserError, match="refine is -1"):
        Refinement(rounds=-1)
    with pytest.raises(UserError, match="direction 'both'"):
        Refinement(direction="both")
    with pytest.raises(UserError, match="max_rank=0"):
        Refinement(max_rank=0)
    source, target, _, start, _ = translated()
    with pytest.raises(UserError, match="zeros only"):
        refine_rotation(source, np.zeros_like(target), start, Refinement())
