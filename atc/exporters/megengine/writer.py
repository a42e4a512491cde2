"""Write a dump: the plain values that the importer reads, as an FBS_V2 file.

Slots and codes are those of the importer's schema.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

import flatbuffers

from atc.importers.megengine.dump import AxisEdit, Dump, IndexItem, Operator, Params, StoredTensor
from atc.importers.megengine.schema import (
    PARAM_TABLES,
    Field,
    ModelSlot,
    OperatorSlot,
    TensorSlot,
)
from atc.importers.megengine.typeid import type_id
from atc.importers.megengine.types import NAMES, DType

VERSION = 101300
"""MegEngine's version, 1.13.0, as a dump has it."""
_MODEL_VERSION = 2
_MAGIC = b"mgv2"
_DEVICE = "xpux:0"
"""Any device, the first."""
_ALIGNMENT = 16
"""Alignment of a stored tensor's bytes, which MegEngine may use in place."""

_CODES = {name: code for code, (name, _) in PARAM_TABLES.items()}
_CLASSES = {
    "BatchedMatrixMul": "BatchedMatrixMulV2", "Cumsum": "CumsumV1", "MatrixMul": "MatrixMulV2",
    "Pooling": "PoolingV1", "Reduce": "ReduceV2", "Reshape": "ReshapeV1", "TypeCvt": "TypeCvtV2",
}  # fmt: skip
"""MegEngine's classes by normalised type, where their names have a version."""
_SECOND = frozenset({
    "Convolution", "Convolution3D", "ConvolutionBackwardData", "Host2DeviceCopy",
    "ImmutableTensor", "Softmax",
})  # fmt: skip
"""Types whose loaders are those of model version 2; their ids are of names with a NUL."""

_Slots = dict[int, tuple[str, object]]
"""A table's values by slot: (scalar kind, value), or ("offset", a finished object)."""
_PREPEND = {
    "bool": "Bool", "i8": "Int8", "u8": "Uint8", "i32": "Int32", "u32": "Uint32", "u64": "Uint64",
    "f32": "Float32", "f64": "Float64",
}  # fmt: skip


def write_dump(dump: Dump) -> bytes:
    """Return the bytes of an FBS_V2 file."""
    return _Writer().dump(dump)


class _Writer:
    """A flatbuffer under construction; methods return the offsets of finished objects."""

    def __init__(self) -> None:
        self._b = flatbuffers.Builder(1 << 16)

    def dump(self, dump: Dump) -> bytes:
        """Finish the whole file."""
        count = sum(len(op.outputs) for op in dump.operators)
        operators = [self._operator(op) for op in dump.operators]
        middle = [
            self._table({TensorSlot.NAME: self._text(dump.names.get(k, ""))}) for k in range(count)
        ]
        outputs = [self._table({0: ("u32", k), 1: ("u32", k)}) for k in dump.outputs]
        root = self._table({
            ModelSlot.MGE_VERSION: ("u32", VERSION),
            ModelSlot.MODEL_VERSION: ("u32", _MODEL_VERSION),
            ModelSlot.OPERATORS: self._tables(operators),
            ModelSlot.MIDDLE_TENSORS: self._tables(middle),
            ModelSlot.OUTPUTS: self._tables(outputs),
        })  # fmt: skip
        self._b.FinishSizePrefixed(root, _MAGIC)
        return bytes(self._b.Output())

    # ---- what a dump consists of ----------------------------------------------------------------

    def _operator(self, op: Operator) -> int:
        tables = [(_CODES[params.table], self._params(params)) for params in op.tables]
        second = op.kind in _SECOND
        slots: _Slots = {
            OperatorSlot.TYPE: self._text(_CLASSES.get(op.kind, op.kind)),
            OperatorSlot.TYPE_ID: ("u64", type_id(op.kind, terminated=second)),
            OperatorSlot.NAME: self._text(op.name),
            OperatorSlot.INPUTS: self._numbers(op.inputs, "u32"),
            OperatorSlot.OUTPUTS: self._numbers(op.outputs, "u32"),
            OperatorSlot.OPR_VERSION: ("u32", 2 if second else 1),
        }
        if tables:
            slots[OperatorSlot.PARAM_TYPE] = ("u8", tables[0][0])
            slots[OperatorSlot.PARAM] = ("offset", tables[0][1])
        if tables[1:]:
            codes = [code for code, _ in tables[1:]]
            slots[OperatorSlot.MORE_PARAM_TYPES] = self._numbers(codes, "u8")
            slots[OperatorSlot.MORE_PARAMS] = self._tables([table for _, table in tables[1:]])
        if op.tensors:
            slots[OperatorSlot.TENSORS] = self._tables([self._tensor(t) for t in op.tensors])
        return self._table(slots)

    def _tensor(self, tensor: StoredTensor) -> int:
        slots: _Slots = {
            TensorSlot.NAME: self._text(tensor.name),
            TensorSlot.SHAPE: self._numbers(tensor.shape, "u32"),
            TensorSlot.COMP_NODE: ("offset", self._table({0: self._text(_DEVICE)})),
            TensorSlot.DTYPE: ("offset", self._dtype(tensor.dtype)),
            TensorSlot.FORMAT_TYPE: ("u8", 1),
            TensorSlot.FORMAT: ("offset", self._table({})),
        }
        if tensor.data is not None:
            data = tensor.data.tobytes()
            self._b.Prep(_ALIGNMENT, len(data))
            slots[TensorSlot.DATA] = ("offset", self._b.CreateByteVector(data))
        return self._table(slots)

    def _dtype(self, dtype: DType) -> int:
        return self._table({0: ("i8", NAMES.index(dtype.name))})

    def _params(self, params: Params) -> int:
        fields = {f.name: f for f in PARAM_TABLES[_CODES[params.table]][1]}
        slots: _Slots = {}
        for name, value in params.values.items():
            if fields[name].kind == "dtype":
                assert isinstance(value, DType)
                return self._dtype(value)
            slots[fields[name].slot] = self._field(fields[name], value)
        return self._table(slots)

    def _field(self, field: Field, value: object) -> tuple[str, object]:
        if field.kind == "enum":
            assert isinstance(value, str)
            return "u32", field.names.index(value)
        if not isinstance(value, tuple):
            return field.kind, value
        if field.kind == "ints":
            return self._numbers(value, "i32")
        return self._structs([_packed(item) for item in value])

    # ---- flatbuffers ----------------------------------------------------------------------------

    def _table(self, slots: _Slots) -> int:
        self._b.StartObject(max(slots, default=-1) + 1)
        for slot, (kind, value) in slots.items():
            if kind == "offset":
                self._b.PrependUOffsetTRelativeSlot(slot, value, 0)
            else:  # always, whatever the default is
                getattr(self._b, f"Prepend{_PREPEND[kind]}Slot")(slot, value, None)
        return int(self._b.EndObject())

    def _text(self, text: str) -> tuple[str, object]:
        return "offset", self._b.CreateString(text)

    def _tables(self, tables: Sequence[int]) -> tuple[str, object]:
        self._b.StartVector(4, len(tables), 4)
        for table in reversed(tables):
            self._b.PrependUOffsetTRelative(table)
        return "offset", self._b.EndVector()

    def _numbers(self, numbers: Sequence[int], kind: str) -> tuple[str, object]:
        size = 1 if kind == "u8" else 4
        self._b.StartVector(size, len(numbers), size)
        for number in reversed(numbers):
            getattr(self._b, f"Prepend{_PREPEND[kind]}")(number)
        return "offset", self._b.EndVector()

    def _structs(self, items: Sequence[bytes]) -> tuple[str, object]:
        size = len(items[0]) if items else 1
        self._b.StartVector(size, len(items), 4)
        for byte in reversed(b"".join(items)):
            self._b.PrependByte(byte)
        return "offset", self._b.EndVector()


def _packed(item: object) -> bytes:
    """Return a struct's bytes: {i8 remove, i32 axis} or {i8 axis, 4 flags}."""
    if isinstance(item, AxisEdit):
        return struct.pack("<bxxxi", item.remove, item.axis)
    assert isinstance(item, IndexItem)
    return struct.pack("<b4?", item.axis, item.begin, item.end, item.step, item.index)


