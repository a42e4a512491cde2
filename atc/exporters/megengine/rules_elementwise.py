"""Functions of single elements, comparisons, conversions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from atc.exporters.megengine.builder import Builder, Node, Var

_MODES = {
    "Abs": "ABS", "Acos": "ACOS", "Acosh": "ACOSH", "Asin": "ASIN", "Asinh": "ASINH",
    "Atanh": "ATANH", "Ceil": "CEIL", "Cos": "COS", "Cosh": "COSH", "Erf": "ERF", "Exp": "EXP",
    "Floor": "FLOOR", "HardSwish": "H_SWISH", "Log": "LOG", "Neg": "NEGATE", "Not": "NOT",
    "Relu": "RELU", "Sigmoid": "SIGMOID", "Sign": "SIGN", "Sin": "SIN", "Sinh": "SINH",
    "Softplus": "SOFTPLUS", "Sqrt": "SQRT", "Tan": "TAN", "Tanh": "TANH",
    "Add": "ADD", "And": "AND", "Max": "MAX", "Min": "MIN", "Mul": "MUL", "Or": "OR",
    "Sub": "SUB", "Sum": "ADD", "Xor": "XOR",
}  # fmt: skip
"""Modes that do what the operator does, of one operand or of any number."""
_COMPARED = {"Equal": ("EQ", False), "Less": ("LT", False), "Greater": ("LT", True),
             "LessOrEqual": ("LEQ", False), "GreaterOrEqual": ("LEQ", True)}  # fmt: skip
"""The mode, and whether the operands are swapped."""


def _plain(b: Builder, node: Node, xs: Sequence[Var]) -> list[int]:
    mode = _MODES[node.op_type]
    found, *rest = (b.number(x) for x in xs)
    if not rest:
        unary = node.op_type not in ("Max", "Min", "Sum")
        return [b.elemwise(mode, found) if unary else found]
    for each in rest:
        found = b.elemwise(mode, found, each)
    return [found]


def _mean(b: Builder, node: Node, xs: Sequence[Var]) -> list[int]:
    found, *rest = (b.number(x) for x in xs)
    for each in rest:
        found = b.elemwise("ADD", found, each)
    return [b.elemwise("TRUE_DIV", found, b.like(len(xs), xs[0].type))]


def _compare(b: Builder, node: Node, xs: Sequence[Var]) -> list[int]:
    mode, swapped = _COMPARED[node.op_type]
    x, y = (b.number(v) for v in (reversed(xs) if swapped else xs))
    return [b.cast(b.elemwise(mode, x, y), np.bool_)]


def _test(b: Builder, node: Node, xs: Sequence[Var]) -> list[int]:
    if not (node.get("detect_negative", 1) and node.get("detect_positive", 1)):
        raise node.refuse("it tests one sign alone")
    x = b.number(xs[0])
    if node.op_type == "IsNaN":  # what differs from itself; 1.13 loads no mode of that name
        return [b.elemwise("NOT", b.cast(b.elemwise("EQ", x, x), np.bool_))]
    infinity = b.like(np.inf, xs[0].type)
    return [b.cast(b.elemwise("EQ", b.elemwise("ABS", x), infinity), np.bool_)]


def _divide(b: Builder, node: Node, xs: Sequence[Var]) -> list[int]:
    """Divide; integers' quotients are truncated, where MegEngine rounds down."""
    x, y = (b.number(v) for v in xs)
    if xs[0].type.kind == "f":
        return [b.elemwise("TRUE_DIV", x, y)]
    if xs[0].type.kind == "u":
        return [b.elemwise("FLOOR_DIV", x, y)]
    size = b.elemwise("FLOOR_DIV", b.elemwise("ABS", x), b.elemwise("ABS", y))
    sign = b.elemwise("MUL", b.elemwise("SIGN", x), b.elemwise("SIGN", y))
    return [b.elemwise("MUL", size, sign)]


def _modulo(b: Builder, node: Node, xs: Sequence[Var]) -> list[int]:
    if xs[0].type.kind != "f" and node.get("fmod", 0):
        raise node.refuse("its remainders have the dividend's sign")
    return [b.elemwise("MOD", *(b.number(x) for x in xs))]


def _power(b: Builder, node: Node, xs: Sequence[Var]) -> list[int]:
    x, exponent = (b.number(v) for v in xs)
    if xs[0].type.dtype != xs[1].type.dtype:
        exponent = b.cast(exponent, xs[0].type.dtype)
    return [b.elemwise("POW", x, exponent)]


def _reciprocal(b: Builder, node: Node, xs: Sequence[Var]) -> list[int]:
    return [b.elemwise("TRUE_DIV", b.like(1, xs[0].type), b.number(xs[0]))]


def _arctangent(b: Builder, node: Node, xs: Sequence[Var]) -> list[int]:
    return [b.elemwise("ATAN2", b.number(xs[0]), b.like(1, xs[0].type))]


def _round(b: Builder, node: Node, xs: Sequence[Var]) -> list[int]:
    """Round to the nearest, ties to even; MegEngine's own rounds them away from 0."""
    type_, x = xs[0].type, b.number(xs[0])
    down = b.elemwise("FLOOR", x)
    above = b.elemwise("SUB", x, down)
    half = b.like(0.5, type_)
    up = b.elemwise("LT", half, above)
    halved = b.elemwise("FLOOR", b.elemwise("MUL", down, half))
    odd = b.elemwise("SUB", down, b.elemwise("ADD", halved, halved))
    tie = b.elemwise("SWITCH_GT0", b.elemwise("EQ", above, half), odd)
    return [b.elemwise("ADD", down, b.elemwise("ADD", up, tie))]


def _leaky(b: Builder, node: Node, xs: Sequence[Var]) -> list[int]:
    slope = b.number(xs[1]) if len(xs) > 1 else b.like(node.get("alpha", 0.01), xs[0].type)
    return [b.elemwise("PRELU", b.number(xs[0]), slope)]


def _clip(b: Builder, node: Node, xs: Sequence[Var]) -> list[int]:
    x = b.number(xs[0])
    for limit, mode in zip(xs[1:], ("MAX", "MIN"), strict=False):
        if limit.type.size:
            x = b.elemwise(mode, x, b.number(limit))
    return [x]


def _where(b: Builder, node: Node, xs: Sequence[Var]) -> list[int]:
    condition, x, y = (b.number(v) for v in xs)
    return [b.selected(condition, x, y, node.results[0])]


def _cast(b: Builder, node: Node, xs: Sequence[Var]) -> list[int]:
    x, given, wanted = b.number(xs[0]), xs[0].type, node.results[0]
    if wanted.kind == "b" and given.kind != "b":  # all but 0 is true
        differs = b.elemwise("EQ", x, b.like(0, given))
        return [b.elemwise("NOT", b.cast(differs, np.bool_))]
    return [b.cast(x, wanted.dtype)]


def _triangle(b: Builder, node: Node, xs: Sequence[Var]) -> list[int]:
    """Keep a triangle of each matrix."""
    type_ = xs[0].type
    k = 0
    if len(xs) > 1:
        if xs[1].array is None:
            raise node.refuse("its diagonal isn't constant")
        k = int(xs[1].array)
    ones = np.ones(type_.shape[-2:], bool)
    mask = np.triu(ones, k) if node.get("upper", 1) else np.tril(ones, k)
    zero = b.like(0, type_)
    return [b.selected(b.constant(mask), b.number(xs[0]), zero, type_)]


def _one_hot(b: Builder, node: Node, xs: Sequence[Var]) -> list[int]:
    """Compare the indices with all classes; those below 0 count from the last."""
    depth, values = xs[1].array, xs[2].array
    if depth is None or values is None or xs[0].type.kind == "f":
        raise node.refuse("its depth and its values aren't constants, or its indices are floats")
    count, shape = int(depth.reshape(())), xs[0].type.shape
    axis = node.get("axis", -1) % (len(shape) + 1)
    index = b.reshape(b.number(xs[0]), [*shape[:axis], 1, *shape[axis:]])
    if xs[0].type.kind == "i":
        below = b.elemwise("LT", index, b.like(0, xs[0].type))
        index = b.elemwise("FUSE_MUL_ADD3", below, b.like(count, xs[0].type), index)
    classes = np.arange(count, dtype=xs[0].type.dtype)
    place = classes.reshape([-1, *[1] * (len(shape) - axis)])
    hit = b.cast(b.elemwise("EQ", index, b.constant(place)), np.bool_)
    off, on = (b.constant(v) for v in values)
    return [b.selected(hit, on, off, node.results[0])]


RULES: Mapping[str, Any] = {
    **dict.fromkeys(_MODES, _plain),
    **dict.fromkeys(_COMPARED, _compare),
    "Atan": _arctangent,
    "Cast": _cast,
    "CastLike": _cast,
    "Clip": _clip,
    "Div": _divide,
    "IsInf": _test,
    "IsNaN": _test,
    "LeakyRelu": _leaky,
    "Mean": _mean,
    "Mod": _modulo,
    "OneHot": _one_hot,
    "PRelu": _leaky,
    "Pow": _power,
    "Reciprocal": _reciprocal,
    "Round": _round,
    "Trilu": _triangle,
    "Where": _where,
}
