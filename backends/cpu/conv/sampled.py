"""Strided pointwise convolutions, and the pixels that they read: copied, these are dense.

A pixel of a block may be less than a line of the caches, which hold what a stride leaves out, too.
Rows of such pixels are short, while a dense plane is cut into even tiles and asked for ahead.
"""

from __future__ import annotations

from dataclasses import replace

from atc.backends.kernel import Workload
from atc.backends.machine import CACHE_LINE, Machine
from atc.backends.render.tile_geometry import Geometry, geometry
from atc.ir.graph import TensorType
from atc.ir.ops import ConvBlocked

SAMPLING = 2.0
"""Cycles to copy a vector of x that a stride meets."""


def sampled(w: Workload[ConvBlocked]) -> Workload[ConvBlocked]:
    """Return a strided pointwise convolution as one of the pixels that it reads, made dense."""
    op, x = w.op, w.input(0)
    window, rank = op.window, op.window.rank
    out = w.outputs[0].shape[2:-1]
    strided = max(window.strides) > 1 and set(window.kernel) == {1} and len(x.shape) > op.plain
    if not strided or not window.stays_inside(x.shape[2:-1], out):
        return w
    shape = (*x.shape[:2], *out, x.shape[-1])
    dense = replace(op, window=replace(window, strides=(1,) * rank))
    return replace(w, op=dense, inputs=(TensorType(x.dtype, shape), *w.inputs[1:]))


def skipped_cycles(machine: Machine, g: Geometry) -> float:
    """Return the cycles in which a panel reads what a stride leaves out of lines beyond L2."""
    pixels, line = g.icb * g.rows.out * g.cols.out, _read_for_pixel(g)
    if g.plain or g.taps > 1 or pixels * line <= machine.l2.size:
        return 0.0
    return pixels * (line - 4 * g.block) / machine.far_rate


def _read_for_pixel(g: Geometry) -> int:
    """Return the bytes of lines that are read for a pixel of a block, where others aren't read."""
    return max(4 * g.block, min(CACHE_LINE, 4 * g.block * g.cols.stride))


def sampling_cycles(w: Workload[ConvBlocked], machine: Machine) -> float:
    """Return the cycles to copy the pixels of an image that a stride meets."""
    g = geometry(w, 1)
    vectors = g.supers * g.icb * g.rows.out * g.cols.out
    nbytes = vectors * (_read_for_pixel(g) + 4 * g.block)
    return vectors * SAMPLING + (nbytes / machine.far_rate if nbytes > machine.l2.size else 0.0)
