"""Loop and Scan."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import onnx_ir

from atc.dims import Dim, maximum, plain, upper_bound
from atc.ir.graph import DType
from atc.ir.view import View
from atc.lower.appended import appended, counted_trips, lower_appended
from atc.lower.builder import Builder
from atc.lower.concat_pad import join
from atc.lower.context import LoweringContext
from atc.lower.registry import lowers
from atc.lower.unroll import COUNTER, MOST_UNROLLED, Bind, LoopSource, Sequences, lower_loop
from atc.lower.value_bounds import VALUE_RANGES, bounded_integers
from atc.lower.value_ranges import interval_of

# ---- Loop ---------------------------------------------------------------------------------------


@lowers("Loop")
def loop_(ctx: LoweringContext) -> tuple[str, ...]:
    """ONNX Loop-21: at most so many times, and while the body says so."""
    graph = ctx.subgraph("body")
    start = ctx.const(1)
    states = tuple(ctx.input(i) for i in range(2, len(ctx.inputs)))
    collected = len(graph.outputs) - 1 - len(states)
    ctx.require(len(graph.inputs) == 2 + len(states) and collected >= 0, "the body does not fit")
    trips, count, strict = _iterations(ctx)
    counted = counted_trips(ctx, graph) if trips == -1 and not count else None
    begin = ctx.optional(1) if start is None and counted is None else ""
    if counted is not None:
        trips = counted
    never = (trips == 0 and not strict) or (start is not None and not bool(start.reshape(-1)[0]))

    def bind(builder: Builder, number: str, held: Sequence[str], _: Sequence[str]) -> None:
        going = builder.scalar(True, DType.BOOL)
        for value, name in zip(graph.inputs, (number, going, *held), strict=True):
            ctx.bind(builder, value, name)

    if never:
        return (*states, *(_nothing_collected(ctx, graph, bind, states) if collected else ()))
    loop = LoopSource(
        graph, bind, trips, count, begin, states, Sequences(), True, (False,) * collected, strict,
        counted is not None,
    )  # fmt: skip
    places = appended(ctx, loop)
    if places and (isinstance(trips, Dim) or begin or count or trips > MOST_UNROLLED):
        return lower_appended(ctx, loop, places)
    return lower_loop(ctx, loop)


def _iterations(ctx: LoweringContext) -> tuple[int, str, bool]:
    """Return the most iterations (-1: any number), the value that says so when the network runs,
    and whether a loop that would go on ends the run."""
    limit, declared = ctx.extents(0), ctx.node.meta.get(VALUE_RANGES)
    if limit is None and ctx.has(0) and interval_of(ctx.b, ctx.input(0))[0] >= 0:
        limit = bounded_integers(ctx.b, ctx.input(0), 0, f"iterations of {ctx.name}")
    trips = -1 if limit is None else maximum(0, limit[0])
    if declared is not None:
        most = declared[0].high
        longer = trips == -1 or upper_bound(trips) > most
        return (most if longer else trips), ctx.optional(0) if trips == -1 else "", longer
    return trips, ctx.optional(0) if trips == -1 else "", False


def _nothing_collected(
    ctx: LoweringContext, graph: onnx_ir.Graph, bind: Bind, states: Sequence[str]
) -> Iterator[str]:
    """Yield the empty results of a loop that never begins; their types are the body's."""
    body = Builder(ctx.b)
    bind(body, body.declare(body.fresh("iteration"), COUNTER), states, ())
    for part in ctx.lower_subgraph(graph, body)[1 + len(states) :]:
        type_ = body.type(part)
        yield ctx.b.constant(np.empty((0, *type_.shape), type_.dtype.numpy))


# ---- Scan ---------------------------------------------------------------------------------------


@lowers("Scan")
def scan(ctx: LoweringContext) -> tuple[str, ...]:
    """ONNX Scan-21; before opset 9 all operands had a batch axis, and rows are done one by one."""
    if ctx.opset >= 9:
        return _scan(ctx, ctx.inputs)
    b = ctx.b
    if ctx.has(0):
        lengths = ctx.required_const(0, "the rows' lengths")
        if (lengths != ctx.shape(len(ctx.inputs) - 1)[1]).any():
            raise ctx.unsupported("rows of different lengths")
    rows = [_scan(ctx, [_row(b, x, r) for x in ctx.inputs[1:]]) for r in range(ctx.shape(1)[0])]
    whole = []
    for results in zip(*rows, strict=True):
        parts = [b.reshape(y, (1, *b.shape(y))) for y in results]
        whole.append(join(b, parts, 0))
    return tuple(whole)


def _row(b: Builder, x: str, row: int) -> str:
    shape = b.shape(x)
    strides = b.type(x).strides
    return b.view(x, shape[1:], View(strides[1:], row * strides[0]))


def _scan(ctx: LoweringContext, inputs: Sequence[str]) -> tuple[str, ...]:
    """Lower a Scan without a batch axis."""
    b, graph = ctx.b, ctx.subgraph("body")
    split = len(inputs) - ctx.int("num_scan_inputs")
    states, given = tuple(inputs[:split]), inputs[split:]
    count = len(given)
    ctx.require(split >= 0 and count > 0, f"{count} sequences, {split} states")
    ctx.require(len(graph.inputs) == split + count, "the body does not fit")
    axes = ctx.ints("scan_input_axes", [0] * count) or []
    name = "scan_input_directions" if ctx.opset >= 9 else "directions"
    directions = ctx.ints(name, [0] * count) or []
    ctx.require(len(axes) == count == len(directions), "axes or directions are missing")
    sequences = [
        _moved(b, x, ctx.axis(axis, len(b.shape(x))), 0)
        for x, axis in zip(given, axes, strict=True)
    ]
    lengths = {b.shape(x)[0] for x in sequences}
    ctx.require(len(lengths) == 1, plain(f"sequences of different lengths, {lengths}"))
    collected = len(graph.outputs) - split
    out_axes = ctx.ints("scan_output_axes", [0] * collected) or []
    out_directions = ctx.ints("scan_output_directions", [0] * collected) or []

    def bind(builder: Builder, _: str, held: Sequence[str], parts: Sequence[str]) -> None:
        for value, name in zip(graph.inputs, (*held, *parts), strict=True):
            ctx.bind(builder, value, name)

    results = lower_loop(ctx, LoopSource(
        graph, bind, lengths.pop(), "", "", states,
        Sequences(tuple(sequences), tuple(t == 1 for t in directions)), False,
        tuple(d == 1 for d in out_directions),
    ))  # fmt: skip
    moved = (
        _moved(b, y, 0, ctx.axis(axis, len(b.shape(y))))
        for y, axis in zip(results[split:], out_axes, strict=True)
    )
    return (*results[:split], *moved)


def _moved(b: Builder, x: str, source: int, target: int) -> str:
    """Move one axis to another place."""
    if source == target:
        return x
    order = [d for d in range(len(b.shape(x))) if d != source]
    order.insert(target, source)
    return b.transpose(x, order)
