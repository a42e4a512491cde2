"""Arithmetic between roundings to float16, which some processors do in float16: the same bits.

A float has more than twice as many bits: rounding the float nearest to a sum, a difference, a
product or a quotient of two float16 gives the float16 nearest to it (Figueroa 1995).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache

import numpy as np

from atc.backends.render.expr import literal
from atc.ir.expr import Call, Const, Expr, walk
from atc.ir.graph import DType

FUNCTIONS = {"Add": "v_f16_add", "Sub": "v_f16_sub", "Mul": "v_f16_mul", "Div": "v_f16_div"}

OF_FLOATS = {"Erf": "v_f16_erf"}
"""Functions of floats whose results are rounded, which need not be as exact before."""

Fused = tuple[str, tuple[Expr, ...]]
"""The C of a subexpression, with braces for its operands, and these."""


def half_arithmetic(expr: Expr) -> Mapping[Expr, Fused]:
    """Return what is computed in float16 within an expression, and the casts around it."""
    found: dict[Expr, Fused] = {}
    for e in walk(expr):
        match e:
            case Call(fn="Cast", dtype=DType.FLOAT16, args=(Call(fn=fn, args=args),)):
                text = _computed(fn, args) if fn in FUNCTIONS else None
                if text is not None:
                    found[e] = (text, tuple(_halves(args)))
                elif fn in OF_FLOATS:
                    found[e] = (f"{OF_FLOATS[fn]}({{}})", args)
    operands = {a for _, given in found.values() for a in given if a.dtype is DType.FLOAT16}
    for e in operands - found.keys():
        assert isinstance(e, Call)
        found[e] = ("v_f16_round({})", e.args)
    for e in walk(expr):
        if _rounded(e) in found:
            assert isinstance(e, Call)
            found[e] = ("v_f16_widen({})", e.args)
    return found


def _computed(fn: str, args: tuple[Expr, ...]) -> str | None:
    """Return the C of a function of float16, one of them no constant; None if they are floats."""
    given = [_rounded(a) for a in args]
    texts = ["{}" if half else _constant(a) for a, half in zip(args, given, strict=True)]
    if not any(given) or None in texts:
        return None
    if fn == "Div" and isinstance(args[1], Const) and is_factor(float(args[1].value)):
        return f"v_f16_div_const({{}}, {texts[1]})"
    wrapped = [t if t == "{}" else f"v_f16_set1({t})" for t in texts]
    return f"{FUNCTIONS[fn]}({', '.join(wrapped)})"


@cache
def is_factor(divisor: float) -> bool:
    """Return whether all float16 times a float's reciprocal are, rounded, the right quotients.

    So they are of most numbers: only denormal quotients can lie so near to a middle that the
    reciprocal's error matters.
    """
    with np.errstate(all="ignore"):
        x = np.arange(65536, dtype=np.uint16).view(np.float16).astype(np.float32)
        c = np.float32(divisor)
        found, exact = (y.astype(np.float16) for y in (x * (np.float32(1) / c), x / c))
    return bool(np.array_equal(found, exact, equal_nan=True))


def _halves(args: tuple[Expr, ...]) -> Iterator[Expr]:
    yield from (half for a in args if (half := _rounded(a)) is not None)


def _rounded(e: Expr) -> Expr | None:
    """Return the float16 that an expression widens, if it was rounded to that."""
    match e:
        case Call(fn="Cast", dtype=DType.FLOAT, args=(Call(fn="Cast", args=(x,)) as half,)):
            return half if half.dtype is DType.FLOAT16 and x.dtype is DType.FLOAT else None
        case _:
            return None


def _constant(e: Expr) -> str | None:
    """Return the C of a constant that float16 holds."""
    if not isinstance(e, Const) or e.dtype is not DType.FLOAT:
        return None
    value = float(e.value)
    with np.errstate(over="ignore"):
        exact = float(np.float16(value)) == value
    return literal(e.value, DType.FLOAT) if exact and np.isfinite(value) else None
