"""Attention on AMX's tiles: bf16, or bf16x3, three products of numbers split into two bfloat16.

Keys and values are rounded or split once a batch, 32 queries at a time. A block of 32 x 32 scores
goes through the epilogue where it lies, beside the products of the next one. Weights take the place
of scores, rounded or split, beside the products of weights and values before them: 16 queries x up
to 64 columns, so that each weight is loaded once. In bf16x3 a row of a block that isn't finite is
summed once more in float. Where positions mask scores, only blocks are met that some query sees.

Where the run counts queries or keys, and they are few, as for a decoder's word, it computes in
registers and floats: to round or split all keys would take longer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod

from atc.backends.cpu.amx.cost import PRODUCT
from atc.backends.cpu.amx.matmul import (
    BLOCK_END,
    PAIRS,
    ROW_END,
    SPLIT_PAIRS,
    STEP,
    panel_cycles,
)
from atc.backends.cpu.amx.row_blocks import SIDE
from atc.backends.cpu.amx.step_orders import in_pieces, row_order, step_orders
from atc.backends.cpu.attention.bf16 import MODES
from atc.backends.cpu.attention.tile import (
    ROUNDING,
    AttentionKernel,
    AttentionParams,
    AttentionTile,
    Operand,
    panel_mode,
    shown,
)
from atc.backends.cpu.matmul.cost import Panel, column_panels, vector_kinds
from atc.backends.cpu.matmul.text import EpilogueFunctions, plus, wrapped
from atc.backends.cpu.normalize.portable import lowest
from atc.backends.kernel import Params, Workload
from atc.backends.render.expr import address
from atc.backends.render.key_range import key_range
from atc.backends.render.loops import loop_names
from atc.backends.render.vector_expr import lanes, rounded_vector
from atc.backends.target import Target
from atc.dims import concrete, is_dynamic, lower_bound, max_value
from atc.ir.graph import DType
from atc.ir.key_bounds import key_bounds
from atc.ir.ops import Attention
from atc.ir.view import View

PIECES = 8
"""Parts of a step's instructions, between which vectors compute: alone they'd wait for tiles."""
WEIGHED = 12.0
"""Cycles to make a vector of weights, beside products in tiles."""
FEW, FEW_SCORES = 16, 9000
"""Queries and scores of a batch from which on tiles take less time than registers."""
DRAINED, ROW_MADE = 300.0, 30.0
"""Cycles of the last scores of a block of queries, and of a row's maximum and sum."""


@dataclass(frozen=True)
class Steps:
    """Steps of both products, of which those of keys are panels too, and what is left for the last;
    panels of values and their tiles; where the parts of scratch begin (in floats), and its size.

    Scratch has room for the `most` steps of keys, wherever a run has fewer.
    """

    depth: int
    depth_rest: int
    keys: int
    keys_rest: int
    most: int
    value_panels: int
    value_tiles: int
    sums: int
    queries: int
    key_room: int
    value_room: int
    size: int


def in_steps(op: Attention, planes: int) -> Steps:
    """Return how an attention is cut."""
    depth, keys = -(-op.depth // STEP), -(-op.keys // STEP)
    tiles = 2 if op.width <= SIDE else 4
    value_panels = -(-op.width // (16 * tiles))
    step = SIDE * 16 * planes
    most = max_value(keys)
    sums = most * SIDE * SIDE
    queries = sums + SIDE * SIDE
    key_room = queries + depth * step
    value_room = key_room + most * depth * step
    size = value_room + value_panels * most * step * tiles // 2
    return Steps(
        depth, op.depth - (depth - 1) * STEP, keys, op.keys - (keys - 1) * STEP, most,
        value_panels, tiles, sums, queries, key_room, value_room, size,
    )  # fmt: skip


class AttentionAmx(AttentionKernel[Params]):
    """float Attention in tiles, one product of bfloat16."""

    name = "attention_amx_bf16"
    template = "cpu/amx/attention.c.j2"
    precision = "bf16"
    headers = ("bf16", "tiles")
    elements = PAIRS
    dynamic = True

    @property
    def planes(self) -> int:
        """Parts of a number."""
        return self.elements.planes

    def accepts(self, w: Workload[Attention], target: Target) -> bool:
        """Accept the float kernel's workloads, but sizes of keys and values that are known."""
        able = {"amx_tile", "amx_bf16"} <= target.features and lanes(target) == 16
        if not able or is_dynamic((w.op.depth, w.op.width)):
            return False
        if is_dynamic((w.op.queries, w.op.keys)) and max_value(w.op.queries) < FEW:
            return False
        seen = shown(w)
        return seen is not None and super().accepts(seen, target)

    def scratch(self, w: Workload[Attention], params: Params, target: Target) -> int:
        """Scores, queries and weights of a block of rows, a block's sums, all keys and values.

        Or what registers take.
        """
        size, registers = 4 * in_steps(w.op, self.planes).size, _registers(w, target)
        if registers is None:
            return size
        return max(size, max_value(_TILE.scratch(w, registers, target)))

    def values(self, w: Workload[Attention], params: Params, target: Target) -> dict[str, object]:
        """Return the steps, how all operands are read, and both epilogues."""
        op, steps = w.op, in_steps(w.op, self.planes)
        e = self.elements
        batch = loop_names("b", op.batch)
        outer = tuple(v for v, _ in batch)
        ranges, scores = shown(w) is not w, op.scores
        if ranges:
            present = [t is not None for t in w.inputs[3 : 3 + len(scores.views)]]
            scores = replace(scores, expr=key_bounds(scores, present).shown)
        q, k, v = (Operand.of(x, outer, SIDE) for x in (op.q_view, op.k_view, op.v_view))
        exact = (q.rows, q.columns, k.rows, k.columns) if self.planes > 1 else ()
        score = EpilogueFunctions(scores, outer, 3, "block_score", is_dynamic((op.keys, *exact)))
        result = EpilogueFunctions(op.result, outer, 3 + len(op.scores.views), "row_finish")
        key_panels = column_panels(op.keys, 2, 16)
        value_panels = column_panels(op.width, steps.value_tiles, 16)
        y = address(View((*op.y_view.strides[:-1], 1), op.y_view.offset), [*outer, "i", "j"])
        registers = _registers(w, target)
        tiles = 1 if max_value(op.queries) <= 16 else 2
        each = -(-SIDE // (steps.depth * PIECES))
        given = _given(score, self.planes > 1, ranges)
        scored = [_scored(score, p, given) for p in key_panels]
        return {
            "op": op, "batch": batch, "steps": steps, "planes": self.planes, "tiles": tiles,
            "e": e, "modes": MODES,
            "few": f"{op.queries} < {FEW} || {op.queries} * {op.keys} < {FEW_SCORES}",
            "registers": registers and _TILE.values(w, registers, target),
            "open": {
                name: is_dynamic(read) for name, read in (
                    ("q", (q.rows, q.columns)), ("k", (k.rows, k.columns)),
                    ("scores", exact), ("v", (op.keys, v.rows, v.columns)),
                )
            },
            "orders": in_pieces(step_orders(e.terms, 0)[tiles], PIECES), "each": each,
            "q": q, "k": k, "v": v,
            "score_placed": self.planes > 1 or "i" in score.places,
            "epilogues": [*_functions(score, key_panels), *_functions(result, value_panels)],
            "scored": scored, "last": _last(op, scored, ranges),
            "finished": [
                {**_finished(result, p),
                 "orders": row_order(e.terms, p.vectors, 256 * steps.value_tiles, PIECES)}
                for p in value_panels
            ],
            "seen": key_range(w, outer, "(first + r)", "(first + r)").lines if ranges else (),
            "score_arguments": [*given.values(), *score.extras],
            "value_arguments": "".join(f", {x}" for x in (*result.places, *result.extras)),
            "start": lowest(DType.FLOAT) if op.masked else "-INFINITY",
            "value_placed": "i" in result.places or bool(op.y_view.strides[-2]), "y": y,
            "rounded": [rounded_vector(op.weights, x) for x in ("low", "high")],
        }  # fmt: skip

    def cost(self, w: Workload[Attention], params: Params, target: Target) -> float:
        """Cycles of products, of weighing beside them, of splitting, and of the ends of blocks."""
        op, s = w.op, in_steps(w.op, self.planes)
        blocks, halves = -(-op.queries // SIDE), -(-op.queries // 16)
        tile = len(self.elements.terms) * PRODUCT
        cycles = blocks * (s.keys * (4 * s.depth * tile + BLOCK_END) + DRAINED)
        weighing = 2 * (WEIGHED + self.planes + (ROUNDING if op.weights else 0))
        values = s.value_tiles * halves * tile
        cycles += s.keys * (max(op.queries * weighing, values) + (s.value_panels - 1) * values)
        narrow = s.value_panels * s.value_tiles // 2
        cycles += op.queries * (ROW_MADE + ROW_END * (s.depth + narrow))
        for view, count in ((op.k_view, s.depth * s.keys), (op.v_view, s.keys * narrow)):
            cycles += count * panel_cycles(MODES[panel_mode(view)], self.planes)
        return prod(op.batch) * cycles + 600.0


class AttentionAmxSplit(AttentionAmx):
    """float Attention in tiles, three products of split parts."""

    name = "attention_amx_bf16x3"
    precision = "bf16x3"
    elements = SPLIT_PAIRS


_TILE = AttentionTile()


def _registers(w: Workload[Attention], target: Target) -> AttentionParams | None:
    """Return the register tiles of few queries or keys; None where there never are so few."""
    queries, keys = w.op.queries, w.op.keys
    low = lower_bound(queries)
    if not is_dynamic((queries, keys)) or (low >= FEW and low * lower_bound(keys) >= FEW_SCORES):
        return None
    largest = concrete(w)
    found = _TILE.parameters(w, target)
    return min(found, key=lambda params: _TILE.cost(largest, params, target))


def _last(
    op: Attention, scored: Sequence[Mapping[str, object]], ranges: bool
) -> list[tuple[str, str]]:
    """Return the functions that finish the last scores, and when each does in C.

    Where a query sees but a range of keys, the last block may be a whole one.
    """
    found: list[tuple[str, str]] = []
    for f in scored if ranges or is_dynamic(op.keys) else scored[-1:]:
        panel = f["panel"]
        assert isinstance(panel, Panel)
        conditions = ["from < stop"] * ranges
        if f is not scored[-1]:
            whole = f"{'stop' if ranges else -(-op.keys // SIDE)} <= {panel.count}"
            conditions.append(f"{panel.columns} <= {16 * panel.vectors}" if panel.part else whole)
        found.append((str(f["name"]), " && ".join(conditions)))
    return found


def _functions(finish: EpilogueFunctions, panels: Sequence[Panel]) -> list[dict[str, object]]:
    return finish.functions(*vector_kinds(panels))


def _given(score: EpilogueFunctions, exact: bool, ranges: bool) -> dict[str, str]:
    """Return what finishes scores is told beside their places: parameters and arguments."""
    told = [x for x in score.places if x not in ("i", "j")]
    told += ["first"] * (exact or "i" in score.places)
    told += ["j"] * (exact or ranges or "j" in score.places)
    given = {f"ptrdiff_t {x}": x for x in told}
    given |= {f"const float *all_{x}": f"all_{x}" for x in "qk" if exact}
    return given | {f"const ptrdiff_t *{x}": x for x in ("begins", "ends") if ranges}


def _scored(
    finish: EpilogueFunctions, panel: Panel, given: Mapping[str, str]
) -> dict[str, object]:
    """Return the function that finishes rows of 32 scores: beyond the keys minus infinity."""
    values = []
    for v in range(2):
        part = panel.part if v == panel.vectors - 1 else 0
        value = finish.value(f"v_load({plus('s', 16 * v)})", 0, 16 * v, part)
        if v == panel.vectors:
            value = "v_set1(-INFINITY)"
        elif part:
            value = f"v_select(v_mask_n({part}), {value}, v_set1(-INFINITY))"
        values.append(value)
    name = f"finish_scores_{panel.name}"
    rows = ["float *block", "float *most", "ptrdiff_t begin", "ptrdiff_t count", "ptrdiff_t rows"]
    _, (_, *extras) = finish.parameters
    head = wrapped(f"static inline void {name}(", [*rows, *given, *extras])
    return {"name": name, "head": head, "panel": panel, "values": values}


def _finished(finish: EpilogueFunctions, panel: Panel) -> dict[str, object]:
    """Return the function that stores a row's results, times `scale`."""
    places, (y, *extras) = finish.parameters
    lines = ["const vf32 factor = v_set1(scale);"]
    for v in range(panel.vectors):
        part = panel.part if v == panel.vectors - 1 else 0
        value = f"v_mul(v_load({plus('sums', 16 * v)}), factor)"
        lines.append(finish.store(plus("y", 16 * v), value, 0, 16 * v, part))
    name = f"finish_values_{panel.name}"
    parameters = ["const float *sums", "float scale", y, *places, *extras]
    head = wrapped(f"static inline void {name}(", parameters)
    return {"name": name, "head": head, "panel": panel, "lines": lines}


KERNELS = (AttentionAmx(), AttentionAmxSplit())
