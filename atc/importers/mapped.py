"""Messages of ONNX files without their large tensors, which stay in the file and are mapped."""

from __future__ import annotations

import mmap
from collections.abc import Iterator
from dataclasses import dataclass, field
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir
from google.protobuf.message import DecodeError

from atc.files.mapped import ModelFile

LEAST = 1 << 16
"""Bytes of a tensor from which on it stays in the file."""

_INNER = {
    "model": {7: "graph"},
    "graph": {1: "node", 5: "tensor"},
    "node": {5: "attribute"},
    "attribute": {5: "tensor", 6: "graph", 11: "graph"},
}
"""The kinds of messages that hold tensors, by kind of the message around and the field's number."""
_RAW_DATA = 9
_IN_THIS_FILE = "\0"
"""The location of tensors that stay: no file is called so."""
_OTHER_TYPES = (onnx.TensorProto.UNDEFINED, onnx.TensorProto.STRING)


def read_mapped(path: Path) -> tuple[onnx.ModelProto, ModelFile | None]:
    """Read a file's message; its large tensors become external data that `mapped_tensor` knows.

    Returns the mapped file, too, or None where nothing of it is needed. Errors are those of
    `onnx.load_model`.
    """
    if path.stat().st_size >= LEAST:
        mapped = ModelFile(path)
        data = memoryview(mapped)
        try:
            parts = [*_without_tensors(data, "model", 0, len(data))]
            return onnx.load_model_from_string(b"".join(parts), format="protobuf"), mapped
        except (IndexError, ValueError, DecodeError):
            pass  # damaged, or a wire format that only protobuf knows
    return onnx.load_model(path, format="protobuf", load_external_data=False), None


def mapped_tensor(tensor: onnx_ir.TensorProtocol, file: mmap.mmap) -> onnx_ir.TensorProtocol:
    """Return a tensor that stayed in the mapped file as an array there; any other as it is."""
    if not isinstance(tensor, onnx_ir.ExternalTensor) or tensor.location != _IN_THIS_FILE:
        return tensor
    return _array_in(file, tensor)


def _array_in(file: mmap.mmap, tensor: onnx_ir.ExternalTensor) -> onnx_ir.TensorProtocol:
    kind: np.dtype[Any] = tensor.dtype.numpy()
    flat = np.frombuffer(file, kind.newbyteorder("<"), tensor.size, tensor.offset or 0)
    return onnx_ir.Tensor(flat.reshape(tensor.shape.numpy()), tensor.dtype, name=tensor.name)


@dataclass(frozen=True)
class DataFiles:
    """The files of a model's external data, each of which is mapped once.

    onnx_ir maps a file anew for each of its tensors, and a process may have some 1024 open.
    """

    folder: Path
    _mapped: dict[Path, mmap.mmap] = field(default_factory=dict)

    def mapped(self, tensor: onnx_ir.TensorProtocol) -> onnx_ir.TensorProtocol:
        """Return a checked tensor of these files as an array there; any other as it is."""
        if not isinstance(tensor, onnx_ir.ExternalTensor) or not tensor.size:
            return tensor
        if tensor.dtype is onnx_ir.DataType.STRING or tensor.dtype.bitwidth % 8:
            return tensor
        path = (self.folder / tensor.location).resolve()
        if path not in self._mapped:
            self._mapped[path] = ModelFile(path)
        return _array_in(self._mapped[path], tensor)


def _without_tensors(
    data: memoryview, kind: str, begin: int, end: int
) -> Iterator[bytes | memoryview]:
    """Yield the parts of a message less its large tensors."""
    for number, start, body, stop in _fields(data, begin, end):
        inner = _INNER[kind].get(number) if stop - body >= LEAST else None
        if inner is None:
            yield data[start:stop]
            continue
        parts = (
            _without_data(data, body, stop) if inner == "tensor"
            else b"".join(_without_tensors(data, inner, body, stop))
        )  # fmt: skip
        yield _varint_bytes(number << 3 | 2) + _varint_bytes(len(parts))
        yield parts


def _without_data(data: memoryview, begin: int, end: int) -> bytes | memoryview:
    """Return a tensor that says where in the file its data lies; the same one if it is odd."""
    fields = [*_fields(data, begin, end)]
    rest = b"".join(data[start:stop] for n, start, _, stop in fields if n != _RAW_DATA)
    places = [(body, stop - body) for n, _, body, stop in fields if n == _RAW_DATA]
    tensor = onnx.TensorProto.FromString(rest)
    external = len(tensor.external_data) or tensor.HasField("data_location")
    if len(places) != 1 or external or places[0][1] != _bytes_of(tensor):
        return data[begin:end]
    offset, length = map(str, places[0])
    for key, value in (("location", _IN_THIS_FILE), ("offset", offset), ("length", length)):
        tensor.external_data.add(key=key, value=value)
    tensor.data_location = onnx.TensorProto.EXTERNAL
    made: bytes = tensor.SerializeToString()
    return made


def _bytes_of(tensor: onnx.TensorProto) -> int:
    """Return the bytes of a tensor; -1 where it is none of numbers of whole bytes."""
    if tensor.data_type in _OTHER_TYPES or min(tensor.dims, default=0) < 0:
        return -1
    bits = onnx_ir.DataType(tensor.data_type).bitwidth
    return prod(tensor.dims) * bits // 8 if bits % 8 == 0 else -1


def _fields(data: memoryview, begin: int, end: int) -> Iterator[tuple[int, int, int, int]]:
    """Yield the number of each field of a message, and where it, its value and what follows begin.

    Raises ValueError or IndexError for what is damaged.
    """
    at = begin
    while at < end:
        start = at
        tag, body = _varint(data, at)
        match tag & 7:
            case 0:
                at = _varint(data, body)[1]
            case 1:
                at = body + 8
            case 2:
                size, body = _varint(data, body)
                at = body + size
            case 5:
                at = body + 4
            case kind:
                raise ValueError(f"wire type {kind}")
        if at > end:
            raise ValueError("a field ends beyond its message")
        yield tag >> 3, start, body, at


def _varint(data: memoryview, at: int) -> tuple[int, int]:
    """Return the number that begins at a place, and where it ends."""
    value = 0
    for shift in range(0, 70, 7):
        byte = data[at]
        at += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, at
    raise ValueError("a number of more than ten bytes")


def _varint_bytes(value: int) -> bytes:
    groups = []
    while value > 127:
        groups.append(value & 127 | 128)
        value >>= 7
    return bytes([*groups, value])
