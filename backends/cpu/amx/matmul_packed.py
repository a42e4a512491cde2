"""MatMulPacked in AMX's tiles: panels of packed weights become pairs of bfloat16 in scratch.

Where kernels may round rows to INT8, rows and weights are rounded to bfloat16 instead, which errs
less. Else a float of x is three bfloat16, and a weight times its scale two where that has no more
bits, or three: of their products those below 2^-24 of the largest are left out, and sums err no
more than those of floats.

Few rows take the register tiles that read the same packed weights.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import ceil

from atc.backends.cpu.amx.cost import COMPARED, FIRST, end_cycles, l2_share, splitting
from atc.backends.cpu.amx.matmul import (
    PAIRS,
    STEP,
    Elements,
    Shape,
    Text,
    step_cycles,
)
from atc.backends.cpu.amx.products import LINE
from atc.backends.cpu.amx.row_blocks import SIDE, cut_rows
from atc.backends.cpu.matmul.packed_int8 import MatMulFixedPointTile, MatMulRoundingTile
from atc.backends.cpu.matmul.shared_panels import SharedParams
from atc.backends.cpu.matmul.text import EpilogueFunctions
from atc.backends.kernel import Workload
from atc.backends.target import Target
from atc.dims import is_dynamic, max_value
from atc.ir.graph import DType
from atc.ir.ops.quantize import MatMulPacked

FEW = 24
"""Rows from which on unpacking panels takes less time than register tiles."""
UNPACKED = (3.5, 6.0, 9.0)
"""Cycles to make pairs of two vectors of weights, in so many parts."""
FIVE_TERMS = ((1, 1), (0, 1), (0, 0), (1, 0), (2, 0))
SIX_TERMS = ((0, 2), (0, 1), (1, 1), (1, 0), (0, 0), (2, 0))
"""Products of numbers in three parts by those in two or three, one operand new at a time."""
NARROW, WIDE = (replace(PAIRS, planes=3, terms=terms) for terms in (FIVE_TERMS, SIX_TERMS))


class _Unpacking(MatMulRoundingTile):
    """The common part: rows that the run counts, or many."""

    template = "cpu/amx/matmul_packed.c.j2"
    headers = ("bf16", "tiles")

    def elements(self, w: Workload[MatMulPacked]) -> Elements:
        """Return the parts of numbers, and which of them meet."""
        raise NotImplementedError

    def accepts(self, w: Workload[MatMulPacked], target: Target) -> bool:
        """Take steps of the depth that lie in a block."""
        op = w.op
        if not {"amx_tile", "amx_bf16"} <= target.features or op.block % STEP:
            return False
        many = max_value(op.m) if is_dynamic(op.m) else op.m
        return many >= FEW and op.blocks * op.block - op.k < STEP and super().accepts(w, target)

    def parameters(self, w: Workload[MatMulPacked], target: Target) -> Sequence[SharedParams]:
        """Return the register tiles that few rows take in the least time."""
        few = replace(w, op=replace(w.op, m=FEW - 1))
        tiles = super().parameters(w, target)
        return [min(tiles, key=lambda params: MatMulRoundingTile.cost(self, few, params, target))]

    def high(self, w: Workload[MatMulPacked], nv: int, target: Target) -> int:
        """Few rows at most."""
        return min(FEW - 1, super().high(w, nv, target))

    def parts(self, op: MatMulPacked) -> tuple[int, int, int]:
        """Return where in scratch steps and sums of few rows begin, and where they end."""
        return super().parts(replace(op, m=FEW - 1))

    def shape(self, w: Workload[MatMulPacked], target: Target) -> Shape:
        """Return how many rows are cut: a cache holds a block of them beside a panel."""
        op, e = w.op, self.elements(w)
        steps, panels = op.blocks * op.block // STEP, -(-op.n // SIDE)
        blocks = cut_rows(op.m, steps * e.planes * LINE, l2_share(target.machine))
        return Shape(e, steps, steps, panels, blocks, split_b=True)

    def room(self, w: Workload[MatMulPacked], target: Target) -> int:
        """Return the bytes that one thread takes."""
        shape = self.shape(w, target)
        few = self.parts(w.op)[2] if is_dynamic(w.op.m) else 0
        return max(-(-few // LINE) * LINE, shape.room * shape.e.size)

    def scratch(self, w: Workload[MatMulPacked], params: SharedParams, target: Target) -> int:
        """Reserve a block of rows, two of results, and a panel of weights."""
        return self.room(w, target) * params.partitions

    def values(
        self, w: Workload[MatMulPacked], params: SharedParams, target: Target
    ) -> dict[str, object]:
        """Return how panels are unpacked, a step's instructions, and tiles of few rows."""
        op, shape, parts = w.op, self.shape(w, target), params.partitions
        room, zeros, dynamic = self.room(w, target), w.inputs[3] is not None, is_dynamic(op.m)
        text = Text(EpilogueFunctions(op.epilogue, (), 4), shape.e)
        few = super().values(w, params, target)
        few["parts"] = (*self.parts(op)[:2], room)
        operands = ", ".join(["x1", "x2", *["x3"] * zeros])
        return {
            **few, "few": FEW if dynamic else 0,
            "batch": [], "e": shape.e, "mode": "unpacked", "shape": shape, "text": text,
            "multiplying": shape.functions(0, target.machine),
            "lines": 0, "shared": False, "asked": 0,
            "exact": False, "each": -(-SIDE // shape.deep),
            "first_panel": f"partition * {shape.panels} / {parts}" if parts > 1 else 0,
            "last_panel": f"(partition + 1) * {shape.panels} / {parts}" if parts > 1
            else shape.panels,
            "room": f"(float *)scratch + partition * {room // 4}" if parts > 1 else "scratch",
            "place_panel": f"unpack_panel({operands}, g, split_b)",
            "epilogues": text.finish.functions(op.n >= 16, op.n % 16 != 0),
            "a_type": "float", "y_type": "float", "a_base": "0", "am": op.k, "ak": 1, "b_base": "0",
            "y_base": "0", "rest": op.k - (shape.steps - 1) * STEP, "place": "split_rows",
            "scale_type": w.input(2).dtype.c, "tail": 0 < op.n % SIDE <= SIDE // 2,
        }  # fmt: skip

    def cost(self, w: Workload[MatMulPacked], params: SharedParams, target: Target) -> float:
        """Cycles of products, of unpacking and of splitting, and waiting for memory."""
        op, shape = w.op, self.shape(w, target)
        e, steps, tiles = shape.e, shape.steps, ceil(op.m / SIDE) * shape.panels
        passes = sum(b.count for b in shape.blocks)
        cycles = tiles * (steps * step_cycles(e) + 2 * SIDE * end_cycles(w))
        cycles += passes * shape.panels * steps * SIDE * UNPACKED[e.b_planes - 1]
        cycles += op.m * steps * splitting(min(e.planes, 2))
        return COMPARED * (cycles + op.n * op.k * op.bits / 8 / FIRST + 600.0)


class MatMulPackedAmx(_Unpacking, MatMulFixedPointTile):
    """MatMulPacked of floats in three parts."""

    name = "matmul_packed_amx"

    def elements(self, w: Workload[MatMulPacked]) -> Elements:
        """Weights of 4 bits times scales of 11 have two parts."""
        narrow = w.op.bits == 4 and w.input(2).dtype is DType.FLOAT16
        return NARROW if narrow else WIDE


class MatMulPackedAmxRounded(_Unpacking):
    """MatMulPacked of rounded rows."""

    name = "matmul_packed_amx_bf16"

    def elements(self, w: Workload[MatMulPacked]) -> Elements:
        """One part of everything."""
        return PAIRS


KERNELS = (MatMulPackedAmx(), MatMulPackedAmxRounded())
