"""Arrays that others wrote: sizes are looked at before anything is unpacked, and damage is one line."""

import io
import zipfile

import numpy as np
import pytest

from tests.memory import most_held
from wechsel_jax.errors import UserError
from wechsel_jax.files.npz import read_arrays

ARRAYS = {"copy": np.arange(50, dtype=np.int32), "weights": np.linspace(0, 1, 60, dtype=np.float32).reshape(20, 3)}


def read(path, most_times=16):
    return read_arrays(path, "a plan; write it again", ("copy", "weights"), most_times)


def refused(path, reason):
    with pytest.raises(UserError, match=rf"^{path}: .*{reason}.*; expected a plan; write it again$") as caught:
        read(path)
    assert len(str(caught.value)) < 500 and str(caught.value).isprintable()


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_what_numpy_writes_is_read(tmp_path, save):
    save(tmp_path / "plan.npz", **ARRAYS)
    found = read(tmp_path / "plan.npz")
    assert {name: (array.dtype, array.tolist()) for name, array in found.items()} == {
        name: (array.dtype, array.tolist()) for name, array in ARRAYS.items()
    }


def member(header: bytes, body: bytes = b"", version: bytes = b"\1\0") -> bytes:
    return b"\x93NUMPY" + version + len(header).to_bytes(2, "little") + header + body


def npy(array: np.ndarray, **options) -> bytes:
    held = io.BytesIO()
    np.save(held, array, **options)
    return held.getvalue()


@pytest.mark.parametrize(
    ("name", "content", "reason"),
    [
        ("other.npy", npy(np.zeros(3)), "holds 'other', which is none of copy, weights"),
        ("copy.npy", b"no array", "magic string"),
        ("copy.npy", npy(np.array([{}]), allow_pickle=True), "says object of shape"),
        ("copy.npy", member(b"{'descr': '<i4', 'fortran_order': False, 'shape': (3,)}", bytes(8)), "and has 73 bytes"),
        ("copy.npy", member(b"{'descr': '<i4', 'fortran_order': False, 'shape': (-1, -2)}", bytes(8)), "of shape .-1, -2"),
        ("copy.npy", member(b"{'descr': '<i4', 'fortran_order': False, 'shape': (%s,)}" % (b"9" * 4000)), "."),
        ("copy.npy", member(b"(" * 3000), "."),
        ("copy.npy", member(b"-" * 9000 + b"1"), "."),
        ("copy.npy", member(b"{'descr': '<i4', 'fortran_order': False, 'shape': (0,)}", version=b"\7\0"), "."),
    ],
)
def test_a_strange_array_is_refused(tmp_path, name, content, reason):
    with zipfile.ZipFile(tmp_path / "plan.npz", "w") as archive:
        archive.writestr(name, content)
    refused(tmp_path / "plan.npz", reason)


@pytest.mark.parametrize("method", [zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_other_ways_of_packing_are_refused(tmp_path, method):
    with zipfile.ZipFile(tmp_path / "plan.npz", "w", method) as archive:
        archive.writestr("copy.npy", npy(ARRAYS["copy"]))
    refused(tmp_path / "plan.npz", "packed in another way than numpy does")


def test_a_small_file_of_large_arrays_is_never_unpacked(tmp_path):
    with zipfile.ZipFile(tmp_path / "plan.npz", "w", zipfile.ZIP_DEFLATED) as archive, archive.open("copy.npy", "w") as handle:
        handle.write(npy(np.zeros(0, np.int32)).replace(b"'shape': (0,), }         ", b"'shape': (20000000,), }  "))
        for _ in range(80):
            handle.write(bytes(10**6))
    assert (tmp_path / "plan.npz").stat().st_size < 100_000
    message = "take 80000128 bytes, and so small a file holds at most"
    assert most_held(lambda: refused(tmp_path / "plan.npz", message)) < 1 << 20
    assert len(read(tmp_path / "plan.npz", most_times=256)["copy"]) == 20_000_000


def test_every_changed_byte_is_named_or_harmless(tmp_path):
    np.savez_compressed(tmp_path / "plan.npz", **ARRAYS)
    whole = (tmp_path / "plan.npz").read_bytes()
    told = 0
    for place in range(len(whole)):
        for change in (0x01, 0x80, 0xFF):
            (tmp_path / "plan.npz").write_bytes(whole[:place] + bytes([whole[place] ^ change]) + whole[place + 1 :])
            try:
                found = read(tmp_path / "plan.npz")
            except UserError as error:
                told += 1
                assert str(error).startswith(f"{tmp_path}/plan.npz: ") and str(error).isprintable() and len(str(error)) < 500
            else:
                for name, array in found.items():
                    np.testing.assert_array_equal(array, ARRAYS[name])
    assert told > len(whole)
