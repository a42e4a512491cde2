"""A state whose parts are overwritten one after another is joined of what they become.

Exporters write so what several layers keep in one state: a Scatter for each of them, read by those
behind as the next version of it, perhaps of a part that is then written back.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np

from atc.dims import is_dynamic
from atc.ir.graph import Graph, Node, prune, reads
from atc.ir.ops import Reshape
from atc.ir.ops.data import Concat
from atc.ir.view import addresses, affine_table
from atc.passes.canonical.movements import (
    Places,
    movement_of,
    places_of,
    source_of,
    whole_of,
    written_places,
)


@dataclass(frozen=True)
class _Versions:
    """Versions of a base, which Scatters make one after another, by their numbers."""

    base: str
    updates: tuple[tuple[str, Places], ...]
    """What each writes, and to where."""
    numbers: Mapping[str, int]


def join_parts(graph: Graph, value: str, state: str) -> Graph | None:
    """Return a graph in which a value made of a state is a Concat, None where it isn't one of all.

    Whoever reads an earlier version reads what that part of it was made of.
    """
    made = graph.producers()
    value = whole_of(made, value)
    found = _versions(graph, made, value)
    joined = None if found is None else _concat(found, graph.types[value].size)
    if found is None or joined is None:
        return None
    nodes = list(_nodes(graph, made, found, value, state))
    if len(nodes) != len(graph.nodes):
        return None
    place = next(k for k, node in enumerate(nodes) if value in node.outputs)
    inputs = tuple(name for name, _ in sorted(found.updates, key=lambda u: int(u[1].min())))
    nodes[place] = replace(nodes[place], op=joined, inputs=inputs)
    graph = prune(replace(graph, nodes=tuple(nodes)))
    for name in inputs:
        graph = join_parts(graph, name, state) or graph
    return graph


def _versions(graph: Graph, made: Mapping[str, Node], value: str) -> _Versions | None:
    """Return the versions of which a value is the last, None where it's no such."""
    found: list[tuple[str, Places]] = []
    names: list[str] = []
    while (node := made.get(value)) is not None:
        written = written_places(node)
        if written is None or is_dynamic(graph.types[value].shape):
            break
        names.insert(0, value)
        found.insert(0, (node.inputs[1], written))
        value = whole_of(made, node.inputs[0])
    return _Versions(value, tuple(found), {v: k for k, v in enumerate(names)}) if found else None


def _concat(versions: _Versions, size: int) -> Concat | None:
    """Return the op that joins what is written, if that is all, in parts of rows."""
    places = sorted((written for _, written in versions.updates), key=lambda w: int(w.min()))
    outer = 1 + int(np.count_nonzero(np.diff(places[0]) != 1))
    pitch, begin = size // outer, 0
    for written in places:
        part = written.size // outer
        rows = begin + np.arange(outer)[:, None] * pitch + np.arange(part)
        if not np.array_equal(rows.ravel(), written):
            return None
        begin += part
    return Concat(outer, tuple(w.size // outer for w in places)) if begin == pitch else None


def _nodes(
    graph: Graph, made: Mapping[str, Node], versions: _Versions, value: str, state: str
) -> Iterator[Node]:
    """Yield the nodes, reading no version but the last; end early where one can't."""
    numbers, last = dict(versions.numbers), versions.numbers[value]
    for node in graph.nodes:
        known = {numbers[i] for i in reads(node) if i in numbers} - {last}
        if not known or node.outputs[0] in versions.numbers:
            yield node
            continue
        (number, *others) = known
        moved = None
        if isinstance(node.op, Reshape):
            numbers[node.outputs[0]], moved = number, node
        elif not others:
            moved = _reader(graph, made, versions, number, node, state)
        if moved is None or not graph.ends.isdisjoint((*numbers.keys() - {value},)):
            return
        yield moved


def _reader(
    graph: Graph, made: Mapping[str, Node], versions: _Versions, number: int, node: Node, state: str
) -> Node | None:  # fmt: skip
    """Return a movement of a version as one of what it reads of it, None where that is several."""
    op = movement_of(node)
    if op is None:
        return None
    places = addresses(op.shape, op.views[0]).ravel()
    for name, written in reversed(versions.updates[: number + 1]):
        inside = np.isin(places, written)
        if inside.all():
            order = np.argsort(written)
            own = order[np.searchsorted(written, places, sorter=order)]
            view = affine_table(own.reshape(op.shape))
            return None if view is None else replace(node, op=replace(op, views=(view,)),
                                                     inputs=(name,))  # fmt: skip
        if inside.any():
            return None
    moves, source = source_of(made, versions.base)
    of_state = places_of(moves, graph.types[versions.base].size)[places]
    view = affine_table(of_state.reshape(op.shape)) if source == state else None
    if view is None:
        return replace(node, inputs=(versions.base,))
    return replace(node, op=replace(op, views=(view,)), inputs=(state,))
