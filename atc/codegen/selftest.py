"""The self-test of a library: inputs by a formula, what nodes and outputs make of them.

Of the outputs some elements are compared. Of the nodes' results there are sums with signs that a
generator gives: of two results whose elements differ by e, such sums differ by about the root of
the sum of e * e, so that the difference divided by the root of their number is about the RMSE.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import prod, sqrt

import numpy as np
import numpy.typing as npt

from atc.codegen.interface import Port
from atc.codegen.step_values import StepValue, step_values
from atc.errors import OptionError
from atc.ir.graph import Array, DType
from atc.memory.arena import Arena
from atc.names import c_string
from atc.program.steps import Program

VALUES = 64
"""Numbers that a self-test compares, in all outputs together: 256 bytes."""

ERRORS = 4.0
"""The errors of the reference that another's may be, each rounding in its own way."""

NODES = 1200
"""Bytes that sums and names of nodes may take."""

_LONGEST = 32
"""Characters of a node's name; of a longer one these are the last."""

_SUM = 28
"""Bytes that a node takes besides its name, on a processor of 32 bits."""

_SUMMED = (DType.FLOAT, DType.INT8, DType.UINT8, DType.INT16, DType.UINT16, DType.INT32)
_A, _C = 1664525, 1013904223  # Numerical Recipes' generator
_ROUNDING = 2.0**-23

_INTEGERS = {"int8": "(int)({0} >> 24) - 128", "uint8": "{0} >> 24"}
_OTHERS = ("int16", "int32", "int64", "uint16", "uint32", "uint64", "bool")


@dataclass(frozen=True)
class Golden:
    """The expected values of every `stride`-th element of an output, give or take `tolerance`."""

    values: tuple[float, ...]
    stride: int
    tolerance: float
    is_float: bool

    @property
    def type(self) -> str:
        """The C type that values are compared in."""
        return "float" if self.is_float else "int64_t"

    @property
    def limit(self) -> str:
        """The tolerance in C."""
        return self._number(self.tolerance)

    @property
    def lines(self) -> list[str]:
        """The values in C, eight a line."""
        texts = [self._number(v) for v in self.values]
        return [", ".join(texts[k : k + 8]) for k in range(0, len(texts), 8)]

    def _number(self, value: float) -> str:
        return _float(value) if self.is_float else str(int(value))


@dataclass(frozen=True)
class Expected:
    """Results that a reference computes of the self-test's inputs."""

    outputs: tuple[Golden, ...] = ()
    values: Mapping[str, Array] = field(default_factory=dict, compare=False, repr=False)
    """The results of the model's nodes, by their names."""
    tolerance: float = 0.0
    """The error that floats may have, as a part of the largest magnitude."""
    errors: Mapping[str, float] = field(default_factory=dict, hash=False)
    """The largest error that the reference's own values have, by their names, where it's known."""


@dataclass(frozen=True)
class NodeSum:
    """The expected sum of a node's result after a step; numbers but `step` are C.

    It lies `offset` bytes from the begin of the arena, or of an output: `buffer` - 1. The sum and
    the tolerance are divided by the root of the number of elements, 1 / `scale`.
    """

    node: str
    step: int
    buffer: int
    offset: int
    count: int
    type: str
    sum: str
    tolerance: str
    scale: str

    @property
    def size(self) -> int:
        """The bytes that it takes."""
        return _SUM + len(self.node) - 1


def _float(value: float) -> str:
    text = f"{value:.9g}"
    return f"{text}f" if "." in text or "e" in text else f"{text}.0f"


def golden_of(
    outputs: Sequence[Array], tolerance: float, errors: Sequence[float]
) -> tuple[Golden, ...]:
    """Return what a self-test compares of a reference's outputs; OptionError for no numbers.

    `tolerance` is a part of an output's largest magnitude, `errors` are the reference's own.
    """
    count = max(VALUES // max(len(outputs), 1), 1)
    found = []
    for k, (output, error) in enumerate(zip(outputs, errors, strict=True)):
        array = np.asarray(output).ravel()
        is_float = array.dtype.kind == "f" or array.dtype.name == "bfloat16"
        if not is_float and array.dtype.kind not in "iub":
            raise OptionError(f"output {k} is {array.dtype}", where="--selftest",
                              hint="self-tests compare numbers")  # fmt: skip
        stride = max(-(-array.size // count), 1)
        values = array[::stride].astype(np.float64)
        if not np.isfinite(values).all() or np.abs(values).max(initial=0) >= 2**62:
            raise OptionError(
                f"output {k} has no finite numbers for the self-test's inputs", where="--selftest"
            )
        scale = float(np.abs(array.astype(np.float64)).max(initial=0)) or 1.0
        step = float(array.dtype.kind in "iu" and array.dtype.itemsize == 1)
        allowed = tolerance * scale + ERRORS * error if is_float else step
        found.append(Golden(tuple(values.tolist()), stride, allowed, is_float))
    return tuple(found)


def node_sums(program: Program, arena: Arena, expected: Expected) -> tuple[NodeSum, ...]:
    """Return the sums of nodes' results, as many of them as there is room for, evenly spread.

    A node has none whose result the model doesn't know, or has in another type.
    """
    made = (_node_sum(value, expected) for value in step_values(program, arena))
    found = [each for each in made if each is not None]
    every = 1
    while sum(each.size for each in found[every - 1 :: every]) > NODES:
        every += 1
    return tuple(found[every - 1 :: every])


def _node_sum(value: StepValue, expected: Expected) -> NodeSum | None:
    """Return the sum of a step's result; None where what it must be isn't known."""
    known = next((v for v in value.names if v in expected.values), None)
    values = None if known is None else _laid_out(expected.values[known], value.type.shape)
    dtype = value.type.dtype
    if known is None or values is None or dtype not in _SUMMED or values.dtype != dtype.numpy:
        return None
    wide = values.astype(np.float64)
    most = float(np.abs(wide).max(initial=0))
    if not wide.size or not np.isfinite(most) or wide.size * most >= 1e37:
        return None
    if value.buffer > 255 or value.step >> 16 or value.offset + value.type.nbytes >> 32:
        return None  # more than the table has room for
    root = sqrt(wide.size)
    allowed = expected.tolerance * (most or 1.0) + ERRORS * expected.errors.get(known, 0.0)
    allowed += _ROUNDING * root * float(wide.std())
    if dtype.numpy.itemsize == 1:
        allowed = 0.5 + 1 / root  # some may be one step apart
    sum_ = float(wide @ signs(wide.size))
    shown = value.node if len(value.node) <= _LONGEST else f"..{value.node[2 - _LONGEST :]}"
    return NodeSum(
        c_string(shown), value.step, value.buffer, value.offset, wide.size, dtype.c, _float(sum_),
        _float(allowed), _float(1 / root),
    )  # fmt: skip


def _laid_out(array: Array, shape: Sequence[int]) -> Array | None:
    """Return the elements in the order of memory, where channels may be in blocks; None: unknown.

    With blocks of b channels the shape is [N, C / b, *spatial, b].
    """
    if array.shape == (*shape,):
        return array.ravel()
    if array.ndim < 2 or len(shape) != array.ndim + 1 or array.size != prod(shape):
        return array.ravel() if array.size == prod(shape) else None
    batch, channels, *spatial = array.shape
    if (*shape,) != (batch, channels // shape[-1], *spatial, shape[-1]):
        return array.ravel()
    split = array.reshape(batch, channels // shape[-1], shape[-1], *spatial)
    return np.moveaxis(split, 2, -1).ravel()


def signs(count: int) -> npt.NDArray[np.float64]:
    """Return the signs that the generator's numbers have from 0 on: -1.0 for those from 2**31."""
    powers = np.full(count, _A, np.uint32)
    powers[:1] = 1
    sums = np.add.accumulate(np.multiply.accumulate(powers, dtype=np.uint32), dtype=np.uint32)
    return np.where(np.uint32(_C) * sums >> np.uint32(31), -1.0, 1.0)


def formula(port: Port) -> str:
    """Return the C of an element of an input over the generator's next number."""
    name, word = port.dtype.numpy.name, "next(&state)"
    if name in ("float32", "float64"):
        text = f"(float)((int32_t)({word} >> 16) - 32768) / 32768.0f"
        return text if name == "float32" else f"(double)({text})"
    if name in _INTEGERS:
        return f"({port.dtype.c})({_INTEGERS[name].format(word)})"
    return f"({port.dtype.c})({word} >> 31)"


def inputs_by_formula(shape: Sequence[int], dtype: np.dtype, number: int) -> Array:
    """Return the self-test's input of this number, as `formula` makes it in C.

    Raises OptionError for types that it has no formula for.
    """
    name = np.dtype(dtype).name
    if name not in ("float32", "float64", *_INTEGERS, *_OTHERS):
        raise OptionError(f"an input is {name}", where="--selftest",
                          hint="self-tests have inputs of numbers of 32 or 64 bits, or integers"
                          )  # fmt: skip
    state, words = number + 1, np.empty(prod(shape), np.uint32)
    for k in range(words.size):
        state = (state * _A + _C) & 0xFFFFFFFF
        words[k] = state
    values: Array
    if name.startswith("float"):
        values = ((words >> 16).astype(np.float32) - 32768) / np.float32(32768)
    elif name in _INTEGERS:
        values = (words >> 24).astype(np.int32) - (128 if name == "int8" else 0)
    else:
        values = words >> 31
    return values.astype(dtype).reshape(tuple(shape))
