"""The array API: types, and the creation of tensors."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from atc.tracing.errors import ArgumentError, place
from atc.tracing.tensor import Tensor, node
from atc.tracing.tensor import asarray as _asarray

bool = np.dtype(np.bool_)  # noqa: A001 (the standard's names)
int8, int16, int32, int64 = (np.dtype(f"int{n}") for n in (8, 16, 32, 64))
uint8, uint16, uint32, uint64 = (np.dtype(f"uint{n}") for n in (8, 16, 32, 64))
float32, float64 = np.dtype(np.float32), np.dtype(np.float64)
pi, e, inf, nan, newaxis = math.pi, math.e, math.inf, math.nan, None

# ---- types --------------------------------------------------------------------------------------


def astype(x: Tensor, dtype: Any, /, *, copy: Any = True, device: Any = None) -> Tensor:
    """Return x with elements of another type."""
    return _asarray(x, dtype)


def can_cast(from_: Any, to: Any, /) -> Any:
    """Return whether all values of a type can be represented in another."""
    return np.can_cast(from_.dtype if isinstance(from_, Tensor) else from_, to)


def result_type(*operands: Any) -> np.dtype[Any]:
    """Return the result type of operands or types."""
    return np.result_type(*(x.dtype if isinstance(x, Tensor) else x for x in operands))


def isdtype(dtype: Any, kind: Any) -> Any:
    """Return whether a type is of one of the standard's kinds."""
    return np.isdtype(dtype, kind)


def finfo(type: Any, /) -> Any:  # noqa: A002
    """Return the limits of a floating-point type."""
    return np.finfo(type.dtype if isinstance(type, Tensor) else type)


def iinfo(type: Any, /) -> Any:  # noqa: A002
    """Return the limits of an integer type."""
    return np.iinfo(type.dtype if isinstance(type, Tensor) else type)


# ---- creation -----------------------------------------------------------------------------------


def made(array: Any) -> Tensor:
    tensor = Tensor(np.asarray(array))
    tensor.constant = True
    return tensor


def asarray(obj: Any, /, *, dtype: Any = None, device: Any = None, copy: Any = None) -> Tensor:
    """Return a tensor of a number, nested lists of numbers or an array."""
    return _asarray(obj, dtype)


def arange(
    start: Any, /, stop: Any = None, step: Any = 1, *, dtype: Any = None, device: Any = None
) -> Tensor:
    """Return evenly spaced numbers below `stop`."""
    first: Any = 0 if stop is None else start
    last: Any = start if stop is None else stop
    floats = any(isinstance(v, float) for v in (first, last, step))
    kind = dtype or (float32 if floats else int64)
    return made(np.arange(first, last, step).astype(kind))


def full(shape: Any, fill_value: Any, *, dtype: Any = None, device: Any = None) -> Tensor:
    """Return a tensor filled with one value."""
    default = {"b": bool, "i": int64}.get(np.asarray(fill_value).dtype.kind, float32)
    return made(np.full(shape, fill_value, dtype or default))


def zeros(shape: Any, *, dtype: Any = None, device: Any = None) -> Tensor:
    """Return a tensor of zeros."""
    return made(np.zeros(shape, dtype or float32))


def ones(shape: Any, *, dtype: Any = None, device: Any = None) -> Tensor:
    """Return a tensor of ones."""
    return made(np.ones(shape, dtype or float32))


empty = zeros


def full_like(x: Tensor, /, fill_value: Any, *, dtype: Any = None, device: Any = None) -> Tensor:
    """Return a tensor filled with one value, of x's shape."""
    return full(fixed(x), fill_value, dtype=dtype or x.dtype)


def zeros_like(x: Tensor, /, *, dtype: Any = None, device: Any = None) -> Tensor:
    """Return zeros of x's shape."""
    return zeros(fixed(x), dtype=dtype or x.dtype)


def ones_like(x: Tensor, /, *, dtype: Any = None, device: Any = None) -> Tensor:
    """Return ones of x's shape."""
    return ones(fixed(x), dtype=dtype or x.dtype)


empty_like = zeros_like


def eye(
    n_rows: int, n_cols: int | None = None, /, *, k: int = 0, dtype: Any = None, device: Any = None
) -> Tensor:
    """Return a matrix with ones on a diagonal."""
    return made(np.eye(n_rows, n_cols, k, dtype or float32))


def linspace(
    start: Any, stop: Any, /, num: int, *, dtype: Any = None, device: Any = None,
    endpoint: Any = True,
) -> Tensor:  # fmt: skip
    """Return evenly spaced numbers."""
    return made(np.linspace(start, stop, num, endpoint=endpoint).astype(dtype or float32))


def tril(x: Tensor, /, *, k: int = 0) -> Tensor:
    """Return the lower triangle, with zeros above it."""
    return node("Trilu", x, scalar(k), upper=0)


def triu(x: Tensor, /, *, k: int = 0) -> Tensor:
    """Return the upper triangle, with zeros below it."""
    return node("Trilu", x, scalar(k), upper=1)


def scalar(value: int) -> Tensor:
    """Return a constant integer."""
    return made(np.asarray(value, np.int64))


def axis_of(x: Tensor, axis: int) -> int:
    """Return an axis as a number from 0. Raises ArgumentError."""
    if not -x.ndim <= axis < x.ndim:
        raise ArgumentError(f"axis {axis} of a tensor of {x.ndim} axes", where=place())
    return axis % x.ndim


def fixed(x: Tensor) -> tuple[int, ...]:
    """Return a shape all of whose extents are known. Raises ArgumentError."""
    if None in x.shape:
        raise ArgumentError("an extent is known only at run time", where=place())
    return tuple(n for n in x.shape if n is not None)


__all__ = [
    "arange", "asarray", "astype", "bool", "can_cast", "e", "empty", "empty_like", "eye", "finfo",
    "float32", "float64", "full", "full_like", "iinfo", "inf", "int16", "int32", "int64", "int8",
    "isdtype", "linspace", "nan", "newaxis", "ones", "ones_like", "pi", "result_type", "tril",
    "triu", "uint16", "uint32", "uint64", "uint8", "zeros", "zeros_like",
]  # fmt: skip
