"""The ops that read at places the data gives: GridSample, RoiAlign, RoiPool."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import TypeVar

import numpy as np

from atc.backends.kernel import Params, Workload
from atc.backends.parallel_for.kernel import ParallelFor
from atc.backends.render.expr import literal, load, store
from atc.backends.target import Target
from atc.dims import is_dynamic
from atc.ir.graph import Array, DType, row_major
from atc.ir.ops.data import source_index
from atc.ir.ops.sampling import GridSample, RoiAlign, RoiPool

TAPS = {"nearest": 1, "linear": 2, "cubic": 4}
"""Neighbours per axis of an interpolation."""

MARGIN = 4
"""How far outside an axis a coordinate is followed: beyond it, no neighbour is inside."""


@dataclass(frozen=True)
class GridAxis:
    """One spatial axis: its extent, and for each index from -MARGIN on the offset that it reads.

    An offset of -1 reads zero. Where extents are known only when running there are none.
    """

    size: int
    stride: int
    offsets: list[int]


def grid_axes(op: GridSample) -> list[GridAxis]:
    """Return the axes of a grid, the padding resolved into tables where extents are known."""
    axes = []
    for n, stride in zip(op.shape, row_major(op.shape), strict=True):
        if is_dynamic(op.shape):
            axes.append(GridAxis(n, stride, []))
            continue
        inside: Array = np.arange(-MARGIN, n + MARGIN)
        if op.padding == "border":
            inside = np.clip(inside, 0, n - 1)
        elif op.padding == "reflection" and op.align_corners:
            inside = source_index("reflect", n, MARGIN, MARGIN)
        elif op.padding == "reflection":
            around = np.arange(-MARGIN, n + MARGIN) % (2 * n)
            inside = np.minimum(around, 2 * n - 1 - around)
        table = [int(i) * stride if 0 <= i < n else -1 for i in inside.tolist()]
        axes.append(GridAxis(n, stride, table))
    return axes


TOGETHER = 32
"""Points of a block: a channel after the other is read and written near one place."""


class GridSampleTaps(ParallelFor[GridSample]):
    """GridSample by blocks of points: neighbours and weights once, then sums channel by channel."""

    name = "grid_sample"
    op = GridSample
    template = "parallel_for/grid_sample.j2"
    dynamic = True

    def iterations(self, w: Workload[GridSample]) -> int:
        """Return the number of points."""
        return w.op.batch * w.op.points

    def values(self, w: Workload[GridSample], params: Params, target: Target) -> dict[str, object]:
        """Axes, and how coordinates become indices."""
        op, x, grid = w.op, w.input(0).dtype, w.input(1).dtype
        work = DType.DOUBLE if DType.DOUBLE in (x, grid) else DType.FLOAT
        taps, rank = TAPS[op.mode], len(op.shape)
        return {
            "op": op,
            "axes": grid_axes(op),
            "type": work.c,
            "f": "" if work.c == "double" else "f",
            "taps": taps,
            "before": (taps - 1) // 2,
            "behind": taps // 2,
            "rank": rank,
            "margin": MARGIN,
            "together": TOGETHER,
            "element": x.c,
            "grid": grid.c,
            "plane": prod(op.shape),
            "open": is_dynamic(op.shape),
            "combinations": taps**rank,
            "coordinates": [load(grid, f"grid[{rank - 1 - d}]") for d in range(rank)],
            "value": load(x, "from[offset[t]]"),
            "stored": store(x, "total"),
        }


RegionT = TypeVar("RegionT", RoiAlign, RoiPool)


class _RegionBins(ParallelFor[RegionT]):
    """Pooling of regions of feature maps bin by bin, in float or double."""

    dynamic = True

    def iterations(self, w: Workload[RegionT]) -> int:
        """Return the number of channels of all regions."""
        return w.op.regions * w.op.channels

    def values(self, w: Workload[RegionT], params: Params, target: Target) -> dict[str, object]:
        """Extents and the reads."""
        dtype = w.outputs[0].dtype
        work = DType.DOUBLE if dtype is DType.DOUBLE else DType.FLOAT
        corners = ("0", "beside", "below", "below + beside")
        return {
            "op": w.op, "element": dtype.c, "type": work.c,
            "f": "" if work is DType.DOUBLE else "f",
            "scale": literal(w.op.scale, work), "half": literal(0.5, work),
            "roi": [load(dtype, f"roi[{k}]") for k in range(5)],
            "corners": [load(dtype, f"at[{p}]") for p in corners],
            "value": load(dtype, f"from[i * {w.op.size[1]} + j]"),
            "stored": store(dtype, "result"),
        }  # fmt: skip


class RoiAlignBins(_RegionBins[RoiAlign]):
    """RoiAlign bin by bin."""

    name = "roi_align"
    op = RoiAlign
    template = "parallel_for/roi_align.j2"


class RoiPoolBins(_RegionBins[RoiPool]):
    """RoiPool bin by bin."""

    name = "roi_pool"
    op = RoiPool
    template = "parallel_for/roi_pool.j2"
