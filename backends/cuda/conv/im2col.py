"""CUDA kernels of Conv by warpgroups: tiles of windows that TMA gathers in its im2col mode.

A first launch copies the input with its channels last, and with its padding where that isn't 0.
The product's depth is the filter's taps, the channels of each filled up with zeros to whole steps:
a step loads the channels of one tap, for windows that follow each other, across rows and images.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from math import prod

import numpy as np

from atc.backends.cuda.gpus import gpu_of
from atc.backends.cuda.kernel import unravel
from atc.backends.cuda.products.boxes import CHUNK, Matrix, Side, packed_matrix, plus
from atc.backends.cuda.products.prepared import Prepared, scratch_argument
from atc.backends.cuda.products.tiles import Operand, Product, index_type, windows_met
from atc.backends.cuda.products.warpgroup import (
    LEAST,
    RoundedProduct,
    ShortenedProduct,
    SplitProduct,
    StoredProduct,
    WarpgroupParams,
    WarpgroupProduct,
    parts_size,
)
from atc.backends.kernel import Pack, TensorMap, Walk, Workload
from atc.backends.render.expr import address
from atc.backends.target import Target
from atc.dims import is_dynamic
from atc.ir.graph import Array, TensorType
from atc.ir.ops import Conv, MatMul, Window
from atc.ir.view import View, dense

CORNERS = {1: 1 << 15, 2: 1 << 7, 3: 1 << 4}
"""By the axes of an image, bounds of where windows begin, counted from an axis' ends."""

REACHES = {1: 1 << 16, 2: 1 << 8, 3: 1 << 5}
"""Likewise of the distance of a window's last tap from its first one."""

STRIDE = 8
"""The most pixels from one window to the next."""

COPIED = 2 * CHUNK
"""Bytes of a pixel that a thread copies at a time: what memory is written in."""


class WindowProduct(WarpgroupProduct):
    """Conv with constant filters: the product of windows with them, by warpgroups."""

    op = Conv
    along_rows = True

    def accepts(self, w: Workload, target: Target) -> bool:
        """Accept windows that the copy engine can go through, with enough channels and filters."""
        op = _conv(w)
        if gpu_of(target.device).wgmma == 0 or is_dynamic(w) or self.form(w) is None:
            return False
        matmul, channels = self.matmul(w), w.input(1).shape[1]
        aligned = op.group == 1 or channels * w.input(0).dtype.itemsize % CHUNK == 0
        enough = min(matmul.m, matmul.n, channels) >= LEAST
        return aligned and enough and w.constant[1] and _is_walkable(w)

    def _channels(self, w: Workload) -> int:
        """Return the channels of a filter, with zeros to the end of a step."""
        depth = self._form(w).depth
        return -(-w.input(1).shape[1] // depth) * depth

    def matmul(self, w: Workload) -> MatMul:
        """Return the product of all windows with the filters of each group, channels last."""
        op, y, filters = _conv(w), w.outputs[0], w.input(1).shape[0]
        depth, columns = prod(op.window.kernel) * self._channels(w), filters // op.group
        windows = y.shape[0] * prod(y.shape[2:])
        return MatMul(
            (op.group,), windows, columns, depth, View((0, depth, 1)),
            View((columns * depth, 1, depth)), op.epilogue, op.accumulator,
        )  # fmt: skip

    def product(self, w: Workload) -> Product:
        """Return that product as C; the first operand is the input as it was."""
        op, matmul, (x, filters), y = _conv(w), self.matmul(w), _operands(w), w.outputs[0]
        outputs = [("n", y.shape[0]), *((f"o{d}", n) for d, n in enumerate(y.shape[2:]))]
        loops = ("n", "m", *(v for v, _ in outputs[1:]))
        taps = [*((f"k{d}", n) for d, n in enumerate(op.window.kernel)), ("c", self._channels(w))]
        inputs, inside = windows_met(op.window, x.shape[2:], y.shape[2:])
        inside += [f"c < {filters.shape[1]}"] * (self._channels(w) > filters.shape[1])
        own, first = "j", "c"
        if op.group > 1:
            own, first = f"g * {matmul.n} + j", f"(g * {filters.shape[1]} + c)"
        place = address(dense(x.shape), ["n", first, *(f"i{d}" for d in range(op.window.rank))])
        pixel = unravel("i", outputs)
        return Product(
            (("g", op.group),), matmul.m, matmul.n, matmul.k,
            Operand("x0", x.dtype, place, " && ".join(inside),
                    (*pixel, *unravel("p", taps), *inputs), "x2[0]" if op.zero_points else ""),
            Operand("x1", filters.dtype, f"({own}) * {matmul.k} + p"),
            op.accumulator, loops, op.operands, address(dense(y.shape), list(loops)),
            (*pixel, ("m", own)), index_type(w),
        )  # fmt: skip

    def _matrices(self, w: Workload) -> tuple[Matrix, Matrix]:
        """Return the copied input, a row for each pixel, and the packed filters."""
        form, x = self._form(w), w.input(0)
        pixels = x.shape[0] * prod(_copied(w)[0])
        pitch = _pitch(w)
        rows = Matrix(
            scratch_argument(w), pixels, x.shape[1], pitch, 0, (), False, form.type, form.stored
        )
        return rows, packed_matrix(self.matmul(w), 1, form)

    def packs(
        self, w: Workload, params: WarpgroupParams, target: Target
    ) -> Mapping[int, Pack]:
        """Pack filters channels last."""
        (packed,) = super().packs(w, params, target).values()
        channels = self._channels(w)
        return {1: lambda filters: packed(_channels_last(filters, channels))}

    def _copy_size(self, w: Workload) -> int:
        return w.input(0).shape[0] * prod(_copied(w)[0]) * _pitch(w)

    def prepared(self, w: Workload) -> Prepared:
        """Return the copied input."""
        size = self._copy_size(w)
        return Prepared(size, w.input(0).nbytes, -(-size // COPIED))

    def _sides(self, w: Workload, params: WarpgroupParams) -> list[Side]:
        """Return how tiles are loaded: of the input, windows of one tap's channels."""
        (x, filters), y, (size, window), (a, b) = (
            _operands(w), w.outputs[0], _copied(w), super()._sides(w, params)
        )  # fmt: skip
        axes, each = range(window.rank), a.map.box[0]
        outputs = [("image", y.shape[0]), *((f"o{d}", n) for d, n in enumerate(y.shape[2:]))]
        taps = [(f"k{d}", n) for d, n in enumerate(window.kernel)]
        steps = self._channels(w) // self._form(w).depth
        begin = [f"(int)({_affine(f'o{d}', window.strides[d], -window.pads[d])})" for d in axes]
        behind = [f"(int)({_affine(f'k{d}', window.dilations[d])})" for d in axes]
        loads = tuple(
            (at, (plus("(int)first", k * each), *begin[::-1], "(int)image", *behind[::-1]))
            for k, (at, _) in enumerate(a.loads)
        )
        tap, channel = "step", "0"
        if steps > 1:
            tap, channel = f"step / {steps}", f"step % {steps} * {self._form(w).depth}"
        if _conv(w).group > 1:
            channel = f"{_affine('g', filters.shape[1])} + {channel}"
        extents = (x.shape[1], *size[::-1], x.shape[0])
        strides = [_pitch(w)]
        for n in extents[1:-1]:
            strides.append(strides[-1] * n)
        map_ = TensorMap(
            a.name, a.map.argument, parts_size(params), a.map.type, extents, tuple(strides),
            (each, params.m), _walk(w),
        )  # fmt: skip
        return [
            replace(
                a, map=map_, loads=loads, load="w_load_windows",
                tile=(("window", f"tile_i * {params.m}"), *unravel("window", outputs)),
                step=(("tap", tap), *unravel("tap", taps), ("first", channel)),
            ),
            b,
        ]  # fmt: skip

    def values(
        self, w: Workload, params: WarpgroupParams, target: Target
    ) -> dict[str, object]:
        """Tiles and the epilogue, and how the input is copied."""
        x, (size, _), window = w.input(0), _copied(w), _conv(w).window
        images, channels, *own = x.shape
        chunk, pitch = CHUNK // x.dtype.itemsize, _pitch(w) // x.dtype.itemsize
        loops = [("image", images), ("part", pitch // (2 * chunk)), ("pixel", prod(size))]
        inside, axes = list[str](), list[tuple[str, str]]()
        if (padded := size != tuple(own)):
            axes = unravel("pixel", [(f"h{d}", n) for d, n in enumerate(size)])
            axes += [(f"i{d}", _affine(f"h{d}", 1, -pad)) for d, pad in enumerate(window.pads)]
            inside = [f"i{d} >= 0 && i{d} < {n}" for d, n in enumerate(own)]
        pixel = address(dense(own), [f"i{d}" for d in range(len(own))]) if padded else "pixel"
        return super().values(w, params, target) | {
            "copied": {
                "type": x.dtype.c, "begin": parts_size(params) // x.dtype.itemsize, "chunk": chunk,
                "pitch": pitch, "channels": channels, "pixels": prod(size),
                "whole": pitch == channels, "indices": unravel("at", loops),
                "count": prod(n for _, n in loops), "axes": axes, "inside": " && ".join(inside),
                "from": f"(image * {channels} + c) * {prod(own)} + {pixel}",
            },
        }  # fmt: skip


def _conv(w: Workload) -> Conv:
    assert isinstance(w.op, Conv)
    return w.op


def _operands(w: Workload) -> tuple[TensorType, TensorType]:
    return w.input(0), w.input(1)


def _affine(index: str, step: int, more: int = 0) -> str:
    """Return the C of an index in steps, from `more` on."""
    steps = f"{index} * {step}" if step != 1 else index
    return f"{steps} {'+' if more > 0 else '-'} {abs(more)}" if more else steps


def _pitch(w: Workload) -> int:
    """Return the bytes of a copied pixel."""
    x = w.input(0)
    return -(-x.shape[1] * x.dtype.itemsize // COPIED) * COPIED


def _copied(w: Workload) -> tuple[tuple[int, ...], Window]:
    """Return an image's extents as it is copied, and the windows that go through the copy.

    Padding with a zero point is copied, too: the copy engine pads with 0.
    """
    op, size, out = _conv(w), w.input(0).shape[2:], w.outputs[0].shape[2:]
    if not op.zero_points:
        return size, op.window
    window, padded = op.window, list[int]()
    for d, (n, pad) in enumerate(zip(size, window.pads, strict=True)):
        reach = (window.kernel[d] - 1) * window.dilations[d] + 1
        padded.append(max(pad + n, (out[d] - 1) * window.strides[d] + reach))
    return tuple(padded), replace(window, pads=(0,) * window.rank)


def _walk(w: Workload) -> Walk:
    """Return where windows begin: the last one's pixel, too, is counted from the axis' last."""
    (size, window), out = _copied(w), w.outputs[0].shape[2:]
    lower = [-pad for pad in window.pads]
    last = [
        low + (n - 1) * step for low, n, step in zip(lower, out, window.strides, strict=True)
    ]
    upper = [at - (n - 1) for at, n in zip(last, size, strict=True)]
    return Walk(tuple(lower[::-1]), tuple(upper[::-1]), window.strides[::-1])


def _is_walkable(w: Workload) -> bool:
    """Return whether the copy engine's numbers can say where windows begin and taps are."""
    (_, window), walk = _copied(w), _walk(w)
    if window.rank not in CORNERS or max(window.strides) > STRIDE:
        return False
    corner, reach = CORNERS[window.rank], REACHES[window.rank]
    far = max((n - 1) * d for n, d in zip(window.kernel, window.dilations, strict=True))
    return far < reach and all(-corner <= at < corner for at in (*walk.lower, *walk.upper))


def _channels_last(filters: Array, channels: int) -> Array:
    """Return filters [M, C, *kernel] as [M, *kernel, channels], with zeros behind C."""
    last = np.moveaxis(filters, 1, -1)
    spare = [(0, 0)] * (last.ndim - 1) + [(0, channels - last.shape[-1])]
    return np.ascontiguousarray(np.pad(last, spare))


class ConvWindows(WindowProduct, StoredProduct):
    """Conv of 16-bit floats, or of bytes."""

    name = "cuda_conv_wgmma_im2col"


class ConvWindowsSplit(WindowProduct, SplitProduct):
    """Conv of floats split in two bfloat16."""

    name = "cuda_conv_wgmma_im2col_bf16x3"


class ConvWindowsRounded(WindowProduct, RoundedProduct):
    """Conv of floats as bfloat16."""

    name = "cuda_conv_wgmma_im2col_bf16"


class ConvWindowsShortened(WindowProduct, ShortenedProduct):
    """Conv of floats as TF32."""

    name = "cuda_conv_wgmma_im2col_tf32"


KERNELS = (ConvWindows(), ConvWindowsSplit(), ConvWindowsRounded(), ConvWindowsShortened())
