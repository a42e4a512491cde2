"""Attention in register tiles: the scores of a few queries at a time, which stay in the cache.

For each batch the keys are laid out in panels once. Then, for mr queries at a time: scores of all
keys by mr x nv tiles, exponentials in place, and the weighted sum of the values by tiles of the
same height. Division by the sum of a row comes last, on its few results.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod

from atc.backends.cpu.matmul.cost import (
    Panel,
    Tile,
    TileParams,
    column_panels,
    row_tiles,
    tile_cycles,
)
from atc.backends.cpu.matmul.text import TileFinish, plus, spot, wrapped
from atc.backends.cpu.normalize.portable import lowest
from atc.backends.kernel import Kernel, ParamsT, Workload
from atc.backends.machine import Machine
from atc.backends.render.expr import address
from atc.backends.render.loops import loop_names
from atc.backends.render.vector_expr import lanes, vector_epilogue
from atc.backends.target import Target
from atc.dims import is_dynamic, low, most
from atc.ir.graph import DType, TensorType
from atc.ir.ops import Attention, Epilogue
from atc.ir.view import View

WIDTHS = (2, 3, 4)
"""Vectors of a panel, the most useful first."""
EXPONENTIAL = 14.0
"""Cycles per vector of scores: maximum, exponential, sum."""


def panel_mode(view: View) -> str:
    """Return how panels of a matrix are read: in place, or copied from `columns` or `any`thing."""
    if view.strides[-1] == 1:
        return "direct"
    return "columns" if view.strides[-2] == 1 else "any"


@dataclass(frozen=True)
class Layout:
    """Floats of scratch: panels of keys, panels of values, a row of scores."""

    keys: int
    values: int
    row: int


def layout(op: Attention, width: int, step: int) -> Layout:
    """Return the scratch for panels of `width` columns and vectors of `step` floats.

    A row of scores has room for the most keys, so that its stride is known.
    """
    keys = -(-op.keys // width) * width * op.depth if panel_mode(op.k_view) != "direct" else 0
    values = -(-op.width // width) * width * op.keys if panel_mode(op.v_view) != "direct" else 0
    row = -(-most(op.keys) // step) * step
    return Layout(keys, values, row + step if row % 1024 == 0 else row)  # not one set of the cache


def product_cycles(
    machine: Machine, op: Attention, params: TileParams, step: int, pair: int = 1
) -> float:
    """Return the cycles of all tiles of both products, which multiply `pair` numbers at a time."""
    cycles = 0.0
    for columns, depth in ((op.keys, op.depth), (op.width, op.keys)):
        for p in column_panels(columns, params.nv, step):
            for t in row_tiles(op.queries, params.mr):
                one = tile_cycles(machine, t.rows, p.vectors, step, -(-depth // pair), 1)
                cycles += p.count * t.count * one
    return cycles


class AttentionKernel(Kernel[Attention, ParamsT]):
    """The common part of float Attention in vectors and tiles."""

    op = Attention
    approximate = True
    portable = False

    def accepts(self, w: Workload[Attention], target: Target) -> bool:
        """Floats, both epilogues in vectors, results that lie side by side."""
        op = w.op
        floats = all(t is not None and t.dtype is DType.FLOAT for t in w.inputs)
        some = prod((*op.loops, op.depth)) != 0 and low(op.keys) > 0
        dense = op.width == 1 or op.y_view.strides[-1] == 1
        return floats and some and dense and all(
            vector_epilogue(e, replace(w, inputs=inputs), target, 0)
            for e, inputs in self._epilogues(w)
        )  # fmt: skip

    def _epilogues(
        self, w: Workload[Attention]
    ) -> list[tuple[Epilogue, tuple[TensorType | None, ...]]]:
        op = w.op
        split = 3 + len(op.scores.views)
        return [(op.scores, w.inputs[3:split]), (op.result, w.inputs[split:])]


class AttentionTile(AttentionKernel[TileParams]):
    """float Attention in register tiles."""

    name = "attention_tile"
    template = "cpu/attention/tile.c.j2"
    dynamic = True

    def parameters(self, w: Workload[Attention], target: Target) -> Sequence[TileParams]:
        """Tiles that fill the registers."""
        op = w.op
        wide = -(-max(most(op.keys), most(op.width)) // lanes(target))
        found: list[TileParams] = []
        for nv in WIDTHS:
            high = min((target.vector_registers - 1 - nv) // nv, most(op.queries))
            if nv <= max(wide, 2):
                found.append(TileParams(mr=row_tiles(op.queries, high)[0].rows, nv=nv))
        return found

    def scratch(self, w: Workload[Attention], params: TileParams, target: Target) -> int:
        """Panels of keys, and of values that aren't dense; the scores of a tile."""
        op = w.op
        sizes = layout(op, params.nv * lanes(target), lanes(target))
        return 4 * (sizes.keys + sizes.values + params.mr * sizes.row)

    def values(
        self, w: Workload[Attention], params: TileParams, target: Target
    ) -> dict[str, object]:
        """Tiles of scores and results, how all operands are read, and the epilogues."""
        op = w.op
        batch = loop_names("b", op.batch)
        outer = tuple(v for v, _ in batch)
        nv, step = params.nv, lanes(target)
        width = nv * step
        tiles = row_tiles(op.queries, params.mr)
        sizes = layout(op, width, step)
        q, k, v = (Operand.of(x, outer, width) for x in (op.q_view, op.k_view, op.v_view))
        inside = is_dynamic((op.depth, op.keys, q.rows, q.columns, k.step))
        score = TileFinish(op.scores, outer, 3, "score", inside)
        inside = is_dynamic((op.keys, op.width, v.step, op.y_view.strides[-2]))
        result = TileFinish(op.result, outer, 3 + len(op.scores.views), "finish", inside)
        key_panels = column_panels(op.keys, nv, step)
        value_panels = column_panels(op.width, nv, step)
        text = AttentionText(op, sizes, step, score, result)
        finishes = [
            *score.functions(any_whole(key_panels), any(p.part for p in key_panels)),
            *result.functions(any_whole(value_panels), any(p.part for p in value_panels)),
        ]
        return {
            "op": op, "batch": batch, "tiles": tiles, "lanes": step, "width": width,
            "key_panels": key_panels, "value_panels": value_panels, "finishes": finishes,
            "score_tiles": [text.score(p, t) for p in key_panels for t in tiles],
            "value_tiles": [text.value(p, t) for p in value_panels for t in tiles],
            "score_arguments": tile_arguments(score), "value_arguments": tile_arguments(result),
            "sizes": text.sizes, "start": lowest(DType.FLOAT) if op.masked else "-INFINITY",
            "q": q, "k": k, "v": v, "open": is_dynamic(op.keys),
            "key_copy_open": is_dynamic((op.depth, k.rows, k.columns)),
            "value_copy_open": is_dynamic((op.keys, v.rows, v.columns)),
            "y": address(View((*op.y_view.strides[:-1], 1), op.y_view.offset), [*outer, "i", "j"]),
        }  # fmt: skip

    def cost(self, w: Workload[Attention], params: TileParams, target: Target) -> float:
        """Cycles of all tiles, exponentials and copies."""
        op, step = w.op, lanes(target)
        cycles = product_cycles(target.machine, op, params, step)
        cycles += op.queries * -(-op.keys // step) * EXPONENTIAL
        per_element = {"columns": 2.5 / step, "any": 1.5, "direct": 0}
        cycles += op.keys * op.depth * per_element[panel_mode(op.k_view)]
        cycles += op.keys * op.width * per_element[panel_mode(op.v_view)]
        return prod(op.batch) * cycles


@dataclass(frozen=True)
class Operand:
    """The reading of an operand: the C address of a batch, its strides, and its panels."""

    base: str
    rows: int
    columns: int
    mode: str
    step: int
    """Elements from row to row of a panel."""

    @staticmethod
    def of(view: View, outer: Sequence[str], width: int) -> Operand:
        """Return how a view of an operand is read in panels of `width`."""
        base = address(View(view.strides[:-2], view.offset), outer)
        rows, columns = view.strides[-2:]
        mode = panel_mode(view)
        return Operand(base, rows, columns, mode, rows if mode == "direct" else width)


def any_whole(panels: Sequence[Panel]) -> bool:
    """Return whether a vector of any panel is whole."""
    return any(p.vectors > 1 or not p.part for p in panels)


def tile_arguments(finish: TileFinish) -> str:
    """Return what calls of a tile end in."""
    return "".join(f", {x}" for x in (*finish.places, *finish.extras))


@dataclass(frozen=True)
class AttentionText:
    """The C of the tiles' heads and results."""

    op: Attention
    sizes: Layout
    lanes: int
    score_finish: TileFinish
    result_finish: TileFinish

    def score(self, panel: Panel, tile: Tile) -> dict[str, object]:
        """Return a tile of scores: lanes beyond the keys are minus infinity, which weighs 0."""
        finish = self.score_finish
        places, (_, *extras) = finish.parameters
        parameters = ["const float *a", "const float *b", "float *s", *places, *extras]
        results = []
        for r, v, part in _vectors(panel, tile):
            value = finish.value(f"c{r}_{v}", r, v * self.lanes, part)
            if part:
                value = f"v_select(v_mask_n({part}), {value}, v_set1(-INFINITY))"
            results.append((plus("s", r * self.sizes.row + v * self.lanes), value, 0))
        return _function("score", panel, tile, parameters, results)

    def value(self, panel: Panel, tile: Tile) -> dict[str, object]:
        """Return a tile of results: weighted sums of values, divided by the weights' sums."""
        finish = self.result_finish
        places, (y, *extras) = finish.parameters
        parameters = ["const float *a", "const float *b", "const float *scale", y, *places, *extras]
        results = []
        for r, v, part in _vectors(panel, tile):
            scaled = f"v_mul(c{r}_{v}, v_broadcast({plus('scale', r)}))"
            value = finish.value(scaled, r, v * self.lanes, part)
            place = spot("y", r, self.op.y_view.strides[-2], v * self.lanes)
            results.append((place, value, part))
        return _function("value", panel, tile, parameters, results)


def _vectors(panel: Panel, tile: Tile) -> list[tuple[int, int, int]]:
    """Return row, vector, and the columns of a vector that isn't whole, of each accumulator."""
    last = panel.vectors - 1
    return [(r, v, panel.part if v == last else 0)
            for r in range(tile.rows) for v in range(panel.vectors)]  # fmt: skip


def _function(
    kind: str, panel: Panel, tile: Tile, parameters: Sequence[str],
    results: Sequence[tuple[str, str, int]],
) -> dict[str, object]:  # fmt: skip
    name = f"{kind}_{panel.name}_{tile.rows}"
    head = wrapped(f"static K_NOINLINE void {name}(", parameters)
    return {"name": name, "head": head, "panel": panel, "tile": tile, "results": results}


KERNELS = (AttentionTile(),)
