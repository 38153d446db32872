"""TreLM's start, where the right map is known: the vectors are the model's own rows, turned."""

import dataclasses

import numpy as np
import pytest

from wechsel_jax.errors import UserError
from wechsel_jax.initializers import Side
from wechsel_jax.initializers.trelm import trelm
from wechsel_jax.tokens.overlap import find_overlap
from wechsel_jax.vectors.alignment import Alignment, SideMap

ROWS, D = 400, 16


@pytest.fixture(scope="module")
def turned(fakes):
    """Source rows in groups, as tables have them; the target's vectors are the same rows, turned and three times as long."""
    generator = np.random.default_rng(4)
    groups = generator.normal(size=(25, D)) * np.linspace(2, 0.5, D)
    table = groups[generator.integers(0, 25, ROWS)] + 0.5 * generator.normal(size=(ROWS, D))
    turn = np.linalg.qr(generator.normal(size=(D, D)))[0]
    chosen = generator.permutation(ROWS)[:300]
    vectors = 3 * table[chosen] @ turn
    vectors[7] = 0
    source = Side(fakes.vocabulary("s", ROWS, fakes.roberta_roles), embeddings=table.astype(np.float32))
    target = Side(fakes.vocabulary("t", 300, fakes.roberta_roles), vectors=vectors.astype(np.float32))
    return source, target, chosen


def test_the_rows_that_were_turned_come_back(turned):
    source, target, chosen = turned
    plan = trelm(source, target, overlap=find_overlap(source.vocabulary, target.vocabulary))
    plan.validate(ROWS)
    assert plan.counts() == {"copied": 5, "mixed": 294, "random": 1} and plan.random[7]
    rows = plan.apply(source.embeddings, np.zeros((300, D), np.float32))
    mixed = plan.is_mixed
    cosine = np.sum(rows * source.embeddings[chosen], axis=1) / np.linalg.norm(rows, axis=1).clip(1e-9)
    cosine /= np.linalg.norm(source.embeddings[chosen], axis=1)
    assert np.median(cosine[mixed]) > 0.99
    # As long, and about the same mean, as the rows of the table.
    np.testing.assert_allclose(rows[mixed].mean(axis=0), source.embeddings.mean(axis=0), atol=0.1)
    assert rows[mixed].std() == pytest.approx(source.embeddings.std(), rel=0.05)
    # What is a linear function of the rows follows them: a head that is twice the table, and a bias.
    twice, bias = 2 * source.embeddings, source.embeddings[:, 3]
    np.testing.assert_allclose(plan.apply(twice, np.zeros_like(rows))[mixed], 2 * rows[mixed], atol=1e-3)
    np.testing.assert_allclose(plan.apply(bias, np.zeros_like(rows[:, 3]))[mixed], rows[mixed, 3], atol=1e-3)
    np.testing.assert_array_equal(rows[:5], source.embeddings[:5])


@pytest.fixture(scope="module")
def shared(turned):
    """The target of `turned`, a tenth of whose tokens are in both vocabularies."""
    source, target, chosen = turned
    named = list(target.vocabulary.strings)
    for i in range(5, 300, 10):
        named[i] = source.vocabulary.strings[chosen[i]]
    vocabulary = dataclasses.replace(target.vocabulary, strings=tuple(named), bytes=tuple(name.encode() for name in named))
    return dataclasses.replace(target, vocabulary=vocabulary)


def test_a_map_that_found_nothing_is_told(turned, shared, monkeypatch):
    source, _, _ = turned
    generator, told = np.random.default_rng(0), []
    overlap = find_overlap(source.vocabulary, shared.vocabulary)
    trelm(source, shared, overlap=overlap, order="vocabulary", notes=told.append)
    assert not told
    nowhere = np.linalg.qr(generator.normal(size=(D, D)))[0]
    lost = Alignment(SideMap(nowhere), SideMap())
    monkeypatch.setattr("wechsel_jax.vectors.adversarial.adversarial_align", lambda *_, **__: lost)
    trelm(source, shared, overlap=overlap, order="vocabulary", notes=told.append)
    (note,) = told
    assert note.startswith("The map has found nothing: by it, of 3") and note.endswith("or give --start=shared.")


def test_shared_tokens_find_the_map(turned, shared):
    """The rows of the tokens that are not in both vocabularies come back too."""
    source, _, chosen = turned
    plan = trelm(source, shared, overlap=find_overlap(source.vocabulary, shared.vocabulary), start="shared")
    rows = plan.apply(source.embeddings, np.zeros((300, D), np.float32))[plan.is_mixed]
    wanted = source.embeddings[chosen][plan.is_mixed]
    cosine = (rows * wanted).sum(axis=1) / np.linalg.norm(rows, axis=1) / np.linalg.norm(wanted, axis=1)
    assert np.median(cosine) > 0.97


def test_parity_turns_the_vectors_and_nothing_else(turned):
    """TreLM's code exports every mapped vector as it is, 1e-8 for a token without one, and copies no row."""
    source, target, _ = turned
    plan = trelm(source, target, overlap=find_overlap(source.vocabulary, target.vocabulary), parity=True)
    assert plan.counts() == {"copied": 0, "mixed": 300, "random": 0}
    rows = plan.apply(source.embeddings)
    np.testing.assert_allclose(rows[7], 1e-8, atol=1e-7)
    # An orthogonal map changes no product.
    known = np.flatnonzero(target.has_vector)
    products = target.vectors[known] @ target.vectors[known].T
    np.testing.assert_allclose(rows[known] @ rows[known].T, products, atol=2e-3 * np.abs(products).max())


def test_the_order_is_that_of_the_counts(turned, monkeypatch):
    from wechsel_jax.vectors import adversarial as module

    source, target, _ = turned
    counted = dataclasses.replace(target, counts=np.arange(300) % 50)
    seen = []
    monkeypatch.setattr(module, "adversarial_align", lambda words, *rest, **options: seen.append(words.words) or 1 / 0)
    for order in ("frequency", "vocabulary"):
        with pytest.raises(ZeroDivisionError):
            trelm(source, counted, overlap=find_overlap(source.vocabulary, target.vocabulary), order=order)
    counts = [counted.counts[target.vocabulary.strings.index(word)] for word in seen[0]]
    assert counts == sorted(counts, reverse=True) and len(counts) == 299
    assert seen[1] == [word for i, word in enumerate(target.vocabulary.strings) if i != 7]


def test_other_dimensions_are_refused(turned):
    source, target, _ = turned
    short = dataclasses.replace(target, vectors=target.vectors[:, :8])
    with pytest.raises(UserError, match=r"trelm: the vectors have 8 dimensions, and the model's table 16; .* --dim=16"):
        trelm(source, short, overlap=find_overlap(source.vocabulary, target.vocabulary))
