"""States that are a window over what came last move on in memory, instead of being copied."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np

from atc.dims import is_dynamic
from atc.ir.expr import Input, const
from atc.ir.graph import Array, DType, Graph, Node, Slide, TensorType, prune, reads
from atc.ir.ops import Map
from atc.ir.ops.data import Concat, Scatter
from atc.ir.view import View, affine_table, dense, simplify_loops
from atc.passes.canonical.movements import places_of, source_of
from atc.passes.rewriting import fresh_name


@dataclass(frozen=True)
class _Window:
    """A state, the Concat of it (or of what a run keeps of it) and what is new, and its slide."""

    state: str
    joined: Node
    output: int
    slide: Slide
    inside: bool
    """Whether all of the state lies in its input."""

    @property
    def first(self) -> bool:
        """Whether what is new comes first."""
        return self.slide.step < 0

    @property
    def news(self) -> slice:
        """The operands of the Concat that are new."""
        return slice(None, -1) if self.first else slice(1, None)


def slide_states(graph: Graph, outer: Mapping[str, Array]) -> Graph:
    """Let windows slide: states whose next value is in a Concat of them and what is new.

    Then a run writes what is new behind the state, where that lies, and nothing is moved: the next
    state begins further on in the same memory, its rows as far apart as before. What was the first
    of a row, and is dropped, becomes the place of what is new in the row before. Where what is new
    comes first, it's written before the state, and all moves the other way.
    """
    for given, computed in graph.states:
        ways = (_window(graph, graph.inputs[given], computed, first) for first in (False, True))
        window = next((found for found in ways if found is not None), None)
        if window is not None:
            graph = _sliding(graph, window)
    return graph


def _window(graph: Graph, state: str, output: int, first: bool) -> _Window | None:
    """Return the window that a state is, None where it is no such or sliding doesn't pay.

    What is new comes `first` in it, or last.
    """
    made, own = graph.producers(), graph.types[state]
    if is_dynamic(own.shape) or not own.size or state in graph.slides:
        return None
    moves, whole = source_of(made, graph.outputs[output])
    joined = made.get(whole)
    if joined is None or not isinstance(joined.op, Concat) or is_dynamic(graph.types[whole].shape):
        return None
    moved, source = source_of(made, joined.inputs[-1 if first else 0])
    rows, old, pitch = joined.op.outer, joined.op.parts[-1 if first else 0], sum(joined.op.parts)
    step = pitch - old
    if source != state or step > (old if rows > 1 else old // 2):
        return None  # to move the rest costs less; in one row what is new is computed in place
    places = places_of(moves, own.size)
    kept = np.arange(rows)[:, None] * pitch + np.arange(old) + (step if first else 0)
    step = -step if first else step
    if not np.array_equal(places[places_of(moved, kept.size)] - step, kept.ravel()):
        return None
    view, least = affine_table(places.reshape(own.shape)), int(places.min())
    if view is None or view.offset != least:
        return None
    loops, (_, view) = simplify_loops(own.shape, [dense(own.shape), view])
    if len(loops) > (3 if view.strides[-1:] == (1,) else 2):
        return None  # runs of elements in two loops are saved, and no others
    behind = step if first else max(step - least, 0)
    inside = behind <= 0 and int(places.max()) - step < graph.types[whole].size
    slide = Slide(own.shape, loops, view.strides, step, behind)
    readers = [n for n in graph.nodes if state in reads(n)]
    alone = len(readers) == 1 and graph.uses()[joined.inputs[0]] == 1
    if any(state not in n.inputs for n in readers) or not (inside or alone):
        return None
    if whole in graph.ends and graph.outputs[output] != whole:
        return None
    return _Window(state, joined, output, slide, inside)


def _sliding(graph: Graph, window: _Window) -> Graph:
    state, (result,) = window.state, window.joined.outputs
    types = {**graph.types, state: graph.types[result]}
    nodes = tuple(_nodes(graph, window, types))
    outputs = list(graph.outputs)
    outputs[window.output] = result
    slides = {**graph.slides, state: window.slide}
    return prune(replace(graph, nodes=nodes, types=types, outputs=tuple(outputs), slides=slides))


def _nodes(graph: Graph, window: _Window, types: dict[str, TensorType]) -> Iterator[Node]:
    """Yield the nodes of a graph in which a state slides; add the types of their values.

    Whoever reads the state reads it where it lies: before what is new is written, or after.
    """
    state, slide, own = window.state, window.slide, graph.types[window.state]
    place = state
    for node in graph.nodes:
        if node is window.joined:
            yield from _written(graph, window, types)
            (place,) = node.outputs
        elif state in reads(node) and window.inside:
            begin = fresh_name(types, f"{state}.begin")
            types[begin] = own
            view = Map(slide.loops, Input(own.dtype, 0), (View(slide.strides, -slide.behind),))
            yield Node(view, (place,), (begin,), node.origin)
            yield replace(node, inputs=tuple(begin if i == state else i for i in node.inputs))
        else:
            yield node


def _written(graph: Graph, window: _Window, types: dict[str, TensorType]) -> Iterator[Node]:
    """Yield what writes the new elements of each row behind the old ones, or before them."""
    joined, step = window.joined, abs(window.slide.step)
    assert isinstance(joined.op, Concat)
    (result,), rows = joined.outputs, joined.op.outer
    news, parts = joined.inputs[window.news], joined.op.parts[window.news]
    type_ = graph.types[result]
    new = news[0]
    if len(news) > 1:
        new = fresh_name(types, f"{result}.new")
        types[new] = TensorType(type_.dtype, (rows, step))
        yield Node(Concat(rows, parts), tuple(news), (new,), joined.origin)
    pitch = type_.size // rows
    begin = 0 if window.first else pitch - step
    write = Scatter(
        (rows,), step, Input(DType.INT64, 0), (), Input(type_.dtype, 1), True,
        (View((pitch,), begin),),
    )  # fmt: skip
    if rows == 1:
        write = replace(write, shape=(), address=const(begin, DType.INT64), coordinates=())
    yield Node(write, (window.state, new), joined.outputs, joined.origin)
