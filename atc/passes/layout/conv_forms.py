"""Forms of convolutions and pooling."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from math import prod

import numpy as np

from atc.dims import is_dynamic
from atc.ir.graph import DType, Node, row_major
from atc.ir.ops import (
    Conv,
    ConvBlocked,
    ConvFilterGradient,
    Epilogue,
    MatMul,
    Pool,
    Window,
)  # fmt: skip
from atc.ir.ops.blocked import BYTES
from atc.ir.view import View
from atc.passes.canonical.simplify_matmul import merged
from atc.passes.layout.forms import Form, Layout, Read, Scene, plain_form
from atc.passes.layout.loop_forms import folded_pixels
from atc.passes.layout.operands import operands
from atc.passes.quantized.blocking import integer_zero, known_zero

PLAIN_CHANNELS = 4
"""The most channels with which a first convolution reads its operand in the plain layout."""


def conv_forms(scene: Scene, node: Node, op: Conv, layout: Layout) -> Iterator[Form]:
    """Yield the forms of a convolution with its result in a layout."""
    if layout is Layout.PLAIN:
        yield plain_form(node)
    known = scene.constant(node.inputs[1]) is not None
    most = 3 if scene.batch_last else 2
    if op.window.rank > most or not known and (op.group > 1 or not _is_float(scene, node, op)):
        return
    match layout:
        case Layout.PLAIN if not scene.bytes_alone:
            yield from _pixels_as_columns(scene, node, op)
            yield from _whole_images(scene, node, op)
        case Layout.BLOCKS:
            yield from _blocked(scene, node, op)
        case Layout.LAST:
            yield from _pixels_as_rows(scene, node, op)
            yield from _depthwise(scene, node, op)
            yield from _bytes(scene, node, op)


def _bytes(scene: Scene, node: Node, op: Conv) -> Iterator[Form]:
    """Yield a convolution of bytes with channels last, for kernels that sum along them."""
    x, w, y = (scene.type(name) for name in (*node.inputs[:2], node.outputs[0]))
    if not scene.bytes_last or op.zero_points and node.inputs[3]:
        return
    point = scene.constant(node.inputs[2]) if op.zero_points else np.zeros((), np.int32)
    bytes_ = x.dtype in BYTES and w.dtype is DType.INT8 and op.accumulator is DType.INT32
    if not bytes_ or point is None or point.size != 1:
        return
    if op.group > 1 and w.shape[:2] != (op.group, 1):
        return
    found = operands(
        scene, Layout.LAST, node.inputs[op.operands :], op.epilogue.views, y.shape, move=True
    )
    if found is None:
        return
    zero = int(point.reshape(()).astype(np.int64))
    epilogue = Epilogue(op.epilogue.expr, found[1])
    filters = scene.constant(node.inputs[1])
    ones = op.group > 1 and filters is not None and bool((filters == 1).all())
    result = ConvBlocked(op.window, op.group, epilogue, op.accumulator, zero, ones)
    first, weights = node.inputs[:2]
    yield Form(Layout.LAST, result, (Read(first, Layout.LAST), Read(weights), *found[0]))


def _blocked(scene: Scene, node: Node, op: Conv) -> Iterator[Form]:
    x, w = scene.type(node.inputs[0]), scene.constant(node.inputs[1])
    y = scene.type(node.outputs[0])
    floats = _is_float(scene, node, op)
    if op.zero_points and node.inputs[3]:
        return
    point = scene.constant(node.inputs[2]) if op.zero_points else np.zeros((), np.int32)
    if scene.bytes_alone:
        zero = None if w is None else known_zero(op, x, w, point)
    else:
        zero = 0 if floats or w is None else integer_zero(op, x, w, y, point, scene.width)
    wasteful = floats and -(-y.shape[1] // scene.width) * 2 > y.shape[1]
    if zero is None or wasteful:  # most of the lanes would be unused
        return
    found = operands(  # sums of bytes have kernels of whole vectors alone
        scene, Layout.BLOCKS, node.inputs[op.operands :], op.epilogue.views, y.shape, move=True,
        in_vectors=not floats,
    )
    if found is None:
        return
    arguments, views = found
    epilogue = Epilogue(op.epilogue.expr, views)
    result = ConvBlocked(op.window, op.group, epilogue, op.accumulator, zero)
    first, weights = node.inputs[:2]
    few = x.shape[1] <= PLAIN_CHANNELS and op.group == 1
    if few:
        yield Form(Layout.BLOCKS, result, (Read(first), Read(weights), *arguments))
    takes_much = few and floats and not isinstance(scene.makers.get(first), Conv)
    if not takes_much:  # a block for few channels, of floats
        yield Form(Layout.BLOCKS, result, (Read(first, Layout.BLOCKS), Read(weights), *arguments))


def _is_float(scene: Scene, node: Node, op: Conv) -> bool:
    names = (*node.inputs[:2], *node.outputs)
    return op.accumulator is DType.FLOAT and all(
        scene.type(name).dtype is DType.FLOAT for name in names
    )


def _is_pointwise(scene: Scene, node: Node, op: Conv) -> bool:
    """Return whether a convolution is a matrix product for each pixel."""
    x, y = scene.type(node.inputs[0]).shape, scene.type(node.outputs[0])
    one = set(op.window.kernel) == {1} and op.window.stays_inside(x[2:], y.shape[2:])
    return one and op.group == 1 and _is_float(scene, node, op) and y.size > 0


def _pixels_as_rows(scene: Scene, node: Node, op: Conv) -> Iterator[Form]:
    """Yield a 1x1 convolution with channels last as a product of pixels and filters."""
    x, y = scene.type(node.inputs[0]).shape, scene.type(node.outputs[0]).shape
    if not _is_pointwise(scene, node, op):
        return
    found = operands(
        scene, Layout.LAST, node.inputs[2:], op.epilogue.views, y, move=True
    )
    if found is None:
        return
    steps = row_major((*x[2:], x[1]))[:-1]
    rows = tuple(s * t for s, t in zip(steps, op.window.strides, strict=True))
    views = tuple(View((v.strides[0], *v.strides[2:]), v.offset) for v in found[1])
    batch = (y[0], *y[2:-1])
    product = MatMul(
        batch, y[-1], y[1], x[1], View((prod(x[1:]), *rows, 1)),
        View((*[0] * len(batch), 1, x[1])), Epilogue(op.epilogue.expr, views),
    )  # fmt: skip
    first, weights = node.inputs[:2]
    yield Form(Layout.LAST, merged(product), (Read(first, Layout.LAST), Read(weights), *found[0]))


def _pixels_as_columns(scene: Scene, node: Node, op: Conv) -> Iterator[Form]:
    """Yield a 1x1 convolution as a product of filters and pixels."""
    x, y = scene.type(node.inputs[0]).shape, scene.type(node.outputs[0]).shape
    every = x[2:] == y[2:]  # a transposed convolution's may be cropped
    if not every or not _is_pointwise(scene, node, op) or set(op.window.strides) != {1}:
        return
    views = folded_pixels(op.epilogue.views, y[2:])
    if views is None:
        return
    pixels = prod(y[2:])
    product = MatMul(
        (y[0],), y[1], pixels, x[1], View((0, x[1], 1)), View((prod(x[1:]), pixels, 1)),
        Epilogue(op.epilogue.expr, views),
    )  # fmt: skip
    first, weights = node.inputs[:2]
    arguments = (weights, first, *node.inputs[2:])
    yield Form(Layout.PLAIN, merged(product), tuple(map(Read, arguments)))


def _whole_images(scene: Scene, node: Node, op: Conv) -> Iterator[Form]:
    """Yield a convolution by windows as large as the image as a product of images and filters."""
    x, y = scene.type(node.inputs[0]).shape, scene.type(node.outputs[0]).shape
    if is_dynamic(x[1:]) or op.window.kernel != x[2:] or set(y[2:]) != {1}:
        return
    dense = set(op.window.dilations) == {1} and op.window.stays_inside(x[2:], y[2:])
    if not dense or op.group > 1 or not _is_float(scene, node, op) or y.count(0):
        return
    views = tuple(View(v.strides[:2], v.offset) for v in op.epilogue.views)
    depth = prod(x[1:])
    product = MatMul(
        (), y[0], y[1], depth, View((depth, 1)), View((1, depth)), Epilogue(op.epilogue.expr, views)
    )
    yield Form(Layout.PLAIN, product, tuple(map(Read, node.inputs)))


def _depthwise(scene: Scene, node: Node, op: Conv) -> Iterator[Form]:
    """Yield a depthwise convolution with channels last, in whole vectors of channels."""
    w, y = scene.type(node.inputs[1]).shape, scene.type(node.outputs[0]).shape
    each = w[:2] == (op.group, 1) and y[1] % scene.width == 0
    if not each or not _is_float(scene, node, op):
        return
    found = operands(
        scene, Layout.LAST, node.inputs[2:], op.epilogue.views, y, move=True
    )
    if found is None:
        return
    result = ConvBlocked(op.window, op.group, Epilogue(op.epilogue.expr, found[1]))
    first, weights = node.inputs[:2]
    yield Form(Layout.LAST, result, (Read(first, Layout.LAST), Read(weights), *found[0]))


def filter_gradient_forms(scene: Scene, node: Node, op: ConvFilterGradient) -> Iterator[Form]:
    """Yield the forms of a gradient of filters, with plain operands or with blocked ones."""
    yield plain_form(node)
    x, g = node.inputs
    types = [scene.type(name) for name in (x, g, node.outputs[0])]
    depthwise = op.group == types[2].shape[0] == types[0].shape[1]
    if op.group > 1 and not depthwise or op.window.rank > 2:
        return
    if any(t.dtype is not DType.FLOAT for t in types):
        return
    if any(0 in t.shape for t in types):
        return
    few = types[0].shape[1] <= PLAIN_CHANNELS
    if depthwise and few and op.group > 1:
        return
    source = Read(x) if few else Read(x, Layout.BLOCKS)
    yield Form(Layout.PLAIN, op, (source, Read(g, Layout.BLOCKS)))


def pool_forms(scene: Scene, node: Node, op: Pool, layout: Layout) -> Iterator[Form]:
    """Yield the form of pooling: the window has one more axis, the channels of a block."""
    if op.how == "Lp" or op.window.rank > (3 if scene.batch_last else 2):
        return
    if layout is Layout.LAST and scene.type(node.outputs[0]).shape[1] % scene.width:
        return
    w = op.window
    lanes = Window((*w.kernel, 1), (*w.strides, 1), (*w.dilations, 1), (*w.pads, 0))
    wider = replace(op, window=lanes, end_pads=(*op.end_pads, 0))
    yield Form(layout, wider, (Read(node.inputs[0], layout),))
