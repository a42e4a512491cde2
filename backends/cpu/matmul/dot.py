"""MatMul by dot products: vectors along the depth, for few columns or a B that lies columnwise.

A tile of mr rows and nr columns keeps a vector of partial sums for each of its results; only the
finished sums are added across lanes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod

import numpy as np

from atc.backends.cpu.matmul.cost import BESIDE, FMA_WAIT, Tile, row_tiles, while_fetching
from atc.backends.cpu.matmul.operands import batch_base, gathered_b, packed_base
from atc.backends.cpu.matmul.text import EpilogueFunctions, plus, wrapped
from atc.backends.kernel import Kernel, KernelParams, Pack, Workload
from atc.backends.machine import CALL
from atc.backends.render.expr import address
from atc.backends.render.loops import loop_names
from atc.backends.render.vector_epilogue import vector_epilogue
from atc.backends.render.vector_expr import lanes
from atc.backends.target import Target
from atc.dims import is_dynamic, max_value
from atc.ir.expr import cost
from atc.ir.graph import Array, DType
from atc.ir.ops import MatMul
from atc.ir.view import dense

COLUMNS = (4, 2, 1, 3)
"""Columns of a tile, the most useful first."""
ACROSS = 3.0
"""Cycles to add a vector across its lanes."""
FAR = 1.1
"""How much longer than the L2 cache's rate has it a dot product reads a vector from there."""

HEAVY, FINISHING = 8, 40.0
"""An epilogue above this cost takes so many cycles longer for the few columns of a tile than for as
many of whole vectors."""


@dataclass(frozen=True, kw_only=True)
class DotParams(KernelParams):
    """Those of tiles of mr rows x nr columns, with `phases` partial sums of each result."""

    mr: int
    nr: int
    phases: int


class MatMulDot(Kernel[MatMul, DotParams]):
    """float MatMul by dot products along a depth that lies densely in both operands."""

    name = "matmul_dot"
    op = MatMul
    template = "cpu/matmul/dot.c.j2"
    portable = False
    dynamic = True

    def accepts(self, w: Workload[MatMul], target: Target) -> bool:
        """Floats; rows of A and columns of B dense (constant B becomes so).

        Only batches and rows may be for the run to know.
        """
        op = w.op
        if is_dynamic((op.k, op.n, op.a_view.strides[-2:], op.b_view.strides[-2:])):
            return False
        floats = all(t is not None and t.dtype is DType.FLOAT for t in w.inputs[:2])
        long = 2 * op.k >= lanes(target) and prod(op.loops) != 0
        read = op.a_view.strides[-1] == 1 and (w.constant[1] or op.b_view.strides[-2] == 1)
        return floats and long and read and vector_epilogue(op.epilogue, w, target, 2)

    def parameters(self, w: Workload[MatMul], target: Target) -> Sequence[DotParams]:
        """Tiles of about as many accumulators as there are registers left."""
        op = w.op
        busy, found = target.machine.sums(target.vector_bytes), list[DotParams]()
        for nr in COLUMNS:
            high = min((target.vector_registers - 1 - nr) // nr, 8, max_value(op.m))
            if nr <= op.n:
                mr = row_tiles(op.m, high)[0].rows
                spare = (target.vector_registers - 1 - nr) // (mr * nr)
                phases = max(1, min(-(-busy // (mr * nr)), spare, op.k // lanes(target)))
                found.append(DotParams(mr=mr, nr=nr, phases=phases))
        return found

    def packs(self, w: Workload[MatMul], params: DotParams, target: Target) -> Mapping[int, Pack]:
        """Lay the columns of constant B densely."""
        op = w.op

        def pack(b: Array) -> Array:
            return np.ascontiguousarray(np.swapaxes(gathered_b(op, b), -1, -2))

        return {1: pack} if w.constant[1] else {}

    def values(self, w: Workload[MatMul], params: DotParams, target: Target) -> dict[str, object]:
        """Tiles, the operands' addresses and the epilogue."""
        op = w.op
        batch = loop_names("b", op.batch)
        outer = [v for v, _ in batch]
        nr, phases, width = params.nr, params.phases, lanes(target)
        finish = EpilogueFunctions(op.epilogue, tuple(outer), 2)
        b_base, bn = batch_base(op.b_view, outer), op.b_view.strides[-1]
        if w.constant[1]:
            b_base, bn = packed_base(op.batch, op.b_view, outer, op.k * op.n), op.k
        y = address(dense(op.loops), [*outer, "i", "j"])
        rows = row_tiles(op.m, params.mr)
        shapes = [(c, t) for c in _column_tiles(op.n, nr) for t in rows]
        return {
            "batch": batch, "op": op, "phases": phases, "lanes": width,
            "iterations": op.k // (width * phases), "single": op.k // width % phases,
            "rest": op.k % width, "am": op.a_view.strides[-2], "bn": bn,
            "a_base": batch_base(op.a_view, outer),
            "b_base": b_base, "epilogues": finish.functions(False, True),
            "functions": [_function(finish, t, c, op.n) for c, t in shapes],
            "arguments": ", ".join((*finish.places, f"y0 + {y}", *finish.extras)),
        }  # fmt: skip

    def cost(self, w: Workload[MatMul], params: DotParams, target: Target) -> float:
        """Cycles of products, loads and sums across lanes."""
        op = w.op
        mr, nr, phases = params.mr, params.nr, params.phases
        machine, size = target.machine, target.vector_bytes
        far_a, far_b = op.m * op.k * 4 > machine.l1_kept, nr * op.k * 4 > machine.l1_kept
        reread = op.n > nr and op.m * op.k * 4 > machine.l2.size // 2  # A passes by, from beyond L2
        wait_a = FAR * size / (machine.far_rate if reread else machine.l2.rate)
        wait_b = FAR * size / machine.l2.rate
        finishing = FINISHING if cost(op.epilogue.expr) > HEAVY else 0.0
        cycles = 0.0
        for columns in _column_tiles(op.n, nr):
            wide = columns.rows
            far = wait_a * (mr if far_a else 0) + wait_b * (wide if far_b else 0)
            products, loads = mr * wide / machine.fma_rate(size), mr + wide
            waiting = machine.fma_latency * FMA_WAIT / phases
            step = max(products, loads / machine.load_rate(size), far, waiting) + loads * BESIDE
            ends = mr * wide * (ACROSS + (phases - 1) / 2) + mr * finishing
            cycles += columns.count * (CALL + -(-op.k // lanes(target)) * step + ends)
        cycles *= -(-op.m // mr)
        nbytes = op.k * op.n * 4
        cycles = max(cycles, nbytes / machine.far_rate)
        if w.constant[1]:
            cycles = while_fetching(machine, cycles, nbytes)
        return prod(op.batch) * cycles


def _column_tiles(n: int, nr: int) -> list[Tile]:
    """Return the tiles of nr columns, and the one of what is left."""
    tiles = [Tile(nr, n // nr, 0), Tile(n % nr, 1, n - n % nr)]
    return [t for t in tiles if t.rows and t.count]


def _function(finish: EpilogueFunctions, rows: Tile, columns: Tile, n: int) -> dict[str, object]:
    """Return the head of a tile's function, its accumulators and where each row goes."""
    places, memory = finish.parameters
    name = f"dots_{rows.rows}_{columns.rows}"
    parameters = ["const float *a", "const float *b", *places, *memory]
    stores = []
    for r in range(rows.rows):
        value = finish.value(f"v_load_n(sums[{r}], {columns.rows})", r, 0, columns.rows)
        stores.append((plus("y", r * n), value))
    head = wrapped(f"static K_NOINLINE void {name}(", parameters)
    return {"name": name, "head": head, "rows": rows, "columns": columns, "stores": stores}


KERNELS = (MatMulDot(),)
