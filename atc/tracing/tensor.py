"""Tensors whose operations are recorded: the array object of the Python array API standard."""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from types import ModuleType
from typing import Any, cast

import numpy as np
from onnx.helper import np_dtype_to_tensor_dtype

from atc.tracing.errors import ArgumentError, OperandError, place
from atc.tracing.indexing import read_indices
from atc.tracing.recording import Array, Shape
from atc.tracing.tape import Tape, Tracked, current_tape, traced_tape

_NAMESPACE: list[ModuleType] = []
REAL = "the array API standard has integers, truths and floats of IEEE 754: use float32 or float16"
"""What to do about arrays of other types, bfloat16 among them."""


class Tensor(Tracked):
    """An array of a fixed shape, or a recorded one, which is computed when its value is needed.

    It has the methods and operators of the array API standard; `__array_namespace__` has the
    functions. Make one of anything that numpy accepts: `atc.Tensor([1.0, 2.0])`.
    """

    __array_priority__ = 1000.0  # numpy defers to our operators

    def __init__(self, data: Any, dtype: Any = None, *, name: str = "") -> None:
        found = np.array(data.numpy() if isinstance(data, Tensor) else data, dtype)
        if dtype is None and type(data) in (float, list, tuple) and found.dtype == np.float64:
            found = found.astype(np.float32)
        if found.dtype.kind not in "biuf":
            raise OperandError(f"tensors of {found.dtype} aren't computed with", where=place(),
                               hint=REAL)  # fmt: skip
        self.array = found
        self.tape = None
        self.value = ""
        self.name = name
        self.constant = traced_tape() is not None

    @classmethod
    def recorded(cls, tape: Tape, value: str) -> Tensor:
        """Return the tensor of a value of a tape."""
        made = cls.__new__(Tensor)
        made.array, made.tape, made.value, made.name = None, tape, value, ""
        made.constant = False
        tape.take(made)
        return made

    # ---- attributes -----------------------------------------------------------------------------

    @property
    def dtype(self) -> np.dtype[Any]:
        """The type of the elements."""
        if self.array is not None:
            return np.dtype(self.array.dtype)
        assert self.tape is not None
        return self.tape.recording.dtype(self.value)

    @property
    def shape(self) -> Shape:
        """The extents; None for one that is known only at run time."""
        if self.array is not None:
            return tuple(self.array.shape)
        assert self.tape is not None
        return self.tape.recording.shape(self.value)

    @property
    def ndim(self) -> int:
        """The number of axes."""
        return len(self.shape)

    @property
    def size(self) -> int | None:
        """The number of elements, None where it is known only at run time."""
        shape = self.shape
        return None if None in shape else int(np.prod(cast("tuple[int, ...]", shape), dtype=int))

    @property
    def device(self) -> str:
        """Always the CPU."""
        return "cpu"

    @property
    def T(self) -> Tensor:  # noqa: N802
        """The transpose of a matrix."""
        if self.ndim != 2:
            raise ArgumentError(f"T of a tensor of {self.ndim} axes", where=place())
        return self.mT

    @property
    def mT(self) -> Tensor:  # noqa: N802
        """The transpose of the last two axes."""
        rank = self.ndim
        return node("Transpose", self, perm=[*range(rank - 2), rank - 1, rank - 2])

    def __array_namespace__(self, *, api_version: str | None = None) -> ModuleType:
        return _NAMESPACE[0]

    def to_device(self, device: str, /, *, stream: None = None) -> Tensor:
        """Return the tensor itself: there is only the CPU."""
        if device != "cpu":
            raise ArgumentError(f"there is no device '{device}'", where=place(), hint="use cpu")
        return self

    # ---- elements -------------------------------------------------------------------------------

    def numpy(self) -> Array:
        """Return the elements, which are computed if they aren't yet."""
        return self._elements("the array").copy()

    def item(self) -> Any:
        """Return the only element as a Python number."""
        return self._elements("the item").item()

    def detach(self) -> Tensor:
        """Return the same elements as a constant to gradients."""
        tape = current_tape()
        return Tensor.recorded(tape, tape.recording.stopped(tape.value(self)))

    def _elements(self, why: str) -> Array:
        tape = traced_tape()
        if tape is not None and not self.constant and (
            id(self) in tape.updates or id(self) in tape.values
        ):
            return tape.look(self, why)  # a traced input, or what was assigned meanwhile
        if self.tape is not None:
            return self.tape.look(self, why)
        assert self.array is not None
        return self.array

    def __bool__(self) -> bool:
        return bool(self._elements("the bool"))

    def __int__(self) -> int:
        return int(self._elements("the int").item())

    def __index__(self) -> int:
        return operator.index(self._elements("the int").item())

    def __float__(self) -> float:
        return float(self._elements("the float").item())

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        return np.array(self._elements("the array"), dtype)

    def __dlpack__(self, **keywords: Any) -> Any:
        return self._elements("the array").__dlpack__(**keywords)

    def __dlpack_device__(self) -> tuple[int, int]:
        return (1, 0)

    def __len__(self) -> int:
        if not self.shape or self.shape[0] is None:
            raise OperandError("len of a tensor without a first extent", where=place())
        return self.shape[0]

    def __iter__(self) -> Any:
        return (self[k] for k in range(len(self)))

    def __repr__(self) -> str:
        if self.array is None:
            return f"<tensor: {self.dtype} {list(self.shape)}>"
        return f"tensor({np.array2string(self.array, separator=', ')}, dtype={self.dtype})"

    # ---- indexing -------------------------------------------------------------------------------

    def __getitem__(self, key: Any) -> Tensor:
        return _indexed(self, key if isinstance(key, tuple) else (key,))

    # ---- operators ------------------------------------------------------------------------------

    def __add__(self, other: Any) -> Tensor:
        return binary("Add", self, other)

    def __radd__(self, other: Any) -> Tensor:
        return binary("Add", other, self)

    def __sub__(self, other: Any) -> Tensor:
        return binary("Sub", self, other)

    def __rsub__(self, other: Any) -> Tensor:
        return binary("Sub", other, self)

    def __mul__(self, other: Any) -> Tensor:
        return binary("Mul", self, other)

    def __rmul__(self, other: Any) -> Tensor:
        return binary("Mul", other, self)

    def __truediv__(self, other: Any) -> Tensor:
        return divided(self, other)

    def __rtruediv__(self, other: Any) -> Tensor:
        return divided(other, self)

    def __floordiv__(self, other: Any) -> Tensor:
        return floor_divided(self, other)

    def __rfloordiv__(self, other: Any) -> Tensor:
        return floor_divided(other, self)

    def __mod__(self, other: Any) -> Tensor:
        return rest(self, other)

    def __rmod__(self, other: Any) -> Tensor:
        return rest(other, self)

    def __pow__(self, other: Any) -> Tensor:
        return binary("Pow", self, other)

    def __rpow__(self, other: Any) -> Tensor:
        return binary("Pow", other, self)

    def __matmul__(self, other: Any) -> Tensor:
        return binary("MatMul", self, other)

    def __rmatmul__(self, other: Any) -> Tensor:
        return binary("MatMul", other, self)

    def __neg__(self) -> Tensor:
        return node("Neg", self)

    def __pos__(self) -> Tensor:
        return self

    def __abs__(self) -> Tensor:
        return node("Abs", self)

    def __invert__(self) -> Tensor:
        return node("Not" if self.dtype == np.bool_ else "BitwiseNot", self)

    def __and__(self, other: Any) -> Tensor:
        return bitwise("And", self, other)

    def __rand__(self, other: Any) -> Tensor:
        return bitwise("And", other, self)

    def __or__(self, other: Any) -> Tensor:
        return bitwise("Or", self, other)

    def __ror__(self, other: Any) -> Tensor:
        return bitwise("Or", other, self)

    def __xor__(self, other: Any) -> Tensor:
        return bitwise("Xor", self, other)

    def __rxor__(self, other: Any) -> Tensor:
        return bitwise("Xor", other, self)

    def __lt__(self, other: Any) -> Tensor:
        return binary("Less", self, other)

    def __le__(self, other: Any) -> Tensor:
        return binary("LessOrEqual", self, other)

    def __gt__(self, other: Any) -> Tensor:
        return binary("Greater", self, other)

    def __ge__(self, other: Any) -> Tensor:
        return binary("GreaterOrEqual", self, other)

    def __eq__(self, other: object) -> Tensor:  # type: ignore[override]
        return binary("Equal", self, other)

    def __ne__(self, other: object) -> Tensor:  # type: ignore[override]
        return node("Not", binary("Equal", self, other))

    __hash__ = object.__hash__


def set_namespace(module: ModuleType) -> None:
    """Set the module of the array API's functions."""
    _NAMESPACE[:] = [module]


# ---- recording ----------------------------------------------------------------------------------


def asarray(x: Any, dtype: Any = None) -> Tensor:
    """Return a tensor of anything that numpy accepts, of a type if one is given."""
    made = x if isinstance(x, Tensor) else Tensor(x, dtype)
    return made if dtype is None or made.dtype == np.dtype(dtype) else astype(made, dtype)


def nodes(
    op: str, operands: Sequence[Any], attributes: Mapping[str, Any], count: int, domain: str = ""
) -> list[Tensor]:
    """Record a node, of the standard's domain or RANDOM; operands are tensors, arrays, or None."""
    tape = current_tape()
    inputs = ["" if x is None else tape.value(asarray(x)) for x in operands]
    while inputs and not inputs[-1]:
        inputs.pop()
    found = tape.recording.add(op, inputs, attributes, count, domain)
    return [Tensor.recorded(tape, value) for value in found]


def node(op: str, *operands: Any, **attributes: Any) -> Tensor:
    """Record a node of the standard's with one result."""
    return nodes(op, operands, attributes, 1)[0]


def ints(*values: int) -> Tensor:
    """Return a constant list of integers, such as shapes and axes."""
    made = Tensor(np.array(values, np.int64))
    made.constant = True
    return made


def astype(x: Tensor, dtype: Any) -> Tensor:
    """Return x with elements of another type."""
    return node("Cast", x, to=np_dtype_to_tensor_dtype(np.dtype(dtype)))


def promoted(*operands: Any) -> list[Tensor]:
    """Return the operands converted to their result type by the array API.

    Python numbers have the type of the tensors beside them. Raises OperandError for operands of
    no common type.
    """
    arrays = [x for x in operands if isinstance(x, (Tensor, np.ndarray, np.generic))]
    if not arrays:
        arrays = [np.asarray(operands[0])]
    kinds = {"b": "b", "i": "i", "u": "i", "f": "f"}
    given = {kinds.get(x.dtype.kind, x.dtype.kind) for x in arrays}
    if len(given) > 1:
        shown = ", ".join(str(x.dtype) for x in arrays)
        raise OperandError(
            f"operands of {shown} have no common type", where=place(), hint="use astype"
        )
    common = np.result_type(*(x.dtype for x in arrays))
    return [_like(x, common) for x in operands]


def _like(x: Any, dtype: np.dtype[Any]) -> Tensor:
    if isinstance(x, (Tensor, np.ndarray, np.generic)):
        return asarray(x, dtype)
    fits = {bool: "b", int: "iuf", float: "f"}.get(type(x), "")
    if dtype.kind not in fits:
        raise OperandError(
            f"a tensor of {dtype} and {type(x).__name__} have no common type", where=place(),
            hint="use astype",
        )  # fmt: skip
    made = Tensor(np.asarray(x, dtype))
    made.constant = True
    return made


def binary(op: str, a: Any, b: Any) -> Tensor:
    """Record a function of two operands of one type."""
    return node(op, *promoted(a, b))


def bitwise(op: str, a: Any, b: Any) -> Tensor:
    """Record And, Or or Xor of bools or of integers' bits."""
    left, right = promoted(a, b)
    return node(op if left.dtype == np.bool_ else f"Bitwise{op}", left, right)


def divided(a: Any, b: Any) -> Tensor:
    """Return a / b of floats."""
    left, right = promoted(a, b)
    if left.dtype.kind != "f":
        raise OperandError(
            f"/ of {left.dtype}, which has no fractions", where=place(), hint="use astype, or //"
        )
    return node("Div", left, right)


def floor_divided(a: Any, b: Any) -> Tensor:
    """Return the quotients, rounded down."""
    left, right = promoted(a, b)
    if left.dtype.kind == "f":
        return node("Floor", node("Div", left, right))
    if left.dtype.kind == "u":
        return node("Div", left, right)
    return node("Div", left - rest(left, right), right)


def rest(a: Any, b: Any) -> Tensor:
    """Return the remainders of a floor division, with the divisor's sign."""
    left, right = promoted(a, b)
    if left.dtype.kind != "f":
        return node("Mod", left, right)
    found = node("Mod", left, right, fmod=1)
    other = (found != 0) & ((found < 0) ^ (right < 0))
    return node("Where", other, found + right, found)


def _indexed(x: Tensor, key: tuple[Any, ...]) -> Tensor:
    """Return a part: integers, slices, None, `...` and one tensor of integers."""
    found, read = x, read_indices(x.shape, key)
    if read.axes:
        sides = (read.starts, read.ends, read.axes, read.steps)
        found = node("Slice", x, *(ints(*side) for side in sides))
    for where, index in read.gathers:
        found = node("Gather", found, index, axis=where)
    if read.dropped:
        found = node("Squeeze", found, ints(*read.dropped))
    if read.added:
        found = node("Unsqueeze", found, ints(*read.added))
    return found
