"""Build a dump operator by operator; variables are numbered as they are made."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
from onnx import helper

from atc.errors import UnsupportedError, one_line
from atc.importers.megengine.dump import MAX_RANK, IndexItem, Operator, Params, StoredTensor
from atc.importers.megengine.types import DType

Array = np.ndarray[Any, Any]
Shape = tuple[int, ...]

_TYPES = {
    "float32": "Float32", "float16": "Float16", "int8": "Int8", "uint8": "Uint8",
    "int16": "Int16", "uint16": "Uint16", "int32": "Int32", "int64": "Int32", "bool": "Bool",
}  # fmt: skip
"""MegEngine's types by numpy's."""
_NEUTRAL = {"ADD": 0, "MUL": 1, "POW": 1}
"""Neutral elements, by mode."""


def stored(shape: Sequence[int]) -> Shape:
    """Return MegEngine's shape of a tensor: it has at least one axis."""
    return tuple(shape) or (1,)


@dataclass(frozen=True)
class Type:
    """An ONNX value's element type and shape."""

    dtype: np.dtype[Any]
    shape: Shape

    @property
    def kind(self) -> str:
        """numpy's letter for the kind of the elements."""
        return self.dtype.kind

    @property
    def size(self) -> int:
        """The number of elements."""
        return math.prod(self.shape)


@dataclass(frozen=True)
class Var:
    """An ONNX value: a variable of the dump, or an array that becomes one when it is first read.

    A variable's own shape is `stored(type.shape)`.
    """

    type: Type
    number: int = -1
    array: Array | None = None


@dataclass(frozen=True)
class Node:
    """A node that is translated: its attributes, the types of its results, its place for errors."""

    op_type: str
    attributes: Mapping[str, Any]
    results: tuple[Type, ...]
    where: str

    def get(self, name: str, default: Any = None) -> Any:
        """Return an attribute, or its default."""
        return self.attributes.get(name, default)

    def refuse(self, why: str) -> UnsupportedError:
        """Return the error that MegEngine's operators can't express this."""
        return UnsupportedError(
            f"{self.op_type} has no counterpart in a MegEngine dump: {why}", where=self.where,
            hint="dump to ONNX or a library",
        )  # fmt: skip


def read_node(proto: onnx.NodeProto, results: Sequence[Type]) -> Node:
    """Return a node as rules read it."""
    attributes = {a.name: helper.get_attribute_value(a) for a in proto.attribute}
    texts = {k: v.decode() if isinstance(v, bytes) else v for k, v in attributes.items()}
    where = one_line(f"node {proto.name or proto.output[0]}", 80)
    return Node(proto.op_type, texts, tuple(results), where)


@dataclass
class Builder:
    """The operators so far. `where` names what is being translated.

    What would change nothing (a conversion to the same type, + 0, ...) is left out, as MegEngine
    refuses to load it; for that the variables' types and shapes are noted where they are known.

    Parts of tensors that have gaps between their rows are noted, too: where MegEngine 1.13 adds one
    row to all rows of such a part, it reads on as if there were no gaps. It also moves addends and
    factors about, so arithmetic is given copies of such parts.
    """

    where: str = ""
    operators: list[Operator] = field(default_factory=list)
    names: dict[int, str] = field(default_factory=dict)
    shapes: dict[int, Shape] = field(default_factory=dict)
    dtypes: dict[int, DType] = field(default_factory=dict)
    _gaps: set[int] = field(default_factory=set)
    _copies: dict[int, int] = field(default_factory=dict)
    _count: int = 0
    _known: dict[tuple[str, Shape, bytes], int] = field(default_factory=dict)
    _numbers: dict[int, float] = field(default_factory=dict)

    def op(
        self, kind: str, inputs: Sequence[int], *params: tuple[str, Mapping[str, object]],
        outputs: int = 1, tensors: Sequence[StoredTensor] = (),
    ) -> list[int]:  # fmt: skip
        """Add an operator; returns the numbers of its variables."""
        numbers = tuple(range(self._count, self._count + outputs))
        self._count += outputs
        tables = tuple(Params(table, values, self.where) for table, values in params)
        self.operators.append(
            Operator(kind, "", self.where, tuple(inputs), numbers, tables, tuple(tensors), None)
        )
        return [*numbers]

    def input(self, name: str, type_: Type) -> Var:
        """Add an input of the network."""
        tensor = StoredTensor(name, self._dtype(type_.dtype), stored(type_.shape), None)
        number = self.op("Host2DeviceCopy", [], ("Host2DeviceCopy", {}), tensors=[tensor])[0]
        self.names[number] = name
        return self.noted(type_, number)

    def noted(self, type_: Type, number: int) -> Var:
        """Return a variable, whose type is recorded."""
        self.shapes[number] = stored(type_.shape)
        self.dtypes[number] = self._dtype(type_.dtype)
        return Var(type_, number)

    def number(self, x: Var) -> int:
        """Return a value's variable; a constant becomes one where it is first read."""
        return x.number if x.array is None else self.constant(x.array)

    def constant(self, array: Any) -> int:
        """Add a constant, or return the variable that it already has."""
        given = np.asarray(array)
        dtype = self._dtype(given.dtype)
        made = given.reshape(stored(given.shape)).astype(dtype.numpy)
        if given.dtype == np.int64 and (made != given.reshape(made.shape)).any():
            raise UnsupportedError("a constant has more than 32 bits, MegEngine has no int64",
                                   where=self.where)  # fmt: skip
        self._check_rank(made.shape)
        key = (dtype.name, made.shape, made.tobytes())
        if key not in self._known:
            tensor = StoredTensor("", dtype, made.shape, made)
            number = self.op("ImmutableTensor", [], tensors=[tensor])[0]
            self.shapes[number], self.dtypes[number] = made.shape, dtype
            if made.shape == (1,):
                self._numbers[number] = made.item()
            self._known[key] = number
        return self._known[key]

    def _dtype(self, dtype: np.dtype[Any]) -> DType:
        if dtype.name not in _TYPES:
            raise UnsupportedError(f"MegEngine has no {dtype.name}", where=self.where,
                                   hint="use float32")  # fmt: skip
        return DType(_TYPES[dtype.name])

    def _check_rank(self, shape: Sequence[int]) -> None:
        if len(shape) > MAX_RANK:
            raise UnsupportedError(f"{len(shape)} axes, MegEngine has {MAX_RANK} at most",
                                   where=self.where)  # fmt: skip

    # ---- operators that many rules need ---------------------------------------------------------

    def elemwise(self, mode: str, *operands: int) -> int:
        """Add a function of operands of one type, which broadcast; its result is of that type."""
        if mode in _NEUTRAL and len(operands) == 2:
            x, other = operands
            if self._is_number(other, _NEUTRAL[mode]):
                return x
            if mode != "POW" and self._is_number(x, _NEUTRAL[mode]):
                return other
        if len(operands) > 1 or mode == "NEGATE":
            operands = tuple(self._without_gaps(x) for x in operands)
        made = self.op("Elemwise", operands, ("Elemwise", {"mode": mode}))[0]
        self._same_dtype(operands[0], made)
        if all(x in self.shapes for x in operands):
            self.shapes[made] = np.broadcast_shapes(*(self.shapes[x] for x in operands))
        return made

    def _without_gaps(self, x: int) -> int:
        if x not in self._gaps:
            return x
        if x not in self._copies:
            rows = self.constant(np.arange(self.shapes[x][0], dtype=np.int32))
            self._copies[x] = self.taken(x, 0, rows)
        return self._copies[x]

    def _is_number(self, x: int, number: float) -> bool:
        return self._numbers.get(x) == number

    def _same_dtype(self, x: int, made: int) -> None:
        if x in self.dtypes:
            self.dtypes[made] = self.dtypes[x]

    def _same_elements(self, x: int, made: int) -> None:
        """Note that a variable may be the same elements, seen in another way."""
        self._same_dtype(x, made)
        if x in self._gaps:
            self._gaps.add(made)

    def like(self, number: float, type_: Type) -> int:
        """Return a constant of a value's element type."""
        return self.constant(np.asarray(number, type_.dtype))

    def cast(self, x: int, dtype: np.dtype[Any] | type) -> int:
        """Convert elements to another type."""
        wanted = self._dtype(np.dtype(dtype))
        if self.dtypes.get(x) == wanted:
            return x
        made = self.op("TypeCvt", [x], ("DType", {"dtype": wanted}))[0]
        self.dtypes[made] = wanted
        return made

    def reshape(self, x: int, shape: Sequence[int]) -> int:
        """Reshape a variable."""
        return self._shaped("Reshape", x, shape, ("OptionalAxisV1", {}))

    def broadcast(self, x: int, shape: Sequence[int]) -> int:
        """Broadcast a variable along axes of extent 1, and new leading ones."""
        return self._shaped("Broadcast", x, shape, ("Empty", {}))

    def _shaped(
        self, kind: str, x: int, shape: Sequence[int], params: tuple[str, Mapping[str, object]]
    ) -> int:
        self._check_rank(shape)
        wanted = stored(shape)
        if self.shapes.get(x) == wanted:
            return x
        made = self.op(kind, [x, self.constant(np.array(wanted, np.int32))], params)[0]
        self.shapes[made] = wanted
        self._same_elements(x, made)
        return made

    def transpose(self, x: int, order: Sequence[int]) -> int:
        """Permute axes."""
        if [*order] == [*range(len(order))]:
            return x
        pattern = {"pattern": tuple(order), "ndim": len(order)}
        made = self.op("Dimshuffle", [x], ("Dimshuffle", pattern))[0]
        if x in self.shapes:
            self.shapes[made] = tuple(self.shapes[x][k] for k in order)
        self._same_elements(x, made)
        return made

    def part(
        self, x: int, axes: Sequence[int], begins: Sequence[int], ends: Sequence[int | None],
        steps: Sequence[int],
    ) -> int:  # fmt: skip
        """Return a slice from begins up to ends; an end of None goes to the first element."""
        items, bounds = [], []
        for axis, begin, end, step in zip(axes, begins, ends, steps, strict=True):
            items.append(IndexItem(axis, True, end is not None, True, False))
            bounds += [begin, *([] if end is None else [end]), step]
        numbers = [self.constant(np.array([n], np.int32)) for n in bounds]
        indices = ("IndexDescMaskDump", {"items": tuple(items)})
        made = self.op("Subtensor", [x, *numbers], indices)[0]
        self._same_elements(x, made)
        shape = [*self.shapes[x]]
        for axis, begin, end, step in zip(axes, begins, ends, steps, strict=True):
            shape[axis] = len(range(begin, -1 if end is None else end, step))
        self.shapes[made] = tuple(shape)
        first = next((k for k, n in enumerate(shape) if n > 1), len(shape))
        cut = [k for k, (n, m) in enumerate(zip(shape, self.shapes[x], strict=True)) if n != m]
        if any(k > first for k in cut) or any(step != 1 for step in steps):
            self._gaps.add(made)
        return made

    def taken(self, x: int, axis: int, index: int) -> int:
        """Return the slices of an axis that an index selects, in the place of that axis."""
        indices = ("IndexDescMaskDump", {"items": (IndexItem(axis, False, False, False, True),)})
        made = self.op("IndexingMultiAxisVec", [x, index], indices)[0]
        self._same_dtype(x, made)
        if x in self.shapes and index in self.shapes:
            shape = self.shapes[x]
            self.shapes[made] = (*shape[:axis], *self.shapes[index], *shape[axis + 1 :])
        return made

    def selected(self, condition: int, x: int, y: int, type_: Type) -> int:
        """Return x where a boolean condition holds, else y."""
        if type_.kind == "b":
            left = self.elemwise("AND", condition, x)
            right = self.elemwise("AND", self.elemwise("NOT", condition), y)
            return self.elemwise("OR", left, right)
        mask = self.cast(condition, type_.dtype)
        other = self.cast(self.elemwise("NOT", condition), type_.dtype)
        return self.elemwise("ADD", self.elemwise("SWITCH_GT0", mask, x),
                             self.elemwise("SWITCH_GT0", other, y))  # fmt: skip
