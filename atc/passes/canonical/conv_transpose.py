"""Computes transposed convolutions as convolutions whose channels are then shuffled into pixels.

An output at place q * s + p, with stride s, sums the taps t = (p + pad) mod s, + s, + 2 s, ... at
the inputs q + (p + pad) / s, - 1, - 2, ...: for each of the s phases p an ordinary convolution.
Those of all phases are one, with s times the filters for every axis and zeros where a phase has no
tap.  Shi and others, "Real-time single image and video super-resolution using an efficient
sub-pixel convolutional neural network", 2016.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import product
from math import prod

import numpy as np

from atc.dims import is_dynamic
from atc.ir.expr import Call, Expr, Input, inputs_of, rewritten
from atc.ir.graph import Array, DType, Node, Op, TensorType, row_major
from atc.ir.ops import Conv, ConvTranspose, Epilogue, Map, Reshape, Window, identity_epilogue
from atc.ir.ops.blocked import BYTES
from atc.ir.ops.data import Pad
from atc.ir.view import View, dense, gather_view, split_loop
from atc.passes.rewriting import Rewriting, distinct_operands, zero_points

Index = tuple[int | slice, ...]

WASTE = 4
"""Most products with zeros per product that counts."""
STORED = (DType.FLOAT, *BYTES, DType.UINT16, DType.INT16)
"""Types of what a Conv stores before it is moved, beside floats of 16 bits and its sums."""


@dataclass(frozen=True)
class _Axis:
    """The phases of one spatial axis: `count` outputs of each of `stride` phases."""

    kernel: int
    stride: int
    pad: int
    out: int

    @property
    def count(self) -> int:
        return -(-self.out // self.stride)

    def place(self, tap: int) -> tuple[int, int]:
        """Return the phase that a tap belongs to, and its input relative to the output's q."""
        phase = (tap - self.pad) % self.stride
        return phase, (phase + self.pad - tap) // self.stride

    @property
    def reach(self) -> tuple[int, int]:
        """The lowest and highest of those inputs."""
        places = [self.place(t)[1] for t in range(self.kernel)]
        return min(places), max(places)


def conv_transpose_as_conv(
    state: Rewriting, node: Node, least: int = 1, early: bool = False
) -> Node:
    """Replace a ConvTranspose by a Conv and a Map; filters known only at run time by Maps, too.

    One of fewer channels, or filters of all phases, than `least` in a group stays as it is. If
    `early` the Conv has as much of the epilogue as is the same for a whole filter: what that rounds
    to fewer bits is stored so before it is moved. Sums of integers always are scaled early.
    """
    op = node.op
    if not isinstance(op, ConvTranspose):
        return node
    x, weights = (state.types[name] for name in node.inputs[:2])
    y = state.types[node.outputs[0]]
    known, integers = state.constant(node.inputs[1]), op.accumulator is DType.INT32
    floats = weights.dtype is DType.FLOAT and (y.dtype is DType.FLOAT or y.dtype.is_half)
    if not floats and (not integers or known is None):
        return node
    if is_dynamic(weights.shape) or not y.size or not weights.size:
        return node
    w = op.window
    if min(weights.shape[0] // op.group, prod(w.strides) * weights.shape[1]) < least:
        return node
    dense_taps = op.group == 1 and max(w.dilations) == 1
    if not dense_taps:
        able = set(w.strides) == {1} or not is_dynamic(x.shape) and prod(w.strides) <= WASTE
        return _of_groups(state, node, op) if able and x.size else node
    if known is None and set(w.kernel) == {1} and not any(w.pads) and x.size:
        return _of_single_taps(state, node, op)
    axes = [_Axis(*n) for n in zip(w.kernel, w.strides, w.pads, y.shape[2:], strict=True)]
    taps = [a.reach[1] - a.reach[0] + 1 for a in axes]
    if prod(taps) * prod(w.strides) > WASTE * prod(w.kernel) or not x.size:
        return node
    filters = (
        _computed_phases(state, node, axes, taps) if known is None
        else state.add_constant(_phases(known, axes, taps), f"{node.inputs[1]}.phases")
    )  # fmt: skip
    window = Window(tuple(taps), (1,) * w.rank, (1,) * w.rank, tuple(-a.reach[0] for a in axes))
    points = _zero_points(state, node, op)
    if set(w.strides) == {1} and (known is None or integers):
        return _convolved(node, op, window, (node.inputs[0], filters, *points))
    shape = (y.shape[0], prod(w.strides) * y.shape[1], *(a.count for a in axes))
    first = _of_filters(state, node, op) if early or integers else Input(op.accumulator, 0)
    epilogue, extra = _of_all_phases(state, node, op, first)
    conv = Conv(window, 1, epilogue, op.accumulator, bool(points))
    inputs = (node.inputs[0], filters, *points, *extra)
    z = state.emit(conv, inputs, TensorType(first.dtype, shape), node, "phases")
    expr = rewritten(op.epilogue.expr, known={first: Input(first.dtype, 0)})
    expr, names, views = distinct_operands(expr, node.inputs[2:], op.epilogue.views, 1)
    moved = replace(op, epilogue=Epilogue(expr, views))
    return _shuffled(state, replace(node, inputs=(z, *names)), moved, axes, shape)


def _convolved(node: Node, op: ConvTranspose, window: Window, inputs: Sequence[str]) -> Node:
    """Return the node as a Conv of the same epilogue."""
    conv = Conv(window, op.group, op.epilogue, op.accumulator, len(inputs) > 2)
    return replace(node, op=conv, inputs=(*inputs, *node.inputs[2:]))


def _zero_points(state: Rewriting, node: Node, op: ConvTranspose) -> tuple[str, ...]:
    """Return the operands of a Conv for the zero point of x; none where that is 0."""
    return zero_points(state, node.inputs[0], op.zero, state.types[node.inputs[0]].dtype)


def _of_filters(state: Rewriting, node: Node, op: ConvTranspose) -> Expr:
    """Return the part of the epilogue that is the same for a whole filter.

    It ends in the last rounding to 16 bits that there is.
    """
    operands = zip(node.inputs[2:], op.epilogue.views, strict=True)
    varying = {
        k for k, (name, view) in enumerate(operands, 1)
        if state.constant(name) is None or any(s for d, s in enumerate(view.strides) if d != 1)
    }  # fmt: skip
    expr = op.epilogue.expr
    while not varying.isdisjoint(inputs_of(expr)):
        own = {a for a in getattr(expr, "args", ()) if 0 in inputs_of(a)}
        expr = own.pop() if len(own) == 1 else Input(op.accumulator, 0)
    match expr:
        case Call(dtype=DType.FLOAT, fn="Cast", args=(half,)) if half.dtype.is_half:
            return half
        case Call(dtype=dtype) if dtype not in STORED and not dtype.is_half:
            return Input(op.accumulator, 0)
    return expr


def _of_all_phases(
    state: Rewriting, node: Node, op: ConvTranspose, expr: Expr
) -> tuple[Epilogue, tuple[str, ...]]:
    """Return an epilogue and its operands for the filters of all phases."""
    filters, phases = state.types[node.outputs[0]].shape[1], prod(op.window.strides)
    expr, names, views = distinct_operands(expr, node.inputs[2:], op.epilogue.views, 1)
    found = []
    for name, view in zip(names, views, strict=True):
        constant = state.constant(name)
        assert constant is not None
        of_filters = gather_view(constant, (filters,), View(view.strides[1:2], view.offset))
        found.append(state.add_constant(np.tile(of_filters, phases), f"{name}.phases"))
    channel = View((0, 1, *(0,) * op.window.rank))
    return Epilogue(expr, (channel,) * len(found)), tuple(found)


def _of_groups(state: Rewriting, node: Node, op: ConvTranspose) -> Node:
    """Return one of groups or with dilations as a Conv of flipped filters.

    With strides it reads the operand with zeros between its pixels.
    """
    w = state.types[node.inputs[1]]
    each, filters, taps = w.shape[0] // op.group, w.shape[1], prod(w.shape[2:])
    view = View((
        each * filters * taps, taps, filters * taps, *(-s for s in row_major(w.shape[2:])),
    ), taps - 1)  # fmt: skip
    loops = (op.group, filters, each, *w.shape[2:])
    shape = TensorType(w.dtype, (op.group * filters, each, *w.shape[2:]))
    known = state.constant(node.inputs[1])
    if known is None:
        flip = Map(loops, Input(w.dtype, 0), (view,))
        flipped = state.emit(flip, node.inputs[1:2], shape, node, "filters")
    else:
        array = np.ascontiguousarray(gather_view(known, loops, view).reshape(shape.shape))
        flipped = state.add_constant(array, f"{node.inputs[1]}.filters")
    source, ones = node.inputs[0], (1,) * op.window.rank
    if op.window.strides != ones:
        zero = _zero_points(state, node, op)[:1]
        source = _spaced(state, node, source, op.window.strides, zero)
    sizes = zip(op.window.kernel, op.window.dilations, op.window.pads, strict=True)
    pads = tuple((k - 1) * d - p for k, d, p in sizes)
    window = replace(op.window, strides=ones, pads=pads)
    return _convolved(node, op, window, (source, flipped, *_zero_points(state, node, op)))


def _spaced(
    state: Rewriting, node: Node, x: str, strides: Sequence[int], zero: Sequence[str] = ()
) -> str:
    """Return x [N, C, *counts] with zeros behind each pixel, [N, C, *(counts * strides)].

    The operand `zero` is what stands for one, if that isn't 0.
    """
    type_ = state.types[x]
    outer, counts = type_.shape[:2], type_.shape[2:]
    split = (*outer, *(n for count in counts for n in (count, 1)))
    ends = (0, 0, *(n for s in strides for n in (0, s - 1)))
    frame = Pad("constant", split, (0,) * len(split), ends)
    shape = (*outer, *(n * s for n, s in zip(counts, strides, strict=True)))

    def emit(op: Op, inputs: Sequence[str], shape: Sequence[int]) -> str:
        return state.emit(op, inputs, TensorType(type_.dtype, tuple(shape)), node, "spaced")

    framed = emit(frame, (emit(Reshape(), (x,), split), *zero), frame.extents)
    return emit(Reshape(), (framed,), shape)


def _of_single_taps(state: Rewriting, node: Node, op: ConvTranspose) -> Node:
    """Return a transposed convolution of single taps: results of a Conv with zeros between them."""
    w, y = state.types[node.inputs[1]], state.types[node.outputs[0]]
    strides, outer, ones = op.window.strides, y.shape[:2], (1,) * op.window.rank
    transposed = Map((w.shape[1], w.shape[0]), Input(w.dtype, 0), (View((1, w.shape[1])),))
    shape = (w.shape[1], w.shape[0], *ones)
    filters = state.emit(transposed, node.inputs[1:2], TensorType(w.dtype, shape), node, "filters")
    window, inputs = Window(ones, ones, ones, (0,) * op.window.rank), (node.inputs[0], filters)
    if set(strides) == {1}:
        conv = Conv(window, 1, op.epilogue)
        return replace(node, op=conv, inputs=(*inputs, *node.inputs[2:]))
    counts = tuple(-(-n // s) for n, s in zip(y.shape[2:], strides, strict=True))
    conv = Conv(window, 1, identity_epilogue(DType.FLOAT))
    taps = state.emit(conv, inputs, TensorType(DType.FLOAT, (*outer, *counts)), node, "taps")
    framed = _spaced(state, node, taps, strides)
    whole = state.types[framed].shape
    if whole == y.shape and op.epilogue == identity_epilogue(DType.FLOAT):
        return replace(node, op=Reshape(), inputs=(framed,))
    kept = Map(y.shape, op.epilogue.expr, (View(dense(whole).strides), *op.epilogue.views))
    return replace(node, op=kept, inputs=(framed, *node.inputs[2:]))


def _phases(w: Array, axes: Sequence[_Axis], taps: Sequence[int]) -> Array:
    """Return weights [C, M, *kernel] as those of the phases' filters, [phases * M, C, *taps]."""
    strides = [a.stride for a in axes]
    result = np.zeros((*strides, w.shape[1], w.shape[0], *taps), w.dtype)
    for tap in product(*(range(a.kernel) for a in axes)):
        places = [a.place(t) for a, t in zip(axes, tap, strict=True)]
        phase = tuple(p for p, _ in places)
        at = tuple(i - a.reach[0] for a, (_, i) in zip(axes, places, strict=True))
        source: Index = (slice(None), slice(None), *tap)
        target: Index = (*phase, slice(None), slice(None), *at)
        result[target] = w[source].T
    return result.reshape(-1, w.shape[0], *taps)


def _computed_phases(
    state: Rewriting, node: Node, axes: Sequence[_Axis], taps: Sequence[int]
) -> str:
    """Return the phases' filters of weights known only at run time.

    Phase p has at its place q the tap p + pad - (q + the lowest) * stride, or a zero.
    """
    w = state.types[node.inputs[1]]
    first = [a.pad - a.reach[1] * a.stride for a in axes]
    last = [a.stride - 1 + a.pad - a.reach[0] * a.stride for a in axes]
    begins = tuple(max(0, -f) for f in first)
    ends = tuple(max(0, t - (a.kernel - 1)) for a, t in zip(axes, last, strict=True))
    frame = Pad("constant", w.shape, (0, 0, *begins), (0, 0, *ends))
    framed = TensorType(DType.FLOAT, frame.extents)
    source = node.inputs[1]
    if any((*begins, *ends)):
        source = state.emit(frame, (source,), framed, node, "frame")
    channel, filter_, *steps = framed.strides
    strides = [a.stride for a in axes]
    offset = sum(
        (begin + t - (a.stride - 1)) * step
        for begin, t, a, step in zip(begins, last, axes, steps, strict=True)
    )
    along = (-a.stride * step for a, step in zip(axes, steps, strict=True))
    view = View((*steps, filter_, channel, *along), offset)
    move = Map((*strides, w.shape[1], w.shape[0], *taps), Input(DType.FLOAT, 0), (view,))
    shape = (prod(strides) * w.shape[1], w.shape[0], *taps)
    return state.emit(move, (source,), TensorType(DType.FLOAT, shape), node, "filters")


def _shuffled(
    state: Rewriting, node: Node, op: ConvTranspose, axes: Sequence[_Axis], shape: Sequence[int]
) -> Node:
    """Return the node that puts phases beside each other, with the epilogue.

    Outputs that whole strides would exceed are cut off before.
    """
    y = state.types[node.outputs[0]]
    counted = dense(shape).strides
    batch, channel, *steps = counted
    filters = y.shape[1]
    # Loops (N, M, q, p, q, p): phase p of an axis is so many groups of M channels further on.
    phase_steps = [prod(a.stride for a in axes[k + 1 :]) * filters * channel
                   for k in range(len(axes))]  # fmt: skip
    split: list[int] = []
    strides: list[int] = []
    for a, step, phase_step in zip(axes, steps, phase_steps, strict=True):
        split += [a.count, a.stride]
        strides += [step, phase_step]
    whole = tuple(a.count * a.stride for a in axes)
    view = View((batch, channel, *strides))
    loops = (*y.shape[:2], *split)
    if whole == y.shape[2:]:
        views = [view, *(_refined(v, axes) for v in op.epilogue.views)]
        return replace(node, op=Map(loops, op.epilogue.expr, tuple(views)))
    stored = state.types[node.inputs[0]].dtype
    move = Map(loops, Input(stored, 0), (view,))
    type_ = TensorType(stored, (*y.shape[:2], *whole))
    larger = state.emit(move, node.inputs[:1], type_, node, "whole")
    crop = View(dense((*y.shape[:2], *whole)).strides)
    kept = Map(y.shape, op.epilogue.expr, (crop, *op.epilogue.views))
    return replace(node, op=kept, inputs=(larger, *node.inputs[1:]))


def _refined(view: View, axes: Sequence[_Axis]) -> View:
    """Return a view over (N, M, *out) over loops whose spatial ones are split."""
    for k in reversed(range(len(axes))):
        view = split_loop(view, 2 + k, axes[k].stride)
    return view
