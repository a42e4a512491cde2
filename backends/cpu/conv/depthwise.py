"""Windows of separate channels, in channel blocks: depthwise convolution and pooling.

A tile of outputs is unrolled whole: every input vector is loaded once and given to all the outputs
that it concerns. Tiles at the borders simply lack the taps that meet padding.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from math import prod
from typing import TypeVar

import numpy as np

from atc.backends.cpu.conv.blocked import cheapest, is_depthwise
from atc.backends.kernel import Kernel, Pack, ParamsT, Stripable, StripedParams, Workload
from atc.backends.machine import CALL, Machine
from atc.backends.render.axis import plane_axes
from atc.backends.render.epilogue import TileEpilogue, sums_floats
from atc.backends.render.expr import literal
from atc.backends.render.stored_weights import Weights
from atc.backends.render.tile_geometry import Columns, Geometry, cut_columns
from atc.backends.render.vector_epilogue import typed_epilogue
from atc.backends.render.vector_expr import BYTES, LOADS, lanes
from atc.backends.target import Target
from atc.ir.expr import Input, cast
from atc.ir.graph import Array, DType, TensorType
from atc.ir.ops import ConvBlocked, Epilogue, Pool, Window, identity_epilogue
from atc.ir.ops.blocked import FLOATS

EXACT_SUM = 1 << 24
"""Up to here floats hold all whole numbers: that is how products of bytes are summed."""
LARGEST = {DType.INT8: 128, DType.INT16: 255}
"""The largest magnitude of weights of a type."""
UNROLLED = 320
"""Taps times outputs that a tile may have."""
CONVERTED = 1
"""Cycles in which bytes become a vector of floats: three instructions, of four at a time."""
LINES = 4000
"""Taps times outputs that all the tile functions of a kernel may have."""


Step = tuple[list[str], list[tuple[str, str]]]
"""C statements that read inputs, and the accumulators that these concern: (name, new value)."""


@dataclass(frozen=True)
class Tap:
    """An input vector, by its row, column and place from the tile's first, and whom it concerns."""

    row: int
    column: int
    place: int
    users: tuple[tuple[str, int], ...]
    """(accumulator, index of the tap in the window)."""


@dataclass(frozen=True)
class Tile:
    """A tile function: rows x columns of outputs, and which of their taps lie inside the input."""

    name: str
    down: Columns
    across: Columns
    g: Geometry

    def taps(self) -> list[Tap]:
        """Return the input vectors in order of their places."""
        g = self.g
        found: dict[tuple[int, int], list[tuple[str, int]]] = {}
        for kh, rows in enumerate(self.down.taps):
            for kw, cols in enumerate(self.across.taps):
                for r in rows:
                    for c in cols:
                        at = (r * g.rows.stride + kh * g.rows.dilation,
                              c * g.cols.stride + kw * g.cols.dilation)  # fmt: skip
                        user = (f"c{r * self.across.width + c}", kh * g.cols.kernel + kw)
                        found.setdefault(at, []).append(user)
        return [
            Tap(r, c, (r * g.cols.size + c) * g.block, tuple(users))
            for (r, c), users in sorted(found.items())
        ]

    def address(self, tap: Tap) -> str:
        """Return the C expression of where an input lies."""
        return input_place(tap.place)

    def used(self) -> list[int]:
        """Return the taps of the window that meet the input anywhere in the tile."""
        return sorted({k for tap in self.taps() for _, k in tap.users})

    def inside(self, row: int, column: int) -> int:
        """Return how many taps of an output lie inside the input."""
        return sum(row in t for t in self.down.taps) * sum(column in t for t in self.across.taps)

    def outputs(self) -> list[tuple[str, int, int, int, int]]:
        """Return (accumulator, row, column, vector, place in y) of each result."""
        return [
            (f"c{r * self.across.width + c}", r, c, 0, (r * self.g.cols.out + c) * self.g.block)
            for r in range(self.down.width)
            for c in range(self.across.width)
        ]


Windowed = ConvBlocked | Pool
WindowedT = TypeVar("WindowedT", bound=Windowed)


@dataclass(frozen=True, kw_only=True)
class WindowParams(StripedParams):
    """Those of tiles of r x c outputs."""

    r: int
    c: int


def channelwise(w: Workload[Windowed], params: WindowParams | None = None) -> Geometry:
    """Return the geometry of a window over a blocked tensor, whose every block is a group."""
    held = params.rows_held if params else ()
    return groups_of_blocks(w.op.window, w.outputs[0], w.input(0), held)


def groups_of_blocks(
    window: Window, y: TensorType, x: TensorType, held: tuple[int, ...] = ()
) -> Geometry:
    """Return the geometry of a window that makes y of x, both of them in blocks."""
    block = y.shape[-1]
    rows, cols = plane_axes(window, y.shape[2:-1], x.shape[2:-1])
    return Geometry(y.shape[0], block, y.shape[1], block, 1, rows, cols, False, False, *held)


def tiles_of(g: Geometry, rows: int, cols: int) -> tuple[list[Columns], list[Columns], list[Tile]]:
    """Return the cuts of both axes and the tiles they make, in order of rows."""
    down, across = cut_columns(g.rows, rows), cut_columns(g.cols, cols)
    tiles = [
        Tile(f"tile_{d.width}x{a.width}_at{d.first}_{a.first}", d, a, g)
        for d in down
        for a in across
    ]
    return down, across, tiles


def tile_values(
    g: Geometry, params: WindowParams, channels_last: bool = False
) -> dict[str, object]:
    """Return the tiles, and how far elements lie apart; `g` has vectors of channels as blocks."""
    cut = replace(g, block=g.block * g.supers) if channels_last else g
    down, across, tiles = tiles_of(cut, params.r, params.c)
    return {
        "g": cut, "down": down, "across": across, "tiles": tiles, **distances(g, channels_last)
    }  # fmt: skip


def distances(g: Geometry, channels_last: bool) -> dict[str, object]:
    """Return the elements from pixel to pixel, from block to block and from image to image.

    Each block is a plane, or with channels last all of them lie side by side in every pixel.
    """
    x_block, y_block = (g.block, g.block) if channels_last else (g.in_plane, g.out_plane)
    return {
        "pixel": g.block * g.supers if channels_last else g.block,
        "x_block": x_block, "y_block": y_block,
        "x_image": g.supers * g.in_plane, "y_image": g.supers * g.out_plane,
    }  # fmt: skip


def shapes(g: Geometry, target: Target) -> list[WindowParams]:
    """Return the tiles worth trying of an image."""
    return [WindowParams(r=r, c=c) for r, c in tile_shapes(target) if is_short(g, r, c)]


def tile_shapes(target: Target) -> tuple[tuple[int, int], ...]:
    """Return the rows and columns of tiles worth trying."""
    wide = ((2, 7), (1, 7), (1, 14), (2, 4), (4, 4), (2, 2), (1, 1))
    narrow: tuple[tuple[int, int], ...] = ((1, 4), (2, 3), (1, 6), (2, 2), (1, 1))
    if target.simd in ("sse2", "avx2"):  # these multiply by weights in memory
        narrow = (*narrow, (2, 4), (3, 4))
    return wide if target.vector_registers >= 32 else narrow


def is_short(g: Geometry, rows: int, cols: int) -> bool:
    """Return whether tiles, and the functions of all of them, aren't too long."""
    down, across = cut_columns(g.rows, rows), cut_columns(g.cols, cols)
    lines = sum(d.width for d in down) * sum(a.width for a in across) * g.taps
    return rows * cols * g.taps <= UNROLLED and lines <= LINES


def window_cycles(
    g: Geometry, params: WindowParams, target: Target, converted: float = 0
) -> float:
    """Estimate the cycles of a windowed kernel: arithmetic, loads, and what spills.

    An input takes `converted` cycles of arithmetic to become a vector of floats.
    """
    return _window_cycles(
        target.machine, g, params.r, params.c, target.vector_registers, converted
    )


@cache  # costs are asked for several times
def _window_cycles(
    machine: Machine, g: Geometry, rows: int, cols: int, registers: int, converted: float
) -> float:
    _, _, tiles = tiles_of(g, rows, cols)
    size, total = g.block * 4, 0.0
    for tile in tiles:
        taps = tile.taps()
        uses = sum(len(t.users) for t in taps)
        outputs = tile.down.width * tile.across.width
        spilled = max(0, outputs + min(g.taps, 9) + 2 - registers) * g.taps / 2
        loads = (len(taps) + (uses if g.taps > 9 else g.taps)) / machine.load_rate(size)
        products = uses / machine.fma_rate(size)
        if converted:  # loads of what spilled are hidden behind the arithmetic
            time = max(products + converted * len(taps), loads + spilled)
        else:
            time = max(products, loads) + spilled
        total += (CALL + time + 1.5 * outputs) * tile.down.count * tile.across.count
    return g.batch * g.supers * total


class WindowTiles(Stripable[Windowed, WindowParams]):
    """Kernels of whole tiles, r x c outputs at a time."""

    def sets(self, w: Workload[Windowed], target: Target) -> list[WindowParams]:
        """Return all parameter sets: tiles that fit the registers."""
        return shapes(channelwise(w), target)

    def cost(self, w: Workload[Windowed], params: WindowParams, target: Target) -> float:
        """Estimated cycles."""
        return window_cycles(channelwise(w), params, target)

    def striped_params(
        self, w: Workload[Windowed], params: WindowParams, target: Target,
        x_rows: int, y_rows: int,
    ) -> WindowParams | None:  # fmt: skip
        """Return the same tiles, which may stand anywhere between the borders."""
        if len(w.outputs[0].shape) != 5:
            return None
        deferred = isinstance(w.op, ConvBlocked) and not typed_epilogue(w.op.epilogue, w, 2)
        return None if deferred else replace(params, x_rows=x_rows, y_rows=y_rows)

    def stripe_ends(
        self, w: Workload[Windowed], params: WindowParams, target: Target
    ) -> Sequence[int]:
        """Blocks of rows end where tiles do."""
        tiles = cut_columns(channelwise(w).rows, params.r)
        return [t.first + (k + 1) * t.width for t in tiles for k in range(t.count)]


class Depthwise(Kernel[ConvBlocked, ParamsT]):
    """Depthwise convolution in vectors of channels."""

    op = ConvBlocked
    portable = False
    batches = True
    channels_last = False

    def accepts(self, w: Workload[ConvBlocked], target: Target) -> bool:
        """One filter per channel, known weights, blocks as wide as vectors."""
        op = w.op
        wide = w.outputs[0].shape[-1] == lanes(target) > 1
        fits = wide and op.window.rank <= 2 and w.constant[1] and is_depthwise(w)
        if not is_bytes(w):
            return fits and sums_floats(w, FLOATS)
        exact = prod(op.window.kernel) * 255 * LARGEST[w.input(1).dtype] <= EXACT_SUM
        return fits and exact and typed_epilogue(op.epilogue, w, 2)

    def parameters(self, w: Workload[ConvBlocked], target: Target) -> Sequence[ParamsT]:
        """Return the most promising sets."""
        return cheapest(self, self.sets(w, target), w, target, 4)

    def sets(self, w: Workload[ConvBlocked], target: Target) -> list[ParamsT]:
        """Return all parameter sets."""
        raise NotImplementedError

    def packs(
        self, w: Workload[ConvBlocked], params: ParamsT, target: Target
    ) -> Mapping[int, Pack]:
        """Weights as [block][tap][lane]."""
        block = w.outputs[0].shape[-1]
        if is_bytes(w):
            return {1: lambda q: pack_lanes(q.astype(np.float32), block).view(q.dtype)}
        return {1: lambda weights: pack_lanes(weights, block)}


class DepthwiseTiles(WindowTiles, Depthwise[WindowParams]):
    """Depthwise convolution, r x c outputs at a time."""

    name = "conv_depthwise"
    template = "cpu/conv/depthwise.c.j2"

    def values(
        self, w: Workload[ConvBlocked], params: WindowParams, target: Target
    ) -> dict[str, object]:
        """Return the tiles; each tap is a multiplication."""
        op = w.op
        g = channelwise(w, params)
        return {
            **tile_values(g, params, self.channels_last), "weighted": True, "averaged": False,
            "start": "v_zero()" if is_bytes(w) else None,
            "epilogue": TileEpilogue(op.epilogue, w, g, target),
            **element_values(w, "v_cvt_i32({0})" if is_bytes(w) else "{0}"),
            **step_values(w, op.zero, "v_fmadd_acc({0}, s, w{1})", g),
        }  # fmt: skip

    def cost(self, w: Workload[Windowed], params: WindowParams, target: Target) -> float:
        """Estimated cycles; bytes and 16 bits are converted as they are read."""
        return window_cycles(channelwise(w), params, target, converting(w, target))


def is_bytes(w: Workload[Windowed]) -> bool:
    """Return whether a convolution sums integers."""
    return isinstance(w.op, ConvBlocked) and w.op.accumulator is DType.INT32


def converting(w: Workload[Windowed], target: Target) -> float:
    """Return the cycles of arithmetic in which a vector of x becomes floats."""
    return CONVERTED if is_bytes(w) else Weights(w.input(0).dtype).widening(target)


def element_values(w: Workload[Windowed], result: str) -> dict[str, object]:
    """Return what the template needs to name elements: C types, results, weights."""

    def outputs(tile: Tile) -> list[tuple[str, int, int, int, int]]:
        return [(result.format(c), row, col, v, at) for c, row, col, v, at in tile.outputs()]

    return {
        "element": w.input(0).dtype.c, "result": w.outputs[0].dtype.c, "outputs": outputs,
        "weights": float_weights(w),
    }  # fmt: skip


def step_values(
    w: Workload[Windowed], zero: int, combine: str, g: Geometry
) -> dict[str, object]:
    """Return how tiles of floats take their inputs one by one: each becomes the vector s.

    `combine` is the C expression of accumulator {0} with `s` and the weights of tap {1}.
    """
    load = vector_load(w, zero)

    def steps(tile: Tile) -> list[Step]:
        return [
            (
                [f"s = {load.format(tile.address(tap))};"],
                [(c, combine.format(c, k)) for c, k in tap.users],
            )
            for tap in tile.taps()
        ]

    return {
        "steps": steps, "variables": "vf32 s;", "sums": "vf32", "weight": "float", "tap": "vf32",
        "tap_load": "v_load", "tap_size": g.block,
    }  # fmt: skip


def input_place(place: int) -> str:
    """Return the C expression of where an input of a tile lies, so far from the first one."""
    return f"x + (at + {place})" if place else "x + at"


def float_weights(w: Workload[Windowed]) -> str:
    """Return the C expression of the weights, which are packed as floats."""
    return "(const float *)(const void *)x1" if is_bytes(w) else "x1"


def vector_load(w: Workload[Windowed], zero: int, place: str = "{0}") -> str:
    """Return the format of what reads a vector of x, less its zero point, at a place."""
    load = f"{LOADS[w.input(0).dtype]}({place})"
    return f"v_sub({load}, v_set1({literal(zero, DType.FLOAT)}))" if zero else load


def pack_lanes(w: Array, block: int) -> Array:
    """Return weights [C, 1, *kernel] as [C / block][tap][lane], zero in lanes past the last."""
    channels = w.shape[0]
    padded = np.zeros((-(-channels // block) * block, w[0].size), w.dtype)
    padded[:channels] = w.reshape(channels, -1)
    return np.ascontiguousarray(padded.reshape(-1, block, w[0].size).swapaxes(1, 2))


class Pooling(Kernel[Pool, ParamsT]):
    """Maximum and average pooling of a blocked tensor, whose last axis the window leaves alone."""

    op = Pool
    portable = False
    batches = True
    channels_last = False

    def accepts(self, w: Workload[Pool], target: Target) -> bool:
        """Floats with lanes along the last axis, one or two axes to pool over, no indices."""
        op, y = w.op, w.outputs[0]
        kind = op.how in ("Max", "Average") and len(w.outputs) == 1 and y.dtype in FLOATS
        kind = kind or op.how == "Max" and len(w.outputs) == 1 and y.dtype in BYTES
        lane = y.shape[-1] == lanes(target) > 1 and op.window.rank in (2, 3)
        window = op.window
        free = (window.kernel[-1], window.strides[-1], window.pads[-1]) == (1, 1, 0)
        fits = kind and lane and free
        return fits and (op.how == "Max" or not op.count_include_pad or _inside_pads(op, w))

    def parameters(self, w: Workload[Pool], target: Target) -> Sequence[ParamsT]:
        """Return the most promising sets."""
        return cheapest(self, self.sets(w, target), w, target, 4)

    def sets(self, w: Workload[Pool], target: Target) -> list[ParamsT]:
        """Return all parameter sets."""
        raise NotImplementedError


class PoolTiles(WindowTiles, Pooling[WindowParams]):
    """Pooling, r x c outputs at a time."""

    name = "pool_simd"
    template = "cpu/conv/depthwise.c.j2"

    def values(self, w: Workload[Pool], params: WindowParams, target: Target) -> dict[str, object]:
        """Return the tiles; each tap is a maximum or a sum, which is divided at the end."""
        op = w.op
        g, y = channelwise(w, params), w.outputs[0]
        largest = op.how == "Max"

        def scale(inside: int) -> str:
            count = g.taps if op.count_include_pad else max(inside, 1)
            return literal(1 / count, DType.FLOAT)

        return {
            **tile_values(g, params), "weighted": False,
            "start": "v_set1(-INFINITY)" if largest else "v_zero()", "averaged": not largest,
            "scale": scale,
            "epilogue": TileEpilogue(as_stored(y.dtype), w, g, target),
            **element_values(w, "{0}"),
            **step_values(w, 0, "v_max({0}, s)" if largest else "v_add({0}, s)", g),
        }  # fmt: skip


def as_stored(dtype: DType) -> Epilogue:
    """Return the epilogue of floats that are stored in a type."""
    return Epilogue(cast(Input(DType.FLOAT, 0), dtype)) if dtype.is_half else (
        identity_epilogue(DType.FLOAT)
    )


def _inside_pads(op: Pool, w: Workload[Pool]) -> bool:
    """Return whether every window lies inside the padded input: all average as many elements."""
    g = channelwise(w)
    return all(
        (a.out - 1) * a.stride + (a.kernel - 1) * a.dilation - a.pad < a.size + end
        for a, end in zip((g.rows, g.cols)[-op.window.rank + 1 :], op.end_pads, strict=False)
    )


KERNELS = (DepthwiseTiles(), PoolTiles())
