"""SALT against the paper's formulas, a token at a time in float64; no public code exists."""

import numpy as np
import pytest

from wechsel_jax.errors import UserError
from wechsel_jax.initializers import Side
from wechsel_jax.initializers.salt import salt
from wechsel_jax.tokens.overlap import Overlap

SOURCES, TARGETS, SHARED, VECTOR, HELPER, HIDDEN = 300, 420, 220, 12, 48, 64


def make_problem(fakes, seed=0, scale=1.0):
    """A helper whose rows follow the word vectors, specials in front, tokens without a vector or a helper row, and twins."""
    generator = np.random.default_rng(seed)
    source = Side(fakes.vocabulary("s", SOURCES, fakes.gpt2_roles))
    vectors = generator.standard_normal((TARGETS, VECTOR))
    helper = vectors @ generator.standard_normal((VECTOR, HELPER)) + generator.standard_normal((TARGETS, HELPER))
    found, rule = np.full(TARGETS, -1, np.int32), np.zeros(TARGETS, np.int8)
    found[1 : SHARED + 1], rule[1 : SHARED + 1] = generator.integers(1, SOURCES, SHARED), 3
    found[0], rule[0] = 0, 2
    vectors[[5, 300, 301]] = 0
    helper[[6, 301, 302]] = 0
    vectors[20:30] = vectors[30:40]
    target = Side(
        fakes.vocabulary("t", TARGETS, fakes.gpt2_roles), vectors.astype(np.float32), (scale * helper).astype(np.float32)
    )
    return source, target, Overlap(found, rule), generator.standard_normal((SOURCES, HIDDEN)).astype(np.float32)


def sparsemax_support(scores: np.ndarray) -> np.ndarray:
    """Martins and Astudillo, 2016, algorithm 1."""
    ordered = np.sort(scores)[::-1]
    count = np.arange(1, len(scores) + 1)
    size = count[1 + count * ordered > np.cumsum(ordered)].max()
    return np.flatnonzero(scores > (ordered[:size].sum() - 1) / size)


def as_written(target: Side, overlap: Overlap, matrix: np.ndarray) -> dict[int, np.ndarray]:
    """Steps 1 to 4 of section 3 for every token that is not shared."""
    f, rows, model = (x.astype(np.float64) for x in (target.vectors, target.embeddings, matrix))
    shared = [i for i in range(1, TARGETS) if overlap.source[i] >= 0 and f[i].any() and rows[i].any()]
    out = {}
    for t in range(TARGETS):
        if overlap.source[t] >= 0 or not f[t].any() or not rows[t].any():
            continue
        cosines = f[shared] @ f[t] / np.linalg.norm(f[shared], axis=1) / np.linalg.norm(f[t])
        chosen = np.array(shared)[sparsemax_support(cosines)]
        mapping = np.linalg.pinv(rows[chosen]) @ model[overlap.source[chosen]]
        out[t] = rows[t] @ mapping
    return out


@pytest.mark.parametrize("scale", [1.0, 20.0, 1e-3], ids=["BERT", "T5", "tiny"])
def test_is_the_paper(fakes, scale):
    source, target, overlap, matrix = make_problem(fakes, scale=scale)
    plan = salt(source, target, overlap=overlap)
    expected = as_written(target, overlap, matrix)
    assert plan.counts() == {"copied": SHARED + 1, "mixed": len(expected), "random": 3} and len(expected) > 150
    result = plan.apply(matrix, np.full((TARGETS, HIDDEN), 7, np.float32))
    np.testing.assert_array_equal(result[: SHARED + 1], matrix[overlap.source[: SHARED + 1]])
    np.testing.assert_array_equal(np.flatnonzero(plan.random), [300, 301, 302])
    for t, row in expected.items():
        assert np.linalg.norm(result[t] - row) < 1e-5 * np.linalg.norm(row)


def test_only_anchors_with_both_rows_and_no_role_are_used(fakes):
    source, target, overlap, _ = make_problem(fakes)
    plan = salt(source, target, overlap=overlap)
    unused = set(overlap.source[[0, 5, 6]]) - set(np.delete(overlap.source, [0, 5, 6]))
    assert 0 in unused
    assert not unused & set(plan.neighbors[plan.weights != 0])
    used = set(plan.neighbors[plan.weights != 0])
    assert len(used) > 50 and used <= set(overlap.source[1:])


@pytest.mark.parametrize("special", ["source", "target"])
def test_a_special_token_mapped_to_an_ordinary_one_is_no_anchor(fakes, special):
    source, target, overlap, _ = make_problem(fakes)
    found = overlap.source.copy()
    found[found == 299] = 298
    found[0 if special == "target" else 1] = 299 if special == "target" else 0
    vectors = target.vectors.copy()
    vectors[400] = vectors[0 if special == "target" else 1]
    plan = salt(source, Side(target.vocabulary, vectors, target.embeddings), overlap=Overlap(found, overlap.rule))
    assert (299 if special == "target" else 0) not in plan.neighbors[plan.weights != 0]
    assert plan.is_mixed[400]


def test_the_sparsemax_weights_only_select(fakes):
    """Stretching a word vector changes nothing; stretching a helper row stretches the result: there is no intercept."""
    source, target, overlap, matrix = make_problem(fakes)
    noise = np.zeros((TARGETS, HIDDEN), np.float32)
    result = salt(source, target, overlap=overlap).apply(matrix, noise)
    vectors, helper = target.vectors.copy(), target.embeddings.copy()
    vectors[400] *= 4
    helper[400] *= 2
    again = salt(source, Side(target.vocabulary, vectors, helper), overlap=overlap).apply(matrix, noise)
    np.testing.assert_allclose(again[400], 2 * result[400], rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(np.delete(again, 400, 0), np.delete(result, 400, 0))


def test_weights_on_one_source_row_are_added_up(fakes):
    source, target, overlap, matrix = make_problem(fakes)
    few = Overlap(np.where(overlap.source > 0, 1 + overlap.source % 3, overlap.source).astype(np.int32), overlap.rule)
    plan = salt(source, target, overlap=few)
    assert plan.weights.shape[1] == 3
    for t, row in as_written(target, few, matrix).items():
        assert len({int(i) for i, w in zip(plan.neighbors[t], plan.weights[t], strict=True) if w}) == np.count_nonzero(
            plan.weights[t]
        )
        found = plan.weights[t].astype(np.float64) @ matrix[plan.neighbors[t]]
        np.testing.assert_allclose(found, row, rtol=0, atol=1e-5 * np.linalg.norm(row) + 1e-5)


def test_notes_count_what_went_wrong(fakes):
    source, target, overlap, _ = make_problem(fakes)
    heard = []
    salt(source, target, overlap=overlap, notes=heard.append)
    assert heard[0] == "2 of 199 tokens that are not shared have no word vector: they are noise"
    assert heard[1] == "1 of 199 tokens that are not shared have no row in the helper model: they are noise"
    assert heard[2].startswith("196 regressions over ") and len(heard) == 3
    helper = target.embeddings.copy()
    helper[20:30] = helper[30:40] * np.float32(1 + 1e-7)
    twins = Side(target.vocabulary, target.vectors, helper)
    heard.clear()
    plan = salt(source, twins, overlap=overlap, notes=heard.append)
    assert "of 196 neighborhoods were ill-conditioned (condition above 1e+06)" in heard[3]
    assert np.abs(plan.weights).max() < 100
    heard.clear()
    salt(source, twins, overlap=overlap, ridge=0.01, notes=heard.append)
    assert len(heard) == 3


def test_ridge_shrinks(fakes):
    source, target, overlap, _ = make_problem(fakes)
    plain, ridged = (salt(source, target, overlap=overlap, ridge=ridge) for ridge in (0.0, 0.1))
    norms = [np.linalg.norm(plan.weights[plan.is_mixed], axis=1) for plan in (plain, ridged)]
    assert norms[1].sum() < 0.98 * norms[0].sum()


def test_everything_shared_or_nothing_known(fakes):
    source, target, overlap, _ = make_problem(fakes)
    every = Overlap(np.arange(TARGETS, dtype=np.int32) % SOURCES, np.full(TARGETS, 3, np.int8))
    assert salt(source, target, overlap=every).counts()["copied"] == TARGETS
    nothing = Overlap(np.where(np.arange(TARGETS) == 0, 0, -1).astype(np.int32), overlap.rule)
    with pytest.raises(UserError, match="none of the 1 shared tokens"):
        salt(source, target, overlap=nothing)
    broken = target.embeddings.copy()
    broken[17, 3] = np.nan
    for side, message in (
        (Side(target.vocabulary, target.vectors), "no helper model"),
        (Side(target.vocabulary, None, target.embeddings), "no word vectors"),
        (Side(target.vocabulary, target.vectors, broken), "target token 17 holds NaN"),
    ):
        with pytest.raises(UserError, match=message):
            salt(source, side, overlap=overlap)
    with pytest.raises(UserError, match="ridge -1"):
        salt(source, target, overlap=overlap, ridge=-1)
