"""Depthwise convolution of bytes with the channels last: four channels of a pixel at a time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod

import numpy as np

from atc.backends.cpu.small.conv import dims, spatial_axes, takes_bytes_last
from atc.backends.cpu.small.fixed_point import fixed_point
from atc.backends.cpu.small.requantize import requantization, result_lines
from atc.backends.cpu.small.runs import PIXEL, instructions
from atc.backends.cpu.small.words import ENDS, WordSteps, sum_steps
from atc.backends.kernel import Kernel, Pack, StripedParams, Workload
from atc.backends.render.stripes import InStripes, stripes
from atc.backends.target import Target
from atc.ir.expr import Input
from atc.ir.graph import Array, DType
from atc.ir.ops import ConvBlocked

GROUP = 4
"""Channels that are summed at a time."""
MOST_UNROLLED = 12
"""Windows of up to so many taps are one straight line of code."""
MOST_SUMMED = 128
"""The most bytes of either sign whose sum a signed number of 16 bits holds."""


class DepthwiseInt8x4(InStripes[ConvBlocked, StripedParams], Kernel[ConvBlocked, StripedParams]):
    """One filter per channel, of u8 or s8 by s8."""

    name = "conv_depthwise_quads"
    op = ConvBlocked
    template = "cpu/small/depthwise.c.j2"
    headers = ("small",)
    bitwise_reproducible = True

    def accepts(self, w: Workload[ConvBlocked], target: Target) -> bool:
        """Known weights, as many filters as channels."""
        group = w.op.group
        own = group > 1 and w.input(1).shape[:2] == (group, 1)
        return own and takes_bytes_last(w, target)

    def parameters(self, w: Workload[ConvBlocked], target: Target) -> Sequence[StripedParams]:
        """All rows at once."""
        return (StripedParams(),)

    def packs(
        self, w: Workload[ConvBlocked], params: StripedParams, target: Target
    ) -> Mapping[int, Pack]:
        """Weights as [group of four][tap][channel]; ones are known without."""
        return {1: (lambda weights: weights.reshape(-1)[:0]) if _sums(w) else _packed}

    def values(
        self, w: Workload[ConvBlocked], params: StripedParams, target: Target
    ) -> dict[str, object]:
        """Return geometry and epilogue."""
        op, y = w.op, w.outputs[0]
        rows, cols = spatial_axes(w)
        taps = rows.kernel * cols.kernel
        return {
            "rows": rows, "cols": cols, "channels": y.shape[-1], "batch": y.shape[0],
            "taps": taps, "straight": taps <= MOST_UNROLLED, "kind": instructions(target),
            "inside": all(a.interior == (0, a.out) for a in (rows, cols)),
            "zero": op.zero, "unsigned": w.input(0).dtype is DType.UINT8,
            "ones": _sums(w), "word": _word(w, target),
            "known": requantization(op.epilogue, w, 2, _most(w)),
            "result": y.dtype.c,
            "s": stripes(params, rows.size, rows.out),
            "epilogue": lambda total, m: result_lines(
                op.epilogue, w, 2, [m if i == "m" else i for i in dims(w)], total, m, _most(w)
            ),
        }  # fmt: skip

    def cost(self, w: Workload[ConvBlocked], params: StripedParams, target: Target) -> float:
        """Estimated instructions."""
        taps, kind = prod(w.op.window.kernel), instructions(target)
        each = {"mve": 0.8, "dsp": 2.5, "c": 4.0}[kind] * (0.4 if _sums(w) else 1.0)
        return w.outputs[0].size * (taps * each + (PIXEL / 4 if kind == "mve" else PIXEL))


def _sums(w: Workload[ConvBlocked]) -> bool:
    """Return whether windows are summed, in pairs of 16 bits where it's done so."""
    return w.op.ones and prod(w.op.window.kernel) <= MOST_SUMMED


def _most(w: Workload[ConvBlocked]) -> int | None:
    """Return the largest magnitude of a sum, where it is known to be small."""
    return 255 * prod(w.op.window.kernel) if _sums(w) else None


def _word(w: Workload[ConvBlocked], target: Target) -> WordSteps | None:
    """Return how four results are made of sums in pairs; None where it isn't done so."""
    rows, cols = spatial_axes(w)
    inside = all(a.interior == (0, a.out) for a in (rows, cols))
    if not _sums(w) or not inside or instructions(target) != "dsp":
        return None
    taps, sums = rows.kernel * cols.kernel, Input(DType.INT32, 0)
    low, high = (taps * (end - w.op.zero) for end in ENDS[w.input(0).dtype])
    found = fixed_point(w.op.epilogue.expr, lambda e: (low, high) if e == sums else None)
    return None if found is None else sum_steps(found, taps * w.op.zero)


def _packed(weights: Array) -> Array:
    filters = weights.shape[0]
    taps = weights.reshape(filters, -1)
    groups = -(-filters // GROUP)
    full = np.zeros((groups * GROUP, taps.shape[1]), np.int8)
    full[:filters] = taps
    order = full.reshape(groups, GROUP, taps.shape[1]).transpose(0, 2, 1)
    return np.ascontiguousarray(order).reshape(-1)


KERNELS = (DepthwiseInt8x4(),)
