"""Onnx's reference evaluator with less memory, and operators where its own are slow or wrong.

Its Conv and its pools are slow; its AveragePool takes pads of two axes in another order and knows
no others, its ConvTranspose no groups of several channels; its BatchNormalization of opsets below
14 takes the batch's statistics; its GatherElements wants as many indices as numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
from onnx import NodeProto
from onnx.reference import ReferenceEvaluator
from onnx.reference.op_run import OpRun
from onnx.reference.ops import op_max_pool

from atc.accuracy.float64_sampling import SAMPLING
from atc.accuracy.widening import widened
from atc.files.mapped import reading

Floats = np.ndarray[Any, np.dtype[np.float64]]
CHUNK = 1 << 14
"""Numbers that are rounded at a time: what is computed in between stays in a near cache."""
LARGE = 2.0**127
"""Numbers below that are no infinity once they are rounded."""
COPIED = 1 << 22
"""Numbers that a convolution's windows are copied to at a time."""


class Evaluator(ReferenceEvaluator):
    """Onnx's evaluator, but it forgets each value once nothing reads it any more.

    Initializers are widened to float64 when they are read.
    """

    def close(self) -> None:
        """Let go of weights and constants: parts of an evaluator hold it, until a collection."""
        self.rt_inits_.clear()
        self.rt_nodes_.clear()

    def run(
        self, output_names: Sequence[str] | None, feed_inputs: dict[str, Any],
        *args: Any, **more: Any,
    ) -> Any:  # fmt: skip
        """Return the values of these names, or of all outputs; see `ReferenceEvaluator.run`."""
        linked = any(node.has_linked_attribute for node in self.rt_nodes_)
        if args or more or linked:  # who reads what isn't known here
            self.rt_inits_ = {name: self._widened(name) for name in self.rt_inits_}
            return super().run(output_names, feed_inputs, *args, **more)
        output_names = self.output_names if output_names is None else output_names
        values = {"": None, **feed_inputs}
        reads = [[*_names_read(node.onnx_node)] for node in self.rt_nodes_]
        last = {name: k for k, names in enumerate(reads) for name in names}
        kept = {"", *output_names}
        for k, (node, names) in enumerate(zip(self.rt_nodes_, reads, strict=True)):
            for name in names:
                if name not in values and name in self.rt_inits_:
                    values[name] = self._widened(name)
            around = {"context": values} if node.need_context() else {}
            made = node.run(*(values[name] for name in node.input), **around)
            values.update(zip(node.output, made, strict=False))
            for name in (*names, *node.output):
                if last.get(name, k) <= k and name not in kept:
                    values.pop(name, None)
        return [values[n] if n in values else self._widened(n) for n in output_names]

    def _widened(self, name: str) -> Any:
        """Return an initializer in float64; its own pages go, if it lies in a mapped file."""
        array = self.rt_inits_[name]
        with reading(array):
            return widened(array)


def _names_read(node: NodeProto) -> Iterator[str]:
    """Yield what a node reads, and all that nodes in its graphs do: what is theirs, too."""
    yield from node.input
    for attribute in node.attribute:
        yield from (value.name for value in attribute.g.output)
        for inner in attribute.g.node:
            yield from _names_read(inner)


class Conv(OpRun):
    """ONNX's Conv of any rank."""

    op_domain = ""

    def _run(
        self, x: Floats, w: Floats, bias: Floats | None = None, *, auto_pad: str = "NOTSET",
        dilations: Sequence[int] | None = None, group: int = 1,
        kernel_shape: Sequence[int] | None = None, pads: Sequence[int] | None = None,
        strides: Sequence[int] | None = None,
    ) -> tuple[Floats]:  # fmt: skip
        spatial = x.ndim - 2
        windows = _windows(x, w.shape[2:], auto_pad, pads, strides, dilations, 0.0)
        summed = ((1, *range(2 + spatial, 2 + 2 * spatial)), (1, *range(2, 2 + spatial)))
        y = np.empty((x.shape[0], w.shape[0], *windows.shape[2 : 2 + spatial]))
        row = max(windows[:, :, :1].size, 1) if spatial else 1
        band = max(COPIED // row, 1)
        for first in range(0, windows.shape[2] if spatial else 1, band):
            some = windows[:, :, first : first + band] if spatial else windows
            parts = [
                np.tensordot(a, b, summed)
                for a, b in zip(np.split(some, group, 1), np.split(w, group, 0), strict=True)
            ]
            part = np.moveaxis(np.concatenate(parts, -1), -1, 1)
            y[(slice(None), slice(None), *[slice(first, first + band)] * bool(spatial))] = part
        return (y if bias is None else y + bias.reshape(-1, *[1] * spatial),)


class MaxPool(op_max_pool.MaxPool):
    """ONNX's MaxPool of any rank; onnx's own where there are indices, integers or a ceil_mode."""

    op_domain = ""

    def _run(  # type: ignore[override]
        self, x: Floats, auto_pad: str | None = None, ceil_mode: int | None = None,
        dilations: Sequence[int] | None = None, kernel_shape: Sequence[int] | None = None,
        pads: Sequence[int] | None = None, storage_order: int | None = None,
        strides: Sequence[int] | None = None,
    ) -> tuple[Floats, ...]:  # fmt: skip
        if ceil_mode or len(self.onnx_node.output) > 1 or x.dtype.kind != "f" or not kernel_shape:
            found: tuple[Floats, ...] = super()._run(  # type: ignore[no-untyped-call]
                x, auto_pad, ceil_mode, dilations, kernel_shape, pads, storage_order, strides
            )
            return found
        windows = _windows(x, kernel_shape, auto_pad, pads, strides, dilations, -np.inf)
        return (windows.max(tuple(range(x.ndim, windows.ndim))),)


class AveragePool(OpRun):
    """ONNX's AveragePool of any rank."""

    op_domain = ""

    def _run(
        self, x: Floats, *, kernel_shape: Sequence[int], auto_pad: str = "NOTSET",
        ceil_mode: int = 0, count_include_pad: int = 0, dilations: Sequence[int] | None = None,
        pads: Sequence[int] | None = None, strides: Sequence[int] | None = None,
    ) -> tuple[Floats]:  # fmt: skip
        ones = [1] * len(kernel_shape)
        steps, gaps, extents = strides or ones, dilations or ones, x.shape[2:]
        widths = [(k - 1) * d + 1 for k, d in zip(kernel_shape, gaps, strict=True)]
        around = _pads(auto_pad, pads, extents, widths, steps)
        more, kept = [], []
        for n, (p, q), k, s in zip(extents, around, widths, steps, strict=True):
            room = n + p + q - k
            count = min(-(-room // s), (n + p - 1) // s) + 1 if ceil_mode else room // s + 1
            more.append((0, max((count - 1) * s - room, 0)))
            kept.append(slice(0, count))

        def total(values: Floats, beside: float) -> Floats:
            for widths_, fill in ((around, beside), (more, 0.0)):
                values = np.pad(values, [(0, 0), (0, 0), *widths_], constant_values=fill)
            windows = _windows(values, kernel_shape, "VALID", None, steps, gaps, 0.0)
            sums: Floats = windows.sum(tuple(range(x.ndim, windows.ndim)))
            return sums[(slice(None), slice(None), *kept)]

        return (total(x, 0.0) / total(np.ones((1, 1, *extents)), float(count_include_pad)),)


class ConvTranspose(OpRun):
    """ONNX's ConvTranspose of any rank."""

    op_domain = ""

    def _run(
        self, x: Floats, w: Floats, bias: Floats | None = None, *, auto_pad: str = "NOTSET",
        dilations: Sequence[int] | None = None, group: int = 1,
        kernel_shape: Sequence[int] | None = None, output_padding: Sequence[int] | None = None,
        output_shape: Sequence[int] | None = None, pads: Sequence[int] | None = None,
        strides: Sequence[int] | None = None,
    ) -> tuple[Floats]:  # fmt: skip
        rank, extents = x.ndim - 2, x.shape[2:]
        steps, gaps = strides or [1] * rank, dilations or [1] * rank
        taps = zip(extents, steps, w.shape[2:], gaps, output_padding or [0] * rank, strict=True)
        full = [(n - 1) * s + (k - 1) * d + 1 + e for n, s, k, d, e in taps]
        if output_shape is None and auto_pad.startswith("SAME"):
            output_shape = [n * s for n, s in zip(extents, steps, strict=True)]
        if output_shape is None:
            cut = pads if pads and auto_pad == "NOTSET" else [0] * 2 * rank
            sizes = [f - p - q for f, p, q in zip(full, cut[:rank], cut[rank:], strict=True)]
        else:  # an odd total has its larger half in front but for SAME_UPPER
            sizes = [*output_shape[-rank:]]
            rest = [max(f - n, 0) for f, n in zip(full, sizes, strict=True)]
            cut = [r // 2 if auto_pad == "SAME_UPPER" else r - r // 2 for r in rest]
        room = [max(f, p + n) for f, p, n in zip(full, cut, sizes, strict=False)]
        y = np.zeros((x.shape[0], w.shape[1] * group, *room))
        groups = list(zip(np.split(x, group, 1), np.split(w, group, 0), strict=True))
        for tap in np.ndindex(*w.shape[2:]):
            ends = [t * d + (n - 1) * s + 1 for t, d, n, s in zip(tap, gaps, extents, steps,
                                                                  strict=True)]  # fmt: skip
            places = [slice(t * d, e, s) for t, d, e, s in zip(tap, gaps, ends, steps, strict=True)]
            parts = [
                np.moveaxis(np.tensordot(a, b[(slice(None), slice(None), *tap)], (1, 0)), -1, 1)
                for a, b in groups
            ]
            y[(slice(None), slice(None), *places)] += np.concatenate(parts, 1)
        kept = [slice(p, p + n) for p, n in zip(cut, sizes, strict=False)]
        y = y[(slice(None), slice(None), *kept)]
        return (y if bias is None else y + bias.reshape(-1, *[1] * rank),)


class BatchNormalization(OpRun):
    """ONNX's BatchNormalization before opset 14: in training where it lists more outputs."""

    op_domain = ""

    def _run(
        self, x: Floats, scale: Floats, bias: Floats, mean: Floats, variance: Floats, *,
        epsilon: float = 1e-5, momentum: float = 0.9, training_mode: int = 0,
    ) -> tuple[Floats, ...]:  # fmt: skip
        shape = (-1, *[1] * (x.ndim - 2))
        more: tuple[Floats, ...] = ()
        if len(self.onnx_node.output) > 1:  # in training
            axes = (0, *range(2, x.ndim))
            batch = (x.mean(axes), x.var(axes))
            kept = zip((mean, variance), batch, strict=True)
            more = (*(momentum * old + (1 - momentum) * new for old, new in kept), *batch)
            mean, variance = batch
        factor = scale / np.sqrt(variance + epsilon)
        y = (x - mean.reshape(shape)) * factor.reshape(shape) + bias.reshape(shape)
        return (y, *more)[: len(self.onnx_node.output)]


class GatherElements(OpRun):
    """ONNX's GatherElements."""

    op_domain = ""

    def _run(
        self, data: Floats, indices: np.ndarray[Any, np.dtype[np.int64]], *, axis: int = 0
    ) -> tuple[Floats]:
        along = axis % data.ndim
        seen = [slice(None if d == along else n) for d, n in enumerate(indices.shape)]
        return (np.take_along_axis(data[tuple(seen)], indices, along),)


class SplitBfloat16(OpRun):
    """Floats as the sum of two bfloat16, each rounded to nearest: 16 to 17 significant bits."""

    op_domain = "atc.double"

    def _run(self, x: Floats) -> tuple[Floats]:
        return (_rounded(x, _split) if x.dtype.kind == "f" else x,)


class RoundBfloat16(OpRun):
    """Floats rounded to bfloat16."""

    op_domain = "atc.double"

    def _run(self, x: Floats) -> tuple[Floats]:
        return (_rounded(x, _to_bfloat16) if x.dtype.kind == "f" else x,)


ALWAYS: tuple[type[OpRun], ...] = (
    AveragePool, Conv, ConvTranspose, GatherElements, MaxPool, RoundBfloat16, SplitBfloat16,
    *SAMPLING,
)  # fmt: skip
"""What is evaluated here in all opsets."""


def _rounded(x: Floats, rounding: Callable[[Floats], Floats]) -> Floats:
    """Return rounded numbers, a chunk at a time."""
    flat = np.ascontiguousarray(x).reshape(-1)
    y = np.empty(flat.shape, np.float64)
    for start in range(0, flat.size, CHUNK):
        y[start : start + CHUNK] = rounding(flat[start : start + CHUNK])
    return y.reshape(x.shape)


def _split(x: Floats) -> Floats:
    upper = _to_bfloat16(x)
    if _in_range(x):
        return upper + _bfloat16_bits(x - upper)
    return upper + np.where(np.isfinite(upper), _to_bfloat16(x - upper), 0.0)


def _to_bfloat16(x: Floats) -> Floats:
    rounded = _bfloat16_bits(x).astype(np.float64)
    return rounded if _in_range(x) else np.where(np.isfinite(x), rounded, x)


def _bfloat16_bits(x: Floats) -> np.ndarray[Any, np.dtype[np.float32]]:
    rounded = x.astype(np.float32)
    bits = rounded.view(np.uint32)
    bits += np.uint32(0x8000)
    bits &= np.uint32(0xFFFF0000)
    return rounded


def _in_range(x: Floats) -> bool:
    """Return whether no number is infinite, or becomes so as a bfloat16, or is none."""
    return bool(x.max() < LARGE and x.min() > -LARGE)


def _windows(
    x: Floats, kernel: Sequence[int], auto_pad: str | None, pads: Sequence[int] | None,
    strides: Sequence[int] | None, dilations: Sequence[int] | None, fill: float,
) -> Floats:  # fmt: skip
    """Return a view [N, C, *places, *taps] of x with `fill` around it."""
    ones = [1] * (x.ndim - 2)
    steps, gaps = strides or ones, dilations or ones
    widths = [(k - 1) * d + 1 for k, d in zip(kernel, gaps, strict=True)]
    around = _pads(auto_pad or "NOTSET", pads, x.shape[2:], widths, steps)
    padded = np.pad(x, [(0, 0), (0, 0), *around], constant_values=fill)
    windows = np.lib.stride_tricks.sliding_window_view(padded, widths, tuple(range(2, x.ndim)))
    every = [slice(None, None, s) for s in steps]
    taps = [slice(None, None, d) for d in gaps]
    return windows[(slice(None), slice(None), *every, *taps)]


def _pads(
    auto: str, pads: Sequence[int] | None, extents: Sequence[int], widths: Sequence[int],
    strides: Sequence[int],
) -> list[tuple[int, int]]:  # fmt: skip
    """Return the zeros before and after each spatial axis."""
    count = len(extents)
    if auto == "NOTSET":
        given = pads or [0] * 2 * count
        return list(zip(given[:count], given[count:], strict=True))
    if auto == "VALID":
        return [(0, 0)] * count
    totals = [
        max(0, (-(-n // s) - 1) * s + k - n)
        for n, k, s in zip(extents, widths, strides, strict=True)
    ]
    small = [(t // 2, t - t // 2) for t in totals]
    return [(b, a) for a, b in small] if auto == "SAME_LOWER" else small
