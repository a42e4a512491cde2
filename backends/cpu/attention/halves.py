"""Attention of 16-bit floats in register tiles of floats: panels and queries are widened.

Every number is computed as from tensors of floats.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import prod

from atc.backends.cpu.attention.tile import (
    AttentionParams,
    AttentionTile,
    Layout,
    Operand,
    Product,
    panel_mode,
)
from atc.backends.kernel import Workload
from atc.backends.render.stored_weights import Weights
from atc.backends.render.vector_expr import FLOATS, lanes
from atc.backends.target import Target
from atc.dims import is_dynamic
from atc.ir.graph import DType
from atc.ir.ops import Attention

WIDENED = 1.5
"""Cycles to widen a vector of queries or values and store it."""


class AttentionHalves(AttentionTile):
    """Attention in register tiles where operands or results have 16 bits."""

    name = "attention_halves"
    kinds = FLOATS
    dynamic = False
    dots = False

    def accepts(self, w: Workload[Attention], target: Target) -> bool:
        """Accept the float kernel's workloads of known extents, some of them of 16 bits."""
        some = any((*_halves(w), w.outputs[0].dtype.is_half))
        return some and not is_dynamic(w) and super().accepts(w, target)

    def room(self, w: Workload[Attention], width: int, step: int) -> Layout:
        """Return the sizes of what the float kernel needs, and of panels and queries of floats."""
        op, found = w.op, super().room(w, width, step)
        q, k, v = _halves(w)
        return replace(
            found,
            keys=-(-op.keys // width) * width * op.depth if k else found.keys,
            values=-(-op.width // width) * width * op.keys if v else found.values,
            query=-(-op.depth // step) * step if q else 0,
        )

    def operands(
        self, w: Workload[Attention], outer: Sequence[str], width: int
    ) -> tuple[Operand, Operand, Operand]:
        """Return how queries, keys and values are read: in panels, where they have 16 bits."""
        q, *others = super().operands(w, outer, width)
        k, v = (
            replace(x, mode="rows" if x.mode == "direct" else x.mode, step=width,
                    stored=Weights(w.input(i).dtype)) if half else x
            for i, (x, half) in enumerate(zip(others, _halves(w)[1:], strict=True), 1)
        )  # fmt: skip
        return replace(q, stored=Weights(w.input(0).dtype)), k, v

    def products(
        self, op: Attention, sizes: Layout, operands: Sequence[Operand], width: int, step: int
    ) -> tuple[Product, Product]:
        """Return the products of the float kernel, of queries in scratch where they are widened."""
        scores, results = super().products(op, sizes, operands, width, step)
        return replace(scores, am=sizes.query, ak=1) if sizes.query else scores, results

    def cost(self, w: Workload[Attention], params: AttentionParams, target: Target) -> float:
        """Return the cycles of the float kernel, and those of widening what that reads in place."""
        op, step = w.op, lanes(target)
        read = [op.queries * op.depth]
        views = ((op.k_view, op.depth), (op.v_view, op.width))
        read += [op.keys * n for view, n in views if panel_mode(view) == "direct"]
        vectors = sum(n / step for n in read) * any(_halves(w))
        widened = Weights(DType.FLOAT16).widening(target) + WIDENED
        return super().cost(w, params, target) + prod(op.batch) * vectors * widened


def _halves(w: Workload[Attention]) -> tuple[bool, ...]:
    """Return which of queries, keys and values have 16 bits."""
    return tuple(t is not None and t.dtype.is_half for t in w.inputs[:3])


KERNELS = (AttentionHalves(),)
