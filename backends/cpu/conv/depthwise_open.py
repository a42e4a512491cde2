"""Depthwise convolution of images whose size only the run knows, in tiles that are unrolled whole.

A tile reads its rows of inputs through pointers: those above and below the image are one row of
padding. Tiles at the left leave out the taps that meet padding, as is known when compiling; what is
left at the right is computed from a copy of its inputs between padding, and as much is stored as
there is.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from atc.backends.cpu.conv.depthwise import (
    Depthwise,
    Windowed,
    channelwise,
    converting,
    element_values,
    is_bytes,
    step_values,
)
from atc.backends.cpu.conv.window_tiles import (
    LINES,
    UNROLLED,
    Tap,
    Tile,
    WindowParams,
    tile_shapes,
    window_cycles,
)
from atc.backends.kernel import Workload
from atc.backends.machine import CALL
from atc.backends.render.axis import Axis
from atc.backends.render.epilogue import TileEpilogue
from atc.backends.render.tile_geometry import Columns, Geometry
from atc.backends.target import Target
from atc.dims import is_dynamic, max_value
from atc.ir.ops import ConvBlocked

FUNCTIONS = 3
"""Tile functions: anywhere, at the left, and at the ends."""
COPY = 1.5
"""Cycles to copy a vector of the inputs of a tile at the right."""


@dataclass(frozen=True)
class OpenTile(Tile):
    """A tile whose row k of inputs begins at `row<k>`, its first one `at` behind that."""

    partial: bool = False
    """Whether only some of its rows and columns are stored."""

    def address(self, tap: Tap) -> str:
        """Return the C expression of where an input lies in its row."""
        column = tap.column * self.g.block
        return f"row{tap.row} + (at + {column})" if column else f"row{tap.row} + at"

    def outputs(self) -> list[tuple[str, int, int, int, int]]:
        """Return the results with their places in a row of y."""
        return [(c, row, col, v, col * self.g.block) for c, row, col, v, _ in super().outputs()]


class DepthwiseOpen(Depthwise[WindowParams]):
    """Depthwise convolution of images of any size, r x c outputs at a time."""

    name = "conv_depthwise_open"
    template = "cpu/conv/depthwise_open.c.j2"
    dynamic = True

    def accepts(self, w: Workload[ConvBlocked], target: Target) -> bool:
        """Images whose extents vary."""
        return super().accepts(w, target) and is_open(channelwise(w)) and _is_known(w)

    def sets(self, w: Workload[ConvBlocked], target: Target) -> list[WindowParams]:
        """Return all parameter sets: tiles that fit the registers."""
        taps = channelwise(w).taps
        return [
            WindowParams(r=r, c=c) for r, c in tile_shapes(target)
            if r * c * taps <= UNROLLED and FUNCTIONS * r * c * taps <= LINES
        ]  # fmt: skip

    def scratch(self, w: Workload[ConvBlocked], params: WindowParams, target: Target) -> int:
        """Reserve a row of padding, and the inputs of a tile."""
        g = channelwise(w)
        inputs = g.rows.span(params.r) * g.cols.span(params.c)
        return (max_value(g.cols.size) + inputs) * g.block * w.input(0).dtype.itemsize

    def values(
        self, w: Workload[ConvBlocked], params: WindowParams, target: Target
    ) -> dict[str, object]:
        """Return the tiles; each tap is a multiplication."""
        op, g, whole = w.op, channelwise(w), is_bytes(w)
        r, c = params.r, params.c
        down, across = _all(g.rows, r), _all(g.cols, c)
        tiles = [OpenTile("tile", down, across, g), OpenTile("tile_part", down, across, g, True)]
        if g.cols.pad:
            tiles.append(OpenTile("tile_left", down, _at_left(g.cols, c), g))
        return {
            "g": g, "r": r, "c": c, "rows": g.rows.span(r), "columns": g.cols.span(c),
            "tiles": tiles, "left": bool(g.cols.pad), "zero": op.zero,
            "start": "v_zero()" if whole else None,
            "epilogue": TileEpilogue(op.epilogue, w, g, target),
            **element_values(w, "v_cvt_i32({0})" if whole else "{0}"),
            **step_values(w, op.zero, "v_fmadd_acc({0}, s, w{1})", g),
        }  # fmt: skip

    def cost(self, w: Workload[Windowed], params: WindowParams, target: Target) -> float:
        """Estimated cycles: those of whole tiles, and of copies at the right."""
        g = channelwise(w)
        down, across = (-(-n // k) for n, k in ((g.rows.out, params.r), (g.cols.out, params.c)))
        inner = replace(g, rows=_inner(g.rows, down * params.r),
                        cols=_inner(g.cols, across * params.c))  # fmt: skip
        tiles = window_cycles(inner, params, target, converting(w, target))
        copied = COPY * g.rows.span(params.r) * g.cols.span(params.c) + CALL
        return tiles + g.batch * g.supers * down * copied


def is_open(g: Geometry) -> bool:
    """Return whether only the run knows how large an image is."""
    return is_dynamic((g.rows, g.cols))


def _is_known(w: Workload[ConvBlocked]) -> bool:
    """Return whether the window is known when compiling, and no wider than a tile at the left."""
    return not is_dynamic(w.op.window) and min(w.op.window.pads) >= 0


def _all(axis: Axis, width: int) -> Columns:
    """Return a tile all of whose taps lie inside the input."""
    return Columns(0, 1, width, tuple(tuple(range(width)) for _ in range(axis.kernel)))


def _at_left(axis: Axis, width: int) -> Columns:
    """Return the first tile of a row, whose last input lies inside of it."""
    taps = tuple(
        tuple(k for k in range(width) if k * axis.stride + t * axis.dilation >= axis.pad)
        for t in range(axis.kernel)
    )
    return Columns(0, 1, width, taps)


def _inner(axis: Axis, out: int) -> Axis:
    """Return an axis of so many outputs without padding."""
    return replace(axis, out=out, size=axis.span(out), pad=0)


KERNELS = (DepthwiseOpen(),)
