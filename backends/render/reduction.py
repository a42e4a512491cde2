"""Reductions in C: the neutral element, and the statement that adds a value."""

from __future__ import annotations

import numpy as np

from atc.backends.render.expr import literal
from atc.ir.graph import DType
from atc.ir.ops import ArgReduce

_STEPS = {"Sum": "total += {0};", "Prod": "total *= {0};", "And": "total = total && {0};",
          "Or": "total = total || {0};"}  # fmt: skip


def neutral(how: str, dtype: DType) -> str:
    """Return the C literal of a reduction's neutral element."""
    if how in ("Max", "Min"):
        if dtype.is_float:
            return "-INFINITY" if how == "Max" else "INFINITY"
        if dtype is DType.BOOL:
            return "false" if how == "Max" else "true"
        info = np.iinfo(dtype.numpy.name)
        return literal(int(info.min if how == "Max" else info.max), dtype)
    if how in ("And", "Or"):
        return "true" if how == "And" else "false"
    return literal(0 if how == "Sum" else 1, dtype)


def better(op: ArgReduce, dtype: DType) -> str:
    """Return the C condition of `value` to be taken for `best`; NaN wins, as in numpy."""
    wins = f"value {'>' if op.how == 'Max' else '<'}{'=' if op.last else ''} best"
    if not dtype.is_float:
        return wins
    return f"{wins} || isnan(value)" if op.last else f"{wins} || (isnan(value) && !isnan(best))"


def multiply_add(dtype: DType, total: str, a: str, b: str) -> str:
    """Return the C statement `total += a * b`; integers wrap instead of overflowing."""
    if dtype.is_float:
        return f"{total} += {a} * {b};"
    wide = f"uint{max(32, 8 * dtype.itemsize)}_t"
    return f"{total} = ({dtype.c})(({wide}){total} + ({wide}){a} * ({wide}){b});"


def accumulate(how: str, dtype: DType, value: str) -> str:
    """Return the C statement that adds a value to `total`."""
    if how in ("Max", "Min"):
        return f"total = k_{how.lower()}_{dtype.label}(total, {value});"
    if not dtype.is_float and how in ("Sum", "Prod") and dtype is not DType.BOOL:
        wide = f"uint{max(32, 8 * dtype.itemsize)}_t"
        sign = "+" if how == "Sum" else "*"
        return f"total = ({dtype.c})(({wide})total {sign} ({wide}){value});"
    return _STEPS[how].format(value)
