"""The IR's rules, checked after every pass."""

from __future__ import annotations

from math import prod

from atc.errors import InternalError
from atc.ir.graph import Graph, Node, Op, TensorType, reads, type_of


def verify(graph: Graph, after: str) -> None:
    """Raise InternalError, naming the pass and the node, when a rule of the IR is broken.

    Values are defined once, before use and typed; constants match their types; each op's own rules
    hold; outputs exist.
    """
    known = {*graph.inputs, *graph.constants}
    inner = {o for n in graph.nodes for o in n.outputs}
    for name, array in graph.constants.items():
        if graph.types.get(name) != type_of(array):
            raise InternalError(f"after {after}: constant '{name}' is not of its type")
    for node in graph.nodes:
        for name in reads(node):
            if name in inner and name not in known:
                raise InternalError(f"after {after}: {_label(node)} reads '{name}' too early")
            if name not in graph.types:
                raise InternalError(f"after {after}: {_label(node)} reads untyped '{name}'")
        for name in node.outputs:
            if name in known or name not in graph.types:
                raise InternalError(f"after {after}: '{name}' is defined twice or untyped")
        known.update(node.outputs)
        try:
            results = tuple(graph.types[name] for name in node.outputs)
            _check(node.op, graph.types_of(node.inputs), results)
        except ValueError as error:
            raise InternalError(f"after {after}: {_label(node)}: {error}") from error
        for subgraph in node.op.subgraphs():
            verify(subgraph, after)
    for given, computed in graph.states:
        _check_state(graph, graph.inputs[given], graph.outputs[computed], after)
    missing = [o for o in graph.outputs if o not in graph.types]
    if missing:
        raise InternalError(f"after {after}: output '{missing[0]}' is not computed")


def _check_state(graph: Graph, state: str, result: str, after: str) -> None:
    """Check that a state that slides has the type of its result, and lies in both."""
    slide = graph.slides.get(state)
    if slide is None:
        return
    a, b = graph.types[state], graph.types[result]
    axes = zip(slide.loops, slide.strides, strict=True)
    end = sum((n - 1) * stride for n, stride in axes) + slide.step - slide.behind
    whole = prod(slide.loops) == prod(slide.shape) and end < a.size
    begins = 0 <= slide.behind <= slide.step or slide.behind == slide.step < 0
    if a != b or not whole or not begins:
        raise InternalError(f"after {after}: state '{state}', {a} -> {b}, can't be {slide}")


def _check(
    op: Op, inputs: tuple[TensorType | None, ...], outputs: tuple[TensorType, ...]
) -> None:
    """Check an op's own rules, unless they were found to hold for these types.

    Most nodes are the same objects before and after a pass; subgraphs are looked at again.
    """
    known = vars(op)
    if known.get(_HOLDS) != (inputs, outputs):
        op.check(inputs, outputs)
        if not op.subgraphs():
            known[_HOLDS] = (inputs, outputs)


_HOLDS = "_rules_hold"
"""Under which an op, which never changes, keeps the types that its rules hold for."""


def _label(node: Node) -> str:
    origin = node.origin[0] if node.origin else "?"
    return f"{node.op.kind} '{origin}'"
