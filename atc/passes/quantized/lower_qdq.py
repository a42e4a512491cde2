"""Turns dequantized arithmetic into arithmetic on the integers themselves.

A convolution of a dequantized tensor by dequantized weights becomes one of integers, whose exact
INT32 sums an epilogue scales: `float(sum + bias) * scale`, where `scale` is the product of both
scales in float64, rounded to float once (conv.py, and matmul.py for matrix products).
Elementwise nodes read the integers and dequantize them themselves; what only moves data moves
integers.
"""

from __future__ import annotations

from dataclasses import replace
from math import prod

from atc.ir.expr import Input, operands_of, substitute
from atc.ir.graph import DType, Node, TensorType
from atc.ir.ops import ArgReduce, Conv, ConvTranspose, Map, MatMul, Pool, Reduce, Reshape
from atc.ir.ops.blocked import BYTES
from atc.ir.ops.data import Concat, Gather, Pad
from atc.ir.view import View
from atc.passes.quantized.conv import conv_for_vectors, integer_conv, integer_conv_transpose
from atc.passes.quantized.matching import MOVED, dequantized, quantizes, shaped
from atc.passes.quantized.matmul import integer_product
from atc.passes.quantized.movement import joined_integers, moved_integers
from atc.passes.quantized.reduce import averaged_integers, compared_integers, reduced_integers
from atc.passes.quantized.weight_only import packed_product
from atc.passes.rewriting import Rewriting, distinct_operands, merge_origin


def lower_qdq(state: Rewriting, node: Node) -> Node:
    """Let a node read integers in place of what is dequantized from them."""
    match node.op:
        case Conv(accumulator=DType.FLOAT, zero_points=False):
            return integer_conv(state, node, node.op) or node
        case Conv(accumulator=DType.INT32):
            return conv_for_vectors(state, node, node.op) or node
        case ConvTranspose(accumulator=DType.FLOAT):
            return integer_conv_transpose(state, node, node.op) or node
        case MatMul(accumulator=DType.FLOAT):
            product = integer_product(state, node, node.op)
            return product or packed_product(state, node, node.op) or node
        case Map() if node.op.is_movement:
            return _moved(state, node) or node
        case Reshape() | Concat():
            return _moved(state, node) or node
        case Pool(how="Max") if len(node.outputs) == 1:
            return _moved(state, node) or node
        case Pool(how="Average"):
            return averaged_integers(state, node, node.op) or node
        case Reduce():
            return reduced_integers(state, node, node.op) or node
        case ArgReduce():
            return compared_integers(state, node, node.op) or node
        case Pad() | Gather():
            return moved_integers(state, node, node.op) or node
        case Map():
            return joined_integers(state, node, node.op) or _map(state, node, node.op)
        case _:
            return node


# ---- movement and elementwise nodes --------------------------------------------------------------


def _moved(state: Rewriting, node: Node) -> Node | None:
    """Move integers and dequantize afterwards."""
    types = BYTES if isinstance(node.op, Pool) else MOVED
    found = [dequantized(state, name, types) for name in node.inputs]
    first = found[0]
    if first is None or any(f is None or f.numbers != first.numbers for f in found):
        return None
    result = state.types[node.outputs[0]]
    op = node.op
    if isinstance(op, Map):
        op = replace(op, expr=Input(first.dtype, 0))
    sources = [f.source for f in found if f is not None]
    if isinstance(op, Pool | Concat):  # these look at the shape, which a source has only by size
        sources = [shaped(state, s, n, node) for s, n in zip(sources, node.inputs, strict=True)]
    moved = state.emit(op, sources, TensorType(first.dtype, result.shape), node, "q")
    dequantize = Map((result.size,), first.expr(0), (View((1,)),))
    return Node(dequantize, (moved,), node.outputs, merge_origin(first.node, node))


def _map(state: Rewriting, node: Node, op: Map) -> Node:
    """Read integers where an operand is dequantized from them."""
    found = {k: dequantized(state, name, MOVED) for k, name in enumerate(node.inputs)}
    known = {k: d for k, d in found.items() if d is not None}
    if not known or op.coordinates:
        return node
    own = known.get(0)
    requantized = quantizes(op.expr)
    dense = op.views[0].offset == 0 and op.views[0].is_dense(op.shape)
    whole = prod(op.shape) == state.types[node.inputs[0]].size
    if own is not None and requantized == own.numbers and len(node.inputs) == 1 and dense and whole:
        return Node(Reshape(), (own.source,), node.outputs, merge_origin(own.node, node))
    known = {k: d for k, d in known.items() if d.dtype in BYTES}
    if not known:
        return node
    types = {i.index: i.dtype for i in operands_of(op.expr)}
    expr = substitute(op.expr, lambda k: known[k].expr(k) if k in known else Input(types[k], k))
    names = [known[k].source if k in known else name for k, name in enumerate(node.inputs)]
    expr, inputs, views = distinct_operands(expr, names, op.views)
    origin = merge_origin(*(d.node for d in known.values()), node)
    return Node(Map(op.shape, expr, views), inputs, node.outputs, origin)
