"""Matches dequantized values: the integers that arithmetic may read in place of them."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from math import prod

import numpy as np
import numpy.typing as npt

from atc.ir.expr import Call, Const, Expr, Input, call, cast, const
from atc.ir.graph import DType, Node, TensorType
from atc.ir.ops import Map, Reshape
from atc.ir.ops.blocked import BYTES
from atc.passes.rewriting import Rewriting

Vector = npt.NDArray[np.float64]
Integers = npt.NDArray[np.int64]

SUM_LIMIT = 2**31 - 1
"""The largest sum that INT32 holds."""


@dataclass(frozen=True)
class Dequantized:
    """A value that is `(source - zero) * scale`, and the node that computes it."""

    source: str
    zero: int
    scale: float
    dtype: DType
    node: Node

    @property
    def numbers(self) -> tuple[int, float, DType]:
        """The quantization parameters that two tensors share."""
        return self.zero, self.scale, self.dtype

    def expr(self, index: int) -> Expr:
        """Return the value in float, of the source as operand `index`."""
        x = cast(Input(self.dtype, index), DType.FLOAT)
        if self.zero:
            x = call("Sub", x, const(self.zero, DType.FLOAT))
        return call("Mul", x, const(self.scale, DType.FLOAT))


MOVED = (*BYTES, DType.UINT16, DType.INT16)
"""Types of integers that are moved in place of what is dequantized from them."""


def dequantized(
    state: Rewriting, name: str, types: Collection[DType] = BYTES
) -> Dequantized | None:
    """Return how a value is dequantized from integers of some types, by one scale."""
    node = state.producers.get(name)
    if node is None or not isinstance(node.op, Map) or node.op.coordinates:
        return None
    op = node.op
    if len(op.views) != 1 or op.views[0].offset or not op.views[0].is_dense(op.shape):
        return None
    match op.expr:
        case Call(fn="Mul", args=(Call(fn="Cast", args=(x,)), Const() as scale)):
            zero, x = _zero_of(x)
        case Call(fn="Mul", args=(Call(fn="Sub", args=(Call(fn="Cast", args=(x,)), Const() as z)),
                                  Const() as scale)):  # fmt: skip
            zero = int(z.value)
        case _:
            return None
    if not isinstance(x, Input) or x.dtype not in types or op.expr.dtype is not DType.FLOAT:
        return None
    positive = 0 < float(scale.value) < float("inf")
    whole = prod(op.shape) == state.types[node.inputs[0]].size
    if not positive or not whole:
        return None
    return Dequantized(node.inputs[0], zero, float(scale.value), x.dtype, node)


def _zero_of(x: Expr) -> tuple[int, Expr]:
    match x:
        case Call(fn="Sub", args=(Call(fn="Cast", dtype=DType.INT32, args=(y,)), Const() as zero)):
            return int(zero.value), y
        case _:
            return 0, x


def quantizes(expr: Expr) -> tuple[int, float, DType] | None:
    """Return zero point, scale and type where an expression quantizes its one operand."""
    match expr:
        case Call(fn="CastSaturate", args=(Call(fn="Add", args=(y, Const() as zero)),)):
            point = int(float(zero.value))
        case Call(fn="CastSaturate", args=(y,)):
            point = 0
        case _:
            return None
    match y:
        case Call(fn="Round", args=(Call(fn="Div", args=(Input(), Const() as scale)),)):
            return point, float(scale.value), expr.dtype
        case _:
            return None


def shaped(state: Rewriting, source: str, like: str, node: Node) -> str:
    """Return integers in the shape of what is dequantized from them."""
    wanted = TensorType(state.types[source].dtype, state.types[like].shape)
    if state.types[source] == wanted:
        return source
    return state.emit(Reshape(), [source], wanted, node, "q")
