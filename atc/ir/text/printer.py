"""Graphs, nodes and ops as text."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import Field, fields, is_dataclass
from typing import Any

from atc.dims import Dim, plain
from atc.ir.expr import Expr, Input, text
from atc.ir.graph import Array, DType, Graph, Node, Op, TensorType
from atc.ir.ops import Block, Epilogue, Map, Unblock
from atc.ir.ops.data import Pad
from atc.ir.text.data import data_text
from atc.ir.view import View, dense

NAME = re.compile(r"[\w./@$][\w./@#$-]*(?::+[\w./@#$-]+)*")
"""A name that needs no quotes."""
KEYWORDS = frozenset({"graph", "dim", "guard", "composite", "warning", "state", "slide", "length",
                      "const", "dequantized", "alias", "return"})  # fmt: skip


Reading = Callable[[Array], AbstractContextManager[None]]
"""Makes what is entered while a constant's data is read."""


def dump(graph: Graph, reading: Reading = lambda constant: nullcontext()) -> str:
    """Return the graph, one line a node: outputs = Op(attributes) inputs  # the user's nodes.

    Each constant is read within `reading` of it, which may check its file or give back its memory.
    """
    return plain("\n".join(_lines(graph, "", reading))) + "\n"


def _lines(graph: Graph, indent: str, reading: Reading) -> Iterator[str]:
    yield f"{indent}graph {_name(graph.name)}({_typed(graph, graph.inputs)})"
    yield from (f"{indent}  {line}" for line in _declarations(graph, reading))
    for node in graph.nodes:
        yield f"{indent}  {_node(graph, node)}"
        for subgraph in node.op.subgraphs():
            yield from _lines(subgraph, indent + "    ", reading)
    yield f"{indent}  return {', '.join(map(_name, graph.outputs))}".rstrip()


def _declarations(graph: Graph, reading: Reading) -> Iterator[str]:
    yield from (f"dim {_value(symbol)}" for symbol in graph.dims)
    yield from (f"guard {extent}" for extent in graph.guards)
    yield from (f"composite {_value(each)}" for each in graph.composites)
    yield from (f"warning {_quoted(each)}" for each in graph.warnings)
    yield from (f"state {given} -> {computed}" for given, computed in graph.states)
    yield from (f"slide {_name(name)}: {_value(how)}" for name, how in graph.slides.items())
    yield from (f"length {symbol}: {following}" for symbol, following in graph.lengths)
    for name, array in graph.constants.items():
        with reading(array):
            text = data_text(array)
        yield f"const {_name(name)}: {graph.types[name]} = {text}"
    for name, alias in graph.aliases.items():
        yield f"alias {_name(name)}: {alias.kind} {_name(alias.of)}"
    for name, origin in graph.quantization.items():
        both = []
        for array in (origin.integers, origin.scale):
            type_ = TensorType(DType.from_numpy(array.dtype), array.shape)
            with reading(array):
                both.append(f"{type_} = {data_text(array)}")
        yield f"dequantized {_name(name)}: {' * '.join(both)}"


def _node(graph: Graph, node: Node) -> str:
    inputs = ", ".join(_name(i) if i else "-" for i in node.inputs)
    origin = f"  # {'; '.join(map(_name, node.origin))}" if node.origin else ""
    return f"{_typed(graph, node.outputs)} = {op_text(node.op)} {inputs}".rstrip() + origin


def _typed(graph: Graph, names: Iterable[str]) -> str:
    return ", ".join(f"{_name(name)}: {graph.types[name]}" for name in names)


def op_text(op: Op) -> str:
    """Return an op with its attributes, e.g. `Map(shape=(4,), expr=Max(x0, 0.0), views=(1))`.

    Those with their default values are left out.
    """
    return _called(op, _attributes(op))


def op_key(op: Op) -> str:
    """Return an op with all of its attributes: a text that no other op has."""
    return _called(op, fields(op))  # type: ignore[arg-type]


def _attributes(value: object) -> list[Field[Any]]:
    own = fields(value)  # type: ignore[arg-type]
    return [f for f in own if getattr(value, f.name) != f.default]


def _called(value: object, attributes: Iterable[Field[Any]]) -> str:
    named = ((f.name, getattr(value, f.name)) for f in attributes)
    parts = (f"{name}={_value(item)}" for name, item in named if not isinstance(item, Graph))
    return f"{type(value).__name__}({', '.join(parts)})"


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
            offset = f"@{value.offset}" if value.offset else ""
            return f"<{','.join(map(str, value.strides))}{offset}>"
        case DType():
            return value.label
        case Epilogue():
            views = "".join(_value(v) for v in value.views)
            return f"{text(value.expr)}{views}"
        case tuple():
            return f"({', '.join(map(_value, value))})"
        case str():
            return _name(value)
        case bytes():
            return _quoted(value.decode("latin-1"))
        case Dim():
            return str(value)
        case _ if is_dataclass(value) and not isinstance(value, type):
            return _called(value, _attributes(value))
        case _:
            return str(value)


def _name(name: str) -> str:
    return name if NAME.fullmatch(name) and name not in KEYWORDS else _quoted(name)


def _quoted(value: str) -> str:
    return json.dumps(value, ensure_ascii=True)
