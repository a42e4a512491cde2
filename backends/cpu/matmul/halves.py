"""MatMul of rows of halves by constants: blocks of rows become floats in scratch, then tiles.

A block is all of the depth of a few rows, or some of the depth of many: then the sums of a few
panels wait in scratch for the rest. Every number is computed as from a tensor of floats.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product
from math import prod

from atc.backends.cpu.matmul.tile import MatMulTile, TiledParams
from atc.backends.kernel import Pack, Workload
from atc.backends.render.stored_weights import Weights
from atc.backends.render.tile_geometry import largest_divisor
from atc.backends.render.vector_expr import LOADED_PARTS, LOADS, ROUNDED, lanes
from atc.backends.target import Target
from atc.dims import is_dynamic
from atc.ir.graph import DType, TensorType
from atc.ir.ops import MatMul

SPARED = 1 / 4
"""Part of what halves spare that scratch may take: of A, and of results of 16 bits."""
SMALL = 1 / 2
"""Part of the first-level cache that a block may always take."""
LITTLE = 1 / 16
"""Part of the second-level cache that scratch may always take: networks have more than that."""
DEPTHS = (512, 256, 128, 64)
"""Depths of a block of many rows."""
MANY = (256, 128)
"""Rows of such a block at most."""
GROUPS = (8, 4, 2, 1)
"""Panels of which sums wait: for each group all of A is widened once more."""
STORED, FARTHER = 1.5, 4.5
"""Cycles to store a widened vector in the first cache, or beyond it."""
WAITED = 1.5
"""Cycles to store a vector of sums that wait, and to read it again."""


@dataclass(frozen=True, kw_only=True)
class HalvesParams(TiledParams):
    """Those of tiles whose sums wait in scratch, `group` panels' at a time, where kb is given."""

    group: int = 0


class MatMulHalves(MatMulTile):
    """Dense rows of halves by constant B: a block of `mb` rows is made floats at a time."""

    name = "matmul_halves"
    template = "cpu/matmul/halves.c.j2"
    dynamic = False

    def accepts(self, w: Workload[MatMul], target: Target) -> bool:
        """Rows of 16-bit floats, dense and known; B and an epilogue as tiles of floats take."""
        x = w.inputs[0]
        if x is None or x.dtype not in ROUNDED or is_dynamic(w) or not w.constant[1]:
            return False
        return w.op.a_view.strides[-1] == 1 and super().accepts(_of_floats(w), target)

    def parameters(self, w: Workload[MatMul], target: Target) -> Sequence[TiledParams]:
        """Those of tiles of floats, in blocks whose scratch is a small part of what halves spare.

        Where there are none, the smallest. Tiles of one vector, which widen no weight twice but
        read as much as they multiply, aren't worth it beside wider ones.
        """
        every = [
            HalvesParams(**vars(p)) for p in super().parameters(_of_floats(w), target)
            if p.kb is None and p.mb is None and not p.interleave
        ]  # fmt: skip
        blocks = [
            b for p in [p for p in every if p.nv > 1] or every
            for b in dict.fromkeys((*self._rows(w, p, target), *self._depths(w, p, target)))
        ]  # fmt: skip
        room = self._room(w, target)
        sizes = [self.scratch(w, b, target) for b in blocks]
        most = max(room, min(sizes, default=0))
        return [b for b, size in zip(blocks, sizes, strict=True) if size <= most]

    def _room(self, w: Workload[MatMul], target: Target) -> int:
        """Return the bytes that scratch may take."""
        halves = (w.input(0), *w.outputs)
        spared = sum(t.nbytes for t in halves if t.dtype.is_half)
        machine = target.machine
        return int(max(SMALL * machine.l1.size, LITTLE * machine.l2.size, SPARED * spared))

    def _rows(
        self, w: Workload[MatMul], p: HalvesParams, target: Target
    ) -> Iterator[HalvesParams]:
        """Yield blocks of whole rows: for the first cache, or as many as there is room for."""
        m, row = w.op.m, 4 * w.op.k
        near = int(SMALL * target.machine.l1.size)
        for room in (near, self._room(w, target) - self.scratch(w, replace(p, mb=0), target)):
            yield replace(p, mb=min(m, max(int(p.mr), room // row // p.mr * p.mr)))

    def _depths(
        self, w: Workload[MatMul], p: HalvesParams, target: Target
    ) -> Iterator[HalvesParams]:
        """Yield blocks of the depth, with as many panels at a time as there is room for."""
        m, k, room = w.op.m, w.op.k, self._room(w, target)
        rows = dict.fromkeys(min(m, -(-m // -(-m // most) // p.mr) * p.mr) for most in MANY)
        depths = (largest_divisor(k, n) for n in DEPTHS if n < k)
        for mb, kb in product(rows, dict.fromkeys(n for n in depths if n >= DEPTHS[-1] // 2)):
            groups = (replace(p, mb=mb, kb=kb, group=n) for n in GROUPS)
            yield from [g for g in groups if self.scratch(w, g, target) <= room][:1]

    def packs(
        self, w: Workload[MatMul], params: TiledParams, target: Target
    ) -> dict[int, Pack]:
        """Pack constant B into panels of nv vectors."""
        return {**super().packs(_of_floats(w), params, target)}

    def packing(self, w: Workload[MatMul], params: TiledParams, target: Target) -> str:
        """Panels of as many columns are the same for any rows."""
        return super().packing(_of_floats(w), params, target)

    def scratch(self, w: Workload[MatMul], params: TiledParams, target: Target) -> int:
        """Reserve what tiles need, a block of A in floats, and the sums that wait."""
        held = self._depth(w, params) + self.waiting(params, target)
        rows = w.op.m if params.mb is None else params.mb
        return super().scratch(_of_floats(w), params, target) + 4 * rows * held

    def waiting(self, params: TiledParams, target: Target) -> int:
        """Return the columns of a group of panels, where the depth is cut."""
        assert isinstance(params, HalvesParams)
        return params.group * params.nv * lanes(target) if params.kb else 0

    def values(self, w: Workload[MatMul], params: TiledParams, target: Target) -> dict[str, object]:
        """Return what tiles of floats need, and how rows of A are widened."""
        x, op, depth = w.input(0), w.op, self._depth(w, params)
        assert isinstance(params, HalvesParams)
        place = super().scratch(_of_floats(w), params, target) // 4
        return {
            **super().values(_of_floats(w), params, target),
            "am": depth, "row_step": op.a_view.strides[-2], "rows_at": place,
            "sums_at": place + (params.mb or op.m) * depth, "group": params.group,
            "waiting": self.waiting(params, target),
            "load_a": LOADS[x.dtype], "load_part": LOADED_PARTS[x.dtype],
        }  # fmt: skip

    def cost(self, w: Workload[MatMul], params: TiledParams, target: Target) -> float:
        """Return the cycles of tiles of floats, and those in which rows become floats."""
        op, depth = w.op, self._depth(w, params)
        near = 4 * depth * (params.mb or op.m) <= target.machine.l1.size
        widened = Weights(w.input(0).dtype).widening(target) + (STORED if near else FARTHER)
        vectors = prod(op.batch) * op.m * -(-op.k // lanes(target))
        times = -(-op.n // (self.waiting(params, target) or op.n))
        waits = (op.k // depth - 1) * prod(op.batch) * op.m * -(-op.n // lanes(target))
        cycles = super().cost(_of_floats(w), params, target)
        return cycles + times * vectors * widened + waits * WAITED


def _of_floats(w: Workload[MatMul]) -> Workload[MatMul]:
    """Return the product of A as floats."""
    x = w.input(0)
    return replace(w, inputs=(TensorType(DType.FLOAT, x.shape), *w.inputs[1:]))


KERNELS = (MatMulHalves(),)
