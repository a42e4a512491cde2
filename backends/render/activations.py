"""Activations within expressions that are one function of the vector vocabulary's mathematics."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from math import isclose, sqrt

from atc.ir.expr import Call, Const, Expr, rewritten
from atc.ir.graph import DType

NEAR = {"v_gelu": "GeluNear", "v_silu": "SiluNear"}
"""Activations for which another function is exact enough where numbers are rounded."""


def activation(e: Expr) -> tuple[str, Expr] | None:
    """Recognise x sigmoid(x), x tanh(softplus(x)) and 0.5 x (1 + erf(x / sqrt 2)), in any order."""
    factors = list(islice(_factors(e), 4))  # as many are none of them
    for x in factors:
        rest = [f for f in factors if f is not x]
        match rest:
            case [Call(fn="Sigmoid", args=(a,))] if a == x:
                return "v_silu", x
            case [Call(fn="Tanh", args=(Call(fn="Softplus", args=(a,)),))] if a == x:
                return "v_mish", x
            case [a, b] if _is_half(a) and _is_gate(b, x) or _is_half(b) and _is_gate(a, x):
                return "v_gelu", x
    return None


def near(e: Expr) -> Expr:
    """Return an activation as exact as a rounding to float16 needs it, or another expression."""
    known = activation(e)
    if known is None or known[0] not in NEAR:
        return e
    return Call(DType.FLOAT, NEAR[known[0]], known[1:])


def after_rounding(expr: Expr) -> Expr:
    """Return a float expression of products that were rounded, as exact as these are."""
    return rewritten(expr, near)


def _factors(e: Expr) -> Iterator[Expr]:
    if isinstance(e, Call) and e.fn == "Mul":
        for a in e.args:
            yield from _factors(a)
    elif isinstance(e, Call) and e.fn == "Div" and _value(e.args[1]) == 2:
        yield from _factors(e.args[0])
        yield Const(e.dtype, "0.5")
    else:
        yield e


def _value(e: Expr) -> float | None:
    return float(e.value) if isinstance(e, Const) else None


def _is_half(e: Expr) -> bool:
    return _value(e) == 0.5


def _is_gate(e: Expr, x: Expr) -> bool:
    """Return whether e is 1 + erf(x / sqrt 2)."""
    match e:
        case Call(fn="Add", args=(a, b)):
            erf = a if _value(b) == 1 else b if _value(a) == 1 else None
        case _:
            return False
    match erf:
        case Call(fn="Erf", args=(Call(fn="Div", args=(a, c)),)):
            return a == x and isclose(_value(c) or 0, sqrt(2), rel_tol=1e-4)
        case Call(fn="Erf", args=(Call(fn="Mul", args=(a, b)),)):
            scale = _value(b) if a == x else _value(a) if b == x else None
            return isclose(scale or 0, sqrt(0.5), rel_tol=1e-4)
        case _:
            return False
