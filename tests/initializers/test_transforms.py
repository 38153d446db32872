"""Factorisations against numpy's SVD; scales and shuffles against their closed forms; and the way back."""

import math

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from wechsel_jax.checkpoint.surgery import write_factors
from wechsel_jax.checkpoint.tensors import read_header
from wechsel_jax.errors import UserError
from wechsel_jax.initializers import noise
from wechsel_jax.initializers.transforms import (
    SHUFFLES,
    STANDARDIZATIONS,
    Factors,
    absorption,
    low_rank,
    rescale,
    scalar_moments,
    shuffle,
    sinusoidal_positions,
    standardize,
    unshuffle,
)

FLOATS = [np.float32, np.float16, ml_dtypes.bfloat16, np.float64]


@pytest.fixture(params=[1 << 25, 700], ids=["one-block", "many-blocks"])
def blocks(request, monkeypatch):
    monkeypatch.setattr(noise.block_rows, "__defaults__", (request.param,))


def table(rows=200, dimension=24, seed=0, dtype=np.float32):
    """Rows with a spectrum that falls, and a mean that is not zero."""
    generator = np.random.default_rng(seed)
    scale = 0.8 ** np.arange(dimension)
    return (
        (generator.standard_normal((rows, dimension)) * scale) @ np.linalg.qr(generator.standard_normal((dimension,) * 2))[0]
        + 0.3
    ).astype(dtype)


@pytest.mark.parametrize("shape", [(200, 24), (30, 40)])
@pytest.mark.parametrize("dtype", [np.float32, ml_dtypes.bfloat16])
def test_the_factorisation_is_numpys(blocks, shape, dtype):
    matrix = table(*shape, dtype=dtype)
    u, s, vh = np.linalg.svd(matrix.astype(np.float64), full_matrices=False)
    for dimensions in (1, 5, 12):
        factors = low_rank(matrix, dimensions)
        assert factors.coordinates.shape == (shape[0], dimensions) and factors.projection.shape == (dimensions, shape[1])
        assert factors.coordinates.dtype == factors.projection.dtype == np.float32
        sign = np.sign((factors.projection * vh[:dimensions]).sum(axis=1))
        np.testing.assert_allclose(factors.coordinates, u[:, :dimensions] * sign, atol=1e-5)
        np.testing.assert_allclose(
            factors.projection, (s[:dimensions, None] * vh[:dimensions]) * sign[:, None], atol=1e-5 * s[0]
        )
        best = (u[:, :dimensions] * s[:dimensions]) @ vh[:dimensions]
        np.testing.assert_allclose(factors.dense(), best, atol=1e-5 * s[0])
        largest = np.abs(factors.projection).argmax(axis=1)
        assert (factors.projection[np.arange(dimensions), largest] > 0).all()


def test_the_singular_values_are_in_the_projection():
    factors = low_rank(table(), 6)
    np.testing.assert_allclose(factors.coordinates.T @ factors.coordinates, np.eye(6), atol=1e-5)


def test_a_table_of_lower_rank_is_exact():
    generator = np.random.default_rng(0)
    matrix = (generator.standard_normal((100, 3)) @ generator.standard_normal((3, 20))).astype(np.float32)
    for dimensions in (3, 10):
        factors = low_rank(matrix, dimensions)
        assert np.isfinite(factors.coordinates).all()
        np.testing.assert_allclose(factors.dense(), matrix, atol=2e-5)
    assert not low_rank(np.zeros((9, 4), np.float32), 2).dense().any()


def test_no_factorisation():
    matrix = table()
    for dimensions in (None, 0, "full", 24):
        factors = low_rank(matrix, dimensions)
        assert factors.coordinates is matrix and factors.projection is None and factors.dense() is matrix
    for wrong in (25, -1, "half", 2.5):
        with pytest.raises(UserError, match="expected 1 to 24"):
            low_rank(matrix, wrong)
    with pytest.raises(ValueError, match="not factorised"):
        write_factors("unused", Factors(matrix, None))


def test_factors_have_a_file(tmp_path):
    factors = low_rank(table(), 5)
    write_factors(tmp_path / "factors.safetensors", factors)
    stored = read_header(tmp_path / "factors.safetensors")
    assert set(stored) == {"coordinates", "projection"}
    for name, tensor in stored.items():
        assert tensor.code == "F32"
        np.testing.assert_array_equal(tensor.read(), getattr(factors, name))
    assert factors.dense(ml_dtypes.bfloat16).dtype == ml_dtypes.bfloat16


@pytest.mark.parametrize("dtype", FLOATS)
def test_moments_are_scalars_over_all_entries(blocks, dtype):
    matrix = table(dtype=dtype)
    wide = matrix.astype(np.float64)
    np.testing.assert_allclose(scalar_moments(matrix), (wide.mean(), wide.std(ddof=1)), rtol=1e-10)


@pytest.mark.parametrize("dtype", FLOATS)
def test_pretrained_xavier_is_equation_1(blocks, dtype):
    matrix, info = table(dtype=dtype), ml_dtypes.finfo(dtype)
    atol = max(1e-8, float(info.smallest_subnormal))  # float16 has numbers near zero that are rounded to this
    wide = matrix.astype(np.float64)
    for size in (None, 1000):
        sigma = math.sqrt(2 / ((size or 200) + 24))
        expected = (wide - wide.mean()) * (sigma / wide.std(ddof=1))
        found = standardize(matrix, "pretrained_xavier", size=size)
        assert found.dtype == dtype
        np.testing.assert_allclose(found.astype(np.float64), expected, rtol=float(info.eps) * 2, atol=atol)
    # Scalar, not for each dimension: the relations between dimensions stay.
    assert standardize(table(), "pretrained_xavier").std(0).max() > 3 * standardize(table(), "pretrained_xavier").std(0).min()


def test_xavier_pretrained_is_equation_4():
    matrix = table()
    draw, scaled = (standardize(matrix, kind, seed=3) for kind in ("xavier", "xavier_pretrained"))
    limit = math.sqrt(6 / 224)
    assert -limit <= draw.min() < -0.99 * limit and 0.99 * limit < draw.max() <= limit
    wide = draw.astype(np.float64)
    assert wide.std() == pytest.approx(math.sqrt(2 / 224), rel=0.03)
    mean, deviation = scalar_moments(matrix)
    np.testing.assert_allclose(scaled, (wide - wide.mean()) * deviation / wide.std(ddof=1) + mean, atol=1e-6)
    assert not np.isin(standardize(matrix, "xavier", seed=4), draw).any()
    np.testing.assert_array_equal(standardize(matrix[:50], "xavier", seed=3, size=200), draw[:50])
    assert set(STANDARDIZATIONS) == {"pretrained_xavier", "xavier_pretrained", "xavier"}


def test_a_standardization_is_undone(blocks):
    matrix = table()
    there = standardize(matrix, "pretrained_xavier")
    assert np.abs(there - matrix).max() > 1
    np.testing.assert_allclose(rescale(there, *scalar_moments(matrix)), matrix, atol=1e-5)
    with pytest.raises(UserError, match="all the same"):
        standardize(np.ones((3, 2), np.float32), "pretrained_xavier")


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 9), st.integers(1, 9), st.integers(0, 2**32), st.sampled_from(SHUFFLES))
def test_a_shuffle_is_undone(rows, columns, seed, kind):
    matrix = np.arange(rows * columns, dtype=np.float32).reshape(rows, columns).astype(ml_dtypes.bfloat16)
    there = shuffle(matrix, kind, seed=seed)
    assert there.dtype == matrix.dtype
    np.testing.assert_array_equal(np.sort(there.astype(float), axis=None), np.sort(matrix.astype(float), axis=None))
    np.testing.assert_array_equal(unshuffle(there, kind, seed=seed), matrix)


def test_what_a_shuffle_keeps():
    matrix = table(60, 12)
    rows, elements = shuffle(matrix), shuffle(matrix, "elements")
    products = [np.sort((x @ x.T)[np.triu_indices(60, 1)]) for x in (matrix, rows, elements)]
    np.testing.assert_allclose(products[1], products[0], atol=1e-4)
    assert np.abs(products[2] - products[0]).max() > 0.1
    assert (rows != matrix).mean() > 0.9 and (elements != matrix).mean() > 0.9
    assert (shuffle(matrix, seed=1) != rows).mean() > 0.9
    np.testing.assert_array_equal(np.sort(rows.sum(0)).round(3), np.sort(matrix.sum(0)).round(3))


def test_unknown_kinds():
    for call in (lambda: shuffle(table(), "rows"), lambda: standardize(table(), "glove")):
        with pytest.raises(ValueError, match="kind must be one of"):
            call()


def test_positions_are_equation_2():
    found = sinusoidal_positions(7, 6)
    for i in range(7):
        for j in range(6):
            function = math.cos if j % 2 else math.sin
            assert found[i, j] == pytest.approx(function(i / 10000 ** (j / 6)), abs=1e-12)
            assert sinusoidal_positions(7, 6, paired=True)[i, j] == pytest.approx(
                function(i / 10000 ** (j // 2 * 2 / 6)), abs=1e-12
            )


def test_the_papers_table_6():
    """GloVe's 0.37 becomes 6.39 and Xavier's 0.016 becomes 0.27 beside positions of 0.67, at D = 300."""
    generator = np.random.default_rng(0)
    for deviation, scaled in ((0.369, 6.39), (0.0156, 0.27)):
        found = absorption(generator.normal(0.053, deviation, (2000, 300)).astype(np.float32))
        assert found["embedding_sd"] == pytest.approx(scaled, rel=0.01)
        assert found["position_sd"] == pytest.approx(0.67, abs=0.005)
        assert found["ratio"] == pytest.approx(scaled / 0.67, rel=0.02)
    assert sinusoidal_positions(5000, 300, paired=True).mean() == pytest.approx(0.131, abs=0.001)
