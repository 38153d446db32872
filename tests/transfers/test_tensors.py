"""Safetensors files: the safetensors package is the oracle; damage of any kind is named, never a traceback."""

import json
import struct

import ml_dtypes
import numpy as np
import pytest
import safetensors
import safetensors.numpy
from hypothesis import given
from hypothesis import strategies as st

from tests.memory import most_held
from wechsel_jax.checkpoint import tensors as tensor_module
from wechsel_jax.checkpoint.tensors import DTYPES, ComputedTensor, TensorFiles, read_header, write_shards, write_tensors
from wechsel_jax.errors import UserError


def arrays() -> dict[str, np.ndarray]:
    random = np.random.default_rng(0)
    return {
        "odd": np.array([True, False, True]),
        "matrix": random.standard_normal((5, 3), np.float32),
        "bf16": random.standard_normal((4, 2)).astype(ml_dtypes.bfloat16),
        "half": random.standard_normal(7).astype(np.float16),
        "ids": np.arange(6, dtype=np.int64).reshape(2, 3),
        "scalar": np.float64(3.5).reshape(()),
        "nothing": np.zeros((0, 4), np.float32),
        "transposed": np.arange(6, dtype=np.float32).reshape(2, 3).T,
        "größe": np.arange(3, dtype=np.uint8),
    }


def test_the_safetensors_package_reads_what_is_written(tmp_path):
    write_tensors(tmp_path / "t.safetensors", arrays())
    found = safetensors.numpy.load_file(tmp_path / "t.safetensors")
    assert found.keys() == arrays().keys()
    for name, array in arrays().items():
        assert found[name].dtype == array.dtype and np.array_equal(found[name], array), name


def test_what_the_safetensors_package_writes_is_read_as_memory_maps(tmp_path):
    expected = {name: np.ascontiguousarray(array).reshape(array.shape) for name, array in arrays().items()}
    safetensors.numpy.save_file(expected, tmp_path / "model.safetensors")
    found = TensorFiles.open(tmp_path)
    for name, array in expected.items():
        assert found[name].dtype == array.dtype and found[name].shape == array.shape
        assert np.array_equal(found[name].read(), array), name
    assert isinstance(found["matrix"].read().base, np.memmap | np.ndarray) and not found["matrix"].read().flags.writeable


def test_every_type_of_the_format_survives_a_copy_byte_for_byte(tmp_path):
    random = np.random.default_rng(1)
    tensors = {code: random.integers(0, 2, (3, 8)).astype(dtype) for code, dtype in DTYPES.items()}
    write_tensors(tmp_path / "a.safetensors", tensors)
    first = read_header(tmp_path / "a.safetensors")
    write_tensors(tmp_path / "b.safetensors", first)
    assert (tmp_path / "a.safetensors").read_bytes() == (tmp_path / "b.safetensors").read_bytes()
    for code, array in tensors.items():
        assert first[code].code == code and first[code].read().tobytes() == array.tobytes()


def test_tensors_of_an_unknown_type_are_copied_and_not_computed_with(tmp_path):
    header = json.dumps({"x": {"dtype": "F4", "shape": [4], "data_offsets": [0, 2]}}).encode()
    (tmp_path / "a.safetensors").write_bytes(struct.pack("<Q", len(header)) + header + b"ab")
    stored = read_header(tmp_path / "a.safetensors")
    write_tensors(tmp_path / "b.safetensors", stored)
    assert (tmp_path / "b.safetensors").read_bytes().endswith(b"ab")
    with pytest.raises(UserError, match=r"a\.safetensors: .*F4"):
        stored["x"].read()


def test_writing_holds_one_tensor_at_a_time(tmp_path):
    size = 1 << 20
    write_tensors(tmp_path / "model.safetensors", {f"t{i}": np.full(size, i, np.float32) for i in range(8)})
    stored = dict(TensorFiles.open(tmp_path))
    computed = {
        f"c{i}": ComputedTensor(np.dtype(np.float32), (size,), lambda i=i: np.full(size, i, np.float32)) for i in range(8)
    }
    assert most_held(lambda: write_tensors(tmp_path / "out.safetensors", stored | computed)) < 1.5 * max(4 * size, 1 << 24)
    with safetensors.safe_open(tmp_path / "out.safetensors", "np") as found:
        assert found.get_tensor("t5")[0] == 5 and found.get_tensor("c7")[-1] == 7


def test_shards_are_read_through_their_index(tmp_path):
    parts = {"one.safetensors": {"a": np.ones(3, np.float32)}, "two.safetensors": {"b": np.zeros((2, 2), np.float16)}}
    for name, tensors in parts.items():
        write_tensors(tmp_path / name, tensors)
    index = {"weight_map": {name: file for file, tensors in parts.items() for name in tensors}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    found = TensorFiles.open(tmp_path)
    assert list(found) == ["a", "b"] and found["b"].file.name == "two.safetensors" and found["a"].read().sum() == 3
    # transformers leaves the index behind when it saves the model as one file, and reads that file.
    write_tensors(tmp_path / "model.safetensors", {"a": np.zeros(3, np.float32)})
    assert [*TensorFiles.open(tmp_path)] == ["a"] and not TensorFiles.open(tmp_path)["a"].read().any()


@pytest.mark.parametrize("limit", [1, 40, 64, 100, 1000])
def test_shards_hold_every_tensor_once_and_no_more_than_they_may(tmp_path, limit):
    tensors = {f"t{i}": np.full(8 + i, i, np.float32) for i in range(6)}
    write_shards(tmp_path, tensors, max_shard_bytes=limit)
    files = sorted(tmp_path.glob("*.safetensors"))
    found = {file: safetensors.numpy.load_file(file) for file in files}
    assert sum(len(part) for part in found.values()) == 6 and all(len(part) for part in found.values())
    assert all(len(part) == 1 or sum(array.nbytes for array in part.values()) <= limit for part in found.values())
    sizes = [sum(array.nbytes for array in part.values()) for part in found.values()]
    assert all(one + tensors[next(iter(found[file]))].nbytes > limit for one, file in zip(sizes, files[1:], strict=False))
    again = TensorFiles.open(tmp_path)
    assert list(again) == list(tensors) and all(np.array_equal(again[name].read(), tensors[name]) for name in tensors)
    if len(files) == 1:
        assert files[0].name == "model.safetensors" and not (tmp_path / "model.safetensors.index.json").exists()
        return
    assert [file.name for file in files] == [f"model-{i + 1:05d}-of-{len(files):05d}.safetensors" for i in range(len(files))]
    index = json.loads((tmp_path / "model.safetensors.index.json").read_text())
    assert index["metadata"]["total_size"] == sum(array.nbytes for array in tensors.values())


def test_labels_decide_which_tensors_share_a_shard(tmp_path):
    tensors = {name: np.ones(3, np.float16) for name in "abcd"}
    write_shards(tmp_path, tensors, {"a": "two", "b": "one", "c": "two", "d": "one"}, max_shard_bytes=1)
    places = json.loads((tmp_path / "model.safetensors.index.json").read_text())["weight_map"]
    assert places == {name: f"model-0000{1 if name in 'bd' else 2}-of-00002.safetensors" for name in "abcd"}


def test_blocks_are_the_first_bytes(tmp_path, monkeypatch):
    monkeypatch.setattr(tensor_module, "_COPY_BYTES", 16)
    array = np.arange(10, dtype=np.float32)
    write_tensors(tmp_path / "a.safetensors", {"before": np.zeros(2), "a": array, "empty": array[:0]})
    stored = read_header(tmp_path / "a.safetensors")
    assert [len(block) for block in stored["a"].blocks()] == [16, 16, 8] and not list(stored["empty"].blocks())
    assert b"".join(stored["a"].blocks()) == array.tobytes()
    assert b"".join(stored["a"].blocks(20)) == array[:5].tobytes() and b"".join(stored["a"].blocks(99)) == array.tobytes()


@pytest.mark.parametrize("dtype", [np.float16, np.float32, ml_dtypes.bfloat16])
@pytest.mark.parametrize("place", [0, 9, 29])
@pytest.mark.parametrize("value", [np.nan, -np.inf])
def test_a_computed_tensor_that_is_not_finite_is_named(tmp_path, monkeypatch, dtype, place, value):
    monkeypatch.setattr(tensor_module, "_COPY_BYTES", 16)
    array = np.full((10, 3), np.finfo(np.float16).max, np.float32).astype(dtype)
    tensors = {"a": np.zeros(2), "wte.weight": ComputedTensor(np.dtype(dtype), (10, 3), lambda: array)}
    write_tensors(tmp_path / "a.safetensors", tensors)
    array.reshape(-1)[place] = value
    with pytest.raises(UserError, match=r"tensor wte\.weight: comes out as NaN or infinity in .*float"):
        write_tensors(tmp_path / "a.safetensors", tensors)


@pytest.mark.parametrize(
    ("index", "message"),
    [
        ("{", "not JSON.*an index"),
        ('{"weight_map": {}}', "not an index"),
        ('{"weight_map": {"a": "../one.safetensors"}}', "not an index"),
        ('{"weight_map": {"a": 3}}', "not an index"),
        ('{"weight_map": {"a": "three.safetensors"}}', r"three\.safetensors: no such file"),
        ('{"weight_map": {"z": "one.safetensors"}}', r"one\.safetensors: has no tensor z"),
    ],
)
def test_a_wrong_index_is_named(tmp_path, index, message):
    write_tensors(tmp_path / "one.safetensors", {"a": np.ones(3, np.float32)})
    (tmp_path / "model.safetensors.index.json").write_text(index)
    with pytest.raises(UserError, match=message):
        TensorFiles.open(tmp_path)


def _file(header: object, data: bytes = b"") -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data


def _entry(start: int, stop: int, shape: object = (2,), dtype: str = "F32") -> dict:
    return {"dtype": dtype, "shape": shape, "data_offsets": [start, stop]}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "empty"),
        (b"1234", "only 4 bytes"),
        (b"PK\x03\x04" * 9, "does not begin like"),
        (_file({"a": _entry(0, 8)}, bytes(8))[:20], "truncated"),
        (_file({"a": _entry(0, 8)}, bytes(7)), "truncated"),
        (_file({"a": _entry(0, 8)}, bytes(9)), "1 bytes more"),
        (_file({"a": _entry(0, 8), "b": _entry(4, 12)}, bytes(12)), "b overlaps"),
        (_file({"a": _entry(0, 8), "b": _entry(12, 20)}, bytes(20)), "b leaves a gap"),
        (_file({"a": _entry(0, 4)}, bytes(4)), "has not the bytes"),
        (_file({"a": _entry(8, 0)}, bytes(8)), "header"),
        (_file({"a": _entry(0, 8, (-2,))}, bytes(8)), "header"),
        (_file({"a": _entry(0, 8, 2)}, bytes(8)), "header"),
        (_file({"a": _entry(0, 8, (2.0,))}, bytes(8)), "header"),
        (_file({"a": {"dtype": "F32"}}, bytes(8)), "header"),
        (_file([1, 2], bytes(8)), "header"),
        (_file(b"\xff\xfe{}", bytes(8)), "header"),
        (_file(b"[" * 100_000), "header"),
    ],
)
def test_a_damaged_file_is_named(tmp_path, content, message):
    (tmp_path / "model.safetensors").write_bytes(content)
    with pytest.raises(UserError, match=rf"model\.safetensors: .*{message}"):
        TensorFiles.open(tmp_path)


@given(cut=st.integers(0, 10_000), flip=st.integers(0, 10_000), value=st.integers(0, 255))
def test_no_damage_leads_to_another_exception(tmp_path_factory, cut, flip, value):
    path = tmp_path_factory.mktemp("damage") / "a.safetensors"
    write_tensors(path, {"a": np.arange(6, dtype=np.float32), "b": np.ones((2, 2), np.float16)})
    content = bytearray(path.read_bytes())
    content[flip % len(content)] = value
    path.write_bytes(content[: cut % (len(content) + 1)])
    try:
        for tensor in read_header(path).values():
            if tensor.code in DTYPES:
                tensor.read()
    except UserError as error:
        assert "a.safetensors" in str(error)


def test_a_computed_tensor_must_keep_its_word(tmp_path):
    wrong = ComputedTensor(np.dtype(np.float32), (3,), lambda: np.zeros(4, np.float32))
    with pytest.raises(ValueError, match="announced"):
        write_tensors(tmp_path / "x.safetensors", {"a": wrong})
