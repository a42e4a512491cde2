"""Stores in 16 bits what these hold exactly, where memory or time gains by it; no number changes.

Such are the values of models in float16 or bfloat16, and those that a precision mode rounds:
results that are rounded, and what is chosen among them. Whoever computes with them widens them as
it reads.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from math import prod

import numpy as np

from atc.dims import is_dynamic
from atc.ir.expr import Call, Const, Expr, Input, cast
from atc.ir.graph import Array, DType, Graph, Node, captured, reads
from atc.ir.ops import (
    Attention,
    Conv,
    ConvBlocked,
    Epilogue,
    Map,
    MatMul,
    Normalize,
    NormalizeBlocked,
    Softmax,
)
from atc.ir.ops.sampling import Resample
from atc.ir.view import dense
from atc.passes.layout.held_memory import HeldMemory
from atc.passes.layout.store_bf16 import State, Storing, groups, moves, taken, widened

COMPUTED = (Conv, ConvBlocked, MatMul, Map, Softmax, Normalize, NormalizeBlocked, Attention)
"""Ops with kernels that round what they store."""
CHOOSING = frozenset({"Max", "Min", "Abs", "Neg"})
"""Functions whose results are one of their operands, or this negated."""
WORTH = 0.12
"""Part of the time of the nodes that make and read a value that half of its memory may cost."""

ROOM = 5 / 6
"""Part of the most memory up to which values may be floats for time alone: plans have gaps."""
AFAR = 8.0
"""Bytes per cycle at which a node passes over an image only to round it, that comes from afar."""


def store_exact(graph: Graph, outer: Mapping[str, Array], storing: Storing | None) -> Graph:
    """Store in 16 bits all values that lose nothing by it, where that costs little time."""
    if storing is not None:
        for half in (DType.FLOAT16, DType.BFLOAT16):
            graph = _stored(graph, outer, storing, half)
    return graph


def _stored(graph: Graph, outer: Mapping[str, Array], storing: Storing, half: DType) -> Graph:
    """Store in one of the types of 16 bits: all that can be, but for what is faster as floats and
    needs no more memory than is held at some other time anyway."""
    exact = _exact_values(graph, half)
    if not exact:
        return graph
    state = State(graph, outer, storing, dict(graph.types), half, storing.near, exact=True)
    state.passing = storing.cascaded(graph, outer)
    narrow = []
    for group in groups(graph):
        able = exact.issuperset(group) and all(_storable(state, name) for name in group)
        if able and state.gain(group) > -WORTH * state.cycles(group):
            state.types = state.narrowed(group)
            narrow.append(group)
    _widen_where_there_is_room(state, narrow)
    stored = _rounded_by_resampling(without_copies(state.stored()), half)
    return _rounded_by_convolutions(stored, outer, storing, half)


def _widen_where_there_is_room(state: State, narrow: Sequence[tuple[str, ...]]) -> None:
    """Make floats again of values that cost time in 16 bits, where that leaves the most memory
    that is held at a time as it is; first of those that cost most.

    At first those that take no more memory so where they are held, as values in stripes may, by
    which there may be less at most; that may cost as much time as halves may.
    """
    if not narrow:
        return
    nodes = state.graph.nodes
    held = HeldMemory(state.graph, state.storing.near, state.passing)
    scratch = [state.scratch(node) for node in nodes]
    places = {id(node): k for k, node in enumerate(nodes)}
    for locally in (True, False):
        if not locally:  # of these types other calls are cascades
            held.rows = state.passing = state.storing.cascaded(state.stored(), state.outer)
        most = held.most(state.types, scratch)
        losses = {g: -state.gain_of_narrow(g) for g in narrow if state.is_narrow(g)}
        for group in sorted(losses, key=lambda g: -losses[g]):
            gain, before, wide = state.gain_of_narrow(group), state.types, state.widened(group)
            touched = [places[id(n)] for n in state.touched(group)]
            where = {*held.while_held(group), *touched}
            limit = held.during(where, before, scratch) if locally else ROOM * most
            if gain >= 0:
                if not locally or limit < most or gain > WORTH * state.cycles(group):
                    continue
                limit -= 1
            state.types, trial = wide, [*scratch]
            for k in touched:
                trial[k] = state.scratch(nodes[k])
            if held.during(where, wide, trial) <= limit:
                scratch = trial
            else:
                state.types = before


def _rounded_by_resampling(graph: Graph, half: DType) -> Graph:
    """Return the graph with what is only interpolated and rounded stored so in one step."""
    makers = {name: node for node in graph.nodes for name in node.outputs}
    count = Counter(name for node in graph.nodes for name in dict.fromkeys(reads(node)))
    rounding = cast(Input(DType.FLOAT, 0), half)
    results: dict[str, str] = {}
    for node in graph.nodes:
        x = node.inputs[0] if isinstance(node.op, Map) and node.op.expr == rounding else ""
        resampled = x in makers and isinstance(makers[x].op, Resample)
        if resampled and count[x] == 1 and x not in graph.ends and _is_whole(graph, node):
            results[x] = node.outputs[0]
    if not results:
        return graph
    nodes = (
        replace(n, outputs=tuple(results.get(o, o) for o in n.outputs))
        for n in graph.nodes if results.keys().isdisjoint(n.inputs)
    )  # fmt: skip
    return replace(graph, nodes=tuple(nodes))


def _rounded_by_convolutions(
    graph: Graph, outer: Mapping[str, Array], storing: Storing, half: DType
) -> Graph:
    """Return the graph without nodes that only rounded what one convolution reads, which rounds it
    as it reads it then: such is the image that a network is given."""
    state = State(graph, outer, storing, dict(graph.types), half)
    rounded = cast(Input(DType.FLOAT, 0), half)
    exprs = (rounded, cast(rounded, DType.FLOAT))
    replaced: dict[str, Node] = {}
    for node in graph.nodes:
        maker = state.makers.get(node.inputs[0]) if isinstance(node.op, ConvBlocked) else None
        if maker is None or not isinstance(maker.op, Map) or maker.op.expr not in exprs:
            continue
        name, x = maker.outputs[0], graph.types[maker.inputs[0]]
        alone = [*reads(node)].count(name) == 1 and state.readers[name] == [node]
        same = _is_whole(graph, maker) and x.shape == graph.types[name].shape
        if not alone or not same or name in graph.ends:
            continue
        assert isinstance(node.op, ConvBlocked)
        rounding = replace(
            node, op=replace(node.op, rounds=half), inputs=(maker.inputs[0], *node.inputs[1:])
        )
        if state.is_cheaper(rounding, node, (x.nbytes + graph.types[name].nbytes) / AFAR):
            replaced |= {name: maker, node.outputs[0]: rounding}
    return replace(graph, nodes=tuple(
        replaced.get(n.outputs[0], n) if n.outputs else n for n in graph.nodes
        if not n.outputs or replaced.get(n.outputs[0]) is not n
    ))  # fmt: skip


def _exact_values(graph: Graph, half: DType) -> frozenset[str]:
    """Return the names of the floats that nodes compute and that 16 bits hold."""
    exact: set[str] = set()
    for node in graph.nodes:
        if is_exact(node, exact, half):
            exact.update(n for n in node.outputs if graph.types[n].dtype is DType.FLOAT)
    return frozenset(exact)


def is_exact(node: Node, exact: set[str], half: DType) -> bool:
    """Return whether 16 bits hold a node's results, if they hold the values `exact`."""
    if moves(node):
        return exact.issuperset(node.inputs)
    match node.op:
        case Map():
            return holds(node.op.expr, lambda k: node.inputs[k] in exact, half)
        case Conv() | ConvBlocked() | MatMul() | Softmax() | Normalize() | NormalizeBlocked():
            return len(node.outputs) == 1 and _ends_exact(node, node.op.epilogue, exact, half)
        case Attention():
            return _ends_exact(node, node.op.result, exact, half)
        case _:
            return False


def _ends_exact(node: Node, last: Epilogue, exact: set[str], half: DType) -> bool:
    """Return whether 16 bits hold what an epilogue makes, whose operands are the last ones."""
    first = len(node.inputs) - len(last.views)
    return holds(last.expr, lambda k: k > 0 and node.inputs[first + k - 1] in exact, half)


def holds(expr: Expr, exact: Callable[[int], bool], half: DType) -> bool:
    """Return whether 16 bits hold a float expression's values; `exact`: those of an operand."""
    match expr:
        case Input():
            return expr.dtype is DType.FLOAT and exact(expr.index)
        case Const():
            with np.errstate(over="ignore"):
                number = np.float32(expr.value)
                return bool(np.isnan(number) or number.astype(half.numpy) == number)
        case Call(fn="Cast", args=(x,)):
            return expr.dtype is DType.FLOAT and x.dtype is half
        case Call(fn=fn, args=args) if fn in CHOOSING:
            return all(holds(a, exact, half) for a in args)
        case Call(fn="Where", args=(_, a, b)):
            return holds(a, exact, half) and holds(b, exact, half)
        case _:
            return False


def rounded_once_each(
    graph: Graph, constants: frozenset[str], half: DType
) -> Iterator[Node]:
    """Yield the nodes without rounding of what is exact anyway, as the constants are."""
    exact: set[str] = {*constants}
    for node in graph.nodes:
        once = _without_rounding(node, exact, half)
        if is_exact(once, exact, half):
            exact.update(n for n in once.outputs if graph.types[n].dtype is DType.FLOAT)
        yield once


def _without_rounding(node: Node, exact: set[str], half: DType) -> Node:
    """Return a node that doesn't round what is exact in 16 bits, as the values `exact` are."""
    match node.op:
        case Map(expr=Call(fn="Cast", args=(Call(fn="Cast", args=(x,)) as rounded,))):
            floats = rounded.dtype is half and x.dtype is DType.FLOAT
            if floats and holds(x, lambda k: node.inputs[k] in exact, half):
                return replace(node, op=replace(node.op, expr=cast(x, node.op.expr.dtype)))
    return node


def _storable(state: State, name: str) -> bool:
    """Return whether a value is one of floats that is computed and read where vectors may be."""
    type_, node = state.types[name], state.makers.get(name)
    if node is None or type_.dtype is not DType.FLOAT or is_dynamic(type_.shape):
        return False
    computed = isinstance(node.op, COMPUTED) or moves(node)
    inside = name not in state.graph.ends and bool(state.readers.get(name))
    return computed and inside and all(_reads(n, name) for n in state.readers[name])


def _reads(node: Node, name: str) -> bool:
    """Return whether a node reads a value only where it may have 16 bits."""
    read = (*taken(node), *widened(node)).count(name)
    return moves(node) or read == [*reads(node)].count(name)


def without_copies(graph: Graph) -> Graph:
    """Return the graph without nodes that only copied a value to widen it."""
    source: dict[str, str] = {}
    nodes = []
    inside = {n for node in graph.nodes for g in node.op.subgraphs() for n in captured(g)}
    for node in graph.nodes:
        inputs = tuple(source.get(n, n) for n in node.inputs)
        if _copies(graph, node) and node.outputs[0] not in inside:
            source[node.outputs[0]] = inputs[0]
        else:
            nodes.append(replace(node, inputs=inputs) if inputs != node.inputs else node)
    return replace(graph, nodes=tuple(nodes)) if source else graph


def _copies(graph: Graph, node: Node) -> bool:
    """Return whether a node's result, which only nodes read, is its operand."""
    if not isinstance(node.op, Map) or not node.op.is_movement or node.outputs[0] in graph.ends:
        return False
    x, y = graph.types[node.inputs[0]], graph.types[node.outputs[0]]
    return x == y and _is_whole(graph, node)


def _is_whole(graph: Graph, node: Node) -> bool:
    """Return whether a Map's result has the elements of its operand in their order."""
    x, y = graph.types[node.inputs[0]], graph.types[node.outputs[0]]
    if not isinstance(node.op, Map) or node.op.coordinates or is_dynamic((x.shape, y.shape)):
        return False
    whole = node.op.views[0] == dense(node.op.shape) and prod(node.op.shape) == y.size
    return whole and x.size == y.size
