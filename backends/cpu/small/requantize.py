"""Sums requantized to bytes: the common epilogue is a call, any other one its expression."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from math import frexp

import numpy as np

from atc.backends.cpu.small.fixed_point import Interval, byte_bounds, fixed_point
from atc.backends.cpu.small.rounded import (
    MOST,
    ROUNDING,
    Rounded,
    kept_byte,
    quantized_value,
    rounded_byte,
)  # fmt: skip
from atc.backends.cpu.small.steps import plus
from atc.backends.kernel import Workload
from atc.backends.render.expr import behind, literal
from atc.backends.render.loops import epilogue_lines, reader
from atc.ir.expr import Call, Const, Expr, Input, call, const, walk
from atc.ir.graph import DType
from atc.ir.ops import Epilogue


@dataclass(frozen=True)
class Requantize:
    """`round((sum + bias) * scale) + zero`, saturated: operands as C, None where there are none.

    `bias` and `scale` are the operands' indices among the inputs of the kernel; `factor` is the
    scale where it is one number.
    """

    bias: int | None
    scale: int | None
    factor: str
    zero: int
    dtype: DType
    low: int
    """The least whole number that the product may round to."""
    high: int
    """The greatest."""
    table: str = ""
    """The C of the place in a table where the result of a byte of 0 stands; '': there is none."""


def requantization(
    epilogue: Epilogue, w: Workload, first: int, most: int | None = None
) -> Requantize | None:
    """Return the requantization that an epilogue is, its operands from input `first` on.

    None where it is another one, or where bias or scale vary along another axis than the last.
    `most` is the largest magnitude of a sum, where that is known.
    """
    inner, table = _before_table(epilogue, first)
    found = rounded_byte(inner.expr)
    known = None if found is None else _requantization(found, inner, w, first, most)
    return None if known is None else replace(known, table=table)


def _before_table(epilogue: Epilogue, first: int) -> tuple[Epilogue, str]:
    """Return the epilogue of a byte that is looked up last, and the place of 0 in the table."""
    match epilogue.expr:
        case Call(fn="Lookup", args=(Input(_, k), x)) if not any(epilogue.views[k - 1].strides):
            table = behind(f"x{first + k - 1}", str(epilogue.views[k - 1].offset))
            return replace(epilogue, expr=x), table
        case _:
            return epilogue, ""


def _requantization(
    found: Rounded, epilogue: Epilogue, w: Workload, first: int, most: int | None = None
) -> Requantize | None:
    """Return the requantization that is rounded; the sum is Input(0)."""
    value, halvings = _halved(_multiplied(found.value, most))
    match value:
        case Call(fn="Mul", args=(whole, scale)) if not halvings or isinstance(scale, Const):
            pass
        case _:
            return None
    match whole:
        case Call(fn="Cast", dtype=DType.FLOAT, args=(Input(DType.INT32, 0),)):
            bias = 0
        case Call(fn="Cast", dtype=DType.FLOAT, args=(
            Call(fn="Add", args=(Input(DType.INT32, 0), Input(DType.INT32, k))),
        )):  # fmt: skip
            bias = k
        case _:
            return None
    index, factor = _scale(scale, 0.5**halvings)
    if not factor and index is None:
        return None
    for k in (bias, index or 0):
        if k and not _by_column(epilogue, w, k, first):
            return None
    return Requantize(
        first + bias - 1 if bias else None, None if index is None else first + index - 1,
        factor, found.zero, found.dtype, found.low, found.high,
    )  # fmt: skip


def _multiplied(value: Expr, most: int | None) -> Expr:
    """Return a scaled sum that is divided by a number as a multiple of it, if it rounds alike."""
    match value:
        case Call(fn="Div", args=(Call(fn="Mul", args=(total, Const() as scale)), Const() as by)):
            factor = _one_factor(float(scale.value), float(by.value), most) if most else None
            return value if factor is None else call("Mul", total, const(factor, DType.FLOAT))
        case _:
            return value


@lru_cache(maxsize=256)
def _one_factor(scale: float, divisor: float, most: int) -> float | None:
    """Return a factor by which all sums up to `most` become what scale and divisor round to."""
    sums = np.arange(-most, most + 1).astype(np.float32)
    want = np.rint(sums * np.float32(scale) / np.float32(divisor))
    nearest = np.float32(scale / divisor)
    for end in (nearest, np.float32(np.inf), np.float32(-np.inf)):
        factor = np.nextafter(nearest, end)
        if np.array_equal(np.rint(sums * factor), want):
            return float(factor)
    return None


def _halved(value: Expr) -> tuple[Expr, int]:
    """Return what is divided by a power of two, as averages of 2 x 2 are, and by which."""
    match value:
        case Call(fn="Div", args=(whole, Const() as count)):
            mantissa, exponent = frexp(float(count.value))
            return (whole, exponent - 1) if mantissa == 0.5 and 0 < exponent < 16 else (value, 0)
        case _:
            return value, 0


def _scale(scale: Expr, part: float) -> tuple[int | None, str]:
    match scale:
        case Const() if 2.0**-100 < float(scale.value) < float("inf"):  # its halves are exact
            return None, literal(float(scale.value) * part, DType.FLOAT)
        case Input(DType.FLOAT, k) if k > 0:
            return k, ""
        case _:
            return None, ""


def _by_column(epilogue: Epilogue, w: Workload, k: int, first: int) -> bool:
    """Return whether a constant operand has one number for each index of the last axis."""
    view, known = epilogue.views[k - 1], w.constant[first + k - 1]
    axes = zip(view.strides[:-1], w.outputs[0].shape, strict=False)
    still = not any(stride for stride, extent in axes if extent > 1)
    return known and still and view.strides[-1] == 1 and not view.offset


def result_lines(
    epilogue: Epilogue, w: Workload, first: int, indices: Sequence[str], total: str, column: str,
    most: int | None = None,
) -> tuple[list[str], str]:  # fmt: skip
    """Return the C lines and the stored value of one result with the sum `total`.

    `indices` run over the result, the last of them is `column`; `most` is the largest magnitude of
    a sum, where that is known.
    """
    if most is not None and (few := _few_sums(epilogue.expr, most, total)):
        return few
    known = requantization(epilogue, w, first, most)
    if known is not None and known.table:
        return [], f"({known.table})[{_requantized(known, total, column)}]"
    inner, table = _before_table(epilogue, first)
    if table:
        lines, byte = result_lines(inner, w, first, indices, total, column)
        return lines, f"({table})[{byte}]"
    if known is None:
        fixed = _in_fixed_point(epilogue, w, first, indices, total, column)
        return fixed or _any_result(epilogue, w, first, indices, total)
    return [], f"({known.dtype.c})({_requantized(known, total, column)})"


def _requantized(known: Requantize, total: str, column: str) -> str:
    """Return the C of a requantized sum."""
    if known.bias is not None:
        total = f"{total} + x{known.bias}[{column}]"
    scale = known.factor or f"x{known.scale}[{column}]"
    whole = (known.low + known.zero, known.high + known.zero) == (-128, 127)
    if whole and known.zero not in (0, -128):  # there compilers saturate in one instruction
        return f"q_requantize_s({total}, {scale}, {known.zero})"
    return f"q_requantize({total}, {scale}, {known.low}, {known.high}){plus(known.zero)}"


def _in_fixed_point(
    epilogue: Epilogue, w: Workload, first: int, indices: Sequence[str], total: str, column: str
) -> tuple[list[str], str] | None:
    """Return lines and value of a byte made of the requantized sum and of operands of bytes.

    That is a residual added, or a factor multiplied; None where the epilogue is another one.
    """
    requantized: dict[Expr, Requantize] = {}

    def bounds(e: Expr) -> Interval | None:
        found = kept_byte(e)
        known = None if found is None else _requantization(found, epilogue, w, first)
        if known is None:
            return byte_bounds(e)
        requantized[e] = known
        return known.low + known.zero, known.high + known.zero

    found = fixed_point(epilogue.expr, bounds)
    if found is None:
        return None
    dtypes = [t.dtype if t else None for t in w.inputs[first:]]
    read = reader(epilogue.views, dtypes, indices, first)
    lines, names = [], [f"e{k}" for k in range(len(found.atoms))]
    for name, atom in zip(names, found.atoms, strict=True):
        known = requantized.get(atom)
        if known is not None:
            text = _requantized(known, total, column)
        else:
            assert isinstance(atom, Input)
            text = read(atom.index - 1)
        lines.append(f"const int32_t {name} = {text};")
    own, value = found.lines(names, "e")
    return [*lines, *own], value


def _few_sums(expr: Expr, most: int, total: str) -> tuple[list[str], str] | None:
    """Return lines and value of a byte made of a sum up to `most`, without floats.

    None where no weight gives every sum's byte.
    """
    sums = Input(DType.INT32, 0)
    found = fixed_point(expr, lambda e: (-most, most) if e == sums else None)
    return None if found is None or found.steps.guard else found.lines([total], "e")


def _any_result(
    epilogue: Epilogue, w: Workload, first: int, indices: Sequence[str], total: str
) -> tuple[list[str], str]:
    """Return lines and value of an epilogue that is no mere requantization.

    What is rounded is so without a call of the library, to an integer where it becomes a byte.
    """
    last = quantized_value(epilogue.expr)
    inner = epilogue if last is None else replace(epilogue, expr=last.value)
    near = last is not None and _all_clamped(last.value)
    rounding = "q_near" if near else ROUNDING
    lines, text = epilogue_lines(inner, w, total, indices, first, rounding)
    return lines, text if last is None else last.byte(text)


def _all_clamped(value: Expr) -> bool:
    """Return whether all that is rounded in an expression is brought into a byte's range there."""
    rounded = sum(isinstance(e, Call) and e.fn == "Round" for e in walk(value))
    clamped = 0
    for e in walk(value):
        match e:
            case Call(fn="Min", args=(Call(fn="Max", args=(x, Const() as low)), Const() as high)):
                small = max(abs(float(low.value)), abs(float(high.value))) < MOST
                if isinstance(x, Call) and x.fn == "Add" and isinstance(x.args[1], Const):
                    x = x.args[0]
                clamped += small and isinstance(x, Call) and x.fn == "Round"
            case _:
                pass
    return rounded == clamped
