"""TokAlign against loops over text, against its formula in float64, and with two tokenizers on the same text."""

import lzma
import time

import numpy as np
import pytest

from wechsel_jax import demo
from wechsel_jax.errors import UserError
from wechsel_jax.initializers import Side
from wechsel_jax.initializers import tokalign as module
from wechsel_jax.initializers.anker.sides import Language
from wechsel_jax.initializers.noise import keyed_generator
from wechsel_jax.initializers.tokalign import same_text_sides, tokalign, token_pairs
from wechsel_jax.tokens import Vocabulary, load_tokenizer
from wechsel_jax.tokens.overlap import Overlap, find_overlap
from wechsel_jax.tokens.text import read_token_ids
from wechsel_jax.tokens.training import train_tokenizer
from wechsel_jax.vectors.glove import glove_vectors

LINES = 150


@pytest.fixture(scope="module")
def texts(tmp_path_factory):
    """English and German text, and a tokenizer of each."""
    root = tmp_path_factory.mktemp("tokalign")
    for language, size in (("english", 700), ("german", 900)):
        with lzma.open(demo.path(f"{language}.train.txt.xz"), "rt", encoding="utf-8") as handle:
            (root / f"{language}.txt").write_text("".join(next(handle) for _ in range(LINES)), encoding="utf-8")
        train_tokenizer(root / f"{language}.txt", size, root / language, style="gpt2")
    return root


def language(texts, tokenizer, text):
    loaded = load_tokenizer(texts / tokenizer)
    return Language(loaded, Vocabulary.from_tokenizer(loaded), (str(texts / f"{text}.txt"),))


@pytest.fixture(scope="module")
def made(texts):
    pair, told = (language(texts, "english", "english"), language(texts, "german", "german")), []
    return pair, *same_text_sides(*pair, pivots=60, seed=3, log=told.append), told


def test_pairs_are_those_of_a_loop():
    generator = np.random.default_rng(0)
    ids = generator.integers(-1, 9, 400).astype(np.int32)
    ids[100:140] = 5
    usable = np.arange(9) != 4
    expected, document = np.zeros((9, 9)), []
    for token in (*ids, -1):
        if token < 0:
            for i, one in enumerate(document):
                for j, other in enumerate(document):
                    expected[one, other] += 1 / abs(i - j) if 0 < abs(i - j) <= 15 else 0
            document = []
        elif usable[token]:
            document.append(token)
    made = token_pairs(ids, usable)
    np.testing.assert_allclose(made.toarray(), expected, rtol=1e-12)
    assert not made.toarray()[4].any() and expected[5, 5] > 50


def test_vectors_are_cosines_to_the_same_shared_tokens(made, texts):
    pair, *sides, report, _, told = made
    overlap = find_overlap(pair[0].vocabulary, pair[1].vocabulary, "exact")
    vectors = []
    for name, one, side in zip(("source", "target"), pair, sides, strict=True):
        parts = [read_token_ids(one.tokenizer, texts / f"{text}.txt") for text in ("english", "german")]
        ids, own = np.concatenate(parts), parts[name == "target"]
        counts = np.bincount(ids[ids >= 0], minlength=len(one.vocabulary))
        # What a regression reads is how frequent a token is in its own language.
        np.testing.assert_array_equal(side.counts, np.bincount(own[own >= 0], minlength=len(one.vocabulary)))
        usable = (counts >= 5) & ~np.asarray(one.vocabulary.special)
        vectors.append(glove_vectors(token_pairs(ids, usable), keyed_generator(3, f"tokalign {name}"), dim=300))
        np.testing.assert_array_equal(side.has_vector, usable)
        assert usable.sum() < len(usable)
        assert report[f"{name}_text"]["tokens"] == counts.sum()
        assert report[f"{name}_text"]["without_vector"] == (~usable & ~np.asarray(one.vocabulary.special)).sum()
    units = [v / np.linalg.norm(v, axis=1, keepdims=True).clip(1e-30) for v in vectors]
    known = np.flatnonzero(overlap.shared & sides[1].has_vector & sides[0].has_vector[overlap.source])
    pivots = keyed_generator(3, "tokalign pivots").permutation(known)[:60]
    assert len(known) > 60 == report["pivots"]
    for side, unit, ids in zip(sides, units, (overlap.source[pivots], pivots), strict=True):
        np.testing.assert_allclose(side.vectors[side.has_vector], (unit @ unit[ids].T)[side.has_vector], atol=1e-6)
    assert any("epoch 15, loss" in line for line in told)


def test_the_plan_is_the_most_similar_token(made):
    _, source, target, *_ = made
    overlap = find_overlap(source.vocabulary, target.vocabulary, "exact")
    plan = tokalign(source, target, overlap=overlap)
    plan.validate(len(source.vocabulary))
    table = np.random.default_rng(0).standard_normal((len(source.vocabulary), 6)).astype(np.float32)
    out = plan.apply(table, np.full((len(plan), 6), 7, np.float32))
    left, right = target.vectors.astype(np.float64), source.vectors.astype(np.float64)
    for i in range(len(plan)):
        if overlap.source[i] >= 0:
            expected = table[overlap.source[i]]
        elif not left[i].any():
            expected = np.full(6, 7)
        else:
            lengths = np.linalg.norm(right, axis=1)
            similarity = np.divide(right @ left[i], lengths, out=np.full(len(right), -np.inf), where=lengths > 0)
            expected = table[similarity.argmax()]
        np.testing.assert_array_equal(out[i], expected)
    counts = plan.counts()
    assert min(counts.values()) > 0 and sum(counts.values()) == len(plan)
    assert set(np.unique(plan.weights)) == {0, 1} and plan.weights.shape[1] == 1


def test_a_tokenizer_finds_itself(texts):
    """The same tokenizer on both sides: GloVe begins elsewhere, and yet a token is its own nearest."""
    same, told = language(texts, "english", "english"), []
    *sides, _, notes = same_text_sides(same, same, pivots=100, seed=0, log=told.append)
    assert not np.array_equal(*(side.vectors for side in sides))
    ids = np.flatnonzero(sides[1].has_vector)
    share = (module.most_similar(*sides, ids) == ids).mean()
    assert share > 0.5 > 20 / len(ids)
    assert len(notes) == 1 and notes[0].endswith("are most similar to themselves.")


def test_few_pivots_are_said(made, texts):
    pair = made[0]
    *_, notes = same_text_sides(*pair, pivots=5000, log=lambda line: None)
    assert len(notes) == 1 and notes[0].startswith("Only ") and "could be pivots; 5000 were asked for" in notes[0]


def test_mistakes_are_named(made, texts, tmp_path):
    pair = made[0]
    (tmp_path / "short.txt").write_text("a b\n", encoding="utf-8")
    short = [Language(one.tokenizer, one.vocabulary, (str(tmp_path / "short.txt"),)) for one in pair]
    with pytest.raises(UserError, match=r"short\.txt: none of the \d+ tokens that both vocabularies have occurs 5 times"):
        same_text_sides(*short, log=lambda line: None)
    with pytest.raises(UserError, match=r"nothing\.txt: no such file"):
        same_text_sides(pair[0], Language(pair[1].tokenizer, pair[1].vocabulary, ("nothing.txt",)), log=lambda line: None)


def test_special_tokens_are_copied_and_never_an_answer(made):
    _, source, target, *_ = made
    overlap = find_overlap(source.vocabulary, target.vocabulary, "exact")
    special = np.flatnonzero(np.asarray(source.vocabulary.special))
    assert len(special) and not source.has_vector[special].any()
    plan = tokalign(source, target, overlap=overlap)
    assert set(special) <= set(plan.copy) and not np.isin(plan.neighbors[plan.is_mixed], special).any()
    none = Overlap(np.full(len(plan), -1, np.int32), np.zeros(len(plan), np.int8))
    assert tokalign(source, Side(target.vocabulary, target.vectors), overlap=none).counts()["copied"] == 0


def test_a_signal_does_not_wait_for_the_other_sides_epochs(made):
    told = []

    def log(line: str) -> None:
        told.append(line)
        if "source tokenizer: GloVe, epoch 1," in line:
            raise KeyboardInterrupt
        if "target tokenizer: GloVe" in line:
            time.sleep(0.2)

    with pytest.raises(KeyboardInterrupt):
        same_text_sides(*made[0], pivots=60, seed=3, log=log)
    assert sum("target tokenizer: GloVe" in line for line in told) < 10
