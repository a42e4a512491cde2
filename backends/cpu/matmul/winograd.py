"""MatMul by Winograd's inner product (`render/inner_product.py`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod

import numpy as np

from atc.backends.cpu.matmul.cost import Panel, Tile, column_panels, row_tiles, streamed
from atc.backends.cpu.matmul.portable import pack_columns
from atc.backends.cpu.matmul.text import EpilogueFunctions, spot, wrapped
from atc.backends.kernel import Kernel, KernelParams, Pack, Workload, weight_type
from atc.backends.render.expr import address
from atc.backends.render.inner_product import (
    InnerProduct,
    balanced_columns,
    inner_product,
    pairs_pay,
)
from atc.backends.render.loops import loop_names
from atc.backends.render.vector_expr import lanes, vector_epilogue
from atc.backends.target import Target
from atc.dims import is_dynamic
from atc.ir.graph import Array, DType
from atc.ir.ops import MatMul
from atc.ir.view import View, dense


@dataclass(frozen=True, kw_only=True)
class BlockParams(KernelParams):
    """The depth that is summed at a time."""

    kb: int


class MatMulWinograd(Kernel[MatMul, BlockParams]):
    """float MatMul by constant B, dense rows of A."""

    name = "matmul_winograd"
    op = MatMul
    template = "cpu/matmul/winograd.c.j2"
    portable = False

    def accepts(self, w: Workload[MatMul], target: Target) -> bool:
        """Floats of known extents, an epilogue in vectors, units for additions."""
        op, width = w.op, lanes(target)
        if not pairs_pay(target) or is_dynamic(w) or not w.constant[1] or weight_type(w):
            return False
        floats = all(t is not None and t.dtype is DType.FLOAT for t in w.inputs)
        fits = op.m >= width and inner_product(op.k, target) is not None and prod(op.loops) > 0
        dense_rows = op.a_view.strides[-1] == 1
        return floats and fits and dense_rows and vector_epilogue(op.epilogue, w, target, 2)

    def exact(self, params: BlockParams) -> bool:
        """Numbers far below the root mean square of their row or column lose digits."""
        return False

    def parameters(self, w: Workload[MatMul], target: Target) -> Sequence[BlockParams]:
        """Return the largest block of the depth for which A stays in half the L2 cache."""
        op, room = w.op, target.machine.l2.size // 2
        blocks = (op.k // n for n in range(1, op.k // lanes(target) + 1) if op.k % n == 0)
        fitting = (kb for kb in blocks if inner_product(kb, target) and op.m * kb * 4 <= room)
        return [BlockParams(kb=kb) for kb in fitting][:1]

    def packs(self, w: Workload[MatMul], params: BlockParams, target: Target) -> Mapping[int, Pack]:
        """Panels of balanced columns, those of a block of the depth together."""
        op, width = w.op, lanes(target)

        def pack(b: Array) -> Array:
            panels = pack_columns(op, b, width)
            *batch, count, depth, _ = panels.shape
            blocks = panels.reshape(*batch, count, depth // params.kb, params.kb, width)
            return balanced_columns(np.moveaxis(blocks, -3, -4))

        return {1: pack}

    def packing(self, w: Workload[MatMul], params: BlockParams, target: Target) -> str:
        """Name what is the same for any rows."""
        op = w.op
        return f"balanced panels of {params.kb} of {op.b_view} {op.k}x{op.n}"

    def packing_overhead(self, w: Workload[MatMul], params: BlockParams, target: Target) -> int:
        """Add a sum and a scale for each column and block."""
        return 4 * 2 * w.op.n * (w.op.k // params.kb)

    def scratch(self, w: Workload[MatMul], params: BlockParams, target: Target) -> int:
        """Reserve a block of the depth of all rows, balanced."""
        tiles = sum(t.count for t in row_tiles(w.op.m, lanes(target)))
        return 4 * tiles * InnerProduct(params.kb, lanes(target)).size

    def values(self, w: Workload[MatMul], params: BlockParams, target: Target) -> dict[str, object]:
        """Panels, tiles, the parts of the depth, and the epilogue."""
        op, width, kb = w.op, lanes(target), params.kb
        batch = loop_names("b", op.batch)
        outer = [v for v, _ in batch]
        panels, tiles = column_panels(op.n, 1, width), row_tiles(op.m, width)
        finish, product = EpilogueFunctions(op.epilogue, tuple(outer), 2), InnerProduct(kb, width)
        blocked, streams = kb != op.k, op.k * op.n * 4 > streamed(target.machine)
        count = sum(t.count for t in tiles)
        own = [*["const float *next"] * streams, *finish.parameters[0]]
        own += ["bool first", "bool last"] * blocked
        given = [*["next"] * streams, *finish.places]
        given += ["k == 0", f"k == {op.k - kb}"] * blocked
        y = address(dense(op.loops), [*outer, "i", "j"])
        sizes = [t.nbytes for t in w.inputs[2:] if t is not None]
        return {
            "op": op, "batch": batch, "product": product, "blocked": blocked, "panels": panels,
            "tiles": tiles, "lines": product.lines(count) if streams else 0,
            "functions": [
                {
                    **_function(finish, op.n, own, p, t),
                    "awaited": finish.awaited(sizes, target.machine.nearby, t.rows, [0]),
                }
                for p in panels for t in tiles
            ],
            "share": product.share(count), "am": op.a_view.strides[-2],
            "a_base": address(View(op.a_view.strides[:-2], op.a_view.offset), outer),
            "b_base": _b_base(op, outer, product),
            "block_size": -(-op.n // width) * product.size,
            "arguments": ", ".join((*given, f"y0 + {y}", *finish.extras)),
            "epilogues": finish.functions(
                any(not p.part for p in panels), any(p.part for p in panels)
            ),
        }  # fmt: skip

    def cost(self, w: Workload[MatMul], params: BlockParams, target: Target) -> float:
        """Cycles of all tiles, of balancing A, and of waiting for memory."""
        op, width = w.op, lanes(target)
        panels, tiles = -(-op.n // width), [(t.rows, t.count) for t in row_tiles(op.m, width)]
        blocks = op.k // params.kb
        cycles = blocks * InnerProduct(params.kb, width).cycles(target, tiles, panels)
        if op.k * panels * width * 4 > streamed(target.machine):
            cycles = max(cycles, op.k * panels * width * 4 / target.machine.memory)
        return prod(op.batch) * cycles


def _b_base(op: MatMul, outer: list[str], product: InnerProduct) -> str:
    """Return where the panels of a batch begin in packed B; broadcast batches are kept once."""
    strides = op.b_view.strides[:-2]
    kept = dense([1 if s == 0 else n for n, s in zip(op.batch, strides, strict=True)]).strides
    size = op.k // product.depth * -(-op.n // product.lanes) * product.size
    steps = tuple(0 if s == 0 else t * size for s, t in zip(strides, kept, strict=True))
    return address(View(steps), outer)


def _function(
    finish: EpilogueFunctions, n: int, own: Sequence[str], panel: Panel, tile: Tile
) -> dict[str, object]:
    """Return the head of a tile's function, and where each accumulator goes, of rows of n.

    `own` are its parameters between those of the operands and of results.
    """
    name = f"tile_{panel.name}_{tile.rows}"
    parameters = ["const float *a", "const float *b", *own, *finish.parameters[1]]
    results = [
        (f"c{r}", spot("y", r, n, 0), finish.value(f"c{r}", r, 0, panel.part))
        for r in range(tile.rows)
    ]
    head = wrapped(f"static K_NOINLINE void {name}(", parameters)
    return {"name": name, "panel": panel, "tile": tile, "head": head, "results": results}


KERNELS = (MatMulWinograd(),)
