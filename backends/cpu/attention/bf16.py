"""Attention in bfloat16 with AVX512_BF16: the float kernel's tiles, with pairs for numbers.

Keys, values and a few queries at a time are rounded to pairs in scratch; scores are summed and
made weights in float32, which are rounded where they lie, half as long; to nothing else before.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from atc.backends.cpu.attention.tile import (
    EXPONENTIAL,
    AttentionParams,
    AttentionTile,
    Layout,
    Operand,
    Product,
    panel_mode,
    product_cycles,
)
from atc.backends.cpu.matmul.bf16 import CONVERTED
from atc.backends.kernel import Workload
from atc.backends.render.vector_expr import lanes
from atc.backends.target import Target
from atc.dims import is_dynamic
from atc.ir.ops import Attention

MODES = {"direct": "rows", "columns": "columns", "any": "any"}
"""How panels of pairs are read, by how those of floats are."""


class AttentionBf16(AttentionTile):
    """float Attention in register tiles, products in bfloat16."""

    name = "attention_bf16"
    template = "cpu/attention/bf16.c.j2"
    precision = "bf16"
    headers = ("bf16",)
    dynamic = False
    dots = False
    pairs = True

    def accepts(self, w: Workload[Attention], target: Target) -> bool:
        """Accept the float kernel's workloads, of extents that are known and without positions."""
        able = "avx512_bf16" in target.features and lanes(target) == 16
        known = None not in w.inputs and not is_dynamic(w)
        return able and known and super().accepts(w, target)

    def room(self, w: Workload[Attention], width: int, step: int) -> Layout:
        """Return the sizes of panels and of a query in pairs, of a row of scores in floats."""
        op = w.op
        query, weights = (-(-n // (2 * step)) * step for n in (op.depth, op.keys))
        keys, values = (-(-n // width) * width for n in (op.keys, op.width))
        row = 2 * weights
        crowded = row % 1024 == 0
        return Layout(keys * query, values * weights, row + step * crowded, query)

    def products(
        self, op: Attention, sizes: Layout, operands: Sequence[Operand], width: int, step: int
    ) -> tuple[Product, Product]:
        """Return the products of pairs, in panels."""
        depth, keys, weights = -(-op.depth // 2), -(-op.keys // 2), -(-op.keys // (2 * step)) * step
        return (
            Product(depth, sizes.query, 1, width, sizes.query),
            Product(keys, sizes.row, 1, width, weights),
        )

    def values(
        self, w: Workload[Attention], params: AttentionParams, target: Target
    ) -> dict[str, object]:
        """Return the values of the float kernel, and how panels are read."""
        return {**super().values(w, params, target), "modes": MODES}

    def cost(self, w: Workload[Attention], params: AttentionParams, target: Target) -> float:
        """Cycles of all tiles, of exponentials and of rounding."""
        op, step = w.op, lanes(target)
        cycles = product_cycles(target.machine.of_pairs, op, params, step, pair=2)
        cycles += op.queries * -(-op.keys // step) * (EXPONENTIAL + 1)
        rows = "rows" if op.q_view.strides[-1] == 1 else "any"
        cycles += op.queries * op.depth / step * CONVERTED[rows]
        cycles += op.keys * op.depth / step * CONVERTED[MODES[panel_mode(op.k_view)]]
        cycles += op.keys * op.width / step * CONVERTED[MODES[panel_mode(op.v_view)]]
        return prod(op.batch) * cycles


KERNELS = (AttentionBf16(),)
