"""Other names for the values of a graph."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from atc.ir.graph import Graph, Node, Op


def rename(graph: Graph, names: Mapping[str, str]) -> Graph:
    """Return the graph with values renamed, also where subgraphs read them."""

    def new(n: str) -> str:
        return names.get(n, n)

    nodes = tuple(
        Node(_rename_inside(n.op, names), (*map(new, n.inputs),), (*map(new, n.outputs),), n.origin)
        for n in graph.nodes
    )
    return Graph(
        graph.name, tuple(map(new, graph.inputs)), tuple(map(new, graph.outputs)), nodes,
        {new(k): v for k, v in graph.types.items()},
        {new(k): v for k, v in graph.constants.items()}, dims=graph.dims, guards=graph.guards,
        warnings=graph.warnings, quantization={new(k): v for k, v in graph.quantization.items()},
        aliases={new(k): replace(v, of=new(v.of)) for k, v in graph.aliases.items()},
    )  # fmt: skip


def _rename_inside(op: Op, names: Mapping[str, str]) -> Op:
    graphs = {k: rename(v, names) for k, v in vars(op).items() if isinstance(v, Graph)}
    return replace(op, **graphs) if graphs else op  # type: ignore[type-var]
