"""Horizontal fusion: small products of one operand with packed weights become one.

Queries, keys and values are such products. One row takes each weight once, so that a small product
waits for its first weights nearly as long as it takes; and threads have too few columns to share.
Results are read in place, as slices of the merged rows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from atc.ir.expr import Input
from atc.ir.graph import Array, Graph, Node, TensorType, prune, reads, type_of
from atc.ir.ops import Map, MatMul, Reduce, Reshape
from atc.ir.ops.quantize import MatMulPacked
from atc.ir.view import View
from atc.passes.rewriting import fresh_name, merge_origin

SMALL = 1 << 20
"""Weights of a product whose beginning counts."""
COLUMNS = View((0, 1))
"""How an epilogue reads a number for each column."""


def merge_packed_siblings(graph: Graph, outer: Mapping[str, Array]) -> Graph:
    """Merge small products with constant packed weights whose results views can read."""
    constants = {**outer, **graph.constants}
    in_place = _read_by_views(graph)
    groups: dict[object, list[Node]] = {}
    for node in graph.nodes:
        if (key := _key(graph, node, constants)) is not None and node.outputs[0] in in_place:
            groups.setdefault(key, []).append(node)
    state = _Merging(constants, dict(graph.types), dict(graph.constants))
    for nodes in groups.values():
        if len(nodes) > 1:
            state.merge(nodes)
    if not state.replaced:
        return graph
    found = [n for old in graph.nodes for n in state.replaced.get(old.outputs, [old])]
    merged = replace(graph, nodes=tuple(found), types=state.types, constants=state.constants)
    return prune(merged)


def _read_by_views(graph: Graph) -> set[str]:
    """Return the values that nothing reads but through views, or as another shape that is."""
    kept = set(graph.ends)
    for node in reversed(graph.nodes):
        through = isinstance(node.op, Map | Reduce | MatMul) or (
            isinstance(node.op, Reshape) and node.outputs[0] not in kept
        )
        kept.update(() if through else reads(node))
    return {name for node in graph.nodes for name in node.outputs} - kept


def _key(graph: Graph, node: Node, constants: Mapping[str, Array]) -> object | None:
    """Return a key that products that may be merged have in common; None for others."""
    op = node.op
    if not isinstance(op, MatMulPacked) or op.n * op.k > SMALL or op.m == 0:
        return None
    rest = [name for name in node.inputs[1:] if name]
    columns = all(graph.types[name].size == op.n for name in node.inputs[4:])
    if not columns or {*op.epilogue.views} - {COLUMNS} or not all(n in constants for n in rest):
        return None
    dtypes = tuple(t and t.dtype for t in graph.types_of(node.inputs))
    return node.inputs[0], replace(op, n=0), dtypes, graph.types[node.outputs[0]].shape[:-1]


@dataclass
class _Merging:
    """The graph being rewritten."""

    known: Mapping[str, Array]
    types: dict[str, TensorType]
    constants: dict[str, Array]
    replaced: dict[tuple[str, ...], list[Node]] = field(default_factory=dict)
    """What stands in the place of a node, by its results."""

    def merge(self, nodes: Sequence[Node]) -> None:
        """Put the merged product in the place of the first one, and slices in those of all."""
        first, op = nodes[0], nodes[0].op
        assert isinstance(op, MatMulPacked)
        columns = [self.types[n.outputs[0]].shape[-1] for n in nodes]
        operands = [self._joined(nodes, k) for k in range(1, len(first.inputs))]
        y, total = self.types[first.outputs[0]], sum(columns)
        result = self._named(f"{first.outputs[0]}.merged", replace(y, shape=(*y.shape[:-1], total)))
        merged = Node(replace(op, n=total), (first.inputs[0], *operands), (result,),
                      merge_origin(*nodes))  # fmt: skip
        begin = 0
        for node, n in zip(nodes, columns, strict=True):
            part = Map((op.m, n), Input(y.dtype, 0), (View((total, 1), begin),))
            slice_ = replace(node, op=part, inputs=(result,))
            self.replaced[node.outputs] = [merged] * (node is first) + [slice_]
            begin += n

    def _joined(self, nodes: Sequence[Node], k: int) -> str:
        """Return a constant operand of all products, '' where they have none."""
        if not nodes[0].inputs[k]:
            return ""
        arrays = [self.known[n.inputs[k]] for n in nodes]
        columns = [self.types[n.outputs[0]].shape[-1] for n in nodes]
        rows = [a.reshape(n, -1) for a, n in zip(arrays, columns, strict=True)]
        joined = np.concatenate(rows)
        name = self._named(f"{nodes[0].inputs[k]}.merged", type_of(joined))
        self.constants[name] = joined
        return name

    def _named(self, hint: str, type_: TensorType) -> str:
        name = fresh_name(self.types, hint)
        self.types[name] = type_
        return name
