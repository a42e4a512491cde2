"""Rewrite expressions over integers into the form that vector kernels compute.

Values that are quantized and then dequantized stay in float, between the same bounds; those that
are quantized to fewer bits meet their bounds before they become bytes; a division by a scale is
folded into the dividend's scales, in float64 and rounded once.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cache

import numpy as np

from atc.ir.expr import Call, Const, Expr, Input, call, cast, const, operands_of
from atc.ir.graph import DType, Node, Op
from atc.ir.ops import Conv, Epilogue, Map, MatMul, Normalize, Reduce, Softmax
from atc.ir.ops.blocked import BYTES
from atc.ir.ops.quantize import MatMulPacked
from atc.ir.view import View
from atc.passes.rewriting import Rewriting, distinct_operands

_BOUNDS = {
    DType.UINT8: (0, 255), DType.INT8: (-128, 127),
    DType.UINT16: (0, 65535), DType.INT16: (-32768, 32767),
}  # fmt: skip


def fuse_requantize(state: Rewriting, node: Node) -> Node:
    """Rewrite the expression of a Map that reads integers, or of an op's epilogue."""
    if isinstance(node.op, Conv | MatMul | MatMulPacked | Normalize | Reduce | Softmax):
        expr, views = node.op.epilogue.expr, node.op.epilogue.views
        own = len(node.inputs) - len(views)
    elif isinstance(node.op, Map) and not node.op.coordinates:
        expr, views, own = node.op.expr, node.op.views, 0
    else:
        return node
    integers = any(i.dtype in (*BYTES, DType.INT32) for i in operands_of(expr))
    base = 1 if own else 0
    operands = _Operands(state, base, list(node.inputs[own:]), list(views))
    new = _in_float(expr)
    new = _folded(new, operands) if integers else new
    if isinstance(node.op, Reduce):
        node = _elements_in_float(node, node.op)
    if new == expr:
        return node
    new, names, shown = distinct_operands(new, operands.names, operands.views, base)
    op: Op
    if isinstance(node.op, Map):
        op = replace(node.op, expr=new, views=shown)
    else:
        assert isinstance(node.op, Conv | MatMul | MatMulPacked | Normalize | Reduce | Softmax)
        op = replace(node.op, epilogue=Epilogue(new, shown))
    return replace(node, op=op, inputs=(*node.inputs[:own], *names))


def _elements_in_float(node: Node, op: Reduce) -> Node:
    new = _in_float(op.expr)
    return node if new == op.expr else replace(node, op=replace(op, expr=new))


@dataclass
class _Operands:
    """The operands of an expression, to which scaled constants are added."""

    state: Rewriting
    base: int
    names: list[str]
    views: list[View]
    done: dict[tuple[int, float], int] = field(default_factory=dict)

    def scaled(self, index: int, divisor: float) -> Expr | None:
        """Return constant operand `index` divided by a number, None if it isn't constant."""
        at = index - self.base
        if at < 0 or self.state.constant(self.names[at]) is None:
            return None
        if (index, divisor) not in self.done:
            array = self.state.constant(self.names[at])
            assert array is not None
            divided = (array.astype(np.float64) / divisor).astype(np.float32)
            self.names.append(self.state.add_constant(divided, f"{self.names[at]}.divided"))
            self.views.append(self.views[at])
            self.done[index, divisor] = self.base + len(self.names) - 1
        return Input(DType.FLOAT, self.done[index, divisor])


def _in_float(expr: Expr) -> Expr:
    """Keep values that are quantized and dequantized in float, where that gives the same value."""

    @cache
    def kept(e: Expr) -> Expr:
        match e:
            case Call(fn="Cast", dtype=DType.FLOAT, args=(
                Call(fn="Sub", args=(Call(fn="Cast", dtype=DType.INT32, args=(x,)),
                                     Const() as zero)),
            )) if x.dtype in _BOUNDS:  # fmt: skip
                point = const(int(zero.value), DType.FLOAT)
                return call("Sub", kept(cast(x, DType.FLOAT)), point)
            case Call(fn="Cast", dtype=DType.FLOAT, args=(
                Call(fn="CastSaturate", args=(x,)) as q,
            )):  # fmt: skip
                if q.dtype not in _BOUNDS or x.dtype is not DType.FLOAT:
                    return e
                low, high = (const(b, DType.FLOAT) for b in _BOUNDS[q.dtype])
                return call("Min", call("Max", kept(x), low), high)
            case Call(
                fn="Max" | "Min", args=(Call(fn="CastSaturate", args=(x,)), Const() as bound)
            ) if x.dtype is DType.FLOAT and _holds_zero(e.fn, bound):
                within = call(e.fn, x, const(float(bound.value), DType.FLOAT))
                return kept(cast(within, e.dtype, saturate=True))
            case Call(args=args):
                new = replace(e, args=tuple(map(kept, args)))
                return kept(new) if new != e else e
            case _:
                return e

    return kept(expr)


def _holds_zero(fn: str, bound: Const) -> bool:
    """Return whether 0, which NaN is quantized to, lies within a bound."""
    return bound.value <= 0 if fn == "Max" else bound.value >= 0


def _folded(expr: Expr, operands: _Operands) -> Expr:
    """Fold divisions of values that are rounded next."""

    @cache
    def folded(e: Expr) -> Expr:
        match e:
            case Call(fn="Round", args=(Call(fn="Div", args=(x, Const() as divisor)),)):
                inner = folded(x)
                value = float(divisor.value)
                new = _divided(inner, value, operands) if 0 < value < float("inf") else None
                return call("Round", new if new is not None else call("Div", inner, divisor))
            case Call(args=args):
                return replace(e, args=tuple(map(folded, args)))
            case _:
                return e

    return folded(expr)


def _divided(expr: Expr, divisor: float, operands: _Operands) -> Expr | None:
    """Return expr / divisor with the division folded into constants, None if there are none."""

    @cache
    def divided(e: Expr) -> Expr | None:
        match e:
            case Const(dtype=DType.FLOAT):
                quotient = np.float64(np.float32(e.value)) / np.float64(np.float32(divisor))
                return const(float(np.float32(quotient)), DType.FLOAT)
            case Input(dtype=DType.FLOAT):
                return operands.scaled(e.index, float(np.float32(divisor)))
            case Call(fn="Mul", dtype=DType.FLOAT, args=(x, factor)):
                scaled = divided(factor)
                return None if scaled is None else call("Mul", x, scaled)
            case Call(fn="Div", dtype=DType.FLOAT, args=(x, count)):
                scaled = divided(x)
                return None if scaled is None else call("Div", scaled, count)
            case Call(fn="Add" | "Sub" | "Max" | "Min", dtype=DType.FLOAT, args=(a, b)):
                parts = divided(a), divided(b)
                if parts[0] is None or parts[1] is None:
                    return None
                return call(e.fn, parts[0], parts[1])
            case _:
                return None

    return divided(expr)
