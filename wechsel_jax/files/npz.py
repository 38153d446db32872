"""Arrays from .npz files that others wrote: nothing is unpacked before its size is known to fit."""

import math
import os
import zipfile
from collections.abc import Collection
from typing import IO

import numpy as np
from numpy.lib import format as npy

from wechsel_jax.errors import parsing
from wechsel_jax.files import require_file

_ALWAYS_BYTES = 1 << 26
_ENCRYPTED = 1


def read_arrays(path: str | os.PathLike, what: str, names: Collection[str], most_times: int) -> dict[str, np.ndarray]:
    """Reads the arrays of a .npz file.

    Args:
      path: the file.
      what: what it should be and what to do, for the message.
      names: the arrays that it may hold; it need not hold them all.
      most_times: the arrays may take 64 MiB, and this many times the bytes of the file. Zeros alone shrink a thousandfold.

    Returns:
      Name -> array, of those that there are.

    Raises:
      UserError: the file is missing or damaged, or holds other arrays, objects in place of numbers, or more than it may.
    """
    path = require_file(path, what)
    allowed = _ALWAYS_BYTES + most_times * path.stat().st_size
    arrays = {}
    # A damaged place within the file is no place to go to, says the system.
    with parsing(path, what, OSError), zipfile.ZipFile(path) as archive:
        members = {member.filename.removesuffix(".npy"): member for member in archive.infolist()}
        for name in members:
            if name not in names:
                raise ValueError(f"holds {name[:40]!r}, which is none of {', '.join(names)}")
        total = sum(member.file_size for member in members.values())
        if total > allowed:
            raise ValueError(f"its arrays take {total} bytes, and so small a file holds at most {allowed}")
        for member in members.values():
            _check(member, archive)
        for name, member in members.items():
            with archive.open(member) as handle:
                arrays[name] = npy.read_array(handle, allow_pickle=False)
                # The checksum is compared where the end is read.
                handle.read(1)
    return arrays


def _check(member: zipfile.ZipInfo, archive: zipfile.ZipFile) -> None:
    # Other methods unpack all that they are given at once, however much it becomes.
    if member.flag_bits & _ENCRYPTED or member.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        raise ValueError(f"{member.filename} is encrypted, or packed in another way than numpy does")
    with archive.open(member) as handle:
        shape, dtype, size = _header(handle)
    if dtype.hasobject or min(shape, default=0) < 0 or size + math.prod(shape) * dtype.itemsize != member.file_size:
        raise ValueError(f"{member.filename} says {dtype} of shape {shape}, and has {member.file_size} bytes")


def _header(handle: IO[bytes]) -> tuple[tuple[int, ...], np.dtype, int]:
    version = npy.read_magic(handle)
    try:
        shape, _, dtype = npy.read_array_header_1_0(handle) if version == (1, 0) else npy.read_array_header_2_0(handle)
    except MemoryError:  # what Python's own parser says of text that is nested too deep
        raise ValueError("the header of an array is damaged") from None
    return shape, dtype, handle.tell()
