"""Attention in bfloat16 with AVX512_BF16: the float kernel's tiles, with pairs for numbers.

Keys, values and a few queries at a time are rounded to pairs in scratch; scores are summed and
turned to weights in float32, which are rounded where they lie, half as long.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from atc.backends.cpu.attention.tile import (
    EXPONENTIAL,
    AttentionText,
    AttentionTile,
    Layout,
    Operand,
    any_whole,
    panel_mode,
    product_cycles,
    tile_arguments,
)
from atc.backends.cpu.matmul.bf16 import CONVERTED
from atc.backends.cpu.matmul.cost import TileParams, column_panels, row_tiles
from atc.backends.cpu.matmul.text import TileFinish
from atc.backends.cpu.normalize.portable import lowest
from atc.backends.kernel import Workload
from atc.backends.render.expr import address
from atc.backends.render.loops import loop_names
from atc.backends.render.vector_expr import lanes
from atc.backends.target import Target
from atc.dims import is_dynamic
from atc.ir.graph import DType
from atc.ir.ops import Attention
from atc.ir.view import View

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
        """Accept the float kernel's workloads, of extents that are known."""
        able = "avx512_bf16" in target.features and lanes(target) == 16
        return able and not is_dynamic(w) and super().accepts(w, target)

    def scratch(self, w: Workload[Attention], params: TileParams, target: Target) -> int:
        """Panels of keys and values, and the queries and scores of a tile."""
        p = in_bf16x2(w.op, params.nv * lanes(target), lanes(target))
        return 4 * (p.keys + p.values + params.mr * (p.row + p.query))

    def values(
        self, w: Workload[Attention], params: TileParams, target: Target
    ) -> dict[str, object]:
        """Tiles of scores and results, how all operands are read, and the epilogues."""
        op, step = w.op, lanes(target)
        batch = loop_names("b", op.batch)
        outer = tuple(v for v, _ in batch)
        nv = params.nv
        width = nv * step
        tiles = row_tiles(op.queries, params.mr)
        pairs = in_bf16x2(op, width, step)
        score = TileFinish(op.scores, outer, 3, "score")
        result = TileFinish(op.result, outer, 3 + len(op.scores.views), "finish")
        key_panels = column_panels(op.keys, nv, step)
        value_panels = column_panels(op.width, nv, step)
        text = AttentionText(op, Layout(0, 0, pairs.row), step, score, result)
        q, k, v = (Operand.of(x, outer, width) for x in (op.q_view, op.k_view, op.v_view))
        return {
            "op": op, "batch": batch, "tiles": tiles, "lanes": step, "width": width,
            "key_panels": key_panels, "value_panels": value_panels, "pairs": pairs,
            "finishes": [
                *score.functions(any_whole(key_panels), any(p.part for p in key_panels)),
                *result.functions(any_whole(value_panels), any(p.part for p in value_panels)),
            ],
            "score_tiles": [text.score(p, t) for p in key_panels for t in tiles],
            "value_tiles": [text.value(p, t) for p in value_panels for t in tiles],
            "score_arguments": tile_arguments(score), "value_arguments": tile_arguments(result),
            "start": lowest(DType.FLOAT) if op.masked else "-INFINITY", "modes": MODES,
            "q": q, "k": k, "v": v, "vectors": -(-op.keys // step),
            "y": address(View((*op.y_view.strides[:-1], 1), op.y_view.offset), [*outer, "i", "j"]),
        }  # fmt: skip

    def cost(self, w: Workload[Attention], params: TileParams, target: Target) -> float:
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
