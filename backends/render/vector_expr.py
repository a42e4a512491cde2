"""Scalar expressions in the vector vocabulary: V_LANES neighbouring results at a time, in float.

Operands must lie densely along the last loop (stride 1: loaded) or not vary along it (stride 0:
broadcast). BOOL subexpressions are masks.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import isnan

import numpy as np

from atc.backends.render.activations import activation, near
from atc.backends.render.expr import address, behind, literal
from atc.backends.render.half_arithmetic import Fused, half_arithmetic
from atc.backends.target import Target
from atc.errors import InternalError
from atc.ir.expr import (
    Call,
    Const,
    Expr,
    Extent,
    Input,
    call,
    cast,
    inputs_of,
    walk,
)
from atc.ir.graph import DType, TensorType
from atc.ir.view import View

FUNCTIONS = {
    "Add": "v_add", "Sub": "v_sub", "Mul": "v_mul", "Div": "v_div", "Max": "v_max", "Min": "v_min",
    "Abs": "v_abs", "Neg": "v_neg", "Floor": "v_floor", "Ceil": "v_ceil", "Round": "v_round",
    "Trunc": "v_trunc", "Sqrt": "v_sqrt", "Exp": "v_exp", "Expm1": "v_expm1", "Log": "v_log",
    "Log1p": "v_log1p", "Sin": "v_sin", "Cos": "v_cos", "Tanh": "v_tanh", "Erf": "v_erf",
    "Sigmoid": "v_sigmoid", "Softplus": "v_softplus", "Equal": "v_eq", "Less": "v_lt",
    "LessOrEqual": "v_le", "Greater": "v_gt", "GreaterOrEqual": "v_ge", "IsNaN": "v_isnan",
    "Where": "v_select", "GeluNear": "v_gelu_near", "SiluNear": "v_silu_near",
}  # fmt: skip
"""Float functions that are one function of the vocabulary or its math functions."""

MASKS = {"And": "v_mask_and", "Or": "v_mask_or", "Not": "v_mask_not"}
"""Functions of masks."""

COMPOSED = frozenset({"Reciprocal", "Sign", "IsInf", "Cast", "Pow"})
"""Functions composed of several of the vocabulary's."""


def lanes(target: Target) -> int:
    """Return how many floats a vector of the target holds; 1 where it has none."""
    return target.vector_bytes // 4


BYTES = frozenset({DType.UINT8, DType.INT8})

NARROW = BYTES | {DType.UINT16, DType.INT16}
"""Integers that are floats once they are loaded; storing floats as such saturates."""

ROUNDED = {DType.BFLOAT16: "v_round_bf16", DType.FLOAT16: "v_round_f16"}
"""The functions that round floats as a cast there and back does."""

_NAMES = {DType.FLOAT: ("v_load", "v_store"), DType.INT32: ("v_i32_load", "v_i32_store")} | {
    t: (f"v_load_{t.label}", f"v_store_{t.label}") for t in (*NARROW, *ROUNDED)
}

LOADS = {t: load for t, (load, _) in _NAMES.items()}
"""The load of a vector of each type; narrow integers and 16-bit floats become floats."""

LOADED_PARTS = {t: f"{load}_n" for t, load in LOADS.items()}
"""The load of the first lanes of a vector."""

STORES = {t: store for t, (_, store) in _NAMES.items()}
"""The store of a vector of each type."""


KINDS = {DType.BOOL: "vmask", DType.INT32: "vi32", DType.FLOAT16: "vf16"}
"""The C types of vectors that are no floats."""

FLOATS = (DType.FLOAT, *ROUNDED)
"""The types whose vectors are read as floats without another loss."""


def rounded_vector(dtype: DType | None, value: str) -> str:
    """Return the C of a vector of floats rounded to a type of 16 bits, or as it is."""
    return value if dtype is None else f"{ROUNDED[dtype]}({value})"


INTEGER_FUNCTIONS = {"Add": "v_i32_add", "Sub": "v_i32_sub", "Mul": "v_i32_mul"}
"""Functions of INT32, which wrap."""


def vectorisable(expr: Expr) -> bool:
    """Return whether every subexpression is a float or a mask that the vocabulary can compute.

    Narrow integers, 16-bit floats and INT32 sums may be operands, where the expression makes floats
    of them; sums, differences and products of INT32 are computed too.
    """
    return expr.dtype is DType.FLOAT and all(_supported(e) for e in walk(expr))


def integral(expr: Expr) -> bool:
    """Return whether an expression is INT32 and the vocabulary can compute it."""
    return expr.dtype is DType.INT32 and all(_supported(e) for e in walk(expr))


def stored(expr: Expr) -> Expr | None:
    """Return the float expression whose vector is stored for a value; None where there is none.

    Storing narrow integers saturates: an integer that is to be saturated is stored as it is, and so
    is one that was clamped where that does the same. Storing 16-bit floats rounds.
    """
    match expr:
        case Input() if expr.dtype in ROUNDED:
            return cast(expr, DType.FLOAT)
        case Call(fn="Cast", args=(x,)) if expr.dtype in ROUNDED:
            return _before_rounding(x, expr.dtype) if x.dtype is DType.FLOAT else None
        case Call(fn="CastSaturate", args=(x,)) if expr.dtype in NARROW and _whole(x):
            return _unclamped(x, expr.dtype)
        case _:
            return expr if expr.dtype is DType.FLOAT else None


def held_between(dtype: DType) -> tuple[int, int]:
    """Return the least and the largest number of a type of integers."""
    count = 1 << 8 * dtype.itemsize
    return (-count // 2, count // 2 - 1) if dtype.is_signed else (0, count - 1)


def _before_rounding(e: Expr, half: DType) -> Expr:
    """Return a float that is rounded next, as exact as that needs: bfloat16 holds tiny ones."""
    return near(e) if half is DType.FLOAT16 else e


def _unclamped(e: Expr, dtype: DType) -> Expr:
    """Return a whole number that is stored narrow, less clamps beyond which storing saturates.

    It is round(clamp(x)) or that plus a zero point.
    """
    match e:
        case Call(fn="Add", args=(Call(fn="Round", args=(a,)), Const() as zero)):
            return call("Add", call("Round", _without_clamps(a, dtype, float(zero.value))), zero)
        case Call(fn="Round", args=(a,)):
            return call("Round", _without_clamps(a, dtype, 0.0))
        case _:
            return e


def _without_clamps(e: Expr, dtype: DType, zero: float) -> Expr:
    low, high = held_between(dtype)
    match e:
        case Call(fn="Max", args=(x, Const(value=bound))) if np.rint(float(bound)) + zero <= low:
            return _without_clamps(x, dtype, zero)
        case Call(fn="Min", args=(x, Const(value=bound))) if np.rint(float(bound)) + zero >= high:
            return _without_clamps(x, dtype, zero)
        case _:
            return e


def _whole(e: Expr) -> bool:
    match e:
        case Call(fn="Round" | "Floor" | "Ceil" | "Trunc"):
            return e.dtype is DType.FLOAT
        case Call(fn="Add" | "Sub" | "Max" | "Min", args=(a, b)):
            return e.dtype is DType.FLOAT and _whole(a) and _whole(b)
        case Call(fn="Cast", args=(a,)):
            return e.dtype is DType.FLOAT and a.dtype in NARROW
        case Const():
            return e.dtype is DType.FLOAT and float(e.value).is_integer()
        case _:
            return False


def store_vector(dtype: DType, place: str, value: str, count: str = "") -> str:
    """Return the C statement that stores a vector, or `count` lanes of it; NaN as the integer 0."""
    if dtype in NARROW and dtype is not DType.UINT8:
        value = f"v_without_nan({value})"
    if count:
        return f"{STORES[dtype]}_n({place}, {value}, {count});"
    return f"{STORES[dtype]}({place}, {value});"


def read_vector(dtype: DType, place: str, step: int, count: str = "") -> str:
    """Return the C expression of the vector at a place: of one number where `step` is 0, of
    `count` lanes where that is given."""
    if step:
        return f"{LOADED_PARTS[dtype]}({place}, {count})" if count else f"{LOADS[dtype]}({place})"
    if dtype is DType.INT32:
        return f"v_i32_set1(*({place}))"
    if dtype in ROUNDED:
        return f"v_set1(k_load_{dtype.label}(*({place})))"
    return f"v_broadcast({place})" if dtype is DType.FLOAT else f"v_set1((float)*({place}))"


def _supported(e: Expr) -> bool:
    match e:
        case Input():
            return e.dtype in LOADS
        case Call(fn="Cast", args=(Input(dtype=dtype),)) if dtype in ROUNDED:
            return e.dtype is DType.FLOAT
        case Call(fn="Cast", args=(a,)) if a.dtype in NARROW:
            return e.dtype in (DType.FLOAT, DType.INT32) and isinstance(a, Input)
        case Call(fn="Cast", args=(a,)) if a.dtype is DType.INT32:
            return e.dtype is DType.FLOAT
        case Call(fn="Cast", args=(a,)) if e.dtype in ROUNDED:
            return a.dtype is DType.FLOAT  # its reader must be a cast back
        case Call(fn="Cast", args=(Call(fn="Cast", dtype=dtype),)) if dtype in ROUNDED:
            return e.dtype is DType.FLOAT
        case Call(fn=fn, dtype=DType.INT32):
            return fn in INTEGER_FUNCTIONS
        case Const():
            return e.dtype in (DType.FLOAT, DType.INT32)
        case Extent():
            return e.dtype is DType.FLOAT
        case Call(fn="Where"):
            return e.dtype is DType.FLOAT
        case Call(fn="Cast"):
            return {e.dtype, e.args[0].dtype} == {DType.FLOAT, DType.BOOL}
        case Call(fn="Pow"):
            return isinstance(e.args[1], Const) and e.args[1].value == 2
        case Call(fn=fn) if fn in MASKS:
            return all(a.dtype is DType.BOOL for a in e.args)
        case Call(fn=fn):
            floats = all(a.dtype is DType.FLOAT for a in e.args)
            return floats and (fn in FUNCTIONS or fn in COMPOSED)
        case _:
            return False


def readable(views: Sequence[View], types: Sequence[TensorType | None]) -> bool:
    """Return whether all operands are floats, or have 16 bits of them, that can be read in vectors
    along the last loop."""
    fits = all(v.strides and v.strides[-1] in (0, 1) for v in views)
    floats = all(t is not None and t.dtype in FLOATS for t in types)
    return fits and floats and len(types) == len(views)


def vector_reader(
    views: Sequence[View], indices: Sequence[str], first: int = 0, count: str = "",
    types: Sequence[DType] = (),
) -> Callable[[int], str]:
    """Return how Input(k) reads operand `first + k` at the loop `indices`.

    The last index is where the vector begins; with `count` only so many lanes are read. All are
    floats unless `types` says otherwise.
    """

    def read(k: int) -> str:
        place = behind(f"x{first + k}", address(views[k], indices))
        dtype = types[k] if types else DType.FLOAT
        return read_vector(dtype, place, views[k].strides[-1], count)

    return read


def read_views(expr: Expr, views: Sequence[View]) -> dict[int, View]:
    """Return the views that an epilogue's expression reads, by number; Input(0) is no view."""
    return {k - 1: views[k - 1] for k in inputs_of(expr) if k}


def read_at(expr: Expr, views: Sequence[View], indices: Sequence[str]) -> list[str]:
    """Return the loop `indices` that the operands of an epilogue's expression depend on."""
    read = read_views(expr, views).values()
    return [name for k, name in enumerate(indices) if any(v.strides[k] for v in read)]


def readable_typed(views: Sequence[View], types: Sequence[TensorType | None]) -> bool:
    """Return whether all operands have types that can be read in vectors along the last loop."""
    fits = all(v.strides and v.strides[-1] in (0, 1) for v in views)
    known = all(t is not None and t.dtype in LOADS for t in types)
    return fits and known and len(types) == len(views)


def render_vector(
    expr: Expr, read: Callable[[int], str], prefix: str = "v"
) -> tuple[list[str], str]:
    """Return C declarations of shared subexpressions, then the C expression of the vector.

    `read(k)` is the C expression of Input(k)'s vector. Subexpressions used more than once and long
    ones get a `const` variable named by `prefix`.
    """
    order, fused = _order(expr)
    uses: dict[Expr, int] = {}
    for e in order:
        for a in _operands(e, fused):
            uses[a] = uses.get(a, 0) + 1 + _reads_twice(e)
    lines: list[str] = []
    done: dict[Expr, str] = {}
    for e in order:
        text = _text(e, [done[a] for a in _operands(e, fused)], fused, read)
        shared = uses.get(e, 0) > 1 and "(" in text
        if e is not expr and not isinstance(e, Const) and (shared or len(text) > 72):
            name = f"{prefix}{len(lines)}"
            read_as_floats = e.dtype in ROUNDED and e not in fused
            kind = "vf32" if read_as_floats else KINDS.get(e.dtype, "vf32")
            lines.append(f"const {kind} {name} = {text};")
            text = name
        done[e] = text
    return lines, done[expr]


# ---- subexpressions that are one math function ---------------------------------------------------


def _order(expr: Expr) -> tuple[list[Expr], dict[Expr, Fused]]:
    """Return the subexpressions to compute, operands first, and those that are one function."""
    fused = dict(half_arithmetic(expr))
    order: list[Expr] = []
    seen: set[Expr] = set()

    def visit(e: Expr) -> None:
        if e in seen:
            return
        seen.add(e)
        known = None if e in fused else _one_function(e)
        if known is not None:
            fused[e] = (f"{known[0]}({{}})", known[1:])
        for a in _operands(e, fused):
            visit(a)
        order.append(e)

    visit(expr)
    return order, fused


def _operands(e: Expr, fused: Mapping[Expr, Fused]) -> tuple[Expr, ...]:
    if e in fused:
        return fused[e][1]
    return e.args if isinstance(e, Call) else ()


def _one_function(e: Expr) -> tuple[str, Expr] | None:
    """Return the function of an operand that an expression is: an activation or a rounding."""
    match e:
        case Call(fn="Cast", args=(Call(fn="Cast", dtype=dtype, args=(x,)),)) if dtype in ROUNDED:
            return ROUNDED[dtype], _before_rounding(x, dtype)
        case _:
            return activation(e)


# ---- C text --------------------------------------------------------------------------------------


def _reads_twice(e: Expr) -> bool:
    """Return whether the C text of a function has its operand twice."""
    return isinstance(e, Call) and e.fn in ("Pow", "Sign")


def _text(
    e: Expr, args: list[str], fused: Mapping[Expr, Fused], read: Callable[[int], str]
) -> str:
    if e in fused:
        return fused[e][0].format(*args)
    match e:
        case Input():
            return read(e.index)
        case Const(dtype=DType.INT32):
            return f"v_i32_set1({literal(e.value, e.dtype)})"
        case Const():
            return "v_zero()" if repr(e.value) == "0.0" else f"v_set1({literal(e.value, e.dtype)})"
        case Extent():
            return f"v_set1((float){e.extent})"
        case Call(fn="Max" | "Min", args=(a, b)):
            return _extreme(e.fn, a, b, args)
        case Call(fn="Cast", args=(a,)) if a.dtype in (*NARROW, *ROUNDED, DType.INT32):
            if e.dtype is a.dtype or (e.dtype is DType.FLOAT and a.dtype is not DType.INT32):
                return args[0]  # narrow integers and 16-bit floats are read as floats
            return f"v_cvt_{'f32' if e.dtype is DType.FLOAT else 'i32'}({args[0]})"
        case Call(fn=fn, dtype=DType.INT32):
            return f"{INTEGER_FUNCTIONS[fn]}({args[0]}, {args[1]})"
        case Call(fn=fn) if fn in COMPOSED:
            return _composed(fn, args, e.dtype)
        case Call(fn=fn):
            return f"{FUNCTIONS.get(fn) or MASKS[fn]}({', '.join(args)})"
        case _:
            raise InternalError(f"unknown expression {e!r}")


def _extreme(fn: str, a: Expr, b: Expr, args: list[str]) -> str:
    """Return a minimum or maximum; with a constant bound first, one instruction keeps NaN."""
    known = [k for k, e in enumerate((a, b)) if isinstance(e, Const) and not isnan(e.value)]
    if len(known) != 1:
        return f"v_{fn.lower()}({args[0]}, {args[1]})"
    bound, x = args[known[0]], args[1 - known[0]]
    if fn == "Max" and bound == "v_zero()":
        return f"v_relu({x})"
    return f"v_{fn.lower()}_const({bound}, {x})"


def _composed(fn: str, args: list[str], dtype: DType) -> str:
    x = args[0]
    match fn:
        case "Reciprocal":
            return f"v_div(v_set1(1.0f), {x})"
        case "IsInf":
            return f"v_eq(v_abs({x}), v_set1(INFINITY))"
        case "Pow":
            return f"v_mul({x}, {x})"
        case "Cast" if dtype is DType.BOOL:
            return f"v_mask_not(v_eq({x}, v_zero()))"
        case "Cast":
            return f"v_select({x}, v_set1(1.0f), v_zero())"
        case "Sign":  # the sum turns -0 into 0 and keeps NaN
            one = f"v_copysign(v_set1(1.0f), {x})"
            different = f"v_mask_or(v_lt({x}, v_zero()), v_gt({x}, v_zero()))"
            return f"v_select({different}, {one}, v_add({x}, v_zero()))"
        case _:
            raise InternalError(f"no vector form of {fn}")
