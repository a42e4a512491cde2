"""Reduce in vectors: along the last reduced loop, or many columns at a time down the others."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import prod

from atc.backends.kernel import Kernel, Params, Workload, loop_cycles
from atc.backends.render.expr import address, behind
from atc.backends.render.loops import epilogue_lines, loop_names
from atc.backends.render.opening import OpensExtents, opened_types, opened_view
from atc.backends.render.reduction import neutral
from atc.backends.render.vector_epilogue import typed_epilogue
from atc.backends.render.vector_expr import (
    NARROW,
    held_between,
    lanes,
    readable_typed,
    render_vector,
    store_vector,
    stored,
    vector_reader,
    vectorisable,
)
from atc.backends.target import Target
from atc.dims import is_dynamic, max_value, opened
from atc.ir.expr import Call, Expr, Input, call, cast, const, cost
from atc.ir.graph import DType
from atc.ir.ops import Reduce
from atc.ir.view import View, dense, simplify_loops, split_loop

STEPS = {"Sum": "v_add", "Prod": "v_mul", "Max": "v_max", "Min": "v_min"}
VECTORS = 4
"""Accumulators side by side: they hide the latency of the additions."""
CHEAP = 2
"""Cost of an expression up to which more columns are summed at a time: long reads of memory."""


@dataclass(frozen=True)
class LoopSlice:
    """The indices [first, last) of a loop: `vectors` at a time, or `count` lanes of one."""

    first: int
    last: int
    vectors: int
    count: int = 0


def loop_slices(extent: int, width: int, vectors: int = VECTORS) -> list[LoopSlice]:
    """Cut a loop into groups of `vectors` vectors, single vectors, and the rest."""
    groups = extent // (vectors * width) * vectors * width
    whole = extent // width * width
    found = [
        LoopSlice(0, groups, vectors), LoopSlice(groups, whole, 1),
        LoopSlice(whole, extent, 1, extent - whole),
    ]  # fmt: skip
    return [s for s in found if s.last != s.first]


def merged(op: Reduce) -> Reduce:
    """Return the op with neighbouring loops merged that all operands walk as one."""
    kept = len(op.shape)
    outside = [View(v.strides[:kept]) for v in op.views]
    inside = [View(v.strides[kept:]) for v in op.views]
    shape, (_, *outer) = simplify_loops(op.shape, [dense(op.shape), *outside, *op.epilogue.views])
    reduced, inner = simplify_loops(op.reduced, inside)
    views = [
        View((*o.strides, *i.strides), v.offset)
        for o, i, v in zip(outer[: len(inner)], inner, op.views, strict=True)
    ]
    after = replace(op.epilogue, views=tuple(outer[len(inner) :]))
    return replace(op, shape=shape, reduced=reduced, views=tuple(views), epilogue=after)


EXACT = 1 << 24
"""Whole numbers up to it are floats."""


def in_floats(op: Reduce) -> Reduce:
    """Return a Reduce of narrow integers with elements in float, which have the same extremes, and
    the same sums where these are exact."""
    count = prod(max_value(n) for n in op.reduced)
    match op.expr:
        case Call(fn="Cast", dtype=DType.INT32, args=(Input() as x,)) if x.dtype in NARROW:
            return replace(op, expr=cast(x, DType.FLOAT)) if _exact(op, x.dtype, count) else op
        case Call(fn="Cast", dtype=DType.INT32, args=(Call(fn="CastSaturate") as x,)):
            value = stored(x)
            if value is None or not _exact(op, x.dtype, count):
                return op
            return replace(op, expr=_held(value, x.dtype))
        case Input() as x if x.dtype in NARROW and op.how in ("Max", "Min"):
            return replace(op, expr=cast(x, DType.FLOAT))
        case _:
            return op


def _exact(op: Reduce, dtype: DType, count: int) -> bool:
    """Return whether all sums of so many integers of a type are floats."""
    return op.how == "Sum" and count * max(map(abs, held_between(dtype))) <= EXACT


def _held(x: Expr, dtype: DType) -> Expr:
    """Return a whole number as a type of narrow integers has it, in float; NaN as 0."""
    low, high = held_between(dtype)
    held = call("Min", call("Max", x, const(low, DType.FLOAT)), const(high, DType.FLOAT))
    return call("Where", call("IsNaN", x), const(0, DType.FLOAT), held)


def _types(w: Workload, op: Reduce) -> list[DType]:
    """Return the types of the operands that are reduced."""
    return [t.dtype for t in w.inputs[: len(op.views)] if t is not None]


def _fits(w: Workload, op: Reduce, target: Target) -> bool:
    """Return whether the elements can be computed in vectors; no coordinates."""
    return (
        lanes(target) > 1
        and op.how in STEPS
        and vectorisable(in_floats(op).expr)
        and not op.coordinates
        and len(op.views) == len(_types(w, op))
        and prod((*op.shape, *op.reduced)) != 0
    )


def _total(op: Reduce, text: str) -> str:
    """Return the C of a float result as the epilogue's operand."""
    kind = op.expr.dtype
    return text if kind is DType.FLOAT else f"({kind.c}){text}"


class ReduceRows(Kernel[Reduce]):
    """A Reduce whose operands are dense or constant along the last reduced loop."""

    name = "reduce_rows"
    op = Reduce
    template = "cpu/map/reduce_rows.c.j2"
    portable = False
    dynamic = True

    def accepts(self, w: Workload[Reduce], target: Target) -> bool:
        """Floats or bytes, a last reduced loop of half a vector or more."""
        if not _fits(w, w.op, target):
            return False
        op = merged(w.op)
        wide = bool(op.reduced) and 2 * max_value(op.reduced[-1]) >= lanes(target)
        return wide and readable_typed(op.views, w.inputs[: len(op.views)])

    def values(self, w: Workload[Reduce], params: Params, target: Target) -> dict[str, object]:
        """Loops, the bodies of each slice of the last loop, and the stored value."""
        op, width = merged(w.op), lanes(target)
        outer, inner = loop_names("i", op.shape), loop_names("j", op.reduced)
        kept = [v for v, _ in outer]
        around = [*kept, *(v for v, _ in inner[:-1])]
        start = f"v_set1({neutral(op.how, DType.FLOAT)})"
        parts, types = loop_slices(op.reduced[-1], width), _types(w, op)
        after, value = epilogue_lines(op.epilogue, w, "total", kept, len(op.views))
        bodies = [(s, _bodies(in_floats(op), types, around, s, width, start)) for s in parts]
        return {
            "outer": outer, "inner": inner[:-1], "start": start, "step": STEPS[op.how],
            "accumulators": max(s.vectors for s in parts), "how": op.how, "parts": bodies,
            "type": op.expr.dtype.c, "total": lambda sum_: _total(op, sum_),
            "after": after, "value": value, "target": address(dense(op.shape), kept),
        }  # fmt: skip

    def cost(self, w: Workload[Reduce], params: Params, target: Target) -> float:
        """Return a part of the scalar loops' cycles: lanes, and the sum across them."""
        part = 0.5 / lanes(target) + min(0.4, 5 / prod(merged(w.op).reduced))
        return part * loop_cycles(w)


def _bodies(
    op: Reduce, types: Sequence[DType], around: Sequence[str], part: LoopSlice, width: int,
    start: str,
) -> list[dict[str, object]]:  # fmt: skip
    """Return the element's lines and value for each vector of a slice; lanes beyond it are
    neutral."""
    bodies: list[dict[str, object]] = []
    for v in range(part.vectors):
        at = str(part.first) if part.count else f"(j + {v * width})" if v else "j"
        read = vector_reader(op.views, [*around, at], count=str(part.count or ""), types=types)
        lines, value = render_vector(op.expr, read)
        if part.count:
            value = f"v_select(v_mask_n({part.count}), {value}, {start})"
        bodies.append({"lines": lines, "value": value})
    return bodies


LONG, RUN = 1 << 12, 128
"""Numbers of a sum from which on it is made of sums of runs, to err less, and those of a run."""


LOOPED = 16
"""Iterations from which on a loop's extent is a number that C takes: compilers unroll others."""


class ReduceColumns(Kernel[Reduce], OpensExtents[Reduce, Params]):
    """A Reduce whose operands are dense or constant along the last kept loop."""

    name = "reduce_columns"
    op = Reduce
    template = "cpu/map/reduce_columns.c.j2"
    portable = False
    dynamic = True

    def accepts(self, w: Workload[Reduce], target: Target) -> bool:
        """Floats or bytes, a last kept loop of half a vector or more, an epilogue in vectors."""
        if not _fits(w, w.op, target):
            return False
        op = merged(w.op)
        if not op.shape or 2 * max_value(op.shape[-1]) < lanes(target):
            return False
        inputs = w.inputs[: len(op.views)]
        return readable_typed(_column_views(op), inputs) and typed_epilogue(
            op.epilogue, w, len(op.views)
        )

    def with_open_extents(
        self, w: Workload[Reduce], params: Params, target: Target
    ) -> tuple[Workload[Reduce], Params]:
        """Open the loops around the columns, long ones that are reduced, and strides."""
        op = merged(w.op)
        kept = tuple(opened(n, f"n{d}") for d, n in enumerate(op.shape[:-1]))
        reduced = tuple(opened(n, f"r{d}") if n >= LOOPED else n for d, n in enumerate(op.reduced))
        views = tuple(opened_view(v, f"x{k}") for k, v in enumerate(op.views))
        after = tuple(opened_view(v, f"e{k}") for k, v in enumerate(op.epilogue.views))
        op = replace(op, shape=(*kept, op.shape[-1]), reduced=reduced, views=views,
                     epilogue=replace(op.epilogue, views=after))  # fmt: skip
        return replace(opened_types(w), op=op), params

    def values(self, w: Workload[Reduce], params: Params, target: Target) -> dict[str, object]:
        """Loops, and element, epilogue and place of each slice of columns."""
        op, width = merged(w.op), lanes(target)
        long = op.how == "Sum" and len(op.reduced) > 1 and not is_dynamic(op.reduced)
        few = not is_dynamic(op.shape[-1]) and op.shape[-1] <= width
        runs = long and few and prod(op.reduced) >= LONG
        op = in_runs(op) if runs else op
        outer, inner = loop_names("i", op.shape[:-1]), loop_names("j", op.reduced)
        cheap = cost(op.expr) <= CHEAP
        parts = loop_slices(op.shape[-1], width, target.vector_registers // 2 if cheap else VECTORS)
        return {
            "outer": outer, "inner": inner, "step": STEPS[op.how],
            "runs": runs,
            "start": f"v_set1({neutral(op.how, DType.FLOAT)})",
            "parts": [(s, _columns(w, op, outer, inner, s, width)) for s in parts],
        }  # fmt: skip

    def cost(self, w: Workload[Reduce], params: Params, target: Target) -> float:
        """Return a part of the scalar loops' cycles."""
        part = 0.7 / lanes(target) + min(0.4, 1 / prod(w.op.reduced))
        return part * loop_cycles(w)


def in_runs(op: Reduce) -> Reduce:
    """Return the op with its last reduced loop cut into runs of equal length, if it can be."""
    extent, last = op.reduced[-1], len(op.shape) + len(op.reduced) - 1
    run = max(k for k in range(1, min(extent, RUN) + 1) if extent % k == 0)
    views = tuple(split_loop(v, last, run) for v in op.views)
    return replace(op, reduced=(*op.reduced[:-1], extent // run, run), views=views)


def _column_views(op: Reduce) -> list[View]:
    """Return the operands' views with the last kept loop put last."""
    at = len(op.shape) - 1
    return [
        View((*v.strides[:at], *v.strides[at + 1 :], v.strides[at]), v.offset) for v in op.views
    ]


def _columns(
    w: Workload, op: Reduce, outer: Sequence[tuple[str, int]], inner: Sequence[tuple[str, int]],
    part: LoopSlice, width: int,
) -> list[dict[str, object]]:  # fmt: skip
    """Return what is done for each vector of a slice of columns."""
    kept, around = [v for v, _ in outer], [v for v, _ in (*outer, *inner)]
    count = str(part.count or "")
    types, views = [t.dtype for t in w.inputs if t is not None], _column_views(op)
    own = len(views)
    result = "v_cvt_i32(t{})" if op.expr.dtype is DType.INT32 else "t{}"
    final = stored(op.epilogue.expr) or op.epilogue.expr
    found: list[dict[str, object]] = []
    for v in range(part.vectors):
        at = str(part.first) if part.count else f"(c + {v * width})" if v else "c"
        read = vector_reader(views, [*around, at], count=count, types=types)
        lines, element = render_vector(in_floats(op).expr, read)
        later = vector_reader(op.epilogue.views, [*kept, at], own, count, types[own:])
        operand = _operand(result.format(v), later)
        after, value = render_vector(final, operand, "e")
        place = behind("y0", address(dense(op.shape), [*kept, at]))
        store = store_vector(w.outputs[0].dtype, place, value, count)
        found.append({"lines": lines, "element": element, "after": after, "store": store})
    return found


def _operand(result: str, read: Callable[[int], str]) -> Callable[[int], str]:
    """Return how an epilogue reads its operands, the first of which is the result."""
    return lambda k: result if k == 0 else read(k - 1)


KERNELS = (ReduceRows(), ReduceColumns())
