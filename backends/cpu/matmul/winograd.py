"""MatMul by Winograd's inner product (`render/inner_product.py`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod

import numpy as np

from atc.backends.cpu.matmul.cost import (
    Panel,
    Tile,
    column_panels,
    row_tiles,
    streamed,
    tile_count,
    vector_kinds,
    while_fetching,
)
from atc.backends.cpu.matmul.operands import (
    batch_base,
    is_widened_product,
    kept_batch,
    packed_base,
)
from atc.backends.cpu.matmul.portable import pack_columns
from atc.backends.cpu.matmul.text import EpilogueFunctions, spot, tile_function
from atc.backends.kernel import Kernel, KernelParams, Pack, ParamsT, Workload
from atc.backends.render.expr import address
from atc.backends.render.inner_product import (
    BALANCING,
    BALANCING_COLUMNS,
    InnerProduct,
    balanced_columns,
    balanced_rows,
    is_paired,
    pairs_pay,
)
from atc.backends.render.loops import loop_names
from atc.backends.render.stored_weights import stored_weights
from atc.backends.render.vector_epilogue import vector_epilogue
from atc.backends.render.vector_expr import lanes
from atc.backends.target import Target
from atc.dims import is_dynamic
from atc.ir.graph import Array
from atc.ir.ops import MatMul
from atc.ir.view import dense, gather_view


@dataclass(frozen=True, kw_only=True)
class BlockParams(KernelParams):
    """The depth that is summed at a time."""

    kb: int


@dataclass(frozen=True, kw_only=True)
class GroupParams(KernelParams):
    """The panels of columns that are balanced at a time."""

    panels: int


class InnerProducts(Kernel[MatMul, ParamsT]):
    """float MatMul by one constant operand, of the other one dense rows."""

    op = MatMul
    portable = False

    def accepts(self, w: Workload[MatMul], target: Target) -> bool:
        """Floats of known extents, an epilogue in vectors, units for additions."""
        op = w.op
        if not pairs_pay(target) or is_dynamic(w):
            return False
        fits = is_widened_product(w) and is_paired(op.k, target)
        return fits and vector_epilogue(op.epilogue, w, target, 2)

    def exact(self, params: ParamsT) -> bool:
        """Numbers far below the root mean square of their row or column lose digits."""
        return False

    def tile_values(
        self, w: Workload[MatMul], target: Target, product: InnerProduct,
        before: Mapping[str, str], behind: Mapping[str, str],
    ) -> dict[str, object]:  # fmt: skip
        """Panels, tiles, and the epilogue.

        Tiles' functions take more parameters, of which arguments are given by their C, before and
        behind the places of the epilogue's operands.
        """
        op, width = w.op, lanes(target)
        batch = loop_names("b", op.batch)
        outer = tuple(v for v, _ in batch)
        panels, tiles = column_panels(op.n, 1, width), row_tiles(op.m, width)
        finish = EpilogueFunctions(op.epilogue, outer, 2)
        sizes, nearby = [t.nbytes for t in w.inputs[2:] if t is not None], target.machine.nearby

        def function(panel: Panel, tile: Tile) -> dict[str, object]:
            operands = ["const float *a", "const float *b", *before]
            results = [
                (f"c{r}", place, finish.store(place, f"c{r}", r, 0, panel.part))
                for r, place in enumerate(spot("y", r, op.n, 0) for r in range(tile.rows))
            ]
            awaited = finish.awaited(sizes, nearby, tile.rows, [0])
            head = tile_function(finish, panel, tile, operands, [*behind])
            return {**head, "results": results, "awaited": awaited}

        y = f"y0 + {address(dense(op.loops), [*outer, 'i', 'j'])}"
        given = [*before.values(), *finish.places, *behind.values(), y, *finish.extras]
        return {
            "op": op, "batch": batch, "product": product, "panels": panels, "tiles": tiles,
            "functions": [function(p, t) for p in panels for t in tiles],
            "arguments": ", ".join(given), "epilogues": finish.functions(*vector_kinds(panels)),
        }  # fmt: skip


class MatMulWinograd(InnerProducts[BlockParams]):
    """float MatMul by constant B, dense rows of A."""

    name = "matmul_winograd"
    template = "cpu/matmul/winograd.c.j2"
    accepts_16_bit_weights = True

    def accepts(self, w: Workload[MatMul], target: Target) -> bool:
        """Rows that fill a tile."""
        known = w.constant[1] and not is_dynamic(w)
        fits = known and w.op.m >= lanes(target) and w.op.a_view.strides[-1] == 1
        return fits and super().accepts(w, target)

    def parameters(self, w: Workload[MatMul], target: Target) -> Sequence[BlockParams]:
        """Return the largest block of the depth for which A stays in half the L2 cache."""
        op, room = w.op, target.machine.l2.size // 2
        blocks = (op.k // n for n in range(1, op.k // lanes(target) + 1) if op.k % n == 0)
        fitting = (kb for kb in blocks if is_paired(kb, target) and op.m * kb * 4 <= room)
        return [BlockParams(kb=kb) for kb in fitting][:1]

    def packs(self, w: Workload[MatMul], params: BlockParams, target: Target) -> Mapping[int, Pack]:
        """Panels of balanced columns, those of a block of the depth together."""
        op, width, weights = w.op, lanes(target), stored_weights(w)

        def pack(b: Array) -> Array:
            panels = pack_columns(op, b, width)
            *batch, count, depth, _ = panels.shape
            blocks = panels.reshape(*batch, count, depth // params.kb, params.kb, width)
            return balanced_columns(np.moveaxis(blocks, -3, -4), weights)

        return {1: pack}

    def packing(self, w: Workload[MatMul], params: BlockParams, target: Target) -> str:
        """Name what is the same for any rows."""
        op = w.op
        return f"balanced panels of {params.kb} of {op.b_view} {op.k}x{op.n}"

    def packing_overhead(self, w: Workload[MatMul], params: BlockParams, target: Target) -> int:
        """Add a sum and a scale for each column and block."""
        return 4 * 2 * w.op.n * (w.op.k // params.kb)

    def scratch(self, w: Workload[MatMul], params: BlockParams, target: Target) -> int:
        """Reserve a block of the depth of all rows, balanced, and a panel of widened columns."""
        product = _product(w, params.kb, target)
        return 4 * (_row_floats(w, product) + product.widened)

    def values(self, w: Workload[MatMul], params: BlockParams, target: Target) -> dict[str, object]:
        """Panels, tiles, the parts of the depth, and the epilogue."""
        op, width, kb = w.op, lanes(target), params.kb
        outer = [v for v, _ in loop_names("b", op.batch)]
        product, count = _product(w, kb, target), tile_count(row_tiles(op.m, width))
        blocked, streams = kb != op.k, _weight_bytes(w) > streamed(target.machine)
        before = {f"const {product.weights.c} *next": "next"} if streams else {}
        behind = {"bool first": "k == 0", "bool last": f"k == {op.k - kb}"} if blocked else {}
        block = -(-op.n // width) * product.panel
        return {
            **self.tile_values(w, target, product, before, behind),
            "blocked": blocked, "constant": "b", "lines": product.lines(count) if streams else 0,
            "share": product.share(count), "am": op.a_view.strides[-2],
            "a_base": batch_base(op.a_view, outer),
            "b_base": packed_base(op.batch, op.b_view, outer, op.k // kb * block),
            "block_size": block, "widened": _row_floats(w, product),
        }  # fmt: skip

    def cost(self, w: Workload[MatMul], params: BlockParams, target: Target) -> float:
        """Cycles of all tiles, of balancing A, and of waiting for memory."""
        op, width = w.op, lanes(target)
        panels, tiles = -(-op.n // width), [(t.rows, t.count) for t in row_tiles(op.m, width)]
        blocks = op.k // params.kb
        product, machine, read = _product(w, params.kb, target), target.machine, _weight_bytes(w)
        cycles = blocks * product.cycles(target, tiles, panels)
        cycles += BALANCING * op.m * op.k
        if read > streamed(machine):
            cycles = max(cycles, read / machine.memory)
        return prod(op.batch) * while_fetching(machine, cycles, read)


def _product(w: Workload[MatMul], depth: int, target: Target) -> InnerProduct:
    return InnerProduct(depth, lanes(target), stored_weights(w))


def _row_floats(w: Workload[MatMul], product: InnerProduct) -> int:
    return tile_count(row_tiles(w.op.m, product.lanes)) * product.size


def _weight_bytes(w: Workload[MatMul]) -> int:
    return w.op.k * w.op.n * stored_weights(w).dtype.itemsize


class MatMulWinogradLeft(InnerProducts[GroupParams]):
    """float MatMul of constant A by dense rows of B, whose columns each run balances."""

    name = "matmul_winograd_left"
    template = "cpu/matmul/winograd_left.c.j2"
    bitwise_reproducible = True

    def accepts(self, w: Workload[MatMul], target: Target) -> bool:
        """Dense rows, of which the L2 cache holds a panel at least."""
        dense_rows = w.constant[:2] == (True, False) and w.op.b_view.strides[-1] == 1
        return dense_rows and super().accepts(w, target) and bool(self.parameters(w, target))

    def parameters(self, w: Workload[MatMul], target: Target) -> Sequence[GroupParams]:
        """Return the most panels that fit into half the L2 cache."""
        room, width = target.machine.l2.size // 2, lanes(target)
        panels = min(room // (4 * InnerProduct(w.op.k, width).size), -(-w.op.n // width))
        return [GroupParams(panels=panels)] if panels else []

    def packs(self, w: Workload[MatMul], params: GroupParams, target: Target) -> Mapping[int, Pack]:
        """Tiles of balanced rows."""
        op, width = w.op, lanes(target)

        def pack(a: Array) -> Array:
            rows = gather_view(a, (*kept_batch(op.batch, op.a_view), op.m, op.k), op.a_view)
            tiles = row_tiles(op.m, width)
            spread = np.zeros((*rows.shape[:-2], tile_count(tiles), width, op.k), rows.dtype)
            number = 0
            for tile in tiles:
                for first in range(tile.first, tile.first + tile.rows * tile.count, tile.rows):
                    spread[..., number, : tile.rows, :] = rows[..., first : first + tile.rows, :]
                    number += 1
            return balanced_rows(spread.swapaxes(-1, -2))

        return {0: pack}

    def packing(self, w: Workload[MatMul], params: GroupParams, target: Target) -> str:
        """Name what is the same for any columns."""
        return f"balanced rows of {w.op.a_view} {w.op.m}x{w.op.k}"

    def packing_overhead(
        self, w: Workload[MatMul], params: GroupParams, target: Target
    ) -> int:  # fmt: skip
        """Fill the last lanes of tiles; add a sum and a scale for each row."""
        op, width = w.op, lanes(target)
        tiles = tile_count(row_tiles(op.m, width))
        return 4 * (tiles * InnerProduct(op.k, width).size - op.m * op.k)

    def scratch(self, w: Workload[MatMul], params: GroupParams, target: Target) -> int:
        """Reserve balanced panels, and a sum of squares for each column."""
        width = lanes(target)
        return 4 * params.panels * (InnerProduct(w.op.k, width).size + width)

    def values(self, w: Workload[MatMul], params: GroupParams, target: Target) -> dict[str, object]:
        """Panels and how many of them are balanced together, tiles, and the epilogue."""
        op, width = w.op, lanes(target)
        outer = [v for v, _ in loop_names("b", op.batch)]
        product, count = InnerProduct(op.k, width), tile_count(row_tiles(op.m, width))
        return {
            **self.tile_values(w, target, product, {}, {}),
            "blocked": False, "constant": "a", "lines": 0, "group": params.panels,
            "bk": op.b_view.strides[-2], "b_base": batch_base(op.b_view, outer),
            "a_base": packed_base(op.batch, op.a_view, outer, count * product.size),
        }  # fmt: skip

    def cost(self, w: Workload[MatMul], params: GroupParams, target: Target) -> float:
        """Cycles of all tiles, of balancing B, and of waiting for A in every group of panels."""
        op, width, machine = w.op, lanes(target), target.machine
        panels, tiles = -(-op.n // width), row_tiles(op.m, width)
        cycles = InnerProduct(op.k, width).cycles(
            target, [(t.rows, t.count) for t in tiles], panels
        )
        cycles += BALANCING_COLUMNS * op.k * panels * width
        weights = 4 * op.m * op.k
        if weights > streamed(machine):
            cycles = max(cycles, -(-panels // params.panels) * weights / machine.far_rate)
        return prod(op.batch) * cycles


KERNELS = (MatMulWinograd(), MatMulWinogradLeft())
