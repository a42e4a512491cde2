"""Inputs and outputs of networks: tensors of one or several shapes, sequences, optionals, strings.

A part of `atc/runtime/network.py`; generated projects carry all in one module.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

Array: TypeAlias = npt.NDArray[Any]

_DTYPES = {
    1: "float32", 2: "uint8", 3: "int8", 4: "uint16", 5: "int16", 6: "int32", 7: "int64",
    9: "bool", 10: "float16", 11: "float64", 12: "uint32", 13: "uint64", 16: "bfloat16",
    17: "float8_e4m3fn", 18: "float8_e4m3fnuz", 19: "float8_e5m2", 20: "float8_e5m2fnuz",
    21: "uint4", 22: "int4", 23: "float4_e2m1fn", 24: "float8_e8m0fnu", 25: "uint2", 26: "int2",
}  # fmt: skip
"""Element types by their codes in ONNX."""

STRING = 8
"""That of strings."""


def dtype_of(code: int) -> np.dtype[Any]:
    """Return the numpy type of an ONNX code; those of ml_dtypes are bits where it is absent."""
    name = _DTYPES[code]
    if code < 16:
        return np.dtype(name)
    try:
        import ml_dtypes
    except ImportError:
        return np.dtype(np.uint16 if code == 16 else np.uint8)
    dtype: np.dtype[Any] = np.dtype(getattr(ml_dtypes, name))
    return dtype


@dataclass(frozen=True)
class Tensor:
    """The name, shape and numpy element type of an input or output."""

    name: str
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    cell: int = 0
    """Bytes in which C holds a string, its NUL among them; 0 for numbers."""
    lowest: tuple[int, ...] = ()
    """The smallest extents of an input that takes several shapes; `shape` has the largest."""

    def __str__(self) -> str:
        kind = "string" if self.cell else self.dtype.name
        return f"{self.name}: {kind} [{', '.join(self.extents)}]"

    def takes(self, shape: tuple[int, ...]) -> bool:
        """Return whether a tensor may have this shape."""
        if not self.lowest or len(shape) != len(self.shape):
            return shape == self.shape
        return all(a <= n <= b for a, n, b in zip(self.lowest, shape, self.shape, strict=True))

    @property
    def extents(self) -> list[str]:
        """The shape for people, with ranges."""
        ends = zip(self.lowest or self.shape, self.shape, strict=True)
        return [str(b) if a == b else f"{a}~{b}" for a, b in ends]

    @property
    def stored(self) -> np.dtype[Any]:
        """The type of the elements in memory."""
        return np.dtype(f"S{self.cell}") if self.cell else self.dtype


@dataclass(frozen=True)
class Value:
    """An input or output of the model: one tensor, a sequence of them, a map, or (None) nothing.

    A map is a tensor of keys and one of values, which has a row for each map of a sequence.
    """

    name: str
    first: int
    count: int | None = 1
    is_sequence: bool = False
    entry: tuple[np.dtype[Any], np.dtype[Any]] | None = None
    """Of a map: the types of a key and of a value."""

    @property
    def is_plain(self) -> bool:
        """Whether it is one tensor."""
        return self.count is not None and not self.is_sequence and self.entry is None


def flat(values: Sequence[Value], given: Sequence[Any]) -> Sequence[Any]:
    """Return the arrays of inputs, those of sequences in their places."""
    if all(v.is_plain for v in values):
        return given
    if len(given) != len(values):
        names = [v.name for v in values]
        raise TypeError(f"{len(given)} inputs given, the network takes {len(values)}: {names}")
    arrays: list[Any] = []
    for value, item in zip(values, given, strict=True):
        if value.count is None:
            if item is not None:
                raise TypeError(f"input {value.name!r} must be None: it was compiled without value")
        elif value.is_sequence:
            if not isinstance(item, list | tuple) or len(item) != value.count:
                raise TypeError(f"input {value.name!r} must be a list of {value.count} arrays")
            arrays += item
        elif value.entry is not None:
            if not isinstance(item, Mapping):
                raise TypeError(f"input {value.name!r} must be a dict, not {type(item).__name__}")
            parts = ([*item], [*item.values()])
            arrays += [np.asarray(a, t) for a, t in zip(parts, value.entry, strict=True)]
        else:
            arrays.append(item)
    return arrays


def grouped(values: Sequence[Value], arrays: Sequence[Array]) -> list[Any]:
    """Return the outputs of the model: arrays, lists of them, dicts, lists of dicts, None."""
    found: list[Any] = []
    for value in values:
        if value.is_sequence:
            found.append([*arrays[value.first : value.first + (value.count or 0)]])
        elif value.entry is not None:
            keys, rows = (a.tolist() for a in arrays[value.first : value.first + 2])
            many = arrays[value.first + 1].ndim == 2
            maps = [dict(zip(keys, row, strict=True)) for row in (rows if many else [rows])]
            found.append(maps if many else maps[0])
        else:
            found.append(None if value.count is None else arrays[value.first])
    return found


def to_cells(array: Array, name: str, cell: int, in_place: bool) -> Array:
    """Return the strings of an input as C holds them: UTF-8, each in a cell of so many bytes."""
    if in_place or array.dtype.kind not in "OSU":
        what = f"S{cell}" if in_place else "an array of strings"
        raise TypeError(f"input {name!r} must be {what}, not {array.dtype}")
    cells = []
    for text in array.reshape(-1).tolist():
        if not isinstance(text, str | bytes):
            raise TypeError(f"input {name!r} holds a {type(text).__name__}, not a string")
        data = text if isinstance(text, bytes) else text.encode("utf-8", "surrogateescape")
        if len(data) >= cell or b"\0" in data:
            fault = "holds a NUL" if b"\0" in data else f"is longer than {cell - 1} bytes"
            raise ValueError(f"a string of input {name!r} {fault}: {text[:40]!r}")
        cells.append(data)
    return np.asarray(cells, f"S{cell}").reshape(array.shape)


def to_texts(array: Array) -> Array:
    """Return cells as objects; what isn't UTF-8 in them becomes surrogate escapes."""
    texts = np.empty(array.size, object)
    for k, data in enumerate(array.reshape(-1).tolist()):
        texts[k] = data.partition(b"\0")[0].decode("utf-8", "surrogateescape")
    return texts.reshape(array.shape)


def by_name(
    side: str, tensors: Sequence[Tensor] | Sequence[Value], given: Mapping[str, Any], complete: bool
) -> list[Any]:
    """Return the arrays in the tensors' order; None for an absent one that may be absent."""
    names = [t.name for t in tensors]
    for name in given:
        if name not in names:
            raise ValueError(f"there is no {side} {name!r}; the {side}s are {names}")
    for name in names:
        if complete and name not in given:
            raise TypeError(f"{side} {name!r} is missing")
    return [given.get(name) for name in names]


def listed_inputs(
    tensors: Sequence[Tensor], given: Sequence[Any], in_place: bool = False
) -> list[Array]:
    """Return the inputs as the network can read them; copies only where it must and may."""
    if len(given) != len(tensors):
        names = [t.name for t in tensors]
        raise TypeError(f"{len(given)} inputs given, the network takes {len(tensors)}: {names}")
    arrays = []
    for value, tensor in zip(given, tensors, strict=True):
        if isinstance(value, Mapping):
            raise TypeError(f"input {tensor.name!r} is a dict; run() takes inputs by name")
        array = np.asarray(value)
        if tensor.cell and not (in_place and array.dtype == tensor.stored):
            array = to_cells(array, tensor.name, tensor.cell, in_place)
        check(array, tensor, "input")
        if not (array.flags.c_contiguous and array.flags.aligned):
            if in_place:
                raise ValueError(f"input {tensor.name!r} can't be bound: it isn't contiguous")
            array = np.array(array, order="C")
        arrays.append(array)
    return arrays


def listed_outputs(
    tensors: Sequence[Tensor], given: Sequence[Any], inputs: Sequence[Array],
    shapes: Sequence[tuple[int, ...]],
) -> list[Array]:  # fmt: skip
    """Return the given arrays for the outputs, checked, and new ones for None."""
    if len(given) != len(tensors):
        raise TypeError(f"{len(given)} arrays for {len(tensors)} outputs")
    results: list[Array] = []
    named: list[Array] = []
    for value, own, shape in zip(given, tensors, shapes, strict=True):
        tensor = own if own.shape == shape else replace(own, shape=shape)
        if value is None:
            results.append(np.empty(shape, tensor.stored))
            continue
        if not isinstance(value, np.ndarray):
            raise TypeError(f"output {tensor.name!r} must be a numpy array, not {type(value)}")
        check(value, tensor, "output")
        flags = value.flags
        if not (flags.c_contiguous and flags.aligned and flags.writeable):
            raise ValueError(f"output {tensor.name!r} must be contiguous, aligned and writable")
        if any(np.may_share_memory(value, array) for array in (*inputs, *named)):
            raise ValueError(f"output {tensor.name!r} overlaps another tensor")
        named.append(value)
        results.append(value)
    return results


def check(array: Array, tensor: Tensor, side: str) -> None:
    """Raise TypeError or ValueError unless an array is what a tensor takes."""
    if array.dtype != tensor.stored:
        raise TypeError(f"{side} {tensor.name!r} must be {tensor.stored}, not {array.dtype}")
    if not tensor.takes(array.shape):
        wanted = f"the shape {tensor.shape}"
        if tensor.lowest:
            wanted = f"a shape in [{', '.join(tensor.extents)}]"
        raise ValueError(f"{side} {tensor.name!r} must have {wanted}, not {array.shape}")


class VariableError(ValueError):
    """An environment variable has a value that makes no sense."""


def number_of(variable: str, default: int, least: int) -> int:
    """Return the whole number that an environment variable holds; VariableError for another text.
    """
    text = os.environ.get(variable) or str(default)
    if not text.strip().removeprefix("-").isdecimal() or int(text) < least:
        raise VariableError(f"{variable}={text[:60]!r} is not a whole number from {least} on")
    return int(text)
