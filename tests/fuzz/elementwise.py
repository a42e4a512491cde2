"""Draws nodes that work element by element, and reductions along axes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from fuzz.draw import Draw, Made, Unsuitable

Template = Callable[[Draw], Made]

INTEGERS = "bBsSiIlL"
UNARY = {
    **dict.fromkeys(
        ("Sqrt", "Exp", "Log", "Sigmoid", "Tanh", "Erf", "Softplus", "Softsign", "Sin", "Cos",
         "Tan", "Atan", "Sinh", "Cosh", "Asinh", "Reciprocal", "Floor", "Ceil", "Round",
         "Mish", "HardSwish", "Acos", "Asin", "Atanh", "Acosh"), "fdh"),
    **dict.fromkeys(("Abs", "Sign"), "fdh" + INTEGERS),
    **dict.fromkeys(("Neg", "Relu"), "fdhbsil"),
    "Not": "?", "BitwiseNot": INTEGERS, "IsNaN": "fdh", "IsInf": "fd", "Identity": "f?ilhd",
    "Elu": "fdh", "Selu": "fdh", "Celu": "f", "LeakyRelu": "fdh", "ThresholdedRelu": "fdh",
    "HardSigmoid": "fdh", "Shrink": "fdbBil", "Gelu": "fdh", "Swish": "fdh",
}  # fmt: skip
_SINCE = {"BitwiseNot": 18, "Gelu": 20, "Mish": 18, "HardSwish": 14, "Swish": 24, "Celu": 12,
          "Softsign": 1}  # fmt: skip
_SPECIAL = (0.0, -0.0, np.inf, -np.inf, np.nan, 1.0, -1.0, 0.5, -0.5, 1.5, 2.5, -2.5, 88.8, -90.0,
            3e38, 1e-40, -1e-45, 1e20)  # fmt: skip


def _attributes(d: Draw, op: str) -> dict[str, Any]:
    a = round(float(d.rng.uniform(0.05, 2)), 3)
    match op:
        case "Elu" | "Celu" | "LeakyRelu" | "ThresholdedRelu":
            return d.some(alpha=a)
        case "Selu":
            return d.some(alpha=a, gamma=1.3)
        case "HardSigmoid":
            return d.some(alpha=a / 4, beta=0.4)
        case "Shrink":
            return d.some(lambd=a, bias=a / 3)
        case "Gelu":
            return d.some(approximate="tanh")
        case "Swish":
            return d.some(alpha=a)
        case "IsInf":
            return d.some(detect_negative=d.int(0, 1), detect_positive=d.int(0, 1))
        case _:
            return {}


def unary(op: str) -> Template:
    def draw(d: Draw) -> Made:
        if d.opset < _SINCE.get(op, 1):
            raise Unsuitable
        kinds = UNARY[op]
        if op == "Relu" and d.opset < 14:
            kinds = "fdh"
        x = d.tensor(kinds)
        if not d.reuse and x.array.dtype.kind == "f" and x.array.size and d.chance(0.3):
            with np.errstate(all="ignore"):
                special = np.array(_SPECIAL).astype(x.array.dtype)
            if op == "Mish":  # whose limit is a number, but not by the formula
                special = special[np.isfinite(special)]
            np.copyto(x.array, d.rng.choice(special, x.array.shape))
        return Made(op, [x], _attributes(d, op))

    return draw


_ARITHMETIC = {
    **dict.fromkeys(("Add", "Sub", "Mul"), "fdhilbBsSIL"), "Div": "fdh", "Pow": "fdil",
    "Mod": "ilbBsSIL", "Equal": "fil?d", "Less": "fdil", "Greater": "fdilb",
    "LessOrEqual": "fdil", "GreaterOrEqual": "fil", "And": "?", "Or": "?", "Xor": "?",
    "BitwiseAnd": INTEGERS, "BitwiseOr": INTEGERS, "BitwiseXor": INTEGERS, "BitShift": "BSIL",
    "PRelu": "fdh",
}  # fmt: skip


def binary(op: str) -> Template:
    def draw(d: Draw) -> Made:
        if d.opset < (18 if op.startswith("Bitwise") else 14 if op in ("Add", "Sub", "Mul") else 1):
            raise Unsuitable
        x = d.tensor(_ARITHMETIC[op])
        kind = _letter(x.array.dtype)
        attributes: dict[str, Any] = {}
        if op == "PRelu":
            shape = [1 if d.chance(0.4) else n for n in x.array.shape]
            drop = d.int(0, len(shape)) if d.chance(0.4) else 0
            return Made(op, [x, d.like(shape[drop:], kind)])
        y = d.partner(x.array.shape, kind)
        if op == "BitShift":
            attributes["direction"] = d.pick(("LEFT", "RIGHT"))
            y = d.new(y.array % 8)
        elif op in ("Mod", "Div") and kind not in "fdh":
            y = d.new(np.where(y.array == 0, 3, y.array).astype(y.array.dtype))
            attributes = d.some(fmod=1) if op == "Mod" else {}
        elif op == "Pow":
            x = d.new(np.abs(x.array) % 5)
            y = d.new(np.abs(y.array) % 4)
        elif op == "Equal" and d.chance():
            # Computed reals are open to rounding: only with themselves are they equal by rule.
            exact = x.array.dtype.kind != "f" or any(v is x for v in d.given)
            y = d.new(x.array.copy()) if exact else x
        operands = [x, y] if d.chance() or op in ("Pow", "Mod", "Div", "BitShift") else [y, x]
        return Made(op, operands, attributes)

    return draw


def _letter(dtype: np.dtype[Any]) -> str:
    from fuzz.draw import DTYPES

    return next(k for k, v in DTYPES.items() if np.dtype(v) == dtype)


def variadic(op: str) -> Template:
    def draw(d: Draw) -> Made:
        x = d.tensor("fdh" if op in ("Sum", "Mean") else "fdhilbB")
        others = [d.partner(x.array.shape, _letter(x.array.dtype)) for _ in range(d.int(0, 3))]
        return Made(op, [x, *others])

    return draw


def where(d: Draw) -> Made:
    x = d.tensor("filhd?B")
    c = d.partner(x.array.shape, "?")
    return Made("Where", [c, x, d.partner(x.array.shape, _letter(x.array.dtype))])


def clip(d: Draw) -> Made:
    if d.opset < 12:
        raise Unsuitable
    x = d.tensor("fdhilbB")
    kind = _letter(x.array.dtype)
    low, high = sorted((d.array((), kind), d.array((), kind)))
    if d.chance(0.1):
        low, high = high, low
    bounds = [d.new(a) if d.chance(0.75) else None for a in (low, high)]
    return Made("Clip", [x, *bounds])


def cast(d: Draw) -> Made:
    from onnx import helper

    x = d.tensor("fdhilbBsSI?")
    to = np.dtype(d.pick([np.float32, np.float64, np.float16, np.int32, np.int64, np.bool_]))
    small = d.new(np.clip(x.array.astype(np.float64), -100, 100).astype(x.array.dtype))
    return Made("Cast", [small], {"to": helper.np_dtype_to_tensor_dtype(to)})


def norm(op: str) -> Template:
    def draw(d: Draw) -> Made:
        if op == "Hardmax" and d.opset < 13:
            raise Unsuitable  # the reference takes the newer meaning of the axis
        x = d.tensor("fdh", low=1, zero=op != "Hardmax")
        return Made(op, [x], d.some(axis=d.axis(x.array.ndim)))

    return draw


REDUCTIONS = ("ReduceSum", "ReduceMean", "ReduceMax", "ReduceMin", "ReduceProd", "ReduceL1",
              "ReduceL2", "ReduceLogSum", "ReduceLogSumExp", "ReduceSumSquare")  # fmt: skip


def reduction(op: str) -> Template:
    def draw(d: Draw) -> Made:
        kinds = "filbB" if op in ("ReduceMax", "ReduceMin") else "fdil" if "L" not in op else "fd"
        x = d.tensor(kinds if op != "ReduceMean" else "fd", zero=op in ("ReduceSum", "ReduceProd"))
        axes = d.axes(x.array.ndim)
        attributes = d.some(keepdims=d.int(0, 1))
        if d.opset < (13 if op == "ReduceSum" else 18):
            return Made(op, [x], {**attributes, **({"axes": axes} if axes else {})})
        if not axes and d.chance(0.5):
            attributes["noop_with_empty_axes"] = d.int(0, 1)
        inputs = [x] if not axes and d.chance(0.5) else [x, d.const(axes)]
        return Made(op, inputs, attributes)

    return draw


def argument(op: str) -> Template:
    def draw(d: Draw) -> Made:
        x = d.tensor("fdilbB", low=1, zero=False)
        axis = d.axis(x.array.ndim)
        return Made(op, [x], d.some(axis=axis, keepdims=d.int(0, 1), select_last_index=d.int(0, 1)))

    return draw


def cumulative(d: Draw) -> Made:
    x = d.tensor("fdil", low=1)
    axis = d.const(d.axis(x.array.ndim), d.pick("il"))
    return Made("CumSum", [x, axis], d.some(exclusive=1, reverse=1))


def layer_normalization(d: Draw) -> Made:
    if d.opset < 17:
        raise Unsuitable
    x = d.tensor("fd", low=1, zero=False)
    axis = d.axis(x.array.ndim)
    kind = _letter(x.array.dtype)
    shape = x.array.shape[axis:]
    bias = d.like(shape, kind) if d.chance() else None
    attributes = {"axis": axis, **d.some(epsilon=0.01)}
    return Made("LayerNormalization", [x, d.like(shape, kind), bias], attributes)


def instance_normalization(d: Draw) -> Made:
    x = d.tensor("f", low=3, zero=False)
    c = x.array.shape[1]
    return Made("InstanceNormalization", [x, d.like((c,)), d.like((c,))], d.some(epsilon=0.01))


def batch_normalization(d: Draw) -> Made:
    if d.opset < 15:
        raise Unsuitable
    x = d.tensor("f", low=2)
    c = (x.array.shape[1],)
    variance = d.new(np.abs(d.array(c)) + np.float32(0.1))
    inputs = [x, d.like(c), d.like(c), d.like(c), variance]
    return Made("BatchNormalization", inputs, d.some(epsilon=0.01))


def lp_normalization(d: Draw) -> Made:
    x = d.tensor("fd", low=1, zero=False)
    return Made("LpNormalization", [x], d.some(axis=d.axis(x.array.ndim), p=d.int(1, 2)))


TEMPLATES: dict[str, Template] = {
    **{op: unary(op) for op in UNARY},
    **{op: binary(op) for op in _ARITHMETIC},
    **{op: variadic(op) for op in ("Sum", "Mean", "Max", "Min")},
    **{op: norm(op) for op in ("Softmax", "LogSoftmax", "Hardmax")},
    **{op: reduction(op) for op in REDUCTIONS},
    **{op: argument(op) for op in ("ArgMax", "ArgMin")},
    "Where": where, "Clip": clip, "Cast": cast, "CumSum": cumulative,
    "LayerNormalization": layer_normalization, "InstanceNormalization": instance_normalization,
    "BatchNormalization": batch_normalization, "LpNormalization": lp_normalization,
}  # fmt: skip
