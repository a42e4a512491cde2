"""Attention in bfloat16 with AVX512_BF16: the float kernel's tiles, with pairs for numbers.

Keys, values and a few queries at a time are rounded to pairs in scratch; scores are summed and
made weights in float32, which are rounded where they lie, half as long.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from atc.backends.cpu.attention.tile import (
    EXPONENTIAL,
    AttentionParams,
    AttentionTile,
    Layout,
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


@dataclass(frozen=True)
class Bf16x2Operand:
    """Pairs of scratch: of a query, of a panel of keys and one of values, of all of both, of a row
    of scores (in floats)."""

    query: int
    key_panel: int
    value_panel: int
    keys: int
    values: int
    row: int


def in_bf16x2(op: Attention, width: int, step: int) -> Bf16x2Operand:
    """Return the sizes for panels of `width` columns and vectors of `step` floats."""
    query, weights = (-(-n // (2 * step)) * step for n in (op.depth, op.keys))
    keys, values = query * width, weights * width
    row = 2 * weights
    counts = [-(-n // width) for n in (op.keys, op.width)]
    crowded = row % 1024 == 0
    return Bf16x2Operand(
        query, keys, values, keys * counts[0], values * counts[1], row + step * crowded
    )


class AttentionBf16(AttentionTile):
    """float Attention in register tiles, products in bfloat16."""

    name = "attention_bf16"
    template = "cpu/attention/bf16.c.j2"
    precision = "bf16"
    headers = ("bf16",)
    dynamic = False

    def accepts(self, w: Workload[Attention], target: Target) -> bool:
        """Accept the float kernel's workloads, of extents that are known and without positions."""
        able = "avx512_bf16" in target.features and lanes(target) == 16
        known = None not in w.inputs and not is_dynamic(w)
        return able and known and super().accepts(w, target)

    def scratch(self, w: Workload[Attention], params: AttentionParams, target: Target) -> int:
        """Panels of keys and values, and the queries and scores of a tile."""
        p = in_bf16x2(w.op, params.nv * lanes(target), lanes(target))
        return 4 * (p.keys + p.values + params.mr * (p.row + p.query))

    def room(self, op: Attention, width: int, step: int) -> Layout:
        """Return the numbers of a row of scores; panels are of pairs, see `in_bf16x2`."""
        return Layout(0, 0, in_bf16x2(op, width, step).row)

    def values(
        self, w: Workload[Attention], params: AttentionParams, target: Target
    ) -> dict[str, object]:
        """Return the values of the float kernel, and the pairs."""
        op, step = w.op, lanes(target)
        return {
            **super().values(w, params, target), "pairs": in_bf16x2(op, params.nv * step, step),
            "modes": MODES, "vectors": -(-op.keys // step),
        }  # fmt: skip

    def cost(self, w: Workload[Attention], params: AttentionParams, target: Target) -> float:
        """Cycles of all tiles, of exponentials and of rounding."""
        op, step = w.op, lanes(target)
        cycles = product_cycles(target.machine, op, params, step, pair=2)
        cycles += op.queries * -(-op.keys // step) * (EXPONENTIAL + 1)
        rows = "rows" if op.q_view.strides[-1] == 1 else "any"
        cycles += op.queries * op.depth / step * CONVERTED[rows]
        cycles += op.keys * op.depth / step * CONVERTED[MODES[panel_mode(op.k_view)]]
        cycles += op.keys * op.width / step * CONVERTED[MODES[panel_mode(op.v_view)]]
        return prod(op.batch) * cycles


KERNELS = (AttentionBf16(),)
