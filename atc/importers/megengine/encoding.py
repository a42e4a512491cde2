"""The parts that both containers share: parameters, element types, shapes, tensor bytes."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np

from atc.errors import ModelError, UnsupportedError
from atc.importers.megengine.dump import MAX_RANK, AxisEdit, IndexItem, Params
from atc.importers.megengine.flat import Buffer, FlatTable
from atc.importers.megengine.schema import PARAM_TABLES, Field
from atc.importers.megengine.types import NAMES, DType

_MAX_ITEMS = 64
_MAX_PARAMS = 8
_SMALLEST_SCALE = 2.0**-60  # products and quotients of two scales stay finite


class Budget:
    """Bounds what one file may make the reader build, since its parts may be shared.

    The items of all lists together are fewer than the file's bytes in every real dump.
    """

    def __init__(self, buffer: Buffer) -> None:
        self._left = len(buffer.data)

    def string(self, table: FlatTable, slot: int) -> str:
        """Read a name."""
        text = table.string(slot)
        self._spend(len(text), table)
        return text

    def integers(self, table: FlatTable, slot: int) -> tuple[int, ...]:
        """Read a vector of u32."""
        found = table.integers(slot)
        self._spend(len(found), table)
        return found

    def tables(self, table: FlatTable, slot: int) -> list[FlatTable]:
        """Read a vector of tables."""
        found = table.tables(slot)
        self._spend(len(found), table)
        return found

    def _spend(self, items: int, table: FlatTable) -> None:
        self._left -= items
        if self._left < 0:
            raise ModelError(
                "the operators' lists are longer together than the file",
                where=table.buffer.name,
                hint="the file is damaged; dump the network again",
            )


def read_shape(table: FlatTable, where: str) -> tuple[int, ...]:
    """Read the shape of a tensor; slot 1 in both formats."""
    rank = table.span(1, 4)[1]
    if rank > MAX_RANK:
        raise ModelError(f"a tensor has rank {rank}, at most {MAX_RANK} is legal", where=where)
    return table.integers(1)


def tensor_values(
    buffer: Buffer, start: int, size: int, dtype: DType, shape: tuple[int, ...], where: str
) -> np.ndarray:
    """Return the bytes at `start` as an array; a view of the file, so nothing is copied."""
    count = math.prod(shape)
    need = count * dtype.numpy.itemsize
    if size != need:
        raise ModelError(
            f"a tensor of shape {list(shape)} and type {dtype.name} needs {need} bytes, has {size}",
            where=where,
            hint="the file is damaged; dump the network again",
        )
    buffer.check(start, size, "tensor data")
    return np.frombuffer(buffer.data, dtype.numpy, count, start).reshape(shape)


def read_dtype(table: FlatTable | None, where: str) -> DType | None:
    """Read an element type with its scale and zero point; None where it is absent."""
    if table is None:
        return None
    name = plain_dtype(table.integer(0, "i8"), where).name
    quantization = table.table(2) if table.integer(1, "u8") == 1 else None
    if quantization is None or not name.startswith("Quantized"):
        return DType(name)
    scale = float(quantization.number(0, "f32", 0.0))
    if not _SMALLEST_SCALE <= scale <= 1 / _SMALLEST_SCALE:
        raise ModelError(f"the type {name} has the scale {scale}", where=where)
    asymmetric = name.endswith("Asymm")
    return DType(name, scale, quantization.integer(1, "u8") if asymmetric else 0)


def plain_dtype(code: int, where: str) -> DType:
    """Return the element type of a code, without scale and zero point."""
    if not 0 <= code < len(NAMES):
        raise ModelError(f"unknown element type {code}", where=where)
    dtype = DType(NAMES[code])
    if not dtype.covered:
        raise UnsupportedError(
            f"elements of type {dtype.name} have no ONNX counterpart",
            where=where,
            hint="dump the network with 8-bit or floating-point tensors",
        )
    return dtype


def read_params(
    operator: FlatTable, slots: Sequence[int], budget: Budget, where: str
) -> Iterator[Params]:
    """Read an operator's parameter and additional parameters.

    `slots` are those of the union's type and value and of the vectors of further ones.
    """
    code_slot, value_slot, codes_slot, values_slot = slots
    code, value = operator.integer(code_slot, "u8"), operator.table(value_slot)
    if code and value is not None:
        yield _read_table(code, value, where)
    count = operator.span(values_slot, 4)[1]
    if count > _MAX_PARAMS:
        raise ModelError(f"an operator has {count} parameter tables", where=where)
    codes = operator.integers(codes_slot, "u8")
    for code, value in zip(codes, budget.tables(operator, values_slot), strict=False):
        yield _read_table(code, value, where)


def _read_table(code: int, table: FlatTable, where: str) -> Params:
    if code not in PARAM_TABLES:
        return Params(f"number {code}", {}, where)
    name, fields = PARAM_TABLES[code]
    return Params(name, {f.name: _read_field(table, f, where) for f in fields}, where)


def _read_field(table: FlatTable, field: Field, where: str) -> object:
    match field.kind:
        case "f32" | "f64":
            return float(table.number(field.slot, field.kind, field.default))
        case "bool":
            return bool(table.number(field.slot, "bool", field.default))
        case "enum":
            code = table.integer(field.slot, "u32", int(field.default))
            if code >= len(field.names):
                raise ModelError(f"{field.name} = {code} is not a known value", where=where)
            return field.names[code]
        case "dtype":
            return read_dtype(table, where)
        case "ints" | "axes" | "indices":
            return _read_items(table, field, where)
    return table.integer(field.slot, field.kind, int(field.default))


_ITEM_SIZES = {"ints": 4, "axes": 8, "indices": 5}


def _read_items(table: FlatTable, field: Field, where: str) -> tuple[object, ...]:
    """Read a vector of integers or structs: {i8 remove, i32 axis} or {i8 axis, 4 flags}."""
    size = _ITEM_SIZES[field.kind]
    start, count = table.span(field.slot, size)
    if count > _MAX_ITEMS:
        raise ModelError(f"{field.name} has {count} items", where=where)
    read = table.buffer.integer
    items: list[object] = []
    for at in range(start, start + count * size, size):
        if field.kind == "ints":
            items.append(read("i32", at, field.name))
        elif field.kind == "axes":
            items.append(AxisEdit(read("i8", at, "axis") == 1, read("i32", at + 4, "axis")))
        else:
            flags = [bool(read("u8", at + i, "index flag")) for i in range(1, 5)]
            items.append(IndexItem(read("i8", at, "index axis"), *flags))
    return tuple(items)
