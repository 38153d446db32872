import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from wechsel_jax.initializers import TransferPlan
from wechsel_jax.inspection.tables import compared, duplicates, equal_origins, mixture, statistics


@settings(max_examples=25, deadline=None)
@given(
    st.integers(1, 40), st.integers(1, 9), st.sampled_from((np.float16, ml_dtypes.bfloat16, np.float32, np.float64)),
    st.integers(0, 2**32 - 1),
)  # fmt: skip
def test_statistics_are_numpys_in_float64(rows, dimensions, dtype, seed):
    table = (np.random.default_rng(seed).normal(3.0, 2.0, (rows, dimensions))).astype(dtype)
    wide = table.astype(np.float64)
    found, lengths = statistics(table), np.linalg.norm(wide, axis=1)
    assert found["norm_mean"] == pytest.approx(lengths.mean()) and found["norm_std"] == pytest.approx(lengths.std(), abs=1e-9)
    assert found["mean"] == pytest.approx(wide.mean()) and found["std"] == pytest.approx(wide.std(), abs=1e-9)
    np.testing.assert_allclose(found["dimension_std"], wide.std(axis=0), atol=1e-9)
    assert found["norm_quantiles"]["25"] == pytest.approx(np.percentile(lengths, 25))


def test_statistics_do_not_depend_on_blocks_and_survive_a_mean_far_from_zero(monkeypatch):
    table = np.random.default_rng(0).normal(1e4, 1e-2, (100, 5))
    whole = statistics(table)
    assert whole["dimension_std"] == pytest.approx(table.std(axis=0).tolist(), rel=1e-6)
    monkeypatch.setattr("wechsel_jax.inspection.tables._ROWS_AT_ONCE", 7)
    again = statistics(table)
    assert again["dimension_std"] == pytest.approx(whole["dimension_std"], rel=1e-6)
    assert again["norm_quantiles"] == whole["norm_quantiles"]


def test_rows_that_are_not_finite_are_counted_and_left_out():
    table = np.arange(12, dtype=np.float32).reshape(4, 3)
    broken = np.vstack([table, [[np.nan, 0, 0], [np.inf, 1, 1]]]).astype(np.float32)
    found, right = statistics(broken), statistics(table)
    assert found["not_finite_rows"] == 2 and right["not_finite_rows"] == 0
    assert found["norm_mean"] == right["norm_mean"] and found["std"] == right["std"] and found["zero_rows"] == 0
    assert statistics(np.full((2, 2), np.nan))["not_finite_rows"] == 2


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16, np.float32, np.float64])
def test_twins_are_all_rows_that_equal_another(dtype):
    table = np.random.default_rng(0).normal(size=(50, 8)).astype(dtype)
    assert duplicates(table) == 0
    table[[3, 20, 41]] = table[7]
    table[49] = table[0]
    assert duplicates(table) == 6 and statistics(table)["duplicate_share"] == pytest.approx(6 / 50)


def test_ratios_of_a_scaled_table_are_its_scale():
    table = np.random.default_rng(0).normal(0.5, 1.0, (200, 6))
    scaled = compared("wte", "input", statistics(table * 3), statistics(table))
    assert [scaled["ratios"][name] for name in ("norm_mean", "norm_std", "std", "dimension_std_min", "dimension_std_max")] == (
        pytest.approx([3.0] * 5)
    )
    assert scaled["ratios"]["mean_shift"] == pytest.approx(2 * table.mean() / table.std())
    assert compared("wte", "input", statistics(table), None)["ratios"] is None
    recorded = compared("wte", "input", statistics(table), {"norm_mean": 2.0, "norm_std": 0.5})
    assert set(recorded["ratios"]) == {"norm_mean", "norm_std"}
    bias = statistics(np.array([1.0, -2.0]))
    assert bias["norm_mean"] == 1.5 and bias["duplicates"] is None


def test_a_mixture_is_described_by_its_weights():
    weights = np.array([[0.5, 0.5, 0], [1, 0, 0], [2, -1, 0], [0, 0, 0]], np.float32)
    plan = TransferPlan.mixed(np.array([[4, 5, 0], [4, 0, 0], [6, 7, 0], [0, 0, 0]]), weights)
    plan = plan.with_noise(np.array([False, False, False, True]))
    found = mixture(plan)
    # exp(entropy): 2, 1 and that of (2/3, 1/3).
    share = np.array([2 / 3, 1 / 3])
    assert found["effective_neighbors"] == pytest.approx((2 + 1 + np.exp(-(share * np.log(share)).sum())) / 3)
    assert found["support_max"] == 2 and found["support_mean"] == pytest.approx(5 / 3)
    assert found["negative_share"] == pytest.approx(1 / 5) and found["source_tokens"] == 4
    assert found["largest_absolute_sum"] == 3 and found["largest_absolute_sum_row"] == 2
    assert mixture(TransferPlan.all_random(3)) is None


def test_the_order_of_neighbors_and_padding_make_no_other_row():
    weights = np.array([[0.25, 0.75, 0], [0.75, 0, 0.25], [0, 0.25, 0.75], [0.75, 0.25, 0]], np.float32)
    plan = TransferPlan.mixed(np.array([[0, 5, 0], [5, 0, 0], [3, 0, 5], [0, 5, 0]]), weights)
    assert equal_origins(plan) == 3
    assert equal_origins(TransferPlan.copied(np.array([1, 2, 1, -1, -1]))) == 2


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 2**32 - 1))
def test_equal_origins_are_the_twins_of_whatever_the_plan_makes(seed):
    rng = np.random.default_rng(seed)
    plan = TransferPlan.mixed(rng.integers(0, 3, (30, 2)), rng.choice([0.25, 0.5, 1.0], (30, 2)))
    plan = plan.with_noise(np.arange(30) < 4).with_copies(np.where(np.arange(30) > 20, rng.integers(0, 3, 30), -1))
    # A neighbor that is named twice makes the same row in other ways; methods name each once.
    distinct = plan.neighbors[:, 0] != plan.neighbors[:, 1]
    kept = TransferPlan(
        *(np.asarray(x)[distinct | (plan.copy >= 0)] for x in (plan.copy, plan.neighbors, plan.weights, plan.random))
    )
    made = kept.apply(rng.normal(size=(3, 8)).astype(np.float32), rng.normal(size=(len(kept), 8)).astype(np.float32))
    assert equal_origins(kept) == duplicates(np.round(made, 4))
