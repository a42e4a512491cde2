"""Softmax between bytes in integers: exponentials from a table, their sum, one division a row."""

from __future__ import annotations

from decimal import Context, Decimal

import numpy as np

from atc.dims import is_dynamic
from atc.ir.expr import Input
from atc.ir.graph import Array, Node
from atc.ir.ops import Map, Softmax
from atc.ir.ops.quantize import SoftmaxBytes
from atc.passes.quantized.matching import dequantized, quantizes
from atc.passes.rewriting import Rewriting, merge_origin

MOST = 0.125
"""Results err by no more than this part of a quantum, before they are rounded."""


def softmax_of_bytes(state: Rewriting, node: Node) -> Node:
    """Compute a quantized Softmax of dequantized bytes without floats, within MOST."""
    op = node.op
    if not isinstance(op, Map) or len(node.inputs) != 1 or is_dynamic(op.shape):
        return node
    own, view = quantizes(op.expr), op.views[0]
    maker = state.producers.get(node.inputs[0])
    if own is None or maker is None or not state.only_reader(node.inputs[0]):
        return node
    softmax, whole = maker.op, state.types[node.inputs[0]].size
    if not isinstance(softmax, Softmax) or softmax.log or softmax.masked:
        return node
    plain = isinstance(softmax.epilogue.expr, Input) and len(maker.inputs) == 1
    if not plain or view.offset or not view.is_dense(op.shape):
        return node
    x, result = dequantized(state, maker.inputs[0]), state.types[node.outputs[0]]
    if x is None or result.size != whole or state.types[x.source].size != whole:
        return node
    zero, scale, _ = own
    new = integer_softmax(softmax, x.scale, scale, zero)
    if new is None:
        return node
    op_, table = new
    inputs = (x.source, state.add_constant(table, f"{node.outputs[0]}.exp"))
    return Node(op_, inputs, node.outputs, merge_origin(x.node, maker, node))


def integer_softmax(
    op: Softmax, x_scale: float, y_scale: float, zero: int
) -> tuple[SoftmaxBytes, Array] | None:
    """Return the operator in integers with its table; None where it would err by more than MOST."""
    if op.axis < 1 or not 2.0**-9 <= y_scale <= 1.0:
        return None
    count, most = op.axis, 1 / y_scale
    digits = 31 - (count - 1).bit_length()  # of the table's fraction: sums have 32 bits
    bits = 32 - int(-(-most // 1)).bit_length()
    # The sum's error, that of a number of the table, of its 16 bits, and of the reciprocal.
    error = most * ((count + 1) * 0.5 ** (digits + 1) + 0.5**16) + 0.5 ** (bits - 15)
    if digits < 16 or error > MOST:
        return None
    numerator = round(Decimal(2 ** (bits - 16 + digits)) / Decimal(y_scale))
    shape = (op.outer, op.axis, op.inner)
    new = SoftmaxBytes(*shape, numerator, digits - 16, bits, zero)
    return new, exponentials(x_scale, digits)


def exponentials(scale: float, digits: int) -> Array:
    """Return `exp(-scale * d)` for d up to 255 in steps of 2^-digits, the same on every machine."""
    exact = Context(prec=40, Emin=-(10**9))
    values = (exact.exp(Decimal(-scale) * d) * 2**digits for d in range(256))
    return np.array([round(v) for v in values], np.uint32)
