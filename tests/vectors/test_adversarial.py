"""Adversarial alignment: planted maps are found without a pair, and one step is the one written out in numpy."""

from dataclasses import replace

import jax
import numpy as np
import pytest
import scipy.linalg

from wechsel_jax.errors import UserError
from wechsel_jax.vectors import PlainVectors, adversarial
from wechsel_jax.vectors.adversarial import AdversarialSettings, _first_state, _trainer, adversarial_align
from wechsel_jax.vectors.refinement import Refinement

DIM = 8
SMALL = AdversarialSettings(
    epochs=3, iterations=500, hidden=64, most_frequent=0, refinement=Refinement(rounds=3, max_rank=400, criterion_words=300)
)


def planted(angle=0.6, words=1200, noise=0.02, seed=0):
    """Skewed word vectors; a model's table, in another order, holds them turned by `angle`, with a little noise."""
    rng = np.random.default_rng(seed)
    vectors = rng.gamma(1, size=(words, DIM)) * np.geomspace(2, 0.4, DIM)
    vectors -= 0.5 * vectors.mean(axis=0)
    drawn = rng.normal(size=(DIM, DIM))
    turn = scipy.linalg.expm(angle * (drawn - drawn.T) / 2)
    table = vectors @ turn + noise * rng.normal(size=vectors.shape)
    # Frequent tokens are frequent on both sides, but not in the same order.
    order = np.argsort(np.arange(words) + rng.uniform(0, 20, words))
    source = PlainVectors([f"word{i}" for i in range(words)], vectors.astype(np.float32))
    target = PlainVectors([f"piece{i}" for i in order], table[order].astype(np.float32))
    return source, target, [(f"word{i}", f"piece{i}") for i in range(words)], turn


@pytest.fixture(scope="module")
def found():
    source, target, pairs, turn = planted()
    lines = []
    alignment = adversarial_align(source, target, SMALL, pairs=pairs, csls=True, progress=lines.append)
    return alignment, lines, source, target, pairs, turn


@pytest.mark.slow
def test_a_planted_map_into_a_models_table_is_found(found):
    alignment, lines, source, target, pairs, turn = found
    table = target.lookup([piece for _, piece in pairs])
    start = source.rows(np.arange(1200))
    near = ((start @ table.T) / np.linalg.norm(table, axis=1)).argmax(axis=1)
    assert (near == np.arange(1200)).mean() < 0.2
    assert np.abs(np.eye(DIM) - turn).max() > 0.5
    report = alignment.report
    assert report["precision_at_1"] > 0.95
    assert report["precision_at_1_csls"] > 0.95
    assert report["held_out_words"] == 1200
    np.testing.assert_allclose(alignment.source_map, turn, atol=0.02)
    assert alignment.target_map is None
    np.testing.assert_allclose(alignment.source_map @ alignment.source_map.T, np.eye(DIM), atol=1e-5)
    assert report["method"] == "adversarial"
    assert [entry["epoch"] for entry in report["adversarial"]] == [1, 2, 3]
    assert report["criterion"] == max(entry["criterion"] for entry in report["refinement"])
    assert report["refinement"][0]["criterion"] == pytest.approx(max(e["criterion"] for e in report["adversarial"]), abs=1e-6)
    assert len(lines) == 3 + 4
    assert report["pairs"] > 200
    assert report["residual"] < 0.1


def test_the_dictionary_only_measures_and_the_seed_decides(found):
    alignment, _, source, target, _, _ = found
    again = adversarial_align(source, target, SMALL)
    np.testing.assert_array_equal(again.source_map, alignment.source_map)
    assert "precision_at_1" not in again.report
    assert again.report["adversarial"] == alignment.report["adversarial"]
    other = adversarial_align(source, target, replace(SMALL, epochs=1), seed=1)
    assert other.report["adversarial"][0] != alignment.report["adversarial"][0]


def test_restarts_keep_the_one_of_highest_criterion():
    source, target, _, _ = planted(angle=1.5, seed=3)
    few = replace(SMALL, epochs=1, iterations=200, restarts=4)
    report = adversarial_align(source, target, few).report
    criteria = [entry["criterion"] for entry in report["adversarial"]]
    assert len(set(criteria)) == 4
    assert report["restart"] == int(np.argmax(criteria))
    assert report["refinement"][0]["criterion"] == pytest.approx(max(criteria), abs=1e-6)


def test_learning_rate_decays_and_shrinks_from_the_second_drop_on(monkeypatch):
    source, target, _, _ = planted(angle=0.0, noise=0.5)
    # So high a rate makes the criterion wander.
    for name, value in (("_LEARNING_RATE", 2.0), ("_DECAY", 0.9), ("_SHRINK", 0.25)):
        monkeypatch.setattr(adversarial, name, value)
    settings = replace(SMALL, epochs=8, iterations=20)
    history = adversarial_align(source, target, settings).report["adversarial"]
    rate, highest, drops = 2.0, -1.0, 0
    for entry in history:
        assert entry["learning_rate"] == pytest.approx(rate)
        rate *= 0.9
        if entry["criterion"] < highest:
            drops += 1
            rate *= 0.25 if drops > 1 else 1
        highest = max(highest, entry["criterion"])
    assert drops > 1
    monkeypatch.setattr(adversarial, "_LEARNING_RATE", 4.0)
    monkeypatch.setattr(adversarial, "_MIN_LEARNING_RATE", 3.0)
    ended = adversarial_align(source, target, replace(settings, epochs=1))
    assert len(ended.report["adversarial"]) == 1


def test_one_iteration_is_numpys():
    """Two words a side that are equal, nothing dropped: the draws do not matter, so that every figure can be written out."""
    size, rate, smoothing, leak, b = 3, 2.0, 0.1, 0.2, 0.05
    x, y = np.array([1.0, -0.5, 2.0]), np.array([0.3, 1.5, -1.0])

    key = jax.random.key(0)
    state = _first_state(np.random.default_rng(0), size, 4, False)
    numbers = {
        "input_dropout": 0.0, "smoothing": smoothing, "leak": leak, "discriminator_learning_rate": 0.3, "orthogonality": b,
    }  # fmt: skip
    rows = [np.tile(v, (2, 1)).astype(np.float32) for v in (x, y)]
    after, loss = _trainer(2, 2)(state, *rows, key, 0, 1, rate, numbers)
    layers = [[np.asarray(p, np.float64) for p in layer] for layer in state["discriminator"]]
    matrix, losses = np.eye(size), []

    def forward(batch):
        hidden = [batch]
        for number, (weight, bias) in enumerate(layers):
            z = hidden[-1] @ weight + bias
            hidden.append(np.where(z > 0, z, leak * z) if number < 2 else z)
        return hidden

    def backward(hidden, label):
        probability = 1 / (1 + np.exp(-hidden[-1][:, 0]))
        losses.append(-(label * np.log(probability) + (1 - label) * np.log(1 - probability)).mean())
        delta, gradients = (probability - label)[:, None] / len(label), []
        for number in (2, 1, 0):
            weight, _ = layers[number]
            gradients.insert(0, (hidden[number].T @ delta, delta.sum(axis=0)))
            delta = delta @ weight.T
            if number:
                delta = delta * np.where(hidden[number] > 0, 1, leak)
        return gradients, delta

    label = np.array([1 - smoothing] * 2 + [smoothing] * 2)
    for _ in range(2):
        gradients, _ = backward(forward(np.array([x @ matrix, x @ matrix, y, y])), label)
        layers = [
            [p - 0.3 * g for p, g in zip(layer, pair, strict=True)] for layer, pair in zip(layers, gradients, strict=True)
        ]
    mean_loss = np.mean(losses)
    _, delta = backward(forward(np.array([x @ matrix, x @ matrix, y, y])), 1 - label)
    matrix = matrix - rate * np.outer(x, delta[:2].sum(axis=0))
    matrix = (1 + b) * matrix - b * matrix @ matrix.T @ matrix
    np.testing.assert_allclose(after["map"], matrix, atol=1e-6)
    assert np.abs(matrix - np.eye(size)).max() > 1e-3
    for ours, theirs in zip(after["discriminator"], layers, strict=True):
        for a, expected in zip(ours, theirs, strict=True):
            np.testing.assert_allclose(a, expected, atol=1e-6)
    assert float(loss) == pytest.approx(mean_loss, abs=1e-6)


def test_order_and_most_frequent_choose_the_words():
    """The vectors' counts say which words are frequent; TreLM's order is the vocabulary's."""
    source, target, _, _ = planted()
    rare = np.full((600, DIM), 1e3, np.float32)

    def with_rare_first(vectors):
        rows = np.concatenate([rare, vectors.rows(np.arange(1200))])
        names = [f"rare{i}" for i in range(600)] + list(vectors.words)
        return PlainVectors(names, rows, np.array([1] * 600 + [9] * 1200))

    few = replace(SMALL, epochs=1, iterations=50, most_frequent=1200)
    expected = adversarial_align(source, target, few)
    found = adversarial_align(with_rare_first(source), with_rare_first(target), few)
    np.testing.assert_array_equal(found.source_map, expected.source_map)
    other = adversarial_align(
        with_rare_first(source), with_rare_first(target), replace(few, order="vocabulary"), normalize=True
    )
    assert np.abs(other.source_map - expected.source_map).max() > 1e-3


def test_normalize_center_and_dimensions():
    source, target, _, _ = planted(angle=0.3)
    wide = PlainVectors(source.words, np.pad(source.rows(np.arange(1200)), ((0, 0), (0, 2))))
    few = replace(SMALL, epochs=1, iterations=50)
    alignment = adversarial_align(wide, target, few, normalize=True, center=True)
    assert alignment.source_map.shape == (10, DIM)
    assert alignment.source.normalize
    assert alignment.target.normalize
    mapped = alignment.map_source(wide.rows(np.arange(1200)))
    np.testing.assert_allclose(mapped.mean(axis=0), 0, atol=1e-5)


def test_mistakes_are_named():
    for wrong, message in (
        ({"epochs": 0}, "epochs is 0"),
        ({"most_frequent": -1}, "most_frequent is -1"),
        ({"hidden": 2**63}, "hidden is 9223372036854775808; expected 1 to 16,384"),
        ({"restarts": 2**31}, "restarts is 2147483648; expected 1 to 1,000"),
        ({"epochs": 10_000, "iterations": 10**6}, "10,000 epochs of 1,000,000 iterations: expected at most 2,147"),
        ({"order": "alphabet"}, "order 'alphabet'"),
    ):
        with pytest.raises(UserError, match=message):
            replace(SMALL, **wrong)
    source, target, _, _ = planted(words=50)
    empty = PlainVectors(target.words, np.zeros((50, DIM), np.float32))
    with pytest.raises(UserError, match="the target side has vectors of zeros only"):
        adversarial_align(source, empty, SMALL)
    huge = PlainVectors(target.words, np.full((50, DIM), 1e30, np.float32))
    with pytest.raises(UserError, match="diverged"):
        adversarial_align(source, huge, replace(SMALL, epochs=1, iterations=20))
