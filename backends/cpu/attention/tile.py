"""Attention in register tiles: the scores of a few queries at a time, which stay in the cache.

For each batch the keys are laid out in panels once. Then, for mr queries at a time: scores of all
keys by mr x nv tiles, exponentials in place, and the weighted sum of the values by tiles of the
same height. Division by the sum of a row comes last, on its few results.

A few queries, as of a decoder's word, read keys where they are: scores are dot products, and heads
that share keys are the rows of tiles. Where positions mask scores, only keys are met that some row
of a tile sees.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import ClassVar

from atc.backends.cpu.attention.requests import key_requests
from atc.backends.cpu.matmul.cost import (
    Panel,
    Tile,
    TileParams,
    column_panels,
    row_tiles,
    tile_cycles,
    vector_kinds,
)
from atc.backends.cpu.matmul.operands import batch_base
from atc.backends.cpu.matmul.text import EpilogueFunctions, accumulators, plus, spot, wrapped
from atc.backends.cpu.normalize.portable import lowest
from atc.backends.kernel import Kernel, ParamsT, Workload
from atc.backends.machine import Machine
from atc.backends.render.expr import address
from atc.backends.render.key_range import key_range
from atc.backends.render.loops import loop_names
from atc.backends.render.stored_weights import FLOATS, Weights
from atc.backends.render.vector_epilogue import vector_epilogue
from atc.backends.render.vector_expr import lanes, rounded_vector
from atc.backends.target import Target
from atc.dims import is_dynamic, lower_bound, max_value
from atc.ir.expr import operands_of, renumber
from atc.ir.graph import DType, TensorType
from atc.ir.key_bounds import key_bounds
from atc.ir.ops import Attention, Epilogue
from atc.ir.view import View

WIDTHS = (2, 3, 4)
"""Vectors of a panel, the most useful first."""
FEW = 4
"""Queries from which on it pays to lay keys out in panels."""
DEEPEST = 256
"""Numbers of a key up to which a dot product is a sequence of statements."""
MOST_HEADS = 64
"""Heads of one group that are rows."""
EXPONENTIAL = 14.0
"""Cycles per vector of scores: maximum, exponential, sum."""
ROUNDING = 2.0
"""Cycles to round a vector of weights to 16 bits."""


@dataclass(frozen=True, kw_only=True)
class AttentionParams(TileParams):
    """Those of tiles of mr rows x nv vectors."""

    few: bool = False
    """Whether fewer queries than `FEW` are computed by dot products: so are those of a part of a
    call only where all of it is, lest results depend on the number of threads."""


def panel_mode(view: View) -> str:
    """Return how panels of a matrix are read: in place, or copied from `columns` or `any`thing."""
    if view.strides[-1] == 1:
        return "direct"
    return "columns" if view.strides[-2] == 1 else "any"


@dataclass(frozen=True)
class Layout:
    """Floats of scratch: panels of keys, panels of values, a row of scores, and a query where it is
    copied, too."""

    keys: int
    values: int
    row: int
    query: int = 0


@dataclass(frozen=True)
class Product:
    """The sums of one of both products: `depth` steps of tiles; A's steps from row to row and along
    them, B's from row to row."""

    depth: int
    am: int
    ak: int
    step: int
    panel: int
    """Rows that a panel of B has room for."""
    direct: bool = False
    """Whether B is read where it lies: its last vector may be a part of one."""


def layout(op: Attention, width: int, step: int) -> Layout:
    """Return the scratch for panels of `width` columns and vectors of `step` floats.

    A row of scores has room for the most keys, so that its stride is known.
    """
    keys = -(-op.keys // width) * width * op.depth if panel_mode(op.k_view) != "direct" else 0
    values = -(-op.width // width) * width * op.keys if panel_mode(op.v_view) != "direct" else 0
    row = -(-max_value(op.keys) // step) * step
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


def by_heads(op: Attention) -> Attention | None:
    """Return an attention of one query at a time, whose rows are the heads that share its keys.

    None where queries, keys or values aren't read along their numbers, or have too many.
    """
    along = (op.q_view.strides[-1], op.k_view.strides[-2], op.v_view.strides[-1]) == (1, 1, 1)
    if not along or is_dynamic(op.depth) or op.depth > DEEPEST:
        return None
    last = len(op.batch) - 1
    heads = op.batch[last] if op.batch else 1
    steps = (op.k_view.strides[last], op.v_view.strides[last]) if op.batch else (1,)
    shared = not is_dynamic(heads) and heads <= MOST_HEADS and steps == (0, 0)
    outer = last if shared else len(op.batch)

    def moved(view: View) -> View:
        *batch, row, column = view.strides
        return View((*batch[:outer], row, batch[last] if shared else 0, column), view.offset)

    def over_keys(view: View) -> View:
        return View((*view.strides[:outer], 0, *view.strides[-2:]), view.offset)

    def extras(epilogue: Epilogue) -> Epilogue:
        return replace(epilogue, views=tuple(moved(v) for v in epilogue.views))

    return replace(
        op, batch=(*op.batch[:outer], op.queries), queries=heads if shared else 1,
        q_view=moved(op.q_view), k_view=over_keys(op.k_view), v_view=over_keys(op.v_view),
        y_view=moved(op.y_view), scores=extras(op.scores), result=extras(op.result),
    )  # fmt: skip


def few_queries(
    w: Workload[Attention], target: Target
) -> tuple[Workload[Attention], AttentionParams] | None:
    """Return what computes a few queries, and in which tiles; None where there are never so few."""
    op = by_heads(w.op) if lower_bound(w.op.queries) < FEW else None
    if op is None:
        return None
    few = replace(w, op=op)
    nv = min(max(WIDTHS), -(-op.width // lanes(target)))
    high = max(1, (target.vector_registers - 1 - nv) // nv)
    tiles = AttentionParams(mr=row_tiles(op.queries, high)[0].rows, nv=nv)
    return (few, tiles) if shown(few) is not None else None


def shown(w: Workload[Attention]) -> Workload[Attention] | None:
    """Return a workload without the position masks of its scores; None if these are no bounds."""
    op, split = w.op, 3 + len(w.op.scores.views)
    present = [t is not None for t in w.inputs[3:split]]
    if all(present):
        return w
    bounds = key_bounds(op.scores, present)
    read = sorted({i.index for i in operands_of(bounds.shown) if i.index})
    if not bounds.whole or not all(present[k - 1] for k in read):
        return None
    expr = renumber(bounds.shown, {k: n for n, k in enumerate(read, 1)})
    scores = Epilogue(expr, tuple(op.scores.views[k - 1] for k in read))
    kept = [*range(3), *(2 + k for k in read), *range(split, len(w.inputs))]
    inputs, constant = (tuple(x[k] for k in kept) for x in (w.inputs, w.constant))
    return replace(w, op=replace(op, scores=scores), inputs=inputs, constant=constant)


class AttentionKernel(Kernel[Attention, ParamsT]):
    """The common part of float Attention in vectors and tiles."""

    op = Attention
    approximate = True
    portable = False
    kinds: ClassVar[tuple[DType, ...]] = (DType.FLOAT,)
    """The types of operands and results."""

    def accepts(self, w: Workload[Attention], target: Target) -> bool:
        """Floats, both epilogues in vectors, results that lie side by side."""
        op = w.op
        floats = all(t is not None and t.dtype in self.kinds for t in w.inputs[:3])
        some = prod((*op.loops, op.depth)) != 0 and lower_bound(op.keys) > 0
        dense = op.width == 1 or op.y_view.strides[-1] == 1
        return floats and some and dense and all(
            vector_epilogue(e, replace(w, inputs=inputs), target, 0, self.kinds)
            for e, inputs in self._epilogues(w)
        )  # fmt: skip

    def _epilogues(
        self, w: Workload[Attention]
    ) -> list[tuple[Epilogue, tuple[TensorType | None, ...]]]:
        op = w.op
        split = 3 + len(op.scores.views)
        return [(op.scores, w.inputs[3:split]), (op.result, w.inputs[split:])]


class AttentionTile(AttentionKernel[AttentionParams]):
    """float Attention in register tiles."""

    name = "attention_tile"
    template = "cpu/attention/tile.c.j2"
    dynamic = True
    dots = True
    """Whether few queries are computed by dot products."""
    pairs = False
    """Whether numbers are multiplied by twos."""

    def accepts(self, w: Workload[Attention], target: Target) -> bool:
        """Accept position masks, too, where these are bounds of the keys that a query sees."""
        seen = shown(w)
        return seen is not None and super().accepts(seen, target)

    def parameters(self, w: Workload[Attention], target: Target) -> Sequence[AttentionParams]:
        """Tiles that fill the registers."""
        op = w.op
        wide = -(-max(max_value(op.keys), max_value(op.width)) // lanes(target))
        few = self.dots and few_queries(w, target) is not None
        found: list[AttentionParams] = []
        for nv in WIDTHS:
            high = min((target.vector_registers - 1 - nv) // nv, max_value(op.queries))
            if nv <= max(wide, 2):
                mr = row_tiles(op.queries, high)[0].rows
                found.append(AttentionParams(mr=mr, nv=nv, few=few))
        return found

    def scratch(self, w: Workload[Attention], params: AttentionParams, target: Target) -> int:
        """Panels of keys, and of values that aren't dense; the scores of a tile."""
        sizes = self.room(w, params.nv * lanes(target), lanes(target))
        few = few_queries(w, target) if params.few else None
        if few and max_value(w.op.queries) < FEW:
            return 4 * few[1].mr * sizes.row
        high = max(params.mr, few[1].mr) if few else params.mr
        return 4 * (sizes.keys + sizes.values + high * (sizes.row + sizes.query))

    def room(self, w: Workload[Attention], width: int, step: int) -> Layout:
        """Return what lies in scratch, with panels of `width` columns and vectors of `step`."""
        return layout(w.op, width, step)

    def operands(
        self, w: Workload[Attention], outer: Sequence[str], width: int
    ) -> tuple[Operand, Operand, Operand]:
        """Return how queries, keys and values are read."""
        q, k, v = (Operand.of(x, outer, width) for x in (w.op.q_view, w.op.k_view, w.op.v_view))
        return q, k, v

    def products(
        self, op: Attention, sizes: Layout, operands: Sequence[Operand], width: int, step: int
    ) -> tuple[Product, Product]:
        """Return the products of scores and of results."""
        q, k, v = operands
        return (
            Product(op.depth, q.rows, q.columns, k.step, op.depth, k.mode == "direct"),
            Product(op.keys, sizes.row, 1, v.step, op.keys, v.mode == "direct"),
        )

    def values(
        self, w: Workload[Attention], params: AttentionParams, target: Target
    ) -> dict[str, object]:
        """Tiles of scores and results, how all operands are read, and the epilogues: of many
        queries, and of few."""
        found = self.variant(w, params, target)
        variants = [found]
        few = few_queries(w, target) if params.few else None
        if few is not None:
            single = self.variant(*few, target, "few_")
            variants = [single, found] if max_value(w.op.queries) >= FEW else [single]
        return {**found, "variants": variants, "few": FEW, "queries": w.op.queries}

    def variant(
        self, w: Workload[Attention], params: AttentionParams, target: Target, prefix: str = ""
    ) -> dict[str, object]:
        """Return the values of one way to compute it; names of functions begin with `prefix`.

        Without one keys are read in panels, else by dot products.
        """
        op = w.op
        batch = loop_names("b", op.batch)
        outer = tuple(v for v, _ in batch)
        nv, step = params.nv, lanes(target)
        width = nv * step
        tiles = row_tiles(op.queries, params.mr)
        sizes = self.room(w, width, step)
        q, k, v = self.operands(w, outer, width)
        score_product, value_product = self.products(op, sizes, (q, k, v), width, step)
        scores = op.scores
        seen = shown(w)
        if seen is not None and seen is not w:
            present = [t is not None for t in w.inputs[3 : 3 + len(scores.views)]]
            scores = replace(scores, expr=key_bounds(scores, present).shown)
        inside = is_dynamic((op.depth, op.keys, q.rows, q.columns, k.step, k.columns))
        score = EpilogueFunctions(scores, outer, 3, f"{prefix}score", inside)
        inside = is_dynamic((op.keys, op.width, v.step, op.y_view.strides[-2]))
        first = 3 + len(scores.views)
        y = w.outputs[0].dtype
        half = y if y.is_half else None
        result = EpilogueFunctions(op.result, outer, first, f"{prefix}finish", inside, half=half)
        key_panels = column_panels(op.keys, nv, step)
        value_panels = column_panels(op.width, nv, step)
        lines = key_range(w, outer, "(i + r)", "(i + r)").lines if seen is not w else ()
        asked = key_requests(op, outer, target.machine) if prefix else None
        following = bool(asked and asked.next)
        text = AttentionText(op, sizes, step, score, result, bool(lines), prefix, following)
        dots = [text.dots(t, part) for t in tiles for part in (False, True)] if prefix else []
        epilogues = [
            *score.functions(*((True, True) if prefix else vector_kinds(key_panels))),
            *result.functions(*vector_kinds(value_panels)),
        ]
        return {
            "op": op, "batch": batch, "tiles": tiles, "lanes": step, "width": width,
            "key_panels": key_panels, "value_panels": value_panels, "epilogues": epilogues,
            "score_tiles": [] if prefix else [text.score(p, t) for p in key_panels for t in tiles],
            "value_tiles": [text.value(p, t) for p in value_panels for t in tiles], "dots": dots,
            "score_arguments": tile_arguments(score), "value_arguments": tile_arguments(result),
            "sizes": replace(sizes, keys=0, values=0) if prefix else sizes, "q": q, "k": k, "v": v,
            "scored": score_product, "valued": value_product,
            "asked": asked, "seen": lines, "open": is_dynamic(op.keys), "pairs": self.pairs,
            "start": lowest(DType.FLOAT) if op.masked else "-INFINITY",
            "rounded": rounded_vector(op.weights, "weight"),
            "key_copy_open": is_dynamic((op.depth, k.rows, k.columns)),
            "value_copy_open": is_dynamic((op.keys, v.rows, v.columns)),
            "y": address(View((*op.y_view.strides[:-1], 1), op.y_view.offset), [*outer, "i", "j"]),
        }  # fmt: skip

    def cost(self, w: Workload[Attention], params: AttentionParams, target: Target) -> float:
        """Cycles of all tiles, exponentials and copies."""
        op, step = w.op, lanes(target)
        cycles = product_cycles(target.machine, op, params, step)
        rounding = 0.0 if op.weights is None else ROUNDING
        cycles += op.queries * -(-op.keys // step) * (EXPONENTIAL + rounding)
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
    stored: Weights = FLOATS
    """Its numbers in memory."""

    @staticmethod
    def of(view: View, outer: Sequence[str], width: int) -> Operand:
        """Return how a view of an operand is read in panels of `width`."""
        base = batch_base(view, outer)
        rows, columns = view.strides[-2:]
        mode = panel_mode(view)
        return Operand(base, rows, columns, mode, rows if mode == "direct" else width)


def tile_arguments(finish: EpilogueFunctions) -> str:
    """Return what calls of a tile end in."""
    return "".join(f", {x}" for x in (*finish.places, *finish.extras))


@dataclass(frozen=True)
class AttentionText:
    """The C of the tiles' heads and results."""

    op: Attention
    sizes: Layout
    lanes: int
    score_finish: EpilogueFunctions
    result_finish: EpilogueFunctions
    ranges: bool = False
    """Whether a tile is told how many keys it meets."""
    prefix: str = ""
    following: bool = False
    """Whether a tile of results asks for keys that follow."""

    def score(self, panel: Panel, tile: Tile) -> dict[str, object]:
        """Return a tile of scores: lanes beyond the keys are minus infinity, which weighs 0."""
        finish = self.score_finish
        places, (_, *extras) = finish.parameters
        parameters = ["const float *a", "const float *b", "float *s", *places, *extras]
        stores = []
        for r, v, part in accumulators(panel, tile):
            value = finish.value(f"c{r}_{v}", r, v * self.lanes, part)
            if part:
                value = f"v_select(v_mask_n({part}), {value}, v_set1(-INFINITY))"
            stores.append(f"v_store({plus('s', r * self.sizes.row + v * self.lanes)}, {value});")
        return _function("score", panel, tile, parameters, stores)

    def dots(self, tile: Tile, part: bool) -> dict[str, object]:
        """Return the scores of a vector of keys, or of `count`, of which each is a dot product."""
        finish = self.score_finish
        places, (_, *extras) = finish.parameters
        counted = ["ptrdiff_t count"] * part
        parameters = ["const float *a", "const float *b", "float *s", *counted, *places, *extras]
        value = finish.value("sums", "r", 0, "(size_t)count" if part else 0)
        if part:
            value = f"v_select(v_mask_n((size_t)count), {value}, v_set1(-INFINITY))"
        name = f"{self.prefix}{'last_dots' if part else 'dots'}_{tile.rows}"
        head = wrapped(f"static K_NOINLINE void {name}(", parameters)
        return {"name": name, "head": head, "tile": tile, "value": value, "part": part}

    def value(self, panel: Panel, tile: Tile) -> dict[str, object]:
        """Return a tile of results: weighted sums of values, divided by the weights' sums."""
        finish = self.result_finish
        places, (y, *extras) = finish.parameters
        operands = ["const float *a", "const float *b", *["ptrdiff_t keys"] * self.ranges]
        operands += ["const float *next"] * self.following
        parameters = [*operands, "const float *scale", y, *places, *extras]
        stores = []
        for r, v, part in accumulators(panel, tile):
            scaled = f"v_mul(c{r}_{v}, v_broadcast({plus('scale', r)}))"
            place = spot("y", r, self.op.y_view.strides[-2], v * self.lanes)
            stores.append(finish.store(place, scaled, r, v * self.lanes, part))
        return _function(f"{self.prefix}value", panel, tile, parameters, stores)


def _function(
    kind: str, panel: Panel, tile: Tile, parameters: Sequence[str], stores: Sequence[str]
) -> dict[str, object]:
    name = f"{kind}_{panel.name}_{tile.rows}"
    head = wrapped(f"static K_NOINLINE void {name}(", parameters)
    return {"name": name, "head": head, "panel": panel, "tile": tile, "stores": stores}


KERNELS = (AttentionTile(),)
