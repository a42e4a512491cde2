"""Portable kernels of Conv, its gradient, ConvTranspose and Pool for any number of axes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from math import prod

from atc.backends.kernel import Kernel, OpT, Params, StripedParams, Workload
from atc.backends.render.axis import loop_axes
from atc.backends.render.expr import address, load, store, value_type
from atc.backends.render.loops import epilogue_lines
from atc.backends.render.reduction import multiply_add, neutral
from atc.backends.render.stripes import InStripes, stripes
from atc.backends.target import Target
from atc.dims import is_dynamic, maximum
from atc.ir.graph import TensorType
from atc.ir.ops import Conv, ConvFilterGradient, ConvTranspose, Pool
from atc.ir.view import View, dense

ROW, PRODUCTS = 4.0, 0.8
"""Cycles to begin a row, and products per cycle in it."""
SMALL = 0.12
"""The latter on a small core, which takes one instruction after the other."""
SMALL_RESULT = 30.0
"""Cycles that a sum of integers takes there to become a result."""
TAP, SMALL_TAP = 4.0, 8.0
"""Cycles that a number of a pooling window takes, the latter on a small core."""


def operand_types(w: Workload[Conv | ConvTranspose]) -> tuple[TensorType, TensorType]:
    """Return the types of x and w."""
    return w.input(0), w.input(1)


class _InStripes(InStripes[OpT, StripedParams], Kernel[OpT, StripedParams]):
    """Kernels of plain tensors, axis 2 of which may be computed in stripes."""

    def parameters(self, w: Workload[OpT], target: Target) -> Sequence[StripedParams]:
        """All rows at once."""
        return (StripedParams(),)

    def striped_params(
        self, w: Workload[OpT], params: StripedParams, target: Target, x_rows: int, y_rows: int
    ) -> StripedParams | None:
        """Return the same parameters where memory is scarce: it makes nothing faster."""
        if not target.scarce_memory or len(w.outputs) > 1 or len(w.outputs[0].shape) < 4:
            return None
        return replace(params, x_rows=x_rows, y_rows=y_rows)


class ConvRows(_InStripes[Conv]):
    """Any Conv in plain C, one row of outputs at a time."""

    name = "conv_rows"
    op = Conv
    template = "cpu/conv/portable.c.j2"
    dynamic = True

    def scratch(self, w: Workload[Conv], params: StripedParams, target: Target) -> int:
        """One row of accumulators."""
        op = w.op
        return maximum(1, w.outputs[0].shape[-1]) * op.accumulator.itemsize

    def values(
        self, w: Workload[Conv], params: StripedParams, target: Target
    ) -> dict[str, object]:
        """Loop bounds, the tables of the last axis and the epilogue."""
        op = w.op
        x, weights = operand_types(w)
        y = w.outputs[0]
        axes = loop_axes(op.window, y.shape[2:], x.shape[2:])
        outer, last = axes[:-1], axes[-1]
        indices = ["n", "m", *[a.output for a in outer], "q"]
        after, value = epilogue_lines(op.epilogue, w, "row[q]", indices, op.operands)
        s = stripes(params, x.shape[2], y.shape[2])
        line = View(_held(x, s.x_rows).strides[:-1])
        rows = [a.input for a in outer]
        tap = address(dense(weights.shape), ["m", "c", *[a.tap for a in outer], "k"])
        return {
            "batch": x.shape[0], "group": op.group, "channels": weights.shape[1],
            "filters": weights.shape[0] // op.group, "outer": outer, "last": last, "s": s,
            "ranges": last.tap_ranges, "dynamic": is_dynamic(last),
            "acc": op.accumulator.c, "element": x.dtype.c,
            "line": address(line, ["n", "(first + c)", *_from(rows, s.x_first)]),
            "w": _minus_zero_point(op, w, 3, load(weights.dtype, f"x1[{tap}]")),
            "step": _step(op, w, load(x.dtype, f"line[{_times('q', last.stride)}]")),
            "after": after, "value": value,
            "target": address(
                dense(_held(y, s.y_rows).shape), ["n", "m", *_from(indices[2:], s.y_first)]
            ),
        }  # fmt: skip

    def cost(self, w: Workload[Conv], params: StripedParams, target: Target) -> float:
        """Estimated cycles: each tap begins a row anew, and goes along it number by number."""
        _, weights = operand_types(w)
        across = max(w.outputs[0].shape[-1], 1)
        rows = w.outputs[0].size / across * prod(weights.shape[1:])
        if not target.bytes_last:
            return rows * (ROW + across / PRODUCTS)
        each = 0.0 if w.op.accumulator.is_float else SMALL_RESULT
        return rows * (ROW + across / SMALL) + w.outputs[0].size * each


def _held(t: TensorType, rows: int) -> TensorType:
    """Return the type of the part of a tensor that memory holds, so many rows."""
    return TensorType(t.dtype, (*t.shape[:2], rows, *t.shape[3:]))


def _from(indices: Sequence[str], first: str) -> list[str]:
    """Return indices of a tensor's axes from 2 on, the rows counted from memory's first one."""
    return [f"({indices[0]}{first})", *indices[1:]] if first else [*indices]


def _minus_zero_point(op: Conv, w: Workload, index: int, value: str) -> str:
    """Subtract zero point `index`: one number, or one per output channel."""
    point = w.inputs[index] if op.zero_points else None
    if point is None:
        return value
    place = "m" if index == 3 and point.size > 1 else "0"
    return f"{value} - x{index}[{place}]"


def _step(op: Conv, w: Workload, value: str) -> str:
    exact = value if op.accumulator.is_float else f"({_minus_zero_point(op, w, 2, value)})"
    return multiply_add(op.accumulator, "row[q]", "weight", exact)


class ConvTransposeScatter(Kernel[ConvTranspose]):
    """Any ConvTranspose in plain C: every input row is scattered into one output plane."""

    name = "conv_transpose"
    op = ConvTranspose
    template = "cpu/conv/transposed.c.j2"
    dynamic = True

    def scratch(self, w: Workload[ConvTranspose], params: Params, target: Target) -> int:
        """Reserve the accumulators of one output channel."""
        return maximum(1, prod(w.outputs[0].shape[2:])) * w.op.accumulator.itemsize

    def values(
        self, w: Workload[ConvTranspose], params: Params, target: Target
    ) -> dict[str, object]:
        """Loop bounds with the roles of input and output exchanged."""
        op = w.op
        x, weights = operand_types(w)
        y = w.outputs[0]
        # Seen from the output, tap k of input i lands on o = i * stride + k * dilation - pad: the
        # same relation as a Conv's with input and output exchanged.
        axes = loop_axes(op.window, x.shape[2:], y.shape[2:])
        outer, last = axes[:-1], axes[-1]
        after, value = epilogue_lines(op.epilogue, w, "plane[at]", _plane_indices(y), 2)
        filters = weights.shape[1]
        plane = dense(y.shape[2:])
        own = f"m % {filters}" if op.group > 1 else "m"
        tap = address(dense(weights.shape), ["c", own, *[a.tap for a in outer], "k"])
        to, read = f"to[{_times('q', last.stride)}]", f"(line[q] - {op.zero})"
        return {
            "batch": x.shape[0], "group": op.group, "channels": x.shape[1] // op.group,
            "filters": filters, "outer": outer, "last": last, "ranges": last.tap_ranges,
            "dynamic": is_dynamic(last), "acc": op.accumulator.c,
            "element": x.dtype.c,
            "step": multiply_add(op.accumulator, to, "weight", read if op.zero else "line[q]"),
            "size": prod(y.shape[2:]),
            "line": address(View(x.strides[:-1]), ["n", "c", *[a.output for a in outer]]),
            "base": address(View(plane.strides[:-1]), [a.input for a in outer]),
            "w": load(weights.dtype, f"x1[{tap}]"),
            "outputs": [(f"p{d}", n) for d, n in enumerate(y.shape[2:])],
            "at": address(plane, [f"p{d}" for d in range(len(y.shape) - 2)]),
            "after": after, "value": value, "target": address(dense(y.shape), _plane_indices(y)),
        }  # fmt: skip

    def cost(self, w: Workload[ConvTranspose], params: Params, target: Target) -> float:
        """Return a cycle for each multiplication."""
        x, weights = operand_types(w)
        return float(x.size * prod(weights.shape[1:]))


def _plane_indices(y: TensorType) -> list[str]:
    return ["n", "m", *[f"p{d}" for d in range(len(y.shape) - 2)]]


class FilterGradientDots(Kernel[ConvFilterGradient]):
    """Any ConvFilterGradient in plain C: a sum for each number of each filter."""

    name = "conv_filter_gradient"
    op = ConvFilterGradient
    template = "cpu/conv/filter_gradient.c.j2"
    dynamic = True

    def accepts(self, w: Workload[ConvFilterGradient], target: Target) -> bool:
        """Both operands plain."""
        return not w.op.blocked(w.input(1))

    def values(
        self, w: Workload[ConvFilterGradient], params: Params, target: Target
    ) -> dict[str, object]:
        """Loop bounds, the tables of the last axis and where both rows begin."""
        x, g, y = w.input(0), w.input(1), w.outputs[0]
        axes = loop_axes(w.op.window, g.shape[2:], x.shape[2:])
        outer, last = axes[:-1], axes[-1]
        taps = [*[a.tap for a in outer], "k"]
        return {
            "batch": x.shape[0], "filters": y.shape[0], "channels": y.shape[1],
            "group": w.op.group, "each": y.shape[0] // w.op.group, "outer": outer, "last": last,
            "ranges": last.tap_ranges, "dynamic": is_dynamic(last), "type": x.dtype.c,
            "x": address(View(x.strides[:-1]), ["n", "(first + c)", *[a.input for a in outer]]),
            "g": address(View(g.strides[:-1]), ["n", "m", *[a.output for a in outer]]),
            "y": address(dense(y.shape), ["m", "c", *taps]),
        }  # fmt: skip

    def cost(self, w: Workload[ConvFilterGradient], params: Params, target: Target) -> float:
        """Return a cycle for each multiplication."""
        return float(w.input(1).size * prod(w.outputs[0].shape[1:]))


class PoolWindows(_InStripes[Pool]):
    """Any Pool in plain C, one window at a time."""

    name = "pool"
    op = Pool
    template = "cpu/conv/pool.c.j2"
    dynamic = True

    def values(
        self, w: Workload[Pool], params: StripedParams, target: Target
    ) -> dict[str, object]:
        """Loop bounds and what happens per element."""
        op, x = w.op, w.input(0)
        y = w.outputs[0]
        axes = loop_axes(op.window, y.shape[2:], x.shape[2:])
        inputs, outputs = [a.input for a in axes], [a.output for a in axes]
        s = stripes(params, x.shape[2], y.shape[2])
        held, made = _held(x, s.x_rows).shape[2:], _held(y, s.y_rows).shape[2:]
        alone = len(w.outputs) == 1 and all(a.covered for a in axes)
        return {
            "op": op, "axes": axes, "s": s, "outer": x.shape[0] * x.shape[1], "dtype": x.dtype,
            "type": value_type(x.dtype), "load": partial(load, x.dtype),
            "least": neutral("Max", x.dtype.computed) if alone else "",
            "store": partial(store, y.dtype),
            "plane": prod(held), "outputs": prod(made), "indices": len(w.outputs) > 1,
            "place": address(dense(held), _from(inputs, s.x_first)),
            "target": address(dense(made), _from(outputs, s.y_first)),
            "flat": address(_column_major(held) if op.storage_order else dense(held), inputs),
        }  # fmt: skip

    def cost(self, w: Workload[Pool], params: StripedParams, target: Target) -> float:
        """Return some cycles for each element of a window."""
        each = SMALL_TAP if target.bytes_last else TAP
        return each * w.outputs[0].size * prod(w.op.window.kernel)


def _column_major(shape: tuple[int, ...]) -> View:
    strides, step = [], 1
    for n in shape:
        strides.append(step)
        step *= n
    return View(tuple(strides))


def _times(index: str, factor: int) -> str:
    return index if factor == 1 else f"{index} * {factor}"


KERNELS = (ConvRows(), ConvTransposeScatter(), FilterGradientDots(), PoolWindows())
