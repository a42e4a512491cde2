"""Two linear layers in a row become one, where that takes fewer multiplications.

Segmentation networks project the tokens of every scale to common channels and convolve all these:
between the product and the convolution is no function, but a rounding to 16 bits, which is left
out. Matrices are multiplied in float64 and rounded once.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import prod

import numpy as np

from atc.ir.expr import Input, unrounded
from atc.ir.graph import Array, DType, Node, TensorType
from atc.ir.ops import Conv, Map, MatMul
from atc.ir.view import View, compose_refining, dense, gather_view
from atc.passes.canonical.fold_views import tidy
from atc.passes.fuse.linear import (
    Vector,
    add_filters,
    known_bias,
    pointwise_filters,
    with_terms,
)
from atc.passes.rewriting import Rewriting, merge_origin

FLOAT = DType.FLOAT


@dataclass(frozen=True)
class _Layer:
    """A convolution's operand [N, C, *spatial] is `matrix` [C, K] times `source`.

    The source is read as [N, K, spatial] through `view`; `bias` [C] is added.
    """

    nodes: tuple[Node, ...]
    matrix: Array
    source: str
    view: View
    bias: Vector


def compose_products(state: Rewriting, node: Node) -> Node:
    """Multiply the known matrices of a pointwise convolution and of what computes its operand."""
    filters = pointwise_filters(state, node)
    if filters is None or not state.only_reader(node.inputs[0]):
        return node
    layer = _of_convolution(state, node.inputs[0]) or _of_product(state, node.inputs[0])
    op = node.op
    assert isinstance(op, Conv)
    if layer is None or len(op.epilogue.views) != len(node.inputs) - 2:
        return node
    (out, inner), k = filters.shape, layer.matrix.shape[1]
    if out * k > inner * (out + k):
        return node
    batch, _, *pixels = state.types[node.inputs[0]].shape
    wide = filters.astype(np.float64)
    matrix = (wide @ layer.matrix.astype(np.float64)).astype(np.float32)
    moved = Map((batch, k, prod(pixels)), Input(FLOAT, 0), (layer.view,))
    type_ = TensorType(FLOAT, (batch, k, *pixels))
    like = replace(node, origin=layer.nodes[0].origin)
    x = state.emit(tidy(moved), (layer.source,), type_, like, "operand")
    weights = add_filters(state, node, matrix, "composed")
    shift = (wide @ layer.bias).astype(np.float32)
    term = state.add_constant(shift, f"{node.inputs[1]}.shift"), View((0, 1, *[0] * len(pixels)))
    new, operands = with_terms(node, op, [term])
    origin = merge_origin(*layer.nodes, node)
    return Node(new, (x, weights, *operands), node.outputs, origin)


def _of_convolution(state: Rewriting, name: str) -> _Layer | None:
    """Return the layer if a value is another pointwise convolution, with a bias at most."""
    node = state.producers.get(name)
    filters = None if node is None else pointwise_filters(state, node)
    if node is None or filters is None:
        return None
    batch, _, *pixels = shape = state.types[name].shape
    bias = known_bias(state, _in_floats(node), shape)
    view = dense((batch, filters.shape[1], prod(pixels)))
    return None if bias is None else _Layer((node,), filters, node.inputs[0], view, bias)


def _of_product(state: Rewriting, name: str) -> _Layer | None:
    """Return the layer if a value is a product of rows, of which each is a pixel."""
    moving = state.producers.get(name)
    if moving is None or not isinstance(moving.op, Map) or not moving.op.is_movement:
        return None
    node = state.producers.get(moving.inputs[0])
    if node is None or not isinstance(node.op, MatMul) or not state.only_reader(moving.inputs[0]):
        return None
    op, weights = node.op, state.constant(node.inputs[1])
    batch, channels, *spatial = state.types[name].shape
    pixels = prod(spatial)
    loops = (batch, channels, pixels)
    if weights is None or weights.dtype != np.float32 or op.accumulator is not FLOAT:
        return None
    if op.n != channels or prod(op.batch) * op.m != batch * pixels:
        return None
    found = compose_refining(loops, [dense(loops)], 0, moving.op.shape, moving.op.views)
    turned = (pixels * channels, 1, channels)
    if found is None or found[0] != loops or found[2][0].offset:
        return None
    if any(n != 1 and s != w for n, s, w in zip(loops, found[2][0].strides, turned, strict=True)):
        return None
    rows = (*op.batch, op.m, op.k)
    whole = (*op.batch, op.m, op.n)
    if op.a_view.offset or not op.a_view.is_dense(rows) or any(op.b_view.strides[:-2]):
        return None
    bias = known_bias(state, _in_floats(node), whole, len(op.batch) + 1)
    if bias is None:
        return None
    matrix = gather_view(weights, (op.k, op.n), View(op.b_view.strides[-2:], op.b_view.offset)).T
    view = View((pixels * op.k, 1, op.k))
    return _Layer((node, moving), matrix, node.inputs[0], view, bias)


def _in_floats(node: Node) -> Node:
    """Return a layer whose result isn't rounded to 16 bits: the layer behind it rounds its own."""
    op = node.op
    assert isinstance(op, Conv | MatMul)
    expr, _ = unrounded(op.epilogue.expr)
    return replace(node, op=replace(op, epilogue=replace(op.epilogue, expr=expr)))
