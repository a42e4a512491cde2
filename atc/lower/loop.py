"""Lowerings of Loop and Scan: short ones are unrolled, others become loops of the program."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import onnx_ir

from atc.errors import AtcError, UnsupportedError
from atc.expr import Expr, call, const
from atc.ir import DType, TensorType
from atc.lower.builder import Builder
from atc.lower.concat_pad import join
from atc.lower.place import Place, gather, times
from atc.lower.registry import lowers
from atc.lower.site import Site
from atc.ops import Loop
from atc.view import View

UNROLLED = 8
"""Iterations up to which a loop is written out: every one can then be fused and simplified."""

MOST_COPIES = 64
"""Copies of a body up to which loops in such loops are written out too."""

MOST_UNROLLED = 512
"""The same for loops that can't be kept, as a shape in them depends on the iteration."""

DEEP = 5
"""Loops around a loop from which on it is lowered in one way only."""

COUNTER = TensorType(DType.INT64, ())


@dataclass(frozen=True)
class Sequences:
    """Values [steps, ...] of which each iteration is given one part, some from the last on."""

    names: tuple[str, ...] = ()
    backwards: tuple[bool, ...] = ()


Bind = Callable[[Builder, str, Sequence[str], Sequence[str]], None]
"""Takes the iteration's number, the states and the sequences' parts."""


@dataclass(frozen=True)
class Repetition:
    """A loop to be lowered: `bind` tells the graph its inputs, in a builder, for one iteration."""

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


def lower_repetition(site: Site, loop: Repetition) -> tuple[str, ...]:
    """Return the last states and the collected results."""
    trips = -1 if loop.start else loop.trips  # only a loop that surely runs can be written out
    if any(site.b.parts(state) is not None for state in loop.states):
        return _written_out(site, loop, trips)
    room = MOST_UNROLLED // site.b.copies
    short = 0 <= trips <= min(UNROLLED, MOST_COPIES // site.b.copies)
    if site.b.loops >= DEEP:  # each other way here is tried for each other way of those around
        return _unrolled(site, loop) if short else _kept(site, loop)
    if short:
        unrolled = _try(lambda: _unrolled(site, loop))
        return unrolled if isinstance(unrolled, tuple) else _kept(site, loop)
    kept = _try(lambda: _kept(site, loop))
    if isinstance(kept, tuple):
        return kept
    if not 0 <= trips <= room:
        if trips > room and kept.hint == "":
            kept.hint = f"loops of up to {MOST_UNROLLED} iterations in all would be written out"
        raise kept
    return _unrolled(site, loop)


def _written_out(site: Site, loop: Repetition, trips: int) -> tuple[str, ...]:
    """Unroll a loop that carries sequences, whose lengths must be known."""
    if trips < 0:
        raise UnsupportedError(
            "a loop that carries a sequence or an optional runs a number of times that only the "
            "run knows", where=site.label, hint="make its trip count and first condition constants",
        )  # fmt: skip
    if trips > MOST_UNROLLED // site.b.copies:
        raise UnsupportedError(
            f"a loop that carries a sequence or an optional runs {trips} times; at most "
            f"{MOST_UNROLLED} iterations in all are written out", where=site.label,
        )  # fmt: skip
    return _unrolled(site, loop)


def _try(lower: Callable[[], tuple[str, ...]]) -> tuple[str, ...] | AtcError:
    try:
        return lower()
    except AtcError as error:
        return error


# ---- unrolling ----------------------------------------------------------------------------------


def _unrolled(site: Site, loop: Repetition) -> tuple[str, ...]:
    """Lower the body once per iteration; the condition must be known each time."""
    b = site.b
    states = list(loop.states)
    parts: list[list[str]] = [[] for _ in loop.collected]
    for turn in range(loop.trips):
        number = b.constant(np.asarray(turn, np.int64))
        slices = [_part(b, x, number, back) for x, back in _each(loop.sequences)]
        loop.bind(b, number, states, slices)
        with b.repeated(loop.trips):
            made = list(site.lower_subgraph(loop.graph, b))
        going = b.value(made.pop(0)) if loop.has_condition else np.asarray(True)
        if going is None:
            raise UnsupportedError("a condition that only the run knows", where=site.label)
        states, found = made[: len(states)], made[len(states) :]
        for values, value in zip(parts, found, strict=True):
            values.append(value)
        if not bool(going.reshape(-1)[0]):
            break
    if loop.collected and not all(parts):
        raise UnsupportedError("a result that no iteration adds to", where=site.label)
    return (*states, *(_stacked(b, p, back) for p, back in zip(parts, loop.collected, strict=True)))


def _each(sequences: Sequences) -> zip[tuple[str, bool]]:
    return zip(sequences.names, sequences.backwards, strict=True)


def _stacked(b: Builder, parts: Sequence[str], backwards: bool) -> str:
    rows = [b.reshape(p, (1, *b.shape(p))) for p in parts]
    return join(b, rows[::-1] if backwards else rows, 0)


def _part(b: Builder, x: str, number: str, backwards: bool) -> str:
    """Return the part of a sequence that belongs to an iteration."""
    steps, *rest = b.shape(x)
    size = int(np.prod(rest, dtype=np.int64))
    known = b.value(number)
    if known is not None:
        turn = steps - 1 - int(known) if backwards else int(known)
        strides = tuple(int(np.prod(rest[d + 1 :], dtype=np.int64)) for d in range(len(rest)))
        return b.view(x, tuple(rest), View(strides, turn * size))

    def address(i: Expr) -> Expr:
        last = const(steps - 1, DType.INT64)
        return times(call("Sub", last, i) if backwards else i, size)

    place = Place((1,), (number,), (View((0,)),), (), address, proven=True)
    return gather(b, x, place, size, rest)


# ---- keeping the loop ---------------------------------------------------------------------------


def _kept(site: Site, loop: Repetition) -> tuple[str, ...]:
    """Emit a Loop op: every iteration is alike."""
    b = site.b
    body = Builder(b)
    number = body.declare(body.fresh("iteration"), COUNTER)
    states = [body.declare(body.fresh("state"), b.type(s)) for s in loop.states]
    slices = [_part(body, x, number, back) for x, back in _each(loop.sequences)]
    loop.bind(body, number, states, slices)
    with body.repeated(1):
        made = list(site.lower_subgraph(loop.graph, body))
    going = made.pop(0) if loop.has_condition else ""
    known = body.value(going) if going else np.asarray(True)
    if known is not None and not bool(known.reshape(-1)[0]):
        raise UnsupportedError("a loop that always ends after one iteration", where=site.label)
    for i, (old, new) in enumerate(zip(states, made[: len(states)], strict=True)):
        if body.type(old) != body.type(new):
            raise UnsupportedError(
                f"state {i} is {body.type(old)}, then {body.type(new)}", where=site.label
            )
    parts = [body.type(p) for p in made[len(states) :]]
    conditional = known is None
    if parts and (loop.trips < 0 or conditional):
        raise UnsupportedError(
            "how many parts a result collects is known only at run time", where=site.label
        )
    graph = body.graph(
        loop.graph.name or "body", (number, *states), (*([going] if conditional else []), *made)
    )
    op = Loop(graph, loop.trips, len(states), conditional, loop.collected)
    types = [b.type(s) for s in loop.states]
    types += [TensorType(p.dtype, (loop.trips, *p.shape)) for p in parts]
    return b.emit(op, [loop.count, loop.start, *loop.states], *types)


# ---- Loop ---------------------------------------------------------------------------------------


@lowers("Loop")
def loop_(site: Site) -> tuple[str, ...]:
    """ONNX Loop-21: at most so many times, and while the body says so."""
    graph = site.subgraph("body")
    limit, start = site.const(0), site.const(1)
    states = tuple(site.input(i) for i in range(2, len(site.inputs)))
    collected = len(graph.outputs) - 1 - len(states)
    site.require(len(graph.inputs) == 2 + len(states) and collected >= 0, "the body does not fit")
    trips = -1 if limit is None else max(0, int(limit.reshape(-1)[0]))
    count = site.optional(0) if limit is None else ""
    begin = site.optional(1) if start is None else ""
    never = trips == 0 or (start is not None and not bool(start.reshape(-1)[0]))
    if collected and begin:
        raise site.unsupported("collected results of a loop that may not begin")

    def bind(builder: Builder, number: str, held: Sequence[str], _: Sequence[str]) -> None:
        going = builder.scalar(True, DType.BOOL)
        for value, name in zip(graph.inputs, (number, going, *held), strict=True):
            site.bind(builder, value, name)

    if never:
        return (*states, *(_nothing_collected(site, graph, bind, states) if collected else ()))
    backwards = (False,) * collected
    return lower_repetition(
        site, Repetition(graph, bind, trips, count, begin, states, Sequences(), True, backwards)
    )


def _nothing_collected(
    site: Site, graph: onnx_ir.Graph, bind: Bind, states: Sequence[str]
) -> Iterator[str]:
    """Yield the empty results of a loop that never begins; the body tells their types."""
    body = Builder(site.b)
    bind(body, body.declare(body.fresh("iteration"), COUNTER), states, ())
    for part in site.lower_subgraph(graph, body)[1 + len(states) :]:
        type_ = body.type(part)
        yield site.b.constant(np.empty((0, *type_.shape), type_.dtype.numpy))


# ---- Scan ---------------------------------------------------------------------------------------


@lowers("Scan")
def scan(site: Site) -> tuple[str, ...]:
    """ONNX Scan-21; before opset 9 all operands had a batch axis, and rows are done one by one."""
    if site.opset >= 9:
        return _scan(site, site.inputs)
    b = site.b
    if site.has(0):
        lengths = site.required_const(0, "the rows' lengths")
        if (lengths != site.shape(len(site.inputs) - 1)[1]).any():
            raise site.unsupported("rows of different lengths")
    rows = [_scan(site, [_row(b, x, r) for x in site.inputs[1:]]) for r in range(site.shape(1)[0])]
    whole = []
    for results in zip(*rows, strict=True):
        parts = [b.reshape(y, (1, *b.shape(y))) for y in results]
        whole.append(join(b, parts, 0))
    return tuple(whole)


def _row(b: Builder, x: str, row: int) -> str:
    shape = b.shape(x)
    strides = b.type(x).strides
    return b.view(x, shape[1:], View(strides[1:], row * strides[0]))


def _scan(site: Site, inputs: Sequence[str]) -> tuple[str, ...]:
    """Lower a Scan without a batch axis."""
    b, graph = site.b, site.subgraph("body")
    split = len(inputs) - site.int("num_scan_inputs")
    states, given = tuple(inputs[:split]), inputs[split:]
    count = len(given)
    site.require(split >= 0 and count > 0, f"{count} sequences, {split} states")
    site.require(len(graph.inputs) == split + count, "the body does not fit")
    axes = site.ints("scan_input_axes", [0] * count) or []
    name = "scan_input_directions" if site.opset >= 9 else "directions"
    turns = site.ints(name, [0] * count) or []
    site.require(len(axes) == count == len(turns), "axes or directions are missing")
    sequences = [
        _moved(b, x, site.axis(axis, len(b.shape(x))), 0)
        for x, axis in zip(given, axes, strict=True)
    ]
    lengths = {b.shape(x)[0] for x in sequences}
    site.require(len(lengths) == 1, f"sequences of different lengths, {sorted(lengths)}")
    collected = len(graph.outputs) - split
    out_axes = site.ints("scan_output_axes", [0] * collected) or []
    out_turns = site.ints("scan_output_directions", [0] * collected) or []

    def bind(builder: Builder, _: str, held: Sequence[str], parts: Sequence[str]) -> None:
        for value, name in zip(graph.inputs, (*held, *parts), strict=True):
            site.bind(builder, value, name)

    results = lower_repetition(site, Repetition(
        graph, bind, lengths.pop(), "", "", states,
        Sequences(tuple(sequences), tuple(t == 1 for t in turns)), False,
        tuple(t == 1 for t in out_turns),
    ))  # fmt: skip
    moved = (
        _moved(b, y, 0, site.axis(axis, len(b.shape(y))))
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
