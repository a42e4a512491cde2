"""Kernels of Resample: weighted sums of rows by tables."""

from __future__ import annotations

from atc.backends.kernel import Kernel, Params, Workload
from atc.backends.render.expr import load, store
from atc.backends.render.vector_expr import FLOATS, LOADS, STORES, lanes
from atc.backends.target import Target
from atc.dims import is_dynamic
from atc.ir.ops.sampling import Resample

UNROLLED = 4
"""Taps up to which the sum is one expression: linear and cubic interpolation."""

ROW, VECTOR, ELEMENT = 4.0, 0.8, 0.9
"""Cycles of a row of results, and of each operand and result of a vector or of an element."""


class ResampleRows(Kernel[Resample]):
    """Resample as a sum of rows of `inner` elements; of single ones where the axis is the last."""

    name = "resample"
    op = Resample
    template = "cpu/special/resample.c.j2"
    dynamic = True

    def accepts(self, w: Workload[Resample], target: Target) -> bool:
        """Results of 16 bits of few taps only: they can't hold the sum meanwhile."""
        return not w.outputs[0].dtype.is_half or w.op.taps <= UNROLLED

    def values(self, w: Workload[Resample], params: Params, target: Target) -> dict[str, object]:
        """Extents and the terms of the sum."""
        op, x = w.op, w.input(0).dtype
        y = w.outputs[0].dtype
        out = y.computed
        convert = "" if x is out or x.is_half and out.label == "f32" else f"({out.c})"
        at = "i" if op.inner != 1 else "0"
        terms = [f"w{t} * {convert}{load(x, f'row{t}[{at}]')}" for t in range(op.taps)]
        return {
            "op": op,
            "type": out.c,
            "element": x.c,
            "stored": y.c,
            "unrolled": op.taps <= UNROLLED,
            "sum": store(y, " + ".join(terms)),
            "term": f"w * {convert}{load(x, f'row[{at}]')}",
        }

    def cost(self, w: Workload[Resample], params: Params, target: Target) -> float:
        """Return the cycles of rows, in vectors where a row has enough elements: of no halves."""
        op, halves = w.op, any(t.dtype.is_half for t in (w.input(0), *w.outputs))
        wide = 1 if halves else lanes(target)
        rows = op.outer * op.out
        vectors = op.inner // wide
        alone = op.inner - vectors * wide
        return rows * (ROW + (VECTOR * vectors + ELEMENT * alone) * (op.taps + 1))


class ResampleVectors(Kernel[Resample]):
    """Resample of whole vectors of floats, or of 16 bits of them."""

    name = "resample_simd"
    op = Resample
    template = "cpu/special/resample_vectors.c.j2"
    portable = False

    def accepts(self, w: Workload[Resample], target: Target) -> bool:
        """Rows of known numbers of whole vectors, few taps."""
        op, kinds = w.op, {w.input(0).dtype, w.outputs[0].dtype}
        known = not is_dynamic(w) and op.taps <= UNROLLED and lanes(target) > 1
        return known and kinds.issubset(FLOATS) and op.inner % lanes(target) == 0

    def values(self, w: Workload[Resample], params: Params, target: Target) -> dict[str, object]:
        """Extents, and how vectors are read and stored."""
        x, y = w.input(0).dtype, w.outputs[0].dtype
        return {
            "op": w.op, "element": x.c, "stored": y.c, "load": LOADS[x], "store": STORES[y],
            "taps": range(w.op.taps),
        }  # fmt: skip

    def cost(self, w: Workload[Resample], params: Params, target: Target) -> float:
        """Return the cycles of rows in vectors."""
        op = w.op
        vectors = op.inner // lanes(target)
        return op.outer * op.out * (ROW + VECTOR * vectors * (op.taps + 1))


KERNELS = (ResampleVectors(), ResampleRows())
