"""Common subexpressions: equal ops on equal operands, and equal constants, are there once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from atc.ir.graph import Array, Graph, Node, Op, TensorType, is_own, prune

SMALL = 1 << 16
"""Bytes of a constant up to which equal ones are looked for."""


def eliminate_common_subexpressions(graph: Graph, outer: Mapping[str, Array]) -> Graph:
    """Drop nodes whose op, operands and types equal an earlier node's (no ops with subgraphs)."""
    seen: dict[tuple[Op, tuple[str, ...], tuple[TensorType, ...]], Node] = {}
    same = _equal_constants(graph)
    nodes: list[Node] = []
    for node in graph.nodes:
        inputs = tuple(same.get(i, i) for i in node.inputs)
        node = node if inputs == node.inputs else replace(node, inputs=inputs)
        key = (node.op, inputs, tuple(graph.types[o] for o in node.outputs))
        free = not node.op.subgraphs() and graph.ends.isdisjoint(node.outputs)
        if free and key in seen:
            same.update(zip(node.outputs, seen[key].outputs, strict=True))
            continue
        seen.setdefault(key, node)
        nodes.append(node)
    if len(nodes) == len(graph.nodes):
        return graph
    captures = any(n.op.subgraphs() for n in nodes)
    return graph if captures else prune(replace(graph, nodes=tuple(nodes)))


def _equal_constants(graph: Graph) -> dict[str, str]:
    """Return an earlier constant for each one of ours that has the same numbers."""
    seen: dict[tuple[TensorType, bytes], str] = {}
    same: dict[str, str] = {}
    for name, array in graph.constants.items():
        if array.nbytes <= SMALL and name not in graph.quantization:
            first = seen.setdefault((graph.types[name], array.tobytes()), name)
            if first != name and is_own(name):
                same[name] = first
    return same
