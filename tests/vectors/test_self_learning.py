"""The map without a dictionary: its parts are the paper's, written out, and it finds real words' translations."""

import collections
import lzma
import re

import numpy as np
import pytest
import scipy.linalg
import scipy.sparse.linalg

from wechsel_jax.errors import UserError
from wechsel_jax.vectors import PlainVectors, adversarial
from wechsel_jax.vectors.adversarial import AdversarialSettings, adversarial_align
from wechsel_jax.vectors.refinement import Refinement
from wechsel_jax.vectors.self_learning import _choose, _profiles, similarity_map


def random_turn(size, seed=0):
    return np.linalg.qr(np.random.default_rng(seed).standard_normal((size, size)))[0]


def planted(words=500, size=12, noise=0.05, seed=0):
    """Word vectors with clusters; the other language's are shuffled, turned by any angle, and noisy."""
    generator = np.random.default_rng(seed)
    centers = generator.standard_normal((25, size))
    vectors = centers[generator.integers(25, size=words)] + 0.7 * generator.standard_normal((words, size))
    order = np.argsort(np.arange(words) + generator.uniform(0, 30, words))
    other = vectors[order] @ random_turn(size, 5) + noise * generator.standard_normal((words, size))
    return vectors.astype(np.float32), other.astype(np.float32), order


def unit(vectors):
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


def test_profiles_are_the_square_root_of_the_similarities_sorted():
    vectors = unit(np.random.default_rng(0).standard_normal((40, 60)))
    root = np.sort(scipy.linalg.sqrtm(vectors @ vectors.T).real, axis=1)
    expected = unit(root) - unit(root).mean(axis=0)
    np.testing.assert_allclose(_profiles(vectors), unit(expected), atol=1e-5)


class Coins:
    """A generator that remembers what it threw."""

    def __init__(self):
        self.generator, self.thrown = np.random.default_rng(0), []

    def random(self, shape, dtype):
        self.thrown.append(self.generator.random(shape, dtype))
        return self.thrown[-1]


@pytest.mark.parametrize("keep", [1.0, 0.3])
def test_pairs_are_chosen_by_csls_among_those_that_chance_leaves(keep):
    generator, coins = np.random.default_rng(1), Coins()
    cosines = generator.uniform(-1, 1, (30, 50)).astype(np.float32)
    (rows, columns), mean = _choose(cosines, keep, coins)
    row_mean = [sorted(row)[-10:] for row in cosines.astype(np.float64)]
    column_mean = [sorted(column)[-10:] for column in cosines.T.astype(np.float64)]
    expected = []
    possible = [throw < keep for throw in coins.thrown] if keep < 1 else [np.ones((30, 50), bool), np.ones((50, 30), bool)]
    for i in range(30):
        scores = {j: 2 * cosines[i, j] - np.mean(row_mean[i]) - np.mean(column_mean[j]) for j in range(50) if possible[0][i, j]}
        expected.append((i, max(scores, key=scores.get)))
    for j in range(50):
        scores = {i: 2 * cosines[i, j] - np.mean(row_mean[i]) - np.mean(column_mean[j]) for i in range(30) if possible[1][j, i]}
        expected.append((max(scores, key=scores.get), j))
    assert list(zip(rows.tolist(), columns.tolist(), strict=True)) == expected
    np.testing.assert_allclose(mean, (cosines.max(axis=1).mean() + cosines.max(axis=0).mean()) / 2, rtol=1e-6)


def test_a_planted_rotation_is_found_from_any_position():
    """In either direction, whatever the lengths; the same seed gives the same bits."""
    source, target, order = planted()
    lines = []
    rotation = similarity_map(source, target, np.random.default_rng(0), progress=lines.append)
    np.testing.assert_allclose(rotation @ rotation.T, np.eye(12), atol=1e-9)
    np.testing.assert_allclose(rotation, random_turn(12, 5), atol=0.03)
    assert "10% of the pairs" in lines[0] and "100% of the pairs" in lines[-1]
    again, other = [], []
    np.testing.assert_array_equal(similarity_map(source, target, np.random.default_rng(0), progress=again.append), rotation)
    similarity_map(source, target, np.random.default_rng(1), progress=other.append)
    assert again == lines != other
    lengths = np.random.default_rng(2).uniform(0.1, 10, (500, 1)).astype(np.float32)
    back = similarity_map(target[:450] * lengths[:450], source, np.random.default_rng(0))
    np.testing.assert_allclose(back, random_turn(12, 5).T, atol=0.04)
    assert (unit(source) @ rotation @ unit(target).T).argmax(axis=1).tolist() == np.argsort(order).tolist()


@pytest.mark.slow
def test_as_the_start_of_an_alignment(monkeypatch):
    """Alone it is refined as it is; training after it cannot lower the criterion of what is kept."""
    source, target, order = planted()
    words = PlainVectors([f"a{i}" for i in range(500)], source), PlainVectors([f"b{i}" for i in order], target)
    pairs = [(f"a{i}", f"b{i}") for i in range(500)]
    settings = AdversarialSettings(start="similarities", epochs=0, refinement=Refinement(rounds=2))
    lines = []
    alone = adversarial_align(*words, settings, normalize=True, pairs=pairs, progress=lines.append).report
    assert alone["precision_at_1"] > 0.99 and alone["settings"]["start"] == "similarities"
    assert [(e["restart"], e["epoch"], e["discriminator_loss"]) for e in alone["adversarial"]] == [(0, 0, None)]
    assert "restart 0, epoch 0: criterion" in lines[-4] and "before any training" in lines[-4]
    # So high a rate spoils the map.
    monkeypatch.setattr(adversarial, "_LEARNING_RATE", 5.0)
    refinement = Refinement(rounds=0)
    trained = AdversarialSettings(start="similarities", epochs=1, iterations=20, hidden=8, restarts=2, refinement=refinement)
    report = adversarial_align(*words, trained, normalize=True).report
    assert [(e["restart"], e["epoch"]) for e in report["adversarial"]] == [(0, 0), (0, 1), (1, 0), (1, 1)]
    criteria = [entry["criterion"] for entry in report["adversarial"]]
    assert criteria[1] < criteria[0] and report["criterion"] == pytest.approx(max(criteria), abs=1e-6)
    for wrong, message in (
        ({"epochs": 0}, "epochs is 0"),
        ({"start": "random"}, "start 'random'"),
        ({"start": "similarities", "epochs": -1}, "epochs is -1"),
    ):
        with pytest.raises(UserError, match=message):
            AdversarialSettings(**wrong)


def counted_vectors(lines, words=1000, size=40, window=3):
    """Word vectors of a text: positive mutual information of neighboring words, factorised (Levy and Goldberg, 2014)."""
    tokens = [re.findall(r"[^\W\d_]+", line.lower()) for line in lines]
    names = [word for word, _ in collections.Counter(word for line in tokens for word in line).most_common(words)]
    index = {word: i for i, word in enumerate(names)}
    ids = np.array([i for line in tokens for i in [*(index.get(word, words) for word in line), *[words] * window]])
    counts = sum(
        scipy.sparse.coo_matrix((np.ones(len(ids) - k), (ids[:-k], ids[k:])), (words + 1, words + 1)).tocsr()
        for k in range(1, window + 1)
    )
    counts = (counts + counts.T).toarray()[:words, :words]
    row, column = counts.sum(axis=1) + 1e-9, counts.sum(axis=0) ** 0.75
    with np.errstate(divide="ignore"):
        information = np.maximum(np.log(counts / row[:, None] / (column / column.sum())), 0)
    left, values, _ = scipy.sparse.linalg.svds(information, size, random_state=0)
    return names, (left * np.sqrt(values)).astype(np.float32)


@pytest.mark.slow
def test_the_words_of_two_halves_of_a_text_find_each_other(data_directory):
    """Real vectors, no planted map: those that a word has in every other line of novels and in the lines between."""
    with lzma.open(data_directory / "text" / "en.eltec.txt.xz", "rt", encoding="utf8") as handle:
        lines = handle.read(12_000_000).split("\n")
    (first, source), (second, target) = (counted_vectors(part) for part in (lines[::2], lines[1::2]))
    words = PlainVectors(first, source @ random_turn(40).astype(np.float32)), PlainVectors(second, target)
    settings = AdversarialSettings(start="similarities", epochs=0, refinement=Refinement(rounds=2))
    pairs = [(word, word) for word in first if word in set(second)]
    report = adversarial_align(*words, settings, normalize=True, center=True, pairs=pairs).report
    assert report["held_out_words"] > 900 and report["precision_at_1"] > 0.6
