"""Movement of what was dequantized, done to the integers: padding, gathering, joining."""

from __future__ import annotations

from math import prod

import numpy as np

from atc.ir.expr import substitute
from atc.ir.graph import Array, Node, TensorType
from atc.ir.ops import Map
from atc.ir.ops.data import Concat, Gather, Pad
from atc.ir.view import View
from atc.passes.quantized.matching import MOVED, Dequantized, dequantized, quantizes
from atc.passes.rewriting import Rewriting, merge_origin


def moved_integers(state: Rewriting, node: Node, op: Pad | Gather) -> Node | None:
    """Pad or gather integers and dequantize afterwards."""
    x = dequantized(state, node.inputs[0], MOVED)
    result = state.types[node.outputs[0]]
    if x is None:
        return None
    rest = node.inputs[1:]
    if isinstance(op, Pad) and op.mode == "constant":
        value = _padding(state, x, rest[0] if rest else "")
        if value is None:
            return None
        rest = (state.add_constant(value, f"{node.inputs[0]}.padding"),)
    moved = state.emit(op, (x.source, *rest), TensorType(x.dtype, result.shape), node, "q")
    dequantize = Map((result.size,), x.expr(0), (View((1,)),))
    return Node(dequantize, (moved,), node.outputs, merge_origin(x.node, node))


def _padding(state: Rewriting, x: Dequantized, name: str) -> Array | None:
    """Return the integer that is dequantized to a padding's value, None where there is none."""
    array = state.constant(name) if name else np.zeros((), np.float32)
    if array is None:
        return None
    value = np.float32(array.reshape(()))
    bits = 8 * x.dtype.itemsize
    low = -(1 << bits - 1) if x.dtype.is_signed else 0
    number = np.rint(np.float64(value) / np.float32(x.scale)) + x.zero
    if not low <= number < low + (1 << bits):  # NaN neither
        return None
    same = np.float32(number - x.zero) * np.float32(x.scale) == value
    return np.asarray(number, x.dtype.numpy) if same else None


def joined_integers(state: Rewriting, node: Node, op: Map) -> Node | None:
    """Quantize the parts of a Concat, where these are dequantized, and join integers."""
    grid = quantizes(op.expr)
    if grid is None or len(node.inputs) != 1 or len(op.views) != 1:
        return None
    view, size = op.views[0], state.types[node.inputs[0]].size
    if view.offset or not view.is_dense(op.shape) or prod(op.shape) != size:
        return None
    concat = state.maker_for_one(node.inputs[0])
    if concat is None or not isinstance(concat.op, Concat):
        return None
    found = [dequantized(state, name) for name in concat.inputs]
    if not any(found):
        return None
    parts = []
    for name, x in zip(concat.inputs, found, strict=True):
        if x is not None and x.numbers == grid:
            parts.append(x.source)
            continue
        loops = (state.types[name].size,)
        expr = op.expr if x is None else substitute(op.expr, x.expr)
        source = name if x is None else x.source
        result = TensorType(op.expr.dtype, state.types[name].shape)
        parts.append(state.emit(Map(loops, expr, (View((1,)),)), [source], result, node, "q"))
    nodes = [x.node for x in found if x is not None]
    return Node(concat.op, tuple(parts), node.outputs, merge_origin(*nodes, concat, node))
