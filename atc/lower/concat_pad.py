"""Lowerings of operators that join or frame tensors."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import numpy as np

from atc.dims import is_dynamic, maximum, minimum, unlike
from atc.ir.expr import Expr, call
from atc.ir.graph import DType, TensorType, row_major
from atc.ir.ops.data import Concat, Pad
from atc.ir.view import View
from atc.lower.builder import Builder
from atc.lower.context import Site
from atc.lower.indexed_access import Place, clamped, gather, index, times, total
from atc.lower.registry import lowers

MODES = ("constant", "edge", "reflect", "wrap")


def join(b: Builder, parts: Sequence[str], axis: int) -> str:
    """Concatenate values of one type along an axis; empty ones vanish."""
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
def concat(site: Site) -> str:
    """ONNX Concat-13; before opset 4 the axis was 1 unless given."""
    parts = [site.input(i) for i in range(len(site.inputs))]
    first = site.type(0)
    if site.opset >= 4:
        site.require(site.attribute("axis") is not None, "attribute 'axis' is missing")
    axis = site.axis(site.int("axis", 1), len(first.shape))
    site.require(len(first.shape) > 0, "the operands are scalars")
    fitted = [parts[0], *(_fitted(site, part, first, axis) for part in parts[1:])]
    return join(site.b, fitted, axis)


def _fitted(site: Site, part: str, first: TensorType, axis: int) -> str:
    """Return an operand in the first one's shape; what is open is checked when the network runs."""
    type_ = site.b.type(part)
    same = type_.dtype is first.dtype and len(type_.shape) == len(first.shape)
    faults = [unlike(a, b) for a, b in zip(type_.shape, first.shape, strict=False)]
    faults[axis : axis + 1] = []
    site.require(
        same and 1 not in faults, f"{type_} cannot be joined to {first} along axis {axis}"
    )
    for fault in faults:
        site.b.must_be_zero(fault)
    if not any(faults):
        return part
    shape = (*first.shape[:axis], type_.shape[axis], *first.shape[axis + 1 :])
    return site.b.expand(part, shape)


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
    return gather(b, x, Place(type_.shape, (), (), views, address, True), 1, type_.shape)


def _source(mode: str, i: Expr, extent: int) -> Expr:
    """Return the element of an axis that an index outside it repeats."""
    if mode == "edge":
        return clamped(i, extent)
    if mode == "wrap":
        return call("Mod", i, index(extent))
    turn = maximum(2 * extent - 2, 1)
    folded = call("Mod", i, index(turn))
    return call("Min", folded, call("Abs", call("Sub", index(turn), folded)))


@lowers("Pad")
def lower_pad(site: Site) -> str:
    """ONNX Pad-21 in its four modes; before opset 11 the pads and the value are attributes."""
    rank = len(site.shape(0))
    pads = _pads(site)
    axes: Sequence[int] = range(rank)
    if site.opset >= 18 and site.has(3):
        axes = [site.axis(a, rank) for a in site.ints_const(3, "the list of axes")]
        site.require(len(set(axes)) == len(axes), f"axes {list(axes)} repeat")
    count = len(axes)
    site.require(len(pads) == 2 * count, f"{len(pads)} pads for {count} axes")
    begins, ends = [0] * rank, [0] * rank
    for axis, low, high in zip(axes, pads[:count], pads[count:], strict=True):
        begins[axis], ends[axis] = low, high
    mode = site.str("mode", "constant")
    site.require(mode in MODES, f"mode is '{mode}'")
    _check_extents(site, begins, ends, mode)
    return pad(site.b, site.input(0), begins, ends, mode, _fill_value(site))


def _pads(site: Site) -> list[int]:
    if site.opset >= 11:
        return site.ints_const(1, "the list of pads")
    return site.ints("pads" if site.opset >= 2 else "paddings") or []


def _check_extents(site: Site, begins: Sequence[int], ends: Sequence[int], mode: str) -> None:
    for axis, (n, low, high) in enumerate(zip(site.shape(0), begins, ends, strict=True)):
        place = f"pads {low} and {high} of axis {axis} with {n} elements"
        kept = n + minimum(low, 0) + minimum(high, 0)
        site.require(n + low + high >= 0 and kept >= 0, f"{place} leave nothing")
        if mode != "constant":
            site.require(kept > 0 or not (low > 0 or high > 0), f"{place} repeat nothing")


def _fill_value(site: Site) -> str:
    dtype = site.type(0).dtype
    if site.opset < 11:
        value = site.float("value", 0.0)
        return site.b.constant(np.array(value).astype(dtype.numpy)) if value else ""
    if not site.has(2):
        return ""
    value_type = site.type(2)
    site.require(value_type.size == 1 and value_type.dtype is dtype, f"the value is {value_type}")
    return site.input(2)
