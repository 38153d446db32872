"""Plans: application against numpy in float64, exact copies, merging, files, and what a broken plan is told."""

import dataclasses

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.memory import most_held
from wechsel_jax.errors import UserError
from wechsel_jax.initializers import Side, TransferPlan
from wechsel_jax.initializers import plan as plan_module

FLOATS = [np.float32, np.float16, ml_dtypes.bfloat16, np.float64]


def some_plan(seed=0, targets=1500, sources=300, k=10) -> TransferPlan:
    generator = np.random.default_rng(seed)
    neighbors = generator.integers(sources, size=(targets, k))
    weights = generator.dirichlet(np.ones(k), targets)
    copy = np.where(generator.random(targets) < 0.3, generator.integers(sources, size=targets), -1)
    return TransferPlan.mixed(neighbors, weights).with_noise(generator.random(targets) < 0.2).with_copies(copy)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("shape", [(300, 24), (300,), (300, 3, 2)])
def test_apply_equals_float64(dtype, shape):
    plan = some_plan()
    generator = np.random.default_rng(1)
    matrix = generator.standard_normal(shape).astype(dtype)
    noise = generator.standard_normal((len(plan), *shape[1:])).astype(np.float32)
    result = plan.apply(matrix, noise)
    assert result.dtype == matrix.dtype and result.shape == noise.shape
    copied, mixed = plan.copy >= 0, plan.is_mixed
    assert result[copied].tobytes() == matrix[plan.copy[copied]].tobytes()
    assert result[plan.random].tobytes() == noise[plan.random].astype(dtype).tobytes()
    exact = np.einsum("tk,tk...->t...", plan.weights.astype(np.float64), matrix.astype(np.float64)[plan.neighbors])
    rounding = {2: ml_dtypes.finfo(dtype).eps}.get(np.dtype(dtype).itemsize, 4e-7)
    np.testing.assert_allclose(result[mixed].astype(np.float64), exact[mixed], atol=float(rounding) * 2, rtol=0)
    assert plan.counts() == {"copied": copied.sum(), "mixed": mixed.sum(), "random": plan.random.sum()}
    assert sum(plan.counts().values()) == len(plan) and min(plan.counts().values()) > 100


def with_regression(plan: TransferPlan, sources=300, rank=6, seed=5) -> TransferPlan:
    generator = np.random.default_rng(seed)
    basis = generator.standard_normal((rank, sources))
    # A source row that no feature is fitted on need not be read.
    basis[:, :50] = 0
    return plan.with_regression(generator.standard_normal((len(plan), rank)), basis)


@pytest.mark.parametrize("shape", [(300, 24), (300,)])
def test_a_regression_adds_weights_of_all_source_rows(shape, tmp_path):
    plan = with_regression(some_plan())
    plan.validate(300)
    matrix, noise = np.random.default_rng(1).standard_normal(shape), np.zeros((len(plan), *shape[1:]))
    weights = np.zeros((len(plan), 300))
    np.add.at(weights, (np.arange(len(plan))[:, None], plan.neighbors), plan.weights)
    weights += plan.coordinates.astype(np.float64) @ plan.basis
    result = plan.apply(matrix.astype(np.float32), noise)
    np.testing.assert_allclose(result[plan.is_mixed], (weights @ matrix)[plan.is_mixed], atol=2e-4)
    assert not plan.coordinates[~plan.is_mixed].any()
    plan.save(tmp_path / "plan.npz")
    again = TransferPlan.load(tmp_path / "plan.npz")
    assert again.apply(matrix.astype(np.float32), noise).tobytes() == result.tobytes()


def test_a_regression_is_summed_in_float64():
    plan = with_regression(some_plan())
    matrix = np.random.default_rng(1).standard_normal((300, 24)).astype(np.float32)
    plan = dataclasses.replace(plan, weights=np.zeros_like(plan.weights))
    low_rank = (plan.basis.astype(np.float64) @ matrix).astype(np.float32)
    exact = (plan.coordinates.astype(np.float64) @ low_rank).astype(np.float32)
    result = plan.apply(matrix, np.zeros((len(plan), 24)))
    mixed = np.flatnonzero(plan.is_mixed)
    np.testing.assert_array_equal(result[mixed], exact[mixed])
    assert len(mixed) > 100


def test_a_row_that_is_copied_or_noise_has_no_regression():
    plan = with_regression(some_plan())
    some = np.flatnonzero(plan.is_mixed)[:2]
    plan = plan.with_copies(np.where(np.arange(len(plan)) == some[0], 4, -1)).with_noise(np.arange(len(plan)) == some[1])
    assert not plan.coordinates[some].any()
    plan.validate(300)
    # A row may have a regression and no neighbors.
    alone = TransferPlan.mixed(np.zeros((3, 0)), np.zeros((3, 0))).with_regression(np.ones((3, 1)), np.ones((1, 4)))
    alone.validate(4)
    np.testing.assert_array_equal(alone.apply(np.arange(4, dtype=np.float32)), 6)
    assert alone.merged().counts()["mixed"] == 3


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"basis": None}, "not both"),
        ({"coordinates": np.ones((1500, 5), np.float32)}, "do not fit"),
        ({"basis": np.ones((6, 299), np.float32)}, "do not fit"),
        ({"basis": np.full((6, 300), np.nan, np.float32)}, "not finite"),
        ({"coordinates": np.full((1500, 6), np.inf, np.float32)}, "not finite"),
        ({"coordinates": np.ones((1500, 6), np.float32)}, "is copied or random, and has weights"),
        ({"coordinates": np.ones((1500, 6), np.float64)}, "float64"),
    ],
)
def test_a_broken_regression_is_refused(change, message, tmp_path):
    plan = dataclasses.replace(with_regression(some_plan()), **change)
    with pytest.raises(ValueError, match=message):
        plan.validate(300)


@pytest.mark.parametrize("dtype", [np.uint16, np.uint32])
def test_copies_keep_every_bit_pattern(dtype):
    bits = np.random.default_rng(0).integers(0, np.iinfo(dtype).max, (64, 8), dtype=dtype)
    matrix = bits.view({2: ml_dtypes.bfloat16, 4: np.float32}[bits.itemsize])
    copy = np.random.default_rng(1).permutation(64)
    np.testing.assert_array_equal(TransferPlan.copied(copy).apply(matrix).view(dtype), bits[copy])


def test_a_row_does_not_depend_on_its_block():
    plan = some_plan()
    matrix = np.random.default_rng(3).standard_normal((300, 16)).astype(np.float32)
    noise = np.zeros((len(plan), 16), np.float32)
    part = np.arange(77, 500)
    fields = {name: getattr(plan, name)[part] for name in ("copy", "neighbors", "weights", "random")}
    assert TransferPlan(**fields).apply(matrix, noise[part]).tobytes() == plan.apply(matrix, noise)[part].tobytes()


def test_noise_is_needed_only_where_rows_are_random():
    matrix = np.ones((4, 2), np.float32)
    assert TransferPlan.copied(np.arange(4)).apply(matrix).shape == (4, 2)
    with pytest.raises(ValueError, match="need noise of shape"):
        TransferPlan.all_random(4).apply(matrix)
    with pytest.raises(ValueError, match="need noise of shape"):
        TransferPlan.all_random(4).apply(matrix, np.ones((4, 3), np.float32))


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 2**32 - 1), st.integers(0, 12), st.booleans())
def test_a_plan_survives_its_file(tmp_path_factory, seed, k, regression):
    plan = some_plan(seed, targets=40, sources=20, k=k) if k else TransferPlan.all_random(seed % 7)
    plan = with_regression(plan, sources=20) if regression else plan
    path = tmp_path_factory.mktemp("plan") / "transfer_plan.npz"
    plan.save(path)
    loaded = TransferPlan.load(path)
    for field in dataclasses.fields(plan):
        before, after = getattr(plan, field.name), getattr(loaded, field.name)
        if before is None or after is None:
            absent = ("head_weights",) if regression else ("head_weights", "coordinates", "basis")
            assert before is after and field.name in absent
            continue
        assert before.dtype == after.dtype and before.shape == after.shape and before.tobytes() == after.tobytes()


def test_the_file_holds_the_contract(tmp_path):
    some_plan().save(tmp_path / "transfer_plan.npz")
    with np.load(tmp_path / "transfer_plan.npz", allow_pickle=False) as file:
        described = {name: (str(file[name].dtype), file[name].shape) for name in file}
    assert described == {
        "copy": ("int32", (1500,)),
        "neighbors": ("int32", (1500, 10)),
        "weights": ("float32", (1500, 10)),
        "random": ("bool", (1500,)),
    }


def _write_broken(path, kind):
    some_plan().save(path)
    whole = path.read_bytes()
    arrays = dict(np.load(path))
    if kind == "truncated":
        path.write_bytes(whole[: len(whole) // 2])
    elif kind == "flipped":
        middle = len(whole) // 2
        path.write_bytes(whole[:middle] + bytes(b ^ 0xFF for b in whole[middle : middle + 64]) + whole[middle + 64 :])
    elif kind == "text":
        path.write_text("not a plan")
    elif kind == "empty":
        path.write_bytes(b"")
    elif kind == "array":
        with path.open("wb") as handle:
            np.save(handle, np.arange(3))
    elif kind == "pickled":
        np.savez(path, **{**arrays, "copy": np.array([object()] * 3)})
    elif kind == "missing":
        np.savez(path, copy=arrays["copy"])
    elif kind == "directory":
        path.unlink()
        path.mkdir()
    elif kind == "inconsistent":
        np.savez(path, **{**arrays, "random": np.ones(1500, bool)})


@pytest.mark.parametrize(
    "kind", ["truncated", "flipped", "text", "empty", "array", "pickled", "missing", "directory", "inconsistent"]
)
def test_a_broken_file_is_named(tmp_path, kind):
    path = tmp_path / "transfer_plan.npz"
    _write_broken(path, kind)
    with pytest.raises(UserError) as caught:
        TransferPlan.load(path)
    assert str(caught.value).startswith(f"{path}: ") and "expected a transfer_plan.npz" in str(caught.value)
    assert "pickle" not in str(caught.value)
    if kind == "missing":
        assert "is no transfer plan: holds no array neighbors" in str(caught.value)


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(UserError, match="no such file; expected a transfer_plan"):
        TransferPlan.load(tmp_path / "none.npz")


@pytest.mark.parametrize(
    "change,message",
    [
        ({"copy": np.array([5, -1, -1], np.int32)}, "row 0 copies no row of a source of 5"),
        ({"copy": np.array([0, -1, -1], np.int64)}, "copy is int64"),
        ({"neighbors": np.full((3, 2), 5, np.int32)}, "row 0 has a neighbor outside"),
        ({"neighbors": np.zeros((3, 1), np.int32)}, "do not fit together"),
        ({"weights": np.array([[1, 0], [np.nan, 0], [0, 0]], np.float32)}, "row 1 has a weight that is not finite"),
        ({"weights": np.array([[1, 0], [0, 0], [0, 0]], np.float32)}, "row 1 is neither"),
        ({"weights": np.array([[1, 0], [1, 0], [1, 0]], np.float32)}, "row 2 is copied or random, and has weights"),
        ({"random": np.array([True, False, True])}, "row 0 is copied or random, and has weights"),
    ],
)
def test_a_broken_plan_is_refused(change, message):
    good = TransferPlan.mixed(np.zeros((3, 2)), np.ones((3, 2))).with_noise(np.array([False, False, True]))
    good.validate(5)
    with pytest.raises(ValueError, match=message):
        dataclasses.replace(good, **change).validate(5)


def test_special_tokens_by_role_and_by_spelling(fakes):
    bert_roles = {"[CLS]": {"cls"}, "[SEP]": {"sep"}, "[PAD]": {"pad"}, "<unk>": {"unk"}}
    source, target = Side(fakes.vocabulary("s", 12, fakes.roberta_roles)), Side(fakes.vocabulary("t", 9, bert_roles))
    plan = TransferPlan.all_random(9)
    assert plan.with_special_tokens(source, target).copy.tolist() == [0, 2, 1, 3, -1, -1, -1, -1, -1]
    assert plan.with_special_tokens(source, target, parity=True).copy.tolist() == [-1, -1, -1, 3, -1, -1, -1, -1, -1]


def _slow_apply(plan, matrix):
    """The sum as one program over the whole source table, one dimension after the other."""
    table = matrix.reshape(len(matrix), -1).astype(np.float32)
    return (
        np.asarray(plan_module._mix(table, plan.neighbors, plan.weights))
        .astype(matrix.dtype)
        .reshape(len(plan), *matrix.shape[1:])
    )


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("shape", [(300, 37), (300,), (300, 3, 2)])
def test_slices_of_dimensions_do_not_change_a_bit(monkeypatch, dtype, shape):
    generator = np.random.default_rng(4)
    plan = TransferPlan.mixed(generator.integers(250, size=(1100, 7)), generator.standard_normal((1100, 7)))
    matrix = generator.standard_normal(shape).astype(dtype)
    expected = _slow_apply(plan, matrix)
    for limit in (1 << 28, 5000, 1):
        monkeypatch.setattr(plan_module, "_SLICE_BYTES", limit)
        assert plan.apply(matrix).tobytes() == expected.tobytes()


def test_a_neighbor_without_weight_is_not_read():
    """Rows with fewer neighbors than others are filled up with row 0, which may hold anything."""
    matrix = np.full((4, 3), np.nan, np.float32)
    matrix[1:] = 1
    plan = TransferPlan.mixed(np.array([[1, 0], [2, 3]]), np.array([[0.5, 0.0], [0.5, 0.25]]))
    np.testing.assert_array_equal(plan.apply(matrix), [[0.5] * 3, [0.75] * 3])


def test_apply_holds_a_slice_of_the_source_and_no_more(monkeypatch):
    generator = np.random.default_rng(5)
    matrix = generator.standard_normal((4000, 512)).astype(ml_dtypes.bfloat16)
    plan = TransferPlan.mixed(generator.integers(4000, size=(64, 3)), np.ones((64, 3)))
    plan = plan.with_copies(np.where(np.arange(64) < 5, 1, -1))
    monkeypatch.setattr(plan_module, "_SLICE_BYTES", 1 << 16)
    # A float32 copy of the table would take twice matrix.nbytes.
    assert most_held(lambda: plan.apply(matrix)) < matrix.nbytes // 4


def _dense(plan, sources):
    out = np.zeros((len(plan), sources))
    np.add.at(out, (np.arange(len(plan))[:, None], plan.neighbors), plan.weights.astype(np.float64))
    return out


@settings(max_examples=50, deadline=None)
@given(st.integers(0, 2**32 - 1), st.integers(1, 9), st.integers(1, 6))
def test_a_merged_plan_means_the_same(seed, k, sources):
    generator = np.random.default_rng(seed)
    weights = generator.integers(-2, 3, (30, k)) / 4
    weights[~weights.any(axis=1), 0] = 1
    plan = TransferPlan.mixed(generator.integers(sources, size=(30, k)), weights)
    plan = plan.with_copies(np.where(generator.random(30) < 0.2, 0, -1)).with_noise(generator.random(30) < 0.2)
    merged = plan.merged()
    merged.validate(sources)
    dense = _dense(plan, sources)
    np.testing.assert_array_equal(_dense(merged, sources), dense)
    cancelled = plan.is_mixed & ~dense.any(axis=1)
    np.testing.assert_array_equal(merged.random, plan.random | cancelled)
    np.testing.assert_array_equal(merged.copy, plan.copy)
    support = (merged.weights != 0).sum(axis=1)
    assert merged.weights.shape[1] == support.max(initial=0) == (dense != 0).sum(axis=1).max(initial=0)
    for row, count in enumerate(support):
        kept, ids = merged.weights[row, :count], merged.neighbors[row, :count]
        order = sorted(range(count), key=lambda i: (-abs(kept[i]), ids[i]))
        assert order == list(range(count)) and not merged.neighbors[row, count:].any()


def test_a_plan_without_neighbors_merges():
    assert TransferPlan.all_random(3).merged().counts() == {"copied": 0, "mixed": 0, "random": 3}


def test_a_plan_of_many_copies_and_one_wide_row_is_read_again(tmp_path):
    """As of a source that keeps its tokens and gets few new ones."""
    rows, width = 80_000, 256
    ids, weights = np.zeros((rows, width), np.int32), np.zeros((rows, width), np.float32)
    ids[-1], weights[-1] = np.arange(width), 1 / width
    copy = np.arange(rows, dtype=np.int32)
    copy[-1] = -1
    plan = TransferPlan.mixed(ids, weights).with_copies(copy)
    plan.save(tmp_path / "plan.npz")
    assert 2 * plan.weights.nbytes > (1 << 26) + 256 * (tmp_path / "plan.npz").stat().st_size
    np.testing.assert_array_equal(TransferPlan.load(tmp_path / "plan.npz").weights, plan.weights)
