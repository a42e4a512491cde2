"""Depthwise convolution and pooling with windows too large to unroll."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic

from atc.backends.cpu.conv.depthwise import (
    Depthwise,
    Pooling,
    WindowedT,
    as_stored,
    channelwise,
    converting,
    float_weights,
    is_bytes,
    vector_load,
)
from atc.backends.cpu.conv.window_tiles import distances
from atc.backends.kernel import KernelParams, Workload
from atc.backends.machine import CALL, Machine
from atc.backends.render.epilogue import TileEpilogue
from atc.backends.render.tile_geometry import Geometry
from atc.backends.target import Target
from atc.dims import Dim, is_dynamic
from atc.ir.ops import ConvBlocked, Pool
from atc.ir.ops.blocked import FLOATS


@dataclass(frozen=True, kw_only=True)
class LoopParams(KernelParams):
    """Those of loops over windows."""

    c: int
    """Outputs of a row that are computed at a time."""


def loop_values(g: Geometry, c: int) -> dict[str, object]:
    """Return the columns that `c` outputs at a time can cover without meeting padding."""
    low, high = g.cols.interior
    covered = isinstance(high - low, Dim) or high - low >= c
    return {
        "g": g, "c": c, "low": low, "high": low + (high - low) // c * c, "covered": covered,
        "widths": (c, 1) if covered else (1,), "open": is_dynamic(g.cols.size),
    }  # fmt: skip


def loop_cycles(machine: Machine, g: Geometry, c: int, converted: float = 0) -> float:
    """Estimate cycles: `c` outputs at a time, or one by one at the borders.

    An input takes `converted` cycles of arithmetic to become a vector of floats.
    """
    low, high = g.cols.interior
    tiles = (high - low) // c
    alone = g.cols.out - tiles * c
    loads = g.taps * (c + 1) / machine.load_rate(g.block * 4)
    products = g.taps * c * (1 / machine.fma_rate(g.block * 4) + converted)
    row = tiles * (CALL + max(loads, products) + 1.5 * c) + alone * (CALL + 1.2 * g.taps)
    return g.batch * g.supers * g.rows.out * row


def c_type(w: Workload) -> str:
    """Return the C type of the elements of x."""
    return w.input(0).dtype.c


class WindowLoops(Generic[WindowedT]):
    """Kernels of loops over windows, c outputs of a row at a time."""

    def sets(self, w: Workload[WindowedT], target: Target) -> list[LoopParams]:
        """Return enough accumulators to hide the latency of an addition."""
        return [LoopParams(c=8), LoopParams(c=4)]

    def cost(self, w: Workload[WindowedT], params: LoopParams, target: Target) -> float:
        """Estimated cycles."""
        return loop_cycles(target.machine, channelwise(w), params.c, converting(w, target))


class DepthwiseLoops(WindowLoops[ConvBlocked], Depthwise[LoopParams]):
    """Depthwise convolution, c outputs of a row at a time, loops over the window."""

    name = "conv_depthwise_loops"
    template = "cpu/conv/depthwise_looped.c.j2"
    dynamic = True

    def values(
        self, w: Workload[ConvBlocked], params: LoopParams, target: Target
    ) -> dict[str, object]:
        """Each tap is a multiplication."""
        op, g, whole = w.op, channelwise(w), is_bytes(w)
        return {
            **loop_values(g, params.c), **distances(g, self.channels_last), "weighted": True,
            "start": "v_zero()" if whole else None,
            "average": "", "value": "v_cvt_i32({0})" if whole else "{0}",
            "weights": float_weights(w), "element": c_type(w),
            "combine": f"v_fmadd_acc({{0}}, {vector_load(w, op.zero, '{1}')}, tap)",
            "epilogue": TileEpilogue(op.epilogue, w, g, target),
        }  # fmt: skip


class PoolLoops(WindowLoops[Pool], Pooling[LoopParams]):
    """Pooling, c outputs of a row at a time, loops over the window."""

    name = "pool_simd_loops"
    template = "cpu/conv/depthwise_looped.c.j2"
    dynamic = True

    def accepts(self, w: Workload[Pool], target: Target) -> bool:
        """Floats only."""
        return w.outputs[0].dtype in FLOATS and super().accepts(w, target)

    def values(self, w: Workload[Pool], params: LoopParams, target: Target) -> dict[str, object]:
        """Each tap is a maximum or a sum, which is divided at the end."""
        op = w.op
        g, largest = channelwise(w), op.how == "Max"
        every = str(g.taps) if op.count_include_pad else "(kh1 - kh0) * (kw1 - kw0)"
        return {
            **loop_values(g, params.c), **distances(g, self.channels_last), "weighted": False,
            "start": "v_set1(-INFINITY)" if largest else "v_zero()",
            "average": "" if largest else every, "value": "{0}" if largest else "v_div({0}, count)",
            "combine": f"{'v_max' if largest else 'v_add'}({{0}}, {vector_load(w, 0, '{1}')})",
            "epilogue": TileEpilogue(as_stored(w.outputs[0].dtype), w, g, target),
            "element": c_type(w),
        }  # fmt: skip


KERNELS = (DepthwiseLoops(), PoolLoops())
