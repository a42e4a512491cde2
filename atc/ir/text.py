"""Graphs as text, for `--dump`, golden tests and the generated graph.txt."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import Field, fields

from atc.dims import plain
from atc.ir.expr import Expr, Input, text
from atc.ir.graph import DType, Graph, Node, Op
from atc.ir.ops import Block, Epilogue, Map, Unblock
from atc.ir.ops.data import Pad
from atc.ir.view import View, dense


def dump(graph: Graph) -> str:
    """Return the graph, one line a node: outputs = Op(attributes) inputs  # the user's nodes."""
    return plain("\n".join(_lines(graph, ""))) + "\n"


def _lines(graph: Graph, indent: str) -> Iterator[str]:
    inputs = ", ".join(f"{_name(i)}: {graph.types[i]}" for i in graph.inputs)
    yield f"{indent}graph {_name(graph.name)}({inputs})"
    for name, array in graph.constants.items():
        yield f"{indent}  const {_name(name)}: {graph.types[name]} {array.nbytes} bytes"
    for node in graph.nodes:
        yield f"{indent}  {_node(graph, node)}"
        for subgraph in node.op.subgraphs():
            yield from _lines(subgraph, indent + "    ")
    yield f"{indent}  return {', '.join(map(_name, graph.outputs))}"


def _node(graph: Graph, node: Node) -> str:
    outputs = ", ".join(f"{_name(o)}: {graph.types[o]}" for o in node.outputs)
    inputs = ", ".join(_name(i) if i else "-" for i in node.inputs)
    origin = f"  # {'; '.join(map(_name, node.origin))}" if node.origin else ""
    return f"{outputs} = {op_text(node.op)} {inputs}{origin}"


def op_text(op: Op) -> str:
    """Return an op with its attributes, e.g. `Map(shape=(4,), expr=Max(x0, 0.0), views=(1))`.

    Those with their default values are left out.
    """
    return _called(op, [f for f in _attributes(op) if getattr(op, f.name) != f.default])


def op_key(op: Op) -> str:
    """Return an op with all of its attributes: a text that no other op has."""
    return _called(op, _attributes(op))


def _attributes(op: Op) -> list[Field[object]]:
    own = fields(op)  # type: ignore[arg-type]
    return [f for f in own if not isinstance(getattr(op, f.name), Graph)]


def _called(op: Op, attributes: Iterable[Field[object]]) -> str:
    parts = (f"{f.name}={_value(getattr(op, f.name))}" for f in attributes)
    return f"{op.kind}({', '.join(parts)})"


def node_text(node: Node) -> str:
    """Return the model's nodes that a node computes, `conv1 + relu1`, or what the node is for.

    Those of the compiler's own compute nothing: they bring values into the form that others read.
    """
    return " + ".join(node.origin) or _purpose(node.op)


def _purpose(op: Op) -> str:
    match op:
        case Block(block=b):
            return f"reorder to nchw{b}c"
        case Unblock():
            return "reorder to nchw"
        case Map(shape=shape, expr=Input(), views=(view,)):
            return "copy" if view == dense(shape) else "reorder"
        case Pad():
            return "padding"
        case _:
            return op.kind


def _value(value: object) -> str:
    match value:
        case Expr():
            return text(value)
        case View():
            offset = f"+{value.offset}" if value.offset else ""
            return f"<{','.join(map(str, value.strides))}{offset}>"
        case DType():
            return value.label
        case Epilogue():
            views = "".join(_value(v) for v in value.views)
            return f"{text(value.expr)}{views}"
        case tuple():
            return f"({', '.join(map(_value, value))})"
        case _:
            return str(value)


def _name(name: str) -> str:
    return "".join(c if c.isprintable() and c not in " ,()=#" else "_" for c in name)
