"""Lowerings of onnxruntime's own operators that index: they read and write where data say."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from atc.ir.expr import Expr, bitcast, call, cast, const
from atc.ir.graph import DType, row_major
from atc.ir.view import View
from atc.lower.context import LoweringContext
from atc.lower.contrib.fused import MICROSOFT
from atc.lower.elementwise import like
from atc.lower.indexed_access import IndexedAccess, gather, scatter, times, total, wrapped
from atc.lower.registry import lowers


@lowers("NGramRepeatBlock", domain=MICROSOFT)
def ngram_repeat_block(ctx: LoweringContext) -> str:
    """com.microsoft NGramRepeatBlock: -inf for tokens that would repeat an n-gram."""
    b, n = ctx.b, ctx.int("ngram_size")
    (batch, length), (rows, words) = ctx.shape(0), ctx.shape(1)
    ctx.require(n > 0 and rows == batch, f"n-grams of {n} in {ctx.type(0)}")
    places = length - n + 1  # where an n-gram may begin whose first tokens are the last ones
    if places <= 0:
        return ctx.input(1)
    ids = b.cast(ctx.input(0), DType.INT64)
    views = [View((length, 1), k) for k in range(n - 1)]
    views += [View((length, 0), length - n + 1 + k) for k in range(n - 1)]

    def penalty(*tokens: Expr) -> Expr:
        pairs = zip(tokens[: n - 1], tokens[n - 1 : 2 * n - 2], strict=True)
        same: Expr = const(True, DType.BOOL)
        for old, new in pairs:
            same = call("And", same, call("Equal", old, new))
        low, high = (const(s * np.inf, DType.FLOAT) for s in (-1, 1))
        return call("Where", same, low, high)

    updates = b.map(penalty, *[ids] * (2 * n - 2), shape=(batch, places), views=views)

    def address(token: Expr, base: Expr) -> Expr:
        return total(base, wrapped(token, words))

    last, rows_ = View((length, 1), n - 1), View((words, 0))
    place = IndexedAccess((batch, places), (ids,), (last,), (rows_,), address)
    return scatter(b, ctx.input(1), updates, place, 1, "min")


@lowers("MurmurHash3", domain=MICROSOFT)
def murmur_hash(ctx: LoweringContext) -> str:
    """com.microsoft MurmurHash3: its 32-bit variant, of numbers of 4 and of 8 bytes."""
    x, b = ctx.type(0), ctx.b
    if x.dtype is DType.STRING or x.dtype.itemsize not in (4, 8):
        raise ctx.unsupported(f"the hash of {x}", "only numbers of 4 and 8 bytes are hashed")
    seed = const(ctx.int("seed") & 0xFFFFFFFF, DType.UINT32)

    def hashed(v: Expr) -> Expr:
        if x.dtype.itemsize == 4:
            words = [bitcast(v, DType.UINT32)]
        else:
            wide = bitcast(v, DType.UINT64)
            high = call("ShiftRight", wide, const(32, DType.UINT64))
            words = [cast(part, DType.UINT32) for part in (wide, high)]
        h = _mixed(seed, words)
        return h if ctx.int("positive", 1) else bitcast(h, DType.INT32)

    return b.map(hashed, ctx.input(0))


def _word(value: int) -> Expr:
    return const(value, DType.UINT32)


def _rotated(x: Expr, by: int) -> Expr:
    left, right = call("ShiftLeft", x, _word(by)), call("ShiftRight", x, _word(32 - by))
    return call("BitwiseOr", left, right)


def _mixed(h: Expr, words: Sequence[Expr]) -> Expr:
    """Return MurmurHash3_x86_32 of whole words."""
    for word in words:
        k = _rotated(call("Mul", word, _word(0xCC9E2D51)), 15)
        h = call("BitwiseXor", h, call("Mul", k, _word(0x1B873593)))
        h = call("Add", call("Mul", _rotated(h, 13), _word(5)), _word(0xE6546B64))
    h = call("BitwiseXor", h, _word(4 * len(words)))
    for shift, factor in ((16, 0x85EBCA6B), (13, 0xC2B2AE35), (16, 1)):
        h = call("BitwiseXor", h, call("ShiftRight", h, _word(shift)))
        h = h if factor == 1 else call("Mul", h, _word(factor))
    return h


@lowers("CropAndResize", domain=MICROSOFT)
def crop_and_resize(ctx: LoweringContext) -> str:
    """com.microsoft CropAndResize: boxes [y1, x1, y2, x2] of images, in parts of their extents."""
    mode = ctx.str("mode", "bilinear")
    ctx.require(mode in ("bilinear", "nearest"), f"mode is '{mode}'")
    height, width = ctx.ints_const(3, "the crops' size")
    crop = _Crop(ctx, (height, width))
    if mode == "nearest":
        value = crop.pixel(*(crop.edge(axis, "Round") for axis in (0, 1)))
    else:
        low, high = ([crop.edge(axis, fn) for axis in (0, 1)] for fn in ("Floor", "Ceil"))
        rows = [crop.blend(crop.pixel(y, low[1]), crop.pixel(y, high[1]), 1)
                for y in (low[0], high[0])]  # fmt: skip
        value = crop.blend(rows[0], rows[1], 0)
    return crop.inside(value, ctx.float("extrapolation_value", 0.0))


class _Crop:
    """The places [boxes, steps] along each axis of an image that crops are read at."""

    def __init__(self, ctx: LoweringContext, size: tuple[int, int]) -> None:
        self.b = ctx.b
        self.ctx = ctx
        self.boxes = ctx.shape(1)[0]
        self.shape = ctx.shape(0)
        self.size = size
        self.out = (self.boxes, self.shape[1], *size)
        self.places = tuple(self._places(axis) for axis in (0, 1))

    def _places(self, axis: int) -> str:
        steps, last = self.size[axis], self.shape[2 + axis] - 1

        def place(start: Expr, end: Expr, k: Expr) -> Expr:
            if steps == 1:
                return call("Mul", call("Add", start, end), like(start, 0.5 * last))
            step = call("Mul", call("Sub", end, start), like(end, last / (steps - 1)))
            whole = call("Mul", cast(k, DType.FLOAT), step)
            return call("Add", call("Mul", start, like(start, last)), whole)

        rois = self.b.cast(self.ctx.input(1), DType.FLOAT)
        return self.b.map(
            place, rois, rois, shape=(self.boxes, steps),
            views=[View((4, 0), axis), View((4, 0), axis + 2)], coordinates=[View((0, 1))],
        )  # fmt: skip

    def _spread(self, axis: int) -> View:
        """Return how a table of places is read over the result."""
        steps = self.size[axis]
        return View((steps, 0, 1, 0) if axis == 0 else (steps, 0, 0, 1))

    def edge(self, axis: int, fn: str) -> str:
        """Return the pixels below, above or next to the places, INT64."""
        return self.b.map(lambda p: cast(call(fn, p), DType.INT64), self.places[axis])

    def pixel(self, y: str, x: str) -> str:
        """Return the pixels [boxes, channels, height, width] in these rows and columns."""
        images, channels, height, width = self.shape

        def address(image: Expr, row: Expr, column: Expr, channel: Expr) -> Expr:
            line = total(times(wrapped(image, images), channels), channel)
            line = total(times(line, height), wrapped(row, height))
            return total(times(line, width), wrapped(column, width))

        names = (self.ctx.input(2), y, x)
        views = (View((1, 0, 0, 0)), self._spread(0), self._spread(1))
        place = IndexedAccess(self.out, names, views, (View((0, 1, 0, 0)),), address, proven=True)
        return gather(self.b, self.ctx.input(0), place, 1, self.out)

    def blend(self, low: str, high: str, axis: int) -> str:
        """Return what lies between two neighbours along an axis."""

        def mixed(p: Expr, q: Expr, place: Expr) -> Expr:
            part = call("Sub", place, call("Floor", place))
            return call("Add", p, call("Mul", call("Sub", q, p), part))

        dense = View(row_major(self.out))
        views = [dense, dense, self._spread(axis)]
        return self.b.map(mixed, low, high, self.places[axis], shape=self.out, views=views)

    def inside(self, value: str, otherwise: float) -> str:
        """Return the value where the place is inside the image."""

        def chosen(v: Expr, y: Expr, x: Expr) -> Expr:
            fits: Expr = const(True, DType.BOOL)
            for place, last in ((y, self.shape[2] - 1), (x, self.shape[3] - 1)):
                fits = call("And", fits, call("GreaterOrEqual", place, like(place, 0)))
                fits = call("And", fits, call("LessOrEqual", place, like(place, last)))
            return call("Where", fits, v, like(v, otherwise))

        views = [View(row_major(self.out)), self._spread(0), self._spread(1)]
        return self.b.map(chosen, value, *self.places, shape=self.out, views=views)
