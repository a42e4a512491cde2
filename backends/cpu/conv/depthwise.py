"""Windows of separate channels, in channel blocks: depthwise convolution and pooling.

A tile of outputs is unrolled whole: every input vector is loaded once and given to all the outputs
that it concerns. Tiles at the borders simply lack the taps that meet padding.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import TypeVar

import numpy as np

from atc.backends.cpu.conv.blocked import cheapest, is_depthwise
from atc.backends.cpu.conv.window_tiles import (
    Tile,
    WindowParams,
    groups_of_blocks,
    shapes,
    tile_values,
    window_cycles,
)
from atc.backends.kernel import Kernel, Pack, ParamsT, Stripable, Workload
from atc.backends.render.epilogue import TileEpilogue, sums_floats
from atc.backends.render.expr import literal
from atc.backends.render.stored_weights import Weights
from atc.backends.render.tile_geometry import Geometry, cut_columns
from atc.backends.render.vector_epilogue import typed_epilogue
from atc.backends.render.vector_expr import BYTES, LOADS, lanes
from atc.backends.target import Target
from atc.dims import upper_bound
from atc.ir.expr import Input, cast
from atc.ir.graph import Array, DType
from atc.ir.ops import ConvBlocked, Epilogue, Pool, identity_epilogue
from atc.ir.ops.blocked import FLOATS

EXACT_SUM = 1 << 24
"""Up to here floats hold all whole numbers: that is how products of bytes are summed."""
LARGEST = {DType.INT8: 128, DType.INT16: 255}
"""The largest magnitude of weights of a type."""
STRIPES = 4
"""Stripes that an image may be cut into at least, however high its tiles are."""
HELD = 9
"""Taps up to which registers hold the weights of all."""
CONVERTED, AMONG_SUMS = 1, 1.5
"""Cycles in which bytes become a vector of floats: three instructions, of four at a time; and how
much longer 16 bits take beside sums that fill the registers."""


Step = tuple[list[str], list[tuple[str, str]]]
"""C statements that read inputs, and the accumulators that these concern: (name, new value)."""


@dataclass(frozen=True)
class Stage:
    """A step of a tile, the accumulators that begin with it, and the rows that end with it."""

    begun: Sequence[str]
    lines: Sequence[str]
    users: Sequence[tuple[str, str]]
    rows: Sequence[int]


def staged(tile: Tile, steps: Sequence[Step]) -> list[Stage]:
    """Return a tile's steps with the lives of its accumulators: those of a tall tile are short.

    Results that meet nothing but padding begin with the first step, their rows end with the last.
    """
    row_of = {c: row for c, row, *_ in tile.outputs()}
    first, last = dict.fromkeys(row_of, 0), dict.fromkeys(row_of.values(), len(steps) - 1)
    for k, (_, users) in reversed([*enumerate(steps)]):
        first.update((c, k) for c, _ in users)
    for k, (_, users) in enumerate(steps):
        last.update((row_of[c], k) for c, _ in users)
    return [
        Stage([c for c in first if first[c] == k], *step, [row for row in last if last[row] == k])
        for k, step in enumerate(steps)
    ] or [Stage([*first], [], [], [*last])]


Windowed = ConvBlocked | Pool
WindowedT = TypeVar("WindowedT", bound=Windowed)


def channelwise(w: Workload[Windowed], params: WindowParams | None = None) -> Geometry:
    """Return the geometry of a window over a blocked tensor, whose every block is a group."""
    held = params.rows_held if params else ()
    return groups_of_blocks(w.op.window, w.outputs[0], w.input(0), held)


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
        """Return the same tiles, which may stand anywhere between the borders; of few rows
        lower ones, as stripes are no lower than tiles."""
        if len(w.outputs[0].shape) != 5:
            return None
        low = shapes(channelwise(w), target)
        if low and params not in low and STRIPES * params.r > w.outputs[0].shape[2]:
            params = min(low, key=lambda p: self.cost(w, p, target))
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

    def sets(self, w: Workload[Windowed], target: Target) -> list[WindowParams]:
        """Return all parameter sets; of tall tiles where inputs are widened, or taps are many."""
        g = channelwise(w)
        reads = w.input(0).dtype.is_half or g.taps > HELD
        return shapes(g, target, tall=reads and not is_bytes(w))

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
    return CONVERTED if is_bytes(w) else AMONG_SUMS * Weights(w.input(0).dtype).widening(target)


def element_values(w: Workload[Windowed], result: str) -> dict[str, object]:
    """Return what the template needs to name elements: C types, results, weights."""

    def outputs(tile: Tile) -> list[tuple[str, int, int, int, int]]:
        return [(result.format(c), row, col, v, at) for c, row, col, v, at in tile.outputs()]

    return {
        "element": w.input(0).dtype.c, "result": w.outputs[0].dtype.c, "outputs": outputs,
        "weights": float_weights(w), "staged": staged,
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
    """Return whether every window lies inside the padded input, in any shape: all average as many
    elements."""
    g = channelwise(w)
    return all(
        upper_bound((a.out - 1) * a.stride + (a.kernel - 1) * a.dilation - a.pad - a.size - end) < 0
        for a, end in zip((g.rows, g.cols)[-op.window.rank + 1 :], op.end_pads, strict=False)
    )


KERNELS = (DepthwiseTiles(), PoolTiles())
