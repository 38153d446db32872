"""Distributions of tables against numpy and scikit-learn, transforms against `initializers.transforms`."""

import dataclasses

import ml_dtypes
import numpy as np
import pytest
from sklearn.metrics.pairwise import cosine_similarity

from wechsel_jax.errors import UserError
from wechsel_jax.initializers import transforms
from wechsel_jax.inspection import distribution as module
from wechsel_jax.inspection.distribution import STEPS, TableRows, distribution, moments_of, transformed

SIZE, DIMENSION = 300, 20


@pytest.fixture(params=[1 << 24, 2000], ids=["one-block", "many-blocks"], autouse=True)
def blocks(request, monkeypatch):
    monkeypatch.setattr(module, "_BLOCK_BYTES", request.param)


def table(dtype=np.float32) -> np.ndarray:
    generator = np.random.default_rng(0)
    made = generator.standard_normal((SIZE, DIMENSION)) * np.linspace(0.2, 3, DIMENSION) + 0.7
    return (made * generator.uniform(0.5, 2, (SIZE, 1))).astype(dtype)


def assert_is_numpys(found, wide: np.ndarray) -> None:
    lengths = np.linalg.norm(wide, axis=1)
    cosines = cosine_similarity(wide)[~np.eye(len(wide), dtype=bool)]
    limit = np.sqrt(6 / (SIZE + DIMENSION))
    expected = {
        **{"least": wide.min(), "largest": wide.max(), "mean": wide.mean(), "sd": wide.std(ddof=1)},
        **{"norm_least": lengths.min(), "norm_mean": lengths.mean(), "norm_largest": lengths.max()},
        **{"anisotropy": cosines.mean(), "xavier_limit": limit, "outside": (np.abs(wide) > limit).mean()},
        **{"ratio": wide.std(ddof=1) / np.sqrt(2 / (SIZE + DIMENSION)), "rows": len(wide)},
    }
    for name, value in expected.items():
        assert getattr(found, name) == pytest.approx(value, rel=1e-9, abs=1e-12), name
    assert found.counts == tuple(np.histogram(wide, len(found.counts), found.bins)[0])


@pytest.mark.parametrize("dtype", [np.float32, np.float16, ml_dtypes.bfloat16, np.float64])
def test_numbers_are_numpys(dtype):
    found = distribution(TableRows.of(table(dtype), "t"))
    assert_is_numpys(found, table(dtype).astype(np.float64))
    low, high = found.bins
    assert low == max(found.least, found.mean - 4 * found.sd) and high == min(found.largest, found.mean + 4 * found.sd)


def test_a_mean_far_from_zero_costs_no_digits():
    far = table(np.float64) + 1e6
    assert distribution(TableRows.of(far, "t")).sd == pytest.approx(far.std(ddof=1), rel=1e-9)


@pytest.mark.parametrize("dtype", [np.float32, ml_dtypes.bfloat16])
@pytest.mark.parametrize("step", STEPS)
def test_a_step_is_that_of_the_transforms(step, dtype):
    plain = table(dtype)
    if step == "scaled":
        expected = (plain.astype(np.float64) * np.sqrt(DIMENSION)).astype(dtype)
    elif step in transforms.SHUFFLES:
        expected = transforms.shuffle(plain, step, seed=5)
    else:
        expected = transforms.standardize(plain, step, seed=5, name="table")
    rows = transformed(TableRows.of(plain, "t"), step, seed=5)
    assert rows.dtype == dtype
    read = np.concatenate([rows.read(np.arange(7)), rows.read(np.arange(7, SIZE))])
    assert read.dtype == dtype
    # Moments added up in other blocks may round an entry to the number next to it.
    atol = float(ml_dtypes.finfo(dtype).eps) * np.abs(expected.astype(np.float64)).max() * 2
    np.testing.assert_allclose(
        read.astype(np.float64), expected.astype(np.float64), rtol=float(ml_dtypes.finfo(dtype).eps), atol=atol
    )
    assert_is_numpys(distribution(rows, steps=(step,)), read.astype(np.float64))
    np.testing.assert_array_equal(rows.read(np.array([3, 11, 200])), read[[3, 11, 200]])


def test_a_group_is_its_rows_in_the_range_of_the_whole_table():
    where = np.arange(SIZE) % 3 == 0
    assert_is_numpys(distribution(TableRows.of(table(), "t"), where=where), table()[where].astype(np.float64))


def test_rows_of_zeros_point_nowhere():
    plain = table()
    plain[[4, 9]] = 0
    found = distribution(TableRows.of(plain, "t"))
    others = np.delete(plain, [4, 9], axis=0).astype(np.float64)
    assert found.zero_rows == 2 and found.norm_least == 0
    assert found.anisotropy == pytest.approx(cosine_similarity(others)[~np.eye(SIZE - 2, dtype=bool)].mean(), rel=1e-9)
    assert distribution(TableRows.of(plain[4:6], "t")).anisotropy is None


def test_moments_are_numpys():
    mean, covariance = moments_of(TableRows.of(table(), "t"))
    wide = table().astype(np.float64)
    np.testing.assert_allclose(mean, wide.mean(axis=0), rtol=1e-10)
    np.testing.assert_allclose(covariance, np.cov(wide, rowvar=False, ddof=0), rtol=1e-9, atol=1e-12)


def test_what_cannot_be_measured_is_one_line():
    wrong = table()
    wrong[17, 3] = np.nan
    with pytest.raises(UserError, match=r"^t: row 17 of words: NaN or infinity; expected finite numbers$"):
        distribution(TableRows.of(wrong, "t"))
    with pytest.raises(UserError, match=r"^t: words: all entries are the same, 1; "):
        transformed(TableRows.of(np.ones((4, 3), np.float32), "t"), "pretrained_xavier")
    with pytest.raises(UserError, match="has no copied rows"):
        distribution(TableRows.of(table(), "t"), group="copied", where=np.zeros(SIZE, bool))
    with pytest.raises(UserError, match="too many to shuffle"):
        transformed(dataclasses.replace(TableRows.of(table(), "t"), shape=(1 << 20, 1024)), "elements")


def test_no_more_than_a_block_is_read_at_once():
    asked = []

    def read(ids: np.ndarray) -> np.ndarray:
        asked.append(len(ids))
        return table()[ids]

    rows = dataclasses.replace(TableRows.of(table(), "t"), read=read)
    for step in ("scaled", "pretrained_xavier", "rows_columns"):
        distribution(transformed(rows, step))
    assert max(asked) <= max(module._BLOCK_BYTES // (8 * DIMENSION), 1)
