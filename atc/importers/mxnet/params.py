"""Reads MXNet's NDArray files (`.params`): dense arrays of every version, by name.

The layout is MXNet's own (`ndarray.cc`), little endian: u64 0x112, u64 0, u64 n, n arrays,
u64 m, m names (u64 length, bytes). MXNet 2 also writes NumPy's `.npz`.
"""

from __future__ import annotations

import io
import struct
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from atc.errors import ModelError, UnsupportedError
from atc.files.regular import regular

Array = NDArray[Any]

LIST_MAGIC = 0x112
MAGIC_V1, MAGIC_V2, MAGIC_V3 = 0xF993FAC8, 0xF993FAC9, 0xF993FACA
MAX_RANK = 32
SPARSE = {1: "row_sparse", 2: "csr"}

TYPE_FLAGS: Mapping[int, np.dtype[Any]] = {
    0: np.dtype("<f4"), 1: np.dtype("<f8"), 2: np.dtype("<f2"), 3: np.dtype("u1"),
    4: np.dtype("<i4"), 5: np.dtype("i1"), 6: np.dtype("<i8"), 7: np.dtype("?"),
    8: np.dtype("<i2"), 9: np.dtype("<u2"), 10: np.dtype("<u4"), 11: np.dtype("<u8"),
    12: np.dtype(ml_dtypes.bfloat16),
}  # fmt: skip
"""MXNet's number of each element type (mshadow's TypeFlag)."""


def read_params(path: Path) -> Mapping[str, Array]:
    """Return the arrays of a file by their bare names (without `arg:` or `aux:`)."""
    try:
        data = regular(path).read_bytes()
    except OSError as error:
        raise ModelError(f"cannot read the weights: {error.strerror}", where=str(path),
                         code="E10008") from None  # fmt: skip
    return parse_params(data, str(path))


def parse_params(data: bytes, where: str) -> Mapping[str, Array]:
    """Return the arrays of a file's bytes by their bare names; `where` names it in errors."""
    archive = data[:2] == b"PK"
    named = _read_npz(data, where) if archive else _read_list(_Reader(data, where))
    return {_bare(name): array for name, array in named.items()}


def _bare(name: str) -> str:
    return name[4:] if name.startswith(("arg:", "aux:")) else name


@dataclass
class _Reader:
    """A position in the bytes; every read is checked against the end."""

    data: bytes
    where: str
    position: int = 0

    def take(self, size: int, what: str) -> memoryview:
        if size > len(self.data) - self.position:
            raise ModelError(
                f"the weights end inside {what}: {size} bytes wanted at {self.position}, "
                f"{len(self.data) - self.position} left",
                where=self.where,
                hint="the file is truncated or damaged",
            )
        start, self.position = self.position, self.position + size
        return memoryview(self.data)[start : self.position]

    def number(self, code: str, what: str) -> int:
        size = struct.calcsize("<" + code)
        return int(struct.unpack("<" + code, self.take(size, what))[0])

    def numbers(self, code: str, count: int, what: str) -> tuple[int, ...]:
        layout = struct.Struct(f"<{count}{code}")
        return tuple(layout.unpack(self.take(layout.size, what)))


def _read_list(reader: _Reader) -> dict[str, Array]:
    if reader.number("Q", "the header") != LIST_MAGIC:
        raise ModelError("not an MXNet NDArray file (wrong magic number)", where=reader.where)
    reader.number("Q", "the header")
    count = reader.number("Q", "the header")
    arrays: list[Array | None] = []
    while len(arrays) < count:  # a false count ends at the end of the file
        arrays.append(_read_array(reader, len(arrays)))
    names = [_read_name(reader) for _ in range(_name_count(reader, count))]
    if len(set(names)) != len(names):
        raise ModelError("two arrays have the same name", where=reader.where)
    return {n: a for n, a in zip(names, arrays, strict=True) if a is not None}


def _name_count(reader: _Reader, arrays: int) -> int:
    count = reader.number("Q", "the number of names")
    if count != arrays:
        raise ModelError(f"{arrays} arrays have {count} names", where=reader.where,
                         hint="save the parameters by name")  # fmt: skip
    return count


def _read_name(reader: _Reader) -> str:
    raw = bytes(reader.take(reader.number("Q", "a name"), "a name"))
    try:
        return raw.decode()
    except UnicodeDecodeError:
        raise ModelError("an array's name is not UTF-8", where=reader.where) from None


def _read_array(reader: _Reader, index: int) -> Array | None:
    """Read one array; None for an empty place holder."""
    what = f"array {index}"
    magic = reader.number("I", what)
    if magic in (MAGIC_V2, MAGIC_V3):
        _refuse_sparse(reader.number("i", what), what, reader.where)
    if magic in (MAGIC_V1, MAGIC_V2, MAGIC_V3):
        rank = _rank(reader, reader.number("i", what), what)
        shape = reader.numbers("q", max(rank, 0), what)
    else:
        rank = _rank(reader, magic, what)
        shape = reader.numbers("I", rank, what)
    if rank < 0 or (rank == 0 and magic != MAGIC_V3):
        return None
    reader.numbers("i", 2, what)  # the device it was saved from
    return _read_data(reader, shape, what)


def _rank(reader: _Reader, rank: int, what: str) -> int:
    if not -1 <= rank <= MAX_RANK:
        raise ModelError(f"{what} has rank {rank}", where=reader.where,
                         hint="the file is damaged or not an NDArray file")  # fmt: skip
    return rank


def _refuse_sparse(storage: int, what: str, where: str) -> None:
    if storage in SPARSE:
        raise UnsupportedError(f"{what} is stored as {SPARSE[storage]}", where=where,
                               hint="save it dense: array.tostype('default')")  # fmt: skip
    if storage not in (0, -1):
        raise ModelError(f"{what} has the unknown storage type {storage}", where=where)


def _read_data(reader: _Reader, shape: tuple[int, ...], what: str) -> Array:
    flag = reader.number("i", what)
    dtype = TYPE_FLAGS.get(flag)
    if dtype is None:
        raise ModelError(f"{what} has the unknown element type {flag}", where=reader.where)
    if any(d < 0 for d in shape):
        raise ModelError(f"{what} has the shape {list(shape)}", where=reader.where)
    data = reader.take(prod(shape) * dtype.itemsize, f"{what} of shape {list(shape)}")
    return np.frombuffer(bytes(data), dtype).reshape(shape)


def _read_npz(data: bytes, where: str) -> dict[str, Array]:
    """Read NumPy's archive of arrays, each no larger than the archive says, without pickles."""
    arrays: dict[str, Array] = {}
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            for info in archive.infolist():
                if info.compress_type != zipfile.ZIP_STORED or info.file_size > len(data):
                    raise UnsupportedError(f"'{info.filename}' is compressed", where=where,
                                           hint="save it with numpy.savez")  # fmt: skip
                member = io.BytesIO(archive.read(info))
                arrays[info.filename.removesuffix(".npy")] = _read_npy(member)
    except (ValueError, EOFError, OSError, KeyError, NotImplementedError, struct.error,
            zipfile.BadZipFile, RuntimeError, SyntaxError) as error:  # fmt: skip
        raise ModelError(f"the weights are a damaged .npz file: {error}", where=where) from None
    return arrays


def _read_npy(member: io.BytesIO) -> Array:
    """Read one array after checking that its header promises no more than there is."""
    version = np.lib.format.read_magic(member)
    if version == (1, 0):
        shape, _, dtype = np.lib.format.read_array_header_1_0(member)
    else:
        shape, _, dtype = np.lib.format.read_array_header_2_0(member)
    if dtype.hasobject or prod(shape) * dtype.itemsize > len(member.getbuffer()):
        raise ValueError(f"an array of shape {shape} and type {dtype}")
    member.seek(0)
    return np.asarray(np.lib.format.read_array(member, allow_pickle=False))
