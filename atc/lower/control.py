"""Lowerings of control flow."""

from __future__ import annotations

import onnx_ir

from atc.errors import UnsupportedError
from atc.ir import Graph, TensorType
from atc.lower.builder import Builder
from atc.lower.registry import lowers
from atc.lower.site import Site
from atc.ops import If


@lowers("If")
def if_(site: Site) -> tuple[str, ...]:
    """ONNX If-21: a condition known when compiling leaves one branch."""
    condition = site.const(0)
    if condition is not None:
        chosen = "then_branch" if bool(condition.reshape(-1)[0]) else "else_branch"
        return site.lower_subgraph(site.subgraph(chosen), site.b)
    site.require(site.type(0).size == 1, f"the condition is {site.type(0)}, not one BOOL")
    graphs = [_branch(site, site.subgraph(name)) for name in ("then_branch", "else_branch")]
    types: list[TensorType] = []
    for a, b in zip(*(g.types_of(g.outputs) for g in graphs), strict=True):
        if a is None or a != b:
            raise UnsupportedError(
                f"the branches give different shapes, {a} and {b}", where=site.label
            )
        types.append(a)
    return site.b.emit(If(graphs[0], graphs[1]), [site.input(0)], *types)


def _branch(site: Site, graph: onnx_ir.Graph) -> Graph:
    builder = Builder(site.b)
    outputs = site.lower_subgraph(graph, builder)
    return builder.graph(graph.name or "branch", (), outputs)
