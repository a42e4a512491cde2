"""Scalar expressions as C99: all dtypes, all functions, defined results for every input."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from math import copysign, isinf, isnan

import numpy as np

from atc.dims import is_dynamic
from atc.errors import InternalError
from atc.ir.expr import Call, Const, Expr, Extent, Input, walk
from atc.ir.graph import DType
from atc.ir.view import View

FLOAT_FUNCTIONS = {
    "Abs": "fabs", "Floor": "floor", "Ceil": "ceil", "Round": "rint", "Trunc": "trunc",
    "Sqrt": "sqrt", "Exp": "exp", "Expm1": "expm1", "Log": "log", "Log1p": "log1p", "Sin": "sin",
    "Cos": "cos", "Tan": "tan", "Asin": "asin", "Acos": "acos", "Atan": "atan", "Sinh": "sinh",
    "Cosh": "cosh", "Tanh": "tanh", "Asinh": "asinh", "Acosh": "acosh", "Atanh": "atanh",
    "Erf": "erf", "Pow": "pow", "FMod": "fmod",
}  # fmt: skip
"""Functions of <math.h>; the float form has the suffix f."""

HELPED = frozenset({"Max", "Min", "Sign", "Sigmoid", "Softplus", "Mod", "FMod", "Pow", "Div", "Abs",
                    "ShiftLeft", "ShiftRight"})  # fmt: skip
"""Functions that kernel.h defines per dtype as k_<name>_<dtype>."""

OPERATORS = {
    "Add": "+", "Sub": "-", "Mul": "*", "Div": "/", "Equal": "==", "Less": "<", "LessOrEqual": "<=",
    "Greater": ">", "GreaterOrEqual": ">=", "And": "&&", "Or": "||", "Xor": "!=",
    "BitwiseAnd": "&", "BitwiseOr": "|", "BitwiseXor": "^",
}  # fmt: skip


def literal(value: float | int | bool, dtype: DType) -> str:
    """Return a C literal that has exactly this value in this type."""
    if dtype is DType.BOOL:
        return "true" if value else "false"
    if dtype.is_float:
        return _float_literal(float(value), copysign(1, value), dtype)
    number = int(value)
    if dtype is DType.INT64:
        return "INT64_MIN" if number == -(2**63) else f"INT64_C({number})"
    if dtype is DType.UINT64:
        return f"UINT64_C({number})"
    if dtype is DType.UINT32:
        return f"{number}u"
    return "INT32_MIN" if number == -(2**31) else str(number)


@lru_cache(1 << 10)  # the coefficients of functions stand in every kernel
def _float_literal(value: float, sign: float, dtype: DType) -> str:
    suffix = "" if dtype is DType.DOUBLE else "f"
    if isnan(value):
        return "NAN"
    if isinf(value):
        return "INFINITY" if value > 0 else "-INFINITY"
    with np.errstate(over="ignore"):
        number = np.float64(value) if dtype is DType.DOUBLE else np.float32(value)
        single = float(np.float32(value))
    if np.isinf(number):
        return "INFINITY" if number > 0 else "-INFINITY"
    text = (
        f"{number:.17g}" if dtype is DType.DOUBLE else np.format_float_scientific(number, trim="-")
    )
    plain = repr(float(number)) if single == float(number) else text
    text = plain if len(plain) < 10 else text
    if not any(c in text for c in ".e"):
        text += ".0"
    return f"{text}{suffix}" if sign > 0 else f"({text}{suffix})"


def value_type(dtype: DType) -> str:
    """Return the C type in which values of a dtype are computed."""
    return dtype.computed.c


def load(dtype: DType, place: str) -> str:
    """Return the C expression that reads an element as a value."""
    return place if dtype.computed is dtype else f"k_load_{dtype.label}({place})"


def store(dtype: DType, value: str) -> str:
    """Return the C expression of the element that stores a value; a loaded one is unchanged."""
    if dtype.computed is dtype:
        return value
    opening = f"k_load_{dtype.label}"
    bits = _bare(value.removeprefix(opening)) if value.startswith(opening) else ""
    return bits if f"{opening}({bits})" == value else f"k_store_{dtype.label}({value})"


def rounded(dtype: DType | None, value: str) -> str:
    """Return the C of a float rounded to a type of 16 bits, or as it is."""
    return value if dtype is None else load(dtype, store(dtype, value))


def address(view: View, indices: Sequence[str]) -> str:
    """Return the C index expression of a view at loop variables."""
    terms = []
    for stride, index in zip(view.strides, indices, strict=True):
        if index == "0":
            continue
        if stride == 1:
            terms.append(index)
        elif stride:
            negative = not is_dynamic(stride) and stride < 0  # an extent of a run is a name
            terms.append(f"{index} * ({stride})" if negative else f"{index} * {stride}")
    if view.offset or not terms:
        terms.append(str(view.offset))
    return " + ".join(terms)


def behind(pointer: str, index: str) -> str:
    """Return the C of a pointer to the element of an index expression."""
    return pointer if index == "0" else f"{pointer} + {index}"


def times(factor: str, number: int) -> str:
    """Return the C of a product; for a number of 1, that of the factor."""
    return factor if number == 1 else f"{factor} * {number}"


def render_expr(
    expr: Expr, read: Callable[[int], str], prefix: str = "v", rounding: str = "rintf"
) -> tuple[list[str], str]:
    """Return C declarations of shared subexpressions, then the C expression of the value.

    `read(k)` is the C expression of Input(k)'s value. Subexpressions used more than once and long
    ones get a `const` variable named by `prefix`. `rounding` is the function that rounds floats.
    """
    uses: dict[Expr, int] = {}
    tables = {e.args[0] for e in walk(expr) if isinstance(e, Call) and e.fn == "Lookup"}
    for e in walk(expr):
        if isinstance(e, Call):
            twice = e.fn in ("Max", "Min") and isinstance(e.args[-1], Const)
            for a in e.args:  # a clamp's C text has its operand twice
                uses[a] = uses.get(a, 0) + 1 + twice
    lines: list[str] = []
    done: dict[Expr, str] = {}
    for e in walk(expr):
        args = [done[a] for a in e.args] if isinstance(e, Call) else []
        text = _text(e, args, read, rounding)
        shared = uses.get(e, 0) > 1 and e not in tables
        if e is not expr and not isinstance(e, Const) and (shared or len(text) > 72):
            name = f"{prefix}{len(lines)}"
            lines.append(f"const {value_type(e.dtype)} {name} = {_bare(text)};")
            text = name
        done[e] = text
    return lines, _bare(done[expr])


_MIRRORED = {"Less": "Greater", "Greater": "Less", "LessOrEqual": "GreaterOrEqual",
             "GreaterOrEqual": "LessOrEqual", "Max": "Max", "Min": "Min"}  # fmt: skip


def _range(dtype: DType) -> tuple[int, int]:
    if dtype is DType.BOOL:
        return 0, 1
    bits = 8 * dtype.itemsize
    return (-(1 << bits - 1), (1 << bits - 1) - 1) if dtype.is_signed else (0, (1 << bits) - 1)


_RANGES = {d: _range(d) for d in DType if d.numpy.kind in "iub"}


def _decided(fn: str, x: Expr, c: Expr, text: str) -> str:
    """Return the C of a comparison that the range of an integer type decides, else ''.

    Compilers warn about such comparisons, such as `v < 0` of an unsigned v. `text` is the C of x.
    """
    if not isinstance(c, Const) or c.dtype not in _RANGES or isinstance(x, Const):
        return ""
    bottom, top = _RANGES[c.dtype]
    lowest, highest = c.value <= bottom, c.value >= top
    match fn:
        case "Max" if lowest:
            return text
        case "Min" if highest:
            return text
        case "Less" | "GreaterOrEqual" if lowest:
            return f"({text} == 0 {'&& false' if fn == 'Less' else '|| true'})"
        case "Greater" | "LessOrEqual" if highest:
            return f"({text} == 0 {'&& false' if fn == 'Greater' else '|| true'})"
        case _:
            return ""


def _bare(text: str) -> str:
    """Drop one pair of parentheses around the whole text."""
    if not (text.startswith("(") and text.endswith(")")):
        return text
    depth = 0
    for i, c in enumerate(text):
        depth += (c == "(") - (c == ")")
        if depth == 0 and i < len(text) - 1:
            return text
    return text[1:-1] if not text.startswith("(-") else text


def _text(e: Expr, args: list[str], read: Callable[[int], str], rounding: str) -> str:
    match e:
        case Input():
            return read(e.index)
        case Const():
            return literal(e.value, e.dtype)
        case Extent():
            return f"({value_type(e.dtype)})({e.extent})"
        case Call():
            return _call(e, args, rounding)
        case _:
            raise InternalError(f"unknown expression {e!r}")


def _call(e: Call, args: list[str], rounding: str) -> str:
    if e.fn in _MIRRORED:
        x, y = e.args
        known = _decided(e.fn, x, y, args[0]) or _decided(_MIRRORED[e.fn], y, x, args[1])
        if known:
            return known
    kind = e.args[-1].dtype if e.fn != "Where" else e.dtype
    work = kind.computed
    match e.fn:
        case "Cast":
            return _cast(e.args[0].dtype, e.dtype, args[0])
        case "Lookup":
            return _behind(args[0], _bare(args[1]))
        case "CastSaturate":
            of_float = e.args[0].dtype.computed is DType.FLOAT
            return f"{'k_satf' if of_float else 'k_sat'}_{e.dtype.label}({args[0]})"
        case "Bitcast":
            return _bitcast(e.args[0].dtype, e.dtype, args[0])
        case "Where":
            return f"({args[0]} ? {args[1]} : {args[2]})"
        case "Equal" if work is DType.STRING:
            return f"k_equal_str({', '.join(args)})"
        case "Neg":
            return (
                f"(-{args[0]})"
                if work.is_float
                else _wrap(work, f"0u - {_unsigned(work, args[0])}")
            )
        case "Not":
            return f"!{args[0]}"
        case "BitwiseNot":
            return f"({work.c})~{args[0]}"
        case "Reciprocal":
            return f"({literal(1, work)} / {args[0]})"
        case "IsNaN":
            return f"isnan({args[0]})" if work.is_float else "false"
        case "IsInf":
            return f"isinf({args[0]})" if work.is_float else "false"
        case "Max" | "Min" if isinstance(e.args[1], Const) and not isnan(float(e.args[1].value)):
            order = "<" if e.fn == "Max" else ">"  # a NaN operand fails the comparison and stays
            return f"({args[0]} {order} {args[1]} ? {args[1]} : {args[0]})"
    if work is DType.FLOAT and e.fn == "Round":
        return f"{rounding}({args[0]})"
    if work.is_float and e.fn in FLOAT_FUNCTIONS:
        suffix = "" if work is DType.DOUBLE else "f"
        return f"{FLOAT_FUNCTIONS[e.fn]}{suffix}({', '.join(args)})"
    if e.fn in OPERATORS and (work.is_float or e.fn != "Div"):
        return _operator(e.fn, work, args)
    if e.fn in HELPED:
        return f"k_{e.fn.lower()}_{work.label}({', '.join(args)})"
    if work.is_float or e.fn not in FLOAT_FUNCTIONS:
        raise InternalError(f"no C for {e.fn} of {work.label}")
    return args[0] if e.fn in ("Floor", "Ceil", "Round", "Trunc") else _via_double(e.fn, work, args)


def _behind(place: str, steps: str) -> str:
    """Return the C of the element that is so many after `x[at]`."""
    start, at = place.removesuffix("]").rsplit("[", 1)
    return f"{start}[{steps}]" if at == "0" else f"{start}[{at} + {steps}]"


def _via_double(fn: str, work: DType, args: list[str]) -> str:
    return f"({work.c}){FLOAT_FUNCTIONS[fn]}({', '.join(f'(double){a}' for a in args)})"


def _operator(fn: str, work: DType, args: list[str]) -> str:
    sign = OPERATORS[fn]
    if fn in ("Add", "Sub", "Mul") and not work.is_float and work is not DType.BOOL:
        left, right = (_unsigned(work, a) for a in args)
        return _wrap(work, f"{left} {sign} {right}")
    if fn.startswith("Bitwise"):
        return f"({work.c})({args[0]} {sign} {args[1]})"
    return f"({args[0]} {sign} {args[1]})"


def _unsigned(dtype: DType, value: str) -> str:
    """Signed overflow is undefined in C; ONNX integers wrap, so they are computed unsigned."""
    return f"(uint{max(32, 8 * dtype.itemsize)}_t){value}"


def _wrap(dtype: DType, value: str) -> str:
    return f"({dtype.c})({value})"


def _cast(source: DType, target: DType, value: str) -> str:
    if target is DType.BOOL:
        return f"({value} != 0)"
    if target.computed is not target:
        if source.computed is not target.computed:
            value = _cast(source, target.computed, value)
        return f"k_load_{target.label}(k_store_{target.label}({_bare(value)}))"
    if source.is_float and not target.is_float:
        wide = "f64" if source is DType.DOUBLE else "f32"
        return f"k_cast_{wide}_{target.label}({value})"
    return f"({target.c}){value}"


def _bitcast(source: DType, target: DType, value: str) -> str:
    """Reinterpret the bits of a value as another type of the same size."""
    bits = DType[f"UINT{8 * source.itemsize}"].c
    if source.computed is not source:
        value = store(source, value)
    elif source.is_float:
        value = f"k_bits_{source.label}({value})"
    else:
        value = f"({bits}){value}"
    if target.computed is not target:
        return load(target, _bare(value))
    return f"k_real_{target.label}({value})" if target.is_float else f"({target.c}){value}"
