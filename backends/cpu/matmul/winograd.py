"""MatMul by Winograd's inner product, whose half as many products need additions in their place.

x0 w0 + x1 w1 = (x0 + w1)(x1 + w0) - x0 x1 - w0 w1: what is subtracted is summed once for each row
and, when compiling, for each column. A core whose additions have units of their own (AMD's Zen)
keeps both kinds busy: of three products two are made so, the third by a multiply-add, in the time
of two (S. Winograd, "A new algorithm for inner product", 1968).

Numbers of both operands meet in one sum, so their magnitudes are made alike: rows and columns are
scaled by powers of two until their root mean squares lie between 1 and 2 (R. P. Brent, "Error
analysis of algorithms for matrix multiplication and triangular decomposition using Winograd's
identity", 1970). Every other pair is subtracted, (w1 - x0)(x1 - w0), so that x0 x1 of numbers of
one sign don't pile up. Errors are those of sums of products of the row's and the column's root mean
squares.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod

import numpy as np

from atc.backends.cpu.matmul.cost import (
    CALL,
    FMA_WAIT,
    Panel,
    Tile,
    column_panels,
    row_tiles,
    streamed,
)
from atc.backends.cpu.matmul.portable import pack_columns
from atc.backends.cpu.matmul.text import TileFinish, spot, wrapped
from atc.backends.kernel import Kernel, KernelParams, Pack, Workload, weight_type
from atc.backends.machine import Machine
from atc.backends.render.expr import address
from atc.backends.render.loops import loop_names
from atc.backends.render.vector_expr import lanes, vector_epilogue
from atc.backends.target import Target
from atc.dims import is_dynamic
from atc.ir.graph import Array, DType
from atc.ir.ops import MatMul
from atc.ir.view import View, dense

PARTS = 3
"""Parts of the depth: the two of the pairs, and that of plain products."""
BALANCING = 0.9
"""Cycles to transpose, scale and sum a number of A."""
ENDING = 4.0
"""Cycles to make a vector of results of its sum."""


@dataclass(frozen=True, kw_only=True)
class BlockParams(KernelParams):
    """The depth that is summed at a time."""

    kb: int


class MatMulWinograd(Kernel[MatMul, BlockParams]):
    """float MatMul by constant B, tiles of as many rows as a vector has lanes by one vector.

    Additions read a number of A into all lanes themselves, which AVX-512 can: a broadcast of its
    own would take a unit of theirs.
    """

    name = "matmul_winograd"
    op = MatMul
    template = "cpu/matmul/winograd.c.j2"
    portable = False

    def accepts(self, w: Workload[MatMul], target: Target) -> bool:
        """Floats of known extents, rows of A dense, an epilogue in vectors, units for additions."""
        op, width = w.op, lanes(target)
        able = target.simd == "avx512" and target.machine.separate_adds
        if not able or is_dynamic(w) or not w.constant[1] or weight_type(w) is not None:
            return False
        floats = all(t is not None and t.dtype is DType.FLOAT for t in w.inputs)
        fits = op.m >= width and op.k >= PARTS * width and op.k % width == 0 and op.n > 0
        fits = fits and op.a_view.strides[-1] == 1 and prod(op.batch) > 0
        return floats and fits and vector_epilogue(op.epilogue, w, target, 2)

    def exact(self, params: BlockParams) -> bool:
        """Numbers far below the root mean square of their row or column lose digits."""
        return False

    def parameters(self, w: Workload[MatMul], target: Target) -> Sequence[BlockParams]:
        """Return the largest block of the depth for which A stays in half the L2 cache."""
        op, width = w.op, lanes(target)
        room = target.machine.l2.size // 2
        for count in range(1, op.k // (PARTS * width) + 1):
            kb = op.k // count
            if op.k % count == 0 and kb % width == 0 and op.m * kb * 4 <= room:
                return (BlockParams(kb=kb),)
        return ()

    def packs(self, w: Workload[MatMul], params: BlockParams, target: Target) -> Mapping[int, Pack]:
        """Panels of balanced columns, with their sums of pairs and scales."""
        op, width = w.op, lanes(target)
        return {1: lambda b: balanced_columns(pack_columns(op, b, width), params.kb)}

    def packing(self, w: Workload[MatMul], params: BlockParams, target: Target) -> str:
        """Name what is the same for any rows."""
        op = w.op
        return f"balanced panels of {params.kb} of {op.b_view} {op.k}x{op.n}"

    def packing_overhead(self, w: Workload[MatMul], params: BlockParams, target: Target) -> int:
        """Add a sum and a scale for each column and block."""
        return 4 * 2 * w.op.n * (w.op.k // params.kb)

    def scratch(self, w: Workload[MatMul], params: BlockParams, target: Target) -> int:
        """Reserve a block of the depth of all rows, with their sums of pairs and scales."""
        tiles = sum(t.count for t in row_tiles(w.op.m, lanes(target)))
        return 4 * tiles * lanes(target) * (params.kb + 2)

    def values(self, w: Workload[MatMul], params: BlockParams, target: Target) -> dict[str, object]:
        """Panels, tiles, the parts of the depth, and the epilogue."""
        op, width, kb = w.op, lanes(target), params.kb
        batch = loop_names("b", op.batch)
        outer = [v for v, _ in batch]
        panels, tiles = column_panels(op.n, 1, width), row_tiles(op.m, width)
        finish = TileFinish(op.epilogue, tuple(outer), 2)
        third = _third(kb, width)
        blocked, streams = kb != op.k, op.k * op.n * 4 > streamed(target.machine)
        count = sum(t.count for t in tiles)
        lines = -(-2 * PARTS // count) if streams else 0
        functions = [_function(finish, op.n, p, t, blocked, streams) for p in panels for t in tiles]
        places = [*["next"] * streams, *finish.places]
        places += [*["k == 0", f"k == {op.k - kb}"] * blocked]
        y = address(dense(op.loops), [*outer, "i", "j"])
        return {
            "op": op, "batch": batch, "lanes": width, "depth": kb, "blocked": blocked,
            "third": third, "rest": kb - PARTS * third, "panels": panels, "tiles": tiles,
            "functions": functions, "tile_size": width * (kb + 2), "lines": lines,
            "share": third // 2 * lines * width,
            "a_base": address(View(op.a_view.strides[:-2], op.a_view.offset), outer),
            "am": op.a_view.strides[-2], "b_base": _b_base(op, outer, params, width),
            "block_size": len(range(0, op.n, width)) * width * (kb + 2),
            "arguments": ", ".join((*places, f"y0 + {y}", *finish.extras)),
            "finishes": finish.functions(
                any(not p.part for p in panels), any(p.part for p in panels)
            ),
        }  # fmt: skip

    def cost(self, w: Workload[MatMul], params: BlockParams, target: Target) -> float:
        """Cycles of all tiles, of balancing A, and of waiting for memory."""
        op, machine, width = w.op, target.machine, lanes(target)
        tiles, panels = row_tiles(op.m, width), -(-op.n // width)
        blocks = op.k // params.kb
        each = sum(t.count * _tile_cycles(machine, t.rows, params.kb, width) for t in tiles)
        cycles = blocks * (panels * each + BALANCING * op.m * params.kb)
        if op.k * panels * width * 4 > streamed(machine):
            cycles = max(cycles, op.k * panels * width * 4 / machine.memory)
        return prod(op.batch) * cycles


def _third(depth: int, width: int) -> int:
    """Return the steps of which each takes a pair and one more number."""
    return depth // (PARTS * width) * width


def _tile_cycles(machine: Machine, rows: int, depth: int, width: int) -> float:
    third = _third(depth, width)
    units = machine.fma_rate(4 * width)
    numbers, vectors = machine.loads, machine.load_rate(4 * width)
    waiting = machine.fma_latency * FMA_WAIT
    step = max(2 * rows / units, PARTS * (rows / numbers + 1 / vectors), 2 * waiting)
    plain = max(rows / units, rows / numbers + 1 / vectors, waiting)
    return CALL + third * step + (depth - PARTS * third) * plain + ENDING * rows


def balanced_columns(panels: Array, depth: int) -> Array:
    """Return panels [*batch, columns / c, k, c] as [*batch, k / depth, columns / c, depth + 2, c].

    Columns are scaled by powers of two, those of nothing but zeros by 1. Numbers are in the order
    of use: (second of a pair, first, plain) for each step, those without a pair; then the column's
    sum of pairs, and what undoes its scale (0 for zeros: their results are exact).
    """
    *batch, count, k, width = panels.shape
    parts = panels.reshape(*batch, count, k // depth, depth, width)
    parts = np.moveaxis(parts, -3, -4).astype(np.float64)
    mean = np.sqrt((parts**2).mean(-2))
    exponent = np.clip(np.frexp(mean)[1] - 1, -126, 126)
    scaled = parts * np.ldexp(1.0, -exponent)[..., None, :]
    third = _third(depth, width)
    first, second, plain = (scaled[..., n * third : (n + 1) * third, :] for n in range(PARTS))
    signed = first * np.where(np.arange(third) % 2, -1.0, 1.0)[:, None]
    steps = np.stack([second, signed, plain], -2).reshape(*first.shape[:-2], -1, width)
    sums = (signed * second).sum(-2)
    undo = np.where(mean > 0, np.ldexp(1.0, exponent), 0.0)
    ends = np.stack([sums, undo], -2)
    return np.concatenate([steps, scaled[..., PARTS * third :, :], ends], -2).astype(np.float32)


def _b_base(op: MatMul, outer: list[str], params: BlockParams, width: int) -> str:
    """Return where the panels of a batch begin in packed B; broadcast batches are kept once."""
    strides = op.b_view.strides[:-2]
    kept = dense([1 if s == 0 else n for n, s in zip(op.batch, strides, strict=True)]).strides
    size = op.k // params.kb * -(-op.n // width) * width * (params.kb + 2)
    steps = tuple(0 if s == 0 else t * size for s, t in zip(strides, kept, strict=True))
    return address(View(steps), outer)


def _function(
    finish: TileFinish, n: int, panel: Panel, tile: Tile, blocked: bool, streams: bool
) -> dict[str, object]:
    """Return the head of a tile's function, and where each accumulator goes, of rows of n."""
    places, memory = finish.parameters
    name = f"tile_{panel.name}_{tile.rows}"
    parameters = ["const float *a", "const float *b", *["const float *next"] * streams, *places]
    parameters += [*["bool first", "bool last"] * blocked, *memory]
    results = [
        (f"c{r}", spot("y", r, n, 0), finish.value(f"c{r}", r, 0, panel.part))
        for r in range(tile.rows)
    ]
    head = wrapped(f"static K_NOINLINE void {name}(", parameters)
    return {"name": name, "panel": panel, "tile": tile, "head": head, "results": results}


KERNELS = (MatMulWinograd(),)
