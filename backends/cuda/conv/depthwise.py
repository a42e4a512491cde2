"""CUDA kernel of depthwise convolutions: a thread computes a tile of a channel's results.

What neighbouring results read of a row is loaded once, several elements at a time where rows begin
at multiples of so many, and stays in registers.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from math import prod

from atc.backends.cuda.gpus import gpu_of
from atc.backends.cuda.kernel import MOST_BLOCKS, DeviceKernel, grid, seconds, unravel
from atc.backends.cuda.products.tiles import multiply_add
from atc.backends.kernel import KernelParams, Launch, Workload
from atc.backends.render.axis import SINGLE, Axis
from atc.backends.render.expr import address, load
from atc.backends.render.loops import epilogue_lines
from atc.backends.target import Target
from atc.dims import concrete, is_dynamic
from atc.ir.expr import Const, walk
from atc.ir.graph import DType
from atc.ir.ops import Conv
from atc.ir.view import dense

THREADS, REGISTERS = 128, 40
"""Threads of a block; registers of a thread beside the numbers that it holds."""

MOST_HELD, MOST_STEPS = 112, 1600
"""The most numbers that a thread holds, and multiply-adds that it is unrolled to."""

KEPT = 8
"""The most tiles that are tried."""

VECTOR = 16
"""Bytes that a thread loads or stores at once."""


@dataclass(frozen=True, kw_only=True)
class TileParams(KernelParams):
    """The rows and columns of a thread's results."""

    rows: int
    columns: int


class Depthwise(DeviceKernel[Conv, TileParams]):
    """A Conv of which each filter has one channel, along one axis or two."""

    name = "cuda_conv_depthwise"
    op = Conv
    template = "cuda/conv/depthwise.cu.j2"
    dynamic = True

    def accepts(self, w: Workload[Conv], target: Target) -> bool:
        """Accept images and filters of known extents; there may be any number of images."""
        op, (x, filters), y = w.op, w.inputs[:2], w.outputs[0]
        assert x is not None
        assert filters is not None
        known = not is_dynamic((x.shape[1:], y.shape[1:], filters, op.window.pads))
        alone = op.group > 1 and filters.shape[1] == 1
        return known and alone and op.window.rank <= 2 and bool(self.parameters(w, target))

    def parameters(self, w: Workload[Conv], target: Target) -> Sequence[TileParams]:
        """Return tiles that fit in registers, the fastest by estimate first."""
        (y, x), largest = _axes(w), concrete(w)
        found = []
        for rows, columns in product(_extents(y.out), _extents(x.out)):
            params = TileParams(rows=rows, columns=columns)
            steps = rows * columns * y.kernel * x.kernel
            if self._held(w, params) <= MOST_HELD and steps <= MOST_STEPS:
                found.append(params)
        return sorted(found, key=lambda params: self.cost(largest, params, target))[:KEPT]

    def _held(self, w: Workload[Conv], params: TileParams) -> int:
        """Return how many numbers a thread holds: sums, a filter, a row of inputs."""
        y, x = _axes(w)
        return params.rows * params.columns + y.kernel * x.kernel + x.span(params.columns)

    def resident(self, w: Workload[Conv], params: TileParams) -> int:
        """Return the estimated number of blocks that a multiprocessor runs at a time."""
        return min(16, (1 << 16) // (THREADS * (self._held(w, params) + REGISTERS)))

    def _tiles(self, w: Workload[Conv], params: TileParams) -> list[tuple[str, int]]:
        """Return the loops over all tiles."""
        (rows, columns), out = _axes(w), w.outputs[0].shape
        return [
            ("n", out[0]), ("m", out[1]), ("tile_y", -(-rows.out // params.rows)),
            ("tile_x", -(-columns.out // params.columns)),
        ]  # fmt: skip

    def launch(self, w: Workload[Conv], params: TileParams, target: Target) -> Launch:
        """Return a thread for each tile, up to a limit."""
        threads = prod(n for _, n in self._tiles(w, params))
        return grid(-(-threads // THREADS), MOST_BLOCKS, THREADS)

    def values(self, w: Workload[Conv], params: TileParams, target: Target) -> dict[str, object]:
        """Return what is loaded of a row and how, both operands, and the epilogue."""
        op, x, filters, out = w.op, w.input(0), w.input(1), w.outputs[0]
        rows, columns = _axes(w)
        loops = ["n", "m", *(["o0"] if op.window.rank == 2 else []), "o1"]
        after, value = epilogue_lines(op.epilogue, w, "total", loops, op.operands)
        each = filters.shape[0] // op.group
        channel = f"m / {each}" if each > 1 else "m"
        tiles, wide = self._tiles(w, params), _at_once(out.dtype, columns.out, params.columns)
        operand = op.accumulator.c
        return {
            "count": prod(n for _, n in tiles), "indices": unravel("at", tiles),
            "rows": params.rows, "columns": params.columns, "y": rows, "x": columns,
            "top": _first("tile_y", rows, params.rows),
            "left": _first("tile_x", columns, params.columns),
            "span_y": rows.span(params.rows), "span_x": columns.span(params.columns),
            "plane": f"(n * {x.shape[1]} + {channel}) * {rows.size * columns.size}",
            "taps": f"m * {rows.kernel * columns.kernel}",
            "loads": [*_loads(x.dtype, columns, params.columns)], "source": x.dtype.c,
            "input": _less(op, w, 2, load(x.dtype, "element")),
            "filter": _less(op, w, 3, load(filters.dtype, "x1[first_tap + tap]")),
            "type": operand, "operand": operand,
            "step": multiply_add(op.accumulator, "totals[u][v]", "found[at_x]", "filter[tap]"),
            "wide": wide, "stored": out.dtype.c, "after": after, "value": value,
            "place": address(dense(out.shape), loops),
        }  # fmt: skip

    def cost(self, w: Workload[Conv], params: TileParams, target: Target) -> float:
        """Return the seconds that instructions or the first cache's lines take, or one thread."""
        op, gpu, (rows, columns) = w.op, gpu_of(target.device), _axes(w)
        taps, results = rows.kernel * columns.kernel, params.rows * params.columns
        loads = [*_loads(w.input(0).dtype, columns, params.columns)]
        read = len({
            u * rows.stride + k * rows.dilation
            for u, k in product(range(params.rows), range(rows.kernel))
        })  # fmt: skip
        converted = 0 if w.input(0).dtype is DType.FLOAT else columns.span(params.columns)
        more = sum(not isinstance(e, Const) for e in walk(op.epilogue.expr))
        instructions = 60 + 2 * taps + read * (6 * len(loads) + converted)
        instructions += results * (taps + 2 * more + 2)
        apart = params.columns * columns.stride * w.input(0).dtype.itemsize  # of two threads
        lines = read * len(loads) * min(32, -(-32 * apart // 128))
        lines += params.rows * min(32, -(-32 * params.columns * w.outputs[0].dtype.itemsize // 128))
        warp = max(instructions / 4, lines)
        blocks = -(-prod(n for _, n in self._tiles(w, params)) // THREADS)
        busy = gpu.compute_ns(blocks, self.resident(w, params), warp * THREADS / 32)
        # Loads are late where there is much to do before them.
        return seconds(w, max(busy, 2 * instructions / gpu.clock), gpu) + 0.1e-9 * busy


def _axes(w: Workload[Conv]) -> tuple[Axis, Axis]:
    """Return the axes of rows and columns; there is one row where there is one axis."""
    window, size, out = w.op.window, w.input(0).shape[2:], w.outputs[0].shape[2:]
    found = [
        Axis(n, extent, *rest)
        for n, extent, *rest in zip(
            out, size, window.kernel, window.strides, window.dilations, window.pads, strict=True
        )
    ]
    return (SINGLE, found[0]) if len(found) == 1 else (found[0], found[1])


def _extents(out: int) -> list[int]:
    """Return how many results along an axis a thread may compute."""
    return sorted({n for n in (1, 2, 4, 8) if n < 2 * out} | ({out} if out <= 8 else set()))


def _first(tile: str, axis: Axis, extent: int) -> str:
    """Return the C of the first input of a tile."""
    steps = extent * axis.stride
    place = tile if steps == 1 else f"{tile} * {steps}"
    return f"{place} - {axis.pad}" if axis.pad else place


def _at_once(dtype: DType, *extents: int) -> int:
    """Return how many neighbours are one access: a power of two that divides the extents."""
    sizes = (VECTOR // dtype.itemsize >> k for k in range(5))
    return next(n for n in sizes if n <= 1 or all(extent % n == 0 for extent in extents)) or 1


def _loads(dtype: DType, axis: Axis, extent: int) -> Iterator[tuple[int, int]]:
    """Yield the places in a tile's row, and how many neighbours are loaded at once there.

    A tile begins at a multiple of its inputs, less the padding.
    """
    at, span = 0, axis.span(extent)
    whole = _at_once(dtype, axis.size, extent * axis.stride)
    used = {v * axis.stride + k * axis.dilation for v in range(extent) for k in range(axis.kernel)}
    while at < span:
        count = whole if (at - axis.pad) % whole == 0 else 1
        while count > 1 and at + count > span:
            count //= 2
        if used.intersection(range(at, at + count)):
            yield at, count
        at += count


def _less(op: Conv, w: Workload, index: int, value: str) -> str:
    """Return the C of a value less zero point `index`: one number, or one per output channel."""
    point = w.inputs[index] if op.zero_points else None
    if point is None:
        return value
    return f"{value} - x{index}[{'m' if index == 3 and point.size > 1 else '0'}]"


KERNELS = (Depthwise(),)
