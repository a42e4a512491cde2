"""Operators that move data without computing: shapes, axes, joining, padding."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
import onnx_ir as ir

from atc.importers.megengine.builder import Builder, Var
from atc.importers.megengine.dump import MAX_RANK, Operator
from atc.importers.megengine.layout import Packing, pack, unpack
from atc.importers.megengine.translation import MANY, Rule
from atc.importers.megengine.types import INT32

_NO_AXIS = 7
_PLAIN, _LAST = Packing(), Packing(channels_last=True)

# Modes of RelayoutFormat: from, to.
_RELAYOUTS = {
    20: (_PLAIN, Packing(8)),
    21: (Packing(8), _PLAIN),
    24: (_PLAIN, Packing(4)),
    25: (Packing(4), _PLAIN),
    27: (_PLAIN, Packing(64)),
    28: (Packing(64), _PLAIN),
    29: (_PLAIN, _LAST),
    30: (_LAST, _PLAIN),
}


def reshape(b: Builder, op: Operator, xs: Sequence[Var]) -> list[Var | None]:
    """Translate Reshape: one entry of the target may be -1."""
    x, target = xs[0], xs[1].value
    numbers = b.known(target)
    if numbers is None:
        shape = b.cast(target, ir.DataType.INT64)
        return [Var(b.op("Reshape", [x.value, shape], {"allowzero": 1}), x.dtype)]
    if numbers.count(-1) > 1 or any(n < -1 for n in numbers):
        raise b.error(f"cannot reshape to {numbers}")
    if -1 in numbers and None not in b.shape(x.value):
        rest = math.prod(n for n in numbers if n != -1)
        if rest and not math.prod(b.extents(x.value)) % rest:
            numbers[numbers.index(-1)] = math.prod(b.extents(x.value)) // rest
    return [Var(b.reshape(x.value, numbers), x.dtype)]


def broadcast(b: Builder, op: Operator, xs: Sequence[Var]) -> list[Var | None]:
    """Translate Broadcast to a shape."""
    x, target = xs[0], xs[1].value
    wanted = b.known(target)
    if wanted is not None and b.shape(x.value) == tuple(wanted):
        return [x]
    shape = b.cast(target, ir.DataType.INT64)
    return [Var(b.op("Expand", [x.value, shape]), x.dtype)]


def dimshuffle(b: Builder, op: Operator, xs: Sequence[Var]) -> list[Var | None]:
    """Translate Dimshuffle: entry i names the source of axis i, -1 is a new axis.

    Axes that aren't named have size 1 and vanish.
    """
    pattern = op.params("Dimshuffle").integers("pattern")
    x = xs[0]
    rank = b.rank(x.value)
    kept = [axis for axis in pattern if axis != -1]
    if sorted(set(kept)) != sorted(kept) or any(not 0 <= axis < rank for axis in kept):
        raise b.error(f"pattern {list(pattern)} does not fit rank {rank}")
    dropped = [axis for axis in range(rank) if axis not in kept]
    value = x.value
    if dropped:
        value = b.op("Squeeze", [value, b.integers(dropped)])
    order = sorted(kept)
    value = b.transpose(value, [order.index(axis) for axis in kept])
    added = [i for i, axis in enumerate(pattern) if axis == -1]
    if added:
        value = b.op("Unsqueeze", [value, b.integers(added)])
    return [Var(value, x.dtype)]


def axis_add_remove(b: Builder, op: Operator, xs: Sequence[Var]) -> list[Var | None]:
    """Translate AxisAddRemove: edits applied one after another to the changing shape."""
    x = xs[0]
    rank = b.rank(x.value)
    axes = list(range(rank))
    for edit in op.params("AxisAddRemove").axes():
        if edit.remove:
            axes.pop(b.axis(edit.axis, len(axes)))
        else:
            axes.insert(b.axis(edit.axis, len(axes) + 1), -1)
    if len(axes) > MAX_RANK:
        raise b.error(f"the result has rank {len(axes)}, at most {MAX_RANK} is legal")
    axes = axes or [-1]  # the only axis of a vector of 1 stays
    removed = [axis for axis in range(rank) if axis not in axes]
    value = x.value
    if removed:
        value = b.op("Squeeze", [value, b.integers(removed)])
    added = [i for i, axis in enumerate(axes) if axis == -1]
    if added:
        value = b.op("Unsqueeze", [value, b.integers(added)])
    return [Var(value, x.dtype)]


def concat(b: Builder, op: Operator, xs: Sequence[Var]) -> list[Var | None]:
    """Translate Concat of tensors of one type."""
    if any(x.dtype != xs[0].dtype for x in xs):
        raise b.error("Concat takes inputs of one element type")
    axis = b.axis(op.params("Axis").integer("axis"), b.rank(xs[0].value))
    if len(xs) == 1:
        return [xs[0]]
    return [Var(b.op("Concat", [x.value for x in xs], {"axis": axis}), xs[0].dtype)]


def split(b: Builder, op: Operator, xs: Sequence[Var]) -> list[Var | None]:
    """Translate Split: the inputs after the first are the parts' sizes."""
    x, *sizes = (v.value for v in xs)
    axis = b.axis(op.params("Axis").integer("axis"), b.rank(x))
    if len(sizes) == 1 and len(op.outputs) == 1:
        return [xs[0]]
    parts = b.op("Concat", [b.cast(s, ir.DataType.INT64) for s in sizes], {"axis": 0})
    if len(sizes) != len(op.outputs):
        raise b.error(f"{len(sizes)} sizes for {len(op.outputs)} parts")
    values = b.add("Split", [x, parts], {"axis": axis}, len(sizes))
    return [Var(value, xs[0].dtype) for value in values]


def get_var_shape(b: Builder, op: Operator, xs: Sequence[Var]) -> list[Var | None]:
    """Translate GetVarShape: the broadcast shape of all inputs, or one entry of it."""
    axis = op.params("OptionalAxisV1").integer("axis")
    if len(xs) == 1:
        shape = b.shape_of(xs[0].value)
    else:
        shapes = [b.extents(x.value) for x in xs]
        try:
            shape = b.integers(np.broadcast_shapes(*shapes))
        except ValueError as error:
            raise b.error(f"shapes {shapes} do not broadcast") from error
    shape = b.cast(shape, ir.DataType.INT32)
    if axis != _NO_AXIS:
        rank = b.extents(shape)[0]
        entry = b.integers([b.axis(axis, rank)])
        shape = b.op("Gather", [shape, entry], {"axis": 0})
    return [Var(shape, INT32)]


def padding(b: Builder, op: Operator, xs: Sequence[Var]) -> list[Var | None]:
    """Translate Padding; REFLECT leaves the edge out, as ONNX does."""
    params = op.params("Padding")
    x = xs[0]
    rank = b.rank(x.value)
    front = [params.integer(f"front{i}") for i in range(rank)]
    back = [params.integer(f"back{i}") for i in range(rank)]
    mode = {"REPLICATE": "edge", "REFLECT": "reflect", "CONSTANT": "constant"}
    inputs = [x.value, b.integers([*front, *back])]
    if params.word("padding_mode") == "CONSTANT":
        inputs.append(b.number(params.real("padding_val"), x.value))
    attributes = {"mode": mode[params.word("padding_mode")]}
    return [Var(b.op("Pad", inputs, attributes), x.dtype)]


def identity(b: Builder, op: Operator, xs: Sequence[Var]) -> list[Var | None]:
    """Translate operators that pass their input on."""
    return [Var(b.op("Identity", [xs[0].value]), xs[0].dtype)]


def images_to_neighbours(b: Builder, op: Operator, xs: Sequence[Var]) -> list[Var | None]:
    """Translate Images2Neibs: (N, C, H, W) to the windows (N, C, OH, OW, kh, kw)."""
    params = op.params("Images2Neibs")
    x = xs[0]
    pads = [params.integer("pad_h"), params.integer("pad_w")]
    padded = x.value
    if any(pads):
        padded = b.op("Pad", [x.value, b.integers([0, 0, *pads, 0, 0, *pads])])
    _, _, height, width = b.ranked(padded, 4)
    names = ("window", "stride", "dilate")
    rows = _windows(b, height, *(params.integer(f"{name}_h") for name in names))
    columns = _windows(b, width, *(params.integer(f"{name}_w") for name in names))
    value = b.op("Gather", [padded, rows], {"axis": 2})
    value = b.op("Gather", [value, columns], {"axis": 4})
    return [Var(b.transpose(value, (0, 1, 2, 4, 3, 5)), x.dtype)]


def _windows(b: Builder, extent: int, window: int, stride: int, dilation: int) -> ir.Value:
    """Return the source index of every tap of every window, (count, window)."""
    if not (0 < window <= extent and stride > 0 and dilation > 0):
        raise b.error(f"window {window}, stride {stride}, dilation {dilation} are out of range")
    count = (extent - dilation * (window - 1) - 1) // stride + 1
    if count < 1 or count * window > 1 << 22:
        raise b.error(f"{count} windows of {window} in {extent} elements")
    starts = np.arange(count, dtype=np.int64)[:, None] * stride
    return b.constant(starts + np.arange(window, dtype=np.int64) * dilation)


def relayout(b: Builder, op: Operator, xs: Sequence[Var]) -> list[Var | None]:
    """Translate RelayoutFormat between NCHW, NHWC and packed layouts of data."""
    mode = op.params("RelayoutFormat").integer("mode")
    if mode not in _RELAYOUTS:
        raise b.unsupported(
            f"layout conversion number {mode} is not covered",
            hint="dump the network without a layout transformation",
        )
    source, target = _RELAYOUTS[mode]
    x = xs[0]
    return [Var(pack(b, unpack(b, x.value, source), target), x.dtype)]


RULES: Mapping[str, Rule] = {
    "AxisAddRemove": Rule(axis_add_remove, 1),
    "Broadcast": Rule(broadcast, 2),
    "Concat": Rule(concat, 1, MANY),
    "Copy": Rule(identity, 1),
    "Dimshuffle": Rule(dimshuffle, 1),
    "GetVarShape": Rule(get_var_shape, 1, MANY),
    "Identity": Rule(identity, 1),
    "Images2Neibs": Rule(images_to_neighbours, 1),
    "MarkNoBroadcastElemwise": Rule(identity, 1),
    "Padding": Rule(padding, 1),
    "RelayoutFormat": Rule(relayout, 1),
    "Reshape": Rule(reshape, 2),
    "Split": Rule(split, 2, MANY),
}
