"""Loop unrolling: short repetitions of a graph are unrolled, others become loops of the program."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import prod

import numpy as np
import onnx_ir

from atc.dims import Dim, ceiling, dim, lower_bound, max_value, maximum, symbols_of, upper_bound
from atc.errors import AtcError, UnsupportedError
from atc.ir.expr import Expr, call, const
from atc.ir.graph import DType, TensorType, row_major
from atc.ir.ops import Loop
from atc.ir.view import View
from atc.lower.builder import Builder
from atc.lower.concat_pad import join
from atc.lower.context import LoweringContext
from atc.lower.indexed_access import IndexedAccess, gather, times

UNROLLED = 8
"""Iterations up to which a loop is written out: every one can then be fused and simplified."""

MOST_COPIES = 64
"""Copies of a body up to which loops in such loops are written out too."""

MOST_UNROLLED = 512
"""The same for loops that can't be kept, as a shape in them depends on the iteration."""

DEEP = 5
"""Loops around a loop from which on it is lowered in one way only."""

TRIES = 6
"""How often a body is lowered until the shapes of its states are known."""

COUNTER = TensorType(DType.INT64, ())


@dataclass(frozen=True)
class Sequences:
    """Values [steps, ...] of which each iteration is given one part, some from the last on."""

    names: tuple[str, ...] = ()
    backwards: tuple[bool, ...] = ()


Bind = Callable[[Builder, str, Sequence[str], Sequence[str]], None]
"""Takes the iteration's number, the states and the sequences' parts."""


@dataclass(frozen=True)
class LoopSource:
    """A loop to be lowered: `bind` gives the graph its inputs, in a builder, for one iteration."""

    graph: onnx_ir.Graph
    bind: Bind
    trips: int
    count: str
    start: str
    states: tuple[str, ...]
    sequences: Sequences
    has_condition: bool
    collected: tuple[bool, ...]
    """Per collected result, whether it is written from the end."""
    strict: bool = False
    """Whether `trips` is a declared bound: a loop that would go on ends the run."""
    exact: bool = False
    """Whether it runs `trips` times, whatever the body's condition says."""
    arranged: Callable[[Builder, list[str]], list[str]] = lambda _, made: made
    """Return the body's results in the order of the loop's: condition, states, collected ones."""


def lower_loop(ctx: LoweringContext, loop: LoopSource) -> tuple[str, ...]:
    """Return the last states and the collected results."""
    trips = -1 if loop.start else loop.trips  # only a loop that surely runs can be written out
    if any(ctx.b.parts(state) is not None for state in loop.states):
        return _written_out(ctx, loop, trips)
    if isinstance(loop.trips, Dim) or loop.strict:
        return kept_loop(ctx, loop)
    room = MOST_UNROLLED // ctx.b.copies
    short = 0 <= trips <= min(UNROLLED, MOST_COPIES // ctx.b.copies)
    if ctx.b.loops >= DEEP:  # each other way here is tried for each other way of those around
        return _unrolled(ctx, loop) if short else kept_loop(ctx, loop)
    if short:
        unrolled = _try(ctx.b, lambda: _unrolled(ctx, loop))
        return unrolled if isinstance(unrolled, tuple) else kept_loop(ctx, loop)
    kept = _try(ctx.b, lambda: kept_loop(ctx, loop, growing=not 0 <= trips <= room))
    if isinstance(kept, tuple):
        return kept
    if not 0 <= trips <= room:
        if trips > room and kept.hint == "":
            kept.hint = f"loops of up to {MOST_UNROLLED} iterations in all would be written out"
        raise kept
    return _unrolled(ctx, loop)


def _written_out(ctx: LoweringContext, loop: LoopSource, trips: int) -> tuple[str, ...]:
    """Unroll a loop that carries sequences, whose lengths must be known.

    One without a trip count ends where its condition says so.
    """
    if isinstance(loop.trips, Dim) or loop.start or loop.count:
        raise UnsupportedError(
            "a loop that carries a sequence or an optional runs a number of times known "
            "only at run time", where=ctx.label,
            hint="make its trip count and first condition constants",
        )  # fmt: skip
    if trips > MOST_UNROLLED // ctx.b.copies:
        raise UnsupportedError(
            f"a loop that carries a sequence or an optional runs {trips} times; at most "
            f"{MOST_UNROLLED} iterations in all are written out", where=ctx.label,
        )  # fmt: skip
    return _unrolled(ctx, loop)


def _try(b: Builder, lower: Callable[[], tuple[str, ...]]) -> tuple[str, ...] | AtcError:
    try:
        with b.tentative():
            return lower()
    except AtcError as error:
        return error


# ---- unrolling ----------------------------------------------------------------------------------


def _unrolled(ctx: LoweringContext, loop: LoopSource) -> tuple[str, ...]:
    """Lower the body once per iteration; the condition must be known each time."""
    b = ctx.b
    states = list(loop.states)
    parts: list[list[str]] = [[] for _ in loop.collected]
    most = MOST_UNROLLED // b.copies if loop.trips == -1 else loop.trips
    for trip in range(most):
        number = b.constant(np.asarray(trip, np.int64))
        slices = [_part(b, x, number, back) for x, back in _each(loop.sequences)]
        loop.bind(b, number, states, slices)
        with b.repeated(most):
            made = list(ctx.lower_subgraph(loop.graph, b))
        going = b.value(made.pop(0)) if loop.has_condition else np.asarray(True)
        if going is None:
            raise UnsupportedError("a condition known only at run time", where=ctx.label)
        states, found = made[: len(states)], made[len(states) :]
        for values, value in zip(parts, found, strict=True):
            values.append(value)
        if not bool(going.reshape(-1)[0]):
            break
    else:
        if loop.trips == -1:
            raise UnsupportedError(f"more than {most} iterations to write out", where=ctx.label)
    if loop.collected and not all(parts):
        raise UnsupportedError("a result that no iteration adds to", where=ctx.label)
    return (*states, *(_stacked(b, p, back) for p, back in zip(parts, loop.collected, strict=True)))


def _each(sequences: Sequences) -> zip[tuple[str, bool]]:
    return zip(sequences.names, sequences.backwards, strict=True)


def _stacked(b: Builder, parts: Sequence[str], backwards: bool) -> str:
    rows = [b.reshape(p, (1, *b.shape(p))) for p in parts]
    return join(b, rows[::-1] if backwards else rows, 0)


def _part(b: Builder, x: str, number: str, backwards: bool) -> str:
    """Return the part of a sequence that belongs to an iteration."""
    steps, *rest = b.shape(x)
    size = prod(rest)
    known = b.value(number)
    if known is not None:
        step = steps - 1 - int(known) if backwards else int(known)
        return b.view(x, tuple(rest), View(row_major(rest), step * size))

    def address(i: Expr) -> Expr:
        last = const(steps - 1, DType.INT64)
        return times(call("Sub", last, i) if backwards else i, size)

    place = IndexedAccess((1,), (number,), (View((0,)),), (), address, proven=True)
    return gather(b, x, place, size, rest)


# ---- keeping the loop ---------------------------------------------------------------------------


def kept_loop(ctx: LoweringContext, loop: LoopSource, *, growing: bool = True) -> tuple[str, ...]:
    """Emit a Loop op: every iteration is alike, but for extents of states that change."""
    growth = _Growth(ctx, loop, growing)
    for _ in range(TRIES):
        before = len(ctx.b.symbols)
        body, made, known = _body(ctx, loop, growth.types)
        if not growth.learns([body.type(m) for m in made[: len(loop.states)]]):
            alike = _parts_alike(ctx, body, made[len(loop.states) :], before)
            return _emit(ctx, loop, growth, body, made, known, alike)
    raise UnsupportedError("a state's shape changes in every iteration anew", where=ctx.label)


def _body(
    ctx: LoweringContext, loop: LoopSource, types: Sequence[TensorType]
) -> tuple[Builder, list[str], str]:
    """Lower the body for states of these types; returns its results, the condition's name last.

    The builder's inputs are the iteration and the states.
    """
    body = Builder(ctx.b)
    number = body.declare(body.fresh("iteration"), COUNTER)
    states = [body.declare(body.fresh("state"), type_) for type_ in types]
    slices = [_part(body, x, number, back) for x, back in _each(loop.sequences)]
    loop.bind(body, number, states, slices)
    with body.repeated(1):
        made = loop.arranged(body, list(ctx.lower_subgraph(loop.graph, body)))
    going = made.pop(0) if loop.has_condition else ""
    known = body.value(going) if going and not loop.exact else np.asarray(True)
    if known is not None and not bool(known.reshape(-1)[0]):
        raise UnsupportedError("a loop that always ends after one iteration", where=ctx.label)
    body.given = (number, *states)
    return body, made, going if known is None else ""


def _parts_alike(
    ctx: LoweringContext, body: Builder, parts: Sequence[str], before: int
) -> tuple[tuple[int, int, int], ...]:
    """Let a run end whose iterations find other extents for the parts that a result collects.

    Of each extent that the body finds, one more is carried to the next iteration; 0 is in the
    first one's. Symbols from number `before` on are the body's.
    """
    found = dict.fromkeys(n for p in parts for n in body.shape(p))
    carried = []
    for extent in found:
        if any(s.index >= before for s in symbols_of(extent)):
            label = f"an extent that {ctx.name} collects"
            last = ctx.b.symbol(label, 0, max_value(extent) + 1)
            body.must_be_zero(last * (last - 1 - extent))
            carried.append((last, 0, extent + 1))
    return tuple(carried)


def _emit(
    ctx: LoweringContext,
    loop: LoopSource,
    growth: _Growth,
    body: Builder,
    made: Sequence[str],
    going: str,
    alike: Sequence[tuple[int, int, int]],
) -> tuple[str, ...]:
    b, count = ctx.b, len(loop.states)
    parts = [body.type(p) for p in made[count:]]
    changing = {e for e, _, _ in growth.extents}
    if any(not changing.isdisjoint(p.shape) for p in parts):
        raise UnsupportedError("the parts that a result collects differ in shape", where=ctx.label)
    whole, trip_count = loop.trips, -1
    if parts and (going or loop.start or loop.count or loop.trips == -1):
        if loop.trips == -1:
            raise ctx.unsupported(
                "how many parts a result collects is known only at run time, and nothing bounds it",
                f'say how often the loop runs: --value_range="{ctx.name}:0~100"',
            )
        whole = b.symbol(f"iterations of {ctx.name}", 0, loop.trips)
        trip_count = whole if isinstance(whole, Dim) else -1  # else it surely makes none
    outputs = (*([going] if going else []), *made)
    graph = body.graph(loop.graph.name or "body", body.given, outputs)
    op = Loop(
        graph, loop.trips, count, bool(going), loop.collected, trip_count,
        (*growth.extents, *alike), loop.strict,
    )
    types = [*growth.types, *(TensorType(p.dtype, (whole, *p.shape)) for p in parts)]
    return b.emit(op, [loop.count, loop.start, *loop.states], *types)


class _Growth:
    """Changes of the states' shapes: found by lowering the body with what is known so far."""

    def __init__(self, ctx: LoweringContext, loop: LoopSource, allowed: bool) -> None:
        self.ctx, self.loop, self.allowed = ctx, loop, allowed
        self.initial = [ctx.b.type(s) for s in loop.states]
        self.types = list(self.initial)
        self.steps: dict[tuple[int, int], int | None] = {}
        """By state and axis: what an iteration adds, None where the extent is another then."""
        self.tops: dict[tuple[int, int], int] = {}
        """The most that each may be."""
        self.extents: tuple[tuple[int, int, int], ...] = ()

    def learns(self, made: Sequence[TensorType]) -> bool:
        """Take the types that an iteration made; whether the body must be lowered anew."""
        found: list[tuple[int, int, int]] = []
        news = False
        for i, (old, new) in enumerate(zip(self.types, made, strict=True)):
            same = old.dtype is new.dtype and len(old.shape) == len(new.shape)
            if not same or (old != new and not self.allowed):
                raise UnsupportedError(f"state {i} is {old}, then {new}", where=self.ctx.label)
            for axis, (n, m) in enumerate(zip(old.shape, new.shape, strict=True)):
                if (i, axis) in self.steps:
                    news |= self._loosened(i, axis, n, m)
                    found.append((n, self.initial[i].shape[axis], m))
                elif n != m:
                    self._vary(i, axis, m - n)
                    news = True
        self.extents = () if news else tuple(found)
        return news

    def _loosened(self, i: int, axis: int, n: int, m: int) -> bool:
        """Find another bound for an extent that becomes m after an iteration, if it needs one."""
        step, top = self.steps[i, axis], self.tops[i, axis]
        if upper_bound(m - top) <= 0 if step is None else m - n == step:
            return False
        if n in [dim(s) for s in symbols_of(m)]:
            raise self._unbounded(i, axis)
        first = self.initial[i].shape[axis]
        least = min(lower_bound(first), lower_bound(m))
        self._replace(i, axis, None, least, maximum(ceiling(first), ceiling(m)))
        return True

    def _vary(self, i: int, axis: int, step: int) -> None:
        """Let an axis vary, by `step` each time as far as is known."""
        first, trips = self.initial[i].shape[axis], self.loop.trips
        if lower_bound(step) < 0:
            self._replace(i, axis, None, 0, maximum(ceiling(first), ceiling(first + step)))
        elif trips == -1:
            self._replace(i, axis, None, lower_bound(first), maximum(first, ceiling(first + step)))
        else:
            self._replace(i, axis, step, lower_bound(first), ceiling(first + step * trips))

    def _unbounded(self, i: int, axis: int) -> UnsupportedError:
        return self.ctx.unsupported(
            f"axis {axis} of state {i} grows from iteration to iteration, and nothing bounds it",
            f'say how often the loop runs at most: --value_range="{self.ctx.name}:0~100"',
        )

    def _replace(self, i: int, axis: int, step: int | None, lowest: int, highest: int) -> None:
        label = f"axis {axis} of state {i} of {self.ctx.name}"
        extent = self.ctx.b.symbol(label, lowest, highest)
        shape = self.types[i].shape
        self.types[i] = replace(self.types[i], shape=(*shape[:axis], extent, *shape[axis + 1 :]))
        self.steps[i, axis], self.tops[i, axis] = step, highest
