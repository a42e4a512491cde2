"""Write small MegEngine dumps by hand, in both containers, from operators given as values.

The parameters' slots come from the importer's own schema; that the schema is MegEngine's is tested
on real dumps.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import flatbuffers
import numpy as np

from atc.importers.megengine import schema
from atc.importers.megengine.typeid import type_id
from atc.importers.megengine.types import NAMES, DType

PREPEND = {
    "bool": "PrependBoolSlot",
    "i8": "PrependInt8Slot",
    "u8": "PrependUint8Slot",
    "i32": "PrependInt32Slot",
    "u32": "PrependUint32Slot",
    "u64": "PrependUint64Slot",
    "f32": "PrependFloat32Slot",
    "f64": "PrependFloat64Slot",
}
DTYPES = {"float32": "Float32", "float16": "Float16", "int32": "Int32", "int16": "Int16",
          "int8": "Int8", "uint8": "Uint8", "bool": "Bool", "uint16": "Uint16"}  # fmt: skip
CODES = {name: code for code, (name, _) in schema.PARAM_TABLES.items()}


def dtype_of(array: np.ndarray) -> DType:
    """Return MegEngine's plain type of an array."""
    return DType(DTYPES[array.dtype.name])


@dataclass(frozen=True)
class Tensor:
    """A stored tensor; without data it is a graph input."""

    dtype: DType
    shape: tuple[int, ...]
    data: bytes | None = None
    name: str = ""


@dataclass(frozen=True)
class Op:
    """An operator as the file has it; `params` are (table, values) pairs."""

    kind: str
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    params: tuple[tuple[str, Mapping[str, object]], ...] = ()
    tensors: tuple[Tensor, ...] = ()
    output_dtype: DType | None = None
    name: str = ""


@dataclass
class Dump:
    """A dump under construction; methods return the numbers of variables."""

    ops: list[Op] = field(default_factory=list)
    names: dict[int, str] = field(default_factory=dict)
    outputs: list[int] = field(default_factory=list)
    aliases: list[tuple[int, str]] = field(default_factory=list)
    model_version: int = 2
    typed: bool = True
    count: int = 0

    def input(self, name: str, shape: Sequence[int], dtype: DType = DType("Float32")) -> int:  # noqa: B008
        tensor = Tensor(dtype, tuple(shape), None, name)
        return self.op("Host2DeviceCopy", [], {"Host2DeviceCopy": {}}, [tensor], name=name)[0]

    def constant(self, array: np.ndarray, dtype: DType | None = None, name: str = "") -> int:
        array = np.ascontiguousarray(array)
        tensor = Tensor(dtype or dtype_of(array), array.shape, array.tobytes())
        return self.op("ImmutableTensor", [], {}, [tensor], name=name)[0]

    def op(
        self,
        kind: str,
        inputs: Sequence[int],
        params: Mapping[str, Mapping[str, object]],
        tensors: Sequence[Tensor] = (),
        outputs: int = 1,
        output_dtype: DType | None = None,
        name: str = "",
    ) -> list[int]:
        numbers = list(range(self.count, self.count + outputs))
        self.count += outputs
        if name:
            self.names[numbers[-1]] = name
        pairs = tuple(params.items())
        found = Op(kind, tuple(inputs), tuple(numbers), pairs, tuple(tensors), output_dtype)
        self.ops.append(found)
        return numbers

    def output(self, number: int, name: str) -> None:
        self.outputs.append(number)
        self.names[number] = name

    def renamed(self, kind: str) -> Dump:
        """Return the dump with its last operator of another type."""
        return replace(self, ops=[*self.ops[:-1], replace(self.ops[-1], kind=kind)])


class _Writer:
    def __init__(self) -> None:
        self.b = flatbuffers.Builder(0)

    def offsets(self, items: Sequence[int]) -> int:
        self.b.StartVector(4, len(items), 4)
        for item in reversed(items):
            self.b.PrependUOffsetTRelative(item)
        return self.b.EndVector()

    def numbers(self, items: Sequence[int], kind: str = "u32") -> int:
        size = {"u32": 4, "i32": 4, "u8": 1}[kind]
        prepend = {
            "u32": self.b.PrependUint32,
            "i32": self.b.PrependInt32,
            "u8": self.b.PrependByte,
        }
        self.b.StartVector(size, len(items), size)
        for item in reversed(items):
            prepend[kind](item)
        return self.b.EndVector()

    def structs(self, items: Sequence[bytes], size: int) -> int:
        self.b.StartVector(size, len(items), 4)
        for byte in reversed(b"".join(items)):
            self.b.PrependByte(byte)
        return self.b.EndVector()

    def table(self, slots: Mapping[int, tuple[str, object]]) -> int:
        """Write a table of (kind, value) by slot; the kind `offset` is a finished object."""
        self.b.StartObject(max(slots, default=-1) + 1)
        for slot, (kind, value) in slots.items():
            if kind == "offset":
                self.b.PrependUOffsetTRelativeSlot(slot, value, 0)
            else:
                getattr(self.b, PREPEND[kind])(slot, value, None)
        return self.b.EndObject()

    def dtype(self, dtype: DType) -> int:
        slots: dict[int, tuple[str, object]] = {0: ("i8", NAMES.index(dtype.name))}
        if dtype.quantized:
            parts = {0: ("f32", dtype.scale), 1: ("u8", dtype.zero_point)}
            slots[2] = ("offset", self.table(parts))
            slots[1] = ("u8", 1)
        return self.table(slots)

    def params(self, name: str, values: Mapping[str, object]) -> int:
        fields = {f.name: f for f in schema.PARAM_TABLES[CODES[name]][1]}
        slots: dict[int, tuple[str, object]] = {}
        for key, value in values.items():
            known = fields[key]
            if known.kind == "dtype":
                return self.dtype(value)
            slots[known.slot] = self._field(known, value)
        return self.table(slots)

    def _field(self, known: schema.Field, value: object) -> tuple[str, object]:
        match known.kind:
            case "enum":
                return "u32", known.names.index(value) if isinstance(value, str) else value
            case "ints":
                return "offset", self.numbers(value, "i32")
            case "axes":
                items = [struct.pack("<bxxxi", remove, axis) for remove, axis in value]
                return "offset", self.structs(items, 8)
            case "indices":
                items = [struct.pack("<b4B", axis, *flags) for axis, *flags in value]
                return "offset", self.structs(items, 5)
        return known.kind, value

    def union(self, slots: dict[int, tuple[str, object]], op: Op, at: tuple[int, ...]) -> None:
        """Write the first parameter table and the vectors of further ones."""
        tables = [(CODES[name], self.params(name, values)) for name, values in op.params]
        if tables:
            slots[at[0]] = ("u8", tables[0][0])
            slots[at[1]] = ("offset", tables[0][1])
        if tables[1:]:
            slots[at[2]] = ("offset", self.numbers([code for code, _ in tables[1:]], "u8"))
            slots[at[3]] = ("offset", self.offsets([table for _, table in tables[1:]]))

    def strings(self, items: Sequence[str]) -> int:
        return self.offsets([self.b.CreateString(item) for item in items])


def write_v2(dump: Dump) -> bytes:
    """Return an FBS_V2 file."""
    w = _Writer()
    operators = [_operator_v2(w, dump, op) for op in dump.ops]
    middle = [
        w.table({0: ("offset", w.b.CreateString(dump.names.get(number, "")))})
        for number in range(dump.count)
    ]
    outputs = [w.table({0: ("u32", number), 1: ("u32", 1000 + number)}) for number in dump.outputs]
    aliases = [
        w.table({0: ("u32", 1000 + number), 1: ("offset", w.b.CreateString(name))})
        for number, name in dump.aliases
    ]
    root = w.table(
        {
            0: ("u32", 101300),
            1: ("u32", dump.model_version),
            2: ("offset", w.offsets(operators)),
            3: ("offset", w.offsets(middle)),
            4: ("offset", w.offsets(outputs)),
            5: ("offset", w.offsets(aliases)),
        }
    )
    w.b.FinishSizePrefixed(root, b"mgv2")
    return bytes(w.b.Output())


def _operator_v2(w: _Writer, dump: Dump, op: Op) -> int:
    slots: dict[int, tuple[str, object]] = {
        7: ("offset", w.numbers(op.inputs)),
        8: ("offset", w.numbers(op.outputs)),
        11: ("offset", w.offsets([_tensor_v2(w, tensor) for tensor in op.tensors])),
        1: ("u64", type_id(op.kind, terminated=False)),
    }
    if dump.typed:
        slots[0] = ("offset", w.b.CreateString(op.kind))
    if op.output_dtype is not None:
        slots[10] = ("offset", w.dtype(op.output_dtype))
    w.union(slots, op, (3, 4, 5, 6))
    return w.table(slots)


def _tensor_v2(w: _Writer, tensor: Tensor) -> int:
    slots: dict[int, tuple[str, object]] = {
        0: ("offset", w.b.CreateString(tensor.name)),
        1: ("offset", w.numbers(tensor.shape)),
        3: ("offset", w.dtype(tensor.dtype)),
    }
    if tensor.data is not None:
        slots[6] = ("offset", w.b.CreateByteVector(tensor.data))
    return w.table(slots)


def write_v1(dump: Dump, magic: bytes = b"MGBC") -> bytes:
    """Return an FBS v1 file; `MGBS` is the older header."""
    w = _Writer()
    area = bytearray()
    operators = [_operator_v1(w, dump, op, area) for op in dump.ops]
    pairs = [struct.pack("<II", number, 1000 + number) for number in dump.outputs]
    outputs = w.structs(pairs, 8)
    root = w.table(
        {0: ("u32", 101300), 3: ("offset", w.offsets(operators)), 4: ("offset", outputs)}
    )
    w.b.FinishSizePrefixed(root, b"mgb1")
    features = bytes(8) if magic == b"MGBC" else b""
    header = magic + features + bytes(4) + struct.pack("<Q", len(area))
    return header + bytes(area) + bytes(w.b.Output())


def _operator_v1(w: _Writer, dump: Dump, op: Op, area: bytearray) -> int:
    slots: dict[int, tuple[str, object]] = {
        0: ("u64", type_id(op.kind, terminated=True)),
        3: ("offset", w.numbers(op.inputs)),
        7: ("offset", w.offsets([_tensor_v1(w, tensor, area) for tensor in op.tensors])),
    }
    if any(number in dump.outputs for number in op.outputs):
        slots[5] = ("offset", w.strings([dump.names.get(number, "") for number in op.outputs]))
    if op.output_dtype is not None:
        slots[6] = ("offset", w.dtype(op.output_dtype))
    w.union(slots, op, (1, 2, 10, 11))
    return w.table(slots)


def _tensor_v1(w: _Writer, tensor: Tensor, area: bytearray) -> int:
    data = tensor.data or b""
    area += data
    return w.table(
        {
            0: ("offset", w.b.CreateString(tensor.name)),
            1: ("offset", w.numbers(tensor.shape)),
            3: ("offset", w.dtype(tensor.dtype)),
            4: ("u32", len(data)),
        }
    )
