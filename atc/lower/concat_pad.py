"""Lowerings of operators that join or frame tensors."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import numpy as np

from atc.dims import is_dynamic, maximum, minimum, not_equal
from atc.ir.expr import Expr, call
from atc.ir.graph import DType, TensorType, row_major
from atc.ir.ops.data import Concat, Pad
from atc.ir.view import View
from atc.lower.builder import Builder
from atc.lower.caches import append
from atc.lower.context import LoweringContext
from atc.lower.indexed_access import IndexedAccess, clamped, gather, index, times, total
from atc.lower.registry import lowers

MODES = ("constant", "edge", "reflect", "wrap")


def join(b: Builder, parts: Sequence[str], axis: int) -> str:
    """Concatenate values of one type along an axis; empty ones vanish."""
    if len(parts) > 1 and parts[0] in b.caches.buffers:
        whole = append(b, parts[0], join(b, parts[1:], axis), axis)
        if whole:
            return whole
    first = b.type(parts[0])
    extents = [b.shape(p)[axis] for p in parts]
    shape = (*first.shape[:axis], sum(extents), *first.shape[axis + 1 :])
    if not prod(shape):
        return b.constant(np.empty(shape, first.dtype.numpy))
    kept = [(p, n) for p, n in zip(parts, extents, strict=True) if n]
    if len(kept) == 1:
        return b.reshape(kept[0][0], shape)
    inner = prod(shape[axis + 1 :])
    op = Concat(prod(shape[:axis]), tuple(n * inner for _, n in kept))
    return b.emit1(op, [p for p, _ in kept], TensorType(first.dtype, shape))


@lowers("Concat")
def concat(ctx: LoweringContext) -> str:
    """ONNX Concat-13; before opset 4 the axis was 1 unless given."""
    parts = [ctx.input(i) for i in range(len(ctx.inputs))]
    first = ctx.type(0)
    if ctx.opset >= 4:
        ctx.require(ctx.attribute("axis") is not None, "attribute 'axis' is missing")
    axis = ctx.axis(ctx.int("axis", 1), len(first.shape))
    ctx.require(len(first.shape) > 0, "the operands are scalars")
    types = [ctx.b.type(part) for part in parts]
    for type_ in types[1:]:
        _check_joined(ctx, first, type_, axis)
    common = [_least(extents) for extents in zip(*(t.shape for t in types), strict=True)]
    return join(ctx.b, [_fitted(ctx.b, part, common, axis) for part in parts], axis)


def _check_joined(ctx: LoweringContext, first: TensorType, other: TensorType, axis: int) -> None:
    """Require extents to be the same; those that are open are compared when the network runs."""
    same = other.dtype is first.dtype and len(other.shape) == len(first.shape)
    guards = [not_equal(a, b) for a, b in zip(other.shape, first.shape, strict=False)]
    guards[axis : axis + 1] = []
    ctx.require(
        same and 1 not in guards, f"{other} cannot be joined to {first} along axis {axis}"
    )
    for guard in guards:
        ctx.b.must_be_zero(guard)


def _least(extents: Sequence[int]) -> int:
    """Return that of some extents, all the same in a run, which is inside of each operand.

    It is the first where no bound says which one that is.
    """
    least = minimum(*extents)
    return least if least in extents else extents[0]


def _fitted(b: Builder, part: str, common: Sequence[int], axis: int) -> str:
    """Return an operand with the extents that all have when the network runs."""
    own = b.shape(part)
    shape = (*common[:axis], own[axis], *common[axis + 1 :])
    return part if shape == own else b.expand(part, shape)


# ---- padding ------------------------------------------------------------------------------------


def crop(b: Builder, x: str, begins: Sequence[int], ends: Sequence[int]) -> str:
    """Cut `begins` and `ends` elements (0 or more) off each axis."""
    shape = b.shape(x)
    strides = row_major(shape)
    kept = [n - lo - hi for n, lo, hi in zip(shape, begins, ends, strict=True)]
    offset = sum(lo * s for lo, s in zip(begins, strides, strict=True)) if prod(kept) else 0
    return b.view(x, kept, View(strides, offset))


def _merged(
    shape: Sequence[int], begins: Sequence[int], ends: Sequence[int]
) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
    """Return shape and pads with neighbouring unpadded axes made one."""
    axes: list[tuple[int, int, int]] = []
    for n, lo, hi in zip(shape, begins, ends, strict=True):
        if axes and not lo and not hi and axes[-1][1:] == (0, 0):
            axes[-1] = (axes[-1][0] * n, 0, 0)
        elif lo or hi or n != 1:
            axes.append((n, lo, hi))
    columns = tuple(zip(*axes, strict=True))
    return columns if columns else ((), (), ())  # type: ignore[return-value]


def pad(
    b: Builder, x: str, begins: Sequence[int], ends: Sequence[int], mode: str = "constant",
    value: str = "",
) -> str:  # fmt: skip
    """Frame `x`; negative pads crop first. `value` is one element, '' for zero."""
    x = crop(b, x, [maximum(0, -n) for n in begins], [maximum(0, -n) for n in ends])
    lows, highs = [maximum(0, n) for n in begins], [maximum(0, n) for n in ends]
    if not any((*lows, *highs)):
        return x
    source = b.type(x)
    shape = tuple(lo + n + hi for lo, n, hi in zip(lows, source.shape, highs, strict=True))
    type_ = TensorType(source.dtype, shape)
    if not prod(shape):
        return b.constant(np.empty(shape, source.dtype.numpy))
    if mode != "constant" and is_dynamic((*source.shape, *lows, *highs)):
        return _repeated(b, x, lows, type_, mode)
    op = Pad(mode, *_merged(source.shape, lows, highs))
    if mode == "constant" and source.dtype is DType.STRING and not value:
        value = b.constant(np.asarray(b"", DType.STRING.numpy))
    array = b.value(value) if value else None
    zero = not value or (array is not None and array.dtype.kind != "S" and not any(array.tobytes()))
    return b.emit1(op, [x] if zero or mode != "constant" else [x, value], type_)


def _repeated(b: Builder, x: str, lows: Sequence[int], type_: TensorType, mode: str) -> str:
    """Frame a tensor of unknown extents by reading it at computed places."""
    shape, strides = b.shape(x), row_major(b.shape(x))
    axes = range(len(shape))

    def address(*coordinates: Expr) -> Expr:
        places = zip(coordinates, shape, lows, type_.shape, strides, strict=True)
        return total(*(
            times(c if n == m else _source(mode, call("Sub", c, index(lo)), n), s)
            for c, n, lo, m, s in places
        ))  # fmt: skip

    views = tuple(View(tuple(int(d == axis) for d in axes)) for axis in axes)
    return gather(b, x, IndexedAccess(type_.shape, (), (), views, address, True), 1, type_.shape)


def _source(mode: str, i: Expr, extent: int) -> Expr:
    """Return the element of an axis that an index outside it repeats."""
    if mode == "edge":
        return clamped(i, extent)
    if mode == "wrap":
        return call("Mod", i, index(extent))
    period = maximum(2 * extent - 2, 1)
    folded = call("Mod", i, index(period))
    return call("Min", folded, call("Abs", call("Sub", index(period), folded)))


@lowers("Pad")
def lower_pad(ctx: LoweringContext) -> str:
    """ONNX Pad-21 in its four modes; before opset 11 the pads and the value are attributes."""
    rank = len(ctx.shape(0))
    pads = _pads(ctx)
    axes: Sequence[int] = range(rank)
    if ctx.opset >= 18 and ctx.has(3):
        axes = [ctx.axis(a, rank) for a in ctx.ints_const(3, "the list of axes")]
        ctx.require(len(set(axes)) == len(axes), f"axes {list(axes)} repeat")
    count = len(axes)
    ctx.require(len(pads) == 2 * count, f"{len(pads)} pads for {count} axes")
    begins, ends = [0] * rank, [0] * rank
    for axis, low, high in zip(axes, pads[:count], pads[count:], strict=True):
        begins[axis], ends[axis] = low, high
    mode = ctx.str("mode", "constant")
    ctx.require(mode in MODES, f"mode is '{mode}'")
    _check_extents(ctx, begins, ends, mode)
    return pad(ctx.b, ctx.input(0), begins, ends, mode, _fill_value(ctx))


def _pads(ctx: LoweringContext) -> list[int]:
    if ctx.opset >= 11:
        return ctx.ints_const(1, "the list of pads")
    return ctx.ints("pads" if ctx.opset >= 2 else "paddings") or []


def _check_extents(
    ctx: LoweringContext, begins: Sequence[int], ends: Sequence[int], mode: str
) -> None:
    for axis, (n, low, high) in enumerate(zip(ctx.shape(0), begins, ends, strict=True)):
        place = f"pads {low} and {high} of axis {axis} with {n} elements"
        kept = n + minimum(low, 0) + minimum(high, 0)
        ctx.require(n + low + high >= 0 and kept >= 0, f"{place} leave nothing")
        if mode != "constant":
            ctx.require(kept > 0 or not (low > 0 or high > 0), f"{place} repeat nothing")


def _fill_value(ctx: LoweringContext) -> str:
    dtype = ctx.type(0).dtype
    if ctx.opset < 11:
        value = ctx.float("value", 0.0)
        return ctx.b.constant(np.array(value).astype(dtype.numpy)) if value else ""
    if not ctx.has(2):
        return ""
    value_type = ctx.type(2)
    ctx.require(value_type.size == 1 and value_type.dtype is dtype, f"the value is {value_type}")
    return ctx.input(2)
