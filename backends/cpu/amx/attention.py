"""Attention on AMX's tiles: bf16, or bf16x3, three products of numbers split into two bfloat16.

Keys and values are rounded or split once a batch, 32 queries at a time. Their scores, 32 x 32 a
block, go through the epilogue into rows of floats; the weights made of them are rounded or split,
and meet the values. In bf16x3 a row of a block that isn't finite is summed once more in float.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from atc.backends.cpu.amx.cost import PRODUCT
from atc.backends.cpu.amx.matmul import (
    BLOCK_END,
    PAIRS,
    ROW_END,
    SIDE,
    SPLIT_PAIRS,
    STEP,
    panel_cycles,
)
from atc.backends.cpu.amx.step_orders import step_orders
from atc.backends.cpu.attention.bf16 import MODES
from atc.backends.cpu.attention.tile import (
    EXPONENTIAL,
    ROUNDING,
    AttentionKernel,
    Operand,
    panel_mode,
)
from atc.backends.cpu.matmul.cost import Panel, column_panels, vector_kinds
from atc.backends.cpu.matmul.text import EpilogueFunctions, wrapped
from atc.backends.cpu.normalize.portable import lowest
from atc.backends.kernel import Params, Workload
from atc.backends.render.expr import address
from atc.backends.render.loops import loop_names
from atc.backends.render.vector_expr import lanes, rounded_vector
from atc.backends.target import Target
from atc.dims import is_dynamic
from atc.ir.graph import DType
from atc.ir.ops import Attention
from atc.ir.view import View


@dataclass(frozen=True)
class Steps:
    """Steps of both products and what is left for the last; panels of keys and of values; where the
    parts of scratch begin (in floats), and its size."""

    depth: int
    depth_rest: int
    keys: int
    keys_rest: int
    key_panels: int
    value_panels: int
    row: int
    """Floats of a row of scores."""
    queries: int
    weights: int
    key_room: int
    value_room: int
    sums: int
    size: int


def in_steps(op: Attention, planes: int) -> Steps:
    """Return how an attention is cut."""
    depth, keys = -(-op.depth // STEP), -(-op.keys // STEP)
    key_panels, value_panels = keys, -(-op.width // SIDE)
    row = keys * STEP
    scores = SIDE * row
    step = SIDE * 16 * planes
    queries = scores + SIDE * SIDE
    weights = queries + depth * step
    key_room = weights + keys * step
    value_room = key_room + key_panels * depth * step
    size = value_room + value_panels * keys * step
    return Steps(
        depth, op.depth - (depth - 1) * STEP, keys, op.keys - (keys - 1) * STEP, key_panels,
        value_panels, row, queries, weights, key_room, value_room, scores, size,
    )  # fmt: skip


class AttentionAmx(AttentionKernel[Params]):
    """float Attention in tiles, one product of bfloat16."""

    name = "attention_amx_bf16"
    template = "cpu/amx/attention.c.j2"
    precision = "bf16"
    headers = ("bf16", "tiles")
    planes = 1

    def accepts(self, w: Workload[Attention], target: Target) -> bool:
        """Accept the float kernel's workloads, of extents that are known."""
        able = {"amx_tile", "amx_bf16"} <= target.features and lanes(target) == 16
        return able and not is_dynamic(w) and super().accepts(w, target)

    def scratch(self, w: Workload[Attention], params: Params, target: Target) -> int:
        """Scores, queries and weights of a block of rows, a block's sums, all keys and values."""
        return 4 * in_steps(w.op, self.planes).size

    def values(self, w: Workload[Attention], params: Params, target: Target) -> dict[str, object]:
        """Return the steps, how all operands are read, and both epilogues."""
        op, steps = w.op, in_steps(w.op, self.planes)
        e = SPLIT_PAIRS if self.planes == 2 else PAIRS
        batch = loop_names("b", op.batch)
        outer = tuple(v for v, _ in batch)
        score = EpilogueFunctions(op.scores, outer, 3, "score")
        result = EpilogueFunctions(op.result, outer, 3 + len(op.scores.views), "finish")
        key_panels = column_panels(op.keys, 2, 16)
        value_panels = column_panels(op.width, 2, 16)
        q, k, v = (Operand.of(x, outer, SIDE) for x in (op.q_view, op.k_view, op.v_view))
        y = address(View((*op.y_view.strides[:-1], 1), op.y_view.offset), [*outer, "i", "j"])
        return {
            "op": op, "batch": batch, "steps": steps, "planes": self.planes,
            "e": e, "modes": MODES, "order": step_orders(e.terms, 0)[2], "q": q, "k": k, "v": v,
            "epilogues": [*_functions(score, key_panels), *_functions(result, value_panels)],
            "scored": [_scored(score, p) for p in key_panels],
            "finished": [_finished(result, p) for p in value_panels],
            "score_arguments": "".join(f", {x}" for x in (*score.places, *score.extras)),
            "value_arguments": "".join(f", {x}" for x in (*result.places, *result.extras)),
            "start": lowest(DType.FLOAT) if op.masked else "-INFINITY",
            "score_placed": self.planes == 2 or "i" in score.places,
            "value_placed": "i" in result.places or bool(op.y_view.strides[-2]), "y": y,
            "rounded": [rounded_vector(op.weights, x) for x in ("low", "high")],
        }  # fmt: skip

    def cost(self, w: Workload[Attention], params: Params, target: Target) -> float:
        """Cycles of products, of splitting, of exponentials and epilogues."""
        op, s = w.op, in_steps(w.op, self.planes)
        rows, tiles = -(-op.queries // SIDE), {1: 4, 2: 12}[self.planes]
        blocks = rows * (s.key_panels + s.value_panels)
        products = rows * (s.key_panels * s.depth + s.value_panels * s.keys) * tiles * PRODUCT
        cycles = products + blocks * (BLOCK_END + SIDE * ROW_END)
        weighing = EXPONENTIAL + 2 * self.planes + (ROUNDING if op.weights else 0)
        cycles += op.queries * (s.row / 16 * weighing + s.depth * 12)
        for view, count in ((op.k_view, s.depth * s.keys), (op.v_view, s.keys * s.value_panels)):
            cycles += count * panel_cycles(MODES[panel_mode(view)], self.planes)
        return prod(op.batch) * cycles + 600.0


class AttentionAmxSplit(AttentionAmx):
    """float Attention in tiles, three products of split parts."""

    name = "attention_amx_bf16x3"
    precision = "bf16x3"
    planes = 2


def _functions(finish: EpilogueFunctions, panels: Sequence[Panel]) -> list[dict[str, object]]:
    return finish.functions(*vector_kinds(panels))


def _scored(finish: EpilogueFunctions, panel: Panel) -> dict[str, object]:
    """Return the function that stores a row's scores: beyond the keys minus infinity."""
    places, (_, *extras) = finish.parameters
    stores = []
    for v in range(2):
        part, at = panel.part if v == panel.vectors - 1 else 0, " + 16" if v else ""
        value = finish.value(f"v_load(sums{at})", 0, 16 * v, part)
        if v == panel.vectors:
            value = "v_set1(-INFINITY)"
        elif part:
            value = f"v_select(v_mask_n({part}), {value}, v_set1(-INFINITY))"
        stores.append(f"v_store(s{at}, {value});")
    name = f"score_{panel.name}"
    parameters = ["const float *sums", "float *s", *places, *extras]
    head = wrapped(f"static inline void {name}(", parameters)
    return {"name": name, "head": head, "panel": panel, "lines": stores}


def _finished(finish: EpilogueFunctions, panel: Panel) -> dict[str, object]:
    """Return the function that stores a row's results, times `scale`."""
    places, (y, *extras) = finish.parameters
    stores = ["const vf32 factor = v_set1(scale);"]
    for v in range(panel.vectors):
        part = panel.part if v == panel.vectors - 1 else 0
        at = " + 16" if v else ""
        stores.append(finish.store(f"y{at}", f"v_mul(v_load(sums{at}), factor)", 0, 16 * v, part))
    name = f"value_{panel.name}"
    parameters = ["const float *sums", "float scale", y, *places, *extras]
    head = wrapped(f"static inline void {name}(", parameters)
    return {"name": name, "head": head, "panel": panel, "lines": stores}


KERNELS = (AttentionAmx(), AttentionAmxSplit())
