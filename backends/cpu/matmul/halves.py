"""MatMul of rows of halves by constants: blocks of rows become floats in scratch, then tiles.

Every number is computed as from a tensor of floats.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import prod

from atc.backends.cpu.matmul.tile import MatMulTile, TiledParams
from atc.backends.kernel import Pack, Workload
from atc.backends.render.stored_weights import Weights
from atc.backends.render.vector_expr import LOADED_PARTS, LOADS, ROUNDED, lanes
from atc.backends.target import Target
from atc.dims import is_dynamic
from atc.ir.graph import DType, TensorType
from atc.ir.ops import MatMul

PARTS = 8
"""Blocks of rows that A is cut into at least, but for small ones: scratch would take what is
spared."""
SMALL = 1 / 2
"""Part of the first-level cache that a block may always take."""
STORED, FARTHER = 1.5, 4.5
"""Cycles to store a widened vector in the first cache, or beyond it."""


class MatMulHalves(MatMulTile):
    """Dense rows of halves by constant B: those of `mb` rows are made floats at a time."""

    name = "matmul_halves"
    dynamic = False

    def accepts(self, w: Workload[MatMul], target: Target) -> bool:
        """Rows of 16-bit floats, dense and known; B and an epilogue as tiles of floats take."""
        x = w.inputs[0]
        if x is None or x.dtype not in ROUNDED or is_dynamic(w) or not w.constant[1]:
            return False
        return w.op.a_view.strides[-1] == 1 and super().accepts(_of_floats(w), target)

    def parameters(self, w: Workload[MatMul], target: Target) -> Sequence[TiledParams]:
        """Those of tiles of floats, in blocks of rows: for the first cache, or larger ones.

        Tiles of one vector, which widen no weight twice but read as much as they multiply, aren't
        worth it beside wider ones.
        """
        m, found = w.op.m, list[TiledParams]()
        near = int(SMALL * target.machine.l1.size) // (4 * w.op.k)
        every = super().parameters(_of_floats(w), target)
        for p in [p for p in every if p.nv > 1] or every:
            if p.kb is None and p.mb is None and not p.interleave:
                rows = (max(int(p.mr), most // p.mr * p.mr) for most in (near, m // PARTS))
                found += [replace(p, mb=mb) for mb in dict.fromkeys(min(m, n) for n in rows)]
        return found

    def packs(
        self, w: Workload[MatMul], params: TiledParams, target: Target
    ) -> dict[int, Pack]:
        """Pack constant B into panels of nv vectors."""
        return {**super().packs(_of_floats(w), params, target)}

    def packing(self, w: Workload[MatMul], params: TiledParams, target: Target) -> str:
        """Panels of as many columns are the same for any rows."""
        return super().packing(_of_floats(w), params, target)

    def scratch(self, w: Workload[MatMul], params: TiledParams, target: Target) -> int:
        """Reserve a block of rows of A in floats, beside what tiles need."""
        return super().scratch(_of_floats(w), params, target) + self._block(w, params)

    def _block(self, w: Workload[MatMul], params: TiledParams) -> int:
        return 4 * w.op.k * (params.mb or w.op.m) * params.partitions

    def values(self, w: Workload[MatMul], params: TiledParams, target: Target) -> dict[str, object]:
        """Return what tiles of floats need, and how rows of A are widened."""
        x, op = w.input(0), w.op
        found = super().values(_of_floats(w), params, target)
        place = super().scratch(_of_floats(w), params, target) // 4
        return {
            **found, "am": op.k, "row_step": op.a_view.strides[-2], "block": params.mb or op.m,
            "load_a": LOADS[x.dtype], "load_part": LOADED_PARTS[x.dtype], "behind": place,
        }

    def cost(self, w: Workload[MatMul], params: TiledParams, target: Target) -> float:
        """Return the cycles of tiles of floats, and those in which rows become floats."""
        near = self._block(w, params) <= target.machine.l1.size
        widened = Weights(w.input(0).dtype).widening(target) + (STORED if near else FARTHER)
        vectors = prod(w.op.batch) * w.op.m * -(-w.op.k // lanes(target))
        return super().cost(_of_floats(w), params, target) + vectors * widened


def _of_floats(w: Workload[MatMul]) -> Workload[MatMul]:
    """Return the product of A as floats."""
    x = w.input(0)
    return replace(w, inputs=(TensorType(DType.FLOAT, x.shape), *w.inputs[1:]))


KERNELS = (MatMulHalves(),)
