"""Safetensors files as data: named, memory-mapped arrays to read, and a writer that holds one tensor at a time."""

import dataclasses
import json
import math
import os
import struct
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import IO

import ml_dtypes
import numpy as np

from wechsel_jax.errors import UserError
from wechsel_jax.files import require_file
from wechsel_jax.files.json import parse_json, read_json, write_json

SINGLE_FILE = "model.safetensors"
INDEX_FILE = "model.safetensors.index.json"

MAX_SHARD_BYTES = 5_000_000_000

DTYPES = {
    "BOOL": np.dtype(np.bool_),
    "U8": np.dtype(np.uint8),
    "I8": np.dtype(np.int8),
    "F8_E4M3": np.dtype(ml_dtypes.float8_e4m3fn),
    "F8_E5M2": np.dtype(ml_dtypes.float8_e5m2),
    "U16": np.dtype(np.uint16),
    "I16": np.dtype(np.int16),
    "F16": np.dtype(np.float16),
    "BF16": np.dtype(ml_dtypes.bfloat16),
    "U32": np.dtype(np.uint32),
    "I32": np.dtype(np.int32),
    "F32": np.dtype(np.float32),
    "U64": np.dtype(np.uint64),
    "I64": np.dtype(np.int64),
    "F64": np.dtype(np.float64),
    "C64": np.dtype(np.complex64),
}
# The bits of each type's exponent; where all are set, the number is NaN or infinite.
FLOATS = {
    "F16": np.uint16(0x7C00),
    "BF16": np.uint16(0x7F80),
    "F32": np.uint32(0x7F800000),
    "F64": np.uint64(0x7FF0000000000000),
}
_CODES = {dtype: code for code, dtype in DTYPES.items()}
_LONGEST_HEADER = 100_000_000  # the format's own limit
_COPY_BYTES = 1 << 24
# What numpy can index.
_LONGEST_AXIS, _MOST_AXES = 1 << 48, 32
_ADVICE = "download or copy the file again"


@dataclasses.dataclass(frozen=True)
class StoredTensor:
    """A tensor in a safetensors file; its bytes are touched only when it is read or copied.

    Attributes:
      file: the safetensors file.
      code: the format's name of the element type, e.g. "BF16".
      shape: the tensor's shape.
      start: position of its first byte in the file.
      stop: position after its last byte.
    """

    file: Path
    code: str
    shape: tuple[int, ...]
    start: int
    stop: int

    @property
    def dtype(self) -> np.dtype:
        """The numpy type of the elements; `UserError` where numpy and ml_dtypes have none."""
        if self.code not in DTYPES:
            known = ", ".join(DTYPES)
            raise UserError(f"{self.file}: tensors of type {self.code} cannot be computed with; expected one of {known}")
        return DTYPES[self.code]

    def read(self) -> np.ndarray:
        """The tensor as a read-only memory map."""
        if self.start == self.stop:
            return np.zeros(self.shape, self.dtype)
        raw = np.memmap(self.file, np.uint8, "r", self.start, self.stop - self.start)
        return raw.view(self.dtype).reshape(self.shape)

    def overwrite(self, values: np.ndarray) -> None:
        """Puts values of the tensor's shape in its place in the file, rounded to its type; they survive a power cut."""
        raw = np.ascontiguousarray(values.astype(self.dtype)).reshape(-1).view(np.uint8)
        if values.shape != self.shape or len(raw) != self.byte_count:
            raise ValueError(f"expected shape {self.shape}, got {values.shape}")
        with open(self.file, "r+b") as handle:
            handle.seek(self.start)
            handle.write(raw.data)
            handle.flush()
            os.fsync(handle.fileno())

    @property
    def byte_count(self) -> int:
        return self.stop - self.start

    def blocks(self, limit: int | None = None) -> Iterator[bytes]:
        """Yields the tensor's bytes, or its first `limit` bytes, in blocks of whole elements; no block outlives its turn.

        They are read, not mapped: what was read once of a mapped file stays in the program's memory.
        """
        with open(self.file, "rb") as stored:
            stored.seek(self.start)
            left = self.byte_count if limit is None else min(limit, self.byte_count)
            while left:
                block = stored.read(min(left, _COPY_BYTES))
                if not block:
                    raise UserError(f"{self.file}: the file became shorter while it was copied; run the same command again")
                yield block
                left -= len(block)

    def write(self, handle: IO[bytes]) -> None:
        """Copies the tensor's bytes to `handle`, a block at a time."""
        for block in self.blocks():
            handle.write(block)


@dataclasses.dataclass(frozen=True)
class ComputedTensor:
    """A tensor that is computed when its turn to be written comes.

    Attributes:
      dtype: numpy type of the elements.
      shape: the tensor's shape.
      compute: returns the array, of that type and shape.
      finite: NaN or infinity in it is a mistake.
    """

    dtype: np.dtype
    shape: tuple[int, ...]
    compute: Callable[[], np.ndarray]
    finite: bool = True

    @property
    def code(self) -> str:
        return _CODES[np.dtype(self.dtype)]

    @property
    def byte_count(self) -> int:
        return math.prod(self.shape) * np.dtype(self.dtype).itemsize

    def write(self, handle: IO[bytes]) -> None:
        """Computes the tensor and writes it to `handle`.

        Raises:
          FloatingPointError: it must be finite, and is not.
        """
        array = self.compute()
        if array.shape != self.shape or array.dtype != self.dtype:
            raise ValueError(f"computed {array.dtype}{array.shape}, announced {self.dtype}{self.shape}")
        raw = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        for begin in range(0, len(raw), _COPY_BYTES):
            block = raw[begin : begin + _COPY_BYTES]
            if self.finite and self.code in FLOATS and first_nonfinite(block, self.code) is not None:
                raise FloatingPointError("NaN or infinity")
            handle.write(block.data)


def first_nonfinite(block: bytes | np.ndarray, code: str) -> int | None:
    """Returns the place of the first NaN or infinity in a block of whole elements of a type in `FLOATS`; None where none is."""
    exponent = FLOATS[code]
    wrong = (np.frombuffer(block, exponent.dtype) & exponent) == exponent
    return int(wrong.argmax()) if wrong.any() else None


class TensorFiles(Mapping[str, StoredTensor]):
    """The tensors of a model directory, whether one file or shards with an index; nothing is loaded."""

    def __init__(self, tensors: Mapping[str, StoredTensor]):
        self._tensors = dict(tensors)

    def __getitem__(self, name: str) -> StoredTensor:
        return self._tensors[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._tensors)

    def __len__(self) -> int:
        return len(self._tensors)

    @classmethod
    def open(cls, directory: str | os.PathLike) -> "TensorFiles":
        """Reads the headers of `model.safetensors`, or of the shards that `model.safetensors.index.json` names.

        Where there are both, the single file counts, as in transformers: it leaves the index of former shards behind.

        Raises:
          UserError: there is no such file, or one is truncated or not in the safetensors format.
        """
        directory = Path(directory)
        if (directory / INDEX_FILE).exists() and not (directory / SINGLE_FILE).exists():
            return cls(_read_shards(directory))
        return cls(read_header(directory / SINGLE_FILE))


def read_header(path: str | os.PathLike) -> dict[str, StoredTensor]:
    """Reads and checks the header of one safetensors file.

    Returns:
      Tensor name -> where it lies, in the order of the file.

    Raises:
      UserError: the file is missing, empty, truncated, or its header does not describe it.
    """
    path = require_file(path, "a safetensors file")
    size = path.stat().st_size
    with open(path, "rb") as handle:
        start = handle.read(8)
        if len(start) < 8:
            raise UserError(f"{path}: only {size} bytes; expected a safetensors file; {_ADVICE}")
        length = struct.unpack("<Q", start)[0]
        if length > _LONGEST_HEADER:
            raise UserError(f"{path}: does not begin like a safetensors file; expected safetensors weights; {_ADVICE}")
        if 8 + length > size:
            raise UserError(f"{path}: truncated: {size} bytes, and its header alone ends at {8 + length}; {_ADVICE}")
        text = handle.read(length)
    try:
        header = parse_json(text)
        tensors = {
            name: StoredTensor(path, str(entry["dtype"]), _shape(entry["shape"]), *_offsets(entry["data_offsets"], 8 + length))
            for name, entry in header.items()
            if name != "__metadata__"
        }
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        raise UserError(f"{path}: its header is not that of a safetensors file; {_ADVICE}") from None
    _check_layout(path, tensors, 8 + length, size)
    return tensors


def write_tensors(path: str | os.PathLike, tensors: Mapping[str, StoredTensor | ComputedTensor | np.ndarray]) -> None:
    """Writes a safetensors file, holding at most one computed tensor at a time.

    Stored tensors are copied byte for byte without being loaded. `path` is written in place; a temporary name is the caller's.

    Args:
      path: the file to write.
      tensors: name -> stored tensor, computed tensor, or array of a type that safetensors knows.

    Raises:
      UserError: a computed tensor that must be finite holds NaN or infinity.
    """
    items = {name: _writable(tensor) for name, tensor in tensors.items()}
    # Large elements first, so that every tensor stays aligned to its element size in a file of mixed types.
    names = sorted(items, key=lambda name: -DTYPES[items[name].code].itemsize if items[name].code in DTYPES else 0)
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    position = 0
    for name in names:
        stop = position + items[name].byte_count
        header[name] = {"dtype": items[name].code, "shape": list(items[name].shape), "data_offsets": [position, stop]}
        position = stop
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode("utf-8")
    text += b" " * (-len(text) % 8)
    try:
        with open(path, "wb") as handle:
            handle.write(struct.pack("<Q", len(text)) + text)
            for name in names:
                items[name].write(handle)
            handle.flush()
            os.fsync(handle.fileno())
    except FloatingPointError as error:
        raise UserError(
            f"tensor {name}: comes out as {error} in {items[name].dtype}; expected finite numbers; choose other settings, or a "
            "source in float32"
        ) from None
    except OSError as error:
        # A failed write does not say where: the user should learn which disk is full.
        error.filename = error.filename or os.fspath(path)
        raise


def write_shards(
    directory: str | os.PathLike,
    tensors: Mapping[str, StoredTensor | ComputedTensor | np.ndarray],
    shards: Mapping[str, str] | None = None,
    max_shard_bytes: int = MAX_SHARD_BYTES,
) -> None:
    """Writes the weights of a model: `model.safetensors`, or shards and the index that names them.

    Args:
      directory: an existing directory.
      tensors: as for `write_tensors`.
      shards: name -> any label; tensors of one label share a shard, and shards are in the labels' order. None: one file, or
        shards in the order of `tensors` where a file would be larger than `max_shard_bytes`.
      max_shard_bytes: the largest shard, unless a single tensor is larger.
    """
    directory, items = Path(directory), {name: _writable(tensor) for name, tensor in tensors.items()}
    groups = _grouped(items, max_shard_bytes) if shards is None else _labelled(items, shards)
    if len(groups) <= 1:
        write_tensors(directory / SINGLE_FILE, items)
        return
    places = {}
    for number, names in enumerate(groups, start=1):
        file = f"model-{number:05d}-of-{len(groups):05d}.safetensors"
        write_tensors(directory / file, {name: items[name] for name in names})
        places |= dict.fromkeys(names, file)
    index = {"metadata": {"total_size": sum(item.byte_count for item in items.values())}, "weight_map": places}
    write_json(directory / INDEX_FILE, index)


def _writable(tensor: StoredTensor | ComputedTensor | np.ndarray) -> StoredTensor | ComputedTensor:
    if isinstance(tensor, StoredTensor | ComputedTensor):
        return tensor
    array = np.asarray(tensor)
    return ComputedTensor(array.dtype, array.shape, lambda: array, finite=False)


def _grouped(items: Mapping[str, StoredTensor | ComputedTensor], limit: int) -> list[list[str]]:
    groups, size = [[]], 0
    for name, item in items.items():
        if groups[-1] and size + item.byte_count > limit:
            groups.append([])
            size = 0
        groups[-1].append(name)
        size += item.byte_count
    return groups


def _labelled(items: Mapping[str, StoredTensor | ComputedTensor], shards: Mapping[str, str]) -> list[list[str]]:
    groups: dict[str, list[str]] = {}
    for name in items:
        groups.setdefault(shards[name], []).append(name)
    return [groups[label] for label in sorted(groups)]


def _shape(values: list[int]) -> tuple[int, ...]:
    if len(values) > _MOST_AXES or any(type(value) is not int or not 0 <= value < _LONGEST_AXIS for value in values):
        raise ValueError(values)
    return tuple(values)


def _offsets(values: list[int], base: int) -> tuple[int, int]:
    start, stop = _shape(values)
    if stop < start:
        raise ValueError(values)
    return base + start, base + stop


def _check_layout(path: Path, tensors: Mapping[str, StoredTensor], begin: int, size: int) -> None:
    end = begin
    for name, tensor in sorted(tensors.items(), key=lambda item: (item[1].start, item[1].stop)):
        if tensor.start != end:
            what = "overlaps" if tensor.start < end else "leaves a gap after"
            raise UserError(f"{path}: tensor {name} {what} the tensor before it; the header is damaged; {_ADVICE}")
        if tensor.code in DTYPES and tensor.byte_count != math.prod(tensor.shape) * DTYPES[tensor.code].itemsize:
            raise UserError(f"{path}: tensor {name} has not the bytes of its type and shape; the header is damaged; {_ADVICE}")
        end = tensor.stop
    if size < end:
        raise UserError(f"{path}: truncated: {size} bytes, and its header describes {end}; {_ADVICE}")
    if size > end:
        raise UserError(f"{path}: {size - end} bytes more than its header describes; {_ADVICE}")


def _read_shards(directory: Path) -> dict[str, StoredTensor]:
    index = directory / INDEX_FILE
    try:
        places = read_json(index, "an index of safetensors shards", _ADVICE)["weight_map"]
        shards = sorted(set(places.values()))
        plain = all(isinstance(shard, str) and Path(shard).name == shard for shard in shards)
    except (TypeError, KeyError, AttributeError):
        plain, places, shards = False, {}, []
    if not plain or not places:
        raise UserError(f"{index}: not an index of safetensors shards; expected a weight_map of tensor to file name; {_ADVICE}")
    headers = {shard: read_header(directory / shard) for shard in shards}
    for name, shard in places.items():
        if name not in headers[shard]:
            raise UserError(f"{directory / shard}: has no tensor {name}, which {INDEX_FILE} places there; {_ADVICE}")
    return {name: headers[shard][name] for name, shard in places.items()}
