"""Noise: streams, each distribution against its definition, and what a row may depend on."""

import math

import ml_dtypes
import numpy as np
import pytest

from wechsel_jax.initializers import draw_noise
from wechsel_jax.initializers.noise import KINDS, covariance, gram, keyed_generator, keyed_rows, moments

GOLDEN = [0.098396, 0.975766, 4.024111]


def correlated(rows=400, dimension=6, seed=0, dtype=np.float32):
    generator = np.random.default_rng(seed)
    mixing = generator.standard_normal((dimension, dimension))
    return (generator.standard_normal((rows, dimension)) @ mixing + 3).astype(dtype)


@pytest.mark.parametrize("shape", [(50, 6), (50,)])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_parity_noise_is_numpy_random_state_1234(shape, dtype):
    matrix = np.random.default_rng(0).standard_normal(shape).astype(dtype)
    expected = np.random.RandomState(1234).normal(matrix.mean(0), matrix.std(0), (80, *shape[1:])).astype(dtype)
    noise = draw_noise(matrix, 80, kind="source", seed=5, name="any", parity=True)
    np.testing.assert_array_equal(noise, expected)


def test_noise_rows_depend_on_seed_name_and_row_only():
    matrix = np.random.default_rng(0).standard_normal((50, 6)).astype(np.float32)
    draw = {"kind": "source", "seed": 1, "name": "wte"}
    noise = draw_noise(matrix, 30, **draw)
    np.testing.assert_array_equal(noise, draw_noise(matrix, 90, **draw)[:30])
    where = np.arange(30) % 3 == 0
    part = draw_noise(matrix, 30, **draw, where=where)
    np.testing.assert_array_equal(part[where], noise[where])
    assert not part[~where].any()
    assert len(np.unique(noise)) == noise.size
    for change in ({"seed": 2}, {"name": "wpe"}):
        assert not np.isin(draw_noise(matrix, 30, **{**draw, **change}), noise).any()


def test_noise_has_the_moments_of_each_dimension():
    scale, shift = np.array([0.1, 1, 5]), np.array([3, 0, -2])
    matrix = (np.random.default_rng(0).standard_normal((3000, 3)) * scale + shift).astype(ml_dtypes.bfloat16)
    noise = draw_noise(matrix, 20000, kind="source", seed=0, name="wte")
    wide = matrix.astype(np.float64)
    np.testing.assert_allclose(noise.mean(0), wide.mean(0), atol=4 * 5 / np.sqrt(20000))
    np.testing.assert_allclose(noise.std(0) / wide.std(0), 1, atol=4 / np.sqrt(2 * 20000))
    plain = draw_noise(matrix, 20000, kind="initializer_range", seed=0, name="wte", initializer_range=0.3)
    np.testing.assert_allclose(plain.mean(0), 0, atol=4 * 0.3 / np.sqrt(20000))
    np.testing.assert_allclose(plain.std(0), 0.3, rtol=4 / np.sqrt(2 * 20000))
    assert not draw_noise(matrix[:, 0], 7, kind="initializer_range", seed=0, name="bias").any()
    with pytest.raises(ValueError, match="kind must be"):
        draw_noise(matrix, 2, kind="uniform", seed=0, name="wte")


@pytest.mark.parametrize("uniform", [False, True])
def test_rows_are_the_streams_of_new_generators(uniform):
    ids = np.array([0, 3, 1023, 1024, 2100])
    found = {int(i): block[i % len(block)].copy() for some, block in keyed_rows(5, "wte", ids, 33, uniform) for i in some}
    assert sorted(found) == ids.tolist()
    for i, row in found.items():
        generator = keyed_generator(5, "wte", i)
        np.testing.assert_array_equal(row, generator.random(33) if uniform else generator.standard_normal(33))


def test_golden_rows():
    """Published checkpoints hold such rows: they must stay. From `keyed_generator(7, "input", 2).standard_normal(3)`."""
    matrix = np.array([[0, 0, 0], [2, 4, 6]], np.float32)
    noise = draw_noise(matrix, 4, kind="source", seed=7, name="input")
    np.testing.assert_allclose(noise[2], GOLDEN, atol=1e-6)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("shape", [(400, 6), (400,), (400, 2, 3)])
def test_a_row_of_any_kind_depends_on_its_id_only(kind, shape):
    matrix = correlated().reshape(400, -1)[:, : math.prod(shape[1:])].reshape(shape)
    draw = {"kind": kind, "seed": 1, "name": "wte"}
    noise = draw_noise(matrix, 1500, **draw)
    assert noise.shape == (1500, *shape[1:]) and noise.dtype == np.float32
    where = np.arange(1500) % 7 == 3
    part = draw_noise(matrix, 1500, **draw, where=where)
    assert part[where].tobytes() == noise[where].tobytes() and not part[~where].any()
    if kind != "xavier":
        assert draw_noise(matrix, 1200, **draw).tobytes() == noise[:1200].tobytes()
    distinct = len(np.unique(noise.reshape(1500, -1), axis=0))
    constant = kind == "mean" or (len(shape) == 1 and kind in ("xavier", "initializer_range"))
    assert distinct == (1 if constant else 1500)


def test_covariance_is_numpys():
    for dtype in (np.float64, np.float32):
        matrix = correlated(5000, 7, dtype=dtype)
        mean, found = covariance(matrix)
        np.testing.assert_allclose(mean, matrix.astype(np.float64).mean(0), rtol=1e-12)
        expected = np.cov(matrix.T.astype(np.float64), ddof=0)
        np.testing.assert_allclose(found, expected, atol=1e-12 * np.abs(expected).max())
        np.testing.assert_allclose(gram(matrix), matrix.T.astype(np.float64) @ matrix.astype(np.float64), rtol=1e-12)


@pytest.mark.parametrize("ddof", [0, 1])
def test_moments_are_numpys(ddof):
    matrix = correlated(50, 4) + np.float32(1000)
    mean, deviation = moments(matrix, ddof)
    np.testing.assert_allclose(mean, matrix.astype(np.float64).mean(0), rtol=1e-14)
    np.testing.assert_allclose(deviation, matrix.astype(np.float64).std(0, ddof=ddof), rtol=1e-9)


def test_multivariate_noise_is_the_symmetric_root_of_the_covariance():
    scipy_linalg = pytest.importorskip("scipy.linalg")
    matrix = correlated(dtype=np.float64)
    root = scipy_linalg.sqrtm(np.cov(matrix.T, ddof=0)).real
    noise = draw_noise(matrix, 20, kind="multivariate", seed=2, name="wte")
    for i in (0, 7, 19):
        expected = matrix.mean(0) + root @ keyed_generator(2, "wte", i).standard_normal(6)
        np.testing.assert_allclose(noise[i], expected, rtol=1e-9)


@pytest.mark.parametrize("dtype", [np.float32, ml_dtypes.bfloat16])
def test_multivariate_noise_has_the_covariance_of_the_source(dtype):
    matrix = correlated(dtype=dtype)
    wide = matrix.astype(np.float64)
    noise = draw_noise(matrix, 40000, kind="multivariate", seed=0, name="wte").astype(np.float64)
    spread = wide.std(0)
    np.testing.assert_allclose((noise.mean(0) - wide.mean(0)) / spread, 0, atol=5 / np.sqrt(40000))
    expected = np.cov(wide.T, ddof=0) / np.outer(spread, spread)
    assert np.abs(expected - np.eye(6)).max() > 0.3  # else independent dimensions would pass as well
    np.testing.assert_allclose(np.cov(noise.T) / np.outer(spread, spread), expected, atol=8 / np.sqrt(40000))


def test_a_singular_covariance_gives_noise_in_the_span_of_the_rows():
    matrix = np.random.default_rng(0).standard_normal((4, 50)).astype(np.float32)
    noise = draw_noise(matrix, 30, kind="multivariate", seed=0, name="wte") - matrix.mean(0)
    assert np.isfinite(noise).all() and np.linalg.matrix_rank(noise, tol=1e-3) == 3
    centred = matrix - matrix.mean(0)
    inside = noise @ np.linalg.pinv(centred, rcond=1e-4) @ centred
    np.testing.assert_allclose(inside, noise, atol=1e-3)


def test_the_kinds_that_have_a_closed_form():
    matrix = correlated(10, 3)
    wide = matrix.astype(np.float64)
    draw = {"seed": 1, "name": "wte"}
    normal = np.stack([keyed_generator(1, "wte", i).standard_normal(3) for i in range(5)])
    for kind, deviation in (("source", wide.std(0)), ("source_sample", wide.std(0, ddof=1))):
        np.testing.assert_allclose(draw_noise(matrix, 5, kind=kind, **draw), wide.mean(0) + deviation * normal, rtol=1e-5)
    np.testing.assert_allclose(draw_noise(matrix, 5, kind="mean", **draw), np.tile(wide.mean(0), (5, 1)), rtol=1e-6)
    uniform = np.stack([keyed_generator(1, "wte", i).random(3) for i in range(5)])
    limit = math.sqrt(6 / (5 + 3))
    np.testing.assert_allclose(draw_noise(matrix, 5, kind="xavier", **draw), (2 * uniform - 1) * limit, rtol=1e-5, atol=1e-7)
    bias = draw_noise(matrix[:, 0], 5, kind="multivariate", **draw)
    np.testing.assert_array_equal(bias, draw_noise(matrix[:, 0], 5, kind="source", **draw))
    seeded = draw_noise(matrix, 5, kind="source", **draw, parity=True, parity_seed=9)
    expected = np.random.RandomState(9).normal(matrix.mean(0), matrix.std(0), (5, 3)).astype(np.float32)
    np.testing.assert_array_equal(seeded, expected)


def test_a_multivariate_row_has_its_bits_even_alone():
    matrix = correlated(300, 130)
    noise = draw_noise(matrix, 1100, kind="multivariate", seed=1, name="wte")
    for wanted in ([5], [1023, 1024, 1099], range(3, 40)):
        where = np.isin(np.arange(1100), list(wanted))
        part = draw_noise(matrix, 1100, kind="multivariate", seed=1, name="wte", where=where)
        assert part[where].tobytes() == noise[where].tobytes()
