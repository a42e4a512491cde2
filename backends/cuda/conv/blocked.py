"""CUDA kernels of channel-blocked bytes: ConvBlocked, and the reorders from and to plain tensors.

What a tap meets in a block is one run of bytes, which tiles are copied from as it is. Filters are
packed in the same order, [M, blocks, *kernel, block], with zeros for the channels that are missing.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from math import prod

import numpy as np

from atc.backends.cuda.gpus import gpu_of
from atc.backends.cuda.kernel import ElementKernel, seconds, unravel
from atc.backends.cuda.products.constants import packed_row, sum_of, with_sums
from atc.backends.cuda.products.tensor import ConvTensor, TileParams
from atc.backends.cuda.products.tiles import ProductTiles, SharedParams, multiply_add, product_of
from atc.backends.kernel import Pack, Params, Workload
from atc.backends.render.axis import loop_axes
from atc.backends.render.expr import address, load
from atc.backends.render.loops import epilogue_lines
from atc.backends.target import Target
from atc.dims import is_dynamic
from atc.ir.graph import Array, DType
from atc.ir.ops import Block, ConvBlocked, Unblock
from atc.ir.view import dense


def _is_product(w: Workload) -> bool:
    """Return whether known filters run along whole blocks of each group, or a plain x."""
    assert isinstance(w.op, ConvBlocked)
    op, weights, block = w.op, w.input(1), w.outputs[0].shape[-1]
    if not w.constant[1] or op.accumulator is not DType.INT32:
        return False
    if len(w.input(0).shape) == op.plain:
        return True
    return w.input(0).shape[-1] == block and (op.group == 1 or weights.shape[1] % block == 0)


def _packs(w: Workload) -> Mapping[int, Pack]:
    assert isinstance(w.op, ConvBlocked)
    plain = len(w.input(0).shape) == w.op.plain
    return {} if plain else {1: partial(_in_lanes, block=w.outputs[0].shape[-1])}


def _in_lanes(weights: Array, block: int) -> Array:
    """Return filters [M, C, *kernel] as [M, ceil(C / block), *kernel, block]."""
    filters, channels, *kernel = weights.shape
    blocks = -(-channels // block)
    padded = np.zeros((filters, blocks * block, *kernel), weights.dtype)
    padded[:, :channels] = weights
    return np.moveaxis(padded.reshape(filters, blocks, block, *kernel), 2, -1)


class BlockedTiles(ProductTiles):
    """A ConvBlocked of bytes with filters and channels enough, as a product."""

    name = "cuda_conv_blocked_tiles"
    op = ConvBlocked

    def accepts(self, w: Workload, target: Target) -> bool:
        """Results that are no slim strips, of sums that are no short ones."""
        return _is_product(w) and super().accepts(w, target) and product_of(w).k >= 8

    def packs(self, w: Workload, params: SharedParams, target: Target) -> Mapping[int, Pack]:
        """Return filters as the sums run."""
        return _packs(w)


class BlockedTensor(ConvTensor):
    """A ConvBlocked of bytes on tensor cores."""

    name = "cuda_conv_blocked_tensor"
    op = ConvBlocked  # type: ignore[assignment]

    def accepts(self, w: Workload, target: Target) -> bool:
        """Accept filters that are known, and tiles that aren't nearly empty."""
        return _is_product(w) and super().accepts(w, target)

    def packs(self, w: Workload, params: TileParams, target: Target) -> Mapping[int, Pack]:
        """Return filters as the sums run, and behind them their sums for a zero point."""
        own, depth = _packs(w), product_of(w).k

        def summed(weights: Array) -> Array:
            ordered = own[1](weights) if own else weights
            return with_sums(ordered.reshape(-1, depth))

        return {1: summed} if self.row_sum(w) else own

    def row_sum(self, w: Workload) -> str:
        """Return the C of the sum of a filter; '' without a zero point."""
        assert isinstance(w.op, ConvBlocked)
        product, filters = product_of(w), w.input(1).shape[0]
        return sum_of(filters * product.k, packed_row(w.op, product)) if w.op.zero else ""


class BlockedElements(ElementKernel[ConvBlocked]):
    """Any ConvBlocked of bytes, those with a filter for each channel among them."""

    name = "cuda_conv_blocked"
    op = ConvBlocked
    template = "cuda/conv/conv.cu.j2"
    dynamic = True

    def accepts(self, w: Workload[ConvBlocked], target: Target) -> bool:
        """Accept sums of integers over windows of known extents."""
        op, x = w.op, w.input(0)
        known = not is_dynamic((op.window.kernel, op.window.strides, w.input(1)))
        alike = len(x.shape) == op.plain or x.shape[-1] == w.outputs[0].shape[-1]
        return known and alike and op.accumulator is DType.INT32

    def cost(self, w: Workload[ConvBlocked], params: Params, target: Target) -> float:
        """Return the seconds that a thread's loop takes: its loads do, of which few are shared."""
        gpu, depth = gpu_of(target.device), prod(w.input(1).shape[1:])
        waves = w.outputs[0].size / gpu.multiprocessors
        return seconds(w, waves * depth * 8 / gpu.fmas / gpu.clock + depth * 4 / gpu.clock, gpu)

    def values(self, w: Workload[ConvBlocked], params: Params, target: Target) -> dict[str, object]:
        """Return indices, addresses of both operands and the epilogue.

        What lies behind the last channel is 0.
        """
        op, x, weights, y = w.op, w.input(0), w.input(1), w.outputs[0]
        block = y.shape[-1]
        axes = loop_axes(op.window, y.shape[2:-1], x.shape[2 : op.plain])
        spatial = [(f"o{d}", n) for d, n in enumerate(y.shape[2:-1])]
        loops = [("n", y.shape[0]), ("mb", y.shape[1]), *spatial, ("ml", block)]
        indices = unravel("at", loops)
        places = dict(indices)
        m, last = f"({places['mb']}) * {block} + {places['ml']}", weights.shape[0] - 1
        whole = weights.shape[0] % block == 0
        after, value = epilogue_lines(op.epilogue, w, "total", [v for v, _ in loops], 2)
        if not whole:
            value = f"{m} > {last} ? 0 : {value}"
        pixel = [a.input for a in axes]
        blocked = len(x.shape) > op.plain
        at = ["n", f"((first + c) / {block})", *pixel, f"(first + c) % {block}"]
        place = address(dense(x.shape), at if blocked else ["n", "(first + c)", *pixel])
        tap = address(dense(weights.shape), ["m", "c", *[a.tap for a in axes]])
        a = load(x.dtype, f"x0[{place}]")
        return {
            "count": y.size, "axes": axes, "group": op.group, "channels": weights.shape[1],
            "indices": [*indices, ("m", m if whole else f"{m} < {last} ? {m} : {last}")],
            "filters": weights.shape[0] // op.group, "type": op.accumulator.c,
            "after": after, "value": value,
            "step": multiply_add(op.accumulator, "total", f"({a} - {op.zero})" if op.zero else a,
                                 load(weights.dtype, f"x1[{tap}]")),
        }  # fmt: skip


class BlockElements(ElementKernel[Block]):
    """Block; what lies behind the last channel is 0."""

    name = "cuda_block"
    op = Block
    template = "cuda/map/map.cu.j2"
    dynamic = True

    def values(self, w: Workload[Block], params: Params, target: Target) -> dict[str, object]:
        """Return indices and the element that is stored."""
        x, y, block = w.input(0), w.outputs[0], w.op.block
        channels, pixels = x.shape[1], prod(x.shape[2:])
        loops = [("n", y.shape[0]), ("b", y.shape[1]), ("p", pixels), ("l", block)]
        element = f"x0[(n * {channels} + b * {block} + l) * {pixels} + p]"
        there = "" if channels % block == 0 else f"b * {block} + l >= {channels} ? 0 : "
        return {
            "count": y.size, "indices": unravel("at", loops), "lines": [],
            "value": there + element,
        }  # fmt: skip


class UnblockElements(ElementKernel[Unblock]):
    """Unblock."""

    name = "cuda_unblock"
    op = Unblock
    template = "cuda/map/map.cu.j2"
    dynamic = True

    def values(self, w: Workload[Unblock], params: Params, target: Target) -> dict[str, object]:
        """Return indices and the element that is stored."""
        x, y = w.input(0), w.outputs[0]
        pixels, blocks, block = prod(y.shape[2:]), x.shape[1], x.shape[-1]
        loops = [("n", y.shape[0]), ("c", y.shape[1]), ("p", pixels)]
        element = f"x0[((n * {blocks} + c / {block}) * {pixels} + p) * {block} + c % {block}]"
        return {
            "count": y.size, "indices": unravel("at", loops), "lines": [], "value": element,
        }  # fmt: skip


KERNELS = (BlockedTiles(), BlockedTensor(), BlockedElements(), BlockElements(), UnblockElements())
