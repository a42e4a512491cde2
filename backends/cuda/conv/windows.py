"""CUDA kernels of Conv, ConvTranspose and Pool: a thread for each element of the result."""

from __future__ import annotations

from functools import partial
from math import prod

from atc.backends.cuda.gpus import gpu_of
from atc.backends.cuda.kernel import ElementKernel, seconds, unravel
from atc.backends.cuda.products.tiles import multiply_add
from atc.backends.kernel import Params, Workload
from atc.backends.render.axis import loop_axes
from atc.backends.render.expr import address, load, store, value_type
from atc.backends.render.loops import epilogue_lines
from atc.backends.target import Target
from atc.dims import is_dynamic
from atc.ir.graph import TensorType, row_major
from atc.ir.ops import Conv, ConvTranspose, Pool
from atc.ir.view import View, dense


def _operands(w: Workload) -> tuple[TensorType, TensorType]:
    x, weights = w.inputs[:2]
    assert x is not None
    assert weights is not None
    return x, weights


def _loops(y: TensorType, first: str, second: str) -> list[tuple[str, int]]:
    """Return the indices of a result [N, C, *spatial]."""
    spatial = [(f"o{d}", n) for d, n in enumerate(y.shape[2:])]
    return [(first, y.shape[0]), (second, y.shape[1]), *spatial]


class _OfWindows(ElementKernel):
    """Windows of constant sizes, over tensors of any extents."""

    dynamic = True

    def accepts(self, w: Workload, target: Target) -> bool:
        """Accept what meets filters of known extents."""
        assert isinstance(w.op, Conv | ConvTranspose | Pool)
        window, filters = w.op.window, w.inputs[1:2]
        return not is_dynamic((window.kernel, window.strides, window.dilations, *filters))


class ConvElements(_OfWindows):
    """Any Conv; floats are summed with one rounding a product."""

    name = "cuda_conv"
    op = Conv
    template = "cuda/conv/conv.cu.j2"

    def cost(self, w: Workload, params: Params, target: Target) -> float:
        """Return the seconds that a thread takes: its loads do, of which few are shared."""
        gpu, weights = gpu_of(target.device), w.inputs[1]
        assert weights is not None
        depth, waves = prod(weights.shape[1:]), w.outputs[0].size / gpu.multiprocessors
        clocks = waves * (8 * depth + 60) / gpu.fmas + 4 * depth
        return seconds(w, clocks / gpu.clock, gpu)

    def values(self, w: Workload, params: Params, target: Target) -> dict[str, object]:
        """Return indices, addresses of both operands and the epilogue."""
        op, (x, weights), y = w.op, _operands(w), w.outputs[0]
        assert isinstance(op, Conv)
        axes = loop_axes(op.window, y.shape[2:], x.shape[2:])
        loops = _loops(y, "n", "m")
        after, value = epilogue_lines(op.epilogue, w, "total", [v for v, _ in loops], op.operands)
        place = address(dense(x.shape), ["n", "(first + c)", *[a.input for a in axes]])
        tap = address(dense(weights.shape), ["m", "c", *[a.tap for a in axes]])
        a = _less_zero_point(op, w, 2, load(x.dtype, f"x0[{place}]"))
        b = _less_zero_point(op, w, 3, load(weights.dtype, f"x1[{tap}]"))
        return {
            "count": y.size, "indices": unravel("at", loops), "axes": axes, "group": op.group,
            "filters": max(weights.shape[0] // op.group, 1), "channels": weights.shape[1],
            "type": op.accumulator.c, "after": after, "value": value,
            "step": multiply_add(op.accumulator, "total", a, b),
        }  # fmt: skip


def _less_zero_point(op: Conv, w: Workload, index: int, value: str) -> str:
    """Subtract zero point `index`: one number, or one per output channel."""
    point = w.inputs[index] if op.zero_points else None
    if point is None:
        return value
    return f"({value} - x{index}[{'m' if index == 3 and point.size > 1 else '0'}])"


class ConvTransposeElements(_OfWindows):
    """Any ConvTranspose: each result gathers the inputs whose taps land on it."""

    name = "cuda_conv_transpose"
    op = ConvTranspose
    template = "cuda/conv/conv_transpose.cu.j2"

    def values(self, w: Workload, params: Params, target: Target) -> dict[str, object]:
        """Return indices, addresses of both operands and the epilogue."""
        op, (x, weights), y = w.op, _operands(w), w.outputs[0]
        assert isinstance(op, ConvTranspose)
        axes = loop_axes(op.window, y.shape[2:], x.shape[2:])
        loops = _loops(y, "n", "m")
        after, value = epilogue_lines(op.epilogue, w, "total", [v for v, _ in loops], 2)
        filters = weights.shape[1]
        own = f"m % {max(filters, 1)}" if op.group > 1 else "m"
        place = address(dense(x.shape), ["n", "c", *[a.input for a in axes]])
        tap = address(dense(weights.shape), ["c", own, *[a.tap for a in axes]])
        a, b = load(x.dtype, f"x0[{place}]"), load(weights.dtype, f"x1[{tap}]")
        a = f"({a} - {op.zero})" if op.zero else a
        return {
            "count": y.size, "indices": unravel("at", loops), "axes": axes, "group": op.group,
            "filters": max(filters, 1), "channels": x.shape[1] // op.group,
            "type": op.accumulator.c, "after": after, "value": value,
            "step": multiply_add(op.accumulator, "total", a, b),
        }  # fmt: skip


class PoolElements(_OfWindows):
    """Any Pool."""

    name = "cuda_pool"
    op = Pool
    template = "cuda/conv/pool.cu.j2"

    def values(self, w: Workload, params: Params, target: Target) -> dict[str, object]:
        """Return indices and what happens per element of a window."""
        op, x, y = w.op, w.inputs[0], w.outputs[0]
        assert isinstance(op, Pool)
        assert x is not None
        axes = loop_axes(op.window, y.shape[2:], x.shape[2:])
        inputs = [a.input for a in axes]
        strides = row_major(x.shape[2:])
        if op.storage_order:
            strides = row_major(x.shape[:1:-1])[::-1]
        loops = [("nc", y.shape[0] * y.shape[1]), *_loops(y, "n", "c")[2:]]
        return {
            "op": op, "axes": axes, "count": y.size, "indices": unravel("at", loops),
            "dtype": x.dtype, "type": value_type(x.dtype), "load": partial(load, x.dtype),
            "store": partial(store, y.dtype), "plane": prod(x.shape[2:]),
            "with_indices": len(w.outputs) > 1, "place": address(dense(x.shape[2:]), inputs),
            "flat": address(View(tuple(strides)), inputs),
        }  # fmt: skip


KERNELS = (ConvElements(), ConvTransposeElements(), PoolElements())
