"""Portable kernel of Resample: weighted sums of rows by tables."""

from __future__ import annotations

from atc.backends.kernel import Kernel, Params, Workload
from atc.backends.render.expr import load
from atc.backends.render.vector_expr import lanes
from atc.backends.target import Target
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

    def values(self, w: Workload[Resample], params: Params, target: Target) -> dict[str, object]:
        """Extents and the terms of the sum."""
        op, x = w.op, w.input(0).dtype
        out = w.outputs[0].dtype
        convert = "" if x is out or x.is_half and out.label == "f32" else f"({out.c})"
        at = "i" if op.inner != 1 else "0"
        return {
            "op": op,
            "type": out.c,
            "element": x.c,
            "unrolled": op.taps <= UNROLLED,
            "terms": [f"w{t} * {convert}{load(x, f'row{t}[{at}]')}" for t in range(op.taps)],
            "term": f"w * {convert}{load(x, f'row[{at}]')}",
        }

    def cost(self, w: Workload[Resample], params: Params, target: Target) -> float:
        """Return the cycles of rows, in vectors where a row has enough elements."""
        op, wide = w.op, lanes(target)
        rows = op.outer * op.out
        vectors = op.inner // wide
        alone = op.inner - vectors * wide
        return rows * (ROW + (VECTOR * vectors + ELEMENT * alone) * (op.taps + 1))


KERNELS = (ResampleRows(),)
