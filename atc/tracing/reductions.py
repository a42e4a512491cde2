"""The array API: functions that reduce along axes, or sort."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from atc.tracing.creation import axis_of, fixed, int64, scalar, uint8, uint64, zeros
from atc.tracing.creation import bool as _bool
from atc.tracing.errors import ArgumentError, OperandError, place
from atc.tracing.tensor import Tensor, ints, node, nodes
from atc.tracing.tensor import asarray as _asarray

Axes = int | Sequence[int] | None

# ---- reductions ---------------------------------------------------------------------------------


def axes_of(x: Tensor, axis: Axes) -> list[int]:
    if axis is None:
        return [*range(x.ndim)]
    return [axis_of(x, a) for a in ([axis] if isinstance(axis, int) else axis)]


def _reduced(op: str, x: Tensor, axis: Axes, keepdims: Any) -> Tensor:
    return node(op, x, ints(*axes_of(x, axis)), keepdims=int(keepdims), noop_with_empty_axes=1)


def _wide(x: Tensor, dtype: Any) -> Tensor:
    default = {"b": int64, "i": int64, "u": uint64}.get(x.dtype.kind, x.dtype)
    return _asarray(x, dtype or default)


def _floats(x: Tensor) -> Tensor:
    if x.dtype.kind != "f":
        raise OperandError(f"the mean of {x.dtype}", where=place(), hint="use astype")
    return x


def sum(x: Tensor, /, *, axis: Axes = None, dtype: Any = None, keepdims: Any = False) -> Tensor:  # noqa: A001
    """Return the sum along axes."""
    return _reduced("ReduceSum", _wide(x, dtype), axis, keepdims)


def prod(x: Tensor, /, *, axis: Axes = None, dtype: Any = None, keepdims: Any = False) -> Tensor:
    """Return the product along axes."""
    return _reduced("ReduceProd", _wide(x, dtype), axis, keepdims)


def mean(x: Tensor, /, *, axis: Axes = None, keepdims: Any = False) -> Tensor:
    """Return the mean along axes."""
    return _reduced("ReduceMean", _floats(x), axis, keepdims)


def max(x: Tensor, /, *, axis: Axes = None, keepdims: Any = False) -> Tensor:  # noqa: A001
    """Return the maximum along axes."""
    return _reduced("ReduceMax", x, axis, keepdims)


def min(x: Tensor, /, *, axis: Axes = None, keepdims: Any = False) -> Tensor:  # noqa: A001
    """Return the minimum along axes."""
    return _reduced("ReduceMin", x, axis, keepdims)


def var(
    x: Tensor, /, *, axis: Axes = None, correction: float = 0.0, keepdims: Any = False
) -> Tensor:
    """Return the variance along axes."""
    away = x - mean(x, axis=axis, keepdims=True)
    count = math.prod(fixed(x)[a] for a in axes_of(x, axis)) - correction
    return sum(away * away, axis=axis, keepdims=keepdims) / float(count)


def std(
    x: Tensor, /, *, axis: Axes = None, correction: float = 0.0, keepdims: Any = False
) -> Tensor:
    """Return the standard deviation along axes."""
    return node("Sqrt", var(x, axis=axis, correction=correction, keepdims=keepdims))


def all(x: Tensor, /, *, axis: Axes = None, keepdims: Any = False) -> Tensor:  # noqa: A001
    """Return whether all elements along axes are true, or not 0."""
    return min(_asarray(_asarray(x, _bool), uint8), axis=axis, keepdims=keepdims) != 0


def any(x: Tensor, /, *, axis: Axes = None, keepdims: Any = False) -> Tensor:  # noqa: A001
    """Return whether any element along axes is true, or not 0."""
    return max(_asarray(_asarray(x, _bool), uint8), axis=axis, keepdims=keepdims) != 0


def count_nonzero(x: Tensor, /, *, axis: Axes = None, keepdims: Any = False) -> Tensor:
    """Return the number of elements along axes that aren't 0."""
    return sum(_asarray(_asarray(x, _bool), int64), axis=axis, keepdims=keepdims)


def cumulative_sum(
    x: Tensor, /, *, axis: int | None = None, dtype: Any = None, include_initial: Any = False
) -> Tensor:
    """Return the running sum along an axis."""
    if axis is None and x.ndim != 1:
        raise ArgumentError("cumulative_sum needs an axis", where=place())
    at = axis_of(x, axis or 0)
    wide = _wide(x, dtype)
    found = node("CumSum", wide, scalar(at))
    if include_initial:
        shape = [1 if k == at else n for k, n in enumerate(fixed(x))]
        found = node("Concat", zeros(shape, dtype=wide.dtype), found, axis=at)
    return found


def _argument(op: str, x: Tensor, axis: int | None, keepdims: Any) -> Tensor:
    if axis is None:
        found = node(op, node("Reshape", x, ints(-1)), axis=0, keepdims=0)
        return node("Reshape", found, ints(*[1] * x.ndim)) if keepdims else found
    return node(op, x, axis=axis_of(x, axis), keepdims=int(keepdims))


def argmax(x: Tensor, /, *, axis: int | None = None, keepdims: Any = False) -> Tensor:
    """Return the index of the maximum."""
    return _argument("ArgMax", x, axis, keepdims)


def argmin(x: Tensor, /, *, axis: int | None = None, keepdims: Any = False) -> Tensor:
    """Return the index of the minimum."""
    return _argument("ArgMin", x, axis, keepdims)


# ---- order --------------------------------------------------------------------------------------


def _sorted(x: Tensor, axis: int, descending: Any) -> list[Tensor]:
    count = fixed(x)[axis_of(x, axis)]
    return nodes("TopK", [x, ints(count)], {"axis": axis, "largest": int(descending)}, 2)


def sort(x: Tensor, /, *, axis: int = -1, descending: Any = False, stable: Any = True) -> Tensor:
    """Return x sorted along an axis."""
    return _sorted(x, axis, descending)[0]


def argsort(x: Tensor, /, *, axis: int = -1, descending: Any = False, stable: Any = True) -> Tensor:
    """Return the indices that sort x along an axis; equal elements keep their order."""
    return _sorted(x, axis, descending)[1]


__all__ = [
    "all", "any", "argmax", "argmin", "argsort", "count_nonzero", "cumulative_sum", "max", "mean",
    "min", "prod", "sort", "std", "sum", "var",
]  # fmt: skip
