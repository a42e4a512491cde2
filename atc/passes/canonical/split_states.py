"""States of several layers that were stacked in one are states again.

Each layer reads and replaces a part of it. Apart, a window over what came last may move on in its
memory, and a recurrent layer replaces its state where that lies.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod

from atc.dims import is_dynamic
from atc.ir.expr import Input
from atc.ir.graph import Array, Graph, Node, TensorType, prune, reads
from atc.ir.ops import Map, Recurrent, Reshape
from atc.ir.ops.data import Concat
from atc.ir.view import addresses, affine_table, dense
from atc.passes.canonical.join_parts import join_parts
from atc.passes.canonical.movements import movement_of, part_of, source_of, whole_of
from atc.passes.rewriting import fresh_name


@dataclass(frozen=True)
class _Stack:
    """A state, by its number among the states, whose parts a Concat joins; who reads each part."""

    number: int
    joined: Node
    readers: Mapping[str, tuple[int, Map]]
    """By the value that is read so: the part's number, and how it reads that alone."""


def split_states(graph: Graph, outer: Mapping[str, Array]) -> Graph:
    """Make a state of each part of those whose parts are windows or recurrent layers' states.

    Others are better together: their parts are computed side by side, and replace all at once.
    """
    number = 0
    while number < len(graph.states):
        given, computed = graph.states[number]
        joined = join_parts(graph, graph.outputs[computed], graph.inputs[given]) or graph
        stack = _stack(joined, number)
        graph = graph if stack is None else _split(joined, stack)
        number += stack is None  # parts may be stacks, too
    return graph


def _stack(graph: Graph, number: int) -> _Stack | None:
    """Return how a state is made of parts, None where it isn't."""
    given, computed = graph.states[number]
    state, result = graph.inputs[given], graph.outputs[computed]
    made, uses = graph.producers(), graph.uses()
    moves, result = source_of(made, result, lambda value: uses[value] == 1)
    joined = made.get(result)
    if joined is None or not isinstance(joined.op, Concat) or moves or uses[result] > 1:
        return None
    if is_dynamic((graph.types[state].shape, joined.op.parts)) or state in graph.slides:
        return None
    readers: dict[str, tuple[int, Map]] = {}
    for node in _readers(graph, state):
        part = _part(joined.op, node)
        if part is None:
            return None
        readers[node.outputs[0]] = part
    apart = all(
        _keeps_some(made, value, state) or _is_of_a_layer(made, value, k, readers)
        for k, value in enumerate(joined.inputs)
    )
    return _Stack(number, joined, readers) if readers and apart else None


def _keeps_some(made: Mapping[str, Node], value: str, state: str) -> bool:
    """Return whether a value is of a Concat of what it has of a state and more, or of such."""
    joined = made.get(source_of(made, value)[1])
    if joined is None or not isinstance(joined.op, Concat):
        return False
    ends = {source_of(made, joined.inputs[k])[1] for k in (0, -1)}
    return state in ends or all(_keeps_some(made, each, state) for each in joined.inputs)


def _is_of_a_layer(
    made: Mapping[str, Node], value: str, part: int, readers: Mapping[str, tuple[int, Map]]
) -> bool:
    """Return whether a value is what becomes of a part of the state in a recurrent layer."""
    value = whole_of(made, value)
    layer = made.get(value)
    if layer is None or not isinstance(layer.op, Recurrent):
        return False
    before = layer.inputs[4:][layer.outputs.index(value) :][:1]  # h, or c
    return any(readers.get(whole_of(made, each), (-1,))[0] == part for each in before)


def _readers(graph: Graph, value: str) -> Iterator[Node]:
    """Yield the nodes that read a value, through reshapes and copies, too."""
    for node in graph.nodes:
        if value in reads(node):
            if _is_same(node, graph.types[value].size) and node.outputs[0] not in graph.ends:
                yield from _readers(graph, node.outputs[0])
            else:
                yield node


def _is_same(node: Node, size: int) -> bool:
    """Return whether a node's result is all of its operand of a size, in its order."""
    op = movement_of(node)
    if op is None:
        return isinstance(node.op, Reshape)
    return prod(op.shape) == size and op.views[0].is_dense(op.shape)


def _part(joined: Concat, node: Node) -> tuple[int, Map] | None:
    """Return the only part that a movement reads, and how it reads that alone."""
    op = movement_of(node)
    if op is None:
        return None
    found = part_of(joined, addresses(op.shape, op.views[0]))
    if found is None:
        return None
    number, places = found
    view = affine_table(places.reshape(op.shape))
    return None if view is None else (number, replace(op, views=(view,)))


def _split(graph: Graph, stack: _Stack) -> Graph:
    given, computed = graph.states[stack.number]
    state, types = graph.inputs[given], dict(graph.types)
    parts, results, copies = [], [], []
    for k, value in enumerate(stack.joined.inputs):
        parts.append(fresh_name(types, f"{state}.{k}"))
        types[parts[-1]] = types[value]
        if value in graph.ends or value in results or value not in graph.producers():
            copies.append(_copy(value, types, stack.joined))
            (value,) = copies[-1].outputs
        results.append(value)
    nodes = [
        _reading(n, parts, stack.readers[n.outputs[0]]) if n.outputs[0] in stack.readers else n
        for n in graph.nodes
    ]
    states = [*graph.states]
    states[stack.number : stack.number + 1] = [(given + k, computed + k) for k in range(len(parts))]
    more, own = len(parts) - 1, range(stack.number, stack.number + len(parts))
    moved = tuple(
        pair if k in own else (_behind(pair[0], given, more), _behind(pair[1], computed, more))
        for k, pair in enumerate(states)
    )
    return prune(replace(
        graph, inputs=_with(graph.inputs, given, parts), types=types, states=moved,
        outputs=_with(graph.outputs, computed, results), nodes=(*nodes, *copies),
    ))  # fmt: skip


def _reading(node: Node, parts: Sequence[str], reader: tuple[int, Map]) -> Node:
    number, op = reader
    return replace(node, op=op, inputs=(parts[number],))


def _copy(value: str, types: dict[str, TensorType], like: Node) -> Node:
    """Return a copy of a value that is no result of its own; add its type."""
    type_, name = types[value], fresh_name(types, f"{value}.next")
    types[name] = type_
    op = Map(type_.shape, Input(type_.dtype, 0), (dense(type_.shape),))
    return Node(op, (value,), (name,), like.origin)


def _behind(number: int, place: int, more: int) -> int:
    """Return a number of an input or output where `more` are put behind a place."""
    return number + more if number > place else number


def _with(names: Sequence[str], place: int, parts: Sequence[str]) -> tuple[str, ...]:
    return (*names[:place], *parts, *names[place + 1 :])
