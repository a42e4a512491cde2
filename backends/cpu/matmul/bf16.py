"""MatMul in bf16 with AVX512_BF16: register tiles of mr rows by nv vectors, two products a lane.

Rows of A are rounded to pairs of bfloat16 in scratch, a block at a time; B lies in panels of pairs,
two rows of it in one: packed when compiling where it is constant, else in scratch, a panel at a
time. Sums are float32. Where B is constant the run may count the rows: one row of A, as of a
decoder's word, asks for all of B that it reads.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod

import numpy as np

from atc.backends.cpu.matmul.cost import (
    Panel,
    PhasedParams,
    Tile,
    blocks_of,
    column_panels,
    row_blocks,
    row_tiles,
    streamed,
    tile_count,
    tile_cycles,
    vector_kinds,
    while_fetching,
)
from atc.backends.cpu.matmul.operands import (
    batch_base,
    gathered_b,
    is_float_product,
    packed_base,
    read_mode,
)
from atc.backends.cpu.matmul.prefetch import Prefetch, requests
from atc.backends.cpu.matmul.row_blocks import RowBlocks, in_tiles
from atc.backends.cpu.matmul.shared_panels import SharedParams, SharesPanels
from atc.backends.cpu.matmul.text import EpilogueFunctions, tile_ends, tile_function
from atc.backends.kernel import Kernel, Pack, Workload
from atc.backends.render.bfloat16 import rounded_bits
from atc.backends.render.expr import address
from atc.backends.render.loops import loop_names
from atc.backends.render.stored_weights import FLOATS
from atc.backends.render.vector_epilogue import vector_epilogue
from atc.backends.render.vector_expr import lanes
from atc.backends.target import Target
from atc.dims import is_dynamic, max_value
from atc.ir.graph import Array
from atc.ir.ops import MatMul
from atc.ir.view import dense

WIDTHS, STREAMING_WIDTHS = (2, 3, 4, 1), (8, 4, 6, 2, 1)
"""Vectors of a panel, the most useful first; for one or two rows what B streams through best."""
BUSY = 12
"""Sums that keep the units busy."""
CONVERTED = {"rows": 2.0, "columns": 4.0, "any": 40.0}
"""Cycles to turn 16 numbers into pairs, by how they lie."""


def pack_bf16x2(op: MatMul, b: Array, width: int) -> Array:
    """Return constant B as pairs [*batch, n / width, ceil(k / 2), width], filled up with zeros."""
    pairs, panels = -(-op.k // 2), -(-op.n // width)
    full = gathered_b(op, b).reshape(-1, op.k, op.n)
    padded = np.zeros((len(full), 2 * pairs, panels * width), np.uint16)
    padded[:, : op.k, : op.n] = rounded_bits(full)
    split = padded.reshape(-1, pairs, 2, panels, width).transpose(0, 3, 1, 4, 2)
    return np.ascontiguousarray(split).view(np.float32)[..., 0]


@dataclass(frozen=True, kw_only=True)
class Bf16Params(PhasedParams, SharedParams):
    """Those of tiles; where the run counts the rows, `phases` are those of the highest ones."""


class MatMulBf16(Kernel[MatMul, Bf16Params], SharesPanels[MatMul, Bf16Params]):
    """float MatMul in bf16, mr x nv register tiles; `phases` are partial sums of a small tile."""

    name = "matmul_bf16"
    op = MatMul
    template = "cpu/matmul/bf16.c.j2"
    portable = False
    dynamic = True
    precision = "bf16"
    headers = ("bf16",)

    def accepts(self, w: Workload[MatMul], target: Target) -> bool:
        """Floats, and an epilogue in vectors; the run may count the rows where B is constant."""
        op = w.op
        if is_dynamic((op, w.inputs[2:])):
            known = (op.k, op.n, op.batch, op.a_view.strides, op.b_view)
            if is_dynamic(known) or not w.constant[1]:
                return False
        able = "avx512_bf16" in target.features and is_float_product(w)
        return able and vector_epilogue(w.op.epilogue, w, target, 2)

    def parameters(self, w: Workload[MatMul], target: Target) -> Sequence[Bf16Params]:
        """Tiles that fill the registers."""
        op, width = w.op, lanes(target)
        found: list[Bf16Params] = []
        for nv in STREAMING_WIDTHS if max_value(op.m) <= 2 else WIDTHS:
            free = target.vector_registers - 1 - nv
            high = min(free // nv, max_value(op.m))
            if nv > -(-op.n // width):
                continue
            mr = row_tiles(op.m, high)[0].rows
            phases = _phases(mr * nv, free, op.k)
            found.append(Bf16Params(mr=mr, nv=nv, phases=phases))
        return found

    def shared_panels(self, w: Workload[MatMul], params: Bf16Params, target: Target) -> int:
        """Return the whole panels of a product whose rows only the run counts."""
        op = w.op
        alone = is_dynamic(op.m) and all(n == 1 for n in op.batch)
        return op.n // (params.nv * lanes(target)) if alone else 0

    def packing(self, w: Workload[MatMul], params: Bf16Params, target: Target) -> str:
        """Panels are the same for any number of threads."""
        return super().packing(w, replace(params, partitions=1), target)

    def packs(
        self, w: Workload[MatMul], params: Bf16Params, target: Target
    ) -> Mapping[int, Pack]:
        """Pack constant B into panels of pairs."""
        op, width = w.op, params.nv * lanes(target)
        return {1: lambda b: pack_bf16x2(op, b, width)} if w.constant[1] else {}

    def scratch(self, w: Workload[MatMul], params: Bf16Params, target: Target) -> int:
        """Reserve a block of A's rows, and a panel of B where it isn't packed."""
        shape = _shape(w, params, target)
        return 4 * (shape.block * shape.stride + shape.panel_room) * params.partitions

    def values(
        self, w: Workload[MatMul], params: Bf16Params, target: Target
    ) -> dict[str, object]:
        """Blocks, panels, tiles, how both operands are read, and the epilogue."""
        op, mode, shape = w.op, read_mode(w), _shape(w, params, target)
        batch = loop_names("b", op.batch)
        outer = [v for v, _ in batch]
        panels = column_panels(op.n, params.nv, lanes(target))
        finish = EpilogueFunctions(op.epilogue, tuple(outer), 2, rounded=True)
        pairs, width = shape.pairs, shape.width
        prefetch = _prefetch(w, shape, target)
        free = target.vector_registers - 1 - params.nv if is_dynamic(op.m) else 0
        text = _TileText(
            finish, f"y0 + {address(dense(op.loops), [*outer, 'i', 'j'])}", op, lanes(target),
            shape.stride, params.phases, prefetch, free,
        )  # fmt: skip
        tiles = {t.rows: t for b in shape.blocks for t in b.tiles}.values()
        bk, bn = op.b_view.strides[-2:]
        size = pairs * width * -(-op.n // width)
        return {
            "batch": batch, "op": op, "width": width, "mode": mode,
            "lanes": lanes(target), "pairs": pairs, "stride": shape.stride,
            "partitions": params.partitions,
            "blocks": shape.blocks, "room": shape.block * shape.stride, "panels": panels,
            "functions": [text.function(p, t) for p in panels for t in tiles],
            "epilogues": finish.functions(*vector_kinds(panels)), "arguments": text.arguments,
            "a_base": batch_base(op.a_view, outer),
            "am": op.a_view.strides[-2], "ak": op.a_view.strides[-1], "bk": bk, "bn": bn,
            "b_base": packed_base(op.batch, op.b_view, outer, size) if mode == "packed"
            else batch_base(op.b_view, outer),
            "panel_step": pairs * width if mode == "packed" else width * bn, "prefetch": prefetch,
        }  # fmt: skip

    def cost(self, w: Workload[MatMul], params: Bf16Params, target: Target) -> float:
        """Cycles of all tiles, of rounding both operands, and of waiting for memory."""
        op, mode, shape = w.op, read_mode(w), _shape(w, params, target)
        nv, phases, wide = params.nv, params.phases, lanes(target)
        machine = target.machine
        far = int(shape.block * shape.stride * 4 > machine.l1_kept)
        columns = -(-op.n // shape.width) * shape.width
        cycles = op.m * op.k / wide * CONVERTED["rows" if op.a_view.strides[-1] == 1 else "any"]
        for b in shape.blocks:
            tiles = sum(
                p.count * t.count
                * tile_cycles(machine.of_pairs, t.rows, p.vectors, wide, shape.pairs, phases, far)
                for p in column_panels(op.n, nv, wide)
                for t in b.tiles
            )
            if far:  # every panel reads the block from the L2 cache
                tiles += 0.5 * b.rows * shape.stride * 4 / machine.l2.rate * columns / shape.width
            copied = 0 if mode == "packed" else op.k * columns / wide * CONVERTED[mode]
            stream = shape.pairs * columns * 4
            if mode == "packed" and stream > streamed(machine) and params.mr < b.rows:
                tiles += 0.1 * (nv - 1) * stream / machine.memory  # tiles that share it wait
            cycles += b.count * (copied + tiles)
        if mode == "packed":
            cycles = while_fetching(machine, cycles, op.k * op.n * 2)
        return prod(op.batch) * cycles


@dataclass(frozen=True)
class _Shape:
    """Sizes, in pairs: the depth, a panel's width, and from row to row of A in scratch."""

    pairs: int
    width: int
    stride: int
    block: int
    """Rows of the largest block of A."""
    blocks: tuple[RowBlocks, ...]
    panel_room: int


def _shape(w: Workload[MatMul], params: Bf16Params, target: Target) -> _Shape:
    op, mr, width = w.op, params.mr, params.nv * lanes(target)
    pairs = -(-op.k // 2)
    whole = -(-pairs // lanes(target)) * lanes(target)
    stride = whole + lanes(target) * (whole % 1024 == 0)  # rows a page apart would crowd
    most = target.machine.l2.size * 3 // 8  # of rows that meet all of B before the next ones
    if is_dynamic(op.m):
        rows = max(mr, most // (stride * 4) // mr * mr)
        cut = blocks_of(op.m, rows) if max_value(op.m) > rows else [(0, 1, op.m)]
    else:
        cut = row_blocks(op.m, stride * 4, most, mr)
    blocks = in_tiles(cut, mr)
    room = 0 if read_mode(w) == "packed" else whole * width
    return _Shape(pairs, width, stride, blocks[0].rows, blocks, room)


def _phases(sums: int, free: int, depth: int) -> int:
    """Return how many partial sums a tile of so many has, if there are registers for that."""
    return max(1, min(-(-BUSY // sums), free // sums, 4, depth // 2))


def _prefetch(w: Workload[MatMul], shape: _Shape, target: Target) -> Prefetch | None:
    """Return what each tile asks for of packed B that leaves the L2 cache.

    A pair is as large as a float.
    """
    if read_mode(w) != "packed" or w.op.k * w.op.n * 2 <= streamed(target.machine):
        return None
    tiles = max_value(tile_count(shape.blocks[0].tiles))
    return requests(w.op.m, tiles, shape.width, FLOATS, target.machine)


@dataclass(frozen=True)
class _TileText:
    """The C of the tiles' heads, results and calls."""

    finish: EpilogueFunctions
    target: str
    """The C address of a tile's first result."""
    op: MatMul
    lanes: int
    stride: int
    phases: int
    prefetch: Prefetch | None
    """What tiles ask for."""
    free: int
    """Registers for sums, where the run counts the rows and each height has its own phases."""

    def function(self, panel: Panel, tile: Tile) -> dict[str, object]:
        """Return the head of a tile's function, its phases, and where each accumulator goes."""
        asked = self.prefetch.parameters("float") if self.prefetch else []
        operands = ["const float *a", "const float *b", *asked]
        sums = tile.rows * panel.vectors
        return {
            **tile_function(self.finish, panel, tile, operands),
            **tile_ends(self.finish, panel, tile, self.op.n, self.lanes),
            "phases": _phases(sums, self.free, self.op.k) if self.free else self.phases,
        }  # fmt: skip

    @property
    def arguments(self) -> str:
        """The last arguments of a tile's call, those after `b` and what it asks for by rows."""
        shared = self.prefetch is not None and self.prefetch.next
        given = [*["next"] * shared, *self.finish.places, self.target, *self.finish.extras]
        return ", ".join(given)


KERNELS = (MatMulBf16(),)
