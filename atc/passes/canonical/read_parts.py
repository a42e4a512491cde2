"""Lets steps that read one tensor at different places share a kernel: each reads its own part."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from atc.dims import is_dynamic
from atc.ir.graph import Array, Graph, Node, Op, TensorType
from atc.ir.ops import Epilogue, Map, MatMul, SubView
from atc.ir.view import View
from atc.passes.canonical.alias_slices import ALIGNMENT
from atc.passes.rewriting import Rewriting, rewrite

ALIKE = 4
"""Ops that differ in where they read only, from which on it is worth while."""


@dataclass(frozen=True)
class _Reading:
    """A node's op that reads parts: `parts` are the begin and size of each by operand."""

    op: Op
    parts: Mapping[int, tuple[int, int]]


def read_parts(graph: Graph, outer: Mapping[str, Array]) -> Graph:
    """Read whole blocks of tensors as parts, where several nodes are alike but for the block."""
    found = {n.outputs[0]: r for n in graph.nodes if (r := _reading(graph, n)) is not None}
    nodes = {n.outputs[0]: n for n in graph.nodes}
    keys = {name: (r.op, graph.types_of(nodes[name].inputs)) for name, r in found.items()}
    alike = Counter(key for key, _ in {(key, nodes[name].op) for name, key in keys.items()})

    def rule(state: Rewriting, node: Node) -> Node:
        name = node.outputs[0]
        if name not in found or alike[keys[name]] < ALIKE:
            return node
        inputs = list(node.inputs)
        for k, (begin, size) in found[name].parts.items():
            type_ = TensorType(state.types[inputs[k]].dtype, (size,))
            inputs[k] = state.emit(SubView(begin), [inputs[k]], type_, node, f"part{k}")
        return replace(node, op=found[name].op, inputs=tuple(inputs))

    return rewrite(graph, rule, outer) if max(alike.values(), default=0) >= ALIKE else graph


def _reading(graph: Graph, node: Node) -> _Reading | None:
    op = node.op
    if not isinstance(op, Map | MatMul) or is_dynamic(op):
        return None
    shape = op.shape if isinstance(op, Map) else op.loops
    views, first = (op.views, 0) if isinstance(op, Map) else (op.epilogue.views, 2)
    types = graph.types_of(node.inputs[first:])
    parts: dict[int, tuple[int, int]] = {}
    changed: list[View] = []
    for k, (view, type_) in enumerate(zip(views, types, strict=True), first):
        part = _part(shape, view, type_)
        if part is not None and node.inputs[k] not in graph.constants:
            parts[k] = part
            view = replace(view, offset=view.offset - part[0])
        changed.append(view)
    if not parts:
        return None
    if isinstance(op, Map):
        return _Reading(replace(op, views=tuple(changed)), parts)
    epilogue = Epilogue(op.epilogue.expr, tuple(changed))
    return _Reading(replace(op, epilogue=epilogue), parts)


def _part(shape: Sequence[int], view: View, type_: TensorType | None) -> tuple[int, int] | None:
    """Return begin and size of the block that a view stays in, if that isn't the whole tensor.

    A block is what the view's slowest axis walks over.
    """
    size = max((s * n for s, n in _axes(shape, view)), default=0)
    if type_ is None or is_dynamic(type_.shape) or not 0 < size < type_.size or type_.size % size:
        return None
    begin = view.offset // size * size
    low, high = view.bounds(shape)
    inside = begin <= low and high < begin + size
    aligned = begin * type_.dtype.itemsize % ALIGNMENT == 0
    return (begin, size) if inside and aligned else None


def _axes(shape: Sequence[int], view: View) -> Iterator[tuple[int, int]]:
    return ((s, n) for s, n in zip(view.strides, shape, strict=True) if n != 1)
